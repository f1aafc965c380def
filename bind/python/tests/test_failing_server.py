"""Tests the behaviour of a store after a server failed in the middle of an operation."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING

import fsspec
import pytest
from gateways import KEYS
from scripted_server import FAILED, scripted

import fordway
from fordway import errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from scripted_server import Response


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


ABOUT = '<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>"a"</ETag><Size>1</Size>'
OBJECT = f"<Contents><Key>{{}}</Key>{ABOUT}</Contents>"
VERSION = f"<Version><Key>{{}}</Key><VersionId>1</VersionId><IsLatest>true</IsLatest>{ABOUT}</Version>"
PAGE_ENTRIES = 1000
"""Number of entries of a full page. The client requests the next page only after it has returned these
entries.
"""
KEYS_LISTED = [f"{number:04}" for number in range(PAGE_ENTRIES)] + ["last"]


def failing_pages(kind: str, entry: str, token: str) -> list[Response]:
    """Returns the responses to a listing with two pages. The request for the second page fails twice."""
    entries = [entry.format(key) for key in KEYS_LISTED]

    def page(entries: list[str], is_truncated: str, token: str) -> Response:
        head = f"<Name>bucket</Name><IsTruncated>{is_truncated}</IsTruncated>{token}"
        return 200, {}, f"<{kind}>{head}{''.join(entries)}</{kind}>".encode()

    first = page(entries[:PAGE_ENTRIES], "true", token)
    return [first, FAILED, FAILED, page(entries[PAGE_ENTRIES:], "false", "")]


def test_a_listing_does_not_end_at_an_error() -> None:
    token = "<NextContinuationToken>next</NextContinuationToken>"
    responses = failing_pages("ListBucketResult", OBJECT, token)
    with scripted(lambda *_: responses.pop(0)) as where, fordway.open(where, retries=0) as store:
        entries = store.list("bucket")
        assert [next(entries).key for _ in range(PAGE_ENTRIES)] == KEYS_LISTED[:PAGE_ENTRIES]
        for _ in range(2):
            with pytest.raises(errors.FordwayError):
                next(entries)
        assert [entry.key for entry in entries] == ["last"]
        assert not responses and next(entries, None) is None


def test_a_table_of_a_listing_is_whole_after_an_error() -> None:
    token = "<NextContinuationToken>next</NextContinuationToken>"
    responses = failing_pages("ListBucketResult", OBJECT, token)
    responses[2:3] = responses[:1]
    with scripted(lambda *_: responses.pop(0)) as where, fordway.open(where, retries=0) as store:
        entries = store.list("bucket")
        with pytest.raises(errors.FordwayError):
            entries.to_arrow()
        assert entries.to_arrow()["key"].to_pylist() == KEYS_LISTED


def test_a_listing_of_versions_does_not_end_at_an_error() -> None:
    token = "<NextKeyMarker>0999</NextKeyMarker><NextVersionIdMarker>1</NextVersionIdMarker>"
    responses = failing_pages("ListVersionsResult", VERSION, token)
    with scripted(lambda *_: responses.pop(0)) as where, fordway.open(where, retries=0) as store:
        versions = store.list_versions("bucket")
        assert [next(versions).key for _ in range(PAGE_ENTRIES)] == KEYS_LISTED[:PAGE_ENTRIES]
        for _ in range(2):
            with pytest.raises(errors.FordwayError):
                next(versions)
        assert [version.key for version in versions] == ["last"]


MUCH = bytes(20_000_000)
"""Content that is larger than one part of an upload."""
STARTED = b"<InitiateMultipartUploadResult><UploadId>id</UploadId></InitiateMultipartUploadResult>"


class Uploads:
    """The responses to the requests of one multipart upload, and the requests received so far. `at_part`
    returns the responses to parts.
    """

    def __init__(self, at_part: Callable[[], Response]) -> None:
        self.at_part = at_part
        self.requests: list[str] = []

    def respond(self, method: str, path: str, _: bytes) -> Response:
        self.requests.append("complete" if method == "POST" and "uploadId" in path else method)
        if method == "POST":
            return 200, {}, STARTED
        return self.at_part() if method == "PUT" else (204, {}, b"")


def writers(where: str) -> Iterator[Any]:
    """Yields an open writer of each kind."""
    with fordway.open(where, retries=0) as store:
        yield store.writer("bucket", "key")
    files = fsspec.filesystem("fordway", endpoint=where, skip_instance_cache=True)
    yield files.open("bucket/key", "wb")
    with files.transaction:
        file = files.open("bucket/key", "wb")
        yield file
        file.discard()


@pytest.mark.filterwarnings("ignore:.*is discarded:RuntimeWarning")
@pytest.mark.parametrize("end", ["close", "commit", "block", "write"])
def test_a_writer_after_a_failed_write_publishes_nothing_and_says_so(end: str) -> None:
    uploads = Uploads(lambda: (400, {}, b"<Error><Code>BadDigest</Code></Error>"))
    with scripted(uploads.respond) as where:
        for writer in writers(where):
            with pytest.raises(errors.DataError):
                writer.write(MUCH)
            with pytest.raises(errors.InvalidArgumentError, match="discarded"):
                if end == "block":
                    with writer:
                        pass
                elif end == "write":
                    writer.write(b"more")
                else:
                    getattr(writer, end)()
            with contextlib.suppress(errors.InvalidArgumentError):
                writer.close()
            writer.close()
            assert writer.closed
    assert "complete" not in uploads.requests


def test_an_interrupted_write_neither_repeats_nor_omits_data() -> None:
    caught = threading.Event()

    def interrupt() -> Response:
        caught.clear()
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        caught.wait(30)
        return 200, {"etag": '"a"'}, b""

    uploads = Uploads(interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with scripted(uploads.respond) as where:
            for writer in writers(where):
                writer.write(b"first")
                with pytest.raises(KeyboardInterrupt):
                    writer.write(MUCH)
                caught.set()
                with pytest.raises(errors.InvalidArgumentError):
                    writer.write(MUCH)
                with pytest.raises(errors.InvalidArgumentError):
                    writer.close()
                writer.close()
    finally:
        signal.signal(signal.SIGINT, before)
    assert "complete" not in uploads.requests


def test_other_threads_run_while_an_unfinished_object_is_discarded() -> None:
    uploads = Uploads(lambda: (200, {"etag": '"a"'}, b""))
    with scripted(uploads.respond) as where, fordway.open(where, timeout=5, retries=0) as store:
        writer = store.writer("bucket", "key")
        writer.write(MUCH)
        del writer
        # The server runs in this process, so it can respond only if the call has released the GIL.
        assert uploads.requests[-1] == "DELETE"


def test_a_directory_that_cannot_be_listed_is_not_empty() -> None:
    about = "<Name>bucket</Name><IsTruncated>false</IsTruncated>"
    entries = f"{OBJECT.format('a')}<CommonPrefixes><Prefix>dir/</Prefix></CommonPrefixes>"
    page = f"<ListBucketResult>{about}{entries}</ListBucketResult>"

    def respond(method: str, path: str, _: bytes) -> Response:
        if "prefix=dir" in path:
            return 403, {}, b"<Error><Code>AccessDenied</Code></Error>"
        if path == "/bucket/denied":
            return 403, {}, b""
        if path == "/bucket/a":
            return 200, {"etag": '"a"', "last-modified": "Thu, 01 Jan 2026 00:00:00 GMT"}, b""
        return 200, {}, page.encode() if method == "GET" else b""

    with scripted(respond) as where:
        files = fsspec.filesystem("fordway", endpoint=where, skip_instance_cache=True)
        for call in (
            lambda: list(files.walk("bucket")),
            lambda: files.find("bucket", maxdepth=2),
            lambda: files.glob("bucket/*/*"),
            lambda: files.du("bucket", maxdepth=2),
            lambda: files.rm("bucket", recursive=True, maxdepth=2),
            lambda: files.isdir("bucket/denied"),
            lambda: files.isfile("bucket/denied"),
            lambda: files.cp("bucket/a", "bucket/denied"),
        ):
            with pytest.raises(PermissionError):
                call()
        found = list(files.walk("bucket", on_error=lambda _: None))
        assert found[0] == ("bucket", ["dir"], ["a"])
