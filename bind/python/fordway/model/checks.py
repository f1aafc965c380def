"""Checks that reject impossible measurements. Each message names the row, the problem and the remedy."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from fordway.model.points import CONNECTIONS, RATE, REQUESTS, SIDES, SIZE, TIME, MeasurementError, Points

COVERED_MIN = 0.99
"""Minimum share of a run that counters must cover. The limit is below 1 because printed times are rounded."""

COVERED_MAX = 1.1
CLOCK_MHZ = (200, 7_000)
"""Clock frequencies that processor cores can have."""

LINK_SLACK = 1.2
"""Maximum ratio of a throughput to the bandwidth of the link. The ratio may exceed 1, because the bandwidth
is measured. A larger ratio indicates a wrong unit.
"""

IDLE_SHARE = 0.01
HEAD_BYTES_MAX = 4_096
"""Maximum number of bytes that are counted in addition to a body: the response's head and, in some counts,
the framing.
"""
SIZE_MAX, TIME_MAX_US = 2.0**63, 30 * 86_400e6
"""Upper limits of plausible sizes and times: 8 EiB and 30 days."""
TIME_MIN_US = 0.05
"""Minimum plausible time, which is shorter than the time of a message between two cores. The unit of a
smaller time differs from the unit in the name of its column.
"""
COPIED_MAX_BYTES_PER_US = 1e6
"""Maximum plausible rate of one request: 1 TB/s, which exceeds the memory bandwidth of any node."""
GAPS_MAX = 0.2
"""Maximum share of rows that are left out because they lack a counter. If a larger share lacks the counter,
the counter is not used.
"""
SENTENCES_MAX = 5
"""Maximum number of rows that a message names individually. One mistake often affects all rows."""

COPIES_MAX = 0.1
"""Share of the rows that may have exactly the values of another row. Rounded times are sometimes equal."""

COUNTED = ("cycles", "reference_cycles", "evicted_bytes", "clock_mhz", "mhz")

CALIBRATION_US = 10e6
"""Calibration time at the start of wrk2. wrk2 does not count requests during this time."""


Row = Mapping[str, float]
"""A row of measurements. The values are NumPy numbers, for which a division by 0 is infinite or NaN."""


@dataclass(frozen=True)
class LoadProperties:
    """Properties of the network and the load that are not part of the measurements. `None` means unknown."""

    network_bytes_per_us: float | None = None
    asked_rate_per_s: float | None = None


def checked(points: Points, load: LoadProperties, *, skip_bad: bool) -> Points:
    """Returns the rows that pass the checks, without impossible counters. `Points.refused` contains the
    reasons for refused counters.

    Raises `MeasurementError` for impossible rows, or omits these rows if `skip_bad` is true.
    """
    if not len(points):
        raise MeasurementError("there are no rows: nothing was measured")
    _refuse_uncovered(points)
    _refuse_swapped(points)
    _refuse_units(points)
    bad = pd.Series(False, index=points.rows.index)
    sentences = []
    with np.errstate(divide="ignore", invalid="ignore"):
        for at, row in enumerate(_each(points.rows.drop(columns="source"))):
            for problem in problems(row, load, points.statistic):
                bad.iat[at] = True
                sentences.append(f"{points.rows['source'].iat[at]}: {problem}")
    _warn_long(points)
    _warn_idle(points)
    _warn_copied(points)
    if not sentences:
        return _without_gaps(points)
    if not skip_bad or bad.all():
        raise MeasurementError(_listed(sentences, "" if bad.all() else "; --skip-bad omits such rows"))
    points.notes.append(_listed(sentences, "") + f" [{int(bad.sum())} row(s) left out]")
    return _without_gaps(points.where(~bad))


def _each(rows: pd.DataFrame) -> Iterator[dict[str, np.float64]]:
    """Yields each row as a dictionary. With many rows, a pandas Series for each row would take most of the
    time.
    """
    columns = [rows[name].to_numpy() for name in rows]
    for values in zip(*columns, strict=True):
        yield dict(zip(rows, values, strict=True))


def _without_gaps(points: Points) -> Points:
    """Returns the points without the rows that lack a counter, if nearly all rows have this counter."""
    rows = points.rows
    counters = [f"{side}_{name}" for side in SIDES for name in COUNTED]
    gaps = [name for name in counters if 0 < rows[name].isna().sum() <= GAPS_MAX * len(rows)]
    lacking = rows[gaps].isna().any(axis=1) if gaps else pd.Series(False, index=rows.index)
    if not lacking.any() or lacking.mean() > GAPS_MAX:
        return points
    named = ", ".join(rows["source"][lacking].head(SENTENCES_MAX))
    points.notes.append(
        f"{int(lacking.sum())} row(s) without all counters are left out ({named}), so that models of the "
        "counters can be compared with the others"
    )
    return points.where(~lacking)


def _listed(sentences: list[str], then: str) -> str:
    more = len(sentences) - SENTENCES_MAX
    rest = f"; and {more} more like these" if more > 0 else ""
    return "; ".join(sentences[:SENTENCES_MAX]) + rest + then


def problems(row: Row, load: LoadProperties, statistic: str = "mean") -> Iterator[str]:
    """Yields the problems of a row, as sentences without a full stop."""
    yield from _not_measured(row)
    yield from _failed(row)
    yield from _saturated(row, load, statistic)
    yield from _clocks(row)
    yield from _busy(row)
    yield from _bytes(row, load)


def _not_measured(row: Row) -> Iterator[str]:
    for column, what in ((SIZE, "the size"), (TIME, "the time")):
        if not np.isfinite(row[column]):
            yield f"{what} is missing or not a number"
    if row[SIZE] < 0:
        yield f"the size is {row[SIZE]:g} B, which is below zero"
    if row[TIME] <= 0:
        yield f"the time is {row[TIME]:g} µs; a request takes longer than nothing"
    if row[SIZE] > SIZE_MAX or row[TIME] > TIME_MAX_US:
        yield f"{row[SIZE]:,.3g} B in {row[TIME]:,.3g} µs is beyond any request: check the units"
    if row[REQUESTS] <= 0:
        yield "no request was answered, so there is nothing to divide counters by"
    for column in (
        f"{side}_{name}" for side in SIDES for name in ("cycles", "reference_cycles", "evicted_bytes")
    ):
        if row[column] < 0 or (column.endswith("cycles") and row[column] == 0):
            yield f"{column} is {row[column]:g}: it was not counted"


def _failed(row: Row) -> Iterator[str]:
    if row["timeouts"] > 0:
        yield f"{row['timeouts']:,.0f} requests timed out, and their durations are not in the times"
    if row["errors"] > 0:
        yield f"{row['errors']:,.0f} requests failed, and their bytes and cycles are in the counters"


def _saturated(row: Row, load: LoadProperties, statistic: str) -> Iterator[str]:
    """Yields a problem if the load saturated the server.

    By Little's law, the number of requests in flight cannot exceed the number of connections, unless the
    latency includes time in a queue.
    """
    under_way = row[RATE] * row[TIME] / 1e6
    asked_per_s = load.asked_rate_per_s or row["asked_rate_per_s"]
    expected = _expected(row, asked_per_s)
    if statistic == "mean" and under_way > 1.1 * row[CONNECTIONS]:
        yield (
            f"saturated: {row[RATE]:,.1f} requests/s of {row[TIME] / 1e6:.3g} s each are {under_way:,.0f} "
            f"under way on {row[CONNECTIONS]:,.0f} connections, so the times count from intended starts "
            f"that were missed, and reflect the duration of the run{expected}; ask for a lower rate (or "
            "check the unit of the times)"
        )
    elif row[RATE] < 0.97 * asked_per_s:
        yield (
            f"saturated: {row[RATE]:,.1f} of the {asked_per_s:,.0f} requested requests/s were answered, "
            f"so the times reflect the duration of the run{expected}; ask for a lower rate"
        )


def saturated_mean_us(row: Row, asked_rate_per_s: float) -> float:
    """Returns the mean latency that wrk2 reports for a server far below the requested rate.

    wrk2 measures latency from intended starts. The backlog grows linearly, and is counted from
    `CALIBRATION_US` to the end. Returns NaN if the duration is unknown.
    """
    return (1 - row[RATE] / asked_rate_per_s) * (duration_us(row) + CALIBRATION_US) / 2


def _expected(row: Row, asked_per_s: float) -> str:
    expected_us = saturated_mean_us(row, asked_per_s)
    return (
        ""
        if pd.isna(expected_us)
        else f" ((1 - rate/asked) x (duration + 10 s)/2 = {expected_us / 1e6:.3g} s)"
    )


def _clocks(row: Row) -> Iterator[str]:
    low, high = CLOCK_MHZ
    for side in SIDES:
        clock, ratio = row[f"{side}_clock_mhz"], row[f"{side}_cycles"] / row[f"{side}_reference_cycles"]
        working = "frequency while it worked"
        for mhz, what in ((clock, "clock"), (ratio * clock, working), (row[f"{side}_mhz"], working)):
            if not pd.isna(mhz) and not low <= mhz <= high:
                yield (
                    f"the {side}'s {what} is {mhz:,.0f} MHz, which no processor has: check the counters "
                    "and their units"
                )


def _busy(row: Row) -> Iterator[str]:
    """Yields a problem if the client's threads worked longer than the run lasted."""
    busy_us = row["client_reference_cycles"] * row[REQUESTS] / row["client_clock_mhz"]
    could_us = row["threads"] * max(row["client_runtime_us"], duration_us(row))
    if busy_us > 1.1 * could_us:
        yield (
            f"the client's {row['threads']:,.0f} thread(s) cannot have worked for {busy_us / 1e6:,.0f} s "
            f"within {could_us / 1e6:,.0f} s: check the counters, the clock and the number of requests"
        )


