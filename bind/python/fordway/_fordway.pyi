"""Types of the compiled module."""

import builtins
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias, final

from fordway.errors import FordwayError

class ExportsBuffer(Protocol):
    """What has the buffer protocol: `bytes`, `bytearray`, `memoryview`, `array`, `mmap`, ..."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

class ExportsArray(Protocol):
    """The same of NumPy's arrays, whose stubs name `__buffer__` from Python 3.12 on."""

    @property
    def __array_interface__(self) -> Any: ...  # noqa: ANN401 (NumPy's own)

ReadableBuffer: TypeAlias = ExportsBuffer | ExportsArray
"""What `put` takes, and `get_into` where it can be written."""

__version__: str
ERROR_KINDS: tuple[str, ...]
"""Every way an operation can fail, as `FordwayError.kind` names it."""

def open(endpoint: str | None = None) -> Store:  # noqa: A001
    """Opens the store at `endpoint`.

    `file:///DIRECTORY` or `/DIRECTORY` is the lane `embedded`: each directory in it is a bucket.
    `http(s)://HOST[:PORT]` is the lane `http`: any S3 service. `unix:///SOCKET` and `tcp://HOST:PORT` are
    the lane `node`: a gateway started by `fordway node`. Without an endpoint,
    `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`, the AWS configuration file and at last AWS itself are taken.

    Raises `InvalidArgumentError` if the endpoint is none of these or the directory is missing.
    """

def open_url(
    url: str,
    *,
    connections: int | None = None,
    ca_bundle: str | None = None,
    deadline: float | None = None,
) -> RemoteFile:
    """Opens the file at an `http(s)://` URL, or wherever that redirects to.

    Credentials and proxies are those that the environment names, as for `fordway read`. Files that are opened
    without options share connections: `connections` to a server at once (8), the certificates of the PEM file
    `ca_bundle` (`AWS_CA_BUNDLE`, else the system's), and `deadline`, the seconds that an operation may take.

    Raises `NotFoundError`, `AccessDeniedError`, `UnavailableError`, `DeadlineError`, `InvalidArgumentError`.
    """

