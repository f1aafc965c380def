"""The objects to transfer: their sizes and directories, taken from a tree, a histogram or a list of sizes."""

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from fordway.model import quantities, read_csv, readers
from fordway.model.points import MeasurementError

COUNT_MAX = 10**15
"""Maximum plausible count of objects. A larger count indicates a wrong unit."""

COLUMNS = ["bytes", "count", "directories", "made_directories", "emptied_directories"]


@dataclass(frozen=True)
class Objects:
    """The objects to transfer. Each row describes a group of equal objects."""

    name: str
    rows: pd.DataFrame
    """The columns are `COLUMNS`: the size of an object, the count of objects of this size, and the numbers of
    directories that each object traverses, creates and empties.
    """
    notes: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Number of objects."""
        return int(self.rows["count"].sum())

    @property
    def bytes(self) -> float:
        """Total size of the objects."""
        return float((self.rows["bytes"] * self.rows["count"]).sum())

    @property
    def directories(self) -> int:
        """Number of directories that contain objects, directly or in subdirectories."""
        return round(float((self.rows["made_directories"] * self.rows["count"]).sum()))


def of_tree(path: Path) -> Objects:
    """Returns the regular files below `path`. Does not follow symbolic links. Raises `MeasurementError` if
    there are no files.
    """
    if not _is_directory(path):
        raise MeasurementError(
            f"{path} is not a directory: give the tree to transfer, or --histogram, or --sizes"
        )
    unreadable: list[OSError] = []
    sizes, depths = [], []
    holding: set[Path] = set()
    for size, directory in _files(path, unreadable):
        sizes.append(size)
        depths.append(len(directory.parts))
        if directory not in holding:
            holding |= {directory, *directory.parents}
    if not sizes:
        raise MeasurementError(
            f"{path} contains no regular file{_left_out(unreadable)}: there is nothing to transfer"
        )
    rows = pd.DataFrame({"bytes": sizes, "directories": depths}, dtype="float64")
    share = len(holding - {Path()}) / len(rows)
    rows = rows.groupby(["bytes", "directories"]).size().rename("count").reset_index()
    found = Objects(str(path), _complete(rows, share))
    if unreadable:
        found.notes.append(
            f"{len(unreadable)} file(s) or director(ies) of {path} could not be read: left out"
        )
    return found


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError as error:
        raise MeasurementError(f"{path} cannot be read: {error}") from error


def _left_out(unreadable: list[OSError]) -> str:
    return f" that can be read ({unreadable[0]})" if unreadable else ""


def _files(path: Path, unreadable: list[OSError]) -> Iterator[tuple[int, Path]]:
    """Yields the size of each regular file, and its directory relative to `path`."""
    for directory, _, names in os.walk(path, onerror=unreadable.append):
        here = Path(directory)
        relative = here.relative_to(path)
        for name in names:
            try:
                found = (here / name).lstat()
            except OSError as error:
                # The file was removed, or the directory permits listing but not access.
                unreadable.append(error)
                continue
            if stat.S_ISREG(found.st_mode):
                yield found.st_size, relative


def of_histogram(path: Path) -> Objects:
    """Returns the objects in a CSV file of sizes (`size_B`, `size_KiB`, ...) and `count`. Raises
    `MeasurementError`.
    """
    if _is_directory(path):
        raise MeasurementError(f"{path} is a directory: give it with --tree")
    table = read_csv.table(path.name, readers.text_of(path))
    reader = read_csv.Table(path.name, table)
    if "count" not in table:
        raise MeasurementError(
            f"{path.name} has no column 'count': a histogram has sizes (such as size_B) and counts"
        )
    rows = pd.DataFrame({"bytes": reader.with_unit(read_csv.SIZES, "size"), "count": reader.number("count")})
    return of_counts(path.name, rows)


def of_sizes(text: str) -> Objects:
    """Returns the objects of `SIZExCOUNT,...`, such as `4KiBx1000,1MiB`. Raises `MeasurementError`."""
    pairs = [_pair(part) for part in text.split(",")]
    return of_counts("the sizes", pd.DataFrame(pairs, columns=["bytes", "count"]))


def _pair(part: str) -> tuple[float, float]:
    found = re.fullmatch(r"\s*(.*?)\s*(?:[x×*]\s*([0-9]+))?\s*", part)
    try:
        size = quantities.parse(found[1], "size")
    except MeasurementError as error:
        if found[2] is None:
            raise
        raise MeasurementError(f"{part.strip()!r}: {error}") from error
    return size, float(found[2] or 1)


def of_counts(name: str, rows: pd.DataFrame) -> Objects:
    """Returns the objects of a table with `bytes` and `count`, whose directories are unknown. Raises
    `MeasurementError`.
    """
    for at, (size, count) in enumerate(rows.itertuples(index=False), 1):
        _check_row(f"{name} row {at}", size, count)
    rows = rows[rows["count"] > 0].groupby("bytes", as_index=False)["count"].sum()
    if rows.empty:
        raise MeasurementError(f"{name}: all counts are 0: there is nothing to transfer")
    note = f"{name} lists no directories: the cost of creating and listing them is left out; give --tree"
    return Objects(name, _complete(rows.assign(directories=0.0), 0.0), [note])


def _check_row(where: str, size: float, count: float) -> None:
    for what, value in (("size", size), ("count", count)):
        if not np.isfinite(value):
            raise MeasurementError(f"{where}: the {what} is missing or not a finite number")
        if value < 0 or value != np.floor(value):
            raise MeasurementError(
                f"{where}: the {what} is {value:g}; it must be a whole number of at least 0"
            )
        if value > (2**63 if what == "size" else COUNT_MAX):
            raise MeasurementError(
                f"{where}: the {what} is {value:g}, more than any file system holds: check its unit"
            )


def _complete(rows: pd.DataFrame, directories_each: float) -> pd.DataFrame:
    """Adds an equal share of the directories to each object.

    Each directory is created and emptied once. The total does not depend on which object creates or empties
    it.
    """
    each = {"made_directories": directories_each, "emptied_directories": directories_each}
    return rows.assign(**each)[COLUMNS].astype("float64")
