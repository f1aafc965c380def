"""Writes the page of a report: one HTML file that needs neither a network nor other files."""

import io
import json
import re
import shlex
from collections.abc import Iterable
from html import escape
from importlib import resources
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from fordway.report import figures, files, kinds, units
from fordway.report.kinds import Drawn
from fordway.report.runfile import Run
from fordway.report.tables import counter_table, dot, results, variable

DARK = {
    "#6e7681": "#9aa4b1",
    "#0072b2": "#4ba3e3",
    "#009e73": "#34c79a",
    "#d55e00": "#f28b3c",
    "#cc79a7": "#e39cc4",
    "#e69f00": "#f2bb44",
    "#56b4e9": "#8accf2",
    "#8c6bb1": "#b397d6",
    "#66a61e": "#8fd14a",
    "#a6761d": "#d3a24c",
    "#b2182b": "#f0606f",
    "#01665e": "#35a79c",
    "#4d4dff": "#9a9aff",
}
"""Colour of each lane in dark mode."""

VERDICTS = {"doubtful": "measured, with doubts", "refused": "refused, and measured because of --force"}
"""Texts for the verdicts whose stored names need an explanation."""


def page(runs: list[Run], drawn: list[Drawn], colours: dict[str, str]) -> str:
    """Returns the whole page. `drawn` contains the figures of each of `runs`."""
    sections = [_section(i, run, drawn[i], colours) for i, run in enumerate(runs)]
    title = ", ".join(run.name for run in runs)
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            files.GENERATOR,
            f"<title>{escape(title)} · Fordway</title>",
            f"<style>{_style(colours)}</style></head><body><main>",
            _contents(runs) if len(runs) > 1 else "",
            *sections,
            resources.files(__package__).joinpath("how_to_read.html").read_text(encoding="utf-8"),
            "</main></body></html>\n",
        ]
    )


def _style(colours: dict[str, str]) -> str:
    style = resources.files(__package__).joinpath("style.css").read_text(encoding="utf-8")
    light = "".join(f"--lane-{colour[1:]}:{colour};" for colour in set(colours.values()))
    dark = "".join(f"--lane-{colour[1:]}:{DARK.get(colour, colour)};" for colour in set(colours.values()))
    return f"{style}\n:root{{{light}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"


def _contents(runs: list[Run]) -> str:
    links = (f'<a href="#run-{i}">{escape(run.name)}</a>' for i, run in enumerate(runs))
    return f"<nav>Runs: {' · '.join(links)}</nav>"


def _section(number: int, run: Run, drawn: Drawn, colours: dict[str, str]) -> str:
    return "\n".join(
        [
            f'<section id="run-{number}">',
            _header(run),
            _headline(run, colours),
            _conditions(run),
            _warnings(run, drawn.failed),
            "<h3>Results</h3>",
            results(run, colours),
            *(table(run, colours) for table in kinds.tables_of(run)),
            counter_table(run) if run.counted else "",
            *(_figure(f"r{number}-{name}", name, figure, run) for name, figure in drawn.figures.items()),
            "<h3>What it was made with</h3>",
            f'<div class="columns"><div><h4>Parameters</h4>{_parameters(run)}'
            f"<h4>Lanes</h4>{_lanes(run, colours)}</div>",
            f"<div><h4>Machine</h4>{_machine(run.info['machine'])}"
            f"<h4>Conditions</h4>{_pairs(_figures_of(run.info.get('conditions')))}</div></div>",
            "</section>",
        ]
    )


def _header(run: Run) -> str:
    info = run.info
    made = [info["kind"], info["started"], f"took {units.duration(info['elapsed_ns'])}"]
    made += [_machine_line(info["machine"]), f"fordway {info['fordway_version']}"]
    return (
        f"<header><h1>{escape(run.name)}</h1><p class=meta>{escape(' · '.join(made))}</p>"
        f"<pre>$ {escape(shlex.join(info['command']))}</pre></header>"
    )


