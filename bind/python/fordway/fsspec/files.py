"""Objects as open files."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import TYPE_CHECKING, Any

from fsspec.spec import AbstractBufferedFile

from fordway.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError, PreconditionFailedError

if TYPE_CHECKING:
    from fordway import ObjectWriter
    from fordway._fordway import ReadableBuffer
    from fordway.fsspec.objects import ObjectFileSystem

COPY_BYTES = 8 << 20
"""Size of the blocks in which this process copies the content of an object, in bytes."""


def is_a_directory(path: str, why: str = "") -> IsADirectoryError:
    """Returns the exception for a path that is not the path of an object."""
    return IsADirectoryError(errno.EISDIR, why or os.strerror(errno.EISDIR), path)


class FsspecObjectFile(AbstractBufferedFile):
    """A readable, seekable object that uses fsspec's caches. All reads return the version that existed at
    `open`.

    If the object has changed, reads of data that is not in the cache raise `PreconditionFailedError`.
    """

    def __init__(
        self,
        fs: ObjectFileSystem,
        path: str,
        details: dict[str, Any] | None = None,
        **options: Any,  # noqa: ANN401 (fsspec's own)
    ) -> None:
        self._address = fs.address_of(path)
        self._details = details
        self._options = options
        super().__init__(fs, path, "rb", **options)
        if self.details["type"] == "directory":
            raise is_a_directory(path)

    def __reduce__(self) -> tuple:
        # The unpickled file reads the same version of the object.
        return _reopened, (self.fs, self.path, self.details, self._options, self.loc)

    def _fetch_range(self, start: int, end: int) -> bytes:
        end = min(end, self.size)
        if start >= end:
            return b""
        etag = self.details["ETag"]
        return self.fs.store.get(*self._address, start=start, length=end - start, if_match=etag)


def _reopened(
    fs: ObjectFileSystem, path: str, details: dict[str, Any], options: dict[str, Any], position: int
) -> FsspecObjectFile:
    """Returns the file that pickle restores."""
    file = FsspecObjectFile(fs, path, details, **options)
    file.seek(position)
    return file


class NewObject(io.BufferedIOBase):
    """An object being written. The whole object is published when the file is closed. If the block of a
    `with` statement raises, the object is discarded.

    In a transaction, the object is published when the transaction ends. Mode `ab` writes a new object that
    starts with the previous content, and raises `PreconditionFailedError` if another writer replaces the
    object meanwhile.
    """

    def __init__(
        self,
        fs: ObjectFileSystem,
        path: str,
        mode: str,
        block_bytes: int,
        autocommit: bool,
        described: dict[str, Any],
    ) -> None:
        super().__init__()
        self._begun_in = sys.exception()
        self.fs, self.path, self.mode, self.autocommit = fs, path, mode, autocommit
        self._address = fs.address_of(path)
        self._block_bytes = block_bytes
        self._buffer = bytearray()
        self._written_bytes = 0
        self._is_over = False
        self._is_torn = False
        begin = {"xb": self._exclusive, "ab": self._appending}.get(mode, self._replacing)
        self._writer = begin(described)

    def _replacing(self, described: dict[str, Any]) -> ObjectWriter:
        return self.fs.store.writer(*self._address, **described)

    def _exclusive(self, described: dict[str, Any]) -> ObjectWriter:
        # The conditional write decides whether the object is created. This check only avoids writing an
        # object that would be refused.
        if self.fs.exists(self.path):
            raise self._already_exists()
        return self.fs.store.writer(*self._address, **described, if_none_match="*")

    def _appending(self, described: dict[str, Any]) -> ObjectWriter:
        store = self.fs.store
        try:
            before = store.head(*self._address)
        except NotFoundError:
            return store.writer(*self._address, **described, if_none_match="*")
        kept = {
            "content_type": before.content_type,
            "metadata": before.metadata,
            "headers": before.headers,
        }
        if before.tag_count:
            kept["tags"] = store.tags(*self._address)
        writer = store.writer(*self._address, **(kept | described), if_match=before.etag)
        for start in range(0, before.size, COPY_BYTES):
            piece = store.get(*self._address, start=start, length=COPY_BYTES, if_match=before.etag)
            self._written_bytes += writer.write(piece)
        return writer

    def _already_exists(self) -> AlreadyExistsError:
        where = self.full_name
        why = f"{where} already exists; open it with 'wb' to replace it"
        return AlreadyExistsError(why, "PreconditionFailed", where)

    @property
    def full_name(self) -> str:
        """Returns the address by which fsspec finds the object."""
        return self.fs.unstrip_protocol(self.path)

    def writable(self) -> bool:
        """Returns `True`."""
        return True

    def tell(self) -> int:
        """Returns the current length of the object, in bytes."""
        return self._written_bytes

    def write(self, data: ReadableBuffer) -> int:
        """Appends `data` and returns its size in bytes.

        Data larger than a block is sent to the store immediately. Smaller data is collected into blocks.
        """
        if self.closed:
            raise ValueError("I/O operation on closed file.")
        self._check_whole()
        view = memoryview(data)
        size = view.nbytes
        if size and not view.c_contiguous:
            raise BufferError("the buffer must be contiguous; copy it first")
        if "O" in "".join(view.format.split(":")[::2]):
            raise TypeError("the buffer has references to objects; convert it to plain items")
        # If an exception (such as Ctrl-C) ends this call early, data may be missing or may have been sent
        # twice.
        self._is_torn = True
        if len(self._buffer) + size >= self._block_bytes:
            self._send_buffer()
        if size >= self._block_bytes:
            self._writer.write(data)
        elif size:
            self._buffer += view.cast("B")
        self._written_bytes += size
        self._is_torn = False
        return size

    def _check_whole(self) -> None:
        """Raises `InvalidArgumentError` if a write failed or was interrupted, and discards the object."""
        if self._is_torn:
            self._writer.discard()
            why = f"a write to {self.full_name} failed or was interrupted, so it is discarded; begin another"
            raise InvalidArgumentError(why, "InvalidArgument", self.full_name)

    def _send_buffer(self) -> None:
        if self._buffer:
            self._writer.write(self._buffer)
            self._buffer.clear()

    def close(self) -> None:
        """Publishes the object. In a transaction, the object is published at the end of the transaction
        instead.

        Discards the object, with a `RuntimeWarning`, if an exception is being handled that was raised after
        this file was opened. The check is necessary because a text file or a compressing file around this
        file closes it even if the `with` block raises. Raises `InvalidArgumentError` if a write failed or was
        interrupted, because nothing is published then.
        """
        if self.closed:
            return
        try:
            if not self._is_over:
                self._finish()
        finally:
            # Through its traceback, the exception refers to all local variables of the caller.
            self._begun_in = None
            super().close()

    def _finish(self) -> None:
        if sys.exception() not in (None, self._begun_in):
            self._is_over = True
            # Closing the writer discards the object and issues a `RuntimeWarning`.
            self._writer.close()
        elif self.autocommit:
            self.commit()
        else:
            self._check_whole()
            self._send_buffer()

    def commit(self) -> None:
        """Publishes the object. Raises `AlreadyExistsError` if the mode is `xb` and another writer published
        the object first, and `InvalidArgumentError` if the file was still open when its transaction ended.
        """
        if self._is_over:
            return
        self._check_whole()
        if not self.autocommit and not self.closed:
            self.discard()
            why = f"{self.full_name} is discarded, because its transaction ended before it was closed"
            raise InvalidArgumentError(why, "InvalidArgument", self.full_name)
        self._send_buffer()
        self._is_over = True
        try:
            self._writer.commit()
        except PreconditionFailedError as error:
            if self.mode == "xb":
                raise self._already_exists() from error
            raise

    def discard(self) -> None:
        """Discards the written data. An existing object stays as it is."""
        self._is_over = True
        self._writer.discard()
        self.close()

    def _dealloc_warn(self, _: object) -> None:
        """Discards the object. `io` calls this method before it closes a text file that was never closed."""
        self.discard()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.discard()
        self.close()

    def __del__(self) -> None:
        # If there is no writer, the constructor failed. A forked child does not discard the object of its
        # parent.
        if hasattr(self, "_writer") and not self._writer.closed:
            self.discard()


class CompressingObjectWriter(io.BufferedIOBase):
    """An object being written through a compressor. Closing this file also closes the object, because
    fsspec's compressors do not close it.
    """

    def __init__(self, file: NewObject, compressor: Any) -> None:  # noqa: ANN401 (any writable file)
        super().__init__()
        self._file, self._compressor = file, compressor
        self._written_bytes = 0

    def writable(self) -> bool:
        """Returns `True`."""
        return True

    def tell(self) -> int:
        """Returns the number of bytes written so far, before compression."""
        return self._written_bytes

    def write(self, data: ReadableBuffer) -> int:
        """Appends `data` and returns its size in bytes."""
        if self.closed:
            raise ValueError("I/O operation on closed file.")
        self._compressor.write(data)
        size = memoryview(data).nbytes
        self._written_bytes += size
        return size

    def close(self) -> None:
        """Compresses the remaining data, and closes the object as `NewObject.close` does."""
        if self.closed:
            return
        try:
            self._compressor.close()
            self._file.close()
        except BaseException:
            self._file.discard()
            raise
        finally:
            super().close()

    def discard(self) -> None:
        """Discards the written data. An existing object stays as it is."""
        self._file.discard()
        with contextlib.suppress(Exception):
            # The compressor cannot write any more, because the file is closed.
            self._compressor.close()
        super().close()

    def _dealloc_warn(self, _: object) -> None:
        self.discard()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.discard()
        self.close()

    def __del__(self) -> None:
        # If there is no compressor, the constructor failed.
        if hasattr(self, "_compressor") and not self.closed:
            self.discard()
