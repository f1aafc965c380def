"""Reader for the output of `perf stat`: text, fields with a separator (`-x`), and JSON (`-j`)."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fordway.report.counters.counted import Counted

TOOL = "perf stat"

BEGIN = re.compile(r"Performance counter stats for")
END = re.compile(r"([\d.,]+)(?: \+- [\d.,]+)? seconds time elapsed")

ABSENT = ("<not counted>", "<not supported>")
"""What perf writes in place of a count. The event exists, but was not counted."""

UNITS = ("msec", "nsec", "ns", "Joules", "MiB", "Bytes", "B", "C")
"""Units that the text contains between the count and the event."""

INTERVALS = re.compile(r"#\s+time\s.*\bcounts\s+unit\s+events")
"""The line before the rows of `-I`, each of which begins with a time."""

INTERVAL_TIME = re.compile(r"\s*(\d+[.,]\d+)(?=\s)")

LINE = re.compile(
    # The column of `-A`, or the two columns of `--per-core` and similar options.
    r"\s*(?:(?:CPU\d+|[A-Z]\d+[\w-]*\s+\d+)\s+)?"
    rf"(?P<count>{'|'.join(ABSENT)}|[\d.,'\u00a0\u202f]*\d)\s+(?:(?P<unit>{'|'.join(UNITS)})\s+)?"
    r"(?P<event>[^\s#(]\S*)(?:\s+\((?P<old_unit>msec)\))?\s*(?:#.*?)?"
    # The standard deviation of `-r`, and the share of the time.
    r"(?:\(\s*\+-\s*[\d.,]+\s*%\s*\)\s*)?(?:\(\s*(?P<share>[\d.,]+)\s*%\s*\))?\s*"
)
"""A line of the text. perf before 4.20 writes the unit of `task-clock` after the event."""

SEPARATORS = ",;\t:|"

TIME_EVENT = "duration_time"
"""The event that counts the elapsed time, in ns."""

WHOLE_PCT = 99.995
"""An event that was counted for at least this percentage of the time was not scaled."""


CPUS_UNIT = "CPUs utilized"

CPUS_MIN = 0.05
"""Minimum of the metric of `task-clock` for an accuracy of 1 %: `-x` prints 3 decimals."""


@dataclass
class _Row:
    """One event, on all threads or on some of them."""

    event: str
    unit: str
    count: float | None
    counted_pct: float | None
    cpus: float | None = None
    """Metric of `task-clock`: the number of processors that were busy on average."""


def parse_counted(name: str, text: str) -> Counted:
    """Returns the counters in `text`, which may also contain output of the counted program.

    If `text` contains no counters of perf, the result has no events.
    """
    counted = Counted(name, TOOL)
    rows = list(_json(text)) or list(_fields(text)) or _text(text)
    for row in rows:
        event = f"{row.event} [{row.unit}]" if row.unit else row.event
        # perf writes a row for each core or interval if it is asked to.
        before = counted.events.get(event)
        counted.events[event] = before if row.count is None else row.count + (before or 0)
        if row.count is not None and row.counted_pct is not None and row.counted_pct < WHOLE_PCT:
            note = f"{event} was counted for {row.counted_pct:.0f} % of the time and scaled"
            counted.notes += [note] if note not in counted.notes else []
    if rows:
        counted.runtime_s = _runtime_s(counted, text) or _from_cpu_time(rows)
    return counted


def _runtime_s(counted: Counted, text: str) -> float | None:
    """Returns the duration of counting, from the `duration_time` event, the text or the last interval."""
    for event in (TIME_EVENT, f"{TIME_EVENT} [ns]"):
        elapsed_ns = counted.events.pop(event, None)
        if elapsed_ns is not None:
            return elapsed_ns / 1e9
    if found := END.search(text):
        return _number(found[1], is_count=False)
    if (start := INTERVALS.search(text)) is None:
        return None
    intervals = BEGIN.split(text[start.end() :])[0].splitlines()
    times = [_number(found[1], is_count=False) for line in intervals if (found := INTERVAL_TIME.match(line))]
    return max(times, default=None)


def _from_cpu_time(rows: list[_Row]) -> float | None:
    """Returns the duration of counting, if the metric of `task-clock` shows it."""
    clocks = [row for row in rows if row.event.startswith("task-clock") and row.unit == "msec"]
    # Rows for cores have the same duration, but rows for intervals add up.
    if len(clocks) != 1:
        return None
    clock = clocks[0]
    if not clock.count or clock.cpus is None or clock.cpus < CPUS_MIN:
        return None
    return clock.count / 1e3 / clock.cpus


def _json(text: str) -> Iterator[_Row]:
    for line in text.splitlines():
        if not line.startswith("{"):
            continue
        try:
            row: dict[str, Any] = json.loads(line)
        except ValueError:
            continue
        if isinstance(row.get("event"), str) and "counter-value" in row:
            share = row.get("pcnt-running")
            yield _Row(
                row["event"],
                str(row.get("unit") or ""),
                _count(str(row["counter-value"])),
                float(share) if isinstance(share, int | float) else None,
                float(row["metric-value"]) if row.get("metric-unit") == CPUS_UNIT else None,
            )


def _fields(text: str) -> Iterator[_Row]:
    """Yields the rows of `-x`: count, unit, event, running time in ns, percentage of the time. Columns for a
    core or a time may come first.
    """
    for line in text.splitlines():
        for separator in SEPARATORS:
            cells = [cell.strip() for cell in line.split(separator)]
            row = next((row for at in range(len(cells) - 4) if (row := _row_of(cells[at : at + 7]))), None)
            if row:
                yield row
                break


def _row_of(cells: list[str]) -> _Row | None:
    count, unit, event, running_ns, share, *metric = cells
    is_row = running_ns.isdecimal() and re.fullmatch(r"\d+[.,]\d+", share) and not re.match(r"[\d<]|$", event)
    if not is_row or not (count in ABSENT or re.fullmatch(r"\d+([.,]\d+)?", count)):
        return None
    cpus = _count(metric[0]) if metric[1:] == [CPUS_UNIT] else None
    return _Row(event, unit, _count(count), _number(share, is_count=False), cpus)


def _text(text: str) -> list[_Row]:
    rows: list[_Row] = []
    is_inside, has_times = False, False
    for line in text.splitlines():
        if INTERVALS.search(line):
            is_inside, has_times = True, True
        elif BEGIN.search(line):
            # The summary of `-I` contains the counts of all intervals once more.
            rows = [] if has_times else rows
            is_inside, has_times = True, False
        elif END.search(line):
            is_inside = False
        elif is_inside and (row := _row_of_line(line, has_time=has_times)):
            rows.append(row)
    return rows


def _row_of_line(line: str, *, has_time: bool) -> _Row | None:
    time = INTERVAL_TIME.match(line) if has_time else None
    found = LINE.fullmatch(line[time.end() :] if time else line)
    if found is None or (has_time and time is None):
        return None
    unit, share = found["unit"] or found["old_unit"] or "", found["share"]
    return _Row(
        found["event"],
        unit,
        None if found["count"] in ABSENT else _number(found["count"], is_count=not unit),
        _number(share, is_count=False) if share else None,
    )


def _count(text: str) -> float | None:
    """Returns a count of `-x` or `-j`, which has no separators of thousands."""
    try:
        return float(text.replace(",", "."))
    except ValueError:
        return None


def _number(text: str, *, is_count: bool) -> float:
    """Returns a number that perf has written in some locale. A count is whole; in other numbers, the last
    separator begins the decimals.
    """
    *whole, last = re.split(r"\D", text)
    if is_count or not whole:
        return float("".join([*whole, last]))
    return float(f"{''.join(whole)}.{last}")
