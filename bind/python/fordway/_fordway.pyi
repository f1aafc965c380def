"""Types of the compiled module."""

import builtins
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias, TypeVar, final

from fordway.errors import FordwayError
from fordway.streams import ObjectReader

if TYPE_CHECKING:
    import pyarrow

_T = TypeVar("_T")

class ExportsBuffer(Protocol):
    """An object with the buffer protocol: `bytes`, `bytearray`, `memoryview`, `array`, `mmap`, ..."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

class ExportsArray(Protocol):
    """A NumPy array. NumPy's type stubs declare `__buffer__` only for Python 3.12 and later."""

    @property
    def __array_interface__(self) -> Any: ...  # noqa: ANN401 (NumPy's own)

ReadableBuffer: TypeAlias = ExportsBuffer | ExportsArray
"""A buffer that `put` accepts. `get_into` requires a writable buffer."""

class ReadsBytes(Protocol):
    """A binary file that is open for reading."""

    def read(self, size: int, /) -> bytes: ...

ObjectData: TypeAlias = ReadableBuffer | ReadsBytes | Iterable[ReadableBuffer]
"""The content for `put`: a buffer, a file, or an iterable of buffers."""

__version__: str
ERROR_KINDS: tuple[str, ...]
"""All values of `FordwayError.kind`."""
S3_ERRORS: dict[str, tuple[int, str, str | None]]
S3_ERROR_FACTS: dict[str, tuple[str, ...]]
"""The status, code and AWS message of each kind in S3. If AWS has no usual message, the message is `None`."""

def open(  # noqa: A001
    endpoint: str | PathLike[str] | None = None, *, timeout: float | None = None, retries: int | None = None
) -> Store:
    """Opens the store at `endpoint`.

    `file:///DIRECTORY` or `/DIRECTORY` selects the `embedded` lane: each subdirectory is a bucket.
    `http(s)://HOST[:PORT]` selects the `http` lane: any S3 service. `unix:///SOCKET` and
    `tcp://HOST:PORT` select the `node` lane: a gateway started by `fordway node`. A `pathlib.Path`, which
    may be relative, is a directory. Without an endpoint, the store uses `AWS_ENDPOINT_URL_S3`, else
    `AWS_ENDPOINT_URL`, else the AWS configuration file, else AWS.

    On the `http` lane, `timeout` is the time in seconds that a call may wait for the server, including
    retries. By default, the call as a whole has no time limit. `retries` is the maximum number of times that
    a request is retried after a transient failure (default 4). The other lanes support neither option.

    Raises `InvalidArgumentError` if the endpoint has a different form, the directory does not exist, or the
    lane does not support an option.
    """

def open_url(
    url: str,
    *,
    connections: int | None = None,
    ca_bundle: str | None = None,
    deadline: float | None = None,
) -> RemoteFile:
    """Opens the file at an `http(s)://` URL, following redirects.

    Credentials, proxies and the HTTP version (`FORDWAY_HTTP_VERSION`) come from the environment, as for
    `fordway read`. `connections` is the maximum number of connections to one server (1 to 1024,
    default 8).
    `ca_bundle` is a PEM file with the trusted certificates (default `AWS_CA_BUNDLE`, else the system's
    certificates). `deadline` is the time limit for an operation, in seconds. Files opened without these
    options share their connections.

    Raises `NotFoundError`, `AccessDeniedError`, `UnavailableError`, `DeadlineError`, `InvalidArgumentError`.
    """

