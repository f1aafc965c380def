"""The tables of ping-pong runs: expected rates, failed and repeated messages, and jumps."""

from html import escape

from fordway.report import units
from fordway.report.layers import changes as changes_of
from fordway.report.layers import guidance, windows
from fordway.report.layers.classes import MESSAGES_MIN, Classes, bands
from fordway.report.runfile import Run
from fordway.report.tables import dot, table


def levels(run: Run, colours: dict[str, str]) -> str:
    """Returns the table of rates relative to the reference, for small and for big messages."""
    found = guidance.levels(run)
    if not found:
        return ""
    cores = sorted({level.cores for level in found}, key=lambda count: count or 0)
    rows = [
        f"{_head(load, lane, colours)}{_level_cells([of_row.get(count) for count in cores])}"
        for (load, lane), of_row in guidance.by_cores(found).items()
    ]
    borders = {phase: guidance.border_bytes(run, phase) for phase in run.phases}
    sizes = ", ".join(dict.fromkeys(units.size(size) for size in borders.values() if size))
    said = (
        f"Rates relative to {escape(run.reference or '')}: the 25th to the 75th percentile over all sizes, "
        f"in steps of 5 %. A message is big if it exceeds {guidance.WINDOWS} initial TCP receive windows "
        f"({sizes})."
    )
    on_cores = [f",<br>{count} {'core' if count == 1 else 'cores'}" if count else "" for count in cores]
    heads = ["load", "<th class=text>set-up</th>"]
    heads += [f"{size} messages{on}" for size in ("small", "big") for on in on_cores]
    if len(cores) > 1:
        said += " Each side was limited to this number of cores, and so was the reference."
    return f"<h3>Expected rates</h3><p class=meta>{said}</p>{table(heads, rows)}"


def _level_cells(levels: list[guidance.Level | None]) -> str:
    """Returns one cell per processor count for small messages, followed by one cell per processor count for
    big messages.
    """
    texts = [level.small if level else units.NOT_MEASURED for level in levels]
    texts += [level.big if level else units.NOT_MEASURED for level in levels]
    return "".join(f"<td>{text}</td>" for text in texts)


def gaps(run: Run, colours: dict[str, str]) -> str:
    """Returns the reasons why this run lacks figures and tables that other runs have."""
    del colours
    reasons = []
    if len(run.lanes) < 2:
        reasons.append("No comparison: the run has only one set-up.")
    elif set(run.operations["lane"]) == {run.reference}:
        reasons.append("No comparison: only the reference delivered messages.")
    elif run.reference not in set(run.operations["lane"]):
        reasons.append(f"No comparison: the reference, {run.reference}, delivered no message.")
    if run.operations.empty:
        reasons.append("No figures: no message was delivered.")
    elif not run.operations["bytes"].any():
        reasons.append("No figures by size: all messages are empty.")
    elif not _has_classes(run):
        reasons.append(
            f"No figures by size: no size class has {MESSAGES_MIN} messages of one set-up; "
            "measure more rounds."
        )
    return f"<p class=meta>{escape(' '.join(reasons))}</p>" if reasons else ""


def _has_classes(run: Run) -> bool:
    """Returns whether any size class has enough messages to be drawn."""
    for _, of_phase in run.operations.groupby("phase", observed=True):
        classes = Classes.of(of_phase["bytes"].to_numpy())
        for _, rows in of_phase.groupby("lane", observed=True):
            if not bands(rows, classes, rows["duration_ns"]).empty:
                return True
    return False


def _head(phase: str, lane: str, colours: dict[str, str]) -> str:
    """Returns the first two cells of a row: the load and the set-up."""
    return f'<th>{escape(phase)}</th><td class="text">{dot(colours[lane])}{escape(lane)}</td>'


def failures(run: Run, colours: dict[str, str]) -> str:
    """Returns the table of all failed and repeated messages."""
    rows = []
    for row in run.summaries():
        load = row["load"]
        if load is None:
            continue
        kinds = ", ".join(f"{kind}: {count}" for kind, count in load["errors"].items()) or "none"
        rows.append(
            f"{_head(row['phase'], row['lane'], colours)}"
            f"<td>{units.count(row['operations'])}</td><td>{units.count(row['errors'])}</td>"
            f'<td>{units.count(load.get("retries", 0))}</td><td class="text">{escape(kinds)}</td>'
        )
    if not rows:
        return ""
    heads = [
        "load",
        "<th class=text>set-up</th>",
        "answered",
        "failed",
        "asked again",
        "<th class=text>kinds</th>",
    ]
    return f"<h3>Messages</h3>{table(heads, rows)}"


def changes(run: Run, colours: dict[str, str]) -> str:
    """Returns the table of sizes at which times jump, and whether the jumps move with the window."""
    found = windows.all_changes(run)
    said = _unsearched(run, is_empty=not found)
    if not found:
        return f"<h3>Jumps</h3>{said}"
    heads = ["load", "<th class=text>set-up</th>", "from", "95 % interval", "time beyond it", "by chance"]
    rows = [
        f"{_head(one.phase, one.lane, colours)}"
        f"<td>{one.change.size_bytes:,.0f} B</td>"
        f"<td>{one.change.low_bytes:,.0f} – {one.change.high_bytes:,.0f}</td>"
        f"<td>{one.change.jump:.2f}×</td><td>at most {one.change.chance:.1%}</td>"
        for one in found
    ]
    return f"<h3>Jumps</h3>{table(heads, rows)}{said}{_verdicts(run, found, colours)}"


def _unsearched(run: Run, *, is_empty: bool) -> str:
    """Returns statements about set-ups without jumps. The absence of jumps is only stated for set-ups with
    enough messages to detect jumps.
    """
    unsearched = windows.unsearched(run)
    said = []
    if is_empty and len(unsearched) < len(run.phases) * len(run.lanes):
        others = " of the other set-ups" if unsearched else ""
        said.append(f"Times{others} do not jump by {changes_of.JUMP_MIN:.0%} or more at any size.")
    if unsearched:
        said.append(
            f"Cannot tell whether times jump: {'; '.join(unsearched)}. The search needs "
            f"{changes_of.MESSAGES_MIN} messages, and {changes_of.SIZES_MIN} sizes and "
            f"{changes_of.SIDE_MIN} messages on each side of a jump."
        )
    return f"<p class=meta>{escape(' '.join(said))}</p>" if said else ""


def _verdicts(run: Run, found: list[windows.Found], colours: dict[str, str]) -> str:
    told = windows.verdicts(run, found)
    if not told:
        return ""
    heads = ["load", "<th class=text>set-up</th>", "<th class=text>from, with each window</th>"]
    rows = []
    for one in told:
        sizes = ", ".join(f"{size:,.0f} B with {window:,}" for window, size in one.sizes_bytes.items())
        rows.append(
            f"{_head(one.phase, one.lane, colours)}"
            f'<td class="text">{sizes}</td><td class="text">{one.verdict}</td>'
        )
    return f"<h4>Is it the window?</h4>{table([*heads, '<th class=text>the jump</th>'], rows)}"
