"""Walks over directories, including directories whose names are empty."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Details = dict[str, Any]


def prefix_of(path: str) -> tuple[str, str]:
    """Returns the bucket of a directory, and the prefix of the keys below the directory.

    The path must be one that a listing returned. The path of the directory `a//` ends with a slash
    (`BUCKET/a/`), because the name of the directory is empty.
    """
    bucket, slash, key = path.partition("/")
    return bucket, f"{key}/" if slash else ""


def walked(
    entries_of: Callable[[str], list[Details]],
    path: str,
    depth: int | None,
    topdown: bool,
    on_error: Callable[[OSError], None],
) -> Iterator[tuple[str, dict[str, Details], dict[str, Details]]]:
    """Yields a directory and the directories below it, each with the entries for its subdirectories and files
    by name. `entries_of` returns the entries of a directory.

    fsspec's own walk omits directories whose names are empty.
    """
    try:
        entries = entries_of(path)
    except OSError as error:
        on_error(error)
        return
    directories, files = {}, {}
    for entry in entries:
        # If `path` is an object, it is its own entry, without a name.
        name = "" if entry["name"] == path else entry["name"].rpartition("/")[2]
        (directories if entry["type"] == "directory" else files)[name] = entry
    if topdown:
        yield path, directories, files
    if depth is None or depth > 1:
        below = None if depth is None else depth - 1
        for name in directories:
            yield from walked(entries_of, f"{path}/{name}" if path else name, below, topdown, on_error)
    if not topdown:
        yield path, directories, files
