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

LAG_MAX = 0.95
"""The maximum estimate of the autocorrelation of successive rounds."""

INDEPENDENT_MIN = 1.5
"""The minimum estimated number of independent rounds. Below this number, no interval exists."""

HALF_MAX = 100.0
"""The maximum half-width of an interval, as a logarithm. A wider interval contains no information."""

P99_OPERATIONS_MIN = 500
"""The minimum number of operations of each round for a comparison of the 99th percentile."""

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
        "clients",
        "cache",
        "link",
        "ranks",
        "connections",
        "window_max",
        "block_bytes_max",
        "messages_max",
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
        "rate",
        "arrivals",
        "transfer_size",
        "block_size",
        "segments",
        "file_per_process",
        "mapping",
        "fsync",
        "reorder",
        "job",
        "range_bytes",
        "ranges_digest",
        "wire",
        "pong_options",
    }
)
"""Parameters that define the work. Times of different work are not comparable, because a change of the work
would look like a change of speed.
"""


class DiffError(Exception):
    """Two runs cannot be compared. The message gives the reason and the remedy."""


@dataclass(frozen=True)
class CellTimes:
    """Times of an operation in one cell of one run, in ns. Each array has an element for each round."""

    statistics: dict[str, np.ndarray]
    """The median, the mean, and the 99th percentile (`p99`) if there are enough operations."""
    distinct: np.ndarray
    """The distinct times if most times occur repeatedly, because the clock is coarse. Otherwise empty."""
    operations: int = 0
    """The number of operations from which the statistics were computed."""


@dataclass(frozen=True)
class Change:
    """The change of one statistic of the time per operation."""

    statistic: str
    before_ns: float
    after_ns: float
    ratio: float | None
    """The time in the second run divided by the time in the first run. `None` with too few rounds."""
    low: float | None
    high: float | None
    verdict: str
    """`slower`, `faster`, `same` (a smaller change than `--at-least`), or `cannot tell`."""


@dataclass(frozen=True)
class CellDifference:
    """The change of the time per operation in one cell."""

    phase: str
    lane: str
    verdict: str
    """A verdict as in `Change`. It is `same` only if the median and the mean both have this verdict."""
    changes: list[Change]
    """The changes of the median, of the mean, and of the 99th percentile if both runs have it."""


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
    conditions: dict[str, str]
    """The verdict on the conditions of each run: `measured`, `doubtful`, `refused` (the run was forced), or
    `unknown`.
    """

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
    pairs = [(times[0][cell], times[1][cell]) for cell in common]
    intervals = sum(len(_common_statistics(*pair)) for pair in pairs)
    confidence = 1 - (1 - CONFIDENCE) / intervals
    cells = [_cell(cell, *pair, confidence, least) for cell, pair in zip(common, pairs, strict=True)]
    notes = sorted(alone) + list(_partly_recorded(infos, times)) + list(_doubts(infos))
    notes = [f"the runs did different work: {each}" for each in work] + notes
    verdicts = [(info.get("conditions") or {}).get("verdict", "unknown") for info in infos]
    conditions = dict(zip(("before", "after"), verdicts, strict=True))
    return RunDifference(list(_settings(*infos)), notes, list(_failures(*infos)), cells, conditions)


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


def round_times(directory: Path, info: dict[str, Any]) -> dict[tuple[str, str], CellTimes]:
    """Returns the times of an operation in each round, for each phase and lane.

    The times are statistics of the round's operations, or of its blocks if operations were not recorded.
    """
    columns = ["lane", "phase", "round", "start_ns", "duration_ns", "intended_ns", "ok"]
    rows = runfile.read_table(directory / "operations.arrow", columns)
    runfile.check_counts(directory / "operations.arrow", info, rows)
    rows = rows[rows["ok"]]
    late_ns = (rows["start_ns"] - rows["intended_ns"].astype("float64")).fillna(0)
    rows = rows.assign(time_ns=rows["duration_ns"] + late_ns, operations=1)
    if rows.empty:
        columns = ["lane", "phase", "round", "operations", "elapsed_ns"]
        rows = runfile.read_table(directory / "blocks.arrow", columns)
        rows = rows[rows["operations"] > 0]
        rows = rows.assign(time_ns=rows["elapsed_ns"] / rows["operations"])
    cells = rows.groupby(["phase", "lane"], observed=True, sort=False)
    return {(str(phase), str(lane)): _cell_times(own) for (phase, lane), own in cells}


def _cell_times(rows: pd.DataFrame) -> CellTimes:
    """Returns the times of one cell. The mean weights each block by its number of operations."""
    rows = rows.assign(sum_ns=rows["time_ns"] * rows["operations"])
    rounds = rows.groupby("round", observed=True, sort=False)
    sums = rounds[["sum_ns", "operations"]].sum()
    found = {
        "median": rounds["time_ns"].median().to_numpy(dtype=float),
        "mean": (sums["sum_ns"] / sums["operations"]).to_numpy(dtype=float),
    }
    if rounds.size().min() >= P99_OPERATIONS_MIN:
        found["p99"] = rounds["time_ns"].quantile(0.99).to_numpy(dtype=float)
    distinct = np.unique(rows["time_ns"].to_numpy(dtype=float))
    is_coarse = len(distinct) <= len(rows) / 2
    return CellTimes(found, distinct if is_coarse else distinct[:0], int(rows["operations"].sum()))


def _common_statistics(before: CellTimes, after: CellTimes) -> list[str]:
    return [name for name in before.statistics if name in after.statistics]


