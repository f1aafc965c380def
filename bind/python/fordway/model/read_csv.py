"""Readers for CSV tables whose column names contain the quantity and the unit.

Examples are `obj_size_B`, `lat_avg_us` and `server_CUC_cycles`; `docs/explain/model.md` lists all names.
"""

import csv
import io
import re
from collections import Counter
from collections.abc import Callable

import numpy as np
import pandas as pd

from fordway.model import quantities
from fordway.model.points import CACHE_LINE_BYTES, SIDES, MeasurementError, Points, from_records

TIMES = {
    "mean": ["lat_avg", "lat_mean", "latency_avg", "latency_mean", "t_req", "t_request", "hdr_mean"],
    "p50": ["lat_p50", "latency_p50", "p50", "lat_median"],
}
"""Column names for times, in order of preference."""

SIZES = ["obj_size", "object_size", "msg_size", "size"]
PLAIN = {
    "requests": ["nreq", "nreq_assumed", "requests"],
    "rate_per_s": ["rps", "req_per_s", "requests_per_s"],
    "connections": ["conns", "connections", "ncon"],
    "threads": ["threads", "nthr"],
    "read_bytes": ["bytes_read", "traffic_B"],
    "body_bytes": ["data_B"],
    "mss_bytes": ["mss_B", "mss_bytes"],
    "retransmits": ["retransmits"],
}
SHIFTED_ROWS_MIN = 4
"""Minimum number of rows for the check whether decimal commas moved cells to the next column."""
_WITH_UNIT = [*SIZES, *(name for names in TIMES.values() for name in names)]
"""Names that a unit follows."""

ERRORS = ["failed", "errored", "errors", "non_2xx", "non2xx"]
"""Columns of failed requests, apart from every column whose name starts with `err_`."""
TIMEOUTS = ["err_timeout", "timeout", "timeouts"]
COUNTERS = {"CUC": "cycles", "REF": "reference_cycles", "LLOD": "evicted_bytes", "L3EV": "evicted_bytes"}
AGREED_SHARE = 0.05
"""Maximum relative difference between two columns of the same quantity. Small differences occur because tools
round, and start to count at different times.
"""
COUNTER = re.compile(r"(server|client)_(CUC|REF|LLOD|L3EV)(_cycles|_lines|_B)?(_per_req)?")


def read(name: str, text: str, statistic: str) -> Points:
    """Returns the rows of the table in `text`. Raises `MeasurementError` if it is invalid or lacks sizes or
    times.
    """
    rows = table(name, text)
    reader = Table(name, rows)
    found = {"source": [f"{name} row {at}" for at in range(1, len(rows) + 1)]}
    found |= {column: reader.first(names) for column, names in PLAIN.items()}
    found["time_us"], used = reader.time(statistic)
    found["duration_us"] = reader.with_unit(["dur", "duration"], "time", optional=True)
    found["tcp_rtt_us"] = reader.with_unit(["tcp_rtt", "rtt"], "time", optional=True)
    failed = [name for name in rows if name.startswith("err_") and name not in TIMEOUTS]
    found["errors"], found["timeouts"] = reader.total([*ERRORS, *failed]), reader.total(TIMEOUTS)
    found["size_bytes"] = reader.size(found)
    for side in SIDES:
        found |= reader.counters(side, found["requests"])
    points = from_records(pd.DataFrame(found).to_dict("records"), used)
    _check_shifted(name, rows, reader)
    points = _marked(points, rows, reader)
    ignored = [column for column in rows if column not in reader.used and not _is_known(column)]
    unknown = [column for column in ignored if _unit_of(column, _WITH_UNIT) is not None]
    if unknown:
        points.notes.append(
            f"{name}: the unit in the name of {', '.join(unknown)} is unknown; name it such as "
            f"{SIZES[0]}_B or {TIMES['mean'][0]}_us"
        )
    if ignored:
        points.notes.append(f"{name} has columns that are ignored: {', '.join(ignored)}")
    return points


def _check_shifted(name: str, rows: pd.DataFrame, reader: "Table") -> None:
    """Raises `MeasurementError` if decimal commas probably split the times into two columns.

    After such a split, all times are integers. The next column, for connections or threads, then contains
    integers below 100, which rarely recur and are not in order.
    """
    columns = list(rows.columns)
    times = [column for column in columns if column in reader.used and _unit_of(column, TIMES["mean"])]
    after = columns[columns.index(times[0]) + 1] if times and times[0] != columns[-1] else None
    if after not in PLAIN["connections"] + PLAIN["threads"] or len(rows) < SHIFTED_ROWS_MIN:
        return
    time, load = reader.number(times[0]), reader.number(after)
    whole = (time % 1 == 0).all() and (load % 1 == 0).all() and (load < 100).all()
    scattered = load.nunique() >= 0.75 * len(load) and not (
        load.is_monotonic_increasing or load.is_monotonic_decreasing
    )
    if whole and scattered:
        raise MeasurementError(
            f"{name}: {after} differs in nearly every row, and all of {times[0]} are whole: commas "
            "seem to divide times into two columns; use decimal points"
        )


