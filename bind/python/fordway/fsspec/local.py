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
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Opens a new file, which replaces the file at `path` if the block succeeds.

    If the block fails, the file at `path` is unchanged. A symbolic link at `path` is kept, and its target is
    replaced. Devices and FIFOs are written directly.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        with target.open("wb") as file:
            yield file
        return
    part = target.with_name(f".{target.name[:200]}.{secrets.token_hex(4)}.part")
    try:
        with part.open("xb") as file:
            if target.exists():
                part.chmod(target.stat().st_mode & 0o7777)
            yield file
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
