"""Draws a result: measured and modelled times by size, and the error of each row."""

import html
import io
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from fordway.model.points import MeasurementError
from fordway.report import figures

MEASURED, MODEL, LEFT_OUT = "#6e7681", "#0072b2", "#d55e00"
FORMS = (".svg", ".html")


def check_form(path: Path) -> None:
    """Raises `MeasurementError` if the file name has an unsupported suffix."""
    if path.suffix not in FORMS:
        raise MeasurementError(f"{path}: a figure is written to FILE.svg or FILE.html")


def save(found: dict[str, Any], text: str, path: Path) -> None:
    """Writes the figure of a result. If `path` ends in `.html`, the page also contains `text`."""
    write(draw(found), f"{found['model']}: {found['rows']} rows", text, path)


def write(figure: Figure, title: str, text: str, path: Path) -> None:
    """Writes a figure. An HTML page also contains `text`. Raises `MeasurementError` if the file cannot be
    written.
    """
    check_form(path)
    svg, title = _svg(figure), html.escape(title)
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"<body>{svg[svg.index('<svg') :]}<pre>{html.escape(text)}</pre></body></html>\n"
    )
    try:
        path.write_text(svg if path.suffix == ".svg" else page, encoding="utf-8")
    except OSError as error:
        raise MeasurementError(f"{path} cannot be written: {error}") from error


def _svg(figure: Figure) -> str:
    out = io.StringIO()
    with mpl.rc_context(figures.STYLE):
        figure.savefig(out, format="svg", facecolor="white", metadata={"Date": None})
    return out.getvalue()


def draw(found: dict[str, Any]) -> Figure:
    """Returns the figure for the document of a result."""
    with mpl.rc_context(figures.STYLE):
        figure = Figure(figsize=(figures.WIDTH_INCHES, 5.4), layout="constrained")
        times, errors = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
        rows = sorted(found["points"], key=lambda each: each["size_bytes"])
        sizes = [max(each["size_bytes"], 1) for each in rows]
        _times(times, sizes, rows, found)
        _errors(errors, sizes, rows)
    return figure


def _times(
    axes: mpl.axes.Axes, sizes: list[float], rows: list[dict[str, Any]], found: dict[str, Any]
) -> None:
    several = len({each["connections"] for each in rows}) > 1
    axes.plot(
        sizes, [1e3 * each["time_us"] for each in rows], "o", color=MEASURED, label="measured", markersize=5
    )
    # If a size was measured with several numbers of connections, a line would connect unrelated rows.
    style = "x" if several else "-"
    axes.plot(sizes, [1e3 * each["predicted_us"] for each in rows], style, color=MODEL, label=found["model"])
    axes.set(
        xscale="log", yscale="log", ylabel=f"{found['statistic']} time of a request", title=found["equation"]
    )
    figures.size_axis(axes)
    figures.time_axis(axes.yaxis)
    axes.legend(loc="upper left")


def _errors(axes: mpl.axes.Axes, sizes: list[float], rows: list[dict[str, Any]]) -> None:
    axes.axhline(0, color=figures.INK, linewidth=1)
    axes.plot(
        sizes, [each["error_pct"] for each in rows], "o-", color=MODEL, markersize=4, label="of the fit"
    )
    if rows[0]["left_out_error_pct"] is not None:
        left_out = [each["left_out_error_pct"] for each in rows]
        axes.plot(
            sizes, left_out, "o", color=LEFT_OUT, markerfacecolor="none", label="of each row when left out"
        )
    axes.set(xscale="log", xlabel="size", ylabel="error in % (eq. 10)")
    figures.size_axis(axes)
    axes.legend(loc="best")
