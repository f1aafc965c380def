"""Tests the Python API on a real directory."""

import ast
import inspect
import itertools
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from array import array
from datetime import UTC, datetime
from pathlib import Path

import fsspec
import numpy as np
import pytest

import fordway
from fordway import _fordway, errors

BUCKET = "bucket"


@pytest.fixture
def store(tmp_path: Path) -> fordway.Store:
    opened = fordway.open(f"file://{tmp_path}")
    opened.create_bucket(BUCKET)
    return opened


@pytest.mark.parametrize("size", [0, 1, 3901, 65_536, 65_537, 3_000_001])
def test_what_is_put_comes_back(store: fordway.Store, tmp_path: Path, size: int) -> None:
    data = bytes(i * 7 % 251 for i in range(size))
    etag = store.put(BUCKET, "dir/key", data)
    assert store.get(BUCKET, "dir/key") == data
    assert (tmp_path / BUCKET / "dir" / "key").read_bytes() == data
    assert (store.head(BUCKET, "dir/key").size, store.head(BUCKET, "dir/key").etag) == (size, etag)


@pytest.mark.parametrize("data", [bytearray(b"abc"), memoryview(b"xabcx")[1:4]])
def test_any_buffer_of_bytes_can_be_put(store: fordway.Store, data: bytearray | memoryview) -> None:
    store.put(BUCKET, "key", data)
    assert store.get(BUCKET, "key") == b"abc"


def test_a_buffer_of_other_items_is_its_bytes(store: fordway.Store) -> None:
    numbers = array("d", [1.5, -2.0])
    store.put(BUCKET, "key", numbers)
    assert store.get(BUCKET, "key") == numbers.tobytes()
    back = array("d", [0.0, 0.0])
    assert store.get_into(BUCKET, "key", back) == 16
    assert back == numbers
    assert store.get_into(BUCKET, "key", back, start=8) == 8
    assert back.tolist() == [-2.0, -2.0]


@pytest.mark.parametrize("item_type", ["M8[ns]", "m8[s]", ">M8[D]", [("time", "M8[us]"), ("number", "u1")]])
def test_an_array_of_times_is_its_bytes(store: fordway.Store, item_type: str | list[tuple]) -> None:
    times = np.frombuffer(bytes(range(72)), "u8" if isinstance(item_type, str) else "V9")[:6].view(item_type)
    for shape in (times, times.reshape(2, 3), times[:0], times[2]):
        store.put(BUCKET, "times", shape)
        assert store.get(BUCKET, "times") == shape.tobytes()
    assert all(not isinstance(each, Exception) for each in store.put_many(BUCKET, [("many", times)]))
    with store.writer(BUCKET, "written") as writer:
        writer.write(times)
    assert store.get(BUCKET, "many") == store.get(BUCKET, "written") == times.tobytes()
    with pytest.raises(BufferError, match="contiguous"):
        store.put(BUCKET, "times", times[::2])
    back = np.zeros_like(times)
    store.get_into(BUCKET, "many", back)
    assert (back == times).all()


