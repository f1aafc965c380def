"""Expected rates of a set-up, for small and for big messages. The rates are rough levels for planning."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fordway.report.layers import loss, windows
from fordway.report.runfile import Run

WINDOWS = 3
"""Number of first receive windows above which messages are big (Kratzke and Quint 2016, section VI-B)."""

STEP = 0.05
"""Step of the reported levels: 5 %."""

CORES = re.compile(r" cores=(\d+)")
"""The part of a phase's name that contains the number of processors on each side."""


@dataclass(frozen=True)
class Level:
    """The rates of a set-up relative to the reference's rates."""

    lane: str
    phase: str
    small: str
    big: str

    @property
    def cores(self) -> int | None:
        """Number of processors on each side, or `None` if the number was not limited."""
        named = CORES.search(self.phase)
        return int(named[1]) if named else None

    @property
    def load(self) -> str:
        """Name of the phase, without the number of processors."""
        return CORES.sub("", self.phase)


def border_bytes(run: Run, phase: str) -> int | None:
    """Returns the size above which messages are big, or `None` if the window is unknown."""
    window = windows.window_bytes(run, phase)
    return None if window is None else WINDOWS * window


def levels(run: Run) -> list[Level]:
    """Returns one level for each phase and each set-up except the reference."""
    found = []
    for phase in run.phases:
        border = border_bytes(run, phase)
        for lane in run.lanes[1:]:
            ratios = loss.against_reference(run, phase, lane)
            if border is None or ratios.empty:
                continue
            is_small = ratios["size_bytes"] <= border
            small, big = (_level(ratios.loc[part, "ratio"].to_numpy()) for part in (is_small, ~is_small))
            found.append(Level(lane, phase, small, big))
    return found


def by_cores(found: Iterable[Level]) -> dict[tuple[str, str], dict[int | None, Level]]:
    """Returns the levels of each load and set-up, by the number of processors on each side."""
    rows: dict[tuple[str, str], dict[int | None, Level]] = {}
    for level in found:
        rows.setdefault((level.load, level.lane), {})[level.cores] = level
    return rows


def _level(ratios: np.ndarray) -> str:
    """Returns the 25th and the 75th percentile of the ratios as text, such as `60% - 75%`."""
    if not len(ratios):
        return "not measured"
    low, high = (round(share / STEP) * STEP for share in np.quantile(ratios, [0.25, 0.75]))
    return f"{low:.0%}" if np.isclose(low, high) else f"{low:.0%} - {high:.0%}"
