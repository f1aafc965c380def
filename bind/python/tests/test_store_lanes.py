"""Tests the behaviour of a store that is the same on every lane."""

from __future__ import annotations

import asyncio
import gc
import io
import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from gateways import KEYS, LANES, endpoint

import fordway
import fordway.aio
from fordway import errors

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

BUCKET = "bucket"
PART_BYTES = 5 << 20


@pytest.fixture(scope="module", params=LANES)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with (
        pytest.MonkeyPatch.context() as patch,
        endpoint(request.param, tmp_path_factory.mktemp("lane")) as at,
    ):
        for name, value in KEYS.items():
            patch.setenv(name, value)
        yield at


@pytest.fixture
def store(place: str) -> Iterator[fordway.Store]:
    with fordway.open(place) as opened:
        opened.create_bucket(BUCKET)
        yield opened
        opened.set_versioning(BUCKET, False)
        for found in list(opened.list_versions(BUCKET)):
            opened.delete(BUCKET, found.key, version=found.version)
        for upload in opened.list_uploads(BUCKET):
            opened.resume_upload(BUCKET, upload.key, upload.id).abort()
        opened.delete_bucket(BUCKET)


def keys(store: fordway.Store) -> list[str]:
    return [entry.key for entry in store.list(BUCKET)]


@pytest.mark.parametrize("start", [-1, -4, -10, -70_000])
@pytest.mark.parametrize("length", [None, 1, 3, 100])
def test_a_negative_start_counts_from_the_end(store: fordway.Store, start: int, length: int | None) -> None:
    data = bytes(i % 251 for i in range(70_000))
    store.put(BUCKET, "key", data)
    wanted = data[start:][:length]
    assert store.get(BUCKET, "key", start=start, length=length) == wanted
    assert store.get_with_info(BUCKET, "key", start=start, length=length)[0] == wanted
    room = bytearray(length or 70_000)
    assert room[: store.get_into(BUCKET, "key", room, start=start)] == wanted


def test_an_empty_object_has_no_last_byte(store: fordway.Store) -> None:
    store.put(BUCKET, "key", b"")
    with pytest.raises(errors.InvalidArgumentError) as caught:
        store.get(BUCKET, "key", start=-1)
    assert caught.value.kind == "InvalidRange"


def test_a_read_of_what_is_known_is_refused(store: fordway.Store) -> None:
    etag = store.put(BUCKET, "key", b"abc")
    for read in (store.get, store.get_with_info):
        with pytest.raises(errors.NotModifiedError):
            read(BUCKET, "key", if_none_match=etag)
    store.put(BUCKET, "key", b"other")
    assert store.get(BUCKET, "key", if_none_match=etag) == b"other"


def test_files_and_iterables_are_stored(store: fordway.Store, tmp_path: Path) -> None:
    data = os.urandom(3_000_001)
    (tmp_path / "file").write_bytes(data)
    with (tmp_path / "file").open("rb") as file:
        store.put(BUCKET, "file", file)
    store.put(BUCKET, "memory", io.BytesIO(data))
    store.put(BUCKET, "pieces", (data[i : i + 700_000] for i in range(0, len(data), 700_000)))
    store.put(BUCKET, "nothing", [])
    assert {key: store.get(BUCKET, key) == data for key in keys(store)} == {
        "file": True,
        "memory": True,
        "nothing": False,
        "pieces": True,
    }
    assert store.head(BUCKET, "nothing").size == 0


@pytest.mark.parametrize("size", [2, 5, 200 << 20])
def test_a_writer_checks_the_stated_size(store: fordway.Store, size: int) -> None:
    writer = store.writer(BUCKET, "key", size=size)
    writer.write(b"abc")
    with pytest.raises(errors.DataError) as caught:
        writer.commit()
    assert caught.value.kind == "IncompleteBody"
    assert keys(store) == []
    with store.writer(BUCKET, "key", size=3) as writer:
        writer.write(b"abc")
    assert store.get(BUCKET, "key") == b"abc"


def test_reserved_tags_are_refused(store: fordway.Store) -> None:
    store.put(BUCKET, "key", b"abc")
    calls = [
        lambda tags: store.put(BUCKET, "other", b"", tags=tags),
        lambda tags: store.set_tags(BUCKET, "key", tags),
        lambda tags: store.copy(BUCKET, "key", BUCKET, "other", tags=tags),
        lambda tags: store.upload(BUCKET, "other", tags=tags),
    ]
    for call in calls:
        for name in ("aws:x", "AWS:x"):
            with pytest.raises(errors.FordwayError) as caught:
                call({name: "1"})
            assert caught.value.kind == "InvalidTag"
    assert keys(store) == ["key"]


