"""Readers for all supported files of measurements. The content determines the format, not the file name."""

import contextlib
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fordway.model import read_csv, read_run, read_text
from fordway.model.points import MeasurementError, Points, joined


@dataclass(frozen=True)
class Choice:
    """Options for files that contain several statistics, lanes or phases, or that do not contain sizes."""

    statistic: str = "auto"
    """`mean`, `p50`, or `auto`, which means mean times if they exist, otherwise medians."""
    lane: str | None = None
    phase: str | None = None
    size_bytes: float | None = None
    server: Sequence[Path] = field(default_factory=tuple)
    """Output of likwid-perfctr for the server, one file for each output of a load generator, in the same
    order.
    """


def read(paths: Sequence[Path], choice: Choice) -> Points:
    """Returns the measurements in `paths`, in order. Raises `MeasurementError`."""
    refuse_repeated(paths)
    server = list(choice.server)
    parts = []
    for path in paths:
        parts.append(_read(path, choice, server[:1]))
        if server and path.is_file():
            server = server[1:]
    if server:
        raise MeasurementError(
            f"{server[0]} is left over: give one file of server counters for each output of a load generator"
        )
    return joined(parts)


def refuse_repeated(paths: Sequence[Path]) -> None:
    """Raises `MeasurementError` if two of `paths` are the same measurements, even under different names.
    Counting measurements twice would make them appear more certain than they are.
    """
    known: dict[bytes, Path] = {}
    for path in paths:
        # Files that cannot be read are refused later, with the reason.
        with contextlib.suppress(OSError):
            digest = _digest(path)
            if digest in known:
                raise MeasurementError(
                    f"{path} has the same measurements as {known[digest]}: give each file once"
                )
            known[digest] = path


def _digest(path: Path) -> bytes:
    """Returns a digest of a file, or of the description and the operations of a run."""
    names = ("run.json", "operations.arrow")
    files = [path / name for name in names if (path / name).exists()] if path.is_dir() else [path]
    digest = hashlib.sha256()
    for each in files:
        with each.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.digest()


def text_of(path: Path) -> str:
    """Returns the text of a file. Raises `MeasurementError` if the file is unreadable or empty."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise MeasurementError(f"{path} cannot be read: {error}") from error
    if not text.strip():
        raise MeasurementError(f"{path} is empty")
    return text


def _read(path: Path, choice: Choice, server: Sequence[Path]) -> Points:
    if path.is_dir():
        return read_run.read_directory(path, choice.statistic, choice.lane, choice.phase)
    text = text_of(path)
    if text.lstrip()[0] in "{[":
        return read_run.read_json(path.name, text, choice.statistic, choice.lane)
    if read_text.is_load(text):
        return read_text.read(path.name, text, choice.statistic, choice.size_bytes, server)
    if {",", ";", "\t"} & set(read_csv.header(text)):
        return read_csv.read(path.name, text, choice.statistic)
    raise MeasurementError(
        f"{path} has an unknown format: give a run directory, JSON of `bench rest`, a CSV with named "
        "columns, or the output of wrk, wrk2 or h2load"
    )
