"""Synthetic runs of ping-pong with known parameters."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from fordway.report.runfile import Run

SIZES = np.arange(1, 500_001)


def messages(seed: int, count: int = 1600, noise: float = 0.12, largest: int = 500_000) -> pd.DataFrame:
    """Returns messages with sizes across the range and simulated network times: 300 µs, 2.5 ns for each byte,
    and rare stalls.
    """
    random = np.random.default_rng(seed)
    sizes = np.exp(random.uniform(0, np.log(largest), count)).astype(np.uint64)
    times = (300e3 + 2.5 * sizes) * random.lognormal(0, noise, count)
    times[random.random(count) < 0.02] *= 8
    return pd.DataFrame({"bytes": sizes, "duration_ns": times})


def run_of(rows: Mapping[tuple[str, str], pd.DataFrame], parameters: Mapping[str, Any] | None = None) -> Run:
    """Returns a run with these messages, by lane and phase. The first lane is the reference."""
    lanes = list(dict.fromkeys(lane for lane, _ in rows))
    phases = list(dict.fromkeys(phase for _, phase in rows))
    parts = [table.assign(lane=lane, phase=phase) for (lane, phase), table in rows.items()]
    info = {
        "kind": "pingpong",
        "lanes": [{"name": lane, "description": ""} for lane in lanes],
        "phases": phases,
        "summaries": [],
        "warnings": [],
        "parameters": dict(parameters or {"tcp_rmem_bytes": 87_380}),
    }
    return Run("synthetic", info, pd.concat(parts, ignore_index=True))
