"""An exit handler for programs that read through PyArrow.

PyArrow's threads release the file system of a dataset a little after the program has its result. A thread
that does so while Python ends aborts the process with "terminate called without an active exception" (PyArrow
issue 34314). Every file system of fsspec is affected. Python 3.14 and later stop such a thread instead.
"""

from __future__ import annotations

import atexit
import gc
import sys
import time
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fsspec.spec import AbstractFileSystem

LONGEST_WAIT_S = 0.2
"""A program that still has a dataset in a variable waits this long, and then ends as before."""


def wait_at_exit(*kinds: type[AbstractFileSystem]) -> None:
    """Makes the process wait at its end until PyArrow has released all file systems of these types.

    It waits for 0.2 s at most.
    """
    if sys.version_info < (3, 14):
        atexit.register(_wait, kinds)


def _wait(kinds: tuple[type[AbstractFileSystem], ...]) -> None:
    wrappers = _wrappers(kinds)
    end = time.monotonic() + LONGEST_WAIT_S
    while any(wrapper() is not None for wrapper in wrappers) and time.monotonic() < end:
        time.sleep(0.001)


def _wrappers(kinds: tuple[type[AbstractFileSystem], ...]) -> list[weakref.ref]:
    """The objects by which PyArrow refers to file systems of these types.

    Empty unless the program has used PyArrow.
    """
    pyarrow = sys.modules.get("pyarrow.fs")
    if pyarrow is None:
        return []
    found = (thing for thing in gc.get_objects() if type(thing) is pyarrow.FSSpecHandler)
    return [weakref.ref(wrapper) for wrapper in found if isinstance(wrapper.fs, kinds)]