def _tick_ns(before: CellTimes, after: CellTimes) -> float:
    """Returns the resolution of a coarse clock, in ns: the smallest difference between times. Returns 0 if
    the clock is fine, or if it is unknown because all times are equal.
    """
    distinct = np.unique(np.concatenate([before.distinct, after.distinct]))
    return float(np.diff(distinct).min()) if len(distinct) > 1 else 0.0


def log_mean(times: np.ndarray) -> tuple[float, float, float]:
    """Returns the mean of the times' logarithms, the variance of the mean, and the number of independent
    rounds.

    Autocorrelation between successive rounds (lag 1) reduces the number of independent rounds, and makes the
    scatter of few rounds too small. The estimate of the autocorrelation from few rounds is too low. The
    estimate is therefore corrected (Marriott and Pope, Biometrika 41, 1954). The autocorrelation is assumed
    to decrease geometrically with the lag.
    """
    logs = np.log(np.maximum(times, 1.0))
    rounds, spread = len(logs), logs - logs.mean()
    square = float(np.sum(spread**2))
    lag = float(np.sum(spread[1:] * spread[:-1])) / square if square > 0 else 0.0
    lag = min(max((rounds * lag + 1) / (rounds - 3), 0.0), LAG_MAX)
    steps = np.arange(1, rounds)
    independent = rounds / (1 + 2 * float(np.sum((1 - steps / rounds) * lag**steps)))
    independent = max(independent, INDEPENDENT_MIN)
    return float(logs.mean()), square / rounds / (independent - 1), independent


def _cell(
    cell: tuple[str, str], before: CellTimes, after: CellTimes, confidence: float, least: float
) -> CellDifference:
    tick_ns = _tick_ns(before, after)
    changes = [
        _change(name, before.statistics[name], after.statistics[name], tick_ns, confidence, least)
        for name in _common_statistics(before, after)
    ]
    return CellDifference(*cell, _joint([change.verdict for change in changes]), changes)


def _joint(verdicts: list[str]) -> str:
    """Returns the verdict for a cell from the verdicts for its median, its mean and, if there is one, its
    99th percentile.

    A cell is `same` even if the verdict for its 99th percentile is `cannot tell`, because this percentile
    varies too widely.
    """
    for verdict in ("slower", "faster"):
        if verdict in verdicts:
            return verdict
    return "same" if set(verdicts[:2]) == {"same"} else "cannot tell"


def _change(
    statistic: str, before: np.ndarray, after: np.ndarray, tick_ns: float, confidence: float, least: float
) -> Change:
    """Returns the change between the means of the logarithms of rounds, with Welch's interval."""
    medians = float(np.median(before)), float(np.median(after))
    if min(len(before), len(after)) < ROUNDS_MIN:
        return Change(statistic, *medians, None, None, None, "cannot tell")
    (mean0, variance0, count0), (mean1, variance1, count1) = log_mean(before), log_mean(after)
    variance, ratio = variance0 + variance1, float(np.exp(mean1 - mean0))
    if variance == 0 and tick_ns == 0:
        return Change(statistic, *medians, ratio, None, None, "cannot tell")
    parts = variance0**2 / (count0 - 1) + variance1**2 / (count1 - 1)
    freedom = variance**2 / parts if parts > 0 else 1.0
    half = float(stats.t.ppf((1 + confidence) / 2, freedom)) * variance**0.5
    # A coarse clock hides differences between rounds of up to half a tick in each time.
    hidden = [tick_ns / 2 / max(float(np.exp(mean)), tick_ns, 1.0) for mean in (mean0, mean1)]
    low = ratio * float(np.exp(-half)) * (1 - hidden[1]) / (1 + hidden[0])
    high = ratio * float(np.exp(min(half, HALF_MAX))) * (1 + hidden[1]) / (1 - hidden[0])
    return Change(statistic, *medians, ratio, low, high, _verdict(low, high, least))


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
    """Returns the differences in parameters that define the work. A parameter that only one run has is not a
    difference: the other run may be from an older version.
    """
    one, other = before["parameters"], after["parameters"]
    for name in one:
        # A measurement of speed-up has a list of ranks, each of which is a phase.
        is_work = name in WORK and not (name == "ranks" and isinstance(one[name], list))
        if is_work and name in other and _as_work(name, one[name]) != _as_work(name, other[name]):
            yield f"{name}: {one[name]} and {other[name]}"


def _as_work(name: str, value: object) -> object:
    """Returns the part of a parameter's value that defines the work.

    Omits the seed of an object such as the settings of a wire. Omits the directory of a job's program,
    because a comparison may be of two builds.
    """
    if name == "job" and isinstance(value, list) and value:
        return [Path(str(value[0])).name, *value[1:]]
    return {key: each for key, each in value.items() if key != "seed"} if isinstance(value, dict) else value


def _partly_recorded(
    infos: list[dict[str, Any]], times: list[dict[tuple[str, str], CellTimes]]
) -> Iterator[str]:
    """Yields the cells of which only the first operations were recorded, as in long runs of ranks."""
    for which, info, cells in zip(("first", "second"), infos, times, strict=True):
        for row in info["summaries"]:
            cell = cells.get((row["phase"], row["lane"]))
            if cell and cell.operations < row["operations"]:
                yield (
                    f"the {which} run has the times of only the first {cell.operations} of "
                    f"{row['operations']} operations of {row['phase']} on {row['lane']}: a change of later "
                    "operations does not show; compare the rates of the runs"
                )


def _doubts(infos: list[dict[str, Any]]) -> Iterator[str]:
    for which, info in zip(("first", "second"), infos, strict=True):
        for doubt in (info.get("conditions") or {}).get("doubts", []):
            yield f"the {which} run is in doubt: {doubt['observed']}; {doubt['remedy']}"
