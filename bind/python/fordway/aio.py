"""The calls of a store for `asyncio`. Each call runs on a thread, so that it never blocks the event loop.

>>> async with fordway.aio.open("file:///data/objects") as store:
...     await store.put("bucket", "key", b"content")

`upload` and `resume_upload` return an `AsyncUpload`, whose calls are awaited too:

>>> async with await store.upload("bucket", "key") as upload:
...     await upload.put_part(1, b"content")

Cancelling a call ends only the wait for it. Its thread still finishes the call, so a cancelled `put` may
still store the object.
"""

from __future__ import annotations

import asyncio
import functools
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Self, TypeVar

import fordway
from fordway.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from concurrent.futures import Future
    from os import PathLike
    from types import TracebackType

    from fordway import CommonPrefix, ObjectSummary, PutInfo

P = ParamSpec("P")
T = TypeVar("T")

THREADS = 32
"""Maximum number of concurrent calls of one store; further calls wait."""


def open(  # noqa: A001 (like `fordway.open`)
    endpoint: str | PathLike[str] | None = None, *, timeout: float | None = None, retries: int | None = None
) -> AsyncStore:
    """Opens the store at `endpoint`, with the same arguments as `fordway.open`."""
    return AsyncStore(fordway.open(endpoint, timeout=timeout, retries=retries))


