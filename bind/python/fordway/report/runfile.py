"""Reader for run directories (`docs/reference/run-file.md` describes each field)."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from fordway.report import shape
from fordway.report.counters import Counted

SCHEMA = "fordway.run"
SCHEMA_VERSION = 1
"""Newest version of the format that this reader supports."""

OPERATION_COLUMNS = ["lane", "phase", "round", "start_ns", "duration_ns", "intended_ns", "bytes", "ok"]
"""Columns of `operations.arrow` that the figures need. Other columns are not read into memory."""

BLOCK_COLUMNS = ["lane", "phase", "round", "block", "operations", "bytes", "elapsed_ns"]
"""Columns of `blocks.arrow` that are checked."""

COUNTED = ("compare", "ledger", "transport", "pingpong", "rest", "vector", "speedup")
"""Kinds of run whose summaries count exactly the rows of `operations.arrow`. The other kinds, which run on
ranks, have at most as many rows as their summaries count.
"""

PHASES_MAX = 12
"""Maximum number of phases that are drawn. A sweep can have many more phases."""


class RunFileError(Exception):
    """The directory is not a readable run. The message gives the reason and the remedy."""


@dataclass(frozen=True)
class Run:
    """A run: the content of `run.json`, and the successful operations."""

    name: str
    """Name of the directory, without `.run`."""
    info: dict[str, Any]
    """Content of `run.json`."""
    operations: pd.DataFrame
    """One row for each successful operation: `lane`, `phase`, `round`, `duration_ns` and `bytes`. In the open
    loop, the duration counts from the intended start, as in the summaries. Published tables have no rounds.
    """
    counted: Counted | None = None
    """Hardware counters of this run."""
    ledger: dict[str, Any] | None = None
    """Content of `ledger.json`, if the run is a ledger."""
    sizes_bytes: tuple[int, ...] = ()
    """Requested sizes, in bytes. If empty, the sizes that the run printed are used."""

    @property
    def lanes(self) -> list[str]:
        """Names of the lanes. The first lane is the reference."""
        return [lane["name"] for lane in self.info["lanes"]]

    @property
    def reference(self) -> str | None:
        """The lane with which the other lanes are compared."""
        return self.lanes[0] if self.lanes else None

    @property
    def phases(self) -> list[str]:
        """Names of the phases, in the order in which they ran."""
        return self.info["phases"]

    def summary(self, phase: str, lane: str) -> dict[str, Any] | None:
        """Returns the summary of `lane` in `phase`, or `None` if the lane did not run this phase."""
        rows = (row for row in self.info["summaries"] if (row["phase"], row["lane"]) == (phase, lane))
        return next(rows, None)

    def summaries(self) -> list[dict[str, Any]]:
        """Returns all summaries, by phase and then by lane, in the order of the run."""
        found = (self.summary(phase, lane) for phase in self.phases for lane in self.lanes)
        return [summary for summary in found if summary is not None]

    @property
    def drawn_phases(self) -> list[str]:
        """The phases that figures show."""
        return self.phases[:PHASES_MAX]

    @property
    def timed_phases(self) -> list[str]:
        """The drawn phases that have records of single operations."""
        timed = set(self.operations["phase"].unique())
        return [phase for phase in self.drawn_phases if phase in timed]

    def speed(self, row: dict[str, Any]) -> float | None:
        """Returns the speed of a summary relative to the reference, or `None` if it is unknown.

        The speed is the median over blocks if there were enough blocks for an interval. With fewer blocks,
        the speed is the ratio of the rates.
        """
        if row["ratio"] is None:
            return None
        if row["ratio"]["interval"] is not None:
            return row["ratio"]["interval"]["value"]
        reference = self.summary(row["phase"], row["ratio"]["to"])
        rates = row["ops_per_s"], reference and reference["ops_per_s"]
        return rates[0] / rates[1] if all(rates) else None

    def durations_ns(self, phase: str, lane: str) -> pd.Series:
        """Returns the latencies of the successful operations of `lane` in `phase`."""
        rows = self.operations
        return rows.loc[(rows["phase"] == phase) & (rows["lane"] == lane), "duration_ns"]


def read_run(directory: Path) -> Run:
    """Returns the run in `directory`. Raises `RunFileError`."""
    info = read_info(directory)
    operations = _read_operations(directory / "operations.arrow", info)
    ledger = _read_ledger(directory / "ledger.json") if info["kind"] == "ledger" else None
    return Run(directory.resolve().name.removesuffix(".run"), info, operations, ledger=ledger)


def _read_ledger(path: Path) -> dict[str, Any]:
    try:
        ledger = read_json(path)
    except FileNotFoundError as error:
        raise RunFileError(f"{path} cannot be read: {error}") from error
    problem = shape.problem(ledger, shape.LEDGER)
    if problem:
        raise RunFileError(
            f"{path} is not a valid ledger: {problem}; the file was changed or damaged. Measure again"
        )
    return ledger


def read_info(directory: Path) -> dict[str, Any]:
    """Returns the `run.json` of the run in `directory`. Raises `RunFileError`."""
    path = directory / "run.json"
    try:
        info = read_json(path)
    except FileNotFoundError as error:
        raise RunFileError(f"{path} is missing: give the directory of a run") from error
    if not isinstance(info, dict) or info.get("schema") != SCHEMA:
        raise RunFileError(f"{path} is not a run: its `schema` is not {SCHEMA!r}")
    version = info.get("schema_version")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise RunFileError(f"{path} has version {version}: install a newer fordway to read it")
    missing = [name for name in shape.RUN if name not in info]
    if missing:
        raise RunFileError(f"{path} lacks {', '.join(missing)}: it is not a complete run; measure again")
    problem = shape.problem(info, shape.RUN | shape.MORE)
    if not problem and not info["lanes"]:
        problem = "lanes is empty"
    if not problem:
        problem = shape.unknown_kind(info["kind"]) or shape.disorder(info["summaries"])
        problem = problem or shape.inconsistency(info)
    if not problem and info.get("conditions"):
        problem = shape.contradiction(info["conditions"])
    if problem:
        raise RunFileError(
            f"{path} is not a valid run: {problem}; the file was changed or damaged. Measure again"
        )
    _check_files(directory)
    return info


def _check_files(directory: Path) -> None:
    """Raises `RunFileError` if an Arrow file of the run is damaged, whether or not its values are needed."""
    for path in sorted(directory.glob("*.arrow")):
        if not path.is_file():
            raise RunFileError(f"{path} is not a regular file: measure again")
        if path.name == "blocks.arrow":
            _check_blocks(path)
            continue
        try:
            with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as file:
                for at in range(file.num_record_batches):
                    file.get_batch(at)
        except (OSError, pa.ArrowException) as error:
            raise RunFileError(f"{path} cannot be read: {error}") from error


def _check_blocks(path: Path) -> None:
    """Raises `RunFileError` if `blocks.arrow` is damaged, or has a block whose operations took no time."""
    rows = read_table(path, BLOCK_COLUMNS)
    wrong = rows[(rows["elapsed_ns"] == 0) & (rows["operations"] > 0)]
    if not wrong.empty:
        at, row = wrong.index[0], wrong.iloc[0]
        raise RunFileError(
            f"{path}: row {at} ({row['phase']} on {row['lane']}) has {row['operations']} operations, but its "
            "elapsed_ns is 0; the file was changed or damaged. Measure again"
        )


def check_counts(path: Path, info: dict[str, Any], rows: pd.DataFrame) -> None:
    """Raises `RunFileError` if the operations in `rows` differ from the counts in the summaries.

    A run of ranks contains only the first operations of each rank.
    """
    counted = rows.groupby(["phase", "lane", "ok"], observed=True).size().to_dict()
    for at, summary in enumerate(info["summaries"]):
        for field, is_ok in (("operations", True), ("errors", False)):
            found = counted.get((summary["phase"], summary["lane"], is_ok), 0)
            said = summary[field]
            if found > said or (found < said and info["kind"] in COUNTED):
                raise RunFileError(
                    f"{path.parent / 'run.json'} is not a valid run: summaries[{at}].{field} is {said}, but "
                    f"{path.name} has {found} of them; the file was changed or damaged. Measure again"
                )


def doubts_of(name: str, info: dict[str, Any]) -> list[str]:
    """Returns a sentence for each reason to doubt the run `name`, with the verdict on its conditions."""
    conditions = info.get("conditions") or {}
    verdict = conditions.get("verdict", "measured")
    how = (
        "was measured by force, although the machine was too busy" if verdict == "refused" else "is in doubt"
    )
    said = [f"{name} {how}: {doubt['observed']}; {doubt['remedy']}" for doubt in conditions.get("doubts", [])]
    return said if said or verdict == "measured" else [f"{name} {how}"]


def read_json(path: Path) -> Any:  # noqa: ANN401 (any value JSON can hold)
    """Returns the JSON in `path`. Raises `FileNotFoundError` for a missing file, and `RunFileError` for an
    unreadable or invalid file.
    """

    def refuse(name: str) -> float:
        raise ValueError(f"{name} is not JSON")

    if path.exists() and not path.is_file():
        # A pipe, for example, would block the reader.
        raise RunFileError(f"{path} cannot be read: it is not a regular file")
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise RunFileError(f"{path} cannot be read: {error}") from error


def read_table(path: Path, columns: list[str]) -> pd.DataFrame:
    """Returns columns of an Arrow file of a run, with lanes and phases as categories. Raises
    `RunFileError`.
    """
    try:
        with pa.OSFile(str(path)) as source:
            table = pa.ipc.open_file(source).read_all().select(columns)
            _check_columns(path, table)
            for name in {"lane", "phase"} & set(columns):
                at = table.schema.get_field_index(name)
                table = table.set_column(at, name, table[name].dictionary_encode())
            return table.to_pandas()
    except (OSError, pa.ArrowException, KeyError) as error:
        raise RunFileError(f"{path} cannot be read: {error}") from error


def _check_columns(path: Path, table: pa.Table) -> None:
    """Raises `RunFileError` if a column has the wrong type, missing values or negative numbers."""
    for name, column in zip(table.column_names, table.columns, strict=True):
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if name in ("lane", "phase"):
            is_right = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        elif name == "ok":
            is_right = pa.types.is_boolean(kind)
        else:
            is_missing = name == "intended_ns" and pa.types.is_null(kind)
            is_right = pa.types.is_integer(kind) or pa.types.is_floating(kind) or is_missing
        lowest = pc.min(column).as_py() if is_right and name not in ("lane", "phase", "ok") else None
        is_finite = not pa.types.is_floating(kind) or pc.all(pc.is_finite(column)).as_py() is not False
        if not is_right or not is_finite or (lowest is not None and lowest < 0):
            raise RunFileError(f"{path}: the column {name} has values that no run has; measure again")
        if column.null_count and name != "intended_ns":
            raise RunFileError(f"{path}: the column {name} has gaps; measure again")


def _read_operations(path: Path, info: dict[str, Any]) -> pd.DataFrame:
    rows = read_table(path, OPERATION_COLUMNS)
    check_counts(path, info, rows)
    rows = rows[rows["ok"]]
    if info["kind"] == "compare":
        _check_bytes(path, info, rows)
    return _from_intended(rows.drop(columns="ok"))


def _check_bytes(path: Path, info: dict[str, Any], rows: pd.DataFrame) -> None:
    """Raises `RunFileError` if the bytes of the operations in `rows` differ from the summaries."""
    counted = rows.groupby(["phase", "lane"], observed=True)["bytes"].sum().to_dict()
    for at, summary in enumerate(info["summaries"]):
        found = counted.get((summary["phase"], summary["lane"]), 0)
        if found != summary["bytes"]:
            raise RunFileError(
                f"{path.parent / 'run.json'} is not a valid run: summaries[{at}].bytes is "
                f"{summary['bytes']}, but the operations of {path.name} have {found}; the file was changed "
                "or damaged. Measure again"
            )


def _from_intended(rows: pd.DataFrame) -> pd.DataFrame:
    late_ns = rows["start_ns"] - rows["intended_ns"].astype("float64")
    rows = rows.drop(columns=["start_ns", "intended_ns"])
    # A time shorter than a clock tick is recorded as 0. As in histograms, the recorded 0 counts as 1 ns.
    return rows.assign(duration_ns=(rows["duration_ns"] + late_ns.fillna(0)).clip(lower=1))
