"""IO500's units and scores."""

from typing import Any

SCORES = [
    ("bandwidth_gib_per_s", "bandwidth", "GiB/s"),
    ("metadata_kiops", "IOPS", "kIOPS"),
    ("total", "total", ""),
]
"""Each score's field, its name and its unit."""


def unit(phase: str) -> str:
    """What a phase is measured in."""
    return "GiB/s" if phase.startswith("ior") else "kIOPS"


def figure(row: dict[str, Any]) -> float | None:
    """A summary in its phase's unit."""
    rate, divisor = (
        (row["bytes_per_s"], 1024**3) if unit(row["phase"]) == "GiB/s" else (row["ops_per_s"], 1e3)
    )
    return None if rate is None else rate / divisor
