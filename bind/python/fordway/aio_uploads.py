"""Multipart uploads for `asyncio`."""

from __future__ import annotations

import asyncio
import functools
import operator
import os
import threading
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, SupportsIndex, TypeVar

import fordway
from fordway._fordway import _CancellationToken
from fordway.aio_calls import GRACE_MS, Call, CallThreads, ended, ended_anyway
from fordway.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from concurrent.futures import Future
    from types import TracebackType

    from fordway import PartPage, PartSummary, PutInfo
    from fordway._fordway import ObjectData

P = ParamSpec("P")
T = TypeVar("T")

PARTS_MAX = 10_000


class AsyncUpload:
    """An asyncio version of `fordway.Upload`, with the same arguments, results and errors.

    An upload is also an asynchronous context manager: it is completed at the end of the block. It is aborted
    if the block raises an exception or the completion fails, for example because a part is missing. The end
    of the block waits for parts that are being sent. If the upload is aborted, this wait takes at most 5 s.
    In a cancelled task, the completion and the abort take at most 5 s each. If the abort fails, the raised
    exception has a note with the ID of the upload. In a forked child, the end of the parent's block has no
    effect.
    """

    def __init__(self, threads: CallThreads, upload: fordway.Upload) -> None:
        self._threads, self.upload = threads, upload
        self._process = os.getpid()
        self._unfinished: dict[int, object] = {}
        """The latest call for each part that has not been sent. The call is waiting for a thread, is running,
        was cancelled, or failed.
        """
        self._sending: dict[Future[PutInfo], tuple[int, Call[PutInfo]]] = {}
        """The calls that are sending a part, each with the number of the part. Cancelled calls are
        included.
        """

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
        """Runs `method` on a thread of the store, with the upload as its first argument. `method` can be any
        function that accepts an upload.
        """
        return await self._threads.run(functools.partial(method, self.upload, *args, **kwargs))

    def put_part(
        self, number: int, data: ObjectData, *, checksum: str | None = None
    ) -> Coroutine[Any, Any, PutInfo]:
        """Sends a part, as `fordway.Upload.put_part` does.

        The part counts as unfinished from this call until it has been sent.
        """
        return self._send(number, functools.partial(self.upload.put_part, number, data, checksum=checksum))

    def copy_part(
        self,
        number: int,
        source_bucket: str,
        source_key: str,
        *,
        start: int | None = None,
        length: int | None = None,
        version: str | None = None,
        if_match: str | None = None,
    ) -> Coroutine[Any, Any, PutInfo]:
        """Fills a part from an object, as `fordway.Upload.copy_part` does.

        The part counts as unfinished from this call until it has been sent.
        """
        copy = functools.partial(
            self.upload.copy_part,
            number,
            source_bucket,
            source_key,
            start=start,
            length=length,
            version=version,
            if_match=if_match,
        )
        return self._send(number, copy)

    def _send(self, number: int, send: Callable[[], PutInfo]) -> Coroutine[Any, Any, PutInfo]:
        attempt = object()
        # A part that cannot exist can never be sent again, so it must not count as unfinished.
        if isinstance(number, SupportsIndex) and 1 <= (index := operator.index(number)) <= PARTS_MAX:
            self._unfinished[index] = attempt
        return self._finish(attempt, number, send)

    async def _finish(self, attempt: object, number: int, send: Callable[[], PutInfo]) -> PutInfo:
        # Wait for cancelled calls that are still running, because they could replace the part that this call
        # sends, or record it as failed.
        calls = [call for other, call in [*self._sending.values()] if other == number]
        await ended([call.future for call in calls if call.token.cancelled])
        sent = await self._threads.result(self._started(number, send))
        if self._unfinished.get(operator.index(number)) is attempt:
            del self._unfinished[operator.index(number)]
        return sent

    def _started(self, number: int, send: Callable[[], PutInfo]) -> Call[PutInfo]:
        call = self._threads.start(send)
        self._sending[call.future] = (number, call)
        call.future.add_done_callback(self._sent)
        return call

    def _sent(self, future: Future[PutInfo]) -> None:
        self._sending.pop(future, None)

    async def parts(self) -> list[PartSummary]:
        """Returns the parts sent so far, ordered by number."""
        return await self.run(fordway.Upload.parts)

    async def parts_page(self, after: int = 0, *, limit: int = 1000) -> PartPage:
        """Returns one page of `parts`, as `fordway.Upload.parts_page` does."""
        return await self.run(fordway.Upload.parts_page, after, limit=limit)

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
        if self._process != os.getpid():
            return
        if kind is not None:
            await self._abort_after(error)
            return
        try:
            await self._complete_block()
        except BaseException as failure:
            await self._abort_after(failure)
            raise

    async def _complete_block(self) -> None:
        self._check_finished()
        await ended([*self._sending])
        completion = self._threads.start(self.upload._complete_if_open, GRACE_MS)
        cancelled = await ended_anyway([completion.future], completion.drop)
        if cancelled is not None:
            raise cancelled
        completion.future.result()

    async def _abort_after(self, error: BaseException | None) -> None:
        """Aborts the upload because of `error`. If the abort fails, the raised exception has a note."""
        self._cancel_parts(GRACE_MS)
        # A part that arrives during an abort could remain in the store.
        cancelled = await ended_anyway([*self._sending], lambda: self._cancel_parts(0))
        # The abort adds its note to a separate exception, because the exception to raise is not known yet.
        reason = RuntimeError()
        leave = functools.partial(self.upload.__exit__, RuntimeError, reason, None)
        abort = self._threads.start_clean_up(leave)
        if cancelled is not None or isinstance(error, asyncio.CancelledError):
            abort.cancel()
        cancelled = await ended_anyway([abort.future], abort.cancel) or cancelled
        notes = [*getattr(reason, "__notes__", ())]
        if (failure := abort.future.exception()) is not None:
            notes.append(f"upload {self.id} is not aborted: {failure}")
        raised = error if cancelled is None else cancelled
        if raised is not None:
            for note in notes:
                raised.add_note(note)
        if cancelled is not None:
            raise cancelled

    def _cancel_parts(self, grace_ms: int) -> None:
        for _, call in [*self._sending.values()]:
            call.token.cancel(grace_ms)


