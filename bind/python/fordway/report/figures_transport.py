"""The figures of transports: the same messages over MPI, TCP, HTTP and the lanes, by message size."""

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from fordway.report import figures
from fordway.report.runfile import Run

LINES = ("-", "--", "-.", ":")
"""Line styles that distinguish lanes of the same family."""


def transfer_latency(run: Run, colours: dict[str, str]) -> Figure | None:
    """Draws the time of a message by size, both as the time of a response and as half a round trip."""
    exchanges = [name for name in ("latency", "half-round-trip") if _rows(run, name)]
    if not exchanges:
        return None
    figure, grid = _panels(run, colours, len(exchanges))
    for axes, exchange in zip(grid, exchanges, strict=True):
        _draw(axes, run, _rows(run, exchange), colours, _time_ns)
        axes.set(title=exchange, yscale="log")
        figures.time_axis(axes.yaxis)
    return figure


def transfer_bandwidth(run: Run, colours: dict[str, str]) -> Figure | None:
    """Draws bytes per second by message size, with several messages in flight."""
    rows = _rows(run, "bandwidth")
    if not rows:
        return None
    figure, (axes,) = _panels(run, colours, 1)
    _draw(axes, run, rows, colours, _mib_per_s)
    axes.set(yscale="log", ylabel="MiB/s")
    figures.rate_axis(axes.yaxis)
    return figure


def transfer_ratio(run: Run, colours: dict[str, str]) -> Figure | None:
    """Draws the time of each lane relative to the reference, by message size."""
    exchanges = [name for name in ("latency", "bandwidth") if _rows(run, name)]
    rows = [row for name in exchanges for row in _rows(run, name) if row["ratio"]]
    if not rows or not any(_slowness(run, row) for row in rows):
        return None
    figure, grid = _panels(run, colours, len(exchanges))
    for axes, exchange in zip(grid, exchanges, strict=True):
        axes.axhline(1, color=colours[run.reference], linewidth=1.2)
        of_exchange = [row for row in _rows(run, exchange) if row["ratio"]]
        _draw(axes, run, of_exchange, colours, lambda row: _slowness(run, row))
        axes.set(title=exchange, yscale="log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    grid[0].set_ylabel(f"time in units of {run.reference}")
    return figure


def transfer_cpu(run: Run, colours: dict[str, str]) -> Figure | None:
    """Draws the CPU time of both sides for a message by size, and the number of busy processors."""
    rows = _rows(run, "latency")
    if not rows:
        return None
    figure, (cpu, busy) = _panels(run, colours, 2)
    _draw(cpu, run, rows, colours, _cpu_ns)
    cpu.set(title="CPU time of a message, both sides", yscale="log")
    figures.time_axis(cpu.yaxis)
    _draw(busy, run, rows, colours, lambda row: (row["transfer"]["processors_busy"], None))
    busy.set(title="processors busy meanwhile", ylim=(0, None))
    busy.axhline(1, color=figures.MUTED, linewidth=0.8, linestyle=":")
    return figure


Value = tuple[float, tuple[float, float] | None] | None
"""An estimate with the bounds of its interval, if they are known. `None` means that there is no estimate."""


def _rows(run: Run, exchange: str) -> list[dict[str, Any]]:
    return [row for row in run.summaries() if row.get("transfer") and row["transfer"]["exchange"] == exchange]


def _panels(run: Run, colours: dict[str, str], count: int) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(figures.WIDTH_INCHES, 4.0), layout="constrained")
    grid = list(figure.subplots(1, count, squeeze=False)[0])
    sizes = [row["transfer"]["size_bytes"] for row in run.summaries() if row.get("transfer")]
    for axes in grid:
        axes.set(xscale="log", xlabel="size of a message", xlim=(min(sizes) / 1.3, max(sizes) * 1.3))
        figures.size_axis(axes, min(sizes), max(sizes))
    figures.lane_legend(figure, run, colours)
    return figure, grid


def _draw(
    axes: Axes,
    run: Run,
    rows: list[dict[str, Any]],
    colours: dict[str, str],
    value: Callable[[dict[str, Any]], Value],
) -> None:
    """Draws a line through the estimates of each lane, and a band for their intervals."""
    for at, lane in enumerate(run.lanes):
        found = [(row["transfer"]["size_bytes"], value(row)) for row in rows if row["lane"] == lane]
        known = sorted((size, of) for size, of in found if of is not None)
        if not known:
            continue
        sizes = [size for size, _ in known]
        style = {"color": colours[lane], "linewidth": 1.6, "linestyle": LINES[at // 4 % len(LINES)]}
        axes.plot(sizes, [estimate for _, (estimate, _) in known], marker="o", markersize=3, **style)
        ends = np.array([ends or (estimate, estimate) for _, (estimate, ends) in known])
        axes.fill_between(sizes, ends[:, 0], ends[:, 1], color=colours[lane], alpha=0.18, linewidth=0)


def _estimate(interval: dict[str, Any] | None, scale: float = 1.0) -> Value:
    if interval is None:
        return None
    return interval["value"] / scale, (interval["low"] / scale, interval["high"] / scale)


def _time_ns(row: dict[str, Any]) -> Value:
    known = _estimate(row["transfer"]["time_ns"])
    return known or (row["latency"] and (row["latency"]["p50_ns"], None))


def _mib_per_s(row: dict[str, Any]) -> Value:
    rate = row["bytes_per_s"]
    return _estimate(row["transfer"]["bytes_per_s"], 1024**2) or (rate and (rate / 1024**2, None))


def _cpu_ns(row: dict[str, Any]) -> Value:
    of = row["transfer"]
    return of["client_cpu_ns_per_message"] + (of["server_cpu_ns_per_message"] or 0), None


def _slowness(run: Run, row: dict[str, Any]) -> Value:
    """Returns the inverse of the speed: the time relative to the reference."""
    interval = row["ratio"]["interval"]
    if interval is not None:
        return 1 / interval["value"], (1 / interval["high"], 1 / interval["low"])
    speed = run.speed(row)
    return (1 / speed, None) if speed else None
