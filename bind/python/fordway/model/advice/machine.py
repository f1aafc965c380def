"""The measurements of a machine, read from its run files: the time of each successful operation, and the
bytes or entries that it accessed.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pandas as pd

from fordway.model.points import MeasurementError
from fordway.model.readers import refuse_repeated
from fordway.report import runfile, shape

OPERATION_COLUMNS = ["lane", "phase", "round", "block", "duration_ns", "bytes", "ok"]
BLOCK_COLUMNS = ["lane", "phase", "block", "elapsed_ns"]
OBJECT_COLUMNS = ["round", "bytes", "directories", "made_directories", "emptied_directories"]
DIRECTORIES = OBJECT_COLUMNS[2:]
LIST = "list"
OF_ALL = ("put", "head", "get", "delete")
"""Phases with one operation for each object, in the order of `objects.arrow`."""
OF_CONTENT = "range"
"""The phase that skips empty objects."""


@dataclass(frozen=True)
class Machine:
    """A machine, described by its runs."""

    runs: list[dict[str, Any]]
    """The `run.json` of each run."""
    lanes: list[str]
    phases: list[str]
    operations: pd.DataFrame
    """One row for each successful operation.

    The columns are `run`, `lane`, `phase`, `round`, `block`, `time_us` (the operation's share of its block's
    time), `bytes` (of the object, or of the range that was read), the counts of directories, and `objects`
    for a listing.
    """
    notes: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    """Reasons to doubt the runs, from the conditions in which they were measured."""

    @property
    def threads(self) -> int:
        """Number of concurrent calls."""
        parameters = self.runs[0]["parameters"]
        return int(parameters.get("threads", 1)) * int(parameters.get("clients", 1))

    @property
    def link(self) -> str | None:
        """The emulated link that the HTTP lanes were measured over, or `None`."""
        link = str(self.runs[0]["parameters"].get("link", "none"))
        return None if link == "none" else link

    @property
    def is_cold(self) -> bool:
        """Whether the content was not in the page cache when it was read."""
        return self.runs[0]["parameters"].get("cache") == "cold"

    @property
    def range_bytes_max(self) -> float:
        """Maximum length of a range read, in bytes. Infinite if the run does not limit it."""
        return float(self.runs[0]["parameters"].get("range_bytes_max", np.inf))

    @property
    def targets(self) -> dict[str, str]:
        """URLs of the lanes whose services the runs did not start."""
        return {lane: url for info in self.runs for lane, url in _targets(info).items()}


def read(paths: list[Path]) -> Machine:
    """Returns the machine measured by the runs in `paths`. Raises `MeasurementError` if they are unusable."""
    refuse_repeated(paths)
    infos, parts, notes = [], [], []
    for number, path in enumerate(paths):
        try:
            info = runfile.read_info(path)
            _check_targets(path, info)
            _check_numbers(path, info)
            parts.append(_operations(path, info, notes).assign(run=number))
        except runfile.RunFileError as error:
            raise MeasurementError(str(error)) from error
        infos.append(info)
    _alike(paths, infos)
    operations = pd.concat(parts, ignore_index=True)
    lanes = _in_order(infos, operations, "lane", lambda info: [lane["name"] for lane in info["lanes"]])
    phases = _in_order(infos, operations, "phase", lambda info: info["phases"])
    if not lanes or not phases:
        raise MeasurementError(f"{paths[0]} has no operations of its own lanes and phases: measure again")
    doubts = [
        said for path, info in zip(paths, infos, strict=True) for said in runfile.doubts_of(path.name, info)
    ]
    return Machine(infos, lanes, phases, operations, notes, doubts)


def _in_order(infos: list[dict[str, Any]], operations: pd.DataFrame, column: str, names: Any) -> list[str]:  # noqa: ANN401
    there = set(operations[column])
    return [name for name in dict.fromkeys(name for info in infos for name in names(info)) if name in there]


def _operations(path: Path, info: dict[str, Any], notes: list[str]) -> pd.DataFrame:
    if info["kind"] != "compare":
        raise MeasurementError(f"{path} is a run of {info['kind']}: advice needs a run of `fordway compare`")
    rows = runfile.read_table(path / "operations.arrow", OPERATION_COLUMNS)
    runfile.check_counts(path / "operations.arrow", info, rows)
    if not rows["ok"].any():
        raise MeasurementError(f"{path} has no successful operations, so there is nothing to predict from")
    rows = rows.astype({"lane": str, "phase": str, "bytes": "float64"})
    # A time shorter than a clock tick is recorded as 0. As in histograms, the recorded 0 counts as 1 ns.
    rows["duration_ns"] = rows["duration_ns"].astype("float64").clip(lower=1)
    rows = _with_objects(path, _with_shares(path, rows), notes)
    failed = int((~rows["ok"]).sum())
    if failed:
        notes.append(f"{path.name}: {failed} operation(s) failed and are left out")
    rows = rows[rows["ok"]]
    return rows.drop(columns=["ok", "duration_ns"])


def _with_shares(path: Path, rows: pd.DataFrame) -> pd.DataFrame:
    """Returns each operation with its share of the block's time. All threads share the time of a block."""
    blocks = runfile.read_table(path / "blocks.arrow", BLOCK_COLUMNS)
    keys = BLOCK_COLUMNS[:3]
    blocks = blocks.astype({"lane": str, "phase": str}).drop_duplicates(keys)
    blocks["elapsed_ns"] = blocks["elapsed_ns"].clip(lower=1)
    rows = rows.merge(blocks, on=keys, how="left")
    if rows["elapsed_ns"].isna().any():
        raise MeasurementError(
            f"{path}: blocks.arrow and operations.arrow belong to different runs: measure again"
        )
    whole_ns = rows.groupby(keys, sort=False)["duration_ns"].transform("sum")
    share = rows["duration_ns"] / whole_ns
    return rows.assign(time_us=share * rows["elapsed_ns"] / 1e3).drop(columns="elapsed_ns")


