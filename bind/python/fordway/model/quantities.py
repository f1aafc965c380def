"""Numbers with units.

Inside the package, times are in µs, sizes in bytes, frequencies in MHz (cycles per µs) and bandwidths in
bytes per µs (MB/s), so that ratios need no factors.
"""

import math
import re

from fordway.model.points import MeasurementError

KINDS: dict[str, dict[str, float]] = {
    # Unicode has two characters for micro: the micro sign (U+00B5), and the Greek letter (U+03BC), which many
    # tools and keyboards produce.
    "time": {
        "ns": 1e-3,
        "us": 1,
        "µs": 1,
        "\u03bcs": 1,
        "ms": 1e3,
        "s": 1e6,
        "m": 60e6,
        "min": 60e6,
        "h": 3600e6,
    },
    "size": {
        "B": 1,
        **{f"{letter}B": 1000.0**power for power, letter in enumerate("kMGT", 1)},
        **{f"{letter}iB": 1024.0**power for power, letter in enumerate("KMGT", 1)},
    },
    "frequency": {"Hz": 1e-6, "kHz": 1e-3, "MHz": 1, "GHz": 1e3},
    "rate": {"/s": 1},
}
KINDS["bandwidth"] = {
    **{f"{unit}/s": factor * 1e-6 for unit, factor in KINDS["size"].items()},
    **{f"{unit}/us": factor for unit, factor in KINDS["size"].items()},
    **{f"{unit}bit/s": factor / 8e6 for unit, factor in (("", 1), ("k", 1e3), ("M", 1e6), ("G", 1e9))},
}
EXAMPLES = {
    "time": "60us or 0.06ms",
    "size": "64KiB or 1MB",
    "frequency": "2.49GHz",
    "bandwidth": "5900MB/s or 1Gbit/s",
    "rate": "2000/s",
}

TOOL_UNITS: dict[str, float] = {"": 1, "B": 1, "k": 1e3, "M": 1e6, "G": 1e9} | {
    f"{letter}B": 1024.0**power for power, letter in enumerate("KMGTP", 1)
}
"""Units in the output of wrk, wrk2 and h2load. Counts use powers of 1,000. Bytes use powers of 1,024,
although their units are called KB and MB.
"""

NUMBER = r"([0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?)"

GROUPED = r"(?<![\d.,])[1-9]\d{0,2}(?:,\d{3})+(?![\d,])"
"""Digits in groups of three. Any other comma may be a decimal comma, and is not part of a number."""


def parse(text: str, kind: str) -> float:
    """Returns the quantity in `text`, in the package's unit. Raises `MeasurementError` if the unit is missing
    or unknown.
    """
    grouped = re.sub(GROUPED, lambda digits: digits[0].replace(",", ""), text)
    found = re.fullmatch(rf"\s*{NUMBER}\s*(\S*)\s*", grouped)
    units = KINDS[kind]
    if found is None or found[2] not in units:
        raise MeasurementError(
            f"{text!r} is not a {kind}: write a number and a unit, such as {EXAMPLES[kind]}"
        )
    value = float(found[1]) * units[found[2]]
    if math.isinf(value):
        raise MeasurementError(f"{text!r} is too large")
    return value


def parse_tool(text: str, units: dict[str, float] = TOOL_UNITS) -> float | None:
    """Returns a number in the output of a load generator (`1.17GB`, `82.65us`), or `None` if `text` is not a
    number.
    """
    found = re.fullmatch(rf"-?{NUMBER}([A-Za-z]*)", text.strip())
    return float(found[1]) * units[found[2]] if found and found[2] in units else None
