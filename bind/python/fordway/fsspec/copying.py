"""Determines which objects fsspec's `cp`, `mv` and `get` copy, and to which keys or files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fsspec.core import has_magic
from fsspec.implementations.local import make_path_posix, trailing_sep
from fsspec.utils import other_paths

from fordway.errors import InvalidArgumentError
from fordway.fsspec.walking import prefix_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fordway.fsspec.objects import ObjectFileSystem

    Pairs = list[tuple[str, str]]

_PRIVATE_AREA = ".fordway"
"""The name of the private area in the directory of a bucket or root."""


@dataclass(frozen=True)
class CopyPlan:
    """The copies that one call makes."""

    pairs: Pairs
    """The sources with their targets."""
    trees: Pairs
    """The roots of the directories that are copied as a whole, with their targets."""

    @property
    def is_exact(self) -> bool:
        """Returns whether the pairs are the exact addresses of existing objects. Otherwise, a path without a
        slash at its end may also be a directory.
        """
        return bool(self.trees)


def planned_copies(
    fs: ObjectFileSystem,
    path1: str | list[str],
    path2: str | list[str],
    recursive: bool,
    maxdepth: int | None,
) -> CopyPlan:
    """Returns the copies from `path1` to `path2`, according to fsspec's rules for trailing slashes, wildcards
    and existing directories.

    Raises `InvalidArgumentError` if one copy would overwrite the source or target of another copy.
    """
    trees: Pairs = []
    if recursive and maxdepth is None and isinstance(path1, str) and isinstance(path2, str):
        trees = _planned_trees(fs, path1, path2)
    if trees:
        each = [pair for root, target in trees for pair in _pairs_of_tree(fs, root, target)]
    elif isinstance(path1, list) and isinstance(path2, list):
        each = _zipped(fs, path1, path2)
    else:
        sources = fs.expand_path(path1, recursive=recursive, maxdepth=maxdepth)
        if isinstance(path1, str) and (not recursive or maxdepth is not None):
            sources = [each for each in sources if not fs.isdir(each)]
        targets = path2 if isinstance(path2, list) else _targets(fs, path1, sources, path2)
        each = _zipped(fs, sources, targets)
    pairs = [(source, target) for source, target in dict.fromkeys(each) if source != target]
    _check_targets(pairs)
    return CopyPlan(pairs, trees)


def _zipped(fs: ObjectFileSystem, sources: list[str], targets: list[str]) -> Pairs:
    if len(sources) != len(targets):
        why = f"{len(sources)} sources and {len(targets)} targets; name one target for each source"
        raise InvalidArgumentError(why, "InvalidArgument")
    return list(zip(map(fs._strip_protocol, sources), map(fs._strip_protocol, targets), strict=True))


def _planned_trees(fs: ObjectFileSystem, path1: str, path2: str) -> Pairs:
    """Returns the roots of the directories to copy, with their targets; empty if `path1` is the directory of
    all buckets.
    """
    if has_magic(path1):
        # fsspec determines the targets of the roots from the names of all sources.
        names = fs.expand_path(path1, recursive=True)
        targets = dict(zip(names, _targets(fs, path1, names, path2), strict=True))
        roots = [name for name in fs.expand_path(path1) if name in targets]
    else:
        roots = [fs._strip_protocol(path1)]
        targets = dict(zip(roots, _targets(fs, path1, roots, path2), strict=True))
    return [(root, fs._strip_protocol(targets[root])) for root in roots if root]


def _pairs_of_tree(fs: ObjectFileSystem, root: str, target: str) -> Pairs:
    """Returns all objects of a directory, and an object at its own path, with their targets.

    Raises `FileNotFoundError` if there are none.
    """
    bucket, prefix = prefix_of(root)
    found = [f"{bucket}/{each.key}" for each in fs.store.list(bucket, prefix)]
    if prefix and not root.endswith("/"):
        if fs.isfile(root):
            found.insert(0, root)
        elif not found:
            # Raises the exception for a path that does not exist.
            fs.info(root)
    return [(source, f"{target}{source[len(root) :]}") for source in found]


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


def check_no_move_into_itself(plan: CopyPlan) -> None:
    """Raises `InvalidArgumentError` if a directory would become its own subdirectory."""
    directories = set(_parents(source for source, _ in plan.pairs))
    for source, target in [*plan.trees, *plan.pairs]:
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
    segments `..`, if the key has the segment `.fordway`, or if two objects have the same local path, such
    as `a/b` and `a//b`. Before version 2026.9, fsspec itself does not check the paths.
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
    _check_local_paths(lpath, dict(zip(sources, targets, strict=True)))
    return sources, targets


def _check_local_paths(lpath: str, targets: dict[str, str]) -> None:
    """Raises `InvalidArgumentError` if a local path is not in the directory `lpath`, if it may be in the
    private area of a bucket, or if two objects have the same local path.
    """
    top = os.path.abspath(lpath)  # noqa: PTH100 (links are not resolved)
    directories = set(_parents(targets))
    sources: dict[str, str] = {}
    for source, target in targets.items():
        path = os.path.abspath(target)  # noqa: PTH100
        if _PRIVATE_AREA in Path(os.path.relpath(path, top)).parts:
            why = f"{source} would be copied into the private area of a bucket; copy it alone to a named file"
            raise InvalidArgumentError(why, "InvalidArgument", source)
        if os.path.commonpath([top, path]) != top:
            why = f"{source} would be copied to {target}, outside of {lpath}; copy it alone, to a named file"
            raise InvalidArgumentError(why, "InvalidArgument", source)
        if source in directories or source.endswith("/"):
            continue
        if path in sources:
            why = f"{source} and {sources[path]} would both be copied to {path}; copy them one at a time"
            raise InvalidArgumentError(why, "InvalidArgument", source)
        sources[path] = source
