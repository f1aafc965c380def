"""An fsspec file system for files on web servers."""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import fsspec
from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

import fordway
from fordway.errors import PreconditionFailedError, UnsupportedError
from fordway.fsspec.coroutines import Coroutines
from fordway.fsspec.local import opened_target
from fordway.fsspec.slices import one_each, within

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence
    from typing import BinaryIO

    from fsspec.callbacks import Callback

PREFIX = "fordway+"
FILES_MAX = 1000
"""The maximum number of files that a file system keeps open between calls."""


class FordwayFileSystem(Coroutines, AbstractFileSystem):
    """A read-only file system for `http(s)://` addresses, with or without the prefix `fordway+`. Directories
    cannot be listed.

    All reads of a file return the version of the first access, until `invalidate_cache` drops the file. If
    the file changes, the first read that notices the change raises `PreconditionFailedError`, and later calls
    use the new version. A file object that is already open keeps its version. The file system keeps the last
    1,000 files that it opened. Options are passed to `fordway.open_url`.
    """

    protocol = ("fordway+http", "fordway+https")
    root_marker = ""

    def __init__(
        self,
        *args: Any,  # noqa: ANN401 (fsspec's own)
        connections: int | None = None,
        ca_bundle: str | None = None,
        deadline: float | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(*args, **kwargs)
        self._offer_coroutines(kwargs.get("asynchronous", False))
        self._options = {"connections": connections, "ca_bundle": ca_bundle, "deadline": deadline}
        self._files: dict[str, fordway.RemoteFile] = {}

    @classmethod
    def _strip_protocol(cls, path: str | list[str]) -> str | list[str]:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        return path.removeprefix(PREFIX)

    def unstrip_protocol(self, name: str) -> str:
        """Returns the address by which fsspec finds this file system."""
        return name if name.startswith(PREFIX) else PREFIX + name

    @classmethod
    def _parent(cls, path: str) -> str:
        return cls._strip_protocol(path).rpartition("/")[0]

    def file(self, path: str) -> fordway.RemoteFile:
        """Returns the file at `path`. The first call opens the file."""
        url = self._strip_protocol(path)
        found = self._files.get(url)
        if found is None:
            # If another thread has opened the file meanwhile, both threads use the version that it opened.
            found = self._files.setdefault(url, fordway.open_url(url, **self._options))
            for oldest in list(self._files)[:-FILES_MAX]:
                self._files.pop(oldest, None)
        return found

    @contextmanager
    def _dropping_if_changed(self, path: str, file: fordway.RemoteFile) -> Iterator[fordway.RemoteFile]:
        """Drops `file` if the block finds that the file has changed. The next use then opens it again."""
        try:
            yield file
        except PreconditionFailedError:
            url = self._strip_protocol(path)
            # Keep a new version that another call has opened.
            if self._files.get(url) is file:
                self._files.pop(url, None)
            raise

    def invalidate_cache(self, path: str | None = None) -> None:
        """Drops the file at `path`, or all files. The next use reopens them."""
        if path is None:
            self._files.clear()
        else:
            self._files.pop(self._strip_protocol(path), None)
        super().invalidate_cache(path)

    def info(self, path: str, **_: Any) -> dict[str, Any]:  # noqa: ANN401
        """Returns the properties of a file, as the server reports them."""
        return _described(self.file(path))

    def ls(self, path: str, detail: bool = True, **_: Any) -> list:  # noqa: ANN401
        """Returns the file itself. Raises `NotImplementedError` for a directory, because web servers have no
        listings.
        """
        if path.endswith("/"):
            raise _no_listing(path)
        about = self.info(path)
        return [about] if detail else [about["name"]]

    def glob(self, path: str, maxdepth: int | None = None, **kwargs: Any) -> list[str] | dict:  # noqa: ANN401
        """Returns the file if it exists. Raises `NotImplementedError` for wildcards. A `?` starts the query
        and is not a wildcard.
        """
        url = self._strip_protocol(path)
        if "*" in url or "[" in url.partition("://")[2].partition("/")[2]:
            raise _no_listing(path)
        found = [url] if self.exists(url) else []
        return {each: self.info(each) for each in found} if kwargs.get("detail") else found

    def ukey(self, path: str) -> str:
        """Returns a key that changes when the file changes."""
        about = self.info(path)
        return fsspec.utils.tokenize(*(about[name] for name in ("name", "size", "ETag", "last_modified")))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:  # noqa: ANN401
        """Returns the bytes from `start` to `end`. Negative values count from the end of the file."""
        found = self.file(path)
        offset, length = within(found.size, start, end)
        with self._dropping_if_changed(path, found):
            return found.read(offset, length)

    def get_file(
        self,
        rpath: str,
        lpath: str | os.PathLike[str] | BinaryIO,
        callback: Callback = DEFAULT_CALLBACK,
        outfile: BinaryIO | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Copies a file to a local file. If the copy fails, an existing local file is unchanged."""
        with opened_target(lpath, outfile) as file:
            super().get_file(rpath, lpath, callback, file, **kwargs)

    def cat_ranges(
        self,
        paths: list[str],
        starts: Sequence[int | None] | int | None,
        ends: Sequence[int | None] | int | None,
        max_gap: int | None = None,
        on_error: str = "return",
        **_: Any,  # noqa: ANN401
    ) -> list[bytes | Exception]:
        """Returns the bytes of many ranges, in as few requests for each file as its server allows.

        `max_gap` is ignored: the file decides which gaps between ranges it reads and discards.
        """
        if not isinstance(paths, list):
            raise TypeError("paths must be a list with one path for each range")
        starts = one_each(starts, len(paths))
        ends = one_each(ends, len(paths))
        wanted = defaultdict(list)
        for number, path in enumerate(paths):
            wanted[self._strip_protocol(path)].append(number)
        results: list[bytes | Exception] = [b""] * len(paths)
        for path, numbers in wanted.items():
            try:
                found = self.file(path)
                ranges = [within(found.size, starts[number], ends[number]) for number in numbers]
                with self._dropping_if_changed(path, found):
                    parts = found.read_ranges(ranges)
            except Exception as error:
                if on_error == "raise":
                    raise
                parts = [error] * len(numbers)
            for number, part in zip(numbers, parts, strict=True):
                results[number] = part
        return results

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | str | None = None,
        cache_options: dict | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> FordwayFile:
        if mode != "rb":
            why = f"this file system only reads, so mode {mode!r} is refused; `fordway cp` writes to WebDAV"
            raise UnsupportedError(why, "NotImplemented", path)
        block_size = "default" if block_size is None else block_size
        return FordwayFile(self, path, mode, block_size, cache_options=cache_options, **kwargs)


class FordwayFile(AbstractBufferedFile):
    """A readable, seekable file that uses fsspec's caches. All reads return the version that was opened."""

    def __init__(
        self,
        fs: FordwayFileSystem,
        path: str,
        *args: Any,  # noqa: ANN401 (fsspec's own)
        size: int | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        # Use the size of the opened version, because the caller's `size` may belong to another version.
        self._remote = fs.file(path)
        super().__init__(fs, path, *args, size=self._remote.size, **kwargs)
        self.details = _described(self._remote)

    def _fetch_range(self, start: int, end: int) -> bytes:
        with self.fs._dropping_if_changed(self.path, self._remote) as remote:
            return remote.read(start, max(end - start, 0))


def _described(file: fordway.RemoteFile) -> dict[str, Any]:
    about = {"name": file.url, "size": file.size, "type": "file"}
    return about | {"ETag": file.etag, "last_modified": file.last_modified}


def _no_listing(path: str) -> UnsupportedError:
    why = f"{path} needs a listing, which web servers lack; name the files (`fordway ls` lists WebDAV)"
    return UnsupportedError(why, "NotImplemented", path)