def _bytes(row: Row, load: LoadProperties) -> Iterator[str]:
    for column in ("body_bytes", "read_bytes"):
        each = row[column] / row[REQUESTS]
        # The counters also include parts of responses to requests that are not counted.
        slack = 0.02 + 2 * (row[CONNECTIONS] if row[CONNECTIONS] > 0 else 1) / row[REQUESTS]
        if each < row[SIZE] * (1 - slack) - 1 or each > row[SIZE] * (1 + slack) + HEAD_BYTES_MAX:
            yield (
                f"the size is {row[SIZE]:,.0f} B but {each:,.0f} B were read for each request: check the "
                "unit of the size"
            )
    if load.network_bytes_per_us is None:
        return
    carried = max(row[SIZE] / row[TIME], row[SIZE] * row[RATE] / 1e6 if row[RATE] > 0 else 0)
    if carried > LINK_SLACK * load.network_bytes_per_us:
        yield (
            f"{carried:,.0f} MB/s are more than the link's {load.network_bytes_per_us:,.0f} MB/s: check "
            "the units of sizes, times and the bandwidth"
        )


def duration_us(row: Row) -> float:
    """Returns the duration of the run, in µs, or NaN if it is unknown."""
    told = row["duration_us"]
    return told if not pd.isna(told) else 1e6 * row[REQUESTS] / row[RATE] if row[RATE] > 0 else float("nan")


