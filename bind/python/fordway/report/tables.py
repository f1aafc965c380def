"""The tables of a report."""

from collections.abc import Iterable
from html import escape
from typing import Any

from fordway.report import figures, io500, units
from fordway.report.runfile import Run


def results(run: Run, colours: dict[str, str]) -> str:
    """Returns the table of all summaries: results and limits."""
    rows = run.summaries()
    if not rows:
        return "<p>No phase was run.</p>"
    with_errors = any(row["errors"] for row in rows)
    heads = ["lane", "operations", *(["errors"] if with_errors else []), "ops/s", "MiB/s", "p50", "p99"]
    heads += ["client CPU<br>µs/op", "server CPU<br>µs/op", f"speed,<br>{escape(run.reference or '')} = 1"]
    heads += ["verdict", "limit"]
    head = "".join(f"<th>{text}</th>" for text in heads)
    bodies = "".join(_phase_rows(run, phase, colours, with_errors, len(heads)) for phase in run.phases)
    return f'<div class="wide"><table class="results"><thead><tr>{head}</tr></thead>{bodies}</table></div>'


def _phase_rows(run: Run, phase: str, colours: dict[str, str], with_errors: bool, columns: int) -> str:
    rows = [row for lane in run.lanes if (row := run.summary(phase, lane))]
    if not rows:
        return ""
    lines = (f"<tr>{''.join(_cells(run, row, colours, with_errors))}</tr>" for row in rows)
    name = f'<tr class="phase"><th colspan="{columns}">{escape(phase)}</th></tr>'
    return f"<tbody>{name}{''.join(lines)}</tbody>"


def _cells(run: Run, row: dict[str, Any], colours: dict[str, str], with_errors: bool) -> Iterable[str]:
    latency = row["latency"] or {"p50_ns": None, "p99_ns": None}
    yield f"<th>{dot(colours[row['lane']])}{escape(row['lane'])}</th>"
    yield _cell(units.count(row["operations"]))
    if with_errors:
        yield f"<td{' class=bad' if row['errors'] else ''}>{units.count(row['errors'])}</td>"
    yield _cell(units.rate(row["ops_per_s"]))
    yield _cell(units.mib_per_s(row["bytes_per_s"]) if row["bytes"] else "no content")
    yield from (_cell(units.duration(latency[name])) for name in ("p50_ns", "p99_ns"))
    yield from (_cell(units.cpu_us(row[f"{side}_cpu_ns_per_op"])) for side in ("client", "server"))
    yield from _ratio_cells(run, row)
    evidence = row["limit"]["evidence"]
    yield f'<td class="text">{escape(row["limit"]["name"])}<small>{escape(evidence)}</small></td>'


def dot(colour: str) -> str:
    """Returns a mark in a lane's colour."""
    return f'<i class="dot" style="--lane:{variable(colour)}"></i>'


def _cell(text: str) -> str:
    return f"<td>{text}</td>" if text[0].isdigit() else f'<td class="none">{escape(text)}</td>'


def _ratio_cells(run: Run, row: dict[str, Any]) -> Iterable[str]:
    ratio = row["ratio"]
    if ratio is None:
        yield '<td class="none">reference</td><td></td>'
        return
    interval = ratio["interval"]
    if interval is None:
        speed = run.speed(row)
        quotient = f"{units.ratio(speed)}" if speed is not None else ""
        yield f'<td class="none">{quotient}<small>too few blocks</small></td>'
    else:
        ends = f"{units.ratio(interval['low'])[:-1]} – {units.ratio(interval['high'])[:-1]}"
        yield f"<td><b>{units.ratio(interval['value'])}</b><small>{ends}</small></td>"
    mark = {"faster": "▲ ", "slower": "▼ "}.get(ratio["verdict"], "")
    told = "none" if ratio["verdict"] == "cannot-tell" else ratio["verdict"]
    yield f'<td class="text {told}">{mark}{figures.verdict_text(ratio)}</td>'


def variable(colour: str) -> str:
    """Returns the CSS variable for a lane's colour."""
    return f"var(--lane-{colour[1:]})"


def table(heads: Iterable[str], rows: Iterable[str]) -> str:
    """Returns an HTML table. Each entry of `heads` is text or a `<th>` element. Each row is the HTML of its
    cells.
    """
    head = "".join(text if text.startswith("<th") else f"<th>{text}</th>" for text in heads)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def load(run: Run, colours: dict[str, str]) -> str:
    """Returns the table of values from load generators: arrivals, first bytes, heads, connections and
    memory.
    """
    rows = [row for row in run.summaries() if row["load"]]
    if not rows:
        return ""
    heads = [
        "load",
        "HTTP",
        "requested<br>rate",
        "achieved",
        "skipped",
        "first byte<br>p50",
        "p99.9",
        "sent late<br>p99",
    ]
    heads += ["heads, bytes<br>sent + received", "reconnects", "round trip<br>µs", "server<br>memory"]
    lines = ("".join(_load_cells(row, colours)) for row in rows)
    return f"<h3>Load</h3>{table(heads, lines)}"


