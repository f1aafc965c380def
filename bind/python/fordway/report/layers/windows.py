"""Checks whether the sizes of jumps change with the initial TCP receive window."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from fordway.report.layers import changes
from fordway.report.layers.changes import Change
from fordway.report.runfile import Run

SAME = 0.1
"""Maximum relative difference of two sizes that count as equal. Sizes with overlapping intervals also count
as equal.
"""

WINDOW = re.compile(r" tcp_rmem=(\d+)")

MOVES, STAYS, CANNOT_TELL = "moves with the window", "does not move with the window", "cannot tell"


@dataclass(frozen=True)
class Found:
    """A jump, with its lane and phase."""

    lane: str
    phase: str
    change: Change


@dataclass(frozen=True)
class Verdict:
    """The result for one jump, from sweeps that were repeated with other receive windows."""

    lane: str
    phase: str
    """Name of the phase, without the window."""
    sizes_bytes: dict[int, float]
    """Size at which times jump, for each window."""
    verdict: str


def window_bytes(run: Run, phase: str) -> int | None:
    """Returns the initial receive window of connections in `phase`, or `None` if it is unknown."""
    named = WINDOW.search(phase)
    if named:
        return int(named[1])
    parameters: dict[str, Any] = run.info["parameters"]
    if parameters.get("tcp_rmem_bytes"):
        return parameters["tcp_rmem_bytes"]
    for setup in parameters.get("setups", []):
        for settings in setup["settings"]:
            numbers = settings.get("net/ipv4/tcp_rmem", "").split()
            if len(numbers) == 3 and numbers[1].isdecimal():
                return int(numbers[1])
    return None


def all_changes(run: Run) -> list[Found]:
    """Returns the jumps of every set-up in every phase."""
    found = []
    for (phase, lane), rows in run.operations.groupby(["phase", "lane"], observed=True, sort=False):
        sizes, times = rows["bytes"].to_numpy(dtype=float), rows["duration_ns"].to_numpy(dtype=float)
        found += [Found(lane, phase, change) for change in changes.find(sizes, times)]
    return found


def unsearched(run: Run) -> list[str]:
    """Returns a text for each set-up and phase with too few messages or sizes to detect jumps."""
    said = []
    for phase in run.phases:
        for lane in run.lanes:
            rows = run.operations
            sizes = rows.loc[(rows["phase"] == phase) & (rows["lane"] == lane), "bytes"].to_numpy(dtype=float)
            if not changes.can_search(sizes):
                said.append(f"{lane}, {phase} ({len(sizes):,} messages of {len(np.unique(sizes)):,} sizes)")
    return said


def verdicts(run: Run, found: list[Found]) -> list[Verdict]:
    """Returns a verdict for each jump in sweeps that were repeated with other receive windows."""
    groups: dict[tuple[str, str], dict[int, list[Change]]] = {}
    for phase in run.phases:
        named = WINDOW.search(phase)
        for lane in run.lanes if named else []:
            of_window = [one.change for one in found if (one.phase, one.lane) == (phase, lane)]
            groups.setdefault((lane, WINDOW.sub("", phase)), {})[int(named[1])] = of_window
    told = []
    for (lane, phase), by_window in groups.items():
        if len(by_window) > 1:
            told += [Verdict(lane, phase, *said) for said in _compared(by_window)]
    return told


def _compared(by_window: dict[int, list[Change]]) -> list[tuple[dict[int, float], str]]:
    """Returns the verdict for each jump of the first window, and the sizes of this jump in all windows."""
    first, *others = by_window
    told = []
    for change in by_window[first]:
        moved = {window: _near(by_window[window], change, window / first) for window in others}
        stayed = {window: _near(by_window[window], change, 1.0) for window in others}
        if all(moved.values()) and not any(stayed.values()):
            told.append(({first: change.size_bytes} | moved, MOVES))
        elif all(stayed.values()) and not any(moved.values()):
            told.append(({first: change.size_bytes} | stayed, STAYS))
        else:
            told.append(({first: change.size_bytes}, CANNOT_TELL))
    return told


def _near(candidates: list[Change], change: Change, factor: float) -> float | None:
    """Returns the size of a jump that is near `factor` times the size of `change`, or `None` if no jump is
    near that size.
    """
    for other in candidates:
        meets = (
            other.low_bytes <= change.high_bytes * factor and change.low_bytes * factor <= other.high_bytes
        )
        if meets or abs(other.size_bytes / (change.size_bytes * factor) - 1) < SAME:
            return other.size_bytes
    return None
