"""The figures of a report. Each function returns a Matplotlib figure, or `None` if there is nothing to
show.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    Locator,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    NullLocator,
)

from fordway.report import units
from fordway.report.runfile import Run

INK, MUTED, GRID = "#1f2329", "#646b75", "#d8dce2"
"""Colours of text and lines. An HTML page replaces them with its own colours for light and dark mode."""

LANE_COLOURS = {
    "posix": "#6e7681",
    "embedded": "#0072b2",
    "node": "#009e73",
    "http": "#d55e00",
    "bare": "#6e7681",
    "Reference": "#6e7681",
}
"""Colours that colour-blind readers can distinguish (after Okabe and Ito 2008). The reference lane is
grey.
"""

SPARE_COLOURS = [
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#8c6bb1",
    "#66a61e",
    "#a6761d",
    "#b2182b",
    "#01665e",
    "#4d4dff",
]
"""Colours of all other lanes, in the order in which they are assigned."""

WIDTH_INCHES = 9.6
PAUSE = "\u00a0" * 8
"""Separator between parts of an axis label. The spaces do not break, because HTML would merge normal
spaces.
"""

ECDF_POINTS = 400
"""Number of points of a curve. The points are quantiles, so the curve shows the tail of a run of any size."""

ECDF_SHARES = [0.01, 0.1, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999]
"""Shares that are marked on the axis of a distribution. Shares that the number of operations does not resolve
are omitted.
"""

TICKS_MAX = 4
"""Maximum number of labels on an axis of times or sizes, so that labels do not overlap."""

OPERATIONS_PER_CLASS_MIN = 5
"""Size classes with fewer operations are not drawn."""

STYLE = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    # Lane names may contain dollar signs, which must not be parsed as formulas.
    "text.parse_math": False,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": GRID,
    "axes.linewidth": 0.8,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "legend.frameon": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "svg.fonttype": "none",
    "svg.hashsalt": "fordway",
}


def lane_colours(lanes: Sequence[str]) -> dict[str, str]:
    """Returns a colour for each of `lanes`. A lane has the same colour in every figure of a report."""
    spare = [lane for lane in dict.fromkeys(lanes) if lane not in LANE_COLOURS]
    others = {lane: SPARE_COLOURS[i % len(SPARE_COLOURS)] for i, lane in enumerate(spare)}
    return {lane: LANE_COLOURS.get(lane) or others[lane] for lane in lanes}


def ratios(run: Run, colours: dict[str, str]) -> Figure | None:
    """Draws a forest plot: one row for each phase and lane, with its speed relative to the reference."""
    rows = [row for row in run.summaries() if row["ratio"] is not None and row["phase"] in run.drawn_phases]
    if not any(run.speed(row) is not None for row in rows):
        return None
    positions, labels = _grouped_positions(rows)
    figure = Figure(figsize=(WIDTH_INCHES, 0.9 + 0.27 * (positions[-1] + 1)), layout="constrained")
    axes = figure.subplots()
    axes.axvline(1, color=INK, linewidth=1)
    for y, row in zip(positions, rows, strict=True):
        _ratio_row(axes, y, row, run.speed(row), colours[row["lane"]])
    _ratio_axes(axes, run, rows, f"speed in units of {rows[0]['ratio']['to']} (1 = as fast)")
    axes.set_yticks(positions, labels)
    axes.set_ylim(positions[-1] + 0.7, -0.7)
    axes.grid(visible=False, axis="y")
    lane_legend(figure, run, colours, [row["lane"] for row in rows])
    return figure


def _grouped_positions(rows: list[dict[str, Any]]) -> tuple[list[float], list[str]]:
    """Returns the positions of the rows, with gaps between phases, and the labels of the rows."""
    positions: list[float] = []
    for i, row in enumerate(rows):
        new_phase = i > 0 and rows[i - 1]["phase"] != row["phase"]
        positions.append(0 if i == 0 else positions[-1] + (1.5 if new_phase else 1))
    return positions, [f"{row['phase']} · {row['lane']}" for row in rows]


def _ratio_row(axes: Axes, y: float, row: dict[str, Any], speed: float | None, colour: str) -> None:
    interval = row["ratio"]["interval"]
    told = row["ratio"]["verdict"] != "cannot-tell"
    if interval is not None:
        axes.plot([interval["low"], interval["high"]], [y, y], color=colour, linewidth=2.4, alpha=0.65)
        face = colour if told else "none"
        axes.plot(interval["value"], y, "o", color=colour, markerfacecolor=face, markersize=6)
    elif speed is not None:
        axes.plot(speed, y, "o", color=colour, markerfacecolor="none", markersize=6)
    verdict = verdict_text(row["ratio"])
    note = verdict if speed is None else f"{units.ratio(speed)} {verdict}"
    limit = row["limit"]["name"]
    place = {"transform": axes.get_yaxis_transform(), "va": "center", "clip_on": False, "fontsize": 8.5}
    axes.text(1.02, y, note, color=INK, **place)
    # The spaces leave room for fonts that are wider than the font used for the layout.
    axes.text(1.24, y, f"limit: {limit}\u00a0\u00a0\u00a0", color=MUTED, **place)


def _ratio_axes(axes: Axes, run: Run, rows: list[dict[str, Any]], label: str) -> None:
    intervals = [row["ratio"]["interval"] for row in rows if row["ratio"]["interval"]]
    speeds = [speed for row in rows if (speed := run.speed(row))]
    low = min([interval["low"] for interval in intervals] + speeds)
    high = max([interval["high"] for interval in intervals] + speeds)
    axes.set_xscale("log")
    axes.set_xlim(min(low / 1.15, 0.8), max(high * 1.15, 1.25))
    axes.xaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5), numticks=12))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(f"← slower{PAUSE}{label}{PAUSE}faster →")


def verdict_text(ratio: dict[str, Any]) -> str:
    """Returns `faster`, `slower` or `cannot tell`."""
    return ratio["verdict"].replace("-", " ")


def latency(run: Run, colours: dict[str, str]) -> Figure | None:
    """Draws cumulative distributions of latency on a logarithmic axis, one panel for each phase."""
    phases = run.timed_phases
    if not phases:
        return None
    figure, grid = panels(len(phases), 2.3, sharey=True)
    most = max(len(run.durations_ns(phase, lane)) for phase in phases for lane in run.lanes)
    for axes, phase in zip(grid.flat, phases, strict=False):
        for lane in run.lanes:
            _ecdf(axes, run.durations_ns(phase, lane), colours[lane])
        axes.set(title=phase, xscale="log")
        time_axis(axes.xaxis)
        _share_axis(axes, most)
    figure.supylabel("share of operations done within", fontsize=9, color=MUTED)
    lane_legend(figure, run, colours)
    return figure


def panels(count: int, height_inches: float, **shared: bool) -> tuple[Figure, np.ndarray]:
    """Returns a figure with `count` panels in rows of three. Unused panels in the last row are hidden."""
    columns = min(3, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(WIDTH_INCHES, 0.6 + height_inches * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, **shared)
    for axes in grid.flat[count:]:
        axes.set_visible(False)
    return figure, grid


def _ecdf(axes: Axes, durations_ns: pd.Series, colour: str) -> None:
    """Draws a curve through quantiles. The quantiles are equally spaced on the logit axis, so they are denser
    towards both ends.
    """
    if durations_ns.empty:
        return
    end = np.log(max(len(durations_ns), 3) - 1)
    shares = 1 / (1 + np.exp(-np.linspace(-min(end, 5), end, ECDF_POINTS)))
    axes.plot(np.quantile(durations_ns, shares), shares, color=colour, linewidth=1.7)
    axes.plot(float(np.median(durations_ns)), 0.5, "o", color=colour, markersize=4)


def _share_axis(axes: Axes, operations: int) -> None:
    """Sets a logit axis from 1 % to the largest share that this number of operations can resolve."""
    top = 1 - 1 / max(operations, 20)
    shares = [share for share in ECDF_SHARES if share <= top]
    axes.set(yscale="logit", ylim=(0.01, top))
    axes.yaxis.set_major_locator(FixedLocator(shares))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share * 100:.7g} %"))
    axes.yaxis.set_minor_locator(NullLocator())


def time_axis(axis: Any) -> None:  # noqa: ANN401 (Matplotlib's XAxis and YAxis share no public type)
    """Sets at most about four ticks on a logarithmic axis of times. Depending on the span, the ticks are at
    powers of ten, at 1, 2 and 5 times powers of ten, or at equal distances.
    """
    axis.set_major_locator(TimeLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: _short_time(value)))
    axis.set_minor_formatter(NullFormatter())


class TimeLocator(Locator):
    """The ticks of a logarithmic axis of times."""

    def __call__(self) -> list[float]:
        """Returns the ticks within the axis."""
        return self.tick_values(*self.axis.get_view_interval())

    def tick_values(self, vmin: float, vmax: float) -> list[float]:
        """Returns the ticks from `vmin` to `vmax`: the densest steps with at most `TICKS_MAX` ticks."""
        low, high = max(min(vmin, vmax), 1e-3), max(vmin, vmax, 2e-3)
        first, last = int(np.floor(np.log10(low))), int(np.ceil(np.log10(high)))
        powers = 10.0 ** np.arange(first, last + 1)
        found = [float(value) for value in np.outer(powers, (1, 2, 5)).ravel() if low <= value <= high]
        if len(found) < 2:
            equal = MaxNLocator(nbins=TICKS_MAX - 1, steps=[1, 2, 5, 10]).tick_values(low, high)
            return [float(value) for value in equal if low <= value <= high]
        if len(found) > TICKS_MAX:
            found = [float(value) for value in powers if low <= value <= high]
        return found[:: -(-len(found) // TICKS_MAX)]


def rate_axis(axis: Any) -> None:  # noqa: ANN401 (as above)
    """Sets the ticks of a rate at 1, 2 and 5 times powers of ten, without exponents."""
    axis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0), numticks=8))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.12g}"))
    axis.set_minor_formatter(NullFormatter())


def _short_time(value_ns: float) -> str:
    for divisor, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if value_ns >= divisor * 0.999:
            return f"{value_ns / divisor:g} {unit}"
    return f"{value_ns:g} ns"


def by_size(run: Run, colours: dict[str, str]) -> Figure | None:
    """Draws latency and throughput by size: the median and the interquartile range of each size class."""
    classes = {
        (phase, lane): size_classes(rows)
        for (phase, lane), rows in run.operations[run.operations["bytes"] > 0].groupby(
            ["phase", "lane"], observed=True
        )
    }
    classes = {cell: found for cell, found in classes.items() if not found.empty}
    phases = [phase for phase in run.phases if any(phase == of for of, _ in classes)]
    if not phases:
        return None
    figure = Figure(figsize=(WIDTH_INCHES, 5.0), layout="constrained")
    grid = figure.subplots(2, len(phases), squeeze=False, sharex="col", sharey="row")
    for column, phase in enumerate(phases):
        for lane in run.lanes:
            if (phase, lane) in classes:
                _bands(grid[:, column], classes[phase, lane], colours[lane])
        grid[0, column].set(title=phase, yscale="log")
        grid[1, column].set(xscale="log", yscale="log", xlabel="size")
        time_axis(grid[0, column].yaxis)
        sizes = [
            float(2.0 ** (at + 0.5)) for cell, of in classes.items() if cell[0] == phase for at in of.index
        ]
        size_axis(grid[1, column], min(sizes), max(sizes))
    grid[0, 0].set_ylabel("latency")
    grid[1, 0].set_ylabel("MiB/s of one operation")
    lane_legend(figure, run, colours)
    return figure


def size_classes(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns quartiles of latency and throughput by size class. Each class is twice as wide as the previous
    class.
    """
    exponent = np.floor(np.log2(rows["bytes"].to_numpy(dtype=float)))
    measured = pd.DataFrame(
        {
            "exponent": exponent,
            "duration_ns": rows["duration_ns"].to_numpy(dtype=float),
            "mib_per_s": rows["bytes"].to_numpy() / 1024**2 / (rows["duration_ns"].to_numpy() / 1e9),
        }
    )
    grouped = measured.groupby("exponent")
    quartiles = grouped.quantile([0.25, 0.5, 0.75]).unstack()
    return quartiles[grouped.size() >= OPERATIONS_PER_CLASS_MIN]