def test_a_delete_with_a_condition_accepts_a_missing_object(store: fordway.Store) -> None:
    assert store.delete(BUCKET, "nothing", if_match="deadbeef") is None


def test_what_fails_in_the_middle_is_not_stored(store: fordway.Store) -> None:
    def failing() -> Iterator[bytes]:
        yield b"a" * 100
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.put(BUCKET, "key", failing())
    for wrong in ([b"a", "b"], io.StringIO("text"), [1], "text", 5, None):
        with pytest.raises(TypeError):
            store.put(BUCKET, "key", wrong)
    assert keys(store) == []


def test_a_put_tells_what_it_made(store: fordway.Store) -> None:
    store.set_versioning(BUCKET, True)
    made = store.put_with_info(BUCKET, "key", b"123456789", checksum="CRC32")
    assert made.checksum == "y/Q5Jg=="  # CRC-32's own check value, 0xcbf43926
    info = store.head(BUCKET, "key")
    assert (made.etag, made.version) == (info.etag, info.version)
    assert abs((made.modified - info.modified).total_seconds()) < 5
    marker = store.delete(BUCKET, "key")
    assert marker is not None and marker.is_delete_marker
    removed = store.delete(BUCKET, "key", version=marker.version)
    assert removed is not None and removed.version == marker.version
    assert store.get(BUCKET, "key") == b"123456789"
    with pytest.raises(errors.InvalidArgumentError, match="SHA256"):
        store.put_with_info(BUCKET, "key", b"", checksum="MD4")


def test_batches_answer_for_each_key(store: fordway.Store) -> None:
    bodies = {f"k{i:03}": bytes([i]) * i * 100 for i in range(100)}
    etags = store.put_many(BUCKET, [*bodies.items(), ("view", memoryview(b"xabcx")[1:4])])
    assert etags[5] == store.head(BUCKET, "k005").etag
    read = store.get_many(BUCKET, [*bodies, "missing", "view"])
    assert read[:100] == list(bodies.values()) and read[101] == b"abc"
    assert isinstance(read[100], errors.NotFoundError)
    told = store.head_many(BUCKET, ["k007", "missing"])
    assert isinstance(told[0], fordway.ObjectInfo) and told[0].size == 700
    assert isinstance(told[1], FileNotFoundError)
    for batch in (store.get_many, store.head_many, store.delete_many):
        with pytest.raises(errors.InvalidNameError):
            batch(BUCKET, ["k007", "a\0b"])
    with pytest.raises(TypeError):
        store.put_many(BUCKET, [("key", "text")])


def test_pages_are_the_whole_listing(store: fordway.Store) -> None:
    names = [f"{i % 3}/{i:02}" for i in range(25)] + ["top"]
    store.put_many(BUCKET, [(name, b"x") for name in names])
    found, after = [], None
    while True:
        page = store.list_page(BUCKET, start_after=after, limit=7)
        assert len(page.entries) <= 7
        found += [entry.key for entry in page.entries]
        after = page.next
        if after is None:
            break
    assert found == sorted(names) == keys(store)
    page = store.list_page(BUCKET, delimiter="/", limit=3)
    assert [entry.prefix for entry in page.entries] == ["0/", "1/", "2/"]
    assert [entry.key for entry in store.list(BUCKET, start_after="2/23")] == ["top"]
    for limit in (0, 1001):
        with pytest.raises(errors.InvalidArgumentError, match="1 to 1000"):
            store.list_page(BUCKET, limit=limit)


def test_a_listing_is_an_arrow_table(store: fordway.Store) -> None:
    pytest.importorskip("pyarrow")
    store.put_many(BUCKET, [("a", b"12"), ("b/c", b"3")])
    table = store.list(BUCKET, delimiter="/").to_arrow()
    info = store.head(BUCKET, "a")
    assert table.column("key").to_pylist() == ["a", "b/"]
    assert table.column("size").to_pylist() == [2, None]
    assert table.column("etag").to_pylist() == [info.etag, None]
    modified = table.column("modified")
    assert modified[1].as_py() is None
    assert abs(modified[0].value / 1e9 - info.modified.timestamp()) <= 1


