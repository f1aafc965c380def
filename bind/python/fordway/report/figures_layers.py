"""The figures of ping-pong runs: rates and times by message size, together with the reference."""

from collections.abc import Callable

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from fordway.report import figures
from fordway.report.layers import loss, windows
from fordway.report.layers.classes import Classes, bands
from fordway.report.runfile import Run

OUTER, INNER = 0.12, 0.22
"""Opacity of the band from the 5th to the 95th percentile, and of the band between the quartiles."""

RATIO_MAX = 2.0
"""Upper end of the axis of ratios. Only bands of classes with few messages exceed this end."""

WINDOWS_MAX = 6
"""Maximum number of marked multiples of the receive window."""


def transfer(run: Run, colours: dict[str, str]) -> Figure | None:
    """Draws the transfer rate of a message: its content divided by its time."""
    return _over_size(run, colours, "MB/s", lambda rows: rows["bytes"] / rows["duration_ns"] * 1e3)


def requests(run: Run, colours: dict[str, str]) -> Figure | None:
    """Draws the number of sequential requests per second."""
    return _over_size(run, colours, "requests/s", lambda rows: 1e9 / rows["duration_ns"])


def latency(run: Run, colours: dict[str, str]) -> Figure | None:
    """Draws the round-trip time of a message."""
    return _over_size(run, colours, "latency", lambda rows: rows["duration_ns"].astype(float))


def _over_size(
    run: Run, colours: dict[str, str], label: str, value: Callable[[pd.DataFrame], pd.Series]
) -> Figure | None:
    """Draws one small panel for each phase and set-up, with the reference."""
    shown = _panels(run, value)
    if not shown:
        return None
    figure, grid = figures.panels(len(shown), 2.1, sharex=True, sharey=True)
    for axes, ((phase, lane), lines) in zip(grid.flat, shown.items(), strict=False):
        for name, found in lines.items():
            _bands(axes, found, colours[name])
        axes.set(xscale="log", yscale="log")
        axes.set_title(f"{lane}, {phase}", fontsize=8)
        figures.size_axis(axes)
        _ticks(axes, label)
        _mark_windows(axes, run, phase)
    figure.supylabel(label, fontsize=9, color=figures.MUTED)
    figure.supxlabel("size of the message", fontsize=9, color=figures.MUTED)
    figures.lane_legend(figure, run, colours)
    return figure


def _panels(
    run: Run, value: Callable[[pd.DataFrame], pd.Series]
) -> dict[tuple[str, str], dict[str, pd.DataFrame]]:
    """Returns the bands of each phase and set-up, and the bands of the reference if they exist."""
    shown = {}
    for phase in run.timed_phases:
        classes = Classes.of(run.operations.loc[run.operations["phase"] == phase, "bytes"].to_numpy())
        of_lanes = {lane: _rows(run, phase, lane) for lane in run.lanes}
        found = {lane: bands(rows, classes, value(rows)) for lane, rows in of_lanes.items()}
        found = {lane: lines for lane, lines in found.items() if not lines.empty}
        # The reference is drawn next to every other lane. If there is no other lane, the reference is drawn
        # alone.
        for lane in [lane for lane in found if lane != run.reference] or found:
            shown[phase, lane] = {name: found[name] for name in (run.reference, lane) if name in found}
    return shown


def _rows(run: Run, phase: str, lane: str) -> pd.DataFrame:
    rows = run.operations
    # A message of 0 bytes cannot be shown on a logarithmic axis.
    return rows[(rows["phase"] == phase) & (rows["lane"] == lane) & (rows["bytes"] > 0)]


def _bands(axes: Axes, found: pd.DataFrame, colour: str) -> None:
    at = found["size_bytes"]
    axes.fill_between(at, found[0.05], found[0.95], color=colour, alpha=OUTER, linewidth=0)
    axes.fill_between(at, found[0.25], found[0.75], color=colour, alpha=INNER, linewidth=0)
    # A single class has no line, so draw its point.
    axes.plot(at, found[0.5], "o-" if len(at) == 1 else "-", color=colour, linewidth=1.5, markersize=4)