@final
class RemoteFile:
    """A file at a web server, in the version that was there when it was opened.

    Threads may share it. If the file changes, reads raise `PreconditionFailedError`.
    """

    @property
    def url(self) -> str:
        """The address that it was opened by."""

    @property
    def size(self) -> int:
        """Bytes."""

    @property
    def etag(self) -> str | None:
        """The server's entity tag, with its quotes."""

    @property
    def last_modified(self) -> str | None:
        """When it was last changed, as the server writes it."""

    @property
    def requests(self) -> int:
        """Requests sent so far."""

    def read(self, start: int, length: int) -> bytes:
        """Returns `length` bytes from `start` on; fewer where the file ends."""

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Returns the bytes of each (start, length), which may overlap and come in any order.

        They are asked for at once, in as few requests as the server takes. Raises `InvalidArgumentError`
        where one ends behind the file, before anything is read.
        """

@final
class Store:
    """The objects behind an endpoint.

    Threads may share a store. Every call that touches files lets other Python threads run meanwhile.
    A pickled store is opened anew, by the same endpoint, where it is read.
    As a context manager it is closed at the end of its block.
    """

    @property
    def lane(self) -> str:
        """How the store is reached: `embedded`, `node` or `http`."""

    @property
    def closed(self) -> bool:
        """Whether it is closed."""

    def close(self) -> None:
        """Closes the store: lets go of its files and connections. Closing it again does nothing.

        Calls, iterators and writers that are under way go on; new calls raise `InvalidArgumentError`.
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
        """Makes an empty bucket. Raises `AlreadyExistsError`, `InvalidNameError`."""

    def head_bucket(self, bucket: str) -> BucketInfo:
        """Describes a bucket. Raises `NotFoundError`."""

    def delete_bucket(self, bucket: str) -> None:
        """Removes an empty bucket. Raises `NotFoundError`, `BucketNotEmptyError`."""

    def versioning(self, bucket: str) -> str | None:
        """Whether the bucket keeps old versions: `"enabled"`, `"suspended"`, or `None` if it never did.

        Raises `NotFoundError`.
        """

    def set_versioning(self, bucket: str, enabled: bool) -> None:
        """Has the bucket keep old versions from now on, or no longer. Raises `NotFoundError`."""

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

        `bytes` are written from where they lie; any other buffer in one piece, such as a NumPy array of
        whatever numbers, is copied once first. Text has to be encoded.
        `metadata` names are kept in lower case. `tags` are at most 10. `if_none_match="*"` creates and never
        replaces; `if_match=etag` replaces only while the object still has that ETag.

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
        """Returns the object, or a `version` of it: whole, or `length` bytes from byte `start` (or from 0).

        Fewer bytes come back only where the object ends before. Objects over 64 KiB are read straight
        into the result; smaller ones are copied once, which costs less than it saves.
        With `if_match`, only an object with that ETag is read.

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
        """Returns the bytes that `get` returns and the description of the whole object, by one open.

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
        """Reads the object into `buffer`, without a copy on the way, and returns how many bytes it has.

        With a `start`, reads as many bytes from there as fit; without one, the object must fit.
        Raises `NotFoundError`; `ValueError` if it does not fit; `BufferError` if `buffer` cannot be written.
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

        A range that ends behind the object is cut. Raises `NotFoundError`, `PreconditionFailedError`, and
        `InvalidArgumentError` if a range begins at or past the end, or has a length of 0.
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
        """Returns the object, or a range of it as `get` takes, as memory: `memoryview(store.map(...))`.

        On the embedded lane that is the page cache itself, and nothing is read before it is touched.
        It stays the version it was, whatever is put later. A POSIX program that cuts the file short
        makes access behind its new end fatal (SIGBUS). Other lanes read it into memory of its own.
        """

    def head(self, bucket: str, key: str, *, version: str | None = None) -> ObjectInfo:
        """Describes an object, or a `version` of it, without reading it. Raises `NotFoundError`."""

    def delete_many(self, bucket: str, keys: Sequence[str]) -> builtins.list[FordwayError | None]:
        """Removes many objects in as few requests as the lane takes.

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

        The content does not pass through this process on the lanes `node` and `http`. A `content_type` or
        `metadata` replace what the source has of both, and `tags` its tags; else the copy has the source's.
        Conditions are as for `put`, and apply to the copy.

        Raises `NotFoundError`, `PreconditionFailedError`; `InvalidArgumentError` for a copy onto itself that
        changes nothing.
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
        """Begins an object that is written in pieces, and appears whole when it is committed.

        `size` is its length in bytes if that is known, which lets a lane choose how to send it. The other
        arguments are those of `put`; conditions are checked when the object appears.

        Raises `NotFoundError` (no bucket; perhaps only at `commit`).
        """

    def tags(self, bucket: str, key: str, *, version: str | None = None) -> dict[str, str]:
        """Returns the tags of an object, or of a `version` of it. Raises `NotFoundError`."""

    def set_tags(self, bucket: str, key: str, tags: Mapping[str, str], *, version: str | None = None) -> None:
        """Replaces the tags of an object, or of a `version` of it; the object is not written again.

        Raises `NotFoundError`, and `InvalidArgumentError` for more than 10 tags or longer ones than S3 takes.
        """

    def delete(
        self, bucket: str, key: str, *, if_match: str | None = None, version: str | None = None
    ) -> None:
        """Removes an object; removing what is not there succeeds, as in S3.

        Where the bucket keeps versions, the object becomes one of them and is hidden by a delete marker;
        with a `version`, that one is removed for good.

        Raises `NotFoundError` (no bucket, or `if_match` and no object), `PreconditionFailedError`.
        """

    def list(self, bucket: str, prefix: str = "", delimiter: str | None = None) -> Entries:
        """Iterates over the keys that start with `prefix`, in byte order, a page of 1,000 at a time.

        With a `delimiter`, keys that share the part up to it come as one `CommonPrefix`.
        Raises `NotFoundError` (no bucket) when the first page is fetched.
        """

    def list_versions(self, bucket: str, prefix: str = "") -> Versions:
        """Iterates over all versions and delete markers of the keys that start with `prefix`.

        They come by key in byte order, and the versions of one key from the newest to the oldest.
        Raises `NotFoundError` (no bucket) when the first page is fetched.
        """