def test_a_reader_is_a_file(store: fordway.Store) -> None:
    data = bytes(i % 253 for i in range(200_000))
    store.put(BUCKET, "key", data)
    with store.reader(BUCKET, "key") as reader:
        assert isinstance(reader, io.RawIOBase) and reader.info.size == len(data)
        assert reader.read(5) == data[:5]
        assert reader.seek(-10, os.SEEK_END) == len(data) - 10
        assert (reader.read(), reader.read(1), reader.tell()) == (data[-10:], b"", len(data))
        reader.seek(100)
        assert io.BufferedReader(reader).read(3_000) == data[100:3_100]
    with pytest.raises(ValueError, match="closed"):
        reader.read(1)
    reader = store.reader(BUCKET, "key")
    for seek in (lambda: reader.seek(-1), lambda: reader.seek(0, 7)):
        with pytest.raises(errors.InvalidArgumentError):
            seek()
    store.put(BUCKET, "key", b"other")
    with pytest.raises(errors.PreconditionFailedError):
        reader.read(1)
    with pytest.raises(FileNotFoundError):
        store.reader(BUCKET, "missing")


def test_a_writer_is_a_file(store: fordway.Store) -> None:
    with store.writer(BUCKET, "copied") as writer:
        assert isinstance(writer, io.RawIOBase) and writer.writable() and not writer.readable()
        shutil.copyfileobj(io.BytesIO(b"abc" * 1000), writer)
        assert writer.tell() == 3000
    with io.TextIOWrapper(io.BufferedWriter(store.writer(BUCKET, "text")), encoding="utf-8") as text:
        text.write("größer\n")
    assert (store.get(BUCKET, "copied"), store.get(BUCKET, "text").decode()) == (b"abc" * 1000, "größer\n")


def test_a_writer_that_an_exception_ends_publishes_nothing(store: fordway.Store) -> None:
    with (
        pytest.warns(RuntimeWarning, match="s3://bucket/text is discarded.*ZeroDivisionError"),
        pytest.raises(ZeroDivisionError),
        io.TextIOWrapper(io.BufferedWriter(store.writer(BUCKET, "text"))) as text,
    ):
        text.write("half")
        raise ZeroDivisionError
    forgotten = io.BufferedWriter(store.writer(BUCKET, "forgotten"))
    forgotten.write(b"half")
    del forgotten
    store.writer(BUCKET, "dropped").write(b"half")
    assert keys(store) == []
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        # The writer is created while this exception is already being handled, so closing the writer publishes
        # the object.
        writer = store.writer(BUCKET, "whole")
        writer.write(b"whole")
        writer.close()
    writer.close()
    assert store.get(BUCKET, "whole") == b"whole"


class Local:
    """A local variable of a function, to find out when the function's frame is freed."""


def begun_while_handling(
    store: fordway.Store, key: str, end: Callable[[fordway.ObjectWriter], object]
) -> weakref.ref[Local]:
    local = Local()
    try:
        store.head(BUCKET, key)
    except FileNotFoundError:
        writer = store.writer(BUCKET, key)
        writer.write(b"whole")
        end(writer)
    return weakref.ref(local)


def test_a_writer_frees_the_frame_that_began_it(store: fordway.Store) -> None:
    gc.disable()
    try:
        ends = {"closed": "close", "committed": "commit", "discarded": "discard"}
        for key, end in ends.items():
            assert begun_while_handling(store, key, lambda writer, end=end: getattr(writer, end)())() is None
        assert (
            begun_while_handling(store, "block", lambda writer: writer.__exit__(None, None, None))() is None
        )
    finally:
        gc.enable()
    assert keys(store) == ["block", "closed", "committed"]
    forgotten = begun_while_handling(store, "forgotten", lambda writer: None)
    gc.collect()
    assert forgotten() is None
    assert keys(store) == ["block", "closed", "committed"]


def test_an_upload_is_published_as_a_whole(store: fordway.Store) -> None:
    first, last = os.urandom(PART_BYTES), b"end"
    upload = store.upload(BUCKET, "key", content_type="text/plain", metadata={"a": "b"}, tags={"t": "1"})
    threads = [
        threading.Thread(target=upload.put_part, args=part) for part in ((2, memoryview(last)), (1, first))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(part.number, part.size) for part in upload.parts()] == [(1, PART_BYTES), (2, 3)]
    assert keys(store) == []
    assert [(found.key, found.id) for found in store.list_uploads(BUCKET, "k")] == [("key", upload.id)]
    again = store.resume_upload(BUCKET, "key", upload.id)
    made = again.complete([(part.number, part.etag) for part in again.parts()], if_none_match="*")
    info = store.head(BUCKET, "key")
    assert store.get(BUCKET, "key") == first + last
    assert (info.etag, info.content_type, info.metadata) == (made.etag, "text/plain", {"a": "b"})
    assert (store.tags(BUCKET, "key"), store.list_uploads(BUCKET)) == ({"t": "1"}, [])