def _is_known(column: str) -> bool:
    """Returns whether a column has a known name, or a known name followed by `_` and a suffix. The values of
    such a column may not be needed.
    """
    unit = _unit_of(column, _WITH_UNIT)
    if unit is not None:
        return unit in quantities.KINDS["time"] or unit in quantities.KINDS["size"]
    names = [each for names in PLAIN.values() for each in names]
    names += ["name_KB", "nreq_assumed", "counters_valid", "source", "clock"]
    return column in names or any(column.startswith(f"{each}_") for each in names)


def table(name: str, text: str) -> pd.DataFrame:
    """Returns the table in `text`. Raises `MeasurementError` if it is invalid or has no rows."""
    head = header(text)
    for separator, named in ((";", "semicolons"), ("\t", "tabs")):
        if separator in head and "," not in head:
            raise MeasurementError(
                f"{name} separates its columns with {named}: save it with commas, and with decimal points"
            )
    twice = _repeated(next(csv.reader([head], skipinitialspace=True), []))
    if twice:
        raise MeasurementError(f"{name} has the column {twice[0]} twice: remove one of them")
    try:
        rows = pd.read_csv(io.StringIO(text), skipinitialspace=True, comment="#")
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise MeasurementError(f"{name} cannot be read as a table: {str(error).strip()}") from error
    # If all rows have more cells than the header, pandas uses the first cells as row labels, and each column
    # contains the cells of a neighbouring column.
    if not isinstance(rows.index, pd.RangeIndex):
        raise MeasurementError(
            f"{name}: the rows have more cells than the header: use decimal points rather than commas, and "
            "name every column"
        )
    rows.columns = [str(column).strip() for column in rows.columns]
    if not len(rows):
        raise MeasurementError(f"{name} has a header but no rows: there is nothing to fit")
    return rows


def _repeated(columns: list[str]) -> list[str]:
    """Returns the names that several columns have. When pandas writes columns of one name, it appends `.1`
    to the second.
    """
    names = [column.strip() for column in columns]
    plain = [re.sub(r"\.[0-9]+$", "", name) for name in names]
    names = [short if short in names else name for name, short in zip(names, plain, strict=True)]
    return [name for name, count in Counter(names).items() if count > 1 and name]