class _Beginning:
    """A call that begins an upload. If the caller was cancelled, the upload is aborted, because the caller
    has not received the ID of the upload.
    """

    def __init__(self, begin: Callable[[], fordway.Upload]) -> None:
        self._begin = begin
        self._lock = threading.Lock()
        self._begun: fordway.Upload | None = None
        self._is_abandoned = False

    def run(self) -> fordway.Upload:
        """Begins the upload."""
        upload = self._begin()
        with self._lock:
            self._begun = upload
            is_abandoned = self._is_abandoned
        if is_abandoned:
            self.abort()
        return upload

    def abandon(self) -> bool:
        """Marks the call as abandoned, and returns whether the upload exists. If the upload exists, the
        caller must abort it. Otherwise, `run` aborts the upload later.
        """
        with self._lock:
            self._is_abandoned = True
            return self._begun is not None

    def abort(self) -> None:
        """Aborts the upload, within the grace time."""
        if self._begun is not None:
            token = _CancellationToken()
            token.cancel(GRACE_MS)
            token.run(self._begun.abort)


async def begin(threads: CallThreads, begin_upload: Callable[[], fordway.Upload]) -> AsyncUpload:
    """Begins an upload. If this wait is cancelled, the upload is aborted as soon as it has begun."""
    beginning = _Beginning(begin_upload)
    try:
        # The ID of the upload arrives at the end of the call, so a cancellation does not end the call
        # immediately.
        return AsyncUpload(threads, await threads.run(beginning.run, GRACE_MS))
    except BaseException:
        if beginning.abandon():
            threads.start_clean_up(beginning.abort)
        raise
