"""Local files that downloads create or replace."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO


@contextlib.contextmanager
def opened_target(lpath: str | os.PathLike[str] | BinaryIO, outfile: BinaryIO | None) -> Iterator[BinaryIO]:
    """Yields the file to which `get_file` copies: an open file of the program, or a new file.

    A new file replaces the file at `lpath` if the block succeeds. If the block fails, the file at `lpath` is
    unchanged. Missing parent directories are created. A symbolic link at `lpath` is kept, and its target is
    replaced. Devices and FIFOs are written directly.
    """
    if hasattr(lpath, "write"):
        outfile = lpath
    if outfile is not None:
        yield outfile
        return
    target = Path(os.path.realpath(lpath))
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists() and not target.is_file():
        with target.open("wb") as file:
            yield file
        return
    part = target.with_name(f".fordway-{secrets.token_hex(8)}.part")
    try:
        with part.open("xb") as file:
            if target.exists():
                part.chmod(target.stat().st_mode & 0o7777)
            yield file
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