def _ticks(axes: Axes, label: str) -> None:
    if label == "latency":
        figures.time_axis(axes.yaxis)
        return
    axes.yaxis.set_major_locator(LogLocator(base=10, numticks=8))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.12g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _mark_windows(axes: Axes, run: Run, phase: str) -> None:
    window = windows.window_bytes(run, phase)
    if window is None:
        return
    largest = float(run.operations["bytes"].max())
    for multiple in range(1, WINDOWS_MAX + 1):
        if multiple * window <= largest:
            axes.axvline(multiple * window, color=figures.MUTED, linewidth=0.7, linestyle="--", alpha=0.6)


def layers(run: Run, colours: dict[str, str]) -> Figure | None:
    """Draws the rate relative to the reference by message size, with bootstrap intervals as bands."""
    compared = _compared(run)
    if not compared:
        return None
    figure = Figure(figsize=(figures.WIDTH_INCHES, 0.8 + 3.4 * len(compared)), layout="constrained")
    grid = figure.subplots(len(compared), 1, squeeze=False, sharex=True)
    found = windows.all_changes(run)
    for axes, (phase, lines) in zip(grid.flat, compared.items(), strict=True):
        axes.axhline(1, color=figures.INK, linewidth=1)
        for lane, ratios in lines.items():
            _loss_line(axes, ratios, colours[lane])
        for one in found:
            if one.phase == phase:
                marker = {"marker": "v", "clip_on": False, "markersize": 7, "color": colours[one.lane]}
                axes.plot([one.change.size_bytes], [1.0], transform=axes.get_xaxis_transform(), **marker)
        _loss_axes(axes, phase)
        for lane, ratios in lines.items():
            _mark_cut(axes, ratios, colours[lane])
        _mark_windows(axes, run, phase)
    grid[-1, 0].set_xlabel("size of the message")
    figure.supylabel(f"rate, {run.reference} = 1", fontsize=9, color=figures.MUTED)
    figures.lane_legend(figure, run, colours)
    return figure


def _compared(run: Run) -> dict[str, dict[str, pd.DataFrame]]:
    """Returns the known rates relative to the reference for each phase and set-up."""
    compared = {}
    for phase in run.timed_phases:
        lines = {lane: loss.against_reference(run, phase, lane) for lane in run.lanes[1:]}
        # A message of 0 bytes cannot be shown on a logarithmic axis.
        lines = {lane: ratios[ratios["size_bytes"] > 0] for lane, ratios in lines.items()}
        lines = {lane: ratios for lane, ratios in lines.items() if not ratios.empty}
        if lines:
            compared[phase] = lines
    return compared


def _loss_line(axes: Axes, ratios: pd.DataFrame, colour: str) -> None:
    axes.fill_between(
        ratios["size_bytes"], ratios["low"], ratios["high"], color=colour, alpha=0.2, linewidth=0
    )
    axes.plot(ratios["size_bytes"], ratios["ratio"], "o-", color=colour, linewidth=1.6, markersize=3)


def _mark_cut(axes: Axes, ratios: pd.DataFrame, colour: str) -> None:
    """Marks the sizes at which the upper end of the interval is above the axis."""
    cut = ratios.loc[ratios["high"] > axes.get_ylim()[1], "size_bytes"]
    marker = {"marker": "+", "linestyle": "none", "clip_on": False, "markersize": 7, "color": colour}
    if not cut.empty:
        # The extent of an empty line is unbounded, so its marks would leave no room for the panels.
        axes.plot(cut, [1.0] * len(cut), transform=axes.get_xaxis_transform(), **marker)


def _loss_axes(axes: Axes, phase: str) -> None:
    axes.set(title=phase, xscale="log")
    axes.set_ylim(bottom=0, top=max(1.3, min(axes.get_ylim()[1], RATIO_MAX)))
    figures.size_axis(axes)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axes.yaxis.set_minor_formatter(NullFormatter())
