"""Determines which objects fsspec's `cp`, `mv` and `get` copy, and to which keys or files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fsspec.core import has_magic
from fsspec.implementations.local import make_path_posix, trailing_sep
from fsspec.utils import other_paths

from fordway.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fordway.fsspec.objects import ObjectFileSystem

    Pairs = list[tuple[str, str]]


def planned_pairs(
    fs: ObjectFileSystem,
    path1: str | list[str],
    path2: str | list[str],
    recursive: bool,
    maxdepth: int | None,
) -> Pairs:
    """Returns each source with its target, according to fsspec's rules for trailing slashes, wildcards and
    existing directories.

    Sources include directories. Raises `InvalidArgumentError` if one copy would overwrite the source or
    target of another copy.
    """
    if isinstance(path1, list) and isinstance(path2, list):
        sources = path1
    else:
        sources = fs.expand_path(path1, recursive=recursive, maxdepth=maxdepth)
        if isinstance(path1, str) and (not recursive or maxdepth is not None):
            sources = [each for each in sources if not fs.isdir(each)]
    targets = path2 if isinstance(path2, list) else _targets(fs, path1, sources, path2)
    if len(sources) != len(targets):
        why = f"{len(sources)} sources and {len(targets)} targets; name one target for each source"
        raise InvalidArgumentError(why, "InvalidArgument")
    stripped = zip(map(fs._strip_protocol, sources), map(fs._strip_protocol, targets), strict=True)
    pairs = [(source, target) for source, target in dict.fromkeys(stripped) if source != target]
    _check_targets(pairs)
    return pairs


def _targets(fs: ObjectFileSystem, path1: str | list[str], sources: list[str], path2: str) -> list[str]:
    target = path2.rstrip("/")
    if not sources:
        return []
    if not isinstance(path1, str):
        return [f"{target}/{source.rpartition('/')[2]}" for source in sources]
    if has_magic(path1):
        return other_paths(sources, target, exists=len(sources) == 1)
    is_inside = not path1.endswith("/") and (path2.endswith("/") or fs.isdir(path2))
    root = fs._strip_protocol(path1)
    cut = len(root.rpartition("/")[0] if is_inside else root)
    return [target + source[cut:] if cut else f"{target}/{source}" for source in sources]


def _check_targets(pairs: Pairs) -> None:
    sources = {source for source, _ in pairs}
    targets: dict[str, str] = {}
    for source, target in pairs:
        if target in sources:
            why = f"{target} is both the target of {source} and a source; copy them one at a time"
            raise InvalidArgumentError(why, "InvalidArgument", target)
        if target in targets:
            why = f"{target} is the target of both {targets[target]} and {source}; copy them one at a time"
            raise InvalidArgumentError(why, "InvalidArgument", target)
        targets[target] = source


def check_no_move_into_itself(pairs: Pairs) -> None:
    """Raises `InvalidArgumentError` if a directory would become its own subdirectory."""
    directories = set(_parents(source for source, _ in pairs))
    for source, target in pairs:
        if source in directories and target.startswith(f"{source}/"):
            why = f"{source} cannot become its own subdirectory {target}; copy it instead"
            raise InvalidArgumentError(why, "InvalidArgument", source)


def _parents(paths: Iterable[str]) -> Iterable[str]:
    for path in paths:
        while path := path.rpartition("/")[0]:
            yield path


def planned_downloads(
    fs: ObjectFileSystem, rpath: str | list[str], lpath: str, recursive: bool, maxdepth: int | None
) -> tuple[list[str], list[str]]:
    """Returns the sources of `get` and their local paths, according to fsspec's rules.

    Raises `InvalidArgumentError` if a local path is not in the directory `lpath`, because the key has
    segments `..`. Before version 2026.9, fsspec itself does not check the paths.
    """
    sources = fs.expand_path(rpath, recursive=recursive, maxdepth=maxdepth)
    is_one_path = isinstance(rpath, str)
    if is_one_path and (not recursive or maxdepth is not None):
        sources = [each for each in sources if not trailing_sep(each) and not fs.isdir(each)]
    if not sources:
        return [], []
    root = make_path_posix(lpath)
    is_inside = False
    if is_one_path and has_magic(rpath):
        is_inside = len(sources) == 1
    elif is_one_path and not trailing_sep(rpath):
        is_inside = trailing_sep(root) or os.path.isdir(root)  # noqa: PTH112 (`Path` drops a trailing slash)
    targets = other_paths(sources, root, exists=is_inside, flatten=not is_one_path)
    top = os.path.abspath(root)  # noqa: PTH100 (links are not resolved)
    for source, target in zip(sources, targets, strict=True):
        if os.path.commonpath([top, os.path.abspath(target)]) != top:  # noqa: PTH100
            why = f"{source} would be copied to {target}, outside of {lpath}; copy it alone, to a named file"
            raise InvalidArgumentError(why, "InvalidArgument", source)
    return sources, targets
