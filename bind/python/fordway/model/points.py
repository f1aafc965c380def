"""Measurements as the models take them: one row for each size, load or run."""

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
"""Every column a reader may fill; what a row does not have is NaN. `time_us` is of one request; cycles and
evicted bytes are of one request too; `read_bytes` and `errors` are of the whole run. `mhz` is a frequency
measured as such.
"""


class DataError(Exception):
    """The measurements or options cannot be used; the message says why and what to do."""


@dataclass
class Points:
    """Rows of measurements, and what has been said about them so far."""

    rows: pd.DataFrame
    statistic: str = "mean"
    """What `time_us` is of many requests: `mean`, or `p50` for the median."""
    notes: list[str] = field(default_factory=list)
    """Sentences for whoever reads the result: what was left out, and what is doubtful."""
    refused: list[str] = field(default_factory=list)
    """Sentences about measurements that are there and not used."""

    def __len__(self) -> int:
        return len(self.rows)

    def where(self, keep: Sequence[bool] | pd.Series) -> "Points":
        """Only the rows that `keep` says; the sentences are shared."""
        rows = self.rows[list(keep)].reset_index(drop=True)
        return Points(rows, self.statistic, self.notes, self.refused)

    def has(self, column: str) -> bool:
        """Whether every row has `column`."""
        return len(self.rows) > 0 and not self.rows[column].isna().any()


def from_records(records: Iterable[dict[str, Any]], statistic: str = "mean") -> Points:
    """Points of `records`, each with some of `COLUMNS`."""
    rows = pd.DataFrame(list(records)).reindex(columns=COLUMNS)
    numbers = [column for column in COLUMNS if column != "source"]
    return Points(rows.astype(dict.fromkeys(numbers, "float64")), statistic)


def joined(parts: Sequence[Points]) -> Points:
    """The rows of all `parts`, in order."""
    if len({part.statistic for part in parts}) > 1:
        raise DataError("some files have mean times and others only medians: model them one by one")
    rows = pd.concat([part.rows for part in parts], ignore_index=True)
    notes = [note for part in parts for note in part.notes]
    return Points(rows, parts[0].statistic, notes, [note for part in parts for note in part.refused])
