"""Detects impossible values. A run with an impossible value was measured or written incorrectly."""

from collections.abc import Iterator
from typing import Any

BYTES_PER_S_MAX = 16 * 2**40
"""Maximum plausible throughput, which exceeds the memory bandwidth of any node."""

COUNTED_MAX = 1.1
"""Maximum ratio of CPU time to the total time of all processors. The limit exceeds 1 because counters are
read one after another.
"""

COUNTED_MIN = 100
"""Minimum number of operations for the check of CPU time. With fewer operations, CPU time is too coarse."""

QUANTILES = ("min_ns", "p50_ns", "p90_ns", "p99_ns", "p999_ns", "max_ns")


def impossible(info: dict[str, Any]) -> list[str]:
    """Returns a sentence for each impossible value in a run's summaries."""
    return [
        f"{row['phase']} on {row['lane']}: {problem}"
        for row in info["summaries"]
        for problem in _problems(row, info["machine"]["cpus"], info["kind"])
    ]


def _problems(row: dict[str, Any], cpus: int, kind: str) -> Iterator[str]:
    if (row["bytes_per_s"] or 0) > BYTES_PER_S_MAX:
        yield f"bytes_per_s: {row['bytes_per_s'] / 2**20:,.0f} MiB/s is faster than any memory"
    cpu_ns = (row["client_cpu_ns_per_op"] or 0) + (row["server_cpu_ns_per_op"] or 0)
    processors = cpu_ns * (row["ops_per_s"] or 0) / 1e9
    # In other kinds of runs, CPU time and rates cover different periods, or several machines.
    is_counted = kind == "compare" and row["operations"] >= COUNTED_MIN
    if is_counted and processors > COUNTED_MAX * cpus:
        said = f"{processors:.2f} processors were busy on a machine of {cpus}"
        yield f"client_cpu_ns_per_op, server_cpu_ns_per_op: {said}"
    latency = row["latency"] or {}
    # Tables of other projects contain only some of the quantiles.
    times = [latency[name] for name in QUANTILES if latency.get(name) is not None]
    if times != sorted(times):
        yield "latency: the quantiles of its latencies are not in order"
