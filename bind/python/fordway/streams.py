"""Readable files for objects."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING

from fordway.errors import InvalidArgumentError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

    from fordway import ObjectInfo, Store


class ObjectReader(io.RawIOBase):
    """A readable, seekable file with the version of an object that existed when the file was opened.

    `Store.reader` returns this file. Each read is a call to the store, so wrap the file in
    `io.BufferedReader` for small reads.
    """

    def __init__(self, store: Store, bucket: str, key: str, version: str | None = None) -> None:
        super().__init__()
        self._store, self._bucket, self._key, self._version = store, bucket, key, version
        self._info = store.head(bucket, key, version=version)
        self._position = 0

    @property
    def info(self) -> ObjectInfo:
        """The properties of the object."""
        return self._info

    def readable(self) -> bool:
        """Returns true."""
        return True

    def seekable(self) -> bool:
        """Returns true."""
        return True

    def tell(self) -> int:
        """Returns the position of the next read, in bytes from the start."""
        self._check_open()
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Moves to `offset`, which is relative to the position selected by `whence`. Returns the new
        position.
        """
        self._check_open()
        starts = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._info.size}
        if whence not in starts:
            raise InvalidArgumentError(f"whence is {whence!r}; use 0, 1 or 2", "InvalidArgument")
        position = starts[whence] + offset
        if position < 0:
            raise InvalidArgumentError(f"a seek to byte {position}; count bytes from 0", "InvalidArgument")
        self._position = position
        return position

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Reads into `buffer`, and returns the number of bytes read, which is 0 at the end of the object."""
        self._check_open()
        if self._position >= self._info.size or not memoryview(buffer).nbytes:
            return 0
        read = self._store.get_into(
            self._bucket,
            self._key,
            buffer,
            start=self._position,
            version=self._version,
            if_match=self._info.etag,
        )
        self._position += read
        return read

    def readall(self) -> bytes:
        """Reads the rest of the object in one call."""
        self._check_open()
        if self._position >= self._info.size:
            return b""
        data = self._store.get(
            self._bucket,
            self._key,
            start=self._position,
            version=self._version,
            if_match=self._info.etag,
        )
        self._position += len(data)
        return data

    def _read_at(self, position: int, size: int) -> bytes:
        """Returns `size` bytes from `position`, or all bytes if `size` is negative. Returns fewer bytes only
        at the end of the object. The position of the file stays the same. Used by `fordway.aio`.
        """
        self._check_open()
        if position >= self._info.size or size == 0:
            return b""
        return self._store.get(
            self._bucket,
            self._key,
            start=position,
            length=None if size < 0 else size,
            version=self._version,
            if_match=self._info.etag,
        )

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file.")
