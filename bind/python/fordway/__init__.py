"""S3 semantics over POSIX directories inside this process, or over HTTP, depending on the endpoint.

>>> store = fordway.open("file:///data/objects")
>>> store.put("bucket", "key", b"content")
>>> store.get("bucket", "key")
b'content'
"""

import io

from fordway import errors
from fordway._fordway import (
    BucketInfo,
    CommonPrefix,
    DeleteInfo,
    Entries,
    ListPage,
    ObjectInfo,
    ObjectSummary,
    ObjectWriter,
    PartSummary,
    PutInfo,
    RemoteFile,
    Store,
    Upload,
    UploadSummary,
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
    "DeleteInfo",
    "Entries",
    "FordwayError",
    "ListPage",
    "ObjectInfo",
    "ObjectSummary",
    "ObjectWriter",
    "PartSummary",
    "PutInfo",
    "RemoteFile",
    "Store",
    "Upload",
    "UploadSummary",
    "VersionSummary",
    "Versions",
    "__version__",
    "errors",
    "open",
    "open_url",
]

# Register the writer as a raw file of `io`, because some libraries check for this.
io.RawIOBase.register(ObjectWriter)
