"""Objects and files at web servers, for programs that use fsspec: pandas, Dask, xarray, zarr, uproot, ...

Objects have addresses `fordway://BUCKET/KEY`, on every lane; the option `endpoint` is that of `fordway.open`:

>>> import pandas
>>> frame.to_parquet("fordway://bucket/frame.parquet", storage_options={"endpoint": "/data/objects"})
>>> pandas.read_parquet("fordway://bucket/frame.parquet", storage_options={"endpoint": "/data/objects"})

After `fordway.fsspec.register_s3()`, the addresses `s3://BUCKET/KEY` lead there too, in place of s3fs.

Files at web servers have addresses `fordway+https://HOST/PATH`, and many ranges of one come in few requests:

>>> import fsspec
>>> files = fsspec.filesystem("fordway+https")
>>> files.cat_ranges(["https://data.example.org/events.root"] * 2, [0, 9_000], [400, 9_900])

uproot takes such an address, or `https://` itself after `fordway.fsspec.register()`. All this needs the
package `fsspec` (`pip install "fordway[fsspec]"`).
"""

from __future__ import annotations

import fsspec

from fordway.fsspec.objects import ObjectFileSystem, S3ObjectFileSystem
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
    """Has fsspec read `http://` and `https://` by `FordwayFileSystem` in this process."""
    for protocol in ("http", "https"):
        fsspec.register_implementation(protocol, FordwayFileSystem, clobber=True)


def register_s3() -> None:
    """Has fsspec take `s3://` and `s3a://` to `S3ObjectFileSystem` in this process, in place of s3fs."""
    for protocol in S3ObjectFileSystem.protocol:
        fsspec.register_implementation(protocol, S3ObjectFileSystem, clobber=True)
