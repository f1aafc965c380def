"""Formats numbers as readable text. Sizes use powers of 1,024, and times use powers of 1,000.

A value that was not measured is `None` in a run. For this value, these functions return `NOT_MEASURED`, never
0.
"""

NOT_MEASURED = "not measured"


def digits(value: float) -> str:
    """Returns a number with at least three significant digits and all digits of its integer part: `0.123`,
    `12.3`, `12,345`.
    """
    if value == 0:
        return "0"
    for bound, decimals in ((99.95, 0), (9.995, 1), (0.9995, 2)):
        if abs(value) >= bound:
            return f"{value:,.{decimals}f}"
    return f"{value:.3g}"


def count(value: int) -> str:
    """Returns a count: `12,345`."""
    return f"{value:,}"


def duration(value_ns: float | None) -> str:
    """Returns a time: `1,500` becomes `1.50 µs`."""
    if value_ns is None:
        return NOT_MEASURED
    for bound, divisor, unit in ((1e9, 1e9, "s"), (1e6, 1e6, "ms"), (1e3, 1e3, "µs")):
        if value_ns >= bound:
            return f"{digits(value_ns / divisor)} {unit}"
    return f"{digits(value_ns)} ns"


def size(value_bytes: float | None) -> str:
    """Returns a size: `1,536` becomes `1.50 KiB`."""
    if value_bytes is None:
        return NOT_MEASURED
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if value_bytes >= 1024**power:
            return f"{digits(value_bytes / 1024**power)} {unit}"
    return f"{digits(value_bytes)} B"


def rate(value_per_s: float | None) -> str:
    """Returns a rate without its unit: `12,345`."""
    return NOT_MEASURED if value_per_s is None else digits(value_per_s)


def mib_per_s(value_bytes_per_s: float | None) -> str:
    """Returns bytes per second as MiB per second, without the unit."""
    return NOT_MEASURED if value_bytes_per_s is None else digits(value_bytes_per_s / 1024**2)


def cpu_us(value_ns: float | None) -> str:
    """Returns CPU time in microseconds, without the unit."""
    return NOT_MEASURED if value_ns is None else digits(value_ns / 1e3)


def ratio(value: float) -> str:
    """Returns a relative speed: `0.83×`."""
    if 0.1 <= value < 100:
        return f"{value:.2f}×"
    return f"{value:.3f}×" if 0.01 <= value < 0.1 else f"{digits(value)}×"
