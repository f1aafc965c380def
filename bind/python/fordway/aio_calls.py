"""Threads for the calls of `fordway.aio`. A call ends early if its caller is cancelled."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fordway._fordway import _CancellationToken
from fordway.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from concurrent.futures import Future

T = TypeVar("T")

GRACE_MS = 5_000
"""The time that a clean-up may take after its caller was cancelled, in milliseconds."""


@dataclass(frozen=True, eq=False)
class Call(Generic[T]):
    """A call that waits for a thread, is running, or has ended."""

    future: Future[T]
    token: _CancellationToken
    grace_ms: int

    def cancel(self) -> None:
        """Makes the call end when its grace time has passed. Has no effect on a call that has ended."""
        self.token.cancel(self.grace_ms)

    def drop(self) -> None:
        """Drops the call if it waits for a thread, and otherwise makes it end as `cancel` does."""
        if not self.future.cancel():
            self.cancel()


class CallThreads:
    """The threads of one store, and its calls in progress."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._is_closed = False
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._pool = ThreadPoolExecutor(self.count, thread_name_prefix="fordway")
        self._clean_ups: ThreadPoolExecutor | None = None
        """The threads for clean-ups. A clean-up never waits for a call, and is not refused after `close`."""
        self._calls: dict[Future[Any], Call[Any]] = {}

    def _check_process(self) -> None:
        # A forked child does not have its parent's threads, so the parent's calls never end in the child.
        if self._process != os.getpid():
            self._begin()

    def start(self, call: Callable[[], T], grace_ms: int = 0) -> Call[T]:
        """Starts `call` on a thread, with the context variables of the caller."""
        self._check_process()
        if self._is_closed:
            why = "the store is closed; open another with fordway.open()"
            raise InvalidArgumentError(why, "InvalidArgument")
        return self._submit(self._pool, call, grace_ms)

    def start_clean_up(self, clean_up: Callable[[], T]) -> Call[T]:
        """Starts `clean_up` on a thread, even if the store is closed. After a cancellation, the clean-up must
        end within the grace time.
        """
        self._check_process()
        with self._lock:
            if self._clean_ups is None:
                self._clean_ups = ThreadPoolExecutor(self.count, thread_name_prefix="fordway-clean-up")
            return self._submit(self._clean_ups, clean_up, GRACE_MS)

    def _submit(self, pool: ThreadPoolExecutor, call: Callable[[], T], grace_ms: int) -> Call[T]:
        token = _CancellationToken()
        with self._lock:
            future = pool.submit(contextvars.copy_context().run, token.run, call)
            started = self._calls[future] = Call(future, token, grace_ms)
        future.add_done_callback(self._forget)
        return started

    def _forget(self, future: Future[Any]) -> None:
        with self._lock:
            self._calls.pop(future, None)
            self._end_idle_threads()

    def _end_idle_threads(self) -> None:
        # A later clean-up starts new threads.
        if self._is_closed and not self._calls and self._clean_ups is not None:
            self._clean_ups.shutdown(wait=False)
            self._clean_ups = None

    async def result(self, call: Call[T]) -> T:
        """Waits for the result of `call`. If this wait is cancelled, the call is cancelled too."""
        try:
            return await asyncio.wrap_future(call.future)
        except BaseException:
            call.cancel()
            raise
        finally:
            # The error of the call refers to this frame, so a reference from this frame to the call would
            # form a cycle.
            del call

    async def run(self, call: Callable[[], T], grace_ms: int = 0) -> T:
        """Returns the result of `call`, which runs on a thread."""
        return await self.result(self.start(call, grace_ms))

    async def run_to_end(self, call: Callable[[], T]) -> T:
        """Returns the result of `call`, which writes into memory of the caller. Even if this wait is
        cancelled, waits until `call` has ended. The token of the call makes the call end soon.
        """
        started = self.start(call)
        return await _result_anyway(started, started.drop)

    async def finish(self, clean_up: Callable[[], T]) -> T:
        """Returns the result of `clean_up`, which runs on a thread. Even if this wait is cancelled, waits
        until `clean_up` has ended, for at most the grace time.
        """
        started = self.start_clean_up(clean_up)
        return await _result_anyway(started, started.cancel)

    def interrupt(self) -> None:
        """Cancels the calls in progress."""
        self._check_process()
        for call in [*self._calls.values()]:
            call.cancel()

    def close(self) -> None:
        """Makes the threads accept no further calls. Clean-ups are still accepted."""
        self._check_process()
        with self._lock:
            self._is_closed = True
            self._pool.shutdown(wait=False)
            self._end_idle_threads()

    async def all_ended(self) -> None:
        """Waits for the calls in progress, and for the clean-ups that follow them. If this wait is cancelled,
        the calls continue.
        """
        self._check_process()
        while calls := [*self._calls]:
            await ended(calls)


async def _result_anyway(call: Call[T], hurry: Callable[[], None]) -> T:
    cancelled = await ended_anyway([call.future], hurry)
    if cancelled is not None:
        raise cancelled
    return call.future.result()


async def ended(futures: Iterable[Future[Any]]) -> None:
    """Waits until the calls of `futures` have ended. If this wait is cancelled, the calls continue."""
    waits = asyncio.gather(*map(asyncio.wrap_future, futures), return_exceptions=True)
    await asyncio.shield(waits)


async def ended_anyway(
    futures: Sequence[Future[Any]], hurry: Callable[[], None]
) -> asyncio.CancelledError | None:
    """Waits until the calls of `futures` have ended, even if this wait is cancelled. If the wait is
    cancelled, calls `hurry` to limit the time of the wait, and returns the cancellation. The caller must
    raise the cancellation.
    """
    cancelled = None
    while not all(future.done() for future in futures):
        try:
            await ended(futures)
        except asyncio.CancelledError as error:
            hurry()
            cancelled = error
    return cancelled