def _machine_line(machine: dict[str, Any]) -> str:
    model = machine["cpu_model"] or f"processor {units.NOT_MEASURED}"
    kind = " (virtual)" if machine["is_virtual"] else ""
    kinds = dict.fromkeys(system["kind"] for system in machine["file_systems"])
    return f"{machine['cpus']} CPUs, {model}{kind}" + (f", {' and '.join(kinds)}" if kinds else "")


def _headline(run: Run, colours: dict[str, str]) -> str:
    others = [lane for lane in run.lanes if lane != run.reference]
    cards = [card for lane in others if (card := _card(run, lane, colours[lane]))]
    return f'<div class="cards">{"".join(cards)}</div>' if cards else ""


def _card(run: Run, lane: str, colour: str) -> str:
    """Returns the summary of one lane: the range of its ratios, and the number of phases with each
    verdict.
    """
    rows = [row for row in run.summaries() if row["lane"] == lane and row["ratio"]]
    if not rows:
        return ""
    verdicts = [figures.verdict_text(row["ratio"]) for row in rows]
    kinds_of = ("faster", "slower", "cannot tell")
    counts = [f"{kind} in {verdicts.count(kind)}" for kind in kinds_of if kind in verdicts]
    values = [value for row in rows if (value := run.speed(row)) is not None]
    ends = dict.fromkeys([units.ratio(min(values)), units.ratio(max(values))]) if values else ["cannot tell"]
    spread = " – ".join(ends)
    return (
        f'<div class="card" style="--lane:{variable(colour)}"><b>{escape(lane)}</b>'
        f'<span class="big">{spread}</span>'
        f"<span>the speed of {escape(rows[0]['ratio']['to'])} in {_phases(len(rows))}: "
        f"{', '.join(counts)}</span></div>"
    )


def _phases(number: int) -> str:
    return "1 phase" if number == 1 else f"{number} phases"


def _conditions(run: Run) -> str:
    """Returns the verdict on whether the machine was idle enough, with each doubt and the results that the
    doubt concerns.
    """
    conditions = run.info.get("conditions")
    if not conditions:
        return ""
    verdict = VERDICTS.get(conditions["verdict"], conditions["verdict"])
    if not conditions["doubts"]:
        return f"<p>Conditions: {escape(verdict)}</p>"
    items = "".join(f"<li>{escape(_doubt(doubt))}</li>" for doubt in conditions["doubts"])
    return f"<aside><h4>Conditions: {escape(verdict)}</h4><ul>{items}</ul></aside>"


def _doubt(doubt: dict[str, Any]) -> str:
    cells = ", ".join(f"{cell['phase']} on {cell['lane']}" for cell in doubt.get("cells", []))
    return f"{doubt['observed']}; {doubt['remedy']} ({cells or 'all results'})"


def _figures_of(conditions: dict[str, Any] | None) -> Iterable[tuple[str, str | None]]:
    """Yields the measured values on which the verdict is based, as text."""
    for name, value in (conditions or {}).get("figures", {}).items():
        if value is None:
            yield name, None
        elif name.endswith("_share"):
            yield name.removesuffix("_share"), f"{100 * value:.1f} %"
        else:
            yield name, f"{value:.3g}"


def _warnings(run: Run, not_drawn: list[str]) -> str:
    notes = [*not_drawn, *run.info["warnings"]]
    for row in run.summaries():
        if row["errors"]:
            total = units.count(row["operations"] + row["errors"])
            failed = f"{units.count(row['errors'])} of {total} operations failed or returned wrong content"
            notes.append(f"{row['phase']} on {row['lane']}: {failed}; its figures count the others only.")
    missing = [f"{p} on {lane}" for p in run.phases for lane in run.lanes if run.summary(p, lane) is None]
    if missing:
        notes.append(f"Not run: {', '.join(missing)}.")
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f"<aside><h4>Before you trust this</h4><ul>{items}</ul></aside>" if notes else ""


def _figure(prefix: str, name: str, figure: Figure, run: Run) -> str:
    drawing = kinds.DRAWINGS[name]
    svg = inline_svg(figure, prefix)
    return f"<figure><h3>{drawing.title}</h3>{svg}<figcaption>{drawing.said_of(run)}</figcaption></figure>"