def _load_cells(row: dict[str, Any], colours: dict[str, str]) -> Iterable[str]:
    of = row["load"]
    none = '<td class="none">none</td>'
    asked, achieved = of["rate_asked_per_s"], row["ops_per_s"]
    lane = row["lane"]
    yield f'<th>{escape(row["phase"])}</th><td class="text">{dot(colours[lane])}{escape(lane)}</td>'
    yield '<td class="none">closed loop</td>' if asked is None else _cell(units.rate(asked))
    yield none if asked is None else _cell(f"{100 * (achieved or 0) / asked:.1f} %")
    yield _cell(units.count(of["skipped"]))
    yield _cell(units.duration(of["first_byte"] and of["first_byte"]["p50_ns"]))
    yield _cell(units.duration(row["latency"] and row["latency"]["p999_ns"]))
    yield none if asked is None else _cell(units.duration(of["lateness"] and of["lateness"]["p99_ns"]))
    sent, received = of["header_sent_bytes_per_op"], of["header_received_bytes_per_op"]
    heads = units.NOT_MEASURED if None in (sent, received) else f"{sent:.0f} + {received:.0f}"
    yield _cell(heads)
    yield _cell(units.count(of["reconnects"]))
    yield _cell(units.NOT_MEASURED if of["tcp"] is None else units.count(of["tcp"]["rtt_us"]))
    yield _cell(units.size(of["server"] and of["server"]["rss_bytes"]))


def scores(run: Run, colours: dict[str, str]) -> str:
    """Returns the table of IO500: the rate of each phase in its unit and relative to the reference, and the
    scores.
    """
    heads = ["phase", "<th class=text>unit</th>"]
    heads += [f"{dot(colours[lane])}{escape(lane)}" for lane in run.lanes]
    lines = [_phase_of_io500(run, phase) for phase in run.phases]
    known = {score["lane"]: score for score in run.info.get("scores", [])}
    for name, title, unit in io500.SCORES:
        values = [(known.get(lane, {}).get("scores") or {}).get(name) for lane in run.lanes]
        lines.append(_io500_row(f"<b>{title}</b>", unit, values))
    stamps = dict.fromkeys(score["stamp"] for score in known.values() if score["stamp"])
    notes = "".join(f"<p class=meta>{escape(stamp)}</p>" for stamp in stamps)
    return f"<h3>IO500</h3>{table(heads, lines)}{notes}"


def _phase_of_io500(run: Run, phase: str) -> str:
    rows = [run.summary(phase, lane) for lane in run.lanes]
    return _io500_row(escape(phase), io500.unit(phase), [row and io500.figure(row) for row in rows])


def _io500_row(name: str, unit: str, values: list[float | None]) -> str:
    cells = []
    for at, value in enumerate(values):
        text = units.NOT_MEASURED if value is None else units.digits(value)
        if at and value is not None and values[0]:
            text += f"<small>{units.ratio(value / values[0])}</small>"
        cells.append(f"<td>{text}</td>")
    return f'<th>{name}</th><td class="text">{unit}</td>{"".join(cells)}'


COUNTED_BESIDE_MAX = 0.01
"""Maximum share of a run without counted operations that a count per operation may include without a note."""


def counter_table(run: Run) -> str:
    """Returns the table of hardware counters, in total over all threads and, if all of the run's operations
    are of one kind, per operation.
    """
    counted = run.counted
    operations, bound, note = _counted_operations(run)
    lines = []
    for event, total in counted.events.items():
        is_known = total is not None and operations
        per_operation = f"{bound}{units.digits(total / operations)}" if is_known else units.NOT_MEASURED
        whole = units.NOT_MEASURED if total is None else f"{total:,.0f}"
        lines.append(f"<th>{escape(event)}</th><td>{whole}</td><td>{per_operation}</td>")
    threads = f"{len(counted.threads)} threads for " if counted.threads else ""
    title = f"{escape(counted.name)}, {counted.tool}: {threads}{counted.runtime_s:.3f} s"
    notes = "".join(f"<p class=meta>{escape(text)}</p>" for text in [*counted.notes, *note])
    rows = table(["event", "sum", "per operation"], lines)
    return f"<h3>Counters</h3><p class=meta>{title}</p>{notes}{rows}"


def _counted_operations(run: Run) -> tuple[int | None, str, list[str]]:
    """Returns the number of operations by which counts are divided, a mark for upper bounds, and a note.

    Counters cover the whole command. The operations of a summary exclude the warm-up.
    """
    rows = run.summaries()
    if len(rows) != 1:
        note = (
            "Counts are not divided by operations, because the run has several rows, whose operations "
            "differ; run one row on its own."
        )
        return None, "", [note]
    operations, rate = rows[0]["operations"], rows[0]["ops_per_s"]
    if not operations or not rate:
        return None, "", []
    elapsed_s, measured_s = run.info["elapsed_ns"] / 1e9, operations / rate
    beside_s = elapsed_s - measured_s
    if beside_s <= COUNTED_BESIDE_MAX * elapsed_s:
        return operations, "", []
    note = (
        f"Counts per operation are upper bounds: the counters also cover {beside_s:.1f} s of "
        f"{elapsed_s:.1f} s outside of the counted operations (warm-up, preparation, checks). Measure for "
        "longer, without a warm-up."
    )
    return operations, "\u2264 ", [note]
