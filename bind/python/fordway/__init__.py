"""Object stores with S3 semantics: POSIX directories that this process accesses directly, or servers.

The endpoint selects the directory or the server.

>>> store = fordway.open("file:///data/objects")
>>> store.put("bucket", "key", b"content")
>>> store.get("bucket", "key")
b'content'
"""

import importlib
import io

from fordway import errors
from fordway._fordway import (
    BucketInfo,
    CommonPrefix,
    DeleteInfo,
    Entries,
    ListPage,
    Mapped,
    ObjectInfo,
    ObjectStream,
    ObjectSummary,
    ObjectWriter,
    PartPage,
    PartSummary,
    PutInfo,
    RemoteFile,
    Store,
    Upload,
    UploadPage,
    UploadSummary,
    Versions,
    VersionSummary,
    __version__,
    open,  # noqa: A004 (the module's own `open`, always used with its name before it)
    open_url,
)
from fordway.errors import FordwayError

# `typing` takes longer to import than all of fordway, so only type checkers import it.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from fordway import aio as aio

__all__ = [
    "BucketInfo",
    "CommonPrefix",
    "DeleteInfo",
    "Entries",
    "FordwayError",
    "ListPage",
    "Mapped",
    "ObjectInfo",
    "ObjectStream",
    "ObjectSummary",
    "ObjectWriter",
    "PartPage",
    "PartSummary",
    "PutInfo",
    "RemoteFile",
    "Store",
    "Upload",
    "UploadPage",
    "UploadSummary",
    "VersionSummary",
    "Versions",
    "__version__",
    "errors",
    "open",
    "open_url",
]

# Register both classes as virtual subclasses of `io.RawIOBase`, because some libraries check for that base
# class.
io.RawIOBase.register(ObjectStream)
io.RawIOBase.register(ObjectWriter)

LAZY = ("aio", "boto", "fsspec", "torch", "zarr")
"""Modules that are imported on first use, because they are slow to import or need other packages."""


def __getattr__(name: str) -> "ModuleType":
    if name in LAZY:
        return importlib.import_module(f"fordway.{name}")
    raise AttributeError(f"module 'fordway' has no attribute {name!r}")