@pytest.mark.parametrize(
    ("data", "error", "says"),
    [
        ("text", TypeError, "not <class 'str'>; encode text"),
        (5, TypeError, "not <class 'int'>"),
        (memoryview(b"abcdefgh" * 4).cast("d")[::2], BufferError, "contiguous"),
    ],
)
def test_anything_else_cannot_be_put(
    store: fordway.Store, data: object, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        store.put(BUCKET, "key", data)
    assert list(store.list(BUCKET)) == []


def test_arrays_of_all_shapes_are_their_bytes_or_refused(store: fordway.Store, tmp_path: Path) -> None:
    files = fsspec.filesystem("fordway", endpoint=str(tmp_path), skip_instance_cache=True)
    square = np.arange(12, dtype=">i4").reshape(3, 4)
    whole = (np.array(5), square, np.zeros(2, "i4,f8"), np.zeros(2, [("O", "i4")]), np.array(["ab"]))
    empty = tuple(np.zeros(shape) for shape in ((0,), (0, 3), (3, 0), (2, 0, 3)))
    for data in whole + empty:
        store.put(BUCKET, "key", data)
        with store.writer(BUCKET, "written") as writer, files.open(f"{BUCKET}/file", "wb") as file:
            assert writer.write(data) == file.write(data) == data.nbytes
        for key in ("key", "written", "file"):
            assert store.get(BUCKET, key) == data.tobytes(), (key, data)
        store.put(BUCKET, "ones", b"\1" * data.nbytes)
        for read in (
            lambda into: store.get_into(BUCKET, "ones", into),
            lambda into: store.reader(BUCKET, "ones").readinto(into),
            lambda into: store.stream(BUCKET, "ones")[0].readinto(into),
        ):
            into = np.zeros_like(data)
            assert read(into) == data.nbytes and into.tobytes() == b"\1" * data.nbytes
    store.put(BUCKET, "ones", b"\1" * 48)
    refused = ((square.T, BufferError), (square[:, ::2], BufferError), (np.array([None] * 6), TypeError))
    for data, error in refused:
        before = data.copy()
        with files.open(f"{BUCKET}/file", "wb") as file:
            for use in (
                lambda data: store.put(BUCKET, "key", data),
                lambda data: store.put_many(BUCKET, [("key", data)]),
                lambda data: store.get_into(BUCKET, "ones", data),
                lambda data: store.reader(BUCKET, "ones").readinto(data),
                lambda data: store.stream(BUCKET, "ones")[0].readinto(data),
                file.write,
            ):
                with pytest.raises(error):
                    use(data)
        assert np.array_equal(data, before)


def test_a_pickled_store_is_opened_anew(store: fordway.Store) -> None:
    store.put(BUCKET, "key", b"abc")
    again = pickle.loads(pickle.dumps(store))
    assert again is not store
    assert again.get(BUCKET, "key") == b"abc"


TYPES = {"ExportsBuffer", "ExportsArray", "ReadsBytes"}
"""Names that exist only in the stubs, for type checkers."""


def test_help_says_what_the_stubs_say() -> None:
    stubs = ast.parse((Path(fordway.__file__).parent / "_fordway.pyi").read_text())
    described = 0
    for scope in (stubs, *(node for node in stubs.body if isinstance(node, ast.ClassDef))):
        if getattr(scope, "name", None) in TYPES:
            continue
        there = _fordway if scope is stubs else getattr(_fordway, scope.name)
        for node in scope.body:
            if getattr(node, "name", None) in TYPES:
                continue
            wanted = ast.get_docstring(node) if isinstance(node, ast.ClassDef | ast.FunctionDef) else None
            if wanted is None or node.name.startswith("__"):
                continue
            assert inspect.getdoc(getattr(there, node.name)) == wanted, node.name
            described += 1
    assert described > 40
    assert str(inspect.signature(fordway.Store.list)) == (
        "(self, /, bucket, prefix='', delimiter=None, *, start_after=None)"
    )


@pytest.mark.parametrize(
    ("start", "length", "wanted"),
    [
        (2, None, slice(2, None)),
        (2, 3, slice(2, 5)),
        (None, 4, slice(0, 4)),
        (99_998, 10, slice(99_998, None)),
        (-5, None, slice(-5, None)),
        (-5, 3, slice(-5, -2)),
        (-70_000, 69_999, slice(-70_000, -1)),
        (-5, 10, slice(-5, None)),
        (-200_000, None, slice(None)),
    ],
)
def test_ranges(store: fordway.Store, start: int | None, length: int | None, wanted: slice) -> None:
    data = bytes(i % 253 for i in range(100_000))
    store.put(BUCKET, "key", data)
    assert store.get(BUCKET, "key", start=start, length=length) == data[wanted]
    assert bytes(memoryview(store.map(BUCKET, "key", start=start, length=length))) == data[wanted]


def test_ranges_with_no_byte_in_them_are_refused(store: fordway.Store) -> None:
    store.put(BUCKET, "key", b"abc")
    for start, length in [(3, None), (0, 0), (7, 2)]:
        with pytest.raises(errors.InvalidArgumentError):
            store.get(BUCKET, "key", start=start, length=length)


def test_what_is_no_position_or_length_is_an_invalid_argument(store: fordway.Store) -> None:
    store.put(BUCKET, "key", b"abc")
    for call in (
        lambda: store.get(BUCKET, "key", length=-1),
        lambda: store.get_with_info(BUCKET, "key", start=2**64),
        lambda: store.get(BUCKET, "key", start=-(2**63) - 1),
        lambda: store.get_ranges(BUCKET, "key", [(0, 1), (-1, 1)]),
        lambda: store.writer(BUCKET, "other", size=-1),
    ):
        with pytest.raises(errors.InvalidArgumentError, match="count bytes from 0"):
            call()
    with pytest.raises(TypeError, match="start"):
        store.get(BUCKET, "key", start="0")


def test_content_and_description_come_by_one_call(store: fordway.Store) -> None:
    data = bytes(range(256)) * 1000
    etag = store.put(BUCKET, "key", data, content_type="text/plain", metadata={"a": "b"})
    content, info = store.get_with_info(BUCKET, "key")
    assert content == data
    assert (info.size, info.etag, info.content_type, info.metadata) == (
        *(len(data), etag),
        *("text/plain", {"a": "b"}),
    )
    content, info = store.get_with_info(BUCKET, "key", start=10, length=5)
    assert (content, info.size) == (data[10:15], len(data))


def test_reads_can_be_held_to_one_version(store: fordway.Store) -> None:
    old = store.put(BUCKET, "key", b"older")
    new = store.put(BUCKET, "key", b"newer!")
    for call in (
        lambda etag: store.get(BUCKET, "key", if_match=etag),
        lambda etag: store.get_with_info(BUCKET, "key", if_match=etag)[0],
        lambda etag: store.get_ranges(BUCKET, "key", [(0, 6)], if_match=etag)[0],
        lambda etag: store.get_into(BUCKET, "key", bytearray(6), if_match=etag) and b"newer!",
    ):
        assert call(new) == b"newer!"
        with pytest.raises(errors.PreconditionFailedError):
            call(old)


def test_objects_are_written_in_pieces(store: fordway.Store) -> None:
    pieces = [b"abc", bytearray(b"x" * 3_000_000), memoryview(b"12345")[1:3], array("d", [1.5])]
    writer = store.writer(BUCKET, "key", content_type="text/plain", tags={"a": "1"}, if_none_match="*")
    assert [writer.write(piece) for piece in pieces] == [3, 3_000_000, 2, 8]
    assert list(store.list(BUCKET)) == [] and not writer.closed
    etag = writer.commit()
    assert store.get(BUCKET, "key") == b"".join(map(bytes, pieces))
    info = store.head(BUCKET, "key")
    assert (info.etag, info.content_type, info.tag_count) == (etag, "text/plain", 1)
    assert writer.closed
    for late in (writer.commit, lambda: writer.write(b"x")):
        with pytest.raises(errors.InvalidArgumentError, match="begin another"):
            late()
    writer.discard()
    with pytest.raises(errors.PreconditionFailedError):
        store.writer(BUCKET, "key", if_none_match="*").commit()
    assert store.head(BUCKET, "key").etag == etag


def test_a_block_commits_a_writer_or_discards_it(store: fordway.Store, tmp_path: Path) -> None:
    with store.writer(BUCKET, "key") as writer:
        writer.write(b"abc")
    assert (store.get(BUCKET, "key"), writer.closed) == (b"abc", True)
    with pytest.raises(ZeroDivisionError), store.writer(BUCKET, "key") as writer:
        writer.write(b"other")
        raise ZeroDivisionError
    with store.writer(BUCKET, "other") as writer:
        writer.discard()
    assert [entry.key for entry in store.list(BUCKET)] == ["key"]
    assert store.get(BUCKET, "key") == b"abc"
    assert list((tmp_path / BUCKET).glob(".fordway/tmp/*")) == []


def test_headers_are_stored_and_copied(store: fordway.Store) -> None:
    kept = {
        "cache-control": "no-cache",
        "content-encoding": "gzip",
        "expires": "Wed, 02 Jan 2030 03:04:05 GMT",
    }
    given = {name.title(): value for name, value in kept.items()}
    store.put(BUCKET, "put", b"abc", headers=given)
    store.put_with_info(BUCKET, "with-info", b"abc", headers=given)
    store.copy(BUCKET, "put", BUCKET, "copy")
    with store.writer(BUCKET, "written", headers=given) as writer:
        writer.write(b"abc")
    with store.upload(BUCKET, "uploaded", headers=given) as upload:
        upload.put_part(1, b"abc")
    for key in ("put", "with-info", "copy", "written", "uploaded"):
        assert store.head(BUCKET, key).headers == kept, key
    store.copy(BUCKET, "put", BUCKET, "copy", headers={"content-language": "de"})
    assert store.head(BUCKET, "copy").headers == {"content-language": "de"}
    with pytest.raises(errors.InvalidArgumentError, match=r"x-run.*metadata"):
        store.put(BUCKET, "refused", b"abc", headers={"x-run": "7"})


def test_objects_are_copied(store: fordway.Store) -> None:
    store.create_bucket("other")
    etag = store.put(BUCKET, "key", b"abc", content_type="text/plain", metadata={"a": "b"}, tags={"t": "1"})
    assert store.copy(BUCKET, "key", "other", "copy") == etag
    info = store.head("other", "copy")
    assert (info.content_type, info.metadata, info.tag_count) == ("text/plain", {"a": "b"}, 1)
    store.copy(BUCKET, "key", "other", "copy", content_type="text/csv", tags={})
    info = store.head("other", "copy")
    assert (info.content_type, info.metadata, info.tag_count) == ("text/csv", {}, 0)
    with pytest.raises(errors.PreconditionFailedError):
        store.copy(BUCKET, "key", "other", "copy", if_none_match="*")
    with pytest.raises(errors.NotFoundError):
        store.copy(BUCKET, "missing", "other", "copy")
    with pytest.raises(errors.InvalidArgumentError):
        store.copy(BUCKET, "key", BUCKET, "key")
    store.set_versioning(BUCKET, True)
    store.put(BUCKET, "key", b"newer")
    oldest = [entry.version for entry in store.list_versions(BUCKET, "key")][-1]
    store.copy(BUCKET, "key", "other", "old", version=oldest)
    assert store.get("other", "old") == b"abc"


def test_many_objects_are_removed_at_once(store: fordway.Store, tmp_path: Path) -> None:
    for number in range(5):
        store.put(BUCKET, f"dir/{number}", b"")
    assert store.delete_many(BUCKET, [f"dir/{number}" for number in range(4)] + ["missing"]) == [None] * 5
    assert [entry.key for entry in store.list(BUCKET)] == ["dir/4"]
    with pytest.raises(errors.InvalidNameError):
        store.delete_many(BUCKET, ["dir/4", ""])
    assert [type(found) for found in store.delete_many("nowhere", ["a", "b"])] == [errors.NotFoundError] * 2
    assert [entry.key for entry in store.list(BUCKET)] == ["dir/4"]


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    with fordway.open(str(tmp_path)) as store:
        store.create_bucket(BUCKET)
        store.put(BUCKET, "key", b"abc")
        listed = store.list(BUCKET)
        assert not store.closed
    assert store.closed and store.lane == "embedded"
    assert [entry.key for entry in listed] == ["key"]
    for call in (
        lambda: store.get(BUCKET, "key"),
        lambda: store.put(BUCKET, "key", b""),
        lambda: store.list(BUCKET),
        store.list_buckets,
    ):
        with pytest.raises(ValueError, match="the store is closed") as caught:
            call()
        assert isinstance(caught.value, errors.InvalidArgumentError)
    store.close()
    assert pickle.loads(pickle.dumps(store)).get(BUCKET, "key") == b"abc"


def test_a_closed_store_holds_no_descriptor(tmp_path: Path) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 (its own descriptor is counted each time)

    before = descriptors()
    store = fordway.open(str(tmp_path))
    store.create_bucket(BUCKET)
    assert store.head_bucket(BUCKET).name == BUCKET
    assert descriptors() > before
    store.close()
    assert descriptors() == before


def test_a_replaced_root_is_noticed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / BUCKET).mkdir(parents=True)
    store = fordway.open(str(root))
    store.put(BUCKET, "key", b"old")
    shutil.rmtree(root)
    (root / BUCKET).mkdir(parents=True)
    (root / "other").mkdir()
    store.put(BUCKET, "new", b"new")
    assert (root / BUCKET / "new").read_bytes() == b"new"
    assert [bucket.name for bucket in store.list_buckets()] == [BUCKET, "other"]
    shutil.rmtree(root)
    with pytest.raises(errors.UnavailableError, match="root is missing"):
        store.list_buckets()