def test_a_part_may_be_a_file_or_an_iterable(store: fordway.Store, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(first := os.urandom(PART_BYTES + 1))
    upload = store.upload(BUCKET, "key")
    with (tmp_path / "file").open("rb") as file:
        file.seek(1)
        made = upload.put_part(1, file, checksum="CRC32")
    assert made.checksum == upload.put_part(1, first[1:], checksum="CRC32").checksum
    upload.put_part(2, (piece for piece in (b"a", bytearray(b"b"), memoryview(b"c"))))
    with pytest.raises(TypeError, match="expected bytes or another buffer"):
        upload.put_part(3, [b"a", 1])
    assert [part.number for part in upload.parts()] == [1, 2]
    with pytest.raises(errors.InvalidArgumentError, match="send them again"):
        upload.complete()
    upload.complete([(part.number, part.etag) for part in upload.parts()])
    assert store.get(BUCKET, "key") == first[1:] + b"abc"


def test_uploads_and_parts_are_listed_in_pages(store: fordway.Store) -> None:
    uploads = [store.upload(BUCKET, key, checksum="SHA256") for key in ("a", "d/1", "d/2")]
    for number in (1, 3, 9):
        uploads[0].put_part(number, b"x" * number)
    page = uploads[0].parts_page(limit=2)
    assert ([part.number for part in page.parts], page.is_truncated) == ([1, 3], True)
    assert page.checksum == ("SHA256", "COMPOSITE")
    assert page.parts[0].checksum == ("SHA256", "LXEWQrcmsEQBYnyp+6wy9chTD7GQPMTbAiWHF5IaSIE=")
    page = uploads[0].parts_page(3)
    assert ([part.size for part in page.parts], page.is_truncated) == ([9], False)

    page = store.uploads_page(BUCKET, delimiter="/", limit=1)
    assert [found.id for found in page.uploads] == [uploads[0].id]
    assert page.uploads[0].checksum == ("SHA256", "COMPOSITE")
    page = store.uploads_page(BUCKET, delimiter="/", after=page.next)
    assert (page.uploads, page.prefixes, page.next) == ([], ["d/"], None)
    page = store.uploads_page(BUCKET, "d/", after=("d/1", None))
    assert [found.key for found in page.uploads] == ["d/2"]
    for call in (uploads[0].parts_page, lambda limit: store.uploads_page(BUCKET, limit=limit)):
        with pytest.raises(errors.InvalidArgumentError, match="up to 1000 entries"):
            call(limit=1001)
    with pytest.raises(errors.NotFoundError):
        store.uploads_page("nowhere")


def test_an_upload_that_an_exception_ends_is_aborted(store: fordway.Store) -> None:
    store.put(BUCKET, "source", b"0123456789")
    with store.upload(BUCKET, "key") as upload:
        upload.copy_part(1, BUCKET, "source", start=2, length=3)
    assert store.get(BUCKET, "key") == b"234"
    with pytest.raises(ZeroDivisionError), store.upload(BUCKET, "key") as upload:
        upload.put_part(1, b"other")
        raise ZeroDivisionError
    assert (store.get(BUCKET, "key"), store.list_uploads(BUCKET)) == (b"234", [])
    with pytest.raises(errors.NotFoundError):
        upload.put_part(1, b"late")
    with pytest.raises(errors.PreconditionFailedError), store.upload(BUCKET, "key") as upload:
        upload.put_part(1, b"new")
        upload.complete(if_none_match="*")


def test_a_closed_store_says_so(place: str) -> None:
    with fordway.open(place) as store:
        pass
    assert store.closed
    for call in (
        lambda: store.get(BUCKET, "key"),
        lambda: store.put(BUCKET, "key", [b"a"]),
        lambda: store.upload(BUCKET, "key"),
        lambda: store.get_many(BUCKET, ["key"]),
        lambda: store.list_page(BUCKET),
        lambda: store.reader(BUCKET, "key"),
    ):
        with pytest.raises(errors.InvalidArgumentError, match="closed"):
            call()


def test_calls_are_awaited(place: str, store: fordway.Store) -> None:
    async def work() -> None:
        async with fordway.aio.open(place) as twin:
            etags = await asyncio.gather(*(twin.put(BUCKET, f"k{i:02}", bytes([i])) for i in range(40)))
            assert etags[7] == (await twin.head(BUCKET, "k07")).etag
            assert [entry.key async for entry in twin.list(BUCKET)] == [f"k{i:02}" for i in range(40)]
            content, info = await twin.get_with_info(BUCKET, "k03", start=0)
            assert (content, info.size) == (b"\x03", 1)
            with pytest.raises(FileNotFoundError):
                await twin.get(BUCKET, "missing")
        assert twin.store.closed

    asyncio.run(work())
    assert len(keys(store)) == 40


def test_an_upload_is_awaited(place: str, store: fordway.Store) -> None:
    parts = [os.urandom(PART_BYTES), b"end"]

    async def work() -> None:
        async with fordway.aio.open(place) as twin:
            async with await twin.upload(BUCKET, "key", content_type="text/plain") as upload:
                assert (upload.bucket, upload.key) == (BUCKET, "key")
                await asyncio.gather(*(upload.put_part(number, it) for number, it in enumerate(parts, 1)))
                assert [part.size for part in await upload.parts()] == [PART_BYTES, 3]
            begun = await twin.upload(BUCKET, "copy")
            again = twin.resume_upload(BUCKET, "copy", begun.id)
            await again.copy_part(1, BUCKET, "key", start=2, length=10)
            await again.complete()
            with pytest.raises(ZeroDivisionError):
                async with await twin.upload(BUCKET, "aborted") as upload:
                    await upload.put_part(1, b"a")
                    raise ZeroDivisionError
            with pytest.raises(FileNotFoundError):
                await upload.abort()

    asyncio.run(work())
    assert (keys(store), store.list_uploads(BUCKET)) == (["copy", "key"], [])
    assert store.get(BUCKET, "key") == b"".join(parts)
    assert store.head(BUCKET, "key").content_type == "text/plain"
    assert store.get(BUCKET, "copy") == parts[0][2:12]


def test_an_upload_is_not_published_without_a_part(store: fordway.Store) -> None:
    upload = store.upload(BUCKET, "key")
    upload.put_part(1, b"first")
    for fail in (
        lambda: upload.put_part(2, "text"),  # type: ignore[arg-type]
        lambda: upload.copy_part(2, BUCKET, "missing"),
    ):
        with pytest.raises((TypeError, errors.NotFoundError)):
            fail()
        with pytest.raises(errors.InvalidArgumentError, match=r"parts \{2\}"):
            upload.complete()
        assert keys(store) == []
    # The caller may deliberately publish the object without the failed part.
    upload.complete([(part.number, part.etag) for part in upload.parts()])
    assert store.get(BUCKET, "key") == b"first"
    with store.upload(BUCKET, "key") as upload:
        with pytest.raises(errors.NotFoundError):
            upload.copy_part(1, BUCKET, "missing")
        upload.put_part(1, b"again")
    assert store.get(BUCKET, "key") == b"again"


def test_a_part_that_cannot_exist_does_not_spoil_the_upload(store: fordway.Store) -> None:
    numbers = (0, 10_001, 70_000, -1)
    with store.upload(BUCKET, "key") as upload:
        for number in numbers:
            with pytest.raises(errors.InvalidArgumentError):
                upload.put_part(number, b"x")
            with pytest.raises(errors.InvalidArgumentError):
                upload.copy_part(number, BUCKET, "missing")
            with pytest.raises(errors.InvalidArgumentError):
                upload.complete([(number, "etag")])
        with pytest.raises(errors.InvalidArgumentError):
            upload.parts_page(-1)
        upload.put_part(1, b"content")
    assert store.get(BUCKET, "key") == b"content"


def test_a_part_that_cannot_exist_does_not_spoil_an_awaited_upload(place: str, store: fordway.Store) -> None:
    async def work() -> None:
        async with fordway.aio.open(place) as twin, await twin.upload(BUCKET, "key") as upload:
            for number in (0, 10_001, -1, "1", 1.5, None):
                with pytest.raises((errors.InvalidArgumentError, TypeError)):
                    await upload.put_part(number, b"x")
                with pytest.raises((errors.InvalidArgumentError, TypeError)):
                    await upload.copy_part(number, BUCKET, "missing")
            with pytest.raises(TypeError):
                await upload.put_part(2, b"x", bad=1)  # type: ignore[call-arg]
            await upload.put_part(number=1, data=b"content")

    asyncio.run(work())
    assert store.get(BUCKET, "key") == b"content"


def test_an_upload_may_end_within_its_block(store: fordway.Store) -> None:
    with store.upload(BUCKET, "key") as upload:
        upload.put_part(1, b"whole")
        upload.complete()
    with pytest.raises(ZeroDivisionError), store.upload(BUCKET, "key") as upload:
        upload.abort()
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError) as caught, store.upload(BUCKET, "key") as upload:
        store.resume_upload(BUCKET, "key", upload.id).abort()
        raise ZeroDivisionError
    assert upload.id in caught.value.__notes__[0]
    assert (store.get(BUCKET, "key"), store.list_uploads(BUCKET)) == (b"whole", [])