def header(text: str) -> str:
    """Returns the first line that is neither empty nor a comment."""
    lines = (line for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return next(lines, "")


def _marked(points: Points, rows: pd.DataFrame, reader: "Table") -> Points:
    if "nreq_assumed" in rows:
        points.notes.append(
            f"{reader.name} assumes the number of requests behind the counters (nreq_assumed): a wrong "
            "number scales every counter"
        )
    if "counters_valid" not in rows:
        return points
    valid = rows["counters_valid"].astype(str).str.strip().str.lower().isin(["true", "1", "yes"])
    if not valid.all():
        points.notes.append(
            f"{reader.name} marks the counters of {int((~valid).sum())} row(s) as invalid: left out"
        )
    return points.where(valid)


def _unit_of(column: str, names: list[str]) -> str | None:
    """Returns the unit that follows one of `names` in the name of a column, or `None` if no name matches."""
    name = next((name for name in names if column.startswith(f"{name}_")), None)
    return None if name is None else column.removeprefix(f"{name}_").removesuffix("_txt")


class Table:
    """A table with methods that find columns by name and convert them to the package's units."""

    def __init__(self, name: str, table: pd.DataFrame) -> None:
        self.name, self.table = name, table
        self.used: set[str] = set()
        """Columns that this reader has used."""

    def number(self, column: str) -> pd.Series:
        """Returns the column as numbers, with NaN for empty cells.

        Raises `MeasurementError` for other text.
        """
        cells = self.table[column]
        self.used.add(column)
        try:
            numbers = pd.to_numeric(cells, errors="coerce").astype("float64")
        except OverflowError as error:
            raise MeasurementError(
                f"{self.name}: {column} has a number that is too large: {error}"
            ) from error
        words = numbers.isna() & cells.notna() & (cells.astype(str).str.strip().str.lower() != "nan")
        if words.any():
            at = int(np.flatnonzero(words)[0])
            raise MeasurementError(
                f"{self.name} row {at + 1}: {column} is {str(cells.iloc[at])!r}, not a number"
            )
        return numbers

    def first(self, names: list[str]) -> pd.Series:
        """Returns the first existing column of `names`, or a column of NaN if none exists."""
        there = next((name for name in names if name in self.table), None)
        return self.missing() if there is None else self.number(there)

    def missing(self) -> pd.Series:
        """Returns a column of NaN, for a quantity that the table lacks."""
        return pd.Series(np.nan, index=self.table.index)

    def total(self, names: list[str]) -> pd.Series:
        """Returns the sum of the existing columns of `names`, or a column of NaN if none exists."""
        there = [self.number(name) for name in names if name in self.table]
        return sum(there[1:], there[0]) if there else self.missing()

    def with_unit(self, names: list[str], kind: str, *, optional: bool = False) -> pd.Series:
        """Returns the first column named `NAME_UNIT` for one of `names`, in the package's unit.

        Raises `MeasurementError` if no column matches, unless `optional` is true.
        """
        units = quantities.KINDS[kind] | ({"KB": 1000.0} if kind == "size" else {})
        for name in names:
            for column in self.table.columns:
                unit = column.removeprefix(f"{name}_").removesuffix("_txt")
                if column.startswith(f"{name}_") and unit in units:
                    return self._agreed(column, names, units)
            if name in self.table.columns and not optional:
                raise MeasurementError(
                    f"{self.name}: the column {name!r} does not state its unit; name it "
                    f"{name}_{'us' if kind == 'time' else 'B'}, or with its actual unit"
                )
        if optional:
            return self.missing()
        raise MeasurementError(
            f"{self.name} has no column of {kind}s: it needs one of {', '.join(names)} with its unit, such "
            f"as {names[0]}_{'us' if kind == 'time' else 'B'}"
        )

    def _agreed(self, column: str, names: list[str], units: dict[str, float]) -> pd.Series:
        """Returns the column in the package's unit. Raises `MeasurementError` if another column of `names`
        contains different values.
        """
        used = self.number(column) * units[_unit_of(column, names)]
        for other in self.table.columns:
            unit = _unit_of(other, names)
            if other == column or unit not in units:
                continue
            shares = (self.number(other) * units[unit] / used - 1).abs()
            if (shares > AGREED_SHARE).any():
                at = int(np.flatnonzero(shares > AGREED_SHARE)[0])
                raise MeasurementError(
                    f"{self.name} row {at + 1}: {column} and {other} differ ({self.table[column].iloc[at]} "
                    f"and {self.table[other].iloc[at]}); keep the correct one"
                )
        return used

    def time(self, statistic: str) -> tuple[pd.Series, str]:
        """Returns the times of requests, and their statistic: `mean` or `p50`."""
        if statistic == "auto":
            try:
                return self.with_unit(TIMES["mean"], "time"), "mean"
            except MeasurementError as error:
                found = self.with_unit(TIMES["p50"], "time", optional=True)
                if found.isna().all():
                    raise error
                return found, "p50"
        return self.with_unit(TIMES[statistic], "time"), statistic

    def size(self, found: dict[str, pd.Series]) -> pd.Series:
        """Returns the sizes of objects. Names in KB are rounded, so they are used only if there is no column
        of sizes.

        A KB in `name_KB` may be 1,000 or 1,024 bytes. The number of bytes read per request determines which
        of the two values applies.
        """
        has_sizes = any(_unit_of(column, SIZES) in quantities.KINDS["size"] for column in self.table)
        if has_sizes or "name_KB" not in self.table:
            return self.with_unit(SIZES, "size")
        named, each = self.number("name_KB"), found["read_bytes"] / found["requests"]
        binary = (each >= 0.995 * named * 1024) & each.notna()
        return named * binary.map({True: 1024.0, False: 1000.0})

    def counters(self, side: str, requests: pd.Series) -> dict[str, pd.Series]:
        """Returns the counters of one side (server or client) per request, its run time, and its clock
        frequency.
        """
        found = {
            f"{side}_runtime_us": self.with_unit(
                [f"{side}_likwid_runtime", f"{side}_runtime"], "time", optional=True
            ),
            f"{side}_clock_mhz": self.with_unit([f"{side}_clock", "clock"], "frequency", optional=True),
        }
        for column in self.table.columns:
            name = COUNTER.fullmatch(column)
            if name is None or name[1] != side:
                continue
            scale = CACHE_LINE_BYTES if self._in_lines(name) else 1
            share = self._per_request(column, requests) if name[4] is None else _same
            found[f"{side}_{COUNTERS[name[2]]}"] = share(self.number(column) * scale)
        return found

    def _in_lines(self, name: re.Match[str]) -> bool:
        if COUNTERS[name[2]] != "evicted_bytes":
            return False
        if name[3] not in ("_lines", "_B"):
            raise MeasurementError(
                f"{self.name}: the column {name[0]!r} does not state whether it counts lines or bytes "
                "(_lines, _B)"
            )
        return name[3] == "_lines"

    def _per_request(self, column: str, requests: pd.Series) -> Callable[[pd.Series], pd.Series]:
        if requests.isna().all():
            raise MeasurementError(
                f"{self.name}: {column} is a total of the run, and there is no column of requests (nreq) to "
                "divide it by"
            )
        return lambda counted: counted / requests.where(requests > 0)


def _same(counted: pd.Series) -> pd.Series:
    return counted