def test_metadata_comes_back(store: fordway.Store) -> None:
    before = datetime.now(UTC)
    store.put(BUCKET, "key", b"abc", content_type="text/plain", metadata={"Run": "7", "note": "ä"})
    info = store.head(BUCKET, "key")
    assert (info.content_type, info.metadata) == ("text/plain", {"run": "7", "note": "ä"})
    assert abs((info.modified - before).total_seconds()) < 5
    store.put(BUCKET, "bare", b"")
    assert (store.head(BUCKET, "bare").content_type, store.head(BUCKET, "bare").metadata) == (None, {})


def test_conditions_protect_what_is_there(store: fordway.Store) -> None:
    first = store.put(BUCKET, "key", b"1", if_none_match="*")
    with pytest.raises(errors.PreconditionFailedError):
        store.put(BUCKET, "key", b"2", if_none_match="*")
    second = store.put(BUCKET, "key", b"22", if_match=first)
    for refused in (
        lambda: store.put(BUCKET, "key", b"3", if_match=first),
        lambda: store.delete(BUCKET, "key", if_match=first),
    ):
        with pytest.raises(errors.PreconditionFailedError):
            refused()
    assert store.get(BUCKET, "key") == b"22"
    store.delete(BUCKET, "key", if_match=second)
    with pytest.raises(errors.NotFoundError):
        store.get(BUCKET, "key")