def test_a_block_that_cannot_complete_its_upload_aborts_it(place: str, store: fordway.Store) -> None:
    with pytest.raises(errors.InvalidArgumentError), store.upload(BUCKET, "empty"):
        pass
    with (
        pytest.raises(errors.InvalidArgumentError, match=r"parts \{2\}"),
        store.upload(BUCKET, "failed") as upload,
    ):
        upload.put_part(1, b"first")
        with pytest.raises(errors.NotFoundError):
            upload.copy_part(2, BUCKET, "missing")

    async def cancelled() -> None:
        async with fordway.aio.open(place) as twin, await twin.upload(BUCKET, "cancelled") as upload:
            await upload.put_part(1, b"first")
            task = asyncio.ensure_future(upload.put_part(2, b"second"))
            task.cancel()

    async def empty() -> None:
        async with fordway.aio.open(place) as twin, await twin.upload(BUCKET, "empty"):
            pass

    with pytest.raises(errors.InvalidArgumentError, match=r"parts \[2\]"):
        asyncio.run(cancelled())
    with pytest.raises(errors.InvalidArgumentError):
        asyncio.run(empty())
    assert (keys(store), store.list_uploads(BUCKET)) == ([], [])
    with pytest.raises(errors.InvalidArgumentError) as caught, store.upload(BUCKET, "gone") as upload:
        store.resume_upload(BUCKET, "gone", upload.id).abort()
        with pytest.raises(errors.NotFoundError):
            upload.put_part(1, b"part")
    assert upload.id in caught.value.__notes__[0]