@final
class RemoteFile:
    """A file on a web server, in the version that existed when the file was opened.

    Threads may share the file. If the file changes on the server, reads raise `PreconditionFailedError`. The
    file cannot be pickled: pass its URL to other processes, and open it there.
    """

    @property
    def url(self) -> str:
        """The URL that the file was opened with."""

    @property
    def size(self) -> int:
        """Size in bytes."""

    @property
    def etag(self) -> str | None:
        """The server's entity tag, with its quotes."""

    @property
    def last_modified(self) -> str | None:
        """The time of the last change, in the server's format."""

    @property
    def requests(self) -> int:
        """The number of requests sent so far."""

    def read(self, start: int, length: int) -> bytes:
        """Returns `length` bytes from offset `start`, or fewer at the end of the file."""

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Returns the bytes of each range (start, length): a vectored read.

        Ranges may be in any order and may overlap. They are requested together, in as few requests as the
        server allows. Raises `InvalidArgumentError`, before anything is read, if a range ends beyond the end
        of the file.
        """

@final
class Store:
    """The objects behind an endpoint.

    Threads may share a store. Calls that may wait release the GIL, so that other Python threads can run.
    Unpickling a store opens it again at the same endpoint. As a context manager, a store is closed at the
    end of its block.
    """

    @property
    def lane(self) -> str:
        """The lane of the store: `embedded`, `node` or `http`."""

    @property
    def closed(self) -> bool:
        """True if the store is closed."""

    def close(self) -> None:
        """Closes the store and releases its files and connections. A second call does nothing.

        Calls, iterators and writers in progress continue; new calls raise `InvalidArgumentError`.
        """

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...
    def list_buckets(self) -> builtins.list[BucketInfo]:
        """Returns all buckets in byte order of their names."""

    def create_bucket(self, bucket: str) -> None:
        """Creates an empty bucket. Raises `AlreadyExistsError`, `InvalidNameError`."""

    def head_bucket(self, bucket: str) -> BucketInfo:
        """Describes a bucket. Raises `NotFoundError`."""

    def delete_bucket(self, bucket: str) -> None:
        """Removes an empty bucket. Raises `NotFoundError`, `BucketNotEmptyError`."""

    def versioning(self, bucket: str) -> str | None:
        """Returns `"enabled"`, `"suspended"`, or `None` if versioning was never enabled.

        Raises `NotFoundError`.
        """

    def set_versioning(self, bucket: str, enabled: bool) -> None:
        """Enables or suspends versioning of the bucket. Raises `NotFoundError`."""

    def put(
        self,
        bucket: str,
        key: str,
        data: ObjectData,
        *,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
        if_none_match: str | None = None,
        if_match: str | None = None,
    ) -> str:
        """Stores `data` under `key`, whole or not at all, and returns the new ETag (without quotes).

        `bytes` are written without a copy; any other contiguous buffer, such as a NumPy array of any type, is
        copied once first. A binary file is read to its end, and the buffers of an iterable are written one by
        one. Neither a file nor an iterable is ever in memory as a whole. Text must be encoded. Names in
        `metadata` are stored in lower case; names that differ only in case are refused. `headers` may contain
        `cache-control`, `content-disposition`, `content-encoding`, `content-language` and `expires`. An
        object has at most 10 `tags`. `if_none_match="*"` creates an object but never replaces one;
        `if_match=etag` replaces the object only if it still has that ETag.

        Raises `NotFoundError` if the bucket does not exist, `PreconditionFailedError`, `NoSpaceError`, ...
        """

    def put_with_info(
        self,
        bucket: str,
        key: str,
        data: ObjectData,
        *,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
        if_none_match: str | None = None,
        if_match: str | None = None,
        checksum: str | None = None,
    ) -> PutInfo:
        """Stores `data` as `put` does, and returns the ETag, the version and the time of the new object.

        `checksum` names a checksum to compute, to store with the object, and to return: `CRC32`, `CRC32C`,
        `CRC64NVME`, `SHA1`, `SHA256`, `SHA512`, `MD5`, `XXHASH64`, `XXHASH3` or `XXHASH128`.

        Raises what `put` raises, and `InvalidArgumentError` for an unknown checksum.
        """

    def put_many(
        self, bucket: str, objects: Sequence[tuple[str, ReadableBuffer]]
    ) -> builtins.list[str | FordwayError]:
        """Stores many objects, given as pairs of key and buffer, in as few requests as the lane allows.

        Returns one result per object, in order: its ETag (without quotes), or the error. If several objects
        have the same key, an arbitrary one of these objects is kept.

        Raises `InvalidNameError` for an invalid bucket or key, before anything is stored.
        """

    def get_many(self, bucket: str, keys: Sequence[str]) -> builtins.list[bytes | FordwayError]:
        """Returns many whole objects, read in as few requests as the lane allows.

        Returns one result per key, in order: the content, or the error. All contents are in memory together.

        Raises `InvalidNameError` for an invalid bucket or key, before anything is read.
        """

    def head_many(self, bucket: str, keys: Sequence[str]) -> builtins.list[ObjectInfo | FordwayError]:
        """Describes many objects, in as few requests as the lane allows.

        Returns one result per key, in order: the description, or the error.

        Raises `InvalidNameError` for an invalid bucket or key, before anything is looked up.
        """

    def reader(self, bucket: str, key: str, *, version: str | None = None) -> ObjectReader:
        """Opens an object, or a `version` of it, as a binary file for reading and seeking.

        The file reads the version that existed when it was opened. The file is unbuffered: wrap it in
        `io.BufferedReader` for small reads. If the object is replaced meanwhile, reads raise
        `PreconditionFailedError`.

        Raises `NotFoundError`.
        """

    def get(
        self,
        bucket: str,
        key: str,
        *,
        start: int | None = None,
        length: int | None = None,
        version: str | None = None,
        if_match: str | None = None,
        if_none_match: str | None = None,
    ) -> bytes:
        """Returns the content of an object or `version`, or `length` bytes of it from `start` (default 0).

        A negative `start` counts from the end of the object; if the object is shorter, reading starts at its
        first byte. Returns fewer bytes only at the end of the object. Objects over 64 KiB are read directly
        into the result; smaller objects are copied once, because the copy is cheaper. With `if_match`, the
        object is read only if it has this ETag; with `if_none_match`, only if its ETag differs.

        Raises `NotFoundError`, `PreconditionFailedError`, `NotModifiedError` (`if_none_match`), and
        `InvalidArgumentError` if `start` is not before the end, or `length` is 0.
        """

    def get_with_info(
        self,
        bucket: str,
        key: str,
        *,
        start: int | None = None,
        length: int | None = None,
        version: str | None = None,
        if_match: str | None = None,
        if_none_match: str | None = None,
    ) -> tuple[bytes, ObjectInfo]:
        """Returns the content (as `get` does) and the object's metadata. Opens the object only once.

        Raises what `get` raises.
        """

    def stream(
        self,
        bucket: str,
        key: str,
        *,
        start: int | None = None,
        length: int | None = None,
        version: str | None = None,
        if_match: str | None = None,
        if_none_match: str | None = None,
    ) -> tuple[ObjectStream, ObjectInfo]:
        """Opens the object once, for reading sequentially, and returns the stream and the description.

        The stream contains the bytes that `get` returns, even if the object is replaced or removed meanwhile.
        Content of up to 1 MiB is read immediately. The stream of longer content keeps a file or, on the
        `http` lane, a connection open. The end of the content or `close` releases the file or the connection.

        Raises what `get` raises.
        """

    def get_into(
        self,
        bucket: str,
        key: str,
        buffer: ReadableBuffer,
        *,
        start: int | None = None,
        version: str | None = None,
        if_match: str | None = None,
    ) -> int:
        """Reads the object into `buffer`, without another copy, and returns the number of bytes read.

        With `start`, reads as many bytes from byte `start` as fit. Without `start`, the whole object must
        fit. Raises `NotFoundError`; `ValueError` if the object does not fit; `BufferError` if `buffer` is not
        writable.
        """

    def get_ranges(
        self,
        bucket: str,
        key: str,
        ranges: Sequence[tuple[int, int]],
        *,
        version: str | None = None,
        if_match: str | None = None,
    ) -> builtins.list[bytes]:
        """Returns many ranges (start, length) of one version of an object, in order: a vectored read.

        A range that extends beyond the end of the object is shortened. Raises `NotFoundError` if the object
        does not exist, `PreconditionFailedError` if its ETag is not `if_match`, and `InvalidArgumentError` if
        a range begins at or beyond the end or has a length of 0.
        """

    def map(
        self,
        bucket: str,
        key: str,
        *,
        start: int | None = None,
        length: int | None = None,
        version: str | None = None,
    ) -> Mapped:
        """Returns the object, or a range of it as in `get`, as memory: `memoryview(store.map(...))`.

        On the embedded lane, the memory is a mapping of the page cache, and pages are read on first access.
        Later puts do not change the content. If a POSIX program truncates the file, access beyond its new end
        is fatal (SIGBUS). Other lanes read the content into separate memory.
        """

    def head(self, bucket: str, key: str, *, version: str | None = None) -> ObjectInfo:
        """Describes an object, or a `version` of it, without reading it. Raises `NotFoundError`."""

    def delete_many(self, bucket: str, keys: Sequence[str]) -> builtins.list[FordwayError | None]:
        """Removes many objects, in as few requests as the lane allows.

        Returns one result per key, in order: `None`, or the error.

        Raises `InvalidNameError` for an invalid bucket or key, before anything is removed.
        """

    def copy(
        self,
        source_bucket: str,
        source_key: str,
        bucket: str,
        key: str,
        *,
        version: str | None = None,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
        if_none_match: str | None = None,
        if_match: str | None = None,
    ) -> str:
        """Copies an object, or a `version` of it, within the store; returns the copy's ETag (without quotes).

        On the `node` and `http` lanes, the content does not pass through this process. If `content_type`,
        `metadata` or `headers` is given, all three are replaced. `tags` replaces all tags. Without these
        arguments, the copy has the source's metadata and tags. Conditions are as for `put`, and apply to the
        copy.

        Raises `NotFoundError`, `PreconditionFailedError`, and `InvalidArgumentError` if a copy of an
        object to itself would change nothing.
        """

    def writer(
        self,
        bucket: str,
        key: str,
        *,
        size: int | None = None,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
        if_none_match: str | None = None,
        if_match: str | None = None,
    ) -> ObjectWriter:
        """Starts an object that is written in several calls and becomes visible as a whole at the commit.

        `size` is the object's length in bytes, if known. A lane uses the size to choose how to send the
        object, and the commit checks it. The other arguments are as for `put`; conditions are checked at the
        commit.

        Raises `NotFoundError` if the bucket does not exist; on some lanes, only `commit` raises this error.
        """

    def upload(
        self,
        bucket: str,
        key: str,
        *,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
        checksum: str | None = None,
    ) -> Upload:
        """Begins a multipart upload: parts are sent in any order, by any thread, and published together.

        The arguments are as for `put`; `checksum` is as for `put_with_info` and applies to each part. An
        upload that is neither completed nor aborted keeps its parts.

        Raises `NotFoundError` if the bucket does not exist.
        """

    def resume_upload(self, bucket: str, key: str, id: str) -> Upload:  # noqa: A002
        """Returns the upload with this ID, which was begun earlier, perhaps by another process.

        Makes no request. If the upload does not exist, the methods of the returned object raise
        `NotFoundError`.
        """

    def list_uploads(self, bucket: str, prefix: str = "") -> builtins.list[UploadSummary]:
        """Returns the uploads in progress for keys that start with `prefix`, ordered by key.

        Raises `NotFoundError` if the bucket does not exist.
        """

    def uploads_page(
        self,
        bucket: str,
        prefix: str = "",
        delimiter: str | None = None,
        *,
        after: tuple[str, str | None] | None = None,
        limit: int = 1000,
    ) -> UploadPage:
        """Returns one page of the uploads in progress: at most `limit` entries (up to 1,000).

        Keys with `delimiter` after the prefix count as one entry per common prefix, as in `list_page`. The
        page starts after `after`: a key, and the ID of an upload of this key or `None`.

        Raises `NotFoundError` if the bucket does not exist.
        """

    def tags(self, bucket: str, key: str, *, version: str | None = None) -> dict[str, str]:
        """Returns the tags of an object, or of a `version` of it. Raises `NotFoundError`."""

    def set_tags(self, bucket: str, key: str, tags: Mapping[str, str], *, version: str | None = None) -> None:
        """Replaces the tags of an object, or of a `version` of it, without rewriting the content.

        Raises `NotFoundError`, and `InvalidArgumentError` for more than 10 tags or for tags that are too
        long.
        """

    def delete(
        self, bucket: str, key: str, *, if_match: str | None = None, version: str | None = None
    ) -> DeleteInfo | None:
        """Removes an object; removing an object that does not exist succeeds, as in S3.

        If the bucket keeps versions, the object becomes an old version behind a delete marker; with
        `version`, that version is removed permanently. Returns the new delete marker or the removed version;
        `None` if the bucket never kept versions.

        `if_match` is the ETag that an existing object must have. A result without an error does not prove
        that this call removed the object.

        Raises `NotFoundError` if the bucket does not exist; `PreconditionFailedError`.
        """

    def list(
        self, bucket: str, prefix: str = "", delimiter: str | None = None, *, start_after: str | None = None
    ) -> Entries:
        """Iterates over the keys that start with `prefix`, in byte order, in pages of 1,000.

        With a `delimiter`, keys with the same beginning up to the delimiter are returned as one
        `CommonPrefix`. With `start_after`, only entries after that name are returned. If the bucket does not
        exist, the request for the first page raises `NotFoundError`.
        """

    def list_page(
        self,
        bucket: str,
        prefix: str = "",
        delimiter: str | None = None,
        *,
        start_after: str | None = None,
        limit: int = 1000,
    ) -> ListPage:
        """Returns one page of `list`: at most `limit` entries (1 to 1,000), and where the next page starts.

        Raises `NotFoundError` if the bucket does not exist, and `InvalidArgumentError` for any other `limit`.
        """

    def list_versions(self, bucket: str, prefix: str = "") -> Versions:
        """Iterates over all versions and delete markers of the keys that start with `prefix`.

        Entries are in byte order of their keys; the versions of one key are ordered from newest to oldest. If
        the bucket does not exist, the request for the first page raises `NotFoundError`.
        """

@final
class ObjectStream(io.RawIOBase):
    """The content of an object as it was when the object was opened, read sequentially.

    `Store.stream` opens the stream, which is an unbuffered binary file (`io.RawIOBase`): wrap it in
    `io.BufferedReader` for small reads. As a context manager, the stream is closed at the end of its block. A
    forked child can read the stream only if the content does not arrive over a connection. Otherwise, reads
    in the child raise `InvalidArgumentError`, and the parent can continue to read.
    """

    @property
    def closed(self) -> bool:
        """True if the stream is closed, or a read failed."""

    def read(self, size: int | None = None) -> bytes:
        """Returns the next `size` bytes, or all remaining bytes. Returns fewer bytes only at the end.

        Raises `DataError` if the content ends early, `ValueError` if the stream is closed.
        """

    def readall(self) -> bytes:
        """Returns all remaining bytes."""

    def readinto(self, buffer: ReadableBuffer) -> int:
        """Reads into `buffer` until it is full or the content ends, and returns the number of bytes read.

        Raises what `read` raises.
        """

    def tell(self) -> int:
        """Returns the number of bytes read so far."""

    def flush(self) -> None:
        """Does nothing: the stream is read-only."""

    def close(self) -> None:
        """Releases the file or the connection. A second call does nothing."""

    def readable(self) -> bool:
        """Returns true."""

    def writable(self) -> bool:
        """Returns false."""

    def seekable(self) -> bool:
        """Returns false."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...