def test_listing_goes_over_pages_in_byte_order(store: fordway.Store) -> None:
    keys = sorted(f"{i % 3}/{i:04}" for i in range(2_345))
    for key in keys:
        store.put(BUCKET, key, b"x" * (len(key) % 5))
    entries = list(store.list(BUCKET))
    assert [entry.key for entry in entries] == keys
    assert entries[0].size == len(keys[0]) % 5
    assert entries[0].etag == store.head(BUCKET, keys[0]).etag
    assert [entry.prefix for entry in store.list(BUCKET, delimiter="/")] == ["0/", "1/", "2/"]
    assert [entry.key for entry in store.list(BUCKET, "1/000")] == [k for k in keys if k.startswith("1/000")]


def test_buckets(store: fordway.Store) -> None:
    store.create_bucket("another")
    assert [bucket.name for bucket in store.list_buckets()] == ["another", BUCKET]
    with pytest.raises(FileExistsError):
        store.create_bucket(BUCKET)
    store.put(BUCKET, "key", b"")
    with pytest.raises(errors.BucketNotEmptyError):
        store.delete_bucket(BUCKET)
    store.delete_bucket("another")
    assert [bucket.name for bucket in store.list_buckets()] == [BUCKET]


def test_threads_share_a_store(store: fordway.Store) -> None:
    wrong = []

    def work(thread: int) -> None:
        for i in range(50):
            data = bytes([thread, i]) * (40_000 if i % 10 == 0 else 20)
            store.put(BUCKET, f"{thread}/{i}", data)
            if store.get(BUCKET, f"{thread}/{i}") != data:
                wrong.append((thread, i))

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert sum(1 for _ in store.list(BUCKET)) == 200


