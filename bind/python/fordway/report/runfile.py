"""Reading a run directory (`docs/reference/run-file.md` describes it field by field)."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from fordway.report.likwid import Counted

SCHEMA = "fordway.run"
SCHEMA_VERSION = 1
"""The newest version this reader understands."""

FIELDS = ("kind", "command", "machine", "parameters", "lanes", "phases", "summaries")
"""What every run has; a file without them was made or cut short by something else."""

OPERATION_COLUMNS = ["lane", "phase", "start_ns", "duration_ns", "intended_ns", "bytes", "ok"]
"""What the figures need of `operations.arrow`; the rest is not read into memory."""

PHASES_MAX = 12
"""Phases that are drawn; a sweep has more combinations than anybody looks at."""


class RunFileError(Exception):
    """A directory is not a run that can be read; the message says why and what to do."""


@dataclass(frozen=True)
class Run:
    """One run: what `run.json` says, and its operations that succeeded."""

    name: str
    """The directory's name without `.run`."""
    info: dict[str, Any]
    """The content of `run.json`."""
    operations: pd.DataFrame
    """One row for each operation that succeeded: `lane`, `phase`, `duration_ns` (from the intended start in
    the open loop, as the summaries count it) and `bytes`."""
    likwid: Counted | None = None
    """What likwid-perfctr counted meanwhile."""
    ledger: dict[str, Any] | None = None
    """The content of `ledger.json`, where the run is a ledger."""
    sizes_bytes: tuple[int, ...] = ()
    """The sizes that are asked for; none is those that the run printed."""

    @property
    def lanes(self) -> list[str]:
        """The lanes' names; the first is the reference."""
        return [lane["name"] for lane in self.info["lanes"]]

    @property
    def reference(self) -> str | None:
        """The lane that others are compared with."""
        return self.lanes[0] if self.lanes else None

    @property
    def phases(self) -> list[str]:
        """The phases' names, in the order they ran."""
        return self.info["phases"]

    def summary(self, phase: str, lane: str) -> dict[str, Any] | None:
        """What `lane` did in `phase`; `None` if it did not run it."""
        rows = (row for row in self.info["summaries"] if (row["phase"], row["lane"]) == (phase, lane))
        return next(rows, None)

    def summaries(self) -> list[dict[str, Any]]:
        """All summaries, by phase and then by lane, in the run's order."""
        found = (self.summary(phase, lane) for phase in self.phases for lane in self.lanes)
        return [summary for summary in found if summary is not None]

    @property
    def drawn_phases(self) -> list[str]:
        """The phases that figures show."""
        return self.phases[:PHASES_MAX]

    @property
    def timed_phases(self) -> list[str]:
        """Those of them whose operations are known one by one."""
        timed = set(self.operations["phase"].unique())
        return [phase for phase in self.drawn_phases if phase in timed]

    def speed(self, row: dict[str, Any]) -> float | None:
        """The speed of a summary in units of its reference's: the median over blocks where there were enough
        of them for an interval, else the quotient of the rates.
        """
        if row["ratio"] is None:
            return None
        if row["ratio"]["interval"] is not None:
            return row["ratio"]["interval"]["value"]
        reference = self.summary(row["phase"], row["ratio"]["to"])
        rates = row["ops_per_s"], reference and reference["ops_per_s"]
        return rates[0] / rates[1] if all(rates) else None

    def durations_ns(self, phase: str, lane: str) -> pd.Series:
        """The latencies of the operations of `lane` in `phase` that succeeded."""
        rows = self.operations
        return rows.loc[(rows["phase"] == phase) & (rows["lane"] == lane), "duration_ns"]


def read_run(directory: Path) -> Run:
    """Reads the run in `directory`. Raises `RunFileError`."""
    info = read_info(directory)
    operations = _read_operations(directory / "operations.arrow")
    ledger = _read_ledger(directory / "ledger.json") if info["kind"] == "ledger" else None
    return Run(directory.resolve().name.removesuffix(".run"), info, operations, ledger=ledger)


def _read_ledger(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunFileError(f"{path} cannot be read: {error}") from error


def read_info(directory: Path) -> dict[str, Any]:
    """The `run.json` of the run in `directory`. Raises `RunFileError`."""
    path = directory / "run.json"
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RunFileError(f"{path} is missing: give the directory of a run") from error
    except (OSError, ValueError) as error:
        raise RunFileError(f"{path} cannot be read: {error}") from error
    if not isinstance(info, dict) or info.get("schema") != SCHEMA:
        raise RunFileError(f"{path} is not a run: its `schema` is not {SCHEMA!r}")
    if info.get("schema_version", 0) > SCHEMA_VERSION:
        raise RunFileError(f"{path} has version {info['schema_version']}: install a newer fordway to read it")
    missing = [name for name in FIELDS if name not in info]
    if missing:
        raise RunFileError(f"{path} lacks {', '.join(missing)}: it is no whole run, measure again")
    return info


def read_table(path: Path, columns: list[str]) -> pd.DataFrame:
    """Columns of an Arrow file of a run, words as categories. Raises `RunFileError`."""
    try:
        with pa.OSFile(str(path)) as source:
            table = pa.ipc.open_file(source).read_all().select(columns)
            for name in {"lane", "phase"} & set(columns):
                at = table.schema.get_field_index(name)
                table = table.set_column(at, name, table[name].dictionary_encode())
            return table.to_pandas()
    except (OSError, pa.ArrowInvalid, KeyError) as error:
        raise RunFileError(f"{path} cannot be read: {error}") from error


def _read_operations(path: Path) -> pd.DataFrame:
    rows = read_table(path, OPERATION_COLUMNS)
    return _from_intended(rows[rows["ok"]].drop(columns="ok"))


def _from_intended(rows: pd.DataFrame) -> pd.DataFrame:
    late_ns = rows["start_ns"] - rows["intended_ns"].astype("float64")
    rows = rows.drop(columns=["start_ns", "intended_ns"])
    return rows.assign(duration_ns=rows["duration_ns"] + late_ns.fillna(0))