def _bands(panels: Sequence[Axes], classes: pd.DataFrame, colour: str) -> None:
    middle_bytes = 2.0 ** (classes.index.to_numpy() + 0.5)
    for axes, quantity in zip(panels, ("duration_ns", "mib_per_s"), strict=True):
        low, median, high = (classes[quantity][share] for share in (0.25, 0.5, 0.75))
        axes.fill_between(middle_bytes, low, high, color=colour, alpha=0.18, linewidth=0)
        axes.plot(middle_bytes, median, "o-", color=colour, linewidth=1.6, markersize=3)


def size_axis(axes: Axes, smallest: float | None = None, largest: float | None = None) -> None:
    """Sets the ticks of sizes on the lower axis. If the smallest and the largest measured size are given,
    they are labelled, with powers of two between them.
    """
    if smallest is None or largest is None:
        axes.xaxis.set_major_locator(LogLocator(base=16, numticks=8))
    else:
        axes.xaxis.set_major_locator(FixedLocator(size_ticks(smallest, largest)))
        axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short_size(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.12g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def size_ticks(smallest: float, largest: float) -> list[float]:
    """Returns at most `TICKS_MAX` sizes at about equal distances on a logarithmic axis, including both
    ends.
    """
    doublings = np.log2(largest / smallest)
    if doublings < 1:
        return [smallest] if largest == smallest else [smallest, largest]
    parts = min(TICKS_MAX - 1, max(int(doublings // 2), 1))
    between = np.log2(smallest) + doublings * np.arange(1, parts) / parts
    return [smallest, *(float(2.0 ** round(each)) for each in between), largest]


def _short_size(value_bytes: float) -> str:
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if value_bytes >= 1024**power:
            return f"{value_bytes / 1024**power:.3g} {unit}"
    return f"{value_bytes:.4g} B"


def cpu(run: Run, colours: dict[str, str]) -> Figure | None:
    """Draws CPU time per operation, with one panel for each phase. The server's time is stacked on the
    client's time.
    """
    measured = [row for row in run.summaries() if row["client_cpu_ns_per_op"] is not None]
    phases = [phase for phase in run.drawn_phases if any(row["phase"] == phase for row in measured)]
    if not phases:
        return None
    figure, grid = panels(len(phases), 0.75 + 0.24 * len(run.lanes), sharey=True)
    for axes, phase in zip(grid.flat, phases, strict=False):
        _cpu_panel(axes, run, phase, colours)
    figure.supxlabel("CPU µs per operation", fontsize=9, color=MUTED)
    keys = [Patch(color=MUTED, label="client"), Patch(color=MUTED, alpha=0.4, label="server")]
    figure.legend(handles=keys, loc="outside upper left", ncols=2)
    return figure


def _cpu_panel(axes: Axes, run: Run, phase: str, colours: dict[str, str]) -> None:
    for y, lane in enumerate(run.lanes):
        summary = run.summary(phase, lane)
        client_ns = summary and summary["client_cpu_ns_per_op"]
        if client_ns is None:
            axes.text(0, y, f"\u00a0{units.NOT_MEASURED}", va="center", fontsize=8, color=MUTED)
            continue
        server_ns = summary["server_cpu_ns_per_op"]
        axes.barh(y, client_ns / 1e3, color=colours[lane], height=0.68)
        axes.barh(
            y, (server_ns or 0) / 1e3, left=client_ns / 1e3, color=colours[lane], alpha=0.4, height=0.68
        )
        total_us = (client_ns + (server_ns or 0)) / 1e3
        axes.text(total_us, y, f"\u00a0{units.digits(total_us)}", va="center", fontsize=8, color=INK)
    axes.set(title=phase, yticks=range(len(run.lanes)), ylim=(len(run.lanes) - 0.4, -0.6))
    axes.set_yticklabels(run.lanes)
    axes.margins(x=0.2)
    axes.grid(visible=False)


def lane_legend(figure: Figure, run: Run, colours: dict[str, str], only: Sequence[str] | None = None) -> None:
    """Adds a legend of the lanes' colours above the panels."""
    lanes = [lane for lane in run.lanes if only is None or lane in only]
    keys = [Line2D([], [], color=colours[lane], linewidth=3, label=lane) for lane in lanes]
    figure.legend(handles=keys, loc="outside upper left", ncols=max(len(lanes), 1), handlelength=1.2)


def save(figure: Figure, path: Path, form: str) -> None:
    """Writes the figure to a file of the format `form` (`svg` or `png`), on a white background."""
    with mpl.rc_context(STYLE):
        figure.savefig(path, dpi=160, facecolor="white", format=form)