def _twin(
    method: Callable[Concatenate[fordway.Store, P], T],
) -> Callable[Concatenate[AsyncStore, P], Awaitable[T]]:
    """Returns the coroutine function that runs `method` on a thread."""

    async def call(self: AsyncStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.run(method, *args, **kwargs)

    call.__name__, call.__doc__ = method.__name__, method.__doc__
    return call


def _begins(
    method: Callable[Concatenate[fordway.Store, P], fordway.Upload],
) -> Callable[Concatenate[AsyncStore, P], Awaitable[AsyncUpload]]:
    """Returns the coroutine function that starts an upload on a thread."""

    async def call(self: AsyncStore, /, *args: P.args, **kwargs: P.kwargs) -> AsyncUpload:
        return AsyncUpload(self, await self.run(method, *args, **kwargs))

    call.__name__, call.__doc__ = method.__name__, method.__doc__
    return call


def _part_twin(
    method: Callable[Concatenate[fordway.Upload, P], T],
) -> Callable[Concatenate[AsyncUpload, P], Awaitable[T]]:
    """Returns the coroutine function that runs a method of an upload on a thread."""

    async def call(self: AsyncUpload, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.run(method, *args, **kwargs)

    call.__name__, call.__doc__ = method.__name__, method.__doc__
    return call


def _sending_twin(
    method: Callable[Concatenate[fordway.Upload, int, P], PutInfo],
) -> Callable[Concatenate[AsyncUpload, int, P], Awaitable[PutInfo]]:
    """Returns the function that sends a part on a thread. The part is unfinished as soon as the function is
    called.
    """

    def call(self: AsyncUpload, /, number: int, *args: P.args, **kwargs: P.kwargs) -> Awaitable[PutInfo]:
        attempt = self._unfinished[number] = object()
        return self._finish(attempt, number, functools.partial(method, self.upload, number, *args, **kwargs))

    call.__name__, call.__doc__ = method.__name__, method.__doc__
    return call


class AsyncStore:
    """An asyncio version of `fordway.Store`, with the same arguments, results and errors."""

    def __init__(self, store: fordway.Store) -> None:
        self.store = store
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="fordway")
        self._is_closed = False

    async def run(
        self, method: Callable[Concatenate[fordway.Store, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Calls `method` with the store on a thread. `method` can be any function of a store."""
        call = functools.partial(method, self.store, *args, **kwargs)
        return await asyncio.wrap_future(self._start(call))

    def _start(self, call: Callable[[], T]) -> Future[T]:
        """Starts `call` on a thread."""
        if self._is_closed:
            why = "the store is closed; open another with fordway.open()"
            raise InvalidArgumentError(why, "InvalidArgument")
        return self._threads.submit(call)

    list_buckets = _twin(fordway.Store.list_buckets)
    create_bucket = _twin(fordway.Store.create_bucket)
    head_bucket = _twin(fordway.Store.head_bucket)
    delete_bucket = _twin(fordway.Store.delete_bucket)
    versioning = _twin(fordway.Store.versioning)
    set_versioning = _twin(fordway.Store.set_versioning)
    put = _twin(fordway.Store.put)
    put_with_info = _twin(fordway.Store.put_with_info)
    put_many = _twin(fordway.Store.put_many)
    get = _twin(fordway.Store.get)
    get_with_info = _twin(fordway.Store.get_with_info)
    get_into = _twin(fordway.Store.get_into)
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

    upload = _begins(fordway.Store.upload)

    def resume_upload(self, bucket: str, key: str, id: str) -> AsyncUpload:  # noqa: A002
        """Returns the upload with this ID, as `fordway.Store.resume_upload` does. Makes no request."""
        return AsyncUpload(self, self.store.resume_upload(bucket, key, id))

    async def list(
        self, bucket: str, prefix: str = "", delimiter: str | None = None, *, start_after: str | None = None
    ) -> AsyncIterator[ObjectSummary | CommonPrefix]:
        """Iterates over the entries of `fordway.Store.list`, one page at a time."""
        while True:
            page = await self.list_page(bucket, prefix, delimiter, start_after=start_after)
            for entry in page.entries:
                yield entry
            if page.next is None:
                return
            start_after = page.next

    async def close(self) -> None:
        """Waits for the calls in progress, and then closes the store."""
        self._is_closed = True
        await asyncio.to_thread(self._threads.shutdown)
        self.store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncUpload:
    """An asyncio version of `fordway.Upload`, with the same arguments, results and errors.

    An upload is also an asynchronous context manager: it is completed at the end of the block. It is aborted
    if the block raises an exception or the completion fails, for example because a part is missing. The end
    of the block waits for parts that are being sent, including parts whose calls were cancelled.
    """

    def __init__(self, store: AsyncStore, upload: fordway.Upload) -> None:
        self._store, self.upload = store, upload
        self._unfinished: dict[int, object] = {}
        """The latest call for each part that has not been sent. The call waits for a thread or is running,
        was cancelled, or failed.
        """
        self._sending: set[Future[PutInfo]] = set()
        """The calls that are sending a part, including those that were cancelled after they had started."""

    @property
    def id(self) -> str:
        """The ID, which `resume_upload` accepts."""
        return self.upload.id

    @property
    def bucket(self) -> str:
        """The bucket."""
        return self.upload.bucket

    @property
    def key(self) -> str:
        """The key."""
        return self.upload.key

    async def run(
        self, method: Callable[Concatenate[fordway.Upload, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Calls `method` with the upload on a thread of its store. `method` can be any function of an
        upload.
        """
        return await self._store.run(lambda _: method(self.upload, *args, **kwargs))

    async def _finish(self, attempt: object, number: int, send: Callable[[], PutInfo]) -> PutInfo:
        sending = self._store._start(send)
        self._sending.add(sending)
        sending.add_done_callback(self._sending.discard)
        sent = await asyncio.wrap_future(sending)
        if self._unfinished.get(number) is attempt:
            del self._unfinished[number]
        return sent

    put_part = _sending_twin(fordway.Upload.put_part)
    copy_part = _sending_twin(fordway.Upload.copy_part)
    parts = _part_twin(fordway.Upload.parts)
    parts_page = _part_twin(fordway.Upload.parts_page)

    async def complete(
        self,
        parts: Sequence[tuple[int, str]] | None = None,
        *,
        if_none_match: str | None = None,
        if_match: str | None = None,
    ) -> PutInfo:
        """Publishes the object, as `fordway.Upload.complete` does. A part also counts as unfinished if its
        call has not been awaited or was cancelled.
        """
        self._check_finished(parts)
        conditions = {"if_none_match": if_none_match, "if_match": if_match}
        made = await self.run(fordway.Upload.complete, parts, **conditions)
        self._unfinished.clear()
        return made

    def _check_finished(self, parts: Sequence[tuple[int, str]] | None = None) -> None:
        if parts is None and self._unfinished:
            unsent = sorted(self._unfinished)
            why = f"parts {unsent} are not sent; send them again, or name the parts to publish"
            raise InvalidArgumentError(why, "InvalidPart", f"s3://{self.bucket}/{self.key}")

    async def abort(self) -> None:
        """Removes the upload and its parts, as `fordway.Upload.abort` does."""
        await self.run(fordway.Upload.abort)
        self._unfinished.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            try:
                self._check_finished()
            except InvalidArgumentError as unfinished:
                await self._exit(type(unfinished), unfinished, None)
                raise
        await self._exit(kind, error, trace)

    async def _exit(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A part that arrives during an abort could remain in the store.
        await asyncio.gather(*map(asyncio.wrap_future, [*self._sending]), return_exceptions=True)
        await self.run(fordway.Upload.__exit__, kind, error, trace)