@final
class ObjectWriter(io.RawIOBase):
    """An object being written in pieces. The object becomes visible as a whole at `commit`, or never.

    As a context manager, the writer commits at the end of its block, or discards the object if the block
    raises. If a write fails or is interrupted, the object is discarded, and the end of the block raises too.
    The writer is also an unbuffered binary file (`io.RawIOBase`), which `io.TextIOWrapper` and other
    libraries accept.
    """

    @property
    def closed(self) -> bool:
        """True if the object was committed or discarded, a write failed, or the writer is a forked copy."""

    def write(self, data: ReadableBuffer) -> int:
        """Appends `data`, any contiguous buffer, and returns its length in bytes.

        The `http` lane sends each part as soon as it is full, and keeps at most one part in memory. After an
        error, the object is discarded. Raises `InvalidArgumentError` if the writer is closed, and
        `NoSpaceError` or another error if the write fails.
        """

    def commit(self) -> str:
        """Publishes the object and returns its ETag (without quotes).

        Raises `PreconditionFailedError`, and `InvalidArgumentError` if the writer is closed.
        """

    def discard(self) -> None:
        """Discards the written data; does nothing if the writer is closed."""

    def close(self) -> None:
        """Publishes the object, unless an exception raised after the writer was begun is being handled.

        In that case, the object is discarded, with a `RuntimeWarning`: a file that is closed because its
        block raised is incomplete. Does nothing if the writer is closed. Raises what `commit` raises, and
        `InvalidArgumentError` if a write failed, because nothing is published then.
        """

    def tell(self) -> int:
        """Returns the number of bytes written so far."""

    def flush(self) -> None:
        """Does nothing: nothing is visible before the commit."""

    def writable(self) -> bool:
        """Returns true."""

    def readable(self) -> bool:
        """Returns false."""

    def seekable(self) -> bool:
        """Returns false."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...

@final
class Upload:
    """An object that is uploaded in parts, and becomes visible as a whole when it is completed.

    Threads may share an upload. As a context manager, an upload is completed at the end of its block. It is
    aborted if the block raises or the completion fails, for example because a part is missing. If the block
    itself completed or aborted the upload, the end of the block has no effect. It also has no effect in a
    child that inherited the upload by a fork.
    """

    @property
    def id(self) -> str:
        """The ID, which `Store.resume_upload` accepts."""

    @property
    def bucket(self) -> str:
        """The bucket."""

    @property
    def key(self) -> str:
        """The key."""

    def put_part(self, number: int, data: ObjectData, *, checksum: str | None = None) -> PutInfo:
        """Sends a buffer as part `number` (1 to 10,000), replacing any part with that number.

        `data` may also be a binary file or an iterable of buffers, as for `Store.put`. Only the `http` lane
        keeps the whole part in memory. Every part except the last must be at least 5 MiB. `checksum` is the
        algorithm of the returned checksum, by default the upload's. Raises `NotFoundError` if the upload is
        completed or aborted, and `InvalidArgumentError` if the upload has another algorithm.
        """

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
    ) -> PutInfo:
        """Fills part `number` from an object of the store, or from `length` bytes of it from byte `start`.

        `if_match` is the ETag that the source must have. On the `node` and `http` lanes, the content does not
        pass through this process. Raises `NotFoundError`, `PreconditionFailedError`, `InvalidArgumentError`.
        """

    def parts(self) -> list[PartSummary]:
        """Returns the parts sent so far, ordered by number."""

    def parts_page(self, after: int = 0, *, limit: int = 1000) -> PartPage:
        """Returns one page of `parts`: at most `limit` parts (up to 1,000) numbered above `after`."""

    def complete(
        self,
        parts: Sequence[tuple[int, str]] | None = None,
        *,
        if_none_match: str | None = None,
        if_match: str | None = None,
    ) -> PutInfo:
        """Publishes the object from `parts`, pairs of number and ETag in ascending order (default: all).

        Conditions are as for `Store.put`. Raises `PreconditionFailedError`, `NotFoundError`, and
        `InvalidArgumentError` for a part that is missing, too small or out of order. Without `parts`, the
        call also raises `InvalidArgumentError` while a part is being sent, and after a part has failed.
        """

    def abort(self) -> None:
        """Removes the upload and its parts. Raises `NotFoundError` if the upload is already completed or
        aborted.
        """

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...
    def _complete_if_open(self) -> None:
        """Completes the upload, unless it is already completed or aborted. Used by `fordway.aio`, which
        aborts the upload in another call if the completion fails.
        """

@final
class PartSummary:
    """A part of an upload."""

    @property
    def number(self) -> int:
        """The number, 1 to 10,000."""

    @property
    def size(self) -> int:
        """Size in bytes."""

    @property
    def etag(self) -> str:
        """The ETag, without quotes."""

    @property
    def modified(self) -> datetime:
        """The time of its arrival, in UTC."""

    @property
    def checksum(self) -> tuple[str, str] | None:
        """The checksum of the part, as algorithm (`"CRC32"`, ...) and base64; or `None`."""

@final
class PartPage:
    """One page of the parts of an upload."""

    @property
    def parts(self) -> list[PartSummary]:
        """The parts, ordered by number."""

    @property
    def is_truncated(self) -> bool:
        """Whether there are more parts."""

    @property
    def checksum(self) -> tuple[str, str] | None:
        """The algorithm and type of the checksums that the upload was begun with; or `None`."""

@final
class UploadSummary:
    """An upload in progress."""

    @property
    def key(self) -> str: ...
    @property
    def id(self) -> str:
        """The ID, for `Store.resume_upload`."""

    @property
    def started(self) -> datetime:
        """The time of its start, in UTC."""

    @property
    def checksum(self) -> tuple[str, str] | None:
        """The algorithm and type of the checksums that the upload was begun with; or `None`."""

@final
class UploadPage:
    """One page of the uploads in progress."""

    @property
    def uploads(self) -> list[UploadSummary]:
        """The uploads whose keys have no common prefix, ordered by key."""

    @property
    def prefixes(self) -> list[str]:
        """The common prefixes of keys, in byte order."""

    @property
    def next(self) -> tuple[str, str] | None:
        """The `after` of the next page; `None` on the last page."""

@final
class Mapped:
    """An object's content as read-only memory, for `memoryview` or `numpy.frombuffer`."""

    def __len__(self) -> int:
        """Size in bytes."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Entries(Iterator[ObjectSummary | CommonPrefix]):
    """The entries of a listing, fetched one page at a time, on demand.

    Threads may share the iterator: each entry is returned once.
    """

    def __next__(self) -> ObjectSummary | CommonPrefix: ...
    def to_arrow(self) -> pyarrow.Table:
        """Returns all further entries as a `pyarrow.Table`: `key`, `size`, `etag` and `modified`.

        In the row of a common prefix, only `key` is set. Needs pyarrow.

        Raises `RuntimeError` if another thread reads the listing meanwhile.
        """

@final
class ListPage:
    """One page of a listing."""

    @property
    def entries(self) -> list[ObjectSummary | CommonPrefix]:
        """Objects and common prefixes, in byte order of their names."""

    @property
    def next(self) -> str | None:
        """The `start_after` of the next page; `None` on the last page."""

@final
class Versions(Iterator[VersionSummary]):
    """The versions of a listing, fetched one page at a time, on demand.

    Threads may share the iterator: each version is returned once.
    """

    def __next__(self) -> VersionSummary: ...

@final
class BucketInfo:
    """A bucket."""

    @property
    def name(self) -> str: ...
    @property
    def created(self) -> datetime:
        """The time of creation, in UTC; 1970-01-01 if the time is unknown."""

@final
class PutInfo:
    """The result of a put."""

    @property
    def etag(self) -> str:
        """The ETag, without quotes."""

    @property
    def version(self) -> str | None:
        """The version ID of the new object; `None` if the bucket never kept versions."""

    @property
    def modified(self) -> datetime:
        """The time of its publication, in UTC."""

    @property
    def checksum(self) -> str | None:
        """The requested checksum in base64, or `None`."""

@final
class DeleteInfo:
    """The result of a delete in a bucket that keeps versions."""

    @property
    def version(self) -> str:
        """The ID of the removed version, or of the new delete marker."""

    @property
    def is_delete_marker(self) -> bool:
        """Whether `version` is a delete marker."""

@final
class ObjectInfo:
    """The metadata of an object."""

    @property
    def size(self) -> int:
        """Size of the whole object, in bytes."""

    @property
    def etag(self) -> str:
        """The ETag, without quotes."""

    @property
    def modified(self) -> datetime:
        """The time of the last write, in UTC."""

    @property
    def content_type(self) -> str | None:
        """The Content-Type that its writer stored, or `None`."""

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata that its writer stored, with names in lower case."""

    @property
    def version(self) -> str | None:
        """The version ID; `None` if the object was written while the bucket kept no versions."""

    @property
    def tag_count(self) -> int:
        """The number of tags."""

    @property
    def headers(self) -> dict[str, str]:
        """Other headers that its writer stored, such as `content-encoding`, with names in lower case."""

    @property
    def checksum(self) -> tuple[str, str] | None:
        """The checksum that its writer sent, as algorithm (`"CRC32"`, ...) and base64; or `None`."""

    @property
    def part_count(self) -> int | None:
        """The number of parts of its upload; `None` if the object was put as a whole."""

    @property
    def retention(self) -> tuple[str, datetime] | None:
        """The retention of this version, as mode (`"GOVERNANCE"` or `"COMPLIANCE"`) and the time at which it
        ends, which may be past; or `None`.
        """

    @property
    def legal_hold(self) -> bool | None:
        """Whether this version has a legal hold; `None` if the hold was never set."""

