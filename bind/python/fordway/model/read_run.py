"""Readers for Fordway's own results: `NAME.run/`, its `run.json`, or the output of `bench rest --json`.

`docs/reference/run-file.md` describes the format.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fordway.model.points import SIDES, MeasurementError, Points, from_records
from fordway.report import runfile, shape

OPERATIONS_PER_CLASS_MIN = 5
"""Minimum number of operations in a size class. Smaller classes are left out, because their means are
unreliable.
"""


def read_directory(path: Path, statistic: str, lane: str | None, phase: str | None) -> Points:
    """Returns the measurements of the run in `path`.

    A run of `bench rest` yields one point for each load. Other runs yield one point for each size class of
    one lane.
    """
    try:
        run = runfile.read_run(path)
    except runfile.RunFileError as error:
        raise MeasurementError(str(error)) from error
    if run.info["kind"] == "rest":
        points = read_summaries(run.name, run.info["summaries"], statistic, lane)
    else:
        points = _classes(run, "mean" if statistic == "auto" else statistic, lane, phase or "get")
    points.doubts += runfile.doubts_of(run.name, run.info)
    return points


def read_json(name: str, text: str, statistic: str, lane: str | None) -> Points:
    """Returns the measurements in JSON summaries: a whole `run.json`, a list, or one document per line."""
    summaries: list[dict[str, Any]] = []
    doubts: list[str] = []
    for found in _documents(name, text):
        for part in found if isinstance(found, list) else [found]:
            if isinstance(part, dict):
                summaries += part.get("summaries", [part]) or []
                doubts += _doubts(name, part)
    points = read_summaries(name, summaries, statistic, lane)
    points.doubts += dict.fromkeys(doubts)
    return points


def _doubts(name: str, part: dict[str, Any]) -> list[str]:
    """Returns the reasons to doubt a `run.json`. The conditions of a single row have the same form as the
    conditions of a run.
    """
    if shape.problem(part.get("conditions"), shape.Or(shape.CONDITIONS)):
        return []
    return runfile.doubts_of(name, part)


def read_summaries(name: str, summaries: list[dict[str, Any]], statistic: str, lane: str | None) -> Points:
    """Returns one point for each summary with a load. Raises `MeasurementError` if no summary has a load."""
    wanted = [row for row in summaries if isinstance(row, dict) and row.get("load") and row.get("latency")]
    statistic = "mean" if statistic == "auto" else statistic
    try:
        lanes = list(dict.fromkeys(row["lane"] for row in wanted))
        chosen = _one_of(name, "lane", lanes, lane)
        records = [_summary(name, row, statistic) for row in wanted if row["lane"] == chosen]
    except (KeyError, TypeError) as error:
        raise MeasurementError(
            f"{name} is not a complete run of `bench rest`: a summary lacks {error}"
        ) from error
    return from_records(records, statistic)


def _documents(name: str, text: str) -> list[Any]:
    try:
        return [json.loads(text)]
    except ValueError:
        pass
    try:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except ValueError as error:
        raise MeasurementError(f"{name} is not valid JSON: {error}") from error


def _one_of(name: str, what: str, names: list[str], wanted: str | None) -> str:
    if wanted is None and len(names) == 1:
        return names[0]
    if wanted in names:
        return wanted
    if not names:
        raise MeasurementError(f"{name} has no successful requests, so there is nothing to model")
    problem = f"has no {what} {wanted!r}" if wanted else f"has several {what}s"
    raise MeasurementError(f"{name} {problem}; choose one with --{what}: {', '.join(names)}")


def _summary(name: str, row: dict[str, Any], statistic: str) -> dict[str, Any]:
    load, operations = row["load"], row["operations"]
    tcp = load.get("tcp") or {}
    found = {
        "source": f"{name} {row['phase']}",
        "size_bytes": row["bytes"] / operations if operations else np.nan,
        "time_us": row["latency"][f"{statistic}_ns"] / 1e3,
        "requests": operations,
        "rate_per_s": row["ops_per_s"],
        "asked_rate_per_s": load["rate_asked_per_s"],
        "connections": load["connections"] * load["streams"],
        "errors": row["errors"],
        "mss_bytes": tcp.get("mss_bytes"),
        "tcp_rtt_us": tcp.get("rtt_us"),
        "retransmits": tcp.get("retransmits"),
    }
    for side in SIDES:
        found |= _process(side, load.get(side) or {}, operations)
    return found


def _process(side: str, counters: dict[str, Any], operations: int) -> dict[str, Any]:
    """Returns the cycles of a process per operation, and its frequency, which is cycles divided by CPU
    time.
    """
    cycles = counters.get("cycles")
    if not cycles or not operations:
        return {}
    cpu_ns = counters.get("cpu_ns")
    return {f"{side}_cycles": cycles / operations, f"{side}_mhz": 1e3 * cycles / cpu_ns if cpu_ns else None}


def _classes(run: runfile.Run, statistic: str, lane: str | None, phase: str) -> Points:
    """Returns one point for each size class (power of two) of the operations on one lane in one phase.

    The phases of a ledger are its sizes, so all phases of a ledger are used.
    """
    is_ledger = run.info["kind"] == "ledger"
    rows = run.operations if is_ledger else run.operations[run.operations["phase"] == phase]
    phases = [found for found in run.phases if (run.operations["phase"] == found).any()]
    if not len(rows):
        raise MeasurementError(
            f"{run.name} has no operations of the phase {phase!r}; choose one with --phase: "
            f"{', '.join(phases)}"
        )
    chosen = _one_of(run.name, "lane", [found for found in run.lanes if (rows["lane"] == found).any()], lane)
    rows = rows[rows["lane"] == chosen]
    classes = np.floor(np.log2(np.maximum(rows["bytes"].to_numpy(dtype="float64"), 1)))
    records, few = [], 0
    for _, group in rows.groupby(classes):
        if len(group) < OPERATIONS_PER_CLASS_MIN:
            few += len(group)
            continue
        records.append(_class(f"{run.name} {phase} {chosen}", group, statistic))
    points = from_records(records, statistic)
    if few:
        points.notes.append(
            f"{few} operation(s) in size classes of fewer than {OPERATIONS_PER_CLASS_MIN} are left out"
        )
    return points


def _class(name: str, group: pd.DataFrame, statistic: str) -> dict[str, Any]:
    durations_us = group["duration_ns"] / 1e3
    return {
        "source": name,
        "size_bytes": float(group["bytes"].astype("float64").mean()),
        "time_us": float(durations_us.mean() if statistic == "mean" else durations_us.median()),
        "requests": len(group),
    }
