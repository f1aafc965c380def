"""Readers for the output of wrk, wrk2 and h2load, which tables of likwid-perfctr may surround."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fordway.model.points import CACHE_LINE_BYTES, SIDES, MeasurementError, Points, from_records
from fordway.model.quantities import KINDS, parse_tool
from fordway.report.counters import Counted, CounterError, likwid

RUNNING = re.compile(r"^Running (\S+) test @ (\S+)", re.MULTILINE)
"""First line of the output of wrk and wrk2."""

H2LOAD = re.compile(r"^finished in (\S+), ([0-9]+(?:\.[0-9]+)?) req/s", re.MULTILINE)
EVENTS = {
    "cycles": ["CPU_CLK_UNHALTED_CORE"],
    "reference_cycles": ["CPU_CLK_UNHALTED_REF"],
    "evicted_bytes": ["L2_LINES_OUT_DEMAND_DIRTY", "L2_LINES_OUT_DIRTY_ALL", "L2_TRANS_L2_WB"],
}
"""Names of the counters in likwid-perfctr. Evictions are dirty cache lines that are evicted from L2 (L3EV in
the paper).
"""

CLOCK = re.compile(r"CPU clock:\s*([0-9]+(?:\.[0-9]+)?)\s*(MHz|GHz)")
HEAD_BYTES_MAX = 1_000
"""Maximum size of a response head. If the bytes read per request exceed a number in the URL by more than this
size, the number is not the object's size.
"""


def is_load(text: str) -> bool:
    """Returns whether `text` is the output of wrk, wrk2 or h2load."""
    return bool(RUNNING.search(text) or H2LOAD.search(text))


def read(name: str, text: str, statistic: str, size_bytes: float | None, server: Sequence[Path]) -> Points:
    """Returns the runs in `text`, with counters of the client and the server.

    The client's counters are in `text` if likwid-perfctr ran the load generator. The server's counters are in
    the files `server`. `size_bytes` is the size of the objects; if it is `None`, the size is taken from the
    output. Raises `MeasurementError`.
    """
    statistic = "mean" if statistic == "auto" else statistic
    clock = CLOCK.search(text)
    records = []
    for part in _parts(text):
        record = _wrk(name, part, statistic) if RUNNING.search(part) else _h2load(name, part, statistic)
        if size_bytes is not None:
            record["size_bytes"] = size_bytes
        elif "size_bytes" not in record:
            record["size_bytes"] = _size(name, part, record)
        mhz = float(clock[1]) * KINDS["frequency"][clock[2]] if clock else None
        records.append(record | _counters("client", _parse_counted(name, part), record, mhz))
    if server and len(server) != len(records):
        raise MeasurementError(
            f"{len(server)} files of server counters are given for {len(records)} runs in {name}"
        )
    for record, path in zip(records, server, strict=False):
        record |= _server_counters(path, record)
    return from_records(records, statistic)


def _parts(text: str) -> Iterator[str]:
    """Yields the text of each run, which starts with the first line of the load generator."""
    starts = [found.start() for found in RUNNING.finditer(text)]
    if not starts:
        starts = [found.start() for found in re.finditer(r"^starting benchmark", text, re.MULTILINE)] or [0]
    ends = [*starts[1:], len(text)]
    return (text[start:end] for start, end in zip(starts, ends, strict=True))


def _wrk(name: str, part: str, statistic: str) -> dict[str, Any]:
    running = _need(RUNNING, part, name, "Running ... test @ URL")
    done = _need(r"(\d+) requests in (\S+), (\S+) read", part, name, "N requests in T, M read")
    shape = _need(r"(\d+) threads and (\d+) connections", part, name, "N threads and N connections")
    errors = re.search(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", part)
    status = re.search(r"Non-2xx or 3xx responses: (\d+)", part)
    pattern = r"^\s*Latency\s+(\S+)" if statistic == "mean" else r"^\s*50(?:\.0+)?%\s+(\S+)"
    latency = _need(pattern, part, name, "Latency" if statistic == "mean" else "50% (run it with --latency)")
    rate = _need(r"Requests/sec:\s+([0-9]+(?:\.[0-9]+)?)", part, name, "Requests/sec")
    return {
        "source": f"{name} {running[2]}",
        "time_us": _time(name, latency[1]),
        "requests": float(done[1]),
        "duration_us": _time(name, done[2]),
        "read_bytes": parse_tool(done[3]),
        "threads": float(shape[1]),
        "connections": float(shape[2]),
        "rate_per_s": float(rate[1]),
        "errors": float(sum(map(int, errors.groups()[:3])) if errors else 0)
        + float(status[1] if status else 0),
        "timeouts": float(errors[4]) if errors else 0.0,
    }


def _h2load(name: str, part: str, statistic: str) -> dict[str, Any]:
    finished = _need(H2LOAD, part, name, "finished in")
    asked = _need(
        r"requests: .*?(\d+) done, (\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout",
        part,
        name,
        "requests",
    )
    sizes = re.findall(r"\((\d+)\) (total|headers|data)", re.sub(r"headers \([^)]*\)", "headers", part))
    traffic = {what: float(count) for count, what in sizes}
    if "total" not in traffic or "data" not in traffic:
        raise MeasurementError(f"{name}: the line 'traffic' of h2load lacks its bytes in parentheses")
    clients = sum(int(count) for count in re.findall(r"(\d+) total client\(s\)", part))
    succeeded = float(asked[2])
    return {
        "source": f"{name} h2load",
        "time_us": _time(name, _h2load_time(name, part, "mean" if statistic == "mean" else "median")),
        "requests": succeeded,
        "duration_us": _time(name, finished[1]),
        "rate_per_s": float(finished[2]),
        "read_bytes": traffic["total"],
        "body_bytes": traffic["data"],
        "size_bytes": traffic["data"] / succeeded if succeeded else float("nan"),
        "connections": float(clients) if clients else None,
        "errors": float(asked[3]) + float(asked[4]),
        "timeouts": float(asked[5]),
    }


def _h2load_time(name: str, part: str, column: str) -> str:
    """Returns a cell of `time for request` (or `request`).

    The header determines the position, because versions of h2load differ in their columns.
    """
    head = _need(r"^\s*(min\s+.*sd.*)$", part, name, "a header with min, max, mean, sd")
    row = _need(r"^(?:time for )?request\s*:\s+(.*)$", part, name, "time for request")
    names, cells = re.findall(r"\+/-\s*sd|\S+", head[1]), row[1].split()
    if column not in names or names.index(column) >= len(cells):
        raise MeasurementError(f"{name}: this h2load prints no {column} of the time for request")
    return cells[names.index(column)]


def _need(pattern: str | re.Pattern[str], part: str, name: str, what: str) -> re.Match[str]:
    found = (re.compile(pattern, re.MULTILINE) if isinstance(pattern, str) else pattern).search(part)
    if found is None:
        raise MeasurementError(f"{name} lacks the line {what!r}: was the output cut off?")
    return found


def _time(name: str, text: str) -> float:
    value = parse_tool(text, KINDS["time"])
    if value is None:
        raise MeasurementError(f"{name}: {text!r} is not a time with a unit")
    return value


def _size(name: str, part: str, record: dict[str, Any]) -> float:
    """Returns the number in the URL that is consistent with the bytes read per request, as the size of the
    objects.

    The URL is used because wrk does not print the size of the objects. Raises `MeasurementError` if no number
    is consistent.
    """
    each = record["read_bytes"] / record["requests"] if record["read_bytes"] and record["requests"] else None
    if each is None:
        return float("nan")
    url = _need(RUNNING, part, name, "Running")[2]
    numbers = [float(digits) for digits in re.findall(r"\d+", urlsplit(url).path)]
    named = [number * unit for number in numbers for unit in (1, 1e3, 1024, 1e6, 1024**2)]
    near = [size for size in named if -0.01 * size <= each - size <= HEAD_BYTES_MAX]
    if not near:
        raise MeasurementError(
            f"{name}: {each:,.0f} B were read for each request, head and body, and the URL {url} does not "
            "state the size of the body; give it with --object-size"
        )
    return min(near, key=lambda size: abs(each - size))


def _server_counters(path: Path, record: dict[str, Any]) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise MeasurementError(f"{path} cannot be read: {error}") from error
    counted = _parse_counted(path.name, text)
    if not counted.events:
        raise MeasurementError(
            f"{path} has no table of events: give the output of likwid-perfctr for the server"
        )
    clock = CLOCK.search(text)
    return _counters(
        "server", counted, record, float(clock[1]) * KINDS["frequency"][clock[2]] if clock else None
    )


def _counters(side: str, counted: Counted, record: dict[str, Any], clock_mhz: float | None) -> dict[str, Any]:
    """Returns the counters of a run, per request."""
    assert side in SIDES
    found: dict[str, Any] = {f"{side}_clock_mhz": clock_mhz}
    if counted.runtime_s is not None:
        found[f"{side}_runtime_us"] = counted.runtime_s * 1e6
    for column, names in EVENTS.items():
        name = next((name for name in names if name in counted.events), None)
        if name is not None and record["requests"]:
            scale = CACHE_LINE_BYTES if column == "evicted_bytes" else 1
            found[f"{side}_{column}"] = counted.events[name] * scale / record["requests"]
    return found


def _parse_counted(name: str, text: str) -> Counted:
    try:
        return likwid.parse_counted(name, text)
    except CounterError as error:
        raise MeasurementError(str(error)) from error
