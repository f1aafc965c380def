"""Streams, files and writers for `asyncio`."""

from __future__ import annotations

import asyncio
import operator
import os
from typing import TYPE_CHECKING, Self, TypeVar

from fordway.errors import CallInterruptedError, InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from fordway import ObjectInfo, ObjectStream, ObjectWriter
    from fordway._fordway import ReadableBuffer
    from fordway.aio_calls import CallThreads
    from fordway.streams import ObjectReader

T = TypeVar("T")

PIECE_BYTES = 1 << 20


class AsyncStream:
    """An asyncio version of `fordway.ObjectStream`: the content of an object, read sequentially.

    As an asynchronous context manager, the stream is closed at the end of its block. As an asynchronous
    iterator, it returns pieces of 1 MiB. A cancelled read closes the stream, because the position is then
    unknown.
    """

    def __init__(self, threads: CallThreads, stream: ObjectStream) -> None:
        self._threads, self.stream = threads, stream

    @property
    def closed(self) -> bool:
        """True if the stream is closed, or a read failed."""
        return self.stream.closed

    async def read(self, size: int | None = None) -> bytes:
        """Returns the next `size` bytes, or all remaining bytes. Returns fewer bytes only at the end."""
        try:
            return await self._threads.run(lambda: self.stream.read(size))
        except Exception:
            # A read that failed has closed the stream. An invalid argument changes nothing.
            raise
        except BaseException:
            self.stream.close()
            raise

    async def close(self) -> None:
        """Releases the file or the connection. A second call does nothing."""
        await self._threads.finish(self.stream.close)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if piece := await self.read(PIECE_BYTES):
            return piece
        raise StopAsyncIteration

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncReader:
    """A readable, seekable file with one version of an object, as `fordway.Store.reader` returns it.

    Each read is a call to the store. A read that failed or was cancelled does not move the position. Await
    each read before the next read, because concurrent reads begin at the same position. As an asynchronous
    context manager, the file is closed at the end of its block.
    """

    def __init__(self, threads: CallThreads, reader: ObjectReader) -> None:
        self._threads, self.reader = threads, reader

    @property
    def info(self) -> ObjectInfo:
        """The properties of the object."""
        return self.reader.info

    @property
    def closed(self) -> bool:
        """True if the file is closed."""
        return self.reader.closed

    async def read(self, size: int | None = None) -> bytes:
        """Returns the next `size` bytes, or all remaining bytes. Returns fewer bytes only at the end."""
        position, wanted = self.reader.tell(), -1 if size is None else operator.index(size)
        # If the call is cancelled, its thread may continue for some time, and must not move the position.
        data = await self._threads.run(lambda: self.reader._read_at(position, wanted))
        self.reader.seek(position + len(data))
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Moves to `offset`, which is relative to the position selected by `whence`. Returns the new
        position. Makes no request, and is not a coroutine.
        """
        return self.reader.seek(offset, whence)

    def tell(self) -> int:
        """Returns the position of the next read, in bytes from the start. This method is not a coroutine."""
        return self.reader.tell()

    async def close(self) -> None:
        """Closes the file. A second call does nothing."""
        self.reader.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncWriter:
    """An asyncio version of `fordway.ObjectWriter`: an object that is written in pieces, and becomes visible
    as a whole or never.

    As an asynchronous context manager, the writer commits at the end of its block, or discards the object if
    the block raises. If a write fails or is cancelled, nothing is published, and the end of the block raises
    too. In a forked child, the end of the parent's block has no effect.
    """

    def __init__(self, threads: CallThreads, writer: ObjectWriter) -> None:
        self._threads, self.writer = threads, writer
        self._process = os.getpid()
        self._has_failed = False
        self._is_over = False
        """True if the object is committed or discarded."""

    @property
    def closed(self) -> bool:
        """True if the object was committed or discarded, a write failed, or the writer is a forked copy."""
        return self._has_failed or self.writer.closed

    async def write(self, data: ReadableBuffer) -> int:
        """Appends `data`, any contiguous buffer, and returns its length in bytes. Await each write before the
        next write, because the order of concurrent writes is undefined.
        """
        try:
            return await self._threads.run(lambda: self.writer.write(data))
        except Exception as error:
            # An invalid argument changes nothing. After any other error, the writer itself records the
            # failure if the call had started on a thread.
            self._has_failed |= isinstance(error, CallInterruptedError)
            raise
        except BaseException:
            # A cancelled write may not have started on a thread. In that case, its data is missing from the
            # object.
            self._has_failed = True
            raise

    async def commit(self) -> str:
        """Publishes the object and returns its ETag (without quotes)."""
        if self._has_failed:
            await self.discard()
            why = "a write failed or was cancelled, so the object is discarded; begin another"
            raise InvalidArgumentError(why, "InvalidArgument")
        return await self._publish(self.writer.commit)

    async def _publish(self, commit: Callable[[], T]) -> T:
        try:
            committed = await self._threads.run(commit)
        except (Exception, asyncio.CancelledError):
            # A call that had not started on a thread has neither published nor discarded the object.
            await self.discard()
            raise
        self._is_over = True
        return committed

    async def discard(self) -> None:
        """Discards the written data; does nothing if the writer is closed."""
        await self._threads.finish(self.writer.discard)
        self._is_over = True

    def tell(self) -> int:
        """Returns the number of bytes written so far. This method is not a coroutine."""
        return self.writer.tell()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process != os.getpid():
            return
        if kind is not None:
            await self.discard()
        elif self._has_failed:
            await self.commit()
        elif not self._is_over:
            # Raises if a write failed, and does nothing if the writer is closed.
            await self._publish(lambda: self.writer.__exit__(None, None, None))
