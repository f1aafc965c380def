"""Reads published tables (of ppbench and of the sdvn-impact-database) as runs."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fordway.report import shape, units
from fordway.report.runfile import Run, RunFileError

WINDOW_BYTES = 87_380
"""Initial TCP receive window of the measured systems (Kratzke and Quint 2016)."""

REFERENCES = ("reference", "bare")
"""Prefixes of the names of reference set-ups, which the tables do not mark in any other way."""

PHASE = "one connection per request"
SIZE_BYTES_MAX = 2**53
"""Maximum size that a table may state. Larger sizes are not exact as floating-point numbers."""

TIME, RATE = "Time per request", ("Requests per second (mean)", "Requests per second")
CONCURRENCY = "Concurrency Level"
FAILED, TAGS = "Failed requests", ("Experiment Tag", "Tag")


def read(path: Path) -> Run:
    """Returns the table in `path` as a run. Each row becomes one operation, although it is the mean of
    several requests.

    Raises `RunFileError` if the table has an unknown form.
    """
    try:
        table = pd.read_csv(path, dtype={"Document Path": str})
    except (OSError, ValueError, pd.errors.ParserError) as error:
        raise RunFileError(f"{path} cannot be read: {error}") from error
    tag = next((name for name in TAGS if name in table), None)
    if tag is None or "Document Path" not in table or not {TIME, *RATE} & set(table.columns):
        raise RunFileError(
            f"{path} is neither a table of ppbench nor of the sdvn-impact-database: it needs the columns "
            f"{' or '.join(TAGS)}, Document Path, and {TIME} or {RATE[0]}"
        )
    rows = _rows(path, table, tag)
    lanes = _lanes(rows)
    info = _info(path, rows, lanes)
    good = rows[rows["ok"]].drop(columns=["ok", "failed", "retries"])
    return Run(path.name.removesuffix(".csv"), info, good.reset_index(drop=True))


def _rows(path: Path, table: pd.DataFrame, tag: str) -> pd.DataFrame:
    size = pd.to_numeric(table["Document Path"].str.rsplit("/", n=1).str[-1], errors="coerce")
    if size.isna().any():
        wrong = table.loc[size.isna(), "Document Path"].iloc[0]
        raise RunFileError(f"{path} has a document {wrong!r}, whose last part is not a number of bytes")
    if not size.between(0, SIZE_BYTES_MAX).all():
        wrong = table.loc[~size.between(0, SIZE_BYTES_MAX), "Document Path"].iloc[0]
        raise RunFileError(f"{path} has a document {wrong!r}, whose size is impossible")
    lane = table[tag].astype(str)
    if "Machine Tag" in table and table["Machine Tag"].nunique() > 1:
        lane = lane + " on " + table["Machine Tag"].astype(str)
    rate = next((name for name in RATE if name in table), None)
    # The rate is the total across all connections. The time per request has several definitions, so it is
    # used only if the table has no rate.
    at_once = _numbers(path, table, CONCURRENCY, 1)
    seconds = at_once / _numbers(path, table, rate).replace(0, np.nan) if rate else None
    seconds = _numbers(path, table, TIME) / 1e3 if seconds is None else seconds
    rows = pd.DataFrame(
        {
            "lane": lane,
            "phase": PHASE,
            "duration_ns": seconds.astype(float) * 1e9,
            "bytes": size.astype(np.uint64),
            "failed": _numbers(path, table, FAILED, 0).astype(int),
            "retries": _numbers(path, table, "Retries", 0).astype(int),
        }
    )
    return rows.assign(ok=(rows["failed"] == 0) & (rows["duration_ns"] > 0))


def _numbers(path: Path, table: pd.DataFrame, column: str, missing: float | None = None) -> pd.Series:
    """Returns a column as numbers of at least 0, with `missing` for missing values. Raises `RunFileError`."""
    if column not in table:
        return pd.Series(missing, index=table.index, dtype=float)
    cells = table[column]
    numbers = pd.to_numeric(cells, errors="coerce").astype(float)
    wrong = (numbers.isna() & cells.notna()) | (numbers < 0) | (numbers > shape.NUMBER_MAX)
    if wrong.any():
        cell, row = str(cells[wrong].iloc[0]), int(np.flatnonzero(wrong)[0]) + 1
        raise RunFileError(
            f"{path}: {column} is {cell!r} in row {row}, which is not a possible number; use decimal points"
        )
    return numbers if missing is None else numbers.fillna(missing)


def _lanes(rows: pd.DataFrame) -> list[str]:
    """Returns the set-ups, with the reference first and the others in the order of the table."""
    lanes = list(dict.fromkeys(rows["lane"]))
    return sorted(lanes, key=lambda lane: not lane.lower().startswith(REFERENCES))


def _info(path: Path, rows: pd.DataFrame, lanes: list[str]) -> dict[str, Any]:
    retries = int(rows["retries"].sum())
    warnings = ["Each row of the table is the mean of many requests: bands are of means, not of messages."]
    if retries:
        warnings.append(f"Requests were sent again {units.count(retries)} times; their times include this.")
    return {
        "kind": "pingpong",
        "started": "at a time that the table does not state",
        "elapsed_ns": None,
        "fordway_version": units.NOT_MEASURED,
        "command": ["fordway-report", str(path)],
        "parameters": {"rows": len(rows), "tcp_rmem_bytes": WINDOW_BYTES, "retries": retries},
        "lanes": [{"name": lane, "description": "as its tag in the table states"} for lane in lanes],
        "phases": [PHASE],
        "summaries": [_summary(rows[rows["lane"] == lane], lane, lanes[0]) for lane in lanes],
        "machine": MACHINE,
        "warnings": warnings,
    }


UNKNOWN = (
    "kernel system cpu_model memory_bytes cpu_governor clock_source is_virtual load_1min huge_pages "
    "tcp_congestion_control"
)
MACHINE: dict[str, Any] = dict.fromkeys(UNKNOWN.split()) | {
    "cpus": "an unknown number of",
    "file_systems": [],
}
"""Properties of the machines that the tables do not contain. The values are placeholders, because the real
values are unknown.
"""


def _summary(rows: pd.DataFrame, lane: str, reference: str) -> dict[str, Any]:
    good = rows.loc[rows["ok"], "duration_ns"]
    of = {} if good.empty else {"p50_ns": good.quantile(0.5), "p99_ns": good.quantile(0.99)}
    return {
        "lane": lane,
        "phase": PHASE,
        "operations": len(good),
        "errors": int((~rows["ok"]).sum()),
        "bytes": int(rows.loc[rows["ok"], "bytes"].sum()),
        "ops_per_s": None,
        "bytes_per_s": None,
        "latency": of or None,
        "client_cpu_ns_per_op": None,
        "server_cpu_ns_per_op": None,
        "ratio": None if lane == reference else {"to": reference, "interval": None, "verdict": "cannot-tell"},
        "limit": {"name": units.NOT_MEASURED, "evidence": "the table does not state it"},
        "load": None,
    }
