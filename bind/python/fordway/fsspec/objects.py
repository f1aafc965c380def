"""An fsspec file system for objects on every lane."""

from __future__ import annotations

import errno
import io
import itertools
import mimetypes
import os
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.compression import compr
from fsspec.core import get_compression, has_magic
from fsspec.spec import AbstractFileSystem
from fsspec.utils import stringify_path, tokenize

import fordway
from fordway.errors import (
    AlreadyExistsError,
    FordwayError,
    InvalidArgumentError,
    InvalidNameError,
    NotFoundError,
    PreconditionFailedError,
    UnsupportedError,
)
from fordway.fsspec.copying import check_no_move_into_itself, planned_copies, planned_downloads
from fordway.fsspec.coroutines import Coroutines
from fordway.fsspec.files import (
    COPY_BYTES,
    CompressingObjectWriter,
    FsspecObjectFile,
    NewObject,
    is_a_directory,
)
from fordway.fsspec.local import opened_target
from fordway.fsspec.slices import one_each, within
from fordway.fsspec.transactions import ObjectTransaction
from fordway.fsspec.walking import prefix_of, walked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime
    from typing import BinaryIO

    from fsspec.callbacks import Callback

    from fordway._fordway import ReadableBuffer

    Details = dict[str, Any]
    Slice = tuple[int | None, int | None]

READ_AHEAD_BYTES = {"http": 5 << 20}
"""Read-ahead in bytes, for lanes on which every read is a request to a server."""
LOCAL_READ_AHEAD_BYTES = 128 << 10
"""Read-ahead in bytes on the other lanes, where a read is a system call and the kernel itself reads ahead
into the page cache.
"""
WRITE_BYTES = 1 << 20
"""Number of bytes of a new object that are collected before they are sent to the store."""
DELETE_KEYS = 1000
"""Maximum number of objects in one delete request of S3."""
TEXT_OPTIONS = {"encoding", "errors", "newline"}
OPTIONS_OF_FSSPEC = {"use_listings_cache", "listings_expiry_time", "max_paths", "asynchronous", "loop"}


class _AwsVariables:
    """A descriptor for the environment variables that `fordway.open` reads. Each access to the attribute
    returns the current values.
    """

    def __get__(self, _: object, __: type) -> tuple[tuple[str, str], ...]:
        return tuple(sorted(item for item in os.environ.items() if item[0].startswith("AWS_")))


