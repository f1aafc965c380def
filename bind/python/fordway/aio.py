"""The calls of a store for `asyncio`. Each call runs on a thread, so that it never blocks the event loop.

>>> async with fordway.aio.open("file:///data/objects") as store:
...     await store.put("bucket", "key", b"content")

Cancelling a call ends the wait for it. Its thread still finishes the call, so a cancelled `put` may happen.
"""

from __future__ import annotations

import asyncio
import functools
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Self, TypeVar

import fordway

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from os import PathLike

    from fordway import CommonPrefix, ObjectSummary

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


class AsyncStore:
    """A store whose calls are awaited. Arguments, results and errors are as for `fordway.Store`."""

    def __init__(self, store: fordway.Store) -> None:
        self.store = store
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="fordway")

    async def run(
        self, method: Callable[Concatenate[fordway.Store, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Runs any function of a store on a thread."""
        call = functools.partial(method, self.store, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

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
    upload = _twin(fordway.Store.upload)
    list_uploads = _twin(fordway.Store.list_uploads)
    list_page = _twin(fordway.Store.list_page)

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
        """Closes the store after the calls in progress."""
        await asyncio.to_thread(self._threads.shutdown)
        self.store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