def test_an_awaited_upload_is_not_published_without_a_part(place: str, store: fordway.Store) -> None:
    async def work() -> None:
        async with fordway.aio.open(place) as twin:
            upload = await twin.upload(BUCKET, "key")
            task = asyncio.ensure_future(upload.put_part(1, b"part"))
            with pytest.raises(errors.InvalidArgumentError, match="parts"):
                await upload.complete()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(errors.InvalidArgumentError, match="parts"):
                await upload.complete()
            await upload.put_part(1, b"part")
            await upload.complete()
            async with await twin.upload(BUCKET, "aborted") as upload:
                with pytest.raises(FileNotFoundError):
                    await upload.copy_part(1, BUCKET, "missing")
                await upload.abort()

    asyncio.run(work())
    assert (keys(store), store.get(BUCKET, "key"), store.list_uploads(BUCKET)) == (["key"], b"part", [])


def test_a_closed_twin_raises_the_error_of_a_closed_store(place: str, store: fordway.Store) -> None:
    store.put(BUCKET, "key", b"content")

    async def work() -> None:
        async with fordway.aio.open(place) as twin:
            upload = await twin.upload(BUCKET, "upload")
            await upload.abort()
        with pytest.raises(errors.InvalidArgumentError, match="the store is closed"):
            await twin.get(BUCKET, "key")
        with pytest.raises(errors.InvalidArgumentError, match="the store is closed"):
            await upload.put_part(1, b"part")

    asyncio.run(work())


def test_files_are_awaited(place: str, store: fordway.Store) -> None:
    data = os.urandom(3_000_001)

    async def pieces(end: Exception | None = None) -> AsyncIterator[bytes]:
        for start in range(0, len(data), 1_000_000):
            await asyncio.sleep(0)
            yield data[start : start + 1_000_000]
        if end is not None:
            raise end

    async def work() -> None:
        async with fordway.aio.open(place, threads=1) as twin:
            etag = await twin.put(BUCKET, "key", pieces(), content_type="text/plain")
            with pytest.raises(ZeroDivisionError):
                await twin.put(BUCKET, "none", pieces(ZeroDivisionError()))
            stream, info = await twin.stream(BUCKET, "key", start=1)
            async with stream:
                assert (info.etag, info.content_type, await stream.read(9)) == (
                    etag,
                    "text/plain",
                    data[1:10],
                )
                assert b"".join([piece async for piece in stream]) == data[10:]
            assert stream.closed
            async with await twin.reader(BUCKET, "key") as reader:
                assert reader.seek(-5, os.SEEK_END) == len(data) - 5 and reader.info.etag == etag
                assert (await reader.read(2), await reader.read()) == (data[-5:-3], data[-3:])
                assert (await reader.read(), reader.tell()) == (b"", len(data))
            async with await twin.writer(BUCKET, "copy") as writer:
                assert await writer.write(data) == len(data) == writer.tell()
                await twin.put(
                    BUCKET, "copied", (piece async for piece in (await twin.stream(BUCKET, "key"))[0])
                )
            assert writer.closed
            with pytest.raises(ZeroDivisionError):
                async with await twin.writer(BUCKET, "none") as writer:
                    await writer.write(data)
                    raise ZeroDivisionError
            names = [version.key async for version in twin.list_versions(BUCKET)]
            assert names == ["copied", "copy", "key"]

    asyncio.run(work())
    assert keys(store) == ["copied", "copy", "key"] and store.list_uploads(BUCKET) == []
    assert store.get(BUCKET, "copy") == store.get(BUCKET, "copied") == data


