"""Readers for hardware counters: the output of `likwid-perfctr`, `perf stat` and PAPI.
`docs/reference/bench.md` describes the formats.

`counted` defines the result. Each tool has a module.
"""

from pathlib import Path

from fordway.report.counters import likwid, papi, perf
from fordway.report.counters.counted import Counted, CounterError

__all__ = ["Counted", "CounterError", "read_counted"]


def read_counted(path: Path) -> Counted:
    """Returns the counters in the file `path`, which one of the tools has written; the content shows which.
    Raises `CounterError`.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CounterError(f"{path} cannot be read: {error}") from error
    for parse in (papi.parse_counted, perf.parse_counted, likwid.parse_counted):
        counted = parse(path.name, text)
        if counted.events:
            return counted
    raise CounterError(
        f"{path} has no table of events: give the output of likwid-perfctr (with or without -O), of perf "
        "stat (as text, with -x or with -j), or the JSON file of PAPI's high-level API"
    )
