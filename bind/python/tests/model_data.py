"""Synthetic measurements for the tests of models, in the formats of measuring tools. Also contains functions
that run the command.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fordway.model import cli

CLOCK_MHZ, MEMORY, NETWORK, RTT_US = 2_500.0, 16_000.0, 5_000.0, 50.0
CONSTANTS = ["--memory-bandwidth", "16000MB/s", "--network-bandwidth", "5000MB/s", "--rtt", "50us"]
REQUESTS = 10_000
SIZES = 2.0 ** np.arange(0, 28)
TRUTH = [0.7, 1.2, 5.0, 0.9, 1.8, 1.4]
"""The factors of eq. 9 from which `independent` computes its times."""


def by_size(
    t0_us: float = 80.0, k: float = 1.3, k2: float = 0.6, *, noise: float = 0.01, seed: int = 1
) -> pd.DataFrame:
    """Returns a table with one run of a load generator for each size. The clock frequency is higher for large
    sizes.
    """
    random = np.random.default_rng(seed)
    mhz = np.where(SIZES < 2**20, 1_200.0, 3_000.0)
    time_us = t0_us + k * SIZES / mhz + k2 * np.minimum(SIZES, 65_536) / mhz
    time_us = time_us * (1 + noise * random.standard_normal(len(SIZES)))
    busy_us = 0.4 * time_us
    rows: dict[str, Any] = {"obj_size_B": SIZES.astype(int), "lat_avg_us": time_us, "nreq": REQUESTS}
    rows |= {
        "dur_us_txt": REQUESTS * time_us,
        "rps": 1e6 / time_us,
        "conns": 1,
        "threads": 1,
        "err_timeout": 0,
    }
    rows["bytes_read"] = REQUESTS * (SIZES + 230)
    for side, share in (("client", 1.0), ("server", 1.7)):
        rows |= {
            f"{side}_CUC_cycles": share * busy_us * mhz * REQUESTS,
            f"{side}_REF_cycles": share * busy_us * CLOCK_MHZ * REQUESTS,
            f"{side}_LLOD_lines": (30 + share * SIZES / 640) * REQUESTS,
            f"{side}_likwid_runtime_s": REQUESTS * time_us / 1e6,
            f"{side}_clock_GHz": CLOCK_MHZ / 1e3,
        }
    return pd.DataFrame(rows)


def independent(rows: int = 150, noise: float = 0.01, seed: int = 2) -> pd.DataFrame:
    """Returns a table of counters that vary independently, and the times that eq. 9 predicts from them."""
    random = np.random.default_rng(seed)

    def drawn(low: float, high: float) -> np.ndarray:
        return np.exp(random.uniform(np.log(low), np.log(high), rows))

    size, *counted = drawn(1, 1e8), drawn(1e4, 1e7), drawn(1e3, 1e8), drawn(1e4, 1e7), drawn(1e3, 1e8)
    columns = [np.full(rows, RTT_US), counted[0] / CLOCK_MHZ, counted[1] / MEMORY]
    columns += [counted[2] / CLOCK_MHZ, counted[3] / MEMORY, size / NETWORK]
    time_us = np.column_stack(columns) @ TRUTH * (1 + noise * random.standard_normal(rows))
    return pd.DataFrame(
        {
            "obj_size_B": size,
            "server_CUC_per_req": counted[0],
            "server_L3EV_B_per_req": counted[1],
            "client_CUC_per_req": counted[2],
            "client_L3EV_B_per_req": counted[3],
            "t_req_us": time_us,
        }
    )


def write(path: Path, table: pd.DataFrame) -> str:
    """Writes a table, and returns its path as an argument of a command."""
    table.to_csv(path, index=False)
    return str(path)


def model(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """Returns the output of `fordway-model WORDS --json`."""
    assert cli.main([*words, "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Returns the error message of `fordway-model WORDS`. The command must fail. Every command except `check`
    must print nothing else.
    """
    assert cli.main(list(words)) == cli.BAD_INPUT
    said = capsys.readouterr()
    assert said.out == "" or words[0] == "check"
    assert said.err.startswith("fordway-model: ")
    assert said.err.endswith(".\n")
    return said.err


def value(found: dict[str, Any], name: str) -> float:
    """Returns a coefficient of a fit."""
    return next(each["value"] for each in found["coefficients"] if each["name"] == name)