def _refuse_uncovered(points: Points) -> None:
    """Discards counters that do not cover the whole run, because they are divided by all requests of the
    run.
    """
    rows = points.rows
    durations = rows.apply(duration_us, axis=1)
    for side in SIDES:
        runtimes = rows[f"{side}_runtime_us"]
        counted = rows[f"{side}_cycles"].notna() | rows[f"{side}_evicted_bytes"].notna()
        short = counted & (runtimes < COVERED_MIN * durations)
        if not short.any():
            continue
        at = short.idxmax()
        points.refused.append(
            f"the {side}'s counters cover {runtimes[at] / 1e6:.2f} s of a run of {durations[at] / 1e6:.2f} "
            f"s ({rows['source'][at]}; {int(short.sum())} of {len(rows)} rows), so they are not used; "
            "count for the whole run"
        )
        columns = [f"{side}_{name}" for name in ("cycles", "reference_cycles", "evicted_bytes")]
        points.rows.loc[short, columns] = float("nan")


def _refuse_swapped(points: Points) -> None:
    """Raises `MeasurementError` if sizes and times are swapped.

    Sizes are usually powers of two, but times are not. Sizes with fractions are no evidence, because they may
    be multiples of a larger unit, such as KiB, or means.
    """
    sizes, times = points.rows[SIZE].dropna(), points.rows[TIME].dropna()
    if len(sizes) < SENTENCES_MAX or len(times) < SENTENCES_MAX:
        return
    if _all_round(times) and not _all_round(sizes):
        raise MeasurementError(
            "the sizes look like times and the times like sizes "
            f"({sizes.iloc[0]:,g} B in {times.iloc[0]:,g} µs): swap the two columns, or correct their names"
        )


