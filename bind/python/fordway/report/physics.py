"""Detects impossible figures: a run with such a figure was measured or written incorrectly."""

from collections.abc import Iterator
from typing import Any

BYTES_PER_S_MAX = 16 * 2**40
"""More than the memory of any node delivers."""

COUNTED_MAX = 1.1
"""CPU time may exceed all processors' time by this factor, because counters are read one after another."""

COUNTED_MIN = 100
"""With fewer operations, CPU time is too coarse."""

QUANTILES = ("min_ns", "p50_ns", "p90_ns", "p99_ns", "p999_ns", "max_ns")


def impossible(info: dict[str, Any]) -> list[str]:
    """Returns the impossible figures in a run's summaries, one sentence each."""
    return [
        f"{row['phase']} on {row['lane']}: {problem}"
        for row in info["summaries"]
        for problem in _problems(row, info["machine"]["cpus"], info["kind"])
    ]


def _problems(row: dict[str, Any], cpus: int, kind: str) -> Iterator[str]:
    if (row["bytes_per_s"] or 0) > BYTES_PER_S_MAX:
        yield f"{row['bytes_per_s'] / 2**20:,.0f} MiB/s is faster than any memory"
    cpu_ns = (row["client_cpu_ns_per_op"] or 0) + (row["server_cpu_ns_per_op"] or 0)
    processors = cpu_ns * (row["ops_per_s"] or 0) / 1e9
    # In other kinds of run, CPU time and rates cover different spans, or several machines.
    is_counted = kind == "compare" and row["operations"] >= COUNTED_MIN
    if is_counted and processors > COUNTED_MAX * cpus:
        yield f"{processors:.2f} processors were busy on a machine of {cpus}"
    latency = row["latency"] or {}
    # Tables of other projects have some of the quantiles only.
    times = [latency[name] for name in QUANTILES if latency.get(name) is not None]
    if times != sorted(times):
        yield "the quantiles of its latencies are not in order"