def inline_svg(figure: Figure, prefix: str) -> str:
    """Returns the figure as SVG for a page that defines the colours. The IDs in the SVG start with
    `prefix`.
    """
    text = io.StringIO()
    with mpl.rc_context(figures.STYLE):
        figure.savefig(text, format="svg")
    svg = text.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(
        r'(<svg[^>]*?) height="[^"]*"([^>]*?) width="[^"]*"|(<svg[^>]*?) width="[^"]*"', r"\1\2\3", svg
    )
    svg = re.sub(r'\bid="|(?<=href=")#|(?<=url\()#', lambda found: f"{found.group()}{prefix}-", svg)
    for colour, name in ((figures.INK, "ink"), (figures.MUTED, "muted"), (figures.GRID, "grid")):
        svg = svg.replace(colour, f"var(--{name})")
    return re.sub("|".join(DARK), lambda found: variable(found.group()), svg)


def _parameters(run: Run) -> str:
    """Returns the parameters as a list. Lists of objects, such as the set-ups, follow as tables."""
    given = run.info["parameters"]
    tables = {name: value for name, value in given.items() if _is_table(value)}
    pairs = _pairs((name, _value(name, value)) for name, value in given.items() if name not in tables)
    return pairs + "".join(f"<h4>{escape(name)}</h4>{_rows(value)}" for name, value in tables.items())


def _is_table(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in value)


def _rows(objects: list[dict[str, Any]]) -> str:
    """Returns a table with a row for each object, and a column for each of their fields."""
    names = list(dict.fromkeys(name for each in objects for name in each))
    heads = "".join(f"<th class=text>{escape(name)}</th>" for name in names)
    lines = (
        "".join(f'<td class="text">{escape(_value(name, each.get(name)))}</td>' for name in names)
        for each in objects
    )
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'


def _value(name: str, value: object) -> str:
    """Returns a value as text. If the name of the value contains a unit, adds the value in readable form."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(_value(name, each) for each in value) or "none"
    if isinstance(value, dict):
        if value.keys() == {"secs", "nanos"} and all(isinstance(each, int) for each in value.values()):
            return units.duration(value["secs"] * 1_000_000_000 + value["nanos"])
        return "; ".join(f"{inner} {_value(inner, each)}" for inner, each in value.items()) or "none"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if isinstance(value, int) and name.endswith("_bytes"):
        return f"{text} ({units.size(value)})"
    if isinstance(value, int) and name.endswith("_ns"):
        return f"{text} ({units.duration(value)})"
    return text


def _lanes(run: Run, colours: dict[str, str]) -> str:
    def item(lane: dict[str, str]) -> str:
        mark = " (the reference)" if lane["name"] == run.reference else ""
        name = f"{dot(colours[lane['name']])}{escape(lane['name'])}"
        return f"<dt>{name}</dt><dd>{escape(lane['description'])}{mark}</dd>"

    return f"<dl>{''.join(item(lane) for lane in run.info['lanes'])}</dl>"


def _machine(machine: dict[str, Any]) -> str:
    virtual = {None: None, True: "yes, a hypervisor is beneath", False: "no"}[machine["is_virtual"]]
    load = machine["load_1min"]
    pairs = {
        "processor": machine["cpu_model"],
        "CPUs usable": str(machine["cpus"]),
        "memory": units.size(machine["memory_bytes"]),
        "virtual": virtual,
        "system": machine["system"],
        "kernel": machine["kernel"],
        "governor": machine["cpu_governor"],
        "clock source": machine["clock_source"],
        "huge pages": machine["huge_pages"],
        "load before": None if load is None else f"{load:g} (1-minute average)",
    }
    for system in machine["file_systems"]:
        pairs[system["role"]] = (
            f"{system['path']} on {system['kind']} ({system['mount_point']}: {system['options']})"
        )
    return _pairs(pairs.items())


def _pairs(pairs: Iterable[tuple[str, str | None]]) -> str:
    items = (
        f"<dt>{escape(name)}</dt><dd>{escape(units.NOT_MEASURED if value is None else value)}</dd>"
        for name, value in pairs
    )
    return f"<dl>{''.join(items)}</dl>"
