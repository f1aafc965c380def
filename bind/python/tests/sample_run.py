"""Creates a run in the format of `fordway compare`, with times from realistic distributions."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

LANES = {
    "posix": "open, read, write and rename, as a program without Fordway would do it",
    "embedded": "the S3 call becomes POSIX calls inside the calling process",
    "http": "S3 REST over HTTP/1.1 to a gateway on this node",
}
PHASES = ["put", "list", "head", "get", "range", "delete"]
FIXED_US = {
    "put": {"posix": 13, "embedded": 17, "http": 180},
    "list": {"posix": 390, "embedded": 385, "http": 950},
    "head": {"posix": 1.7, "embedded": 2.4, "http": 62},
    "get": {"posix": 5.4, "embedded": 5.3, "http": 78},
    "range": {"posix": 4.8, "embedded": 5.0, "http": 74},
    "delete": {"posix": 6, "embedded": 10, "http": 70},
}
"""The typical cost of an operation, without the cost of its bytes."""

BYTES_PER_US = {"posix": 12_000, "embedded": 12_000, "http": 3_000}
BLOCKS, OPERATIONS_PER_BLOCK, LIST_PER_BLOCK = 12, 60, 4
OPERATION_TYPES = {
    "lane": pa.string(),
    "phase": pa.string(),
    "round": pa.uint16(),
    "block": pa.uint32(),
    "thread": pa.uint16(),
    "start_ns": pa.uint64(),
    "duration_ns": pa.uint64(),
    "bytes": pa.uint64(),
    "ok": pa.bool_(),
    "intended_ns": pa.uint64(),
    "first_byte_ns": pa.uint64(),
}
BLOCK_TYPES = {
    "lane": pa.string(),
    "phase": pa.string(),
    **dict.fromkeys(
        ["round", "block", "operations", "bytes", "elapsed_ns", "client_cpu_ns", "server_cpu_ns"], pa.uint64()
    ),
}
OBJECT_TYPES = {
    "round": pa.uint16(),
    "bytes": pa.uint64(),
    "directories": pa.uint16(),
    "made_directories": pa.uint16(),
    "emptied_directories": pa.uint16(),
}


def write_sample_run(
    directory: Path,
    lanes: Mapping[str, str] = LANES,
    *,
    seed: int = 1,
    fail: tuple[str, str] | None = None,
    blocks: int = BLOCKS,
    **changes: Any,  # noqa: ANN401 (any value JSON can hold)
) -> Path:
    """Writes a run of `lanes`. `fail` names the phase and the lane in which some operations fail.

    `changes` replace fields of `run.json`. With fewer than 5 `blocks`, there are no intervals, as in real
    runs.
    """
    random = np.random.default_rng(seed)
    operations = pd.concat(_operations(random, lane, fail, blocks) for lane in lanes)
    measured = pd.concat(_blocks(operations, lane) for lane in lanes)
    directory.mkdir(parents=True)
    write_arrow(directory / "operations.arrow", operations, OPERATION_TYPES)
    write_arrow(directory / "blocks.arrow", measured, BLOCK_TYPES)
    info = run_info(lanes, _summaries(operations, measured, list(lanes), random)) | changes
    (directory / "run.json").write_text(json.dumps(info, indent=1), encoding="utf-8")
    return directory


def _operations(
    random: np.random.Generator, lane: str, fail: tuple[str, str] | None, blocks: int
) -> pd.DataFrame:
    parts = []
    for phase_number, phase in enumerate(PHASES):
        per_block = LIST_PER_BLOCK if phase == "list" else OPERATIONS_PER_BLOCK
        count = per_block * blocks
        sizes = np.exp(random.normal(9, 2, count)).astype(np.uint64)
        moved = (
            sizes if phase in ("put", "get") else np.minimum(sizes, 4096) if phase == "range" else 0 * sizes
        )
        typical_us = FIXED_US[phase].get(lane, 50) + moved / BYTES_PER_US.get(lane, 5_000)
        tail = np.where(random.random(count) < 0.02, random.pareto(1.5, count) * 4 + 2, 1)
        duration_ns = (typical_us * 1e3 * random.lognormal(0, 0.16, count) * tail).astype(np.uint64)
        block = np.repeat(np.arange(blocks), per_block)
        rows = {
            "lane": lane,
            "phase": phase,
            "round": block % 3,
            "block": block + phase_number * blocks,
            "thread": 0,
            "start_ns": np.cumsum(duration_ns) - duration_ns,
            "duration_ns": duration_ns,
            "bytes": moved,
            "ok": random.random(count) >= (0.05 if fail == (phase, lane) else 0),
            "intended_ns": None,
            "first_byte_ns": None,
        }
        parts.append(pd.DataFrame(rows))
    return pd.concat(parts)


def _blocks(operations: pd.DataFrame, lane: str) -> pd.DataFrame:
    rows = operations[operations["lane"] == lane]
    grouped = rows.groupby(["lane", "phase", "round", "block"], sort=False)
    blocks = grouped.agg(
        operations=("ok", "sum"), bytes=("bytes", "sum"), elapsed_ns=("duration_ns", "sum")
    ).reset_index()
    blocks["client_cpu_ns"] = (blocks["elapsed_ns"] * (0.45 if lane == "http" else 0.96)).astype(np.uint64)
    blocks["server_cpu_ns"] = (blocks["elapsed_ns"] * 0.5).round() if lane == "http" else np.nan
    return blocks


def write_arrow(path: Path, rows: pd.DataFrame, types: dict[str, pa.DataType]) -> None:
    """Writes `rows` as an Arrow file of a run."""
    schema = pa.schema(list(types.items()))
    table = pa.Table.from_pandas(rows, schema=schema, preserve_index=False)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_table(table)


def _summaries(
    operations: pd.DataFrame, blocks: pd.DataFrame, lanes: list[str], random: np.random.Generator
) -> Iterator[dict[str, Any]]:
    for lane in lanes:
        for phase in PHASES:
            ran = operations[(operations["lane"] == lane) & (operations["phase"] == phase)]
            own = blocks[(blocks["lane"] == lane) & (blocks["phase"] == phase)]
            base = blocks[(blocks["lane"] == lanes[0]) & (blocks["phase"] == phase)]
            compared = None if lane == lanes[0] else _ratio(lanes[0], own, base, random)
            yield (
                {"lane": lane, "phase": phase}
                | _figures(ran, own)
                | {"ratio": compared, "limit": _limit(lane), "load": None, "transfer": None, "parallel": None}
            )


def _figures(ran: pd.DataFrame, own: pd.DataFrame) -> dict[str, Any]:
    good = ran[ran["ok"]]
    count, elapsed_ns = len(good), int(own["elapsed_ns"].sum())
    server_ns = own["server_cpu_ns"]
    return {
        "operations": count,
        "errors": len(ran) - count,
        "bytes": int(good["bytes"].sum()),
        "ops_per_s": count / elapsed_ns * 1e9 if elapsed_ns else None,
        "bytes_per_s": float(good["bytes"].sum()) / elapsed_ns * 1e9 if elapsed_ns else None,
        "latency": _quantiles(good["duration_ns"]) if count else None,
        "histogram": "",
        "client_cpu_ns_per_op": float(own["client_cpu_ns"].sum()) / count if count else None,
        "server_cpu_ns_per_op": None
        if server_ns.isna().any() or not count
        else float(server_ns.sum()) / count,
    }


def _quantiles(durations_ns: pd.Series) -> dict[str, int]:
    shares = {"min_ns": 0, "p50_ns": 0.5, "p90_ns": 0.9, "p99_ns": 0.99, "p999_ns": 0.999, "max_ns": 1}
    found = {name: int(durations_ns.quantile(share)) for name, share in shares.items()}
    return found | {"mean_ns": int(durations_ns.mean())}


def _ratio(to: str, own: pd.DataFrame, base: pd.DataFrame, random: np.random.Generator) -> dict[str, Any]:
    pairs = own.merge(base, on="block", suffixes=("", "_base"))
    values = (pairs["elapsed_ns_base"] / pairs["elapsed_ns"]).to_numpy()
    if len(values) < 5:
        return {"to": to, "interval": None, "verdict": "cannot-tell"}
    medians = np.median(random.choice(values, (2_000, len(values))), axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    verdict = "faster" if low > 1 else "slower" if high < 1 else "cannot-tell"
    interval = {"value": float(np.median(values)), "low": float(low), "high": float(high)}
    return {"to": to, "interval": interval | {"confidence": 0.95, "samples": len(values)}, "verdict": verdict}


def _limit(lane: str) -> dict[str, str]:
    if lane == "http":
        return {"name": "client and server cpu", "evidence": "client 45 %, server 50 % of one CPU"}
    return {"name": "client cpu", "evidence": "client 96 % of one CPU"}


def run_info(lanes: Mapping[str, str], summaries: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Returns the content of `run.json` for a comparison."""
    return {
        "schema": "fordway.run",
        "schema_version": 1,
        "fordway_version": "0.1.0",
        "kind": "compare",
        "started": "2026-11-20T09:15:02Z",
        "elapsed_ns": 48_200_000_000,
        "command": ["fordway", "compare", "/usr/share/doc", "--out", "out/doc.run", "--seed", "1"],
        "machine": dict(_MACHINE),
        "parameters": {
            "source": "/usr/share/doc",
            "objects": BLOCKS * OPERATIONS_PER_BLOCK,
            "content_bytes": 41_943_040,
            "threads": 1,
            "link": "none",
            "rounds": 3,
            "seed": 1,
            "durability": "none",
            "etag_policy": "fast",
            "time_limit_s": None,
        },
        "lanes": [{"name": name, "description": description} for name, description in lanes.items()],
        "phases": PHASES,
        "summaries": list(summaries),
        "scores": [],
        "warnings": [
            "fewer than 5 rounds: most ratios have too few blocks for an interval; increase --rounds"
        ],
        "conditions": _CONDITIONS,
    }


