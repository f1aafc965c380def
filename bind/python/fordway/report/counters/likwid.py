"""Reader for the output of `likwid-perfctr` (`docs/reference/bench.md` describes the format)."""

import csv
import re
from collections.abc import Iterable

from fordway.report.counters.counted import Counted, CounterError

TOOL = "likwid-perfctr"

RUNTIME = re.compile(r"(Runtime \(RDTSC\)|RDTSC Runtime) \[s\]")
"""Names of the row with the duration of counting, in tables of metrics and in tables of events."""

THREAD = re.compile(r"(HWThread|Core) (\d+)")
"""Heading of a hardware thread's column, in version 5 or later (`HWThread`) and in earlier versions
(`Core`).
"""


def parse_counted(name: str, text: str) -> Counted:
    """Returns the counters in `text`, which may also contain output of the counted program.

    If `text` contains no tables, the result has no events.
    """
    counted = Counted(name, TOOL)
    heads: list[str] = []
    regions: list[str] = []
    for cells in _rows(text):
        if cells[0].startswith("Region ") and cells[0] != "Region Info":
            regions = _with_region(name, regions, cells[0])
        if cells[0] in ("Event", "Metric", "Region Info"):
            heads = cells
        elif cells[0] in ("TABLE", "STRUCT"):
            regions = _with_region(name, regions, *cells[1:2])
            heads = []
        elif heads:
            _take(counted, heads, cells)
    return counted


def _with_region(name: str, regions: list[str], heading: str = "") -> list[str]:
    """Returns the regions of the marker API up to `heading`. Raises `CounterError` if there are several
    regions.

    Each region has separate tables of counters, in which the events have the same names.
    """
    if not heading.startswith("Region "):
        return regions
    region = heading.removeprefix("Region ").split(",")[0].strip()
    if regions and region not in regions:
        raise CounterError(
            f"{name} has several regions of the marker API ({regions[0]}, {region}): give the output of one "
            "region, or count the whole command without -m"
        )
    return [region]


def _rows(text: str) -> Iterable[list[str]]:
    """Yields the cells of each line that has cells. The separator is a bar in tables, and a comma in CSV."""
    for line in text.splitlines():
        if line.startswith("|"):
            yield [cell.strip() for cell in line.strip().strip("|").split("|")]
        elif "," in line and not line.startswith("+"):
            yield [cell.strip() for cell in next(csv.reader([line]))]


def _take(counted: Counted, heads: list[str], cells: list[str]) -> None:
    """Adds a row that has a column for each hardware thread. Skips tables of sums and means, because these
    tables repeat the same counts.
    """
    columns = [at for at, head in enumerate(heads) if THREAD.fullmatch(head)]
    numbers = [number for at in columns if at < len(cells) and (number := _number(cells[at])) is not None]
    if not numbers:
        return
    if RUNTIME.fullmatch(cells[0]):
        # Use the minimum over all hardware threads and groups. If likwid-perfctr switches between several
        # groups, the counters of a group cover only the time when that group was active.
        counted.runtime_s = min([*numbers, *([] if counted.runtime_s is None else [counted.runtime_s])])
    elif heads[0] == "Event":
        counted.threads = [heads[at] for at in columns]
        name = cells[0] if cells[0] not in counted.events else f"{cells[0]} ({cells[1]})"
        # With three or more groups, the fixed counters occur in every group.
        again = sum(each == name or each.startswith(f"{name}, table ") for each in counted.events)
        name = f"{name}, table {again + 2}" if again else name
        counted.events[name] = sum(numbers)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if number == number else None