def increment(store: fordway.Store, times: int) -> None:
    """Increments a counter in one object, without losing increments of other clients."""
    for _ in range(times):
        while True:
            seen = store.head(BUCKET, "count").etag
            count = int(store.get(BUCKET, "count"))
            try:
                # The object may change between the head and the get. The condition detects such a change.
                store.put(BUCKET, "count", str(count + 1).encode(), if_match=seen)
                break
            except errors.PreconditionFailedError:
                pass


def test_forked_children_and_their_parent_exclude_each_other(store: fordway.Store) -> None:
    store.put(BUCKET, "count", b"0")
    increment(store, 1)
    children = []
    for _ in range(3):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                increment(store, 200)
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    increment(store, 200)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
    assert store.get(BUCKET, "count") == b"801"


def test_a_forked_child_does_not_end_the_upload_of_its_parent(store: fordway.Store) -> None:
    for ends_with in (None, RuntimeError()):
        with store.upload(BUCKET, "key") as upload:
            child = os.fork()
            if child == 0:
                try:
                    with upload:
                        if ends_with:
                            raise ends_with
                finally:
                    os._exit(0)
            os.waitpid(child, 0)
            upload.put_part(1, b"content")
        assert store.get(BUCKET, "key") == b"content"
        store.delete(BUCKET, "key")