_CONDITIONS = {
    "verdict": "doubtful",
    "is_forced": False,
    "doubts": [
        {
            "cause": "other-processes",
            "observed": "other processes took 28 % of the machine's processor time during the run",
            "remedy": "run it again when the machine is idle",
            "cells": [{"lane": "http", "phase": "put"}],
        }
    ],
    "figures": {
        "lost_before_share": 0.02,
        "lost_after_share": None,
        "others_share": 0.28,
        "stolen_share": 0.0,
        "run_queue_share": 0.05,
        "quota_processors": None,
        "throttled_share": None,
        "throttled_s": None,
        "pressure_cpu_share": 0.4,
        "pressure_memory_share": 0.0,
        "pressure_io_share": 0.01,
        "pressure_io_before_share": 0.0,
        "work_slowdown": 1.04,
        "frequency_min_mhz": None,
        "frequency_max_mhz": None,
    },
}

_MACHINE = {
    "kernel": "6.18.0",
    "system": "Debian GNU/Linux 12 (bookworm)",
    "cpu_model": "An Example Processor 9000",
    "cpus": 2,
    "memory_bytes": 8_323_674_112,
    "cpu_governor": None,
    "clock_source": "tsc",
    "is_virtual": True,
    "load_1min": 1.4,
    "huge_pages": "madvise",
    "tcp_congestion_control": "cubic",
    "file_systems": [
        {
            "role": "root",
            "path": "/var/tmp/fordway",
            "mount_point": "/",
            "kind": "ext4",
            "options": "rw,relatime",
        }
    ],
}
