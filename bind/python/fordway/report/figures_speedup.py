"""The figures of speed-up: the gain from more ranks in each set-up, and the cost of communication."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator, PercentFormatter

from fordway.report import figures
from fordway.report.runfile import Run

LINES = ("-", "--", "-.", ":")
"""Line styles that distinguish set-ups of the same colour."""


def speedup(run: Run, colours: dict[str, str]) -> Figure | None:
    """Draws speed-up and efficiency by rank count, with the ideal lines."""
    if not _known(run, "speedup"):
        return None
    figure, (left, right) = _panels(run, colours)
    ranks = run_ranks(run)
    left.plot(ranks, ranks, color=figures.MUTED, linewidth=0.8, linestyle=":")
    right.axhline(1, color=figures.MUTED, linewidth=0.8, linestyle=":")
    _draw(left, run, colours, "speedup")
    _draw(right, run, colours, "efficiency")
    left.set(title="speed-up S", ylim=(0, None))
    right.set(title="efficiency E = S / n", ylim=(0, None))
    right.yaxis.set_major_formatter(PercentFormatter(1))
    return figure


def communication(run: Run, colours: dict[str, str]) -> Figure | None:
    """Draws the share of the ranks' time in MPI calls, and the delay of the last rank."""
    if not _known(run, "communication_share"):
        return None
    figure, (left, right) = _panels(run, colours)
    _draw(left, run, colours, "communication_share")
    left.set(title="share of time in MPI", ylim=(0, 1))
    left.yaxis.set_major_formatter(PercentFormatter(1))
    # Set the limits before drawing, because they cannot be derived from a single point without an interval.
    late = [interval for lane in run.lanes for _, interval in _of_lane(run, lane, "late_ns")]
    least = max(min((interval["low"] for interval in late), default=1), 1)
    most = max((interval["high"] for interval in late), default=1)
    right.set(title="last rank after the first", yscale="log", ylim=(least / 2, max(most, 1) * 2))
    _draw(right, run, colours, "late_ns")
    figures.time_axis(right.yaxis)
    return figure


def run_ranks(run: Run) -> list[int]:
    """Returns the rank counts of a run, in ascending order."""
    return sorted({row["parallel"]["ranks"] for row in run.summaries() if row.get("parallel")})


def _known(run: Run, name: str) -> bool:
    return any(row["parallel"][name] for row in run.summaries() if row.get("parallel"))


def _panels(run: Run, colours: dict[str, str]) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(figures.WIDTH_INCHES, 4.0), layout="constrained")
    grid = list(figure.subplots(1, 2))
    ranks = run_ranks(run)
    for axes in grid:
        axes.set(xscale="log", xlabel="ranks", xlim=(ranks[0] / 1.15, ranks[-1] * 1.15))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(ranks)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    figures.lane_legend(figure, run, colours)
    return figure, grid


def _draw(axes: Axes, run: Run, colours: dict[str, str], name: str) -> None:
    """Draws a dot and its interval for each rank count, and a line for each set-up."""
    for at, lane in enumerate(run.lanes):
        found = sorted(_of_lane(run, lane, name), key=lambda pair: pair[0])
        if not found:
            continue
        values = [interval["value"] for _, interval in found]
        ends = [
            [value - interval["low"] for value, (_, interval) in zip(values, found, strict=True)],
            [interval["high"] - value for value, (_, interval) in zip(values, found, strict=True)],
        ]
        # Shift the points of each set-up, so that intervals do not overlap.
        places = [ranks * 1.03 ** (at - (len(run.lanes) - 1) / 2) for ranks, _ in found]
        style = {"color": colours[lane], "linewidth": 1.4, "linestyle": LINES[at // 4 % len(LINES)]}
        axes.errorbar(places, values, yerr=ends, marker="o", markersize=4, capsize=2, **style)


def _of_lane(run: Run, lane: str, name: str) -> list[tuple[int, dict[str, Any]]]:
    rows = [row["parallel"] for row in run.summaries() if row["lane"] == lane and row.get("parallel")]
    return [(of["ranks"], of[name]) for of in rows if of[name] is not None]
