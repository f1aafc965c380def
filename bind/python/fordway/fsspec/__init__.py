"""Access to objects and to files on web servers through fsspec, for pandas, Dask, xarray, uproot, ...

The URL of an object is `fordway://BUCKET/KEY`. The `endpoint` option is passed to `fordway.open`:

>>> import pandas
>>> frame.to_parquet("fordway://bucket/frame.parquet", storage_options={"endpoint": "/data/objects"})
>>> pandas.read_parquet("fordway://bucket/frame.parquet", storage_options={"endpoint": "/data/objects"})

After `fordway.fsspec.register_s3()`, fsspec also uses Fordway for `s3://BUCKET/KEY`, instead of s3fs.

The address of a file on a web server is `fordway+https://HOST/PATH`. A few requests read many ranges:

>>> import fsspec
>>> files = fsspec.filesystem("fordway+https")
>>> files.cat_ranges(["https://data.example.org/events.root"] * 2, [0, 9_000], [400, 9_900])

uproot accepts this address, or plain `https://` after `fordway.fsspec.register()`. This module
needs the `fsspec` package (`pip install "fordway[fsspec]"`).
"""

from __future__ import annotations

import fsspec

from fordway.fsspec.objects import ObjectFileSystem, S3ObjectFileSystem
from fordway.fsspec.pyarrow_exit import wait_at_exit
from fordway.fsspec.web import FordwayFile, FordwayFileSystem

__all__ = [
    "FordwayFile",
    "FordwayFileSystem",
    "ObjectFileSystem",
    "S3ObjectFileSystem",
    "register",
    "register_s3",
]


def register() -> None:
    """Makes fsspec use `FordwayFileSystem` for `http://` and `https://` in this process."""
    for protocol in ("http", "https"):
        fsspec.register_implementation(protocol, FordwayFileSystem, clobber=True)


def register_s3() -> None:
    """Makes fsspec use `S3ObjectFileSystem` for `s3://` and `s3a://` in this process, instead of s3fs."""
    for protocol in S3ObjectFileSystem.protocol:
        fsspec.register_implementation(protocol, S3ObjectFileSystem, clobber=True)


wait_at_exit(ObjectFileSystem, FordwayFileSystem)
