"""Counts of events during a run, as a tool for counters reports them."""

from dataclasses import dataclass, field

COVERED_MIN = 0.99
"""Minimum share of a run that counters must cover. The limit is below 1 because printed times are rounded."""


class CounterError(Exception):
    """The output of a tool is unusable. The message gives the reason and the remedy."""


@dataclass
class Counted:
    """Events, summed over all hardware threads, and the duration of counting."""

    name: str
    """Name of the file."""
    tool: str
    """Name of the tool."""
    runtime_s: float | None = None
    """Duration of counting, or `None` if the output does not state it."""
    threads: list[str] = field(default_factory=list)
    """Names of the counted threads. Empty if the output does not name them."""
    events: dict[str, float | None] = field(default_factory=dict)
    """Count of each event, or `None` if the processor or the kernel cannot count it."""
    notes: list[str] = field(default_factory=list)
    """Sentences about what the counts include."""

    def check_covers(self, elapsed_ns: int) -> None:
        """Raises `CounterError` if the counters do not cover the whole run. Counters of a part of the run do
        not represent the run.
        """
        elapsed_s = elapsed_ns / 1e9
        if self.runtime_s is None:
            raise CounterError(f"{self.name} does not state the time of counting: {TIME_ADVICE[self.tool]}")
        if self.runtime_s < COVERED_MIN * elapsed_s:
            raise CounterError(
                f"{self.name} covers {self.runtime_s:.3f} s of a run of {elapsed_s:.3f} s, so its counters "
                f"are not used; wrap the whole command in {self.tool}, or count for longer"
            )


TIME_ADVICE = {
    "likwid-perfctr": "choose a performance group with the metric 'Runtime (RDTSC) [s]'",
    "perf stat": "add the event duration_time (-e duration_time,...), or give the output without -x and -j",
    "PAPI": "write the output with the high-level API of PAPI 6 or later",
}
"""What makes each tool state the duration of counting."""
