"""The figures of workloads on ranks. Functions return `None` if there is no data to show."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator

from fordway.report import figures
from fordway.report.runfile import Run

BINS = 240
"""Number of points of a density curve, which is more than a panel can resolve."""

TAIL = 0.001
"""Share of the operations that the axis of a density figure omits at each end."""

OPERATIONS_MIN = 20
"""Minimum number of operations for a density curve."""


def density(run: Run, colours: dict[str, str]) -> Figure | None:
    """Draws the density of latency, one panel for each phase."""
    counts = {
        phase: max(len(run.durations_ns(phase, lane)) for lane in run.lanes) for phase in run.timed_phases
    }
    phases = [phase for phase, count in counts.items() if count >= OPERATIONS_MIN]
    if not phases:
        return None
    figure, grid = figures.panels(len(phases), 1.9)
    for axes, phase in zip(grid.flat, phases, strict=False):
        all_ns = run.operations.loc[run.operations["phase"] == phase, "duration_ns"]
        low, high = np.log10(np.maximum(all_ns.quantile([TAIL, 1 - TAIL]).to_numpy(), 1))
        for lane in run.lanes:
            _hill(axes, run.durations_ns(phase, lane), (low - 0.15, high + 0.15), colours[lane])
        axes.set(title=phase, xscale="log", yticks=[], xlim=(10 ** (low - 0.15), 10 ** (high + 0.15)))
        axes.set_ylim(bottom=0)
        figures.time_axis(axes.xaxis)
    figures.lane_legend(figure, run, colours)
    return figure


def _hill(axes: Axes, durations_ns: pd.Series, span: tuple[float, float], colour: str) -> None:
    if len(durations_ns) < OPERATIONS_MIN:
        return
    exponents = np.log10(np.maximum(durations_ns.to_numpy(dtype=float), 1))
    at, heights = smoothed(exponents, span)
    axes.fill_between(10**at, heights, color=colour, alpha=0.18, linewidth=0)
    axes.plot(10**at, heights, color=colour, linewidth=1.5)
    axes.axvline(float(np.median(durations_ns)), color=colour, linewidth=0.9, linestyle=":")


def smoothed(values: np.ndarray, span: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the density of `values` within `span`, computed from a histogram and a Gaussian kernel.

    The width of the kernel follows Silverman's rule (Density Estimation, 1986, section 3.4.2). Cost: linear
    in the number of values.
    """
    counts, edges = np.histogram(values, bins=BINS, range=span)
    step = edges[1] - edges[0]
    quartiles = np.quantile(values, [0.25, 0.75])
    spread = min(float(np.std(values)), float(quartiles[1] - quartiles[0]) / 1.34) or float(np.std(values))
    width = max(0.9 * spread * len(values) ** -0.2, step)
    reach = min(int(4 * width / step) + 1, BINS // 2 - 1)
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) * step / width) ** 2)
    heights = np.convolve(counts, kernel / kernel.sum(), mode="same")
    return (edges[:-1] + edges[1:]) / 2, heights / (len(values) * step)


def radar(run: Run, colours: dict[str, str]) -> Figure | None:
    """Draws the speed of each lane relative to the reference, with one spoke for each phase."""
    speeds = {lane: [_speed(run, phase, lane) for phase in run.drawn_phases] for lane in run.lanes}
    known = [speed for of_lane in speeds.values() for speed in of_lane if speed]
    if len(run.drawn_phases) < 3 or len(run.lanes) < 2 or not known:
        return None
    # The centre is a quarter to three quarters of a decade below the smallest speed.
    centre = np.floor(np.log10(min(known)) * 2) / 2 - 0.25
    figure = Figure(figsize=(figures.WIDTH_INCHES, 6.2), layout="constrained")
    axes = figure.add_subplot(projection="polar")
    axes.set_theta_zero_location("N")
    axes.set_theta_direction(-1)
    angles = np.linspace(0, 2 * np.pi, len(run.drawn_phases), endpoint=False)
    for lane, of_lane in speeds.items():
        radii = [np.log10(speed) - centre if speed else np.nan for speed in of_lane]
        around = [*angles, angles[0]], [*radii, radii[0]]
        axes.plot(*around, "o-", color=colours[lane], linewidth=1.8, markersize=4)
        axes.fill(*around, color=colours[lane], alpha=0.07, linewidth=0)
    _rings(axes, centre, np.log10(max(known)))
    _spokes(axes, angles, run.drawn_phases)
    figures.lane_legend(figure, run, colours)
    return figure


def _spokes(axes: Axes, angles: np.ndarray, names: list[str]) -> None:
    """Labels the spokes outside the circle. Matplotlib's own labels would overlap the circle."""
    axes.set_xticks(angles, [])
    for angle, name in zip(angles, names, strict=True):
        side = np.sin(angle)
        align = "center" if abs(side) < 0.1 else "left" if side > 0 else "right"
        axes.text(angle, axes.get_ylim()[1] * 1.05, name, ha=align, va="center", color=figures.MUTED)


def _speed(run: Run, phase: str, lane: str) -> float | None:
    row = run.summary(phase, lane)
    if row is None or row["ops_per_s"] is None:
        return None
    return 1.0 if lane == run.reference else run.speed(row)


def _rings(axes: Axes, centre: float, top: float) -> None:
    marks = [factor * 10.0**power for power in range(-6, 7) for factor in (1, 2, 5)]
    if top - centre > 1.5:
        marks = [mark for mark in marks if np.isclose(np.log10(mark) % 1, 0)]
    marks = [mark for mark in marks if centre < np.log10(mark) <= top + 0.2]
    axes.yaxis.set_major_locator(FixedLocator([np.log10(mark) - centre for mark in marks]))
    axes.yaxis.set_major_formatter(FixedFormatter([f"{mark:g}×" for mark in marks]))
    axes.set_rlabel_position(180 / 12)
    axes.set_ylim(0, max(top, 0) - centre + 0.15)
