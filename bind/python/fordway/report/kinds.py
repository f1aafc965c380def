"""Which figures and tables a run of each kind has."""

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
    """A figure of a report: what it is called, what is said beneath it, and who draws it."""

    title: str
    caption: str
    draw: Callable[[Run, dict[str, str]], Figure | None]

    def said_of(self, run: Run) -> str:
        """The caption, and what the figure leaves out of `run`."""
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
        "How fast, against the reference",
        "Each row is one phase on one lane. The dot is the median ratio of speeds over blocks of the "
        "same work, the bar its 95 % interval. A bar that crosses the line at 1 cannot tell; its dot "
        "is hollow. A dot without a bar is the quotient of the rates, of too few rounds to say how "
        "far it can be trusted.",
        figures.ratios,
    ),
    "latency": Drawing(
        "Latency",
        "Further left is faster. The dot marks the median; above it the scale widens, so that the "
        "slowest operation in a hundred (99 %) or a thousand (99.9 %) can be read off: a curve that "
        "bends to the right there has a heavy tail. Time is logarithmic; in the open loop it counts "
        f"from the intended start. Each curve is drawn through at most {figures.ECDF_POINTS} quantiles "
        f"of its operations ({{operations}} succeeded in all), closer together in the tail.",
        figures.latency,
    ),
    "by-size": Drawing(
        "By size",
        "The line joins the medians of size classes, each twice as wide as the one before; the band "
        "holds the middle half of the operations. Classes with fewer than "
        f"{figures.OPERATIONS_PER_CLASS_MIN} operations are left out.",
        figures.by_size,
    ),
    "sweep": Drawing(
        "Throughput and latency over the sweep",
        "Above, requests that succeeded per second; below, the time of half of them (solid) and of 99 "
        "in a hundred (dashed). Each column is one combination of what does not lie on the axis.",
        figures_load.sweep,
    ),
    "density": Drawing(
        "Density of latency",
        "How often each latency occurs, on a logarithmic axis: equal areas are equal shares of the "
        "operations. Two hills are two kinds of operation, such as those served from memory and those "
        "that waited. The line marks the median. Heights compare within a panel.",
        figures_ranks.density,
    ),
    "radar": Drawing(
        "The phases at a glance",
        "Each spoke is a phase; further out is faster, in units of the reference, which is the ring "
        "at 1. The scale is logarithmic. A gap is a phase that was not measured.",
        figures_ranks.radar,
    ),
    "layers": Drawing(
        "What is left of the reference's rate",
        "Further up is faster; the line at 1 is the reference. Each dot is the quotient of the medians of a "
        "class of sizes, the band its 95 % interval by bootstrap. Dashed lines are multiples of TCP's first "
        "receive window; a triangle on the upper edge is a size at which times jump, found without "
        "knowledge of the window.",
        figures_layers.layers,
    ),
    "transfer": Drawing(
        "Transfer rate by size",
        "Content of one message divided by its time; each set-up beside the reference. The line is the "
        "median, the denser band holds the middle half of the messages, the paler one nine in ten: exact "
        "quantiles of each class of sizes. Dashed: multiples of TCP's first receive window.",
        figures_layers.transfer,
    ),
    "requests": Drawing(
        "Requests by size",
        "How many such messages come one after the other in a second. Bands as above.",
        figures_layers.requests,
    ),
    "latency-by-size": Drawing(
        "Latency by size",
        "From when a message is asked for until its last byte is there. Bands as above.",
        figures_layers.latency,
    ),
    "waterfall": Drawing(
        "What each path is made of",
        "Each bar is a layer that was measured by itself, and begins where the one above it ends. What is "
        "left up to the whole path, as it was measured beside them, is in no layer. "
        "Lines are 95 % intervals.",
        figures_ledger.waterfall,
    ),
    "transfer-latency": Drawing(
        "Time of a message",
        "From asking for a message until all of it is here; at the right, half the time of a message "
        "there and one as large back, as MPI's own benchmarks count. Both axes are logarithmic. The line "
        "joins medians over blocks, the band is their 95 % interval. A transport that polls (see the "
        "processors busy) pays for its latency with processors that do nothing else.",
        figures_transport.transfer_latency,
    ),
    "transfer-bandwidth": Drawing(
        "Bandwidth",
        "Several messages under way at once: of MPI and bare TCP a window of them, of the others one on "
        "each of several connections. The line joins medians over blocks, the band is their 95 % interval.",
        figures_transport.transfer_bandwidth,
    ),
    "transfer-ratio": Drawing(
        "How many times the reference's time",
        "The reference is the line at 1; what lies below it is faster. Medians over blocks of the same "
        "messages done in turn, with 95 % intervals.",
        figures_transport.transfer_ratio,
    ),
    "transfer-cpu": Drawing(
        "What a message costs both sides",
        "CPU time, one message at a time. At the right, the processors that both sides together kept busy: "
        "one message at a time is work for one (dotted). What is at 2 polls: it spends on waiting what the "
        "others leave to other programs.",
        figures_transport.transfer_cpu,
    ),
    "speedup": Drawing(
        "How much faster more ranks are",
        "S is the time of one rank in the first set-up, divided by the time here, over pairs of jobs of the "
        "same round; the dotted line is what n ranks could bring at most. E is S / n. Dots are medians, bars "
        "95 % intervals; a number of ranks with fewer than five good jobs is left out.",
        figures_speedup.speedup,
    ),
    "communication": Drawing(
        "What ranks spend on communication",
        "The share of the ranks' time that they were in calls of MPI, waiting for others included, and how "
        "much later than the first the last rank came to its end. Not measured where ranks did not report.",
        figures_speedup.communication,
    ),
    "cpu": Drawing(
        "CPU time per operation",
        "Processor time, not waiting: solid is the calling process, pale on top of it the lane's "
        "server. A lane without a pale part has no server, or its time was not measured.",
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
"""The figures of each kind of run, in their order; a kind that is not here has those of `compare`."""


def draw_all(run: Run, colours: dict[str, str]) -> dict[str, Figure]:
    """All figures that `run` has the data for, by name."""
    names = FIGURES.get(run.info["kind"], FIGURES["compare"])
    with mpl.rc_context(figures.STYLE):
        drawn = {name: DRAWINGS[name].draw(run, colours) for name in names}
    return {name: figure for name, figure in drawn.items() if figure is not None}


def tables_of(run: Run) -> list[Callable[[Run, dict[str, str]], str]]:
    """The tables that `run` has besides that of its results."""
    known = {
        "rest": [tables.load],
        "io500": [tables.scores],
        "pingpong": [tables_layers.gaps, tables_layers.levels, tables_layers.failures, tables_layers.changes],
    }
    return known.get(run.info["kind"], [])
