"""Measurements for the models: one row for each size, load or run."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

CACHE_LINE_BYTES = 64
SIDES = ("server", "client")

SIZE, TIME, REQUESTS, RATE, CONNECTIONS = "size_bytes", "time_us", "requests", "rate_per_s", "connections"
COLUMNS = [
    "source",
    SIZE,
    TIME,
    REQUESTS,
    RATE,
    CONNECTIONS,
    "asked_rate_per_s",
    "threads",
    "duration_us",
    "read_bytes",
    "body_bytes",
    "errors",
    "timeouts",
    "mss_bytes",
    "tcp_rtt_us",
    "retransmits",
    *(
        f"{side}_{name}"
        for side in SIDES
        for name in ("cycles", "reference_cycles", "evicted_bytes", "runtime_us", "clock_mhz", "mhz")
    ),
]
"""Every column that a reader may fill. Missing values are NaN. `time_us`, cycles and evicted bytes are per
request. `read_bytes` and `errors` are totals of the whole run. `mhz` is a measured frequency.
"""


class MeasurementError(Exception):
    """The measurements or options are unusable. The message gives the reason and the remedy."""


@dataclass
class Points:
    """Rows of measurements, and the notes about them."""

    rows: pd.DataFrame
    statistic: str = "mean"
    """Statistic of `time_us`: `mean`, or `p50` for the median."""
    notes: list[str] = field(default_factory=list)
    """Sentences for readers of the result: omitted rows and doubtful values."""
    refused: list[str] = field(default_factory=list)
    """Sentences about measurements that exist but are not used."""
    doubts: list[str] = field(default_factory=list)
    """Reasons to doubt all rows of a run or a probe, such as a busy machine. Everything that is computed from
    the rows inherits them.
    """

    def __len__(self) -> int:
        return len(self.rows)

    def where(self, keep: Sequence[bool] | pd.Series) -> "Points":
        """Returns the rows that `keep` selects. The result shares the lists of notes and doubts."""
        rows = self.rows[list(keep)].reset_index(drop=True)
        return Points(rows, self.statistic, self.notes, self.refused, self.doubts)

    def has(self, column: str) -> bool:
        """Returns whether there are rows and all of them have `column`."""
        return len(self.rows) > 0 and not self.rows[column].isna().any()


def from_records(records: Iterable[dict[str, Any]], statistic: str = "mean") -> Points:
    """Returns points for `records`, each of which has some of `COLUMNS`."""
    rows = pd.DataFrame(list(records)).reindex(columns=COLUMNS)
    numbers = [column for column in COLUMNS if column != "source"]
    return Points(rows.astype(dict.fromkeys(numbers, "float64")), statistic)


def joined(parts: Sequence[Points]) -> Points:
    """Returns the rows of all `parts`, in order. Raises `MeasurementError` if their statistics differ."""
    if len({part.statistic for part in parts}) > 1:
        raise MeasurementError("some files have mean times and others only medians: model them separately")
    rows = pd.concat([part.rows for part in parts], ignore_index=True)
    notes, refused, doubts = (
        [note for part in parts for note in getattr(part, name)] for name in ("notes", "refused", "doubts")
    )
    return Points(rows, parts[0].statistic, notes, refused, doubts)
