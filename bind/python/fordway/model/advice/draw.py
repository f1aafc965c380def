"""Draws the advice figure: the time of each lane in each phase, with its interval."""

from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from fordway.report import figures

CHOSEN, OTHER = "#0072b2", "#6e7681"


def draw(found: dict[str, Any]) -> Figure:
    """Returns the figure for an advice document."""
    parts = [*found["phases"], {"phase": "total"} | found["total"]]
    with mpl.rc_context(figures.STYLE):
        heights = [max(len(part["lanes"]), 1) for part in parts]
        figure = Figure(
            figsize=(figures.WIDTH_INCHES, 0.5 + 0.32 * sum(heights) + 0.45 * len(parts)),
            layout="constrained",
        )
        axes = figure.subplots(len(parts), 1, height_ratios=heights, squeeze=False)[:, 0]
        for own, part in zip(axes, parts, strict=True):
            _phase(own, part)
    return figure


def _phase(axes: mpl.axes.Axes, part: dict[str, Any]) -> None:
    lanes, choice = part["lanes"], part["choice"]
    for at, each in enumerate(lanes):
        color = CHOSEN if each["lane"] in (choice["lane"], *choice["between"]) else OTHER
        if each["low"] is not None:
            bounds = [1e9 * max(each[name], 1e-9) for name in ("low", "high")]
            axes.plot(bounds, [at, at], color=color, linewidth=3, alpha=0.4)
        middle = 1e9 * max(each["seconds"], 1e-9)
        axes.plot([middle], [at], "o", color=color)
    axes.set(xscale="log", title=part["phase"], ylim=(len(lanes) - 0.5, -0.5))
    axes.set_yticks(range(len(lanes)), [each["lane"] for each in lanes])
    figures.time_axis(axes.xaxis)
