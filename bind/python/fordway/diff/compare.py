"""The comparison of two runs, cell by cell. A cell is one lane in one phase.

The unit of the statistics is the round. Operations of the same round are not independent, because they share
the disturbances of that round.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from fordway.report import runfile

ROUNDS_MIN = 5
"""The minimum number of rounds of a cell for a comparison. With fewer rounds, an interval would be wider than
any relevant difference.
"""

CONFIDENCE = 0.95
"""The joint confidence of all intervals: the probability that every interval contains its true value."""

MACHINE = ("kernel", "system", "cpu_model", "cpus", "memory_bytes", "cpu_governor", "huge_pages")
"""The properties of the machine that are compared."""

NOT_COMPARED = {"seed", "source", "url"}
"""Parameters whose values may differ between comparable runs."""

WORK = frozenset(
    {
        "files",
        "bytes",
        "objects",
        "content_bytes",
        "range_bytes_max",
        "items",
        "file_size",
        "object_size",
        "easy_bytes",
        "easy_files",
        "hard_files",
        "hard_transfers",
        "datasets",
        "iterations",
        "buckets",
        "min_bytes",
        "max_bytes",
        "scale",
        "ranges",
        "per_call",
        "threads",
        "ranks",
        "connections",
        "window_max",
        "durability",
        "etag_policy",
        "delete",
        "mode",
        "shift",
        "offset",
        "stonewall",
        "method",
        "range",
        "signed",
        "time",
    }
)
"""Parameters that define the work. Times of different work are not comparable, because a change of the work
would look like a change of speed.
"""


class DiffError(Exception):
    """Two runs cannot be compared. The message gives the reason and the remedy."""


@dataclass(frozen=True)
class CellDifference:
    """The change of the time per operation in one cell."""

    phase: str
    lane: str
    before_ns: float
    after_ns: float
    ratio: float | None
    """The time in the second run divided by the time in the first run."""
    low: float | None
    high: float | None
    verdict: str
    """`slower`, `faster`, `same` (a smaller change than `--at-least`), or `cannot tell`."""


@dataclass(frozen=True)
class RunDifference:
    """The differences between two runs."""

    settings: list[str]
    """Differences in versions, the machine and parameters."""
    notes: list[str]
    """Cells that only one run has, and reasons to doubt the runs."""
    failures: list[str]
    """Cells in which a larger share of the operations failed in the second run."""
    cells: list[CellDifference]

    @property
    def is_worse(self) -> bool:
        """Whether any cell became slower, or fails more often."""
        return bool(self.failures) or any(cell.verdict == "slower" for cell in self.cells)

    def as_json(self) -> dict[str, Any]:
        """Returns the difference as a JSON object."""
        return {"schema": "fordway.diff", "schema_version": 1} | asdict(self)


def compare(before: Path, after: Path, least: float, *, different_work: bool = False) -> RunDifference:
    """Compares two runs. Changes by less than the fraction `least` are ignored.

    Raises `DiffError` for runs of different kinds, of different work (unless `different_work`) or without a
    common cell, and `RunFileError` for an unreadable run.
    """
    infos = [runfile.read_info(path) for path in (before, after)]
    kinds = [info["kind"] for info in infos]
    if kinds[0] != kinds[1]:
        raise DiffError(
            f"the runs measured different things: {kinds[0]} and {kinds[1]}; give two runs of one kind"
        )
    work = list(_work(*infos))
    if work and not different_work:
        raise DiffError(
            f"the runs did different work ({'; '.join(work)}), so different times do not mean a "
            "different speed; measure the same work twice, or give --different-work"
        )
    times = [round_times(path, info) for path, info in zip((before, after), infos, strict=True)]
    common = [cell for cell in times[0] if cell in times[1]]
    if not common:
        raise DiffError("the runs have no lane and phase in common; measure the same lanes")
    alone = [f"{phase} on {lane} is in only one run" for phase, lane in times[0].keys() ^ times[1].keys()]
    confidence = 1 - (1 - CONFIDENCE) / len(common)
    cells = [_cell(cell, times[0][cell], times[1][cell], confidence, least) for cell in common]
    notes = sorted(alone) + list(_doubts(infos))
    notes = [f"the runs did different work: {each}" for each in work] + notes
    return RunDifference(list(_settings(*infos)), notes, list(_failures(*infos)), cells)


def _failures(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    """Yields the cells in which operations fail more often in the second run.

    Times exist only for successful operations. Without this check, a server that fails every second request
    could appear to be as fast as a server that fails none.
    """
    known = {(row["phase"], row["lane"]): row for row in before["summaries"]}
    for row in after["summaries"]:
        earlier = known.get((row["phase"], row["lane"]))
        if earlier and _failed_share(row) > _failed_share(earlier):
            counts = [f"{each['errors']} of {each['errors'] + each['operations']}" for each in (earlier, row)]
            yield f"{row['phase']} on {row['lane']}: {counts[0]} operations failed before, {counts[1]} after"


def _failed_share(row: dict[str, Any]) -> float:
    return row["errors"] / max(row["errors"] + row["operations"], 1)


def round_times(directory: Path, info: dict[str, Any]) -> dict[tuple[str, str], np.ndarray]:
    """Returns the time of an operation in each round, in ns, for each phase and lane.

    The time is the median over the round's operations, or over its blocks if operations were not recorded.
    """
    columns = ["lane", "phase", "round", "start_ns", "duration_ns", "intended_ns", "ok"]
    rows = runfile.read_table(directory / "operations.arrow", columns)
    runfile.check_counts(directory / "operations.arrow", info, rows)
    rows = rows[rows["ok"]]
    late_ns = (rows["start_ns"] - rows["intended_ns"].astype("float64")).fillna(0)
    rows = rows.assign(time_ns=rows["duration_ns"] + late_ns)
    if rows.empty:
        columns = ["lane", "phase", "round", "operations", "elapsed_ns"]
        rows = runfile.read_table(directory / "blocks.arrow", columns)
        rows = rows[rows["operations"] > 0]
        rows = rows.assign(time_ns=rows["elapsed_ns"] / rows["operations"])
    return _by_cell(rows)


def _by_cell(rows: pd.DataFrame) -> dict[tuple[str, str], np.ndarray]:
    medians = rows.groupby(["phase", "lane", "round"], observed=True, sort=False)["time_ns"].median()
    found: dict[tuple[str, str], list[float]] = {}
    for (phase, lane, _), time_ns in medians.items():
        found.setdefault((str(phase), str(lane)), []).append(float(time_ns))
    return {cell: np.array(times) for cell, times in found.items()}


def log_mean(times: np.ndarray) -> tuple[float, float, float]:
    """Returns the mean of the times' logarithms, the variance of the mean, and the number of independent
    rounds.

    Autocorrelation between successive rounds (lag 1) reduces the number of independent rounds.
    """
    logs = np.log(np.maximum(times, 1.0))
    spread = logs - logs.mean()
    square = float(np.sum(spread**2))
    lag = float(np.sum(spread[1:] * spread[:-1])) / square if square > 0 else 0.0
    lag = min(max(lag, 0.0), 0.9)
    independent = max(len(logs) * (1 - lag) / (1 + lag), 2.0)
    return float(logs.mean()), float(np.var(logs, ddof=1)) / independent, independent


def _cell(
    cell: tuple[str, str], before: np.ndarray, after: np.ndarray, confidence: float, least: float
) -> CellDifference:
    medians = float(np.median(before)), float(np.median(after))
    if min(len(before), len(after)) < ROUNDS_MIN:
        return CellDifference(*cell, *medians, None, None, None, "cannot tell")
    (mean0, variance0, count0), (mean1, variance1, count1) = log_mean(before), log_mean(after)
    variance = variance0 + variance1
    # Compute Welch's degrees of freedom. If the variance is 0, the interval is a single point.
    parts = variance0**2 / (count0 - 1) + variance1**2 / (count1 - 1)
    freedom = variance**2 / parts if parts > 0 else 1.0
    half = float(stats.t.ppf((1 + confidence) / 2, freedom)) * variance**0.5 if variance > 0 else 0.0
    ratio, low, high = (float(np.exp(mean1 - mean0 + shift)) for shift in (0.0, -half, half))
    return CellDifference(*cell, *medians, ratio, low, high, _verdict(low, high, least))


def _verdict(low: float, high: float, least: float) -> str:
    if low > 1 + least:
        return "slower"
    if high < 1 / (1 + least):
        return "faster"
    if low >= 1 / (1 + least) and high <= 1 + least:
        return "same"
    return "cannot tell"


def _settings(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    """Returns the differences in versions, the machine and parameters."""
    both = (before, after)
    kinds = [[system["kind"] for system in info["machine"]["file_systems"]] for info in both]
    pairs = [("fordway_version", *(info["fordway_version"] for info in both)), ("file systems", *kinds)]
    pairs += [(name, *(info["machine"].get(name) for info in both)) for name in MACHINE]
    names = dict.fromkeys([*before["parameters"], *after["parameters"]])
    names = [name for name in names if name not in NOT_COMPARED]
    pairs += [(name, *(info["parameters"].get(name) for info in both)) for name in names]
    yield from (f"{name}: {one} and {other}" for name, one, other in pairs if one != other)


def _work(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    """Returns the differences in parameters that define the work. A parameter that only one run has, such as
    a run of an older version, is not a difference.
    """
    one, other = before["parameters"], after["parameters"]
    for name in one:
        # A measurement of speed-up has a list of ranks, each of which is a phase.
        is_work = name in WORK and not (name == "ranks" and isinstance(one[name], list))
        if is_work and name in other and one[name] != other[name]:
            yield f"{name}: {one[name]} and {other[name]}"


def _doubts(infos: list[dict[str, Any]]) -> Iterator[str]:
    for which, info in zip(("first", "second"), infos, strict=True):
        for doubt in (info.get("conditions") or {}).get("doubts", []):
            yield f"the {which} run is in doubt: {doubt['observed']}; {doubt['remedy']}"