class ObjectFileSystem(Coroutines, AbstractFileSystem):
    """Buckets as directories, and their objects as files: `fordway://BUCKET/KEY`.

    `endpoint` is passed to `fordway.open`; without it, the environment determines the endpoint. Listings are
    never cached. A directory is a common prefix of keys up to a `/`, so only buckets can be empty
    directories. Each file is published as a whole or not at all. In a transaction, files are published one
    after another at the end of the transaction.
    """

    protocol: str | tuple[str, ...] = ("fordway",)
    root_marker = ""
    transaction_type = ObjectTransaction

    _aws_variables = _AwsVariables()
    # fsspec returns an existing instance only if these attributes are also equal.
    _extra_tokenize_attributes = ("_aws_variables",)

    def __init__(self, endpoint: str | None = None, **options: Any) -> None:  # noqa: ANN401 (fsspec's own)
        unknown = sorted(options.keys() - OPTIONS_OF_FSSPEC)
        if unknown:
            why = f"{type(self).__name__} has no option {unknown[0]!r}; keys and region are taken from AWS_*"
            raise InvalidArgumentError(why, "InvalidArgument")
        super().__init__(endpoint=endpoint, **options)
        self._offer_coroutines(options.get("asynchronous", False))
        self.store = fordway.open(endpoint)

    # Addresses

    @classmethod
    def _strip_protocol(cls, path: str | os.PathLike[str] | list[str]) -> str | list[str]:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        path = stringify_path(path)
        protocols = (cls.protocol,) if isinstance(cls.protocol, str) else cls.protocol
        for protocol in protocols:
            path = path.removeprefix(f"{protocol}://")
        return path.strip("/") if path.endswith("/") else path.lstrip("/")

    def _split(self, path: str) -> tuple[str, str]:
        bucket, _, key = self._strip_protocol(path).partition("/")
        return bucket, key

    def address_of(self, path: str) -> tuple[str, str]:
        """Returns the bucket and key of an object. Raises `IsADirectoryError` for a path without a key."""
        bucket, key = self._split(path)
        if not key:
            raise is_a_directory(path, "a bucket; write BUCKET/KEY")
        return bucket, key

    # Metadata and listings

    def info(self, path: str, **_: Any) -> Details:  # noqa: ANN401
        """Returns the properties of an object or a directory. Raises `FileNotFoundError`.

        Cost: one request for an object, two for a directory.
        """
        bucket, key = self._split(path)
        if not bucket:
            return _directory("")
        if not key:
            self.store.head_bucket(bucket)
            return _directory(bucket)
        try:
            found = self.store.head(bucket, key)
        except NotFoundError as error:
            if error.kind == "NoSuchBucket" or not self._is_prefix(bucket, key):
                raise
            return _directory(f"{bucket}/{key}")
        more = {"ContentType": found.content_type, "metadata": found.metadata, "VersionId": found.version}
        return _file(f"{bucket}/{key}", found) | more

    def _is_prefix(self, bucket: str, key: str) -> bool:
        return bool(self.store.list_page(bucket, f"{key}/", limit=1).entries)

    def exists(self, path: str, **_: Any) -> bool:  # noqa: ANN401
        """Returns whether an object or directory exists. Raises all errors other than `FileNotFoundError`."""
        return self._type(path) is not None

    def isdir(self, path: str) -> bool:
        """Returns whether a directory exists. Raises all errors other than `FileNotFoundError`."""
        return self._type(path) == "directory"

    def isfile(self, path: str) -> bool:
        """Returns whether an object exists. Raises all errors other than `FileNotFoundError`."""
        return self._type(path) == "file"

    def _type(self, path: str) -> str | None:
        try:
            return self.info(path)["type"]
        except (FileNotFoundError, InvalidNameError):
            return None

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Details] | list[str]:  # noqa: ANN401
        """Returns the entries of a directory, or the object if `path` is an object. Raises
        `FileNotFoundError`.
        """
        found = self._entries(self._strip_protocol(path))
        return found if detail else sorted(each["name"] for each in found)

    def _entries(self, path: str) -> list[Details]:
        """Returns the entries of a directory. The path must be one that a listing returned."""
        bucket, prefix = prefix_of(path)
        if not bucket:
            return [_directory(each.name) for each in self.store.list_buckets()]
        listed = self.store.list(bucket, prefix, "/")
        found = [_entry(bucket, each) for each in listed if getattr(each, "key", None) != prefix]
        if not found and prefix and not path.endswith("/"):
            about = self.info(path)
            found = [about] if about["type"] == "file" else []
        return found

    def walk(
        self,
        path: str,
        maxdepth: int | None = None,
        topdown: bool = True,
        on_error: str | Callable[[OSError], None] = "omit",
        detail: bool = False,
        **_: Any,  # noqa: ANN401
    ) -> Iterator[tuple[str, Any, Any]]:
        """Yields each directory, with its subdirectories and files. `on_error="omit"` omits only directories
        that do not exist, because an incomplete listing must not look complete.
        """
        if maxdepth is not None and maxdepth < 1:
            raise ValueError("maxdepth must be at least 1")
        named = _raise if on_error == "raise" else _raise_unless_missing
        handler = on_error if callable(on_error) else named
        for each in walked(self._entries, self._strip_protocol(path), maxdepth, topdown, handler):
            root, directories, files = each
            if detail:
                yield each
                continue
            names = list(directories)
            yield root, names, list(files)
            # The caller may remove directories from the list, so that they are not walked.
            chosen = {name: directories[name] for name in names if name in directories}
            directories.clear()
            directories.update(chosen)

    def find(
        self,
        path: str,
        maxdepth: int | None = None,
        withdirs: bool = False,
        detail: bool = False,
        prefix: str = "",
        **options: Any,  # noqa: ANN401
    ) -> list[str] | dict[str, Details]:
        """Returns all objects below a directory whose names relative to the directory begin with `prefix`.

        Cost: one listing, or one listing for each directory if `maxdepth` is given.
        """
        bucket, key = self._split(path)
        if maxdepth is not None or not bucket:
            found = super().find(path, maxdepth=maxdepth, withdirs=withdirs, detail=True, **options)
            below = f"{self._strip_protocol(path)}/{prefix}".lstrip("/")
            chosen = [name for name in found if not prefix or name.startswith(below)]
            # If `path` is an object, fsspec returns its name without its properties.
            found = {name: found[name] or self.info(name) for name in chosen}
        else:
            found = self._find_all(bucket, key, prefix, withdirs)
        return found if detail else list(found)

    def _find_all(self, bucket: str, key: str, prefix: str, withdirs: bool) -> dict[str, Details]:
        below = f"{key}/" if key else ""
        found, directories = {}, set()
        try:
            for each in self.store.list(bucket, below + prefix):
                directories.update(_parents(each.key, len(below)))
                if not each.key.endswith("/"):
                    found[f"{bucket}/{each.key}"] = _entry(bucket, each)
        except FileNotFoundError:
            return {}
        if not found and key and not directories and self.isfile(f"{bucket}/{key}"):
            return {f"{bucket}/{key}": self.info(f"{bucket}/{key}")}
        if withdirs:
            root = f"{bucket}/{key}" if key else bucket
            names = [root] if found or directories or not key else []
            names += [f"{bucket}/{each}" for each in directories]
            found = {name: _directory(name) for name in names} | found
        return dict(sorted(found.items()))

    def du(
        self,
        path: str,
        total: bool = True,
        maxdepth: int | None = None,
        withdirs: bool = False,
        **options: Any,  # noqa: ANN401
    ) -> int | dict[str, int]:
        """Returns the total size of all objects below a directory, in bytes. With `total=False`, returns the
        size of each object, apart from objects that mark directories.

        Cost: as for `find`.
        """
        bucket, key = self._split(path)
        if total and bucket and maxdepth is None:
            try:
                sizes = [each.size for each in self.store.list(bucket, f"{key}/" if key else "")]
            except FileNotFoundError:
                return 0
            if sizes:
                return sum(sizes)
        found = self.find(path, maxdepth=maxdepth, withdirs=withdirs, detail=True, **options)
        sizes = {name: about["size"] for name, about in found.items()}
        return sum(sizes.values()) if total else sizes

    def modified(self, path: str) -> datetime:
        """Returns the time of an object's last write, or of a bucket's creation."""
        bucket, key = self._split(path)
        if bucket and not key:
            return self.store.head_bucket(bucket).created
        about = self.info(path)
        if about["type"] == "directory":
            raise is_a_directory(path)
        return about["LastModified"]

    def created(self, path: str) -> datetime:
        """Returns the time of the last write, because every write creates a new object."""
        return self.modified(path)

    def ukey(self, path: str) -> str:
        """Returns a key that changes when the object changes."""
        about = self.info(path)
        return tokenize(about["name"], about.get("ETag"))

    def checksum(self, path: str) -> int:
        """Returns a number that is the same for equal ETags."""
        return int(tokenize(self.info(path).get("ETag")), 16)

    # Reading

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:  # noqa: ANN401
        """Returns the bytes from `start` to `end`. Negative values count from the end of the object."""
        address = self.address_of(path)
        if start is None and end is None:
            return self.store.get(*address)
        return self._slices(address, [(start, end)])[0]

    def cat_ranges(
        self,
        paths: list[str],
        starts: Sequence[int | None] | int | None,
        ends: Sequence[int | None] | int | None,
        max_gap: int | None = None,
        on_error: str = "return",
        **_: Any,  # noqa: ANN401
    ) -> list[bytes | Exception]:
        """Returns the bytes of many ranges. One call of the store reads all ranges of an object, from a
        single version.

        `max_gap` is ignored: the store decides which gaps between ranges it reads and discards.
        """
        if not isinstance(paths, list):
            raise TypeError("paths must be a list with one path for each range")
        starts, ends = one_each(starts, len(paths)), one_each(ends, len(paths))
        wanted = defaultdict(list)
        for number, path in enumerate(paths):
            wanted[path].append(number)
        results: list[bytes | Exception] = [b""] * len(paths)
        for path, numbers in wanted.items():
            try:
                slices = [(starts[number], ends[number]) for number in numbers]
                parts = self._slices(self.address_of(path), slices)
            except Exception as error:
                if on_error == "raise":
                    raise
                parts = [error] * len(numbers)
            for number, part in zip(numbers, parts, strict=True):
                results[number] = part
        return results

    def _slices(self, address: tuple[str, str], slices: list[Slice]) -> list[bytes]:
        """Returns slices of one object, with the semantics of slices of `bytes`. Requests the object's size
        only if a slice needs it.
        """
        is_plain = all((start or 0) >= 0 and end is not None and end >= 0 for start, end in slices)
        if is_plain:
            try:
                return self._ranges(address, [(start or 0, end - (start or 0)) for start, end in slices])
            except InvalidArgumentError as error:
                if error.kind != "InvalidRange":
                    raise
        about = self.store.head(*address)
        return self._ranges(address, [within(about.size, start, end) for start, end in slices], about.etag)

    def _ranges(
        self, address: tuple[str, str], ranges: list[tuple[int, int]], etag: str | None = None
    ) -> list[bytes]:
        wanted = [each for each in ranges if each[1] > 0]
        if len(wanted) == 1:
            (start, length) = wanted[0]
            read = iter([self.store.get(*address, start=start, length=length, if_match=etag)])
        else:
            read = iter(self.store.get_ranges(*address, wanted, if_match=etag) if wanted else [])
        return [next(read) if length > 0 else b"" for _, length in ranges]

    def get(
        self,
        rpath: str | list[str],
        lpath: str | os.PathLike[str] | list[str],
        recursive: bool = False,
        callback: Callback = DEFAULT_CALLBACK,
        maxdepth: int | None = None,
        **options: Any,  # noqa: ANN401
    ) -> None:
        """Copies objects to files, and also directories if `recursive` is true.

        Copies nothing and raises `InvalidArgumentError` if a file would be outside of `lpath`, because its
        key has segments `..`, if its key has the segment `.fordway`, which is the name of a bucket's
        private area, or if two objects have the same path, such as `a/b` and `a//b`. There is no check if
        `lpath` is a list.
        """
        if isinstance(lpath, list):
            super().get(rpath, lpath, recursive, callback, maxdepth, **options)
            return
        sources, targets = planned_downloads(self, rpath, stringify_path(lpath), recursive, maxdepth)
        super().get(sources, targets, callback=callback, **options)

    def get_file(
        self,
        rpath: str,
        lpath: str | os.PathLike[str] | BinaryIO,
        callback: Callback = DEFAULT_CALLBACK,
        outfile: BinaryIO | None = None,
        **_: Any,  # noqa: ANN401
    ) -> None:
        """Copies one version of an object to a file, in blocks. For a directory, creates a local
        directory.

        If the copy fails, an existing file is unchanged.
        """
        if outfile is None and not hasattr(lpath, "write") and self.isdir(rpath):
            Path(lpath).mkdir(parents=True, exist_ok=True)
            return
        address = self.address_of(rpath)
        about = self.store.head(*address)
        callback.set_size(about.size)
        with opened_target(lpath, outfile) as file:
            for start in range(0, about.size, COPY_BYTES):
                piece = self.store.get(*address, start=start, length=COPY_BYTES, if_match=about.etag)
                file.write(piece)
                callback.relative_update(len(piece))

    # Writing

    def pipe_file(
        self,
        path: str,
        value: ReadableBuffer,
        mode: str = "overwrite",
        **described: Any,  # noqa: ANN401
    ) -> None:
        """Stores `value`. Raises `FileExistsError` if `mode` is `"create"` and the object exists, and
        `PreconditionFailedError` if a condition in `described` does not hold.
        """
        if self._intrans:
            with self.open(path, _open_mode(mode), **described) as file:
                file.write(value)
            return
        is_new = _open_mode(mode) == "xb"
        if is_new:
            described["if_none_match"] = "*"
        try:
            self.store.put(*self.address_of(path), value, **described)
        except PreconditionFailedError as error:
            if not is_new or "if_match" in described:
                raise
            where = self.unstrip_protocol(path)
            raise AlreadyExistsError(f"{where} already exists", error.kind, where) from error

    def put_file(
        self,
        lpath: str | os.PathLike[str],
        rpath: str,
        callback: Callback = DEFAULT_CALLBACK,
        mode: str = "overwrite",
        **described: Any,  # noqa: ANN401
    ) -> None:
        """Copies a file to an object, with the content type that its name suggests.

        For a directory, creates the bucket if necessary.
        """
        source = Path(lpath)
        if source.is_dir():
            self.makedirs(rpath, exist_ok=True)
            return
        described.setdefault("content_type", mimetypes.guess_type(source.name)[0])
        with source.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            callback.set_size(size)
            with self.open(rpath, _open_mode(mode), size=size, **described) as target:
                while piece := file.read(COPY_BYTES):
                    target.write(piece)
                    callback.relative_update(len(piece))

    def copy(
        self,
        path1: str | list[str],
        path2: str | list[str],
        recursive: bool = False,
        maxdepth: int | None = None,
        on_error: str | None = None,
        **_: Any,  # noqa: ANN401
    ) -> None:
        """Copies objects, and also directories if `recursive` is true.

        With `on_error="ignore"`, which is the default for `recursive`, a source that is removed meanwhile is
        not an error. Raises `InvalidArgumentError` if one copy would overwrite the source or target of
        another copy.
        """
        is_ignored = (on_error or ("ignore" if recursive else "raise")) == "ignore"
        plan = planned_copies(self, path1, path2, recursive, maxdepth)
        copy = self._copy_exactly if plan.is_exact else self.cp_file
        for source, target in plan.pairs:
            try:
                copy(source, target)
            except FileNotFoundError as error:
                # Only the target's bucket can be missing here, which is an error even with
                # `on_error="ignore"`.
                if not is_ignored or getattr(error, "kind", "NoSuchKey") != "NoSuchKey":
                    raise

    def mv(
        self,
        path1: str | list[str],
        path2: str | list[str],
        recursive: bool = False,
        maxdepth: int | None = None,
        **_: Any,  # noqa: ANN401
    ) -> None:
        """Copies objects to other keys, and then removes the sources.

        Removes nothing if a copy fails. Does nothing for a source that is its own target. If another writer
        replaces a source meanwhile, does not remove the source, and raises `PreconditionFailedError`.
        """
        if self._strip_protocol(path1) == self._strip_protocol(path2):
            return
        if not isinstance(path1, list):
            self._check_removal(stringify_path(path1), recursive)
        plan = planned_copies(self, path1, path2, recursive, maxdepth)
        check_no_move_into_itself(plan)
        copy = self._copied_exactly if plan.is_exact else self._copied
        copied = [copy(*pair) for pair in plan.pairs]
        failed = None
        for source in filter(None, copied):
            bucket, key, etag = source
            try:
                self.store.delete(bucket, key, if_match=etag)
            except NotFoundError:
                pass
            except FordwayError as error:
                failed = failed or error
        if failed is not None:
            raise failed
        for source, _ in plan.trees or plan.pairs:
            bucket, key = self._split(source)
            if not key and maxdepth is None:
                self.store.delete_bucket(bucket)

    def _copied(self, path1: str, path2: str) -> tuple[str, str, str] | None:
        """Copies an object, or the object that marks a directory. Returns the bucket, key and ETag of the
        source.
        """
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        for end in ("", "/") if "/" in source else ():
            try:
                return self._copied_exactly(source + end, target + end)
            except NotFoundError as error:
                if error.kind != "NoSuchKey":
                    raise
        self._check_directory(path1)
        return None

    def _copied_exactly(self, source: str, target: str) -> tuple[str, str, str]:
        """Copies an object between exact addresses `BUCKET/KEY`. Returns the bucket, key and ETag of the
        source.
        """
        bucket, _, key = source.partition("/")
        # If another writer replaces the source before the copy, `mv` does not remove the source.
        etag = self.store.head(bucket, key).etag
        self._copy_exactly(source, target)
        return bucket, key, etag

    def _copy_exactly(self, source: str, target: str) -> None:
        """Copies an object between exact addresses `BUCKET/KEY`. A bucket needs no object that marks it as a
        directory.
        """
        (bucket, _, key), (to_bucket, _, to_key) = source.partition("/"), target.partition("/")
        if to_key:
            self.store.copy(bucket, key, to_bucket, to_key)
        elif not key.endswith("/"):
            raise is_a_directory(target, "a bucket; write BUCKET/KEY")

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:  # noqa: ANN401
        """Copies an object within the store, so that this process does not transfer the content. For a
        directory, copies only the object that marks the directory, if it exists.
        """
        source, target = self._split(path1), self._split(path2)
        if source == target or not source[1]:
            return
        try:
            if target[1]:
                self.store.copy(*source, *target)
                return
        except NotFoundError as error:
            if error.kind != "NoSuchKey":
                raise
        self._copied(path1, path2)

    def _check_directory(self, path: str) -> None:
        """Raises `FileNotFoundError` if the directory does not exist."""
        if not self.isdir(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def touch(self, path: str, truncate: bool = True, **_: Any) -> None:  # noqa: ANN401
        """Creates an empty object. Without `truncate`, raises `NotImplementedError` if the object exists."""
        try:
            self.pipe_file(path, b"", mode="overwrite" if truncate else "create")
        except FileExistsError as error:
            why = f"{path} exists, and an object's time cannot change without its content; write it again"
            raise UnsupportedError(why, "NotImplemented", path) from error

    def open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | str | None = None,
        cache_options: Mapping[str, Any] | None = None,
        compression: str | None = None,
        **options: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401 (a file of bytes or of text)
        """Opens an object as a file. With a `compression`, writing compresses, and reading decompresses.

        Mode `ab` appends a further compressed stream. Readers of all formats except `zip` read all streams.
        """
        compression = get_compression(self._strip_protocol(path), compression)
        if compression is None or "r" in mode:
            return super().open(path, mode, block_size, cache_options, compression, **options)
        if "b" not in mode:
            as_text = {name: options.pop(name) for name in TEXT_OPTIONS & options.keys()}
            binary = mode.replace("t", "") + "b"
            file = self.open(path, binary, block_size, cache_options, compression, **options)
            return io.TextIOWrapper(file, **as_text)
        if "a" in mode and compression == "zip":
            raise UnsupportedError("a zip file cannot be appended to", "NotImplemented", path)
        file = super().open(path, mode, block_size, cache_options, **options)
        try:
            return CompressingObjectWriter(file, compr[compression](file, mode="w"))
        except BaseException:
            file.discard()
            raise

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | str | None = None,
        autocommit: bool = True,
        cache_options: Mapping[str, Any] | None = None,
        cache_type: str = "readahead",
        size: int | None = None,
        **described: Any,  # noqa: ANN401
    ) -> FsspecObjectFile | NewObject:
        is_usual = block_size in (None, "default")
        if mode == "rb":
            if described:
                raise TypeError(f"reading has no option {next(iter(described))!r}")
            usual = READ_AHEAD_BYTES.get(self.store.lane, LOCAL_READ_AHEAD_BYTES)
            caching = {"cache_type": cache_type, "cache_options": cache_options, "size": size}
            return FsspecObjectFile(self, path, block_size=usual if is_usual else block_size, **caching)
        if mode not in ("wb", "xb", "ab"):
            why = f"objects are read or written as a whole, not opened by {mode!r}; use rb, wb, xb or ab"
            raise UnsupportedError(why, "NotImplemented", path)
        described = described if size is None else described | {"size": size}
        return NewObject(self, path, mode, WRITE_BYTES if is_usual else block_size, autocommit, described)

    # Removing

    def rm_file(self, path: str) -> None:
        """Removes an object. Removing an object that does not exist succeeds, as in S3."""
        self.store.delete(*self.address_of(path))

    _rm = rm_file

    def rm(self, path: str | list[str], recursive: bool = False, maxdepth: int | None = None) -> None:
        """Removes objects in as few requests as the lane allows. With `recursive`, also removes directories
        and buckets.

        A single path must exist. In a list, a missing path is not an error, as in S3. Raises
        `FileNotFoundError` or `IsADirectoryError`. If some objects cannot be removed, removes all other
        objects, and then raises the first error.
        """
        paths = path
        if isinstance(path, str | os.PathLike):
            paths = [path]
            self._check_removal(stringify_path(path), recursive)
        is_whole = recursive and maxdepth is None
        doomed = defaultdict(list)
        for found in self.expand_path(paths, recursive=recursive and not is_whole, maxdepth=maxdepth):
            bucket, key = self._split(found)
            doomed[bucket].append(key)
        for bucket, keys in doomed.items():
            below = (self._keys(bucket, key) if is_whole else [key] for key in keys)
            self._delete(bucket, filter(None, itertools.chain.from_iterable(below)))
            if is_whole and "" in keys:
                self.store.delete_bucket(bucket)

    def _check_removal(self, path: str, recursive: bool) -> None:
        if has_magic(path):
            return
        if self.info(path)["type"] == "directory" and not recursive:
            raise is_a_directory(path, "a directory; use recursive=True to remove it")

    def _keys(self, bucket: str, key: str) -> Iterator[str]:
        """Yields the key itself and all keys below it."""
        yield key
        yield from (each.key for each in self.store.list(bucket, f"{key}/" if key else ""))

    def _delete(self, bucket: str, keys: Iterable[str]) -> None:
        keys = iter(keys)
        failed = None
        while batch := list(itertools.islice(keys, DELETE_KEYS)):
            errors = self.store.delete_many(bucket, batch)
            failed = failed or next((error for error in errors if error is not None), None)
        if failed is not None:
            raise failed

    # Directories

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:  # noqa: ANN401
        """Creates a bucket. If `path` is a directory in a bucket, creates only the bucket, because
        directories need not be created.
        """
        bucket, key = self._split(path)
        if key and (not create_parents or self.exists(bucket)):
            self.store.head_bucket(bucket)
            return
        self.store.create_bucket(bucket)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Creates a bucket as `mkdir` does. With `exist_ok`, an existing bucket is not an error."""
        try:
            self.mkdir(path)
        except FileExistsError:
            if not exist_ok:
                raise

    def rmdir(self, path: str) -> None:
        """Removes an empty bucket, or the object that marks an empty directory. Raises `OSError`."""
        bucket, key = self._split(path)
        if not key:
            self.store.delete_bucket(bucket)
            return
        first = self.store.list_page(bucket, f"{key}/", limit=2).entries
        if not first:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if [each.key for each in first] != [f"{key}/"]:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        self.store.delete(bucket, f"{key}/")


class S3ObjectFileSystem(ObjectFileSystem):
    """Objects at `s3://BUCKET/KEY`, for programs that support only these addresses. See `register_s3()`.

    The constructor accepts the `endpoint_url` option of s3fs. It rejects other options of s3fs with an error
    that names the option.
    """

    protocol = ("s3", "s3a")

    def __init__(
        self,
        endpoint: str | None = None,
        endpoint_url: str | None = None,
        **options: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(endpoint or endpoint_url, **options)


def _directory(name: str) -> Details:
    return {"name": name, "size": 0, "type": "directory"}


def _file(name: str, found: fordway.ObjectInfo | fordway.ObjectSummary) -> Details:
    about = {"name": name, "size": found.size, "type": "file"}
    return about | {"ETag": found.etag, "LastModified": found.modified}


def _entry(bucket: str, listed: fordway.ObjectSummary | fordway.CommonPrefix) -> Details:
    if isinstance(listed, fordway.CommonPrefix):
        return _directory(f"{bucket}/{listed.prefix.removesuffix('/')}")
    return _file(f"{bucket}/{listed.key}", listed)


def _parents(key: str, skipped: int) -> Iterator[str]:
    """Yields the directories of a key that end after its first `skipped` characters."""
    end = key.find("/", skipped)
    while end >= 0:
        yield key[:end]
        end = key.find("/", end + 1)


def _raise(error: OSError) -> None:
    raise error


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _open_mode(mode: str) -> str:
    if mode not in ("overwrite", "create"):
        raise ValueError(f"mode must be 'overwrite' or 'create', not {mode!r}")
    return "xb" if mode == "create" else "wb"