@final
class ObjectWriter:
    """An object being written in pieces. It appears whole at `commit`, and not at all without it.

    As a context manager it commits at the end of its block, or discards the object if the block raises.
    """

    @property
    def closed(self) -> bool:
        """Whether it takes nothing more: committed, discarded, failed, or of a parent process."""

    def write(self, data: ReadableBuffer) -> int:
        """Appends `data`, any buffer in one piece, and returns its length in bytes.

        The lane `http` sends parts as they fill up and holds at most one in memory. After an error the object
        is given up. Raises `InvalidArgumentError` if the writer is closed, `NoSpaceError`, ...
        """

    def commit(self) -> str:
        """Publishes the object and returns its ETag (without quotes).

        Raises `PreconditionFailedError`, and `InvalidArgumentError` if the writer is closed.
        """

    def discard(self) -> None:
        """Drops what was written; nothing if the writer is closed."""

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
    """An object's content as read-only memory: take a `memoryview`, or `numpy.frombuffer`, of it."""

    def __len__(self) -> int:
        """Bytes."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Entries(Iterator[ObjectSummary | CommonPrefix]):
    """The entries of a listing, fetched a page at a time as they are asked for."""

    def __next__(self) -> ObjectSummary | CommonPrefix: ...

@final
class Versions(Iterator[VersionSummary]):
    """The versions of a listing, fetched a page at a time as they are asked for."""

    def __next__(self) -> VersionSummary: ...

@final
class BucketInfo:
    """A bucket."""

    @property
    def name(self) -> str: ...
    @property
    def created(self) -> datetime:
        """When it was made, as far as the store knows, in UTC."""

@final
class ObjectInfo:
    """What is known of an object without reading it."""

    @property
    def size(self) -> int:
        """Bytes in the whole object."""

    @property
    def etag(self) -> str:
        """Its entity tag, without quotes."""

    @property
    def modified(self) -> datetime:
        """When it was last written, in UTC."""

    @property
    def content_type(self) -> str | None:
        """What its writer said it is; `None` if nothing."""

    @property
    def metadata(self) -> dict[str, str]:
        """The writer's own names and values; names in lower case."""

    @property
    def version(self) -> str | None:
        """Which version it is; `None` for one that was written while the bucket kept none."""

    @property
    def tag_count(self) -> int:
        """How many tags it has."""

@final
class ObjectSummary:
    """An object as a listing shows it."""

    @property
    def key(self) -> str: ...
    @property
    def size(self) -> int:
        """Bytes."""

    @property
    def etag(self) -> str:
        """Its entity tag, without quotes."""

    @property
    def modified(self) -> datetime:
        """When it was last written, in UTC."""

@final
class VersionSummary:
    """One version of an object, or a delete marker, as a listing shows it."""

    @property
    def key(self) -> str: ...
    @property
    def version(self) -> str:
        """Its name; `"null"` if it was written while the bucket kept none."""

    @property
    def is_latest(self) -> bool:
        """Whether it is what a call without a version means."""

    @property
    def is_delete_marker(self) -> bool:
        """Whether it stands for a delete, and has no content."""

    @property
    def modified(self) -> datetime:
        """When it was written, in UTC."""

    @property
    def size(self) -> int | None:
        """Bytes; `None` for a delete marker."""

    @property
    def etag(self) -> str | None:
        """Its entity tag, without quotes; `None` for a delete marker."""

@final
class CommonPrefix:
    """What the keys below it have in common, up to the delimiter."""

    @property
    def prefix(self) -> str: ...
