"""An exit handler for programs that read through PyArrow.

PyArrow's threads release the file system of a dataset shortly after the program has received the result. A
thread that releases a file system while Python exits aborts the process with "terminate called without an
active exception" (PyArrow issue 34314). Every file system of fsspec is affected. Python 3.14 and later stop
this thread instead.
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
"""The maximum wait. A program that still has a dataset in a variable waits this long before it exits."""


def wait_at_exit(*kinds: type[AbstractFileSystem]) -> None:
    """Makes the process wait at exit until PyArrow has released all file systems of these types.

    The wait takes at most 0.2 s.
    """
    if sys.version_info < (3, 14):
        atexit.register(_wait, kinds)


def _wait(kinds: tuple[type[AbstractFileSystem], ...]) -> None:
    wrappers = _wrappers(kinds)
    end = time.monotonic() + LONGEST_WAIT_S
    while any(wrapper() is not None for wrapper in wrappers) and time.monotonic() < end:
        time.sleep(0.001)


def _wrappers(kinds: tuple[type[AbstractFileSystem], ...]) -> list[weakref.ref]:
    """Returns the objects through which PyArrow refers to file systems of these types.

    The list is empty if the program has not used PyArrow.
    """
    pyarrow = sys.modules.get("pyarrow.fs")
    if pyarrow is None:
        return []
    found = (thing for thing in gc.get_objects() if type(thing) is pyarrow.FSSpecHandler)
    return [weakref.ref(wrapper) for wrapper in found if isinstance(wrapper.fs, kinds)]