def status_within(child: int, seconds: float) -> int | None:
    """Returns the wait status of a child process, or None after killing a child that takes longer."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def test_a_fork_while_other_threads_use_the_store_harms_nobody(store: fordway.Store) -> None:
    buckets = ["forked-0", "forked-1", "forked-2"]
    for bucket in buckets:
        store.create_bucket(bucket)
    names = [(bucket, f"dir{number}/key") for bucket in buckets for number in range(20)]
    for bucket, key in names:
        store.put(bucket, key, f"{bucket}/{key}".encode())
    is_over = threading.Event()

    def read(first: int) -> None:
        for number in itertools.count(first):
            if is_over.is_set():
                return
            bucket, key = names[number % len(names)]
            store.put(bucket, key, store.get(bucket, key))

    threads = [threading.Thread(target=read, args=(thread * 7,)) for thread in range(6)]
    for thread in threads:
        thread.start()
    statuses = []
    for _ in range(25):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                if all(store.get(bucket, key) == f"{bucket}/{key}".encode() for bucket, key in names):
                    status = 0
            finally:
                os._exit(status)
        statuses.append(status_within(child, 30))
    is_over.set()
    for thread in threads:
        thread.join()
    assert statuses == [0] * 25


def test_the_endpoint_picks_the_lane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "relative/path")
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    with pytest.raises(errors.InvalidArgumentError, match="relative/path"):
        fordway.open()
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", str(tmp_path))
    assert fordway.open().lane == "embedded"
    with pytest.raises(errors.FordwayError, match="missing"):
        fordway.open(str(tmp_path / "missing"))
    nobody = fordway.open(f"unix://{tmp_path}/no.sock")
    assert nobody.lane == "node"
    with pytest.raises(errors.UnavailableError, match=r"no\.sock"):
        nobody.list_buckets()


def test_a_server_that_is_not_there_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    store = fordway.open(f"http://127.0.0.1:{port}")
    assert store.lane == "http"
    with pytest.raises(ConnectionError) as caught:
        store.get(BUCKET, "key")
    assert isinstance(caught.value, errors.UnavailableError)


def test_every_kind_has_a_class_on_purpose() -> None:
    assert len(_fordway.ERROR_KINDS) > 30
    assert set(errors.BY_KIND) == set(_fordway.ERROR_KINDS)


@pytest.mark.parametrize("kind", _fordway.ERROR_KINDS)
def test_an_exception_of_every_kind_tells_all_it_knows(kind: str) -> None:
    error = errors.exception_for(kind, "what went wrong", "s3://b/k", "why")
    assert isinstance(error, errors.FordwayError)
    assert type(error) is not errors.FordwayError
    assert (str(error), error.kind, error.target) == ("what went wrong", kind, "s3://b/k")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.kind, again.target) == (type(error), str(error), kind, "s3://b/k")
    assert (error.detail, again.detail) == ("why", "why")
    assert not hasattr(again, "__notes__")
    error.add_note("a note")
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["a note"]
    if isinstance(error, OSError):
        for each in (error, again):
            assert each.errno is not None and each.filename == "s3://b/k"


def test_errors_are_what_python_programs_catch_already(store: fordway.Store) -> None:
    for builtin in (KeyError, FileNotFoundError, OSError):
        with pytest.raises(builtin) as caught:
            store.get(BUCKET, "missing")
    assert caught.value.kind == "NoSuchKey"
    assert caught.value.target == caught.value.filename == f"s3://{BUCKET}/missing"
    assert caught.value.detail.startswith(f"s3://{BUCKET}/missing: ")
    assert "embedded" in str(caught.value)
    with pytest.raises(ValueError, match="NUL"):
        store.get(BUCKET, "a\0b")
    with pytest.raises(errors.NotFoundError):
        next(store.list("nowhere"))


def test_modules_are_imported_on_first_use(store: fordway.Store) -> None:
    program = "import sys, fordway; assert 'fordway.aio' not in sys.modules; print(fordway.aio.AsyncStore)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.stdout == "<class 'fordway.aio.AsyncStore'>\n", ran.stderr
    with pytest.raises(AttributeError, match="nothing"):
        fordway.nothing  # noqa: B018
    store.put(BUCKET, "key", b"abc")
    assert isinstance(store.map(BUCKET, "key"), fordway.Mapped)


def test_versions_are_kept_named_and_listed(store: fordway.Store) -> None:
    assert store.versioning(BUCKET) is None
    store.set_versioning(BUCKET, True)
    assert store.versioning(BUCKET) == "enabled"
    store.put(BUCKET, "k", b"older")
    older = store.head(BUCKET, "k").version
    store.put(BUCKET, "k", b"newer!")
    assert older is not None
    assert (store.get(BUCKET, "k", version=older), store.head(BUCKET, "k", version=older).size) == (
        b"older",
        5,
    )
    store.delete(BUCKET, "k")
    found = [
        (entry.is_delete_marker, entry.is_latest, entry.size) for entry in store.list_versions(BUCKET, "k")
    ]
    assert found == [(True, True, None), (False, False, 6), (False, False, 5)]
    marker = next(store.list_versions(BUCKET)).version
    store.delete(BUCKET, "k", version=marker)
    assert store.get(BUCKET, "k") == b"newer!"
    with pytest.raises(errors.NotFoundError):
        store.get(BUCKET, "k", version="unknown")
    store.set_versioning(BUCKET, False)
    assert store.versioning(BUCKET) == "suspended"


def test_tags_are_kept_and_replaced(store: fordway.Store) -> None:
    store.put(BUCKET, "k", b"x", tags={"a": "1", "B": "ü"})
    assert (store.tags(BUCKET, "k"), store.head(BUCKET, "k").tag_count) == ({"a": "1", "B": "ü"}, 2)
    store.set_tags(BUCKET, "k", {})
    assert store.tags(BUCKET, "k") == {}
    with pytest.raises(errors.InvalidArgumentError):
        store.set_tags(BUCKET, "k", {str(number): "" for number in range(11)})
