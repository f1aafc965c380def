"""The figures and tables of each kind of run."""

from collections.abc import Callable
from dataclasses import dataclass

import matplotlib as mpl
from matplotlib.figure import Figure

from fordway.report import (
    figures,
    figures_layers,
    figures_ledger,
    figures_load,
    figures_ranks,
    figures_speedup,
    figures_transport,
    runfile,
    tables,
    tables_layers,
)
from fordway.report.runfile import Run


@dataclass(frozen=True)
class Drawing:
    """A figure of a report: its title, its caption and its drawing function."""

    title: str
    caption: str
    draw: Callable[[Run, dict[str, str]], Figure | None]

    def said_of(self, run: Run) -> str:
        """Returns the caption, with a note if the figure omits phases of `run`."""
        said = self.caption
        if "{operations}" in said:
            said = said.replace("{operations}", f"{len(run.operations):,}")
        if len(run.phases) > runfile.PHASES_MAX:
            said += (
                f" The first {runfile.PHASES_MAX} of {len(run.phases)} phases are drawn; the table has all."
            )
        return said


DRAWINGS = {
    "ratios": Drawing(
        "Speed relative to the reference",
        "Each row is one phase on one lane. The dot is the median ratio of speeds over blocks of equal "
        "work; the bar is its 95 % interval. If the bar crosses the line at 1, the run cannot tell which is "
        "faster, and the dot is hollow. A dot without a bar is a ratio of rates: there were too few "
        "rounds for an interval.",
        figures.ratios,
    ),
    "latency": Drawing(
        "Latency",
        "The cumulative distribution of latency; further left is faster. The dot marks the median. Above "
        "the median, the scale widens towards the 99th and 99.9th percentiles, so that a heavy tail shows "
        "as a bend to the right. Time is logarithmic; in an open loop it counts from the scheduled start. "
        f"Each curve has at most {figures.ECDF_POINTS} quantiles, which are denser in the tail "
        f"({{operations}} operations succeeded in total).",
        figures.latency,
    ),
    "by-size": Drawing(
        "Latency and throughput by size",
        "Operations are grouped into size classes, each twice as wide as the previous one. The line joins "
        "the medians of the classes; the band spans the 25th to the 75th percentile. Classes with fewer "
        f"than {figures.OPERATIONS_PER_CLASS_MIN} operations are omitted.",
        figures.by_size,
    ),
    "sweep": Drawing(
        "Throughput and latency over the sweep",
        "Top: successful requests per second. Bottom: the median (solid) and the 99th percentile (dashed) "
        "of latency. Each column is one combination of the parameters that are not on the axis.",
        figures_load.sweep,
    ),
    "density": Drawing(
        "Density of latency",
        "The distribution of latency on a logarithmic axis: equal areas are equal shares of the operations. "
        "Two peaks indicate two kinds of operation, for example those served from memory and those that "
        "waited for a device. The line marks the median. Heights can be compared within a panel only.",
        figures_ranks.density,
    ),
    "radar": Drawing(
        "All phases",
        "Each spoke is a phase. The ring at 1 is the reference; further out is faster, on a logarithmic "
        "scale. A gap is a phase that was not measured.",
        figures_ranks.radar,
    ),
    "layers": Drawing(
        "Rate relative to the reference",
        "Higher is faster; the line at 1 is the reference. Each dot is the ratio of the medians of one size "
        "class; the band is its 95 % bootstrap interval over rounds (over rows, for published tables). "
        "Dashed lines mark multiples of the initial TCP receive window. A plus at the upper edge marks an "
        "interval that ends above the axis. A triangle there marks a size at which the time jumps; the "
        "search for jumps does not use the window.",
        figures_layers.layers,
    ),
    "transfer": Drawing(
        "Transfer rate by message size",
        "The content of one message divided by its time, for each set-up and the reference. The line is "
        "the median of each size class; the darker band spans the 25th to the 75th percentile, the lighter "
        "band the 5th to the 95th. Dashed lines mark multiples of the initial TCP receive window.",
        figures_layers.transfer,
    ),
    "requests": Drawing(
        "Requests per second by message size",
        "The number of sequential requests per second. Bands as in the figure above.",
        figures_layers.requests,
    ),
    "latency-by-size": Drawing(
        "Latency by message size",
        "The time from the request for a message until its last byte arrives. Bands as in the figure above.",
        figures_layers.latency,
    ),
    "waterfall": Drawing(
        "The components of each path",
        "Each bar is a component that was measured separately; it begins where the bar above it ends. The "
        "last bar but one is the residual: the part of the measured path that no component explains. Lines "
        "are 95 % intervals. Each figure is a median over rounds, and medians do not add up exactly: the "
        "residual is the median of the rounds' residuals, not the difference of the medians.",
        figures_ledger.waterfall,
    ),
    "transfer-latency": Drawing(
        "Time of a message",
        "Left: the time from the request for a message until all of it has arrived. Right: half the time of "
        "a round trip with equal messages in both directions, as MPI benchmarks report it. Both axes are "
        "logarithmic. The line joins medians over blocks; the band is their 95 % interval. A transport that "
        "polls has a low latency but keeps its processors busy (see CPU time).",
        figures_transport.transfer_latency,
    ),
    "transfer-bandwidth": Drawing(
        "Bandwidth",
        "Several messages are in flight at once: a window of them with MPI and plain TCP, and one on each "
        "of several connections with the other transports. The line joins medians over blocks; the band is "
        "their 95 % interval.",
        figures_transport.transfer_bandwidth,
    ),
    "transfer-ratio": Drawing(
        "Time relative to the reference",
        "The line at 1 is the reference; lower is faster. Medians over blocks of the same messages, "
        "measured in turn, with 95 % intervals.",
        figures_transport.transfer_ratio,
    ),
    "transfer-cpu": Drawing(
        "CPU time of a message",
        "Left: the CPU time of both sides for one message at a time. Right: the number of processors that "
        "both sides together keep busy. One message at a time is work for one processor (dotted line). A "
        "value of 2 means that the transport polls: it uses CPU time while it waits.",
        figures_transport.transfer_cpu,
    ),
    "speedup": Drawing(
        "Speed-up by number of ranks",
        "S is the time of one rank in the first set-up divided by the time here, over pairs of jobs of the "
        "same round. The dotted line is the ideal speed-up. E is S / n. Dots are medians, bars 95 % "
        "intervals. Numbers of ranks with fewer than five successful jobs are omitted.",
        figures_speedup.speedup,
    ),
    "communication": Drawing(
        "Time spent in communication",
        "The share of their time that ranks spend in MPI calls, including waits for other ranks, and the "
        "time between the first and the last rank to finish. Not measured if the ranks did not report it.",
        figures_speedup.communication,
    ),
    "cpu": Drawing(
        "CPU time per operation",
        "CPU time, without waiting. Solid: the calling process. Pale: the lane's server. A lane without a "
        "pale part has no server, or the server's CPU time was not measured.",
        figures.cpu,
    ),
}