def _with_objects(path: Path, rows: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    """Returns each operation with its object. Every phase visits the objects of a round in the same order."""
    file = path / "objects.arrow"
    if not file.exists():
        notes.append(
            f"{path.name} has no objects.arrow (it was written by an older fordway): the cost of "
            "directories, and how head and delete depend on the size, are unknown"
        )
        return rows.assign(**dict.fromkeys(DIRECTORIES, np.nan), objects=np.nan)
    objects = runfile.read_table(file, OBJECT_COLUMNS).astype("float64")
    of_round, parts = dict(iter(objects.groupby("round"))), []
    for (_, phase, number), group in rows.groupby(["lane", "phase", "round"], sort=False):
        own = of_round.get(number, objects.iloc[:0])
        parts.append(_listing(group, own) if phase == LIST else _each(path, group, own, phase))
    return pd.concat(parts)


def _listing(rows: pd.DataFrame, objects: pd.DataFrame) -> pd.DataFrame:
    made = objects["made_directories"].sum()
    return rows.assign(objects=len(objects), directories=made, made_directories=0.0, emptied_directories=0.0)


def _each(path: Path, rows: pd.DataFrame, objects: pd.DataFrame, phase: str) -> pd.DataFrame:
    if phase == OF_CONTENT:
        objects = objects[objects["bytes"] > 0]
    moved = rows["bytes"].to_numpy()
    whole = phase in ("put", "get")
    if len(objects) != len(rows) or (whole and (moved != objects["bytes"])[rows["ok"].to_numpy()].any()):
        raise MeasurementError(
            f"{path}: objects.arrow and operations.arrow belong to different runs: measure again"
        )
    size = moved if phase == OF_CONTENT else objects["bytes"].to_numpy()
    counts = {name: objects[name].to_numpy() for name in DIRECTORIES}
    return rows.assign(bytes=size, objects=np.nan, **counts)


def _targets(info: dict[str, Any]) -> dict[str, Any]:
    return info["parameters"].get("targets") or {}


def _check_targets(path: Path, info: dict[str, Any]) -> None:
    targets = _targets(info)
    if not isinstance(targets, dict) or not all(isinstance(url, str) for url in targets.values()):
        raise MeasurementError(
            f"{path}: parameters.targets does not contain the URLs of lanes: measure again"
        )
    for lane, url in targets.items():
        try:
            urlsplit(url)
        except ValueError as error:
            raise MeasurementError(
                f"{path}: parameters.targets.{lane} is not a URL ({error}): measure again"
            ) from error


def _check_numbers(path: Path, info: dict[str, Any]) -> None:
    """Raises `MeasurementError` if a parameter that is used as a number is not one."""
    parameters = info["parameters"]
    for name in ("threads", "clients", "range_bytes_max"):
        if shape.problem(parameters.get(name, 1), shape.Version):
            raise MeasurementError(f"{path}: parameters.{name} is not a whole number from 1: measure again")


def _alike(paths: list[Path], infos: list[dict[str, Any]]) -> None:
    """Raises `MeasurementError` if the runs differ in the machine or its state."""
    for path, info in zip(paths[1:], infos[1:], strict=True):
        for what, value in (
            ("machine", lambda one: (one["machine"].get("cpu_model"), one["machine"].get("cpus"))),
            ("file system", _root),
            ("threads", lambda one: one["parameters"].get("threads")),
            ("client processes", lambda one: one["parameters"].get("clients", 1)),
            ("cache", lambda one: one["parameters"].get("cache", "warm")),
            ("link", lambda one: one["parameters"].get("link", "none")),
            ("durability", lambda one: one["parameters"].get("durability")),
            ("range size", lambda one: one["parameters"].get("range_bytes_max")),
        ):
            first, other = value(infos[0]), value(info)
            if first != other:
                raise MeasurementError(
                    f"{path} has a different {what} from {paths[0]} ({other}, not {first}): "
                    "use them one at a time"
                )


def _root(info: dict[str, Any]) -> str | None:
    """Returns the kind of the file system that contains the root, or `None` if it is unknown."""
    systems = info["machine"].get("file_systems") or []
    return next((each["kind"] for each in systems if each["role"] == "root"), None)