def test_a_cancelled_write_publishes_nothing(place: str, store: fordway.Store) -> None:
    async def work() -> None:
        async with fordway.aio.open(place) as twin:
            with pytest.raises(errors.InvalidArgumentError, match="cancelled"):
                async with await twin.writer(BUCKET, "key") as writer:
                    await writer.write(b"first")
                    task = asyncio.ensure_future(writer.write(b"second"))
                    await asyncio.sleep(0)
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task

    asyncio.run(work())
    assert keys(store) == []


def test_each_call_of_a_store_has_a_twin() -> None:
    calls = {name for name in dir(fordway.Store) if not name.startswith("_")}
    assert calls <= set(dir(fordway.aio.AsyncStore))
    calls = {name for name in dir(fordway.Upload) if not name.startswith("_")}
    assert calls <= set(dir(fordway.aio.AsyncUpload))


@pytest.mark.parametrize("size", [0, 1, 70_000, 1 << 20, 3_000_001])
def test_a_stream_keeps_the_object_that_it_opened(store: fordway.Store, size: int) -> None:
    data = os.urandom(size)
    etag = store.put(BUCKET, "key", data)
    opened = [store.stream(BUCKET, "key") for _ in range(3)]
    assert all((info.etag, info.size) == (etag, size) for _, info in opened)
    (whole, pieces, buffered) = (stream for stream, _ in opened)
    start = pieces.read(100)
    store.put(BUCKET, "key", b"other")
    assert whole.read() == data and whole.read() == b"" and whole.tell() == size
    read = [start]
    while piece := pieces.read(99_999):
        read.append(piece)
    assert b"".join(read) == data and pieces.tell() == size
    assert isinstance(buffered, io.RawIOBase) and buffered.readable() and not buffered.seekable()
    with io.BufferedReader(buffered) as reader:
        assert b"".join(iter(lambda: reader.read(65_537), b"")) == data
    assert buffered.closed
    with pytest.raises(ValueError, match="closed"):
        buffered.read()
    room = bytearray(size + 10)
    with store.stream(BUCKET, "key")[0] as stream:
        read = stream.readinto(room)
        assert stream.readinto(room) == 0
    assert bytes(room[:read]) == store.get(BUCKET, "key")


def test_a_forked_child_leaves_the_stream_to_its_parent(place: str, store: fordway.Store) -> None:
    data = os.urandom(8_000_000)
    store.put(BUCKET, "key", data)
    store.put(BUCKET, "short", data[:1000])
    stream, short = store.stream(BUCKET, "key")[0], store.stream(BUCKET, "short")[0]
    assert stream.read(4) == data[:4]
    # On the `http` lane, the stream reads from a connection. On the other lanes, the stream reads from an
    # open file.
    is_on_connection = place.startswith("http")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            assert short.read() == data[:1000]
            room = bytearray(1000)
            for read in (lambda: stream.read(3_000_000), lambda: stream.readinto(room), stream.readall):
                if is_on_connection:
                    with pytest.raises(errors.InvalidArgumentError, match="forked"):
                        read()
            if not is_on_connection:
                assert stream.read(3_000_000) == data[4:3_000_004]
            stream.close()
            assert stream.closed and store.get(BUCKET, "key") == data
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert stream.read(1_000_000) == data[4:1_000_004]
    assert stream.readall() == data[1_000_004:]


def test_threads_share_a_listing(store: fordway.Store) -> None:
    names = sorted(f"L/{number}" for number in range(2500))
    store.put_many(BUCKET, [(name, b"") for name in names])
    for listing in (store.list(BUCKET, "L/"), store.list_versions(BUCKET, "L/")):
        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(list, [listing] * 8))
        assert sorted(entry.key for entries in found for entry in entries) == names
        assert next(listing, None) is None