def _refuse_units(points: Points) -> None:
    """Raises `MeasurementError` if a time is too short for its declared unit.

    A wrong unit affects the whole column, even if only a few rows reveal it. These rows must not be omitted.
    """
    for at, (size, time) in enumerate(zip(points.rows[SIZE], points.rows[TIME], strict=True)):
        problem = None
        if 0 < time < TIME_MIN_US:
            problem = (
                f"the time is {time:.3g} µs, less than a message between two cores takes: check its unit"
            )
        elif time > 0 and SIZE_MAX >= size > COPIED_MAX_BYTES_PER_US * time:
            problem = (
                f"{size:,.3g} B in {time:,.3g} µs is faster than any memory copy: check the units of sizes "
                "and times"
            )
        if problem:
            raise MeasurementError(f"{points.rows['source'].iat[at]}: {problem} of the whole table")


def _all_round(values: pd.Series) -> bool:
    """Returns whether all values are powers of two, with at least `SENTENCES_MAX` distinct values."""
    powers = np.log2(values[values > 0])
    return len(powers) == len(values) and powers.nunique() >= SENTENCES_MAX and bool((powers % 1 == 0).all())


def _warn_long(points: Points) -> None:
    durations = points.rows.apply(duration_us, axis=1)
    for side in SIDES:
        long = points.rows[f"{side}_runtime_us"] > COVERED_MAX * durations
        if long.any():
            points.notes.append(
                f"the {side}'s counters ran more than 10 % longer than {int(long.sum())} run(s), so they "
                "include work before and after the run"
            )


def _warn_idle(points: Points) -> None:
    """Adds a note if nearly all connections were idle.

    A closed loop keeps its connections busy, so idle connections indicate a wrong unit of time.
    """
    rows = points.rows
    if (rows[RATE] * rows[TIME] / 1e6 < IDLE_SHARE * rows[CONNECTIONS]).all():
        points.notes.append(
            "no row had even 1 % of its connections at work (rate x time): the requested rate was low, or "
            "the times are not in their stated unit"
        )


def _warn_copied(points: Points) -> None:
    """Adds a note if many rows have the same measurements as another row."""
    copies = int(points.rows.drop(columns="source").duplicated().sum())
    if copies > COPIES_MAX * len(points):
        points.notes.append(
            f"{copies} of {len(points)} rows have exactly the values of another row; if they are copies, the "
            "standard errors are too small, because each copy counts as a measurement"
        )
