"""The figures of load on a server. Functions return `None` if there is no data to show."""

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from fordway.report import figures, units
from fordway.report.runfile import Run

COLUMNS_MAX = 4
"""Maximum number of combinations that are drawn side by side. The table contains all combinations."""


def _size(row: dict[str, Any]) -> float:
    return row["bytes"] / row["operations"] if row["operations"] else 0


AXES: dict[str, Callable[[dict[str, Any]], float]] = {
    "size": _size,
    "connections": lambda row: row["load"]["connections"],
    "streams on each": lambda row: row["load"]["streams"],
    "threads": lambda row: row["load"]["threads"],
}
"""Quantities that a sweep can vary."""


def sweep(run: Run, colours: dict[str, str]) -> Figure | None:
    """Draws throughput and latency against the quantity that has the most values in the sweep."""
    rows = [row for row in run.summaries() if row["load"] and row["latency"]]
    spread = {name: _values(rows, name) for name in AXES}
    swept = max(spread, key=lambda name: spread[name])
    if spread[swept] < 2:
        return None
    others = [name for name in AXES if name != swept and spread[name] > 1]
    shown = _columns(rows, others)[:COLUMNS_MAX]
    figure = Figure(figsize=(figures.WIDTH_INCHES, 5.0), layout="constrained")
    grid = figure.subplots(2, len(shown), squeeze=False, sharex="col", sharey="row")
    for column, (fixed, of_column) in enumerate(shown):
        for lane in run.lanes:
            _lines(grid[:, column], swept, [row for row in of_column if row["lane"] == lane], colours[lane])
        grid[0, column].set_title(", ".join(_said(*pair) for pair in zip(others, fixed, strict=True)))
        _axes(grid[:, column], swept, of_column)
    grid[0, 0].set_ylabel("requests/s")
    grid[1, 0].set_ylabel("latency, p50 and p99")
    figures.lane_legend(figure, run, colours)
    return figure


def _columns(
    rows: list[dict[str, Any]], others: list[str]
) -> list[tuple[tuple[float, ...], list[dict[str, Any]]]]:
    columns: dict[tuple[float, ...], list[dict[str, Any]]] = {}
    for row in rows:
        columns.setdefault(tuple(AXES[name](row) for name in others), []).append(row)
    return list(columns.items())


def _values(rows: list[dict[str, Any]], name: str) -> int:
    """Returns the largest number of distinct values that a quantity has on any lane.

    The number depends on the lane: for example, HTTP/1.1 has one stream per connection, and other versions
    have several.
    """
    lanes = {row["lane"] for row in rows}
    return max((len({AXES[name](row) for row in rows if row["lane"] == lane}) for lane in lanes), default=0)


def _said(name: str, value: float) -> str:
    return units.size(value) if name == "size" else f"{name} {value:g}"


def _lines(panels: Sequence[Axes], swept: str, rows: list[dict[str, Any]], colour: str) -> None:
    rows = sorted(rows, key=AXES[swept])
    at = [AXES[swept](row) for row in rows]
    panels[0].plot(at, [row["ops_per_s"] for row in rows], "o-", color=colour, linewidth=1.6, markersize=4)
    for name, dash in (("p50_ns", "-"), ("p99_ns", "--")):
        latencies_ns = [row["latency"][name] for row in rows]
        panels[1].plot(at, latencies_ns, dash, marker="o", color=colour, linewidth=1.6, markersize=3)


def _axes(panels: Sequence[Axes], swept: str, rows: list[dict[str, Any]]) -> None:
    panels[0].set(xscale="log", yscale="log")
    panels[1].set(xscale="log", yscale="log", xlabel=swept)
    panels[1].set_xticks(sorted({AXES[swept](row) for row in rows}))
    panels[1].xaxis.set_minor_locator(NullLocator())
    said = units.size if swept == "size" else "{:g}".format
    panels[1].xaxis.set_major_formatter(FuncFormatter(lambda value, _: said(value)))
    figures.rate_axis(panels[0].yaxis)
    figures.time_axis(panels[1].yaxis)
    panels[1].yaxis.set_minor_formatter(NullFormatter())