@final
class ObjectSummary:
    """An object in a listing."""

    @property
    def key(self) -> str: ...
    @property
    def size(self) -> int:
        """Size in bytes."""

    @property
    def etag(self) -> str:
        """The ETag, without quotes."""

    @property
    def modified(self) -> datetime:
        """The time of the last write, in UTC."""

@final
class VersionSummary:
    """A version of an object, or a delete marker, in a listing."""

    @property
    def key(self) -> str: ...
    @property
    def version(self) -> str:
        """The version ID; `"null"` if the version was written while the bucket kept no versions."""

    @property
    def is_latest(self) -> bool:
        """True for the latest version, which calls use by default."""

    @property
    def is_delete_marker(self) -> bool:
        """True for a delete marker, which has no content."""

    @property
    def modified(self) -> datetime:
        """The time of the write, in UTC."""

    @property
    def size(self) -> int | None:
        """Size in bytes; `None` for a delete marker."""

    @property
    def etag(self) -> str | None:
        """The ETag, without quotes; `None` for a delete marker."""

@final
class CommonPrefix:
    """The common prefix of one or more keys, up to and including the delimiter."""

    @property
    def prefix(self) -> str: ...

@final
class _CancellationToken:
    """Ends one call early. Used by `fordway.aio`."""

    @property
    def cancelled(self) -> bool:
        """True if `cancel` was called."""

    def cancel(self, grace_ms: int = 0) -> None:
        """Makes the call end after `grace_ms` milliseconds. An earlier end time stays in effect."""

    def run(self, call: Callable[[], _T]) -> _T:
        """Returns the result of `call()`. While `call` runs, this token can interrupt its waits.

        Raises `CallInterruptedError` if the token ended a wait. If the token's time has already passed,
        raises this error without calling `call`.
        """