def test_names_that_differ_only_in_case_are_refused(place: str, store: fordway.Store) -> None:
    store.put(BUCKET, "source", b"")
    both, headers = {"a": "1", "A": "2"}, {"Expires": "1", "expires": "2"}
    for make in (
        lambda **given: store.put(BUCKET, "key", b"", **given),
        lambda **given: store.put_with_info(BUCKET, "key", b"", **given),
        lambda **given: store.writer(BUCKET, "key", **given),
        lambda **given: store.upload(BUCKET, "key", **given),
        lambda **given: store.copy(BUCKET, "source", BUCKET, "key", **given),
    ):
        with pytest.raises(errors.InvalidArgumentError, match='"A" and "a" in the metadata'):
            make(metadata=both)
        with pytest.raises(errors.InvalidArgumentError, match='"Expires" and "expires" in the headers'):
            make(headers=headers)

    async def work() -> None:
        async with fordway.aio.open(place) as twin:
            for make in (
                lambda: twin.put(BUCKET, "key", b"", metadata=both),
                lambda: twin.upload(BUCKET, "key", metadata=both),
            ):
                with pytest.raises(errors.InvalidArgumentError, match='"A" and "a" in the metadata'):
                    await make()

    asyncio.run(work())
    assert (keys(store), store.list_uploads(BUCKET)) == (["source"], [])


def test_no_ranges_of_a_missing_object_are_not_found(place: str, store: fordway.Store) -> None:
    etag = store.put(BUCKET, "key", b"content")
    assert store.get_ranges(BUCKET, "key", [], if_match=etag) == []
    with pytest.raises(errors.PreconditionFailedError):
        store.get_ranges(BUCKET, "key", [], if_match="other")
    with pytest.raises(errors.NotFoundError):
        store.get_ranges(BUCKET, "missing", [])

    async def work() -> None:
        async with fordway.aio.open(place) as twin:
            with pytest.raises(errors.NotFoundError):
                await twin.get_ranges(BUCKET, "missing", [])

    asyncio.run(work())


def test_a_stream_of_a_range_is_what_get_returns(store: fordway.Store) -> None:
    data = os.urandom(3_000_001)
    store.put(BUCKET, "key", data)
    for start, length in ((5, None), (5, 2_000_000), (None, 7), (-7, None), (-2_000_000, 1_500_000)):
        stream, info = store.stream(BUCKET, "key", start=start, length=length)
        assert stream.readall() == store.get(BUCKET, "key", start=start, length=length)
        assert info.size == len(data)
    with pytest.raises(errors.InvalidArgumentError):
        store.stream(BUCKET, "key", start=len(data))
    with pytest.raises(errors.PreconditionFailedError):
        store.stream(BUCKET, "key", if_match="other")


def test_limits_are_for_servers(place: str) -> None:
    if place.startswith("http"):
        store = fordway.open(place, timeout=5, retries=0)
        assert pickle.loads(pickle.dumps(store)).list_buckets() is not None
    else:
        for option in ({"timeout": 1}, {"retries": 0}):
            with pytest.raises(errors.InvalidArgumentError, match="has no timeout"):
                fordway.open(place, **option)
    for wrong in ({"timeout": 0}, {"timeout": -1}, {"timeout": float("nan")}):
        with pytest.raises(errors.InvalidArgumentError, match="positive"):
            fordway.open(place, **wrong)
    with pytest.raises(TypeError, match="timeuot"):
        fordway.open(place, timeuot=1)
    with pytest.raises(OverflowError):
        fordway.open(place, retries=-1)


LEAVING = """
import sys, threading, fordway

store = fordway.open(sys.argv[1])


def work(number):
    while True:
        store.put("leaving", f"k{number}", b"x" * 5000)
        store.get("leaving", f"k{number}")


for number in range(4):
    threading.Thread(target=work, args=(number,), daemon=True).start()
while not list(store.list("leaving")):
    pass
"""


def test_an_interpreter_ends_while_calls_run(place: str) -> None:
    with fordway.open(place) as store:
        store.create_bucket("leaving")
        for _ in range(5):
            command = [sys.executable, "-c", LEAVING, place]
            ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            assert (ran.returncode, ran.stderr) == (0, "")
        assert all(store.get("leaving", entry.key) == b"x" * 5000 for entry in store.list("leaving"))
        # A gateway may still publish the last put of a program that has ended.
        for _ in range(100):
            store.delete_many("leaving", [entry.key for entry in store.list("leaving")])
            try:
                store.delete_bucket("leaving")
                break
            except errors.BucketNotEmptyError:
                time.sleep(0.05)
        else:
            store.delete_bucket("leaving")


def test_a_path_is_an_endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data" / BUCKET).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    store = fordway.open(Path("data"))
    store.put(BUCKET, "key", b"abc")
    assert (tmp_path / "data" / BUCKET / "key").read_bytes() == b"abc"
    again = pickle.loads(pickle.dumps(store))
    monkeypatch.chdir("/")
    assert (again.get(BUCKET, "key"), store.get(BUCKET, "key")) == (b"abc", b"abc")
    with pytest.raises(TypeError):
        fordway.open(5)
