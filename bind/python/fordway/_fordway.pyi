"""Types of the compiled module."""

import builtins
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias, final

from fordway.errors import FordwayError

class ExportsBuffer(Protocol):
    """An object with the buffer protocol: `bytes`, `bytearray`, `memoryview`, `array`, `mmap`, ..."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

class ExportsArray(Protocol):
    """A NumPy array, whose type stubs declare `__buffer__` only from Python 3.12 on."""

    @property
    def __array_interface__(self) -> Any: ...  # noqa: ANN401 (NumPy's own)

ReadableBuffer: TypeAlias = ExportsBuffer | ExportsArray
"""A buffer for `put`; if it is writable, also for `get_into`."""

__version__: str
ERROR_KINDS: tuple[str, ...]
"""All values of `FordwayError.kind`."""

def open(endpoint: str | None = None) -> Store:  # noqa: A001
    """Opens the store at `endpoint`.

    `file:///DIRECTORY` or `/DIRECTORY` selects the lane `embedded`: each subdirectory is a bucket.
    `http(s)://HOST[:PORT]` selects the lane `http`: any S3 service. `unix:///SOCKET` and
    `tcp://HOST:PORT` select the lane `node`: a gateway started by `fordway node`. Without an endpoint,
    the store uses `AWS_ENDPOINT_URL_S3`, else `AWS_ENDPOINT_URL`, else the AWS configuration file, else
    AWS.

    Raises `InvalidArgumentError` if the endpoint has another form or the directory does not exist.
    """

def open_url(
    url: str,
    *,
    connections: int | None = None,
    ca_bundle: str | None = None,
    deadline: float | None = None,
) -> RemoteFile:
    """Opens the file at an `http(s)://` URL, following redirects.

    Credentials and proxies come from the environment, as for `fordway read`. `connections` is the
    maximum number of connections to one server (default 8), `ca_bundle` a PEM file with the trusted
    certificates (default `AWS_CA_BUNDLE`, else the system's), and `deadline` the time limit for an
    operation, in seconds. Files opened without these options share their connections.

    Raises `NotFoundError`, `AccessDeniedError`, `UnavailableError`, `DeadlineError`, `InvalidArgumentError`.
    """

@final
class RemoteFile:
    """A file at a web server, in the version that existed when it was opened.

    Threads may share it. If the file changes, reads raise `PreconditionFailedError`.
    """

    @property
    def url(self) -> str:
        """The URL that the file was opened with."""

    @property
    def size(self) -> int:
        """Bytes."""

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
        """Returns `length` bytes from offset `start`; fewer at the end of the file."""

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Returns the bytes of each range (start, length); ranges may overlap and be in any order.

        The ranges are requested together, in as few requests as the server allows. Raises
        `InvalidArgumentError`, before anything is read, if a range ends beyond the end of the file.
        """

@final
class Store:
    """The objects behind an endpoint.

    Threads may share a store. Calls that access files release the interpreter, so that other Python
    threads can run. Unpickling a store opens it again at the same endpoint. As a context manager, a
    store is closed at the end of its block.
    """

    @property
    def lane(self) -> str:
        """How the store is reached: `embedded`, `node` or `http`."""

    @property
    def closed(self) -> bool:
        """Whether the store is closed."""

    def close(self) -> None:
        """Closes the store and releases its files and connections. Closing it again does nothing.

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
        """Whether the bucket keeps old versions: `"enabled"`, `"suspended"`, or `None` if it never did.

        Raises `NotFoundError`.
        """

    def set_versioning(self, bucket: str, enabled: bool) -> None:
        """Enables or suspends versioning of the bucket. Raises `NotFoundError`."""

    def put(
        self,
        bucket: str,
        key: str,
        data: ReadableBuffer,
        *,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
        if_none_match: str | None = None,
        if_match: str | None = None,
    ) -> str:
        """Stores `data` under `key`, whole or not at all, and returns the new ETag (without quotes).

        `bytes` are written without a copy; any other contiguous buffer, such as a NumPy array of any type,
        is copied once first. Text must be encoded. Names in `metadata` are stored in lower case. An object
        has at most 10 `tags`. `if_none_match="*"` creates an object but never replaces one; `if_match=etag`
        replaces the object only if it still has that ETag.

        Raises `NotFoundError` (no bucket), `PreconditionFailedError`, `NoSpaceError`, ...
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
    ) -> bytes:
        """Returns the object, or a `version` of it: whole, or `length` bytes from byte `start` (or 0).

        Returns fewer bytes only at the end of the object. Objects over 64 KiB are read directly into the
        result; smaller ones are copied once, which is cheaper. With `if_match`, the object is read only if
        it has that ETag.

        Raises `NotFoundError`, `PreconditionFailedError`, and `InvalidArgumentError` if `start` is negative
        or not before the end, or `length` is 0.
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
    ) -> tuple[bytes, ObjectInfo]:
        """Returns the bytes that `get` returns, and the description of the object, with a single open.

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
        """Reads the object into `buffer`, without a further copy, and returns its length in bytes.

        With `start`, reads as many bytes from there as fit; without it, the whole object must fit. Raises
        `NotFoundError`; `ValueError` if it does not fit; `BufferError` if `buffer` is not writable.
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
        """Returns many ranges of one version of an object, each given as start and length, in order.

        A range that extends beyond the end of the object is shortened. Raises `NotFoundError`,
        `PreconditionFailedError`, and `InvalidArgumentError` if a range begins at or beyond the end, or has
        a length of 0.
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

        On the embedded lane, this maps the page cache, and pages are read on first access. Later puts do
        not change the content. If a POSIX program truncates the file, access beyond its new end is fatal
        (SIGBUS). Other lanes read the content into separate memory.
        """

    def head(self, bucket: str, key: str, *, version: str | None = None) -> ObjectInfo:
        """Describes an object, or a `version` of it, without reading it. Raises `NotFoundError`."""

    def delete_many(self, bucket: str, keys: Sequence[str]) -> builtins.list[FordwayError | None]:
        """Removes many objects, in as few requests as the lane allows.

        Returns one result per key, in order: `None`, or the error.

        Raises `InvalidNameError`, before anything is removed.
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
        tags: Mapping[str, str] | None = None,
        if_none_match: str | None = None,
        if_match: str | None = None,
    ) -> str:
        """Copies an object, or a `version` of it, within the store; returns the copy's ETag (without quotes).

        On the lanes `node` and `http`, the content does not pass through this process. If `content_type` or
        `metadata` is given, both are replaced, and `tags` replaces all tags; otherwise, the copy has the
        source's metadata and tags. Conditions are as for `put`, and apply to the copy.

        Raises `NotFoundError`, `PreconditionFailedError`, and `InvalidArgumentError` for a copy of an
        object to itself that changes nothing.
        """

    def writer(
        self,
        bucket: str,
        key: str,
        *,
        size: int | None = None,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
        if_none_match: str | None = None,
        if_match: str | None = None,
    ) -> ObjectWriter:
        """Begins an object that is written in pieces and becomes visible as a whole at the commit.

        `size` is its length in bytes, if known, from which a lane chooses how to send it. The other
        arguments are as for `put`; conditions are checked at the commit.

        Raises `NotFoundError` (no bucket; perhaps only at `commit`).
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
    ) -> None:
        """Removes an object; removing an object that does not exist succeeds, as in S3.

        If the bucket keeps versions, the object becomes an old version behind a delete marker; with
        `version`, that version is removed permanently.

        Raises `NotFoundError` (no bucket, or `if_match` and no object), `PreconditionFailedError`.
        """

    def list(self, bucket: str, prefix: str = "", delimiter: str | None = None) -> Entries:
        """Iterates over the keys that start with `prefix`, in byte order, a page of 1,000 at a time.

        With a `delimiter`, keys with the same part up to it are returned as one `CommonPrefix`. Raises
        `NotFoundError` (no bucket) when the first page is fetched.
        """

    def list_versions(self, bucket: str, prefix: str = "") -> Versions:
        """Iterates over all versions and delete markers of the keys that start with `prefix`.

        Entries are ordered by key in byte order; versions of one key, from the newest to the oldest. Raises
        `NotFoundError` (no bucket) when the first page is fetched.
        """

@final
class ObjectWriter:
    """An object being written in pieces. It becomes visible as a whole at `commit`, or never.

    As a context manager, it commits at the end of its block, or discards the object if the block raises.
    """

    @property
    def closed(self) -> bool:
        """Whether writing is no longer possible: committed, discarded, failed, or inherited by a fork."""

    def write(self, data: ReadableBuffer) -> int:
        """Appends `data`, any contiguous buffer, and returns its length in bytes.

        The lane `http` sends each part as soon as it is full and holds at most one in memory. After an
        error, the object is discarded. Raises `InvalidArgumentError` if the writer is closed,
        `NoSpaceError`, ...
        """

    def commit(self) -> str:
        """Publishes the object and returns its ETag (without quotes).

        Raises `PreconditionFailedError`, and `InvalidArgumentError` if the writer is closed.
        """

    def discard(self) -> None:
        """Discards the written data; does nothing if the writer is closed."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...