RANKS = ("ratios", "density", "latency", "cpu")
FIGURES = {
    "compare": ("ratios", "latency", "by-size", "cpu"),
    "ledger": ("waterfall",),
    "rest": ("ratios", "sweep", "latency", "cpu"),
    "ior": RANKS,
    "mdtest": RANKS,
    "mdworkbench": RANKS,
    "transport": ("transfer-latency", "transfer-bandwidth", "transfer-ratio", "transfer-cpu"),
    "pingpong": ("layers", "transfer", "requests", "latency-by-size", "ratios"),
    "speedup": ("speedup", "communication"),
    "io500": ("radar", "ratios", "density", "cpu"),
}
"""Names of the figures of each kind of run, in order. Kinds that are not listed have the figures of
`compare`.
"""


@dataclass(frozen=True)
class Drawn:
    """The figures of a run."""

    figures: dict[str, Figure]
    """The figures for which the run has data, by name."""
    failed: list[str]
    """A sentence for each figure that cannot be drawn."""


def draw_all(run: Run, colours: dict[str, str]) -> Drawn:
    """Draws all figures for which `run` has data. An error in one figure does not affect the others."""
    drawn, failed = {}, []
    for name in FIGURES.get(run.info["kind"], FIGURES["compare"]):
        drawing = DRAWINGS[name]
        try:
            with mpl.rc_context(figures.STYLE):
                figure = drawing.draw(run, colours)
                if figure is not None:
                    # Some errors, for example about empty logarithmic axes, occur only during layout.
                    figure.draw_without_rendering()
                    drawn[name] = figure
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            failed.append(f"The figure “{drawing.title}” cannot be drawn ({reason}).")
    return Drawn(drawn, failed)


def tables_of(run: Run) -> list[Callable[[Run, dict[str, str]], str]]:
    """Returns the tables of `run` that follow its results."""
    known = {
        "rest": [tables.load],
        "io500": [tables.scores],
        "pingpong": [tables_layers.gaps, tables_layers.levels, tables_layers.failures, tables_layers.changes],
    }
    return known.get(run.info["kind"], [])
