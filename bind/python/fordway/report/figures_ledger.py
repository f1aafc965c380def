"""The figures of a ledger: the components of each path."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from fordway.report import figures, units
from fordway.report.runfile import Run

PART = "#56b4e9"
WHOLE = "#0072b2"
MISSING = "#d55e00"
"""Colours of components, of the measured path, and of the residual."""

COLUMNS = 2


def entries(run: Run) -> list[dict[str, Any]]:
    """Returns the paths to draw, at the requested sizes, or by default at the sizes that the run printed."""
    if run.ledger is None:
        return []
    sizes = run.sizes_bytes or run.info["parameters"].get("printed_bytes") or ()
    return [entry for entry in run.ledger["entries"] if entry["size_bytes"] in sizes and entry["parts"]]


def waterfall(run: Run, colours: dict[str, str]) -> Figure | None:
    """Draws the components of each path as steps, followed by the residual and the measured time."""
    shown = entries(run)
    if not shown:
        return None
    rows = -(-len(shown) // COLUMNS)
    most = max(len(entry["parts"]) for entry in shown) + 2
    has_two_lines = any("beyond" in part for entry in shown for part in entry["parts"])
    height = rows * (1.2 + (0.34 if has_two_lines else 0.24) * most)
    figure = Figure(figsize=(figures.WIDTH_INCHES, height), layout="constrained")
    grid = figure.subplots(rows, COLUMNS, squeeze=False).flat
    for axes, entry in zip(grid, shown, strict=False):
        _panel(axes, entry)
    for axes in list(grid)[len(shown) :]:
        axes.set_visible(False)
    return figure


def steps(entry: dict[str, Any]) -> list[tuple[str, float, dict[str, Any], str]]:
    """Returns the bars of one path. Each bar has a name, a start (ns), a time with its interval, and a
    colour.
    """
    begin_ns, bars = 0.0, []
    for part in entry["parts"]:
        # In older runs, the field for the component is named `rung`.
        component = part["component"] if "component" in part else part["rung"]
        name = component if part["times"] == 1 else f"{part['times']:g} × {component}"
        if "beyond" in part:
            name = f"{component}\nbeyond {part['beyond']}"
        bars.append((name, begin_ns, part["ns"], PART))
        begin_ns += part["ns"]["value"]
    bars.append(("residual", begin_ns, entry["residual_ns"], MISSING))
    bars.append(("measured", 0.0, entry["measured_ns"], WHOLE))
    return bars


def _panel(axes: Axes, entry: dict[str, Any]) -> None:
    bars = steps(entry)
    whole_ns = entry["measured_ns"]["value"]
    for y, (_, begin_ns, time, colour) in enumerate(bars):
        axes.barh(y, time["value"], left=begin_ns, height=0.62, color=colour, alpha=0.85)
        ends = [begin_ns + time["low"], begin_ns + time["high"]]
        axes.plot(ends, [y, y], color=figures.INK, linewidth=1)
        text = _time(time["value"])
        axes.text(1.02, y, text, transform=axes.get_yaxis_transform(), va="center", fontsize=8)
    axes.set_yticks(range(len(bars)), [name for name, *_ in bars])
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _time(value)))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    highest_ns = max(begin + max(time["value"], time["high"]) for _, begin, time, _ in bars)
    axes.set_xlim(0, 1.05 * min(highest_ns, 2 * whole_ns))
    share = entry["residual_share"]
    axes.set_title(
        f"{entry['path']}, {units.size(entry['size_bytes'])}\n{100 * share['value']:.0f} % unexplained "
        f"[{100 * share['low']:.0f}, {100 * share['high']:.0f}]"
    )


def _time(value_ns: float) -> str:
    sign = "-" if value_ns < 0 else ""
    return f"{sign}{units.duration(abs(value_ns))}"
