"""The units and scores of IO500."""

from typing import Any

SCORES = [
    ("bandwidth_gib_per_s", "bandwidth", "GiB/s"),
    ("metadata_kiops", "IOPS", "kIOPS"),
    ("total", "total", ""),
]
"""Field, name and unit of each score."""


def unit(phase: str) -> str:
    """Returns the unit of a phase."""
    return "GiB/s" if phase.startswith("ior") else "kIOPS"


def figure(row: dict[str, Any]) -> float | None:
    """Returns the rate of a summary, in the unit of its phase, or `None` if the rate was not measured."""
    rate, divisor = (
        (row["bytes_per_s"], 1024**3) if unit(row["phase"]) == "GiB/s" else (row["ops_per_s"], 1e3)
    )
    return None if rate is None else rate / divisor
