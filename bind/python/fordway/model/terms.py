"""The terms of the cost models: times and sizes derived from each row, and the reasons for missing
columns.
"""

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from fordway.model import mathis
from fordway.model.points import CONNECTIONS, SIZE, TIME, Points


@dataclass(frozen=True)
class Constants:
    """Properties of the machine that are not in the rows. `None` means unknown."""

    clock_mhz: float | None = None
    """R, the clock frequency of the reference cycles. Overrides the clock column of the rows."""
    frequency_mhz: float | None = None
    """Clock frequency of the client. Overrides the frequency derived from cycle counters."""
    memory_bytes_per_us: float | None = None
    network_bytes_per_us: float | None = None
    path: mathis.Path = field(default_factory=mathis.Path)
    small_bytes: float = 65_536
    """The small-object term counts only this many bytes of an object."""


@dataclass(frozen=True)
class Terms:
    """Columns for the models, one row for each point, and the reasons for missing columns."""

    columns: pd.DataFrame
    missing: dict[str, str]

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def times_us(self) -> np.ndarray:
        """Measured times, in µs."""
        return self.columns["time_us"].to_numpy()

    def take(self, which: np.ndarray) -> "Terms":
        """Returns the rows that `which` selects, by position or by a Boolean mask."""
        return Terms(self.columns.loc[self.columns.index[which]].reset_index(drop=True), self.missing)

    def why_not(self, needs: tuple[str, ...]) -> list[str]:
        """Returns the distinct reasons why columns of `needs` are missing."""
        return list(dict.fromkeys(self.missing[name] for name in needs if name in self.missing))


def derive(points: Points, constants: Constants) -> Terms:
    """Returns the terms that can be computed from `points` and `constants`."""
    rows = points.rows
    found = {"size": rows[SIZE], "time_us": rows[TIME], "one": 1.0, "connections": rows[CONNECTIONS]}
    found["small"] = np.minimum(rows[SIZE], constants.small_bytes)
    rtt_us, memory = constants.path.rtt_us, constants.memory_bytes_per_us
    found["rtt"] = np.nan if rtt_us is None else rtt_us
    for side in ("server", "client"):
        found[f"{side}_cpu"] = rows[f"{side}_cycles"] / _clock(rows, side, constants)
        found[f"{side}_memory"] = rows[f"{side}_evicted_bytes"] / (np.nan if memory is None else memory)
    found["network"] = rows[SIZE] / network_bytes_per_us(points, constants)
    found["mhz"] = _frequency(rows, constants)
    columns = pd.DataFrame(found, index=rows.index).astype("float64")
    columns["source"] = rows["source"]
    return Terms(columns, _reasons(points, constants, columns))


def network_bytes_per_us(points: Points, constants: Constants) -> pd.Series:
    """Returns the network bandwidth of eq. 4, in B/µs.

    This bandwidth is the lower of Mathis's bound and the bandwidth of the link. The result is NaN if the
    bandwidth of the link is unknown.
    """
    link = constants.network_bytes_per_us
    bound = mathis.bounds(points, constants.path).fillna(np.inf)
    return np.minimum(bound, np.nan if link is None else link)


def _clock(rows: pd.DataFrame, side: str, constants: Constants) -> pd.Series | float:
    return rows[f"{side}_clock_mhz"] if constants.clock_mhz is None else constants.clock_mhz


def _frequency(rows: pd.DataFrame, constants: Constants) -> pd.Series | float:
    if constants.frequency_mhz is not None:
        return constants.frequency_mhz
    ratio = rows["client_cycles"] / rows["client_reference_cycles"]
    return (ratio * _clock(rows, "client", constants)).fillna(rows["client_mhz"])


def _reasons(points: Points, constants: Constants, columns: pd.DataFrame) -> dict[str, str]:
    """Returns the first reason for each column that has gaps."""
    refused = {
        side: next((s for s in points.refused if f"the {side}'s" in s), None) for side in ("server", "client")
    }
    options = {
        "rtt": (constants.path.rtt_us, "--rtt"),
        "network": (constants.network_bytes_per_us, "--network-bandwidth"),
        "server_memory": (constants.memory_bytes_per_us, "--memory-bandwidth"),
        "client_memory": (constants.memory_bytes_per_us, "--memory-bandwidth"),
    }
    reasons = {}
    for name in columns.columns[columns.isna().any()]:
        value, option = options.get(name, (0, ""))
        side = "server" if name.startswith("server") else "client"
        counted = {"cpu": "cycles", "memory": "evicted_bytes"}.get(name.removeprefix(f"{side}_"))
        if name == "connections":
            reasons[name] = "the rows do not say how many connections there were"
        elif (counted or name == "mhz") and refused[side]:
            reasons[name] = refused[side]
        elif counted and points.rows[f"{side}_{counted}"].isna().any():
            gaps = int(points.rows[f"{side}_{counted}"].isna().sum())
            what = "cycles" if counted == "cycles" else "evicted lines"
            reasons[name] = f"the {side}'s {what} are not measured in {gaps} of {len(columns)} rows"
        elif value is None:
            reasons[name] = f"{option} is not given"
        elif name == "mhz":
            reasons[name] = (
                "the client's frequency is unknown: give cycles, reference cycles and a clock, or --frequency"
            )
        else:
            reasons[name] = f"the {side}'s clock is unknown: give --clock"
    return reasons