@final
class Mapped:
    """An object's content as read-only memory, for `memoryview` or `numpy.frombuffer`."""

    def __len__(self) -> int:
        """Bytes."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Entries(Iterator[ObjectSummary | CommonPrefix]):
    """The entries of a listing, fetched one page at a time, on demand."""

    def __next__(self) -> ObjectSummary | CommonPrefix: ...

@final
class Versions(Iterator[VersionSummary]):
    """The versions of a listing, fetched one page at a time, on demand."""

    def __next__(self) -> VersionSummary: ...

@final
class BucketInfo:
    """A bucket."""

    @property
    def name(self) -> str: ...
    @property
    def created(self) -> datetime:
        """The time of creation, as far as the store knows it, in UTC."""

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

@final
class ObjectSummary:
    """An object in a listing."""

    @property
    def key(self) -> str: ...
    @property
    def size(self) -> int:
        """Bytes."""

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
        """The version ID; `"null"` if it was written while the bucket kept no versions."""

    @property
    def is_latest(self) -> bool:
        """Whether this is the latest version, which calls without a version use."""

    @property
    def is_delete_marker(self) -> bool:
        """Whether this is a delete marker, which has no content."""

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
    """The common beginning of several keys, up to the delimiter."""

    @property
    def prefix(self) -> str: ...
