"""Reader for the JSON files of PAPI's high-level API, version 6 and later (`papi_hl_output/rank_*.json`)."""

import json
from collections.abc import Iterator
from typing import Any

from fordway.report.counters.counted import Counted

TOOL = "PAPI"

TIME = "real_time_nsec"
"""Name of the wall time of a region, in ns."""

NO_EVENTS = ("name", "parent_region_id", "region_count", TIME, "cycles")
"""Values of a region that count no event. `cycles` is the elapsed time in cycles of the time-stamp counter,
even while the program waits; the event for cycles of the program is `PAPI_TOT_CYC`.
"""


def parse_counted(name: str, text: str) -> Counted:
    """Returns the counters in `text`: the sums over all threads and over all regions that are in no other
    region. If `text` is not a file of PAPI, the result has no events.
    """
    counted = Counted(name, TOOL)
    longest_ns = 0.0
    for thread, regions in _threads(text):
        elapsed_ns = 0.0
        for region in regions:
            elapsed_ns += _number(region.get(TIME)) or 0.0
            for event, value in region.items():
                number = None if event in NO_EVENTS else _number(value)
                if number is not None:
                    counted.events[event] = (counted.events.get(event) or 0.0) + number
        counted.threads.append(f"thread {thread}")
        longest_ns = max(longest_ns, elapsed_ns)
    if longest_ns:
        counted.runtime_s = longest_ns / 1e9
        counted.notes.append("the counts cover only the regions that the program marks")
    return counted


def _threads(text: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yields each thread with its outermost regions. Until version 6.0, threads and regions are lists."""
    try:
        threads = json.loads(text)["threads"]
        if isinstance(threads, list):
            for thread in threads:
                yield str(thread["id"]), [region for each in thread["regions"] for region in each.values()]
        else:
            for thread, content in threads.items():
                yield thread, [each for each in content["regions"].values() if _is_outermost(each)]
    except (ValueError, KeyError, TypeError, AttributeError):
        return


def _is_outermost(region: dict[str, Any]) -> bool:
    return str(region.get("parent_region_id", "-1")) == "-1"


def _number(value: object) -> float | None:
    """Returns a count, which PAPI writes as text. A region that was read in between has its total in
    `region_value`.
    """
    if isinstance(value, dict):
        value = value.get("region_value")
    try:
        return float(value) if isinstance(value, str | int | float) else None
    except ValueError:
        return None
