"""Starts gateways for tests of the lanes. Each gateway serves an empty directory, and stops when the tests
that use it end.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LANES = ("embedded", "node", "http")
KEYS = {"AWS_ACCESS_KEY_ID": "TESTKEY", "AWS_SECRET_ACCESS_KEY": "test-secret-key"}
READY = "fordway: serving "


def program() -> str:
    """Returns the binary at FORDWAY_BIN, or `fordway` on PATH. Skips the test if the binary is
    missing.
    """
    found = shutil.which(os.environ.get("FORDWAY_BIN", "fordway"))
    if found is None:
        pytest.skip("fordway is missing (set FORDWAY_BIN to the binary)")
    return found


@contextlib.contextmanager
def endpoint(lane: str, place: Path) -> Iterator[str]:
    """Yields the endpoint of an empty store in `place` on `lane`. The `http` lane requires `KEYS`."""
    root = place / "root"
    root.mkdir()
    if lane == "embedded":
        yield f"file://{root}"
        return
    if lane == "http":
        with serving(root) as address:
            yield address
        return
    with running("node", str(root), "--socket", str(place / "socket")):
        yield f"unix://{place}/socket"


@contextlib.contextmanager
def serving(root: Path, *options: str) -> Iterator[str]:
    """Yields the endpoint of a gateway that serves the directory `root` and requires the keys `KEYS`."""
    with running("serve", str(root), "--listen", "127.0.0.1:0", "--durability", "none", *options) as ready:
        yield ready.rsplit(" at ", 1)[1].strip()


@contextlib.contextmanager
def running(*words: str) -> Iterator[str]:
    """Runs `fordway WORDS`, which starts a gateway, and yields the line that it prints when ready."""
    command = [program(), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | KEYS) as gateway:
        try:
            ready = gateway.stdout.readline()
            assert ready.startswith(READY), f"not the ready line: {ready!r}"
            yield ready
        finally:
            gateway.terminate()
            assert gateway.wait(timeout=30) == 0
