"""A store for Zarr on every lane.

>>> store = fordway.zarr.ZarrStore("bucket", "run/1.zarr", endpoint="file:///data/objects")
>>> zarr.open_group(store, mode="w")

Zarr also reads and writes `fordway://BUCKET/PATH` through fsspec. This class has fewer layers: each chunk is
one call of the store, on a thread. Needs zarr 3 (`pip install zarr`).
"""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from zarr.abc.store import OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import Buffer, default_buffer_prototype

import fordway
from fordway import aio
from fordway.errors import FordwayError, InvalidArgumentError, NotFoundError, PreconditionFailedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from zarr.abc.store import ByteRequest
    from zarr.core.buffer import BufferPrototype

__all__ = ["ZarrStore"]

DELETE_KEYS = 1000
"""Maximum number of objects in one delete request of S3."""
CONFLICTS_MAX = 8
"""The maximum number of attempts of `set_if_not_exists`, if the service asks for a retry."""
CONFLICT_WAIT_S = 0.05
"""The wait before the second attempt, in seconds. It grows with each attempt."""


class ZarrStore(Store):
    """The objects of a bucket whose keys begin with `prefix` and a slash, as a store of Zarr.

    `endpoint` is passed to `fordway.open`; without it, the environment determines the endpoint. A chunk is
    written as a whole or not at all. Several processes may write different chunks at the same time. A
    pickled store opens its endpoint again.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        endpoint: str | Path | None = None,
        read_only: bool = False,
    ) -> None:
        super().__init__(read_only=read_only)
        self.bucket = bucket
        self.prefix = prefix.strip("/")
        self.endpoint = str(endpoint.resolve()) if isinstance(endpoint, Path) else endpoint
        self.store = aio.open(endpoint)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ZarrStore) and self._identity() == other._identity()

    __hash__ = None  # type: ignore[assignment] # like the stores of Zarr

    def _identity(self) -> tuple[str, str, str | None, bool]:
        return self.bucket, self.prefix, self.endpoint, self.read_only

    def __repr__(self) -> str:
        where = "" if self.endpoint is None else f", endpoint={self.endpoint!r}"
        return f"ZarrStore({self.bucket!r}, {self.prefix!r}{where})"

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return _reopened, self._identity()

    def with_read_only(self, read_only: bool = False) -> Self:
        """Returns a store of the same objects that only reads, or that also writes."""
        return type(self)(self.bucket, self.prefix, endpoint=self.endpoint, read_only=read_only)

    supports_writes = True
    supports_deletes = True
    supports_listing = True
    # Until zarr 3.1.2, a store must define the two names that follow.
    supports_partial_writes = False

    async def set_partial_values(self, key_start_values: Iterable[tuple[str, int, bytes]]) -> None:
        """Raises `NotImplementedError`, because an object is only written as a whole."""
        raise NotImplementedError("an object is only written as a whole")

    def _key(self, key: str) -> str:
        return f"{self.prefix}/{key}" if self.prefix else key

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Returns the value of `key`, or a range of it; `None` if there is none. Costs one call."""
        return await self.store.run(self._get, key, prototype, byte_range)

    def get_sync(
        self, key: str, *, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Does what `get` does, on the thread of the caller."""
        return self._get(self.store.store, key, prototype or default_buffer_prototype(), byte_range)

    def _get(
        self, store: fordway.Store, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None
    ) -> Buffer | None:
        asked = _range_of(byte_range)
        try:
            if asked.get("length") == 0:
                # The store refuses ranges without bytes; Zarr's own stores return an empty buffer.
                store.head(self.bucket, self._key(key))
                content = b""
            else:
                content = store.get(self.bucket, self._key(key), **asked)
        except (NotFoundError, IsADirectoryError) as error:
            _check_bucket(error)
            return None
        except InvalidArgumentError as error:
            if error.kind != "InvalidRange":
                raise
            content = b""
        return prototype.buffer.from_bytes(content)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """Returns ranges of values, in the given order. Each range is one call; calls run concurrently."""
        asked = (self.get(key, prototype, byte_range) for key, byte_range in key_ranges)
        return list(await asyncio.gather(*asked))

    async def exists(self, key: str) -> bool:
        """Returns whether `key` has a value."""
        try:
            await self.store.head(self.bucket, self._key(key))
        except (NotFoundError, IsADirectoryError) as error:
            _check_bucket(error)
            return False
        return True

    async def set(self, key: str, value: Buffer) -> None:
        """Stores a value, as a whole or not at all."""
        await self.store.run(self._put, key, value)

    def set_sync(self, key: str, value: Buffer) -> None:
        """Does what `set` does, on the thread of the caller."""
        self._put(self.store.store, key, value)

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        """Stores a value unless the key has one. If several processes do this, exactly one of them stores.

        Raises `PreconditionFailedError` if the service cannot decide, because of other requests for the key.
        """
        for attempt in itertools.count(1):
            try:
                await self.store.run(self._put, key, value, if_none_match="*")
            except PreconditionFailedError as error:
                if error.kind == "PreconditionFailed":
                    return
                # The service asks for a retry (HTTP 409), and may have stored no value.
                if attempt == CONFLICTS_MAX:
                    raise
                await asyncio.sleep(CONFLICT_WAIT_S * attempt)
            else:
                return

    def _put(
        self, store: fordway.Store, /, key: str, value: Buffer, *, if_none_match: str | None = None
    ) -> None:
        self._check_writable()
        if not isinstance(value, Buffer):
            raise TypeError(f"the value of a key is a Buffer of Zarr, and not {type(value)}")
        store.put(self.bucket, self._key(key), value.as_numpy_array(), if_none_match=if_none_match)

    async def delete(self, key: str) -> None:
        """Removes a value. Does nothing if there is none."""
        await self.store.run(self._delete, key)

    def delete_sync(self, key: str) -> None:
        """Does what `delete` does, on the thread of the caller."""
        self._delete(self.store.store, key)

    def _delete(self, store: fordway.Store, key: str) -> None:
        self._check_writable()
        store.delete(self.bucket, self._key(key))

    async def delete_dir(self, prefix: str) -> None:
        """Removes all values below `prefix`, a thousand in a request."""
        self._check_writable()
        keys: list[str] = []
        async for key in self._keys(_directory(prefix)):
            keys.append(self._key(key))
            if len(keys) == DELETE_KEYS:
                await self._delete_many(keys)
                keys.clear()
        await self._delete_many(keys)

    async def _delete_many(self, keys: list[str]) -> None:
        for failure in await self.store.delete_many(self.bucket, keys) if keys else ():
            if failure is not None:
                raise failure

    async def list(self) -> AsyncIterator[str]:
        """Iterates over all keys, in byte order."""
        async for key in self.list_prefix(""):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Iterates over the keys that begin with `prefix`, in byte order, without directory markers."""
        async for key in self._keys(prefix):
            if key and not key.endswith("/"):
                yield key

    async def _keys(self, prefix: str) -> AsyncIterator[str]:
        start = len(self._key(""))
        async for entry in self.store.list(self.bucket, self._key(prefix)):
            if isinstance(entry, fordway.ObjectSummary):
                yield entry.key[start:]

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Iterates over the names directly below `prefix`: values and directories, without their path."""
        below = self._key(_directory(prefix))
        async for entry in self.store.list(self.bucket, below, "/"):
            path = entry.prefix if isinstance(entry, fordway.CommonPrefix) else entry.key
            # The name of the marker of the directory itself is empty.
            if name := path[len(below) :].rstrip("/"):
                yield name

    async def getsize(self, key: str) -> int:
        """Returns the size of a value in bytes. Raises `FileNotFoundError`."""
        return (await self.store.head(self.bucket, self._key(key))).size


def _reopened(bucket: str, prefix: str, endpoint: str | None, read_only: bool) -> ZarrStore:
    return ZarrStore(bucket, prefix, endpoint=endpoint, read_only=read_only)


def _check_bucket(error: BaseException) -> None:
    """Raises the error if the bucket does not exist: then all chunks would be taken for missing ones."""
    if isinstance(error, FordwayError) and error.kind == "NoSuchBucket":
        raise error


def _directory(prefix: str) -> str:
    return f"{prefix.rstrip('/')}/" if prefix else ""


def _range_of(asked: ByteRequest | None) -> dict[str, Any]:
    """Returns the arguments of a get for a range."""
    match asked:
        case None:
            return {}
        case RangeByteRequest(start, end):
            return {"start": start, "length": end - start}
        case OffsetByteRequest(offset):
            return {"start": offset}
        case SuffixByteRequest(suffix):
            return {"start": -suffix, "length": suffix}
    raise TypeError(f"Unexpected byte_range, got {asked}.")
