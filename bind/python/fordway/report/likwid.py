"""Reading what `likwid-perfctr` prints (`docs/reference/bench.md` says what is known of the form)."""

import csv
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

RUNTIME = re.compile(r"(Runtime \(RDTSC\)|RDTSC Runtime) \[s\]")
"""The row that says how long was counted, in a table of metrics or of events."""

THREAD = re.compile(r"(HWThread|Core) (\d+)")
"""The heading of a hardware thread's column, in versions from 5 on and before."""

COVERED_MIN = 0.99
"""The least share of a run that counters must cover; what is printed is rounded."""


class LikwidError(Exception):
    """The output cannot be used; the message says why and what to do."""


@dataclass
class Counted:
    """Events, added up over all hardware threads, and for how long they were counted."""

    name: str
    """The file's name."""
    runtime_s: float | None = None
    threads: list[str] = field(default_factory=list)
    events: dict[str, float] = field(default_factory=dict)

    def check_covers(self, elapsed_ns: int) -> None:
        """Raises `LikwidError` if less than the run was counted: a part says nothing about the whole."""
        elapsed_s = elapsed_ns / 1e9
        if self.runtime_s is None:
            raise LikwidError(
                f"{self.name} does not say how long was counted: choose a performance group with the metric "
                "'Runtime (RDTSC) [s]'"
            )
        if self.runtime_s < COVERED_MIN * elapsed_s:
            raise LikwidError(
                f"{self.name} covers {self.runtime_s:.3f} s of a run of {elapsed_s:.3f} s, so its counters "
                "are not used; wrap the whole command in likwid-perfctr, or count for longer (-S)"
            )


def read_counted(path: Path) -> Counted:
    """Reads the output in `path`, as tables or as CSV (`-O`). Raises `LikwidError`."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LikwidError(f"{path} cannot be read: {error}") from error
    counted = parse_counted(path.name, text)
    if not counted.events:
        raise LikwidError(
            f"{path} has no table of events: give what likwid-perfctr printed, with or without -O"
        )
    return counted


def parse_counted(name: str, text: str) -> Counted:
    """The tables in `text`, which may be between what the counted program printed; no events if there are
    none.
    """
    counted = Counted(name)
    heads: list[str] = []
    for cells in _rows(text):
        if cells[0] in ("Event", "Metric", "Region Info"):
            heads = cells
        elif cells[0] in ("TABLE", "STRUCT"):
            heads = []
        elif heads:
            _take(counted, heads, cells)
    return counted


def _rows(text: str) -> Iterable[list[str]]:
    """The cells of each line that has some: between bars in a table, between commas in CSV."""
    for line in text.splitlines():
        if line.startswith("|"):
            yield [cell.strip() for cell in line.strip().strip("|").split("|")]
        elif "," in line and not line.startswith("+"):
            yield [cell.strip() for cell in next(csv.reader([line]))]


def _take(counted: Counted, heads: list[str], cells: list[str]) -> None:
    """Takes a row of a table with a column for each hardware thread; those of sums and means repeat it."""
    columns = [at for at, head in enumerate(heads) if THREAD.fullmatch(head)]
    numbers = [number for at in columns if at < len(cells) and (number := _number(cells[at])) is not None]
    if not numbers:
        return
    if RUNTIME.fullmatch(cells[0]):
        # Use the minimum over all hardware threads and groups, because counts taken in turns cover only
        # their own turns.
        counted.runtime_s = min([*numbers, *([] if counted.runtime_s is None else [counted.runtime_s])])
    elif heads[0] == "Event":
        counted.threads = [heads[at] for at in columns]
        name = cells[0] if cells[0] not in counted.events else f"{cells[0]} ({cells[1]})"
        counted.events[name] = sum(numbers)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if number == number else None
