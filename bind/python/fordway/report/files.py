"""The files that a report writes. A file is replaced as a whole, or not at all."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

HEAD_BYTES = 65_536
"""Number of bytes at the start of a page that are searched for the marks of a report."""

GENERATOR = '<meta name="generator" content="Fordway">'
"""The mark of a report."""

OLD_MARK = "· Fordway</title>"
"""The mark of a report of an older version."""


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary path. Moves the file to `path` at the end, or removes it after an error."""
    target = path.resolve()
    if target.exists() and not target.is_file():
        # A device or a pipe, such as /dev/stdout, must not be replaced by a file.
        yield target
        return
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        yield temporary
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def is_foreign(page: Path) -> bool:
    """Returns whether the page exists as a file with content that is not a Fordway report."""
    return page.is_file() and page.stat().st_size > 0 and not is_report(page)


def is_report(path: Path) -> bool:
    """Returns whether the file is a Fordway report."""
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES).decode("utf-8", errors="replace")
    return head.startswith("<!doctype html>") and (GENERATOR in head or OLD_MARK in head)


def remove_outdated(page: Path, runs: list[Path]) -> bool:
    """Removes the page if it is a report that is older than one of `runs`. Returns whether the page was
    removed.
    """
    try:
        made_ns = page.stat().st_mtime_ns
        if not page.is_file() or not is_report(page):
            return False
        if not any(_measured_ns(run) > made_ns for run in runs):
            return False
        page.unlink()
    except OSError:
        return False
    return True


def _measured_ns(run: Path) -> int:
    """Returns the time at which the files of a run were written, or 0 if there are no files."""
    try:
        return max(each.stat().st_mtime_ns for each in (run.iterdir() if run.is_dir() else [run]))
    except (OSError, ValueError):
        return 0
