"""S3 semantics over POSIX directories inside this process, or over HTTP: the endpoint decides.

>>> store = fordway.open("file:///data/objects")
>>> store.put("bucket", "key", b"content")
>>> store.get("bucket", "key")
b'content'
"""

from fordway import errors
from fordway._fordway import (
    BucketInfo,
    CommonPrefix,
    Entries,
    ObjectInfo,
    ObjectSummary,
    ObjectWriter,
    RemoteFile,
    Store,
    Versions,
    VersionSummary,
    __version__,
    open,  # noqa: A004 (the module's own `open`, always used with its name before it)
    open_url,
)
from fordway.errors import FordwayError

__all__ = [
    "BucketInfo",
    "CommonPrefix",
    "Entries",
    "FordwayError",
    "ObjectInfo",
    "ObjectSummary",
    "ObjectWriter",
    "RemoteFile",
    "Store",
    "VersionSummary",
    "Versions",
    "__version__",
    "errors",
    "open",
    "open_url",
]
