"""The methods of a store as coroutines for `asyncio`. Each call runs on a thread, so that it never blocks the
event loop.

>>> async with fordway.aio.open("file:///data/objects") as store:
...     await store.put("bucket", "key", b"content")

`upload` and `resume_upload` return an `AsyncUpload`, whose methods are coroutines as well:

>>> async with await store.upload("bucket", "key") as upload:
...     await upload.put_part(1, b"content")

`stream`, `reader` and `writer` return an `AsyncStream`, an `AsyncReader` and an `AsyncWriter`:

>>> async with await store.writer("bucket", "key") as writer:
...     await writer.write(b"content")

Cancelling a call also stops the call on its thread. A call that waits for a server stops within about 0.1 s.
A call that works on local files stops before its next step. For example, a `put` of an iterable is discarded
if it is cancelled before the last piece has been written. A cancelled `get_into` returns only after it has
stopped writing into the buffer. A call that begins an upload continues for up to 5 s, and then aborts the
upload, because the caller has not received the ID of the upload.

A cancelled call may still take effect, because the server may already have received the request. A `put`
that was cancelled may thus replace the object of a later `put`. The conditions `if_match` and `if_none_match`
prevent this replacement.

To limit the time of every call, pass `timeout` to `open` (`http` lane), or use `asyncio.timeout`. A store
runs up to `threads` calls at a time (default 32); further calls wait. Clean-ups, for example the abort of an
upload, run on additional threads.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import AsyncIterable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

import fordway
from fordway import aio_uploads
from fordway.aio_calls import CallThreads
from fordway.aio_files import AsyncReader, AsyncStream, AsyncWriter
from fordway.aio_uploads import AsyncUpload

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
    from os import PathLike
    from types import TracebackType

    from fordway import CommonPrefix, ObjectInfo, ObjectStream, ObjectSummary, VersionSummary
    from fordway._fordway import ObjectData, ReadableBuffer

__all__ = ["THREADS", "AsyncReader", "AsyncStore", "AsyncStream", "AsyncUpload", "AsyncWriter", "open"]

P = ParamSpec("P")
T = TypeVar("T")
U = TypeVar("U")

THREADS = 32
"""The default maximum number of concurrent calls of one store."""
BATCH = 1000
"""The maximum number of entries that are read from an iterator in one call."""


def open(  # noqa: A001 (like `fordway.open`)
    endpoint: str | PathLike[str] | None = None,
    *,
    timeout: float | None = None,
    retries: int | None = None,
    threads: int = THREADS,
) -> AsyncStore:
    """Opens the store at `endpoint`, with the same arguments as `fordway.open`.

    `timeout` limits the time of each call on the `http` lane, in seconds. `threads` is the maximum number of
    calls that run at the same time; further calls wait.
    """
    return AsyncStore(fordway.open(endpoint, timeout=timeout, retries=retries), threads=threads)


def _named(call: Callable[..., Any], method: Callable[..., Any]) -> None:
    """Copies the name, docstring and signature of `method` to `call`, a method of `AsyncStore`."""
    functools.update_wrapper(call, method)
    call.__module__, call.__qualname__ = __name__, f"AsyncStore.{method.__name__}"


def _twin(
    method: Callable[Concatenate[fordway.Store, P], T],
) -> Callable[Concatenate[AsyncStore, P], Coroutine[Any, Any, T]]:
    """Returns the coroutine function that runs `method` on a thread."""

    async def call(self: AsyncStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.run(method, *args, **kwargs)

    _named(call, method)
    return call


def _fills(
    method: Callable[Concatenate[fordway.Store, P], T],
) -> Callable[Concatenate[AsyncStore, P], Coroutine[Any, Any, T]]:
    """Returns the coroutine function that runs `method` on a thread. If the coroutine is cancelled, it waits
    until `method` no longer writes into the memory of the caller.
    """

    async def call(self: AsyncStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._threads.run_to_end(functools.partial(method, self.store, *args, **kwargs))

    _named(call, method)
    return call


def _opens(
    method: Callable[Concatenate[fordway.Store, P], T], opened: Callable[[CallThreads, T], U]
) -> Callable[Concatenate[AsyncStore, P], Coroutine[Any, Any, U]]:
    """Returns the coroutine function that runs `method` on a thread, and returns `opened(result)`."""

    async def call(self: AsyncStore, /, *args: P.args, **kwargs: P.kwargs) -> U:
        return opened(self._threads, await self.run(method, *args, **kwargs))

    _named(call, method)
    return call


def _stream(threads: CallThreads, found: tuple[ObjectStream, ObjectInfo]) -> tuple[AsyncStream, ObjectInfo]:
    return AsyncStream(threads, found[0]), found[1]


def _begins(
    method: Callable[Concatenate[fordway.Store, P], fordway.Upload],
) -> Callable[Concatenate[AsyncStore, P], Coroutine[Any, Any, AsyncUpload]]:
    """Returns the coroutine function that starts an upload on a thread."""

    async def call(self: AsyncStore, /, *args: P.args, **kwargs: P.kwargs) -> AsyncUpload:
        begin = functools.partial(method, self.store, *args, **kwargs)
        return await aio_uploads.begin(self._threads, begin)

    _named(call, method)
    return call


class AsyncStore:
    """An asyncio version of `fordway.Store`, with the same arguments, results and errors.

    As an asynchronous context manager, a store is closed at the end of its block. If the block raises an
    exception, the calls in progress are cancelled. A forked child can use the store of its parent. Unpickling
    a store opens it again.
    """

    def __init__(self, store: fordway.Store, *, threads: int = THREADS) -> None:
        self.store = store
        self._threads = CallThreads(threads)

    def __reduce__(self) -> tuple[Callable[..., AsyncStore], tuple[fordway.Store]]:
        return functools.partial(type(self), threads=self._threads.count), (self.store,)

    @property
    def lane(self) -> str:
        """The lane of the store: `embedded`, `node` or `http`."""
        return self.store.lane

    @property
    def closed(self) -> bool:
        """True if the store is closed."""
        return self.store.closed

    async def run(
        self, method: Callable[Concatenate[fordway.Store, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Runs `method` on a thread, with the store as its first argument. `method` can be any function that
        accepts a store.
        """
        return await self._threads.run(functools.partial(method, self.store, *args, **kwargs))

    list_buckets = _twin(fordway.Store.list_buckets)
    create_bucket = _twin(fordway.Store.create_bucket)
    head_bucket = _twin(fordway.Store.head_bucket)
    delete_bucket = _twin(fordway.Store.delete_bucket)
    versioning = _twin(fordway.Store.versioning)
    set_versioning = _twin(fordway.Store.set_versioning)
    put_with_info = _twin(fordway.Store.put_with_info)
    put_many = _twin(fordway.Store.put_many)
    get = _twin(fordway.Store.get)
    get_with_info = _twin(fordway.Store.get_with_info)
    get_into = _fills(fordway.Store.get_into)
    get_ranges = _twin(fordway.Store.get_ranges)
    get_many = _twin(fordway.Store.get_many)
    map = _twin(fordway.Store.map)
    head = _twin(fordway.Store.head)
    head_many = _twin(fordway.Store.head_many)
    delete = _twin(fordway.Store.delete)
    delete_many = _twin(fordway.Store.delete_many)
    copy = _twin(fordway.Store.copy)
    tags = _twin(fordway.Store.tags)
    set_tags = _twin(fordway.Store.set_tags)
    list_uploads = _twin(fordway.Store.list_uploads)
    uploads_page = _twin(fordway.Store.uploads_page)
    list_page = _twin(fordway.Store.list_page)

    stream = _opens(fordway.Store.stream, _stream)
    reader = _opens(fordway.Store.reader, AsyncReader)
    writer = _opens(fordway.Store.writer, AsyncWriter)
    upload = _begins(fordway.Store.upload)

    async def put(
        self,
        bucket: str,
        key: str,
        data: ObjectData | AsyncIterable[ReadableBuffer],
        *,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
        if_none_match: str | None = None,
        if_match: str | None = None,
    ) -> str:
        """Stores `data`, as `fordway.Store.put` does. `data` may also be an asynchronous iterable of buffers.

        If the iterable raises an exception, nothing is stored.
        """
        put = functools.partial(
            self._put_pieces if isinstance(data, AsyncIterable) else self._put,
            content_type=content_type,
            metadata=metadata,
            headers=headers,
            tags=tags,
            if_none_match=if_none_match,
            if_match=if_match,
        )
        return await put(bucket, key, data)

    _put = _twin(fordway.Store.put)

    async def _put_pieces(
        self,
        bucket: str,
        key: str,
        data: AsyncIterable[ReadableBuffer],
        **options: Any,  # noqa: ANN401 (those of the writer)
    ) -> str:
        # The iterable runs between two writes, so it may itself make calls to the store, which need threads.
        async with await self.writer(bucket, key, **options) as writer:
            async for piece in data:
                await writer.write(piece)
            return await writer.commit()

    def resume_upload(self, bucket: str, key: str, id: str) -> AsyncUpload:  # noqa: A002
        """Returns the upload with this ID, as `fordway.Store.resume_upload` does. Makes no request."""
        return AsyncUpload(self._threads, self.store.resume_upload(bucket, key, id))

    async def list(
        self, bucket: str, prefix: str = "", delimiter: str | None = None, *, start_after: str | None = None
    ) -> AsyncGenerator[ObjectSummary | CommonPrefix, None]:
        """Iterates over the entries of `fordway.Store.list`, one page at a time."""
        while True:
            page = await self.list_page(bucket, prefix, delimiter, start_after=start_after)
            for entry in page.entries:
                yield entry
            if page.next is None:
                return
            start_after = page.next

    async def list_versions(self, bucket: str, prefix: str = "") -> AsyncGenerator[VersionSummary, None]:
        """Iterates over the versions and delete markers of `fordway.Store.list_versions`, in batches."""
        versions = self.store.list_versions(bucket, prefix)
        while batch := await self._threads.run(lambda: [*itertools.islice(versions, BATCH)]):
            for version in batch:
                yield version

    async def close(self) -> None:
        """Waits for the calls in progress, and then closes the store.

        If this wait is cancelled, the calls in progress are cancelled, and the store is closed immediately.
        If the block of an upload or a writer ends later, the upload is aborted, or the object is discarded.
        """
        self._threads.close()
        try:
            await self._threads.all_ended()
        finally:
            # Calls can still be in progress only if this wait was cancelled.
            self._threads.interrupt()
            self.store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._threads.interrupt()
        await self.close()
