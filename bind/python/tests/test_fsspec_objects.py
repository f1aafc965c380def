"""Tests fsspec's access to objects on every lane, in addition to fsspec's own tests."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import io
import os
import pickle
import subprocess
import sys
import weakref
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import fsspec
import pandas
import pytest
from fsspec.callbacks import Callback
from fsspec.compression import available_compressions
from fsspec.transaction import Transaction
from fsspec_lanes import below, bucket, contents, fs, place
from gateways import KEYS
from scripted_server import scripted

from fordway.errors import (
    FordwayError,
    InvalidArgumentError,
    PreconditionFailedError,
    UnavailableError,
)
from fordway.fsspec import ObjectFileSystem, S3ObjectFileSystem, register_s3

if TYPE_CHECKING:
    from scripted_server import Response

__all__ = ["bucket", "fs", "place"]

CONTENT = bytes(number * 7 % 251 for number in range(300_000))


@pytest.fixture
def tree(fs: ObjectFileSystem, bucket: str) -> str:
    for key in ("a", "dir/b", "dir/c.txt", "dir/deep/d.txt", "dirt"):
        fs.pipe(f"{bucket}/{key}", key.encode())
    fs.store.put(bucket, "marked/", b"")
    return bucket


def test_a_directory_needs_no_page_of_its_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    asked: list[str] = []
    missing = 404, {}, b"<Error><Code>NoSuchKey</Code><Message>scripted</Message></Error>"
    about = '<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>"a"</ETag><Size>1</Size>'
    page = f"<ListBucketResult><Contents><Key>d/k</Key>{about}</Contents></ListBucketResult>"

    def respond(method: str, path: str, _body: bytes) -> Response:
        if method == "HEAD":
            return missing
        asked.append(path)
        return 200, {}, page.encode()

    with scripted(respond) as where:
        fs = fsspec.filesystem("fordway", endpoint=where, skip_instance_cache=True)
        assert fs.exists("bucket/d") and fs.isdir("bucket/d") and fs.info("bucket/d")["type"] == "directory"
        with pytest.raises(OSError, match="not empty"):
            fs.rmdir("bucket/d")
    numbers = [path.partition("max-keys=")[2].partition("&")[0] for path in asked]
    assert numbers == ["1", "1", "1", "2"]


def test_listings(fs: ObjectFileSystem, tree: str) -> None:
    assert below(tree, fs.ls(tree, detail=False)) == ["a", "dir", "dirt", "marked"]
    assert below(tree, fs.ls(f"fordway://{tree}/dir/", detail=False)) == ["dir/b", "dir/c.txt", "dir/deep"]
    assert fs.ls(f"{tree}/marked") == []
    (about,) = fs.ls(f"{tree}/dir/b")
    assert (about["name"], about["type"], about["size"]) == (f"{tree}/dir/b", "file", 5)
    assert below(tree, fs.find(tree)) == ["a", "dir/b", "dir/c.txt", "dir/deep/d.txt", "dirt"]
    assert below(tree, fs.find(f"{tree}/dir", withdirs=True))[:3] == ["dir", "dir/b", "dir/c.txt"]
    assert below(tree, fs.find(tree, prefix="dir")) == ["dir/b", "dir/c.txt", "dir/deep/d.txt", "dirt"]
    assert below(tree, fs.find(tree, prefix="dir", maxdepth=1)) == ["dirt"]
    assert below(tree, fs.find(tree, maxdepth=2)) == ["a", "dir/b", "dir/c.txt", "dirt"]
    assert below(tree, fs.find(f"{tree}/dir/b")) == ["dir/b"]
    assert fs.find(f"{tree}/missing") == fs.find("no-such-bucket-here") == []
    assert below(tree, fs.glob(f"{tree}/**/*.txt")) == ["dir/c.txt", "dir/deep/d.txt"]
    walked = [(below(tree, [root])[0], dirs, files) for root, dirs, files in fs.walk(f"{tree}/dir")]
    assert walked == [("dir", ["deep"], ["b", "c.txt"]), ("dir/deep", [], ["d.txt"])]
    assert fs.du(tree) == sum(len(name) for name in below(tree, fs.find(tree)))
    assert tree in fs.ls("", detail=False)


def test_disk_usage_needs_only_listings(
    fs: ObjectFileSystem, tree: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {f"{tree}/{key}": len(key) for key in ("a", "dir/b", "dir/c.txt", "dir/deep/d.txt", "dirt")}
    assert fs.du(f"{tree}/a") == fs.du(f"{tree}/a", maxdepth=1) == 1
    assert fs.find(f"{tree}/a", maxdepth=1, detail=True)[f"{tree}/a"]["size"] == 1
    assert fs.du(f"{tree}/missing") == 0
    assert fs.du(f"{tree}/dir", total=False, withdirs=True, maxdepth=1) == {
        f"{tree}/dir": 0,
        f"{tree}/dir/deep": 0,
        f"{tree}/dir/b": 5,
        f"{tree}/dir/c.txt": 9,
    }

    def info(path: str, **_: object) -> None:
        raise AssertionError(f"du requested the properties of {path}")

    monkeypatch.setattr(fs, "info", info)
    assert fs.du(tree) == sum(sizes.values())
    assert fs.du(tree, total=False) == sizes
    assert fs.du(tree, total=False, maxdepth=1) == {f"{tree}/a": 1, f"{tree}/dirt": 4}


def test_what_a_path_names(fs: ObjectFileSystem, tree: str) -> None:
    assert fs.info("")["type"] == fs.info(tree)["type"] == fs.info(f"{tree}/dir")["type"] == "directory"
    assert fs.info(f"{tree}/marked")["type"] == "directory"
    about = fs.info(f"{tree}/a")
    assert (about["ETag"], about["size"]) == (fs.store.head(tree, "a").etag, 1)
    assert abs((fs.modified(f"{tree}/a") - datetime.now(UTC)).total_seconds()) < 60
    assert fs.created(tree) == fs.store.head_bucket(tree).created
    for missing in (f"{tree}/di", f"{tree}/a/b/c", "no-such-bucket-here", "no-such-bucket-here/a"):
        assert not fs.exists(missing), missing
    for wrong in (f"{tree}/missing", "no-such-bucket-here", "no-such-bucket-here/a"):
        for call in (
            fs.info,
            fs.ls,
            fs.modified,
            lambda path: fs.cat(f"{path}/c"),
            lambda path: fs.open(f"{path}/o"),
        ):
            with pytest.raises(FileNotFoundError):
                call(wrong)
    with pytest.raises(IsADirectoryError):
        fs.modified(f"{tree}/dir")
    with pytest.raises(IsADirectoryError):
        fs.open(f"{tree}/dir")
    for call in (fs.cat_file, lambda path: fs.pipe_file(path, b""), lambda path: fs.open(path, "wb")):
        with pytest.raises(IsADirectoryError, match="BUCKET/KEY") as caught:
            call(tree)
        assert caught.value.filename == tree
    with pytest.raises(IsADirectoryError) as caught:
        fs.open(tree)
    assert caught.value.filename == tree


def test_keys_tell_contents_apart(fs: ObjectFileSystem, bucket: str) -> None:
    path = f"{bucket}/a"
    fs.pipe(path, b"one")
    before = fs.ukey(path), fs.checksum(path)
    assert before == (fs.ukey(path), fs.checksum(path))
    fs.pipe(path, b"two")
    assert fs.ukey(path) != before[0] and fs.checksum(path) != before[1]


SLICES = [(None, None), (5, None), (0, 10), (299_990, 400_000), (400_000, 500_000), (300_000, None)]
SLICES += [(-10, None), (-10, -5), (None, -299_990), (7, 7), (9, 3), (0, 300_000)]


@pytest.mark.parametrize(("start", "end"), SLICES)
def test_slices_are_those_of_bytes(
    fs: ObjectFileSystem, bucket: str, start: int | None, end: int | None
) -> None:
    fs.pipe(f"{bucket}/a", CONTENT)
    assert fs.cat_file(f"{bucket}/a", start, end) == CONTENT[start:end]


def test_many_ranges_of_many_objects(fs: ObjectFileSystem, bucket: str) -> None:
    one, two = f"{bucket}/one", f"{bucket}/two"
    fs.pipe({one: CONTENT, two: CONTENT[::-1]})
    paths = [one if number % 3 else two for number in range(len(SLICES))]
    starts, ends = zip(*SLICES, strict=True)
    read = fs.cat_ranges(paths, list(starts), list(ends))
    wanted = [(CONTENT if number % 3 else CONTENT[::-1])[slice(*each)] for number, each in enumerate(SLICES)]
    assert read == wanted
    assert fs.cat_ranges([one, two], 0, 3) == [CONTENT[:3], CONTENT[::-1][:3]]
    found, failed = fs.cat_ranges([one, f"{bucket}/missing"], [0, 0], [1, 1])
    assert found == CONTENT[:1] and isinstance(failed, FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges([f"{bucket}/missing"], 0, 1, on_error="raise")
    with pytest.raises(ValueError, match="as many starts"):
        fs.cat_ranges([one], [0, 1], [1, 2])


def test_files_are_read_and_sought_in(fs: ObjectFileSystem, bucket: str) -> None:
    path = f"{bucket}/lines"
    lines = [f"line {number}\n" for number in range(40_000)]
    with fs.open(path, "w") as file:
        file.writelines(lines)
    with fs.open(path, "r") as file:
        assert list(file) == lines
    text = "".join(lines).encode()
    with fs.open(path, block_size=1000) as file:
        assert file.seek(-100, io.SEEK_END) == len(text) - 100
        assert file.read() == text[-100:]
        file.seek(200_000)
        assert file.read(3) == text[200_000:200_003]
        again = pickle.loads(pickle.dumps(file))
        assert (again.tell(), again.read(5)) == (200_003, text[200_003:200_008])
    with pytest.raises(TypeError, match="metadata"):
        fs.open(path, metadata={"a": "b"})


def test_a_reader_never_mixes_versions(fs: ObjectFileSystem, bucket: str) -> None:
    path = f"{bucket}/a"
    fs.pipe(path, CONTENT)
    with fs.open(path, block_size=100) as file:
        assert file.read(10) == CONTENT[:10]
        fs.pipe(path, CONTENT[::-1])
        file.seek(200_000)
        with pytest.raises(PreconditionFailedError):
            file.read(10)


@pytest.mark.parametrize("sizes", [[], [1], [3, 400_000, 5, 2_000_000, 0, 1_048_575, 1], [9_000_000]])
def test_what_is_written_in_pieces_comes_back(fs: ObjectFileSystem, bucket: str, sizes: list[int]) -> None:
    path = f"{bucket}/pieces"
    pieces = [bytes([65 + number]) * size for number, size in enumerate(sizes)]
    with fs.open(path, "wb", content_type="text/plain", metadata={"a": "b"}, tags={"t": "1"}) as file:
        for piece in pieces:
            assert file.write(piece) == len(piece)
        assert file.tell() == sum(sizes)
        assert not fs.exists(path)
    assert file.closed
    assert fs.cat(path) == b"".join(pieces)
    info = fs.store.head(bucket, "pieces")
    assert (info.content_type, info.metadata, info.tag_count) == ("text/plain", {"a": "b"}, 1)
    with pytest.raises(ValueError, match="closed"):
        file.write(b"x")


def test_a_block_that_raises_leaves_what_was_there(fs: ObjectFileSystem, bucket: str) -> None:
    fs.pipe(f"{bucket}/old", b"old")
    for name in ("old", "new"):
        with pytest.raises(ZeroDivisionError), fs.open(f"{bucket}/{name}", "wb") as file:
            file.write(b"x" * 3_000_000)
            raise ZeroDivisionError
    assert fs.cat(f"{bucket}/old") == b"old"
    assert below(bucket, fs.find(bucket)) == ["old"]


def test_text_and_compressed_files_are_discarded_if_their_block_raises(
    fs: ObjectFileSystem, bucket: str
) -> None:
    path = f"{bucket}/old"
    fs.pipe(path, b"old")
    for mode, options in (("w", {}), ("wb", {"compression": "gzip"}), ("wt", {"compression": "gzip"})):
        is_text = "b" not in mode
        with (
            pytest.warns(RuntimeWarning, match="is discarded") if is_text else contextlib.nullcontext(),
            pytest.raises(ZeroDivisionError),
            fs.open(path, mode, **options) as file,
        ):
            file.write("half" if is_text else b"half")
            raise ZeroDivisionError
        file = fs.open(path, mode, **options)
        file.write("never closed" if is_text else b"never closed")
        del file
        gc.collect()
        assert fs.cat(path) == b"old", (mode, options)
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        with fs.open(path, "w") as file:
            file.write("written by the handler")
    assert fs.cat(path) == b"written by the handler"
    file = fs.open(path, "wb")
    file.write(b"never closed")
    del file
    gc.collect()
    assert fs.cat(path) == b"written by the handler"


@pytest.mark.parametrize("compression", sorted(filter(None, available_compressions())))
def test_compressed_files_are_written_and_read(fs: ObjectFileSystem, bucket: str, compression: str) -> None:
    path = f"{bucket}/compressed"
    with fs.open(path, "wb", compression=compression) as file:
        assert file.write(CONTENT) == len(CONTENT) == file.tell()
        assert not fs.exists(path)
    assert fs.cat(path) != CONTENT
    with fs.open(path, compression=compression) as file:
        assert file.read() == CONTENT
    if compression == "zip":
        with pytest.raises(NotImplementedError):
            fs.open(path, "ab", compression=compression)
    else:
        with fs.open(path, "at", compression=compression, encoding="utf-8") as file:
            file.write("größer")
        with fs.open(path, compression=compression) as file:
            assert file.read() == CONTENT + "größer".encode()
    with pytest.raises(FileExistsError):
        fs.open(path, "xb", compression=compression)
    named = f"{bucket}/lines.gz"
    fs.write_text(named, "text", compression="infer")
    assert fs.cat(named)[:2] == b"\x1f\x8b" and fs.read_text(named, compression="infer") == "text"


class Local:
    """A local variable of a function, to find out when the function's frame is freed."""


@pytest.mark.parametrize("is_in_transaction", [False, True])
def test_a_file_frees_the_frame_that_opened_it(
    fs: ObjectFileSystem, bucket: str, is_in_transaction: bool
) -> None:
    def write_missing(path: str) -> weakref.ref[Local]:
        local = Local()
        try:
            fs.info(path)
        except FileNotFoundError:
            with fs.open(path, "wb") as file:
                file.write(b"content")
        return weakref.ref(local)

    gc.collect()
    gc.disable()
    try:
        with fs.transaction if is_in_transaction else contextlib.nullcontext():
            written = write_missing(f"{bucket}/key")
        assert written() is None
    finally:
        gc.enable()
    assert fs.cat(f"{bucket}/key") == b"content"


def test_a_transaction_publishes_only_files_that_were_closed(fs: ObjectFileSystem, bucket: str) -> None:
    for mode, compression, data in (("wb", None, b"a"), ("w", None, "a"), ("wb", "gzip", b"a")):
        with pytest.raises(InvalidArgumentError, match="before it was closed"), fs.transaction:
            open_one = fs.open(f"{bucket}/open", mode, compression=compression)
            open_one.write(data)
        assert fs.find(bucket) == []
        with fs.transaction:
            with fs.open(f"{bucket}/closed", mode, compression=compression) as file:
                file.write(data)
            assert fs.find(bucket) == []
        assert fs.open(f"{bucket}/closed", compression=compression).read() == b"a"
        fs.rm(f"{bucket}/closed")
        with contextlib.suppress(ValueError):
            open_one.close()
    assert fs.find(bucket) == []


def complete_as_before_2026_9(transaction: Transaction, commit: bool = True) -> None:
    """Ends a transaction as fsspec 2026.7 does."""
    while transaction.files:
        file = transaction.files.popleft()
        if commit:
            file.commit()
        else:
            file.discard()
    transaction.fs._intrans = False
    transaction.fs._transaction = None
    transaction.fs = None


def test_writes_after_a_failed_transaction_are_published(
    fs: ObjectFileSystem, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Transaction, "complete", complete_as_before_2026_9)
    with pytest.raises(InvalidArgumentError, match="before it was closed"), fs.transaction:
        fs.pipe(f"{bucket}/before", b"published")
        fs.open(f"{bucket}/forgotten", "wb").write(b"never closed")
        fs.pipe(f"{bucket}/behind", b"discarded")
        with fs.open(f"{bucket}/before", "ab") as file:
            file.write(b" and appended")
    with fs.open(f"{bucket}/later", "wb") as file:
        file.write(b"important")
    fs.pipe(f"{bucket}/piped", b"important too")
    fs.start_transaction()
    fs.open(f"{bucket}/forgotten", "wb")
    with pytest.raises(InvalidArgumentError, match="before it was closed"):
        fs.end_transaction()
    fs.pipe(f"{bucket}/last", b"")
    assert below(bucket, fs.find(bucket)) == ["before", "last", "later", "piped"]
    assert fs.cat(f"{bucket}/before") == b"published"


def test_a_pickled_file_reads_the_version_that_was_opened(fs: ObjectFileSystem, bucket: str) -> None:
    path = f"{bucket}/a"
    fs.pipe(path, b"0123456789")
    file = fs.open(path, cache_type="none")
    file.read(3)
    pickled = pickle.dumps(file)
    assert pickle.loads(pickled).read() == b"3456789"
    fs.pipe(path, b"abcdefghij")
    with pytest.raises(PreconditionFailedError):
        pickle.loads(pickled).read()


def test_a_move_to_the_same_place_keeps_the_object(fs: ObjectFileSystem, bucket: str) -> None:
    fs.pipe(f"{bucket}/key", b"abc")
    fs.mv(f"/{bucket}/key", f"{bucket}/key")
    fs.mv(fs.unstrip_protocol(f"{bucket}/key"), f"{bucket}/key")
    assert fs.cat(f"{bucket}/key") == b"abc"
    fs.mv(f"{bucket}/key", f"{bucket}/moved")
    assert below(bucket, fs.find(bucket)) == ["moved"]


@pytest.mark.parametrize(
    ("source", "target", "options"),
    [
        ("dir/b", "dir", {}),
        ("dir/b", "dir/", {}),
        ("dir/*", "dir", {"recursive": True}),
        ("dir", "", {"recursive": True}),
        ("dir/", "dir", {"recursive": True}),
        ("a", "", {}),
        (["dir/b", "dir/c.txt"], "dir/", {}),
        (["dir/b"], ["dir/b"], {}),
    ],
)
def test_a_move_into_the_directory_that_has_it_keeps_everything(
    fs: ObjectFileSystem,
    tree: str,
    source: str | list[str],
    target: str | list[str],
    options: dict[str, bool],
) -> None:
    def full(path: str | list[str]) -> str | list[str]:
        return [f"{tree}/{each}" for each in path] if isinstance(path, list) else f"{tree}/{path}"

    before = contents(fs, tree)
    fs.mv(full(source), full(target), **options)
    assert contents(fs, tree) == before


def test_a_move_or_copy_that_would_lose_an_object_is_refused(fs: ObjectFileSystem, tree: str) -> None:
    before = contents(fs, tree)
    a, b, c = (f"{tree}/{name}" for name in ("a", "dir/b", "dir/c.txt"))
    for call in (fs.mv, fs.cp):
        for sources, targets in (([a, b], [b, a]), ([a, b], [c, c]), ([a, b], [f"{tree}/new"])):
            with pytest.raises(InvalidArgumentError):
                call(sources, targets)
    for target in ("dir/deep", "dir/new", "dir/deep/new"):
        with pytest.raises(InvalidArgumentError, match="subdirectory"):
            fs.mv(f"{tree}/dir", f"{tree}/{target}", recursive=True)
    with pytest.raises(IsADirectoryError):
        fs.mv(f"{tree}/dir", f"{tree}/new")
    fs.mv(f"{tree}/mark*", f"{tree}/new")
    assert contents(fs, tree) == before


def test_a_move_removes_only_what_it_copied(
    fs: ObjectFileSystem, tree: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs.mv(f"{tree}/dir", f"{tree}/new", recursive=True, maxdepth=1)
    assert below(tree, fs.find(tree)) == ["a", "dir/deep/d.txt", "dirt", "new/b", "new/c.txt"]
    before = contents(fs, tree)
    with pytest.raises(FileNotFoundError):
        fs.mv([f"{tree}/a", f"{tree}/new/b"], ["no-such-bucket-here/a", f"{tree}/b"])
    with pytest.raises(FileNotFoundError):
        fs.mv([f"{tree}/a", f"{tree}/missing"], [f"{tree}/a2", f"{tree}/b2"])
    assert contents(fs, tree) == before | {"a2": b"a"}
    copied = type(fs)._copied

    def replaced_meanwhile(self: ObjectFileSystem, path1: str, path2: str) -> tuple[str, str, str] | None:
        done = copied(self, path1, path2)
        if path1.endswith("/a"):
            fs.pipe_file(path1, b"newer")
        return done

    monkeypatch.setattr(type(fs), "_copied", replaced_meanwhile)
    with pytest.raises(PreconditionFailedError):
        fs.mv([f"{tree}/a", f"{tree}/dirt"], [f"{tree}/a3", f"{tree}/dirt3"])
    assert fs.cat(f"{tree}/a") == b"newer" and fs.cat(f"{tree}/a3") == b"a"
    assert not fs.exists(f"{tree}/dirt") and fs.cat(f"{tree}/dirt3") == b"dirt"


def test_moves_and_copies_keep_marked_directories(fs: ObjectFileSystem, tree: str) -> None:
    fs.cp(f"{tree}/marked", f"{tree}/copy", recursive=True)
    fs.mv(f"{tree}/marked", f"{tree}/moved", recursive=True)
    assert [key for key in contents(fs, tree) if key.endswith("/")] == ["copy/", "moved/"]
    other = f"{tree}-other"
    with pytest.raises(FileNotFoundError):
        fs.cp(f"{tree}/dir", f"{other}/dir", recursive=True)
    fs.mkdir(other)
    before = contents(fs, tree)
    fs.cp(f"{tree}/dir/", other, recursive=True)
    assert list(contents(fs, other)) == ["b", "c.txt", "deep/d.txt"]
    fs.mv(other, f"{tree}/{other}/", recursive=True)
    assert not fs.exists(other)
    assert len(contents(fs, tree)) == len(before) + 3


def test_a_forked_child_leaves_the_object_to_its_parent(fs: ObjectFileSystem, bucket: str) -> None:
    path = f"{bucket}/parents"
    file = fs.open(path, "wb")
    file.write(CONTENT * 60)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with pytest.raises(InvalidArgumentError, match="forked"):
                file.write(CONTENT * 60)
            del file
            gc.collect()
            status = 1 if fs.exists(path) else 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    file.write(b"end")
    file.close()
    assert fs.cat(path) == CONTENT * 60 + b"end"


def test_exclusive_creation_has_one_winner(fs: ObjectFileSystem, bucket: str) -> None:
    path = f"{bucket}/once"
    first, second = fs.open(path, "xb"), fs.open(path, "xb")
    first.write(b"first")
    second.write(b"second")
    first.close()
    with pytest.raises(FileExistsError) as caught:
        second.close()
    assert isinstance(caught.value, FordwayError) and second.closed
    for create in (lambda: fs.open(path, "xb"), lambda: fs.pipe_file(path, b"third", mode="create")):
        with pytest.raises(FileExistsError):
            create()
    with pytest.raises(NotImplementedError):
        fs.touch(path, truncate=False)
    assert fs.cat(path) == b"first"
    fs.touch(path)
    assert fs.size(path) == 0


def test_conditions_of_a_write_are_told_apart(fs: ObjectFileSystem, bucket: str) -> None:
    path = f"{bucket}/state"
    fs.pipe_file(path, b"1")
    etag = fs.info(path)["ETag"]
    fs.pipe_file(path, b"2", if_match=etag)
    for write in (
        lambda: fs.pipe_file(path, b"3", if_match=etag),
        lambda: fs.pipe_file(path, b"3", if_none_match="*"),
    ):
        with pytest.raises(PreconditionFailedError) as caught:
            write()
        assert not isinstance(caught.value, FileExistsError)
    with pytest.raises(PreconditionFailedError), fs.open(path, "wb", if_match=etag) as file:
        file.write(b"3")
    with pytest.raises(FileExistsError) as existing:
        fs.pipe_file(path, b"3", mode="create", if_none_match="*")
    assert existing.value.filename == f"fordway://{path}"
    assert fs.cat(path) == b"2"


def test_appending_keeps_what_was_there_and_loses_nothing(fs: ObjectFileSystem, bucket: str) -> None:
    path = f"{bucket}/log"
    with fs.open(path, "ab", content_type="text/plain", headers={"cache-control": "no-cache"}) as file:
        file.write(b"one\n")
    with fs.open(path, "ab") as file:
        assert file.tell() == 4
        file.write(b"two\n")
    assert fs.cat(path) == b"one\ntwo\n"
    assert fs.info(path)["ContentType"] == "text/plain"
    assert fs.store.head(bucket, "log").headers == {"cache-control": "no-cache"}
    late = fs.open(path, "ab")
    late.write(b"late\n")
    fs.pipe(path, b"other\n")
    with pytest.raises(PreconditionFailedError):
        late.close()
    assert fs.cat(path) == b"other\n"
    with pytest.raises(NotImplementedError, match="rb, wb, xb or ab"):
        fs.open(path, "r+b")


def test_transactions(fs: ObjectFileSystem, bucket: str, tmp_path: Path) -> None:
    (tmp_path / "local").write_bytes(b"from a file")
    with fs.transaction:
        fs.pipe(f"{bucket}/one", b"1")
        with fs.open(f"{bucket}/two", "wb") as file:
            file.write(b"2")
        fs.put(str(tmp_path / "local"), f"{bucket}/three")
        assert fs.find(bucket) == []
    assert below(bucket, fs.find(bucket)) == ["one", "three", "two"]
    assert fs.cat(f"{bucket}/three") == b"from a file"
    with pytest.raises(ZeroDivisionError), fs.transaction:
        fs.pipe(f"{bucket}/one", b"other")
        fs.pipe(f"{bucket}/four", b"4")
        raise ZeroDivisionError
    assert below(bucket, fs.find(bucket)) == ["one", "three", "two"]
    assert fs.cat(f"{bucket}/one") == b"1"


def test_files_and_trees_are_copied_both_ways(fs: ObjectFileSystem, bucket: str, tmp_path: Path) -> None:
    (tmp_path / "from" / "deep").mkdir(parents=True)
    (tmp_path / "from" / "large.json").write_bytes(CONTENT * 40)
    (tmp_path / "from" / "deep" / "empty").write_bytes(b"")
    callback = Callback()
    fs.put_file(tmp_path / "from" / "large.json", f"{bucket}/large.json", callback=callback)
    assert (callback.size, callback.value) == (len(CONTENT) * 40, len(CONTENT) * 40)
    assert fs.info(f"{bucket}/large.json")["ContentType"] == "application/json"
    fs.put(f"{tmp_path}/from", f"{bucket}/tree", recursive=True)
    fs.cp(f"{bucket}/tree", f"{bucket}/copy", recursive=True)
    fs.mv(f"{bucket}/copy/large.json", f"{bucket}/moved.json")
    assert below(bucket, fs.find(bucket)) == [
        *("copy/deep/empty", "large.json", "moved.json"),
        *("tree/deep/empty", "tree/large.json"),
    ]
    callback = Callback()
    fs.get_file(f"{bucket}/moved.json", tmp_path / "back" / "moved.json", callback=callback)
    assert callback.value == len(CONTENT) * 40
    assert (tmp_path / "back" / "moved.json").read_bytes() == CONTENT * 40
    into = io.BytesIO()
    fs.get_file(f"{bucket}/moved.json", into)
    assert into.getvalue() == CONTENT * 40
    fs.get(f"{bucket}/tree", f"{tmp_path}/again", recursive=True)
    assert (tmp_path / "again" / "deep" / "empty").read_bytes() == b""
    with pytest.raises(FileExistsError):
        fs.put_file(tmp_path / "from" / "large.json", f"{bucket}/large.json", mode="create")


class FailingCallback(Callback):
    """A callback that raises an exception after the first piece."""

    def relative_update(self, inc: int = 1) -> None:
        raise ZeroDivisionError(inc)


def test_a_copy_that_fails_leaves_the_local_file(fs: ObjectFileSystem, bucket: str, tmp_path: Path) -> None:
    fs.pipe(f"{bucket}/large", CONTENT * 40)
    target, link, new = tmp_path / "target", tmp_path / "link", tmp_path / ("é" * 127)
    target.write_bytes(b"old")
    target.chmod(0o640)
    link.symlink_to(target)
    for local in (target, link, new):
        with pytest.raises(ZeroDivisionError):
            fs.get_file(f"{bucket}/large", local, callback=FailingCallback())
    assert target.read_bytes() == b"old"
    assert sorted(tmp_path.iterdir()) == [link, target]
    fs.get_file(f"{bucket}/large", link)
    assert link.is_symlink()
    assert target.read_bytes() == CONTENT * 40
    assert target.stat().st_mode & 0o777 == 0o640
    fs.get_file(f"{bucket}/large", new)
    assert new.read_bytes() == CONTENT * 40
    fs.get_file(f"{bucket}/large", "/dev/null")
    assert not Path("/dev/null").is_file()


def test_removing(fs: ObjectFileSystem, tree: str) -> None:
    with pytest.raises(FileNotFoundError):
        fs.rm(f"{tree}/missing")
    with pytest.raises(IsADirectoryError):
        fs.rm(f"{tree}/dir")
    fs.rm([f"{tree}/a", f"{tree}/missing"])
    fs.rm(f"{tree}/dir/*.txt")
    assert below(tree, fs.find(tree)) == ["dir/b", "dir/deep/d.txt", "dirt"]
    fs.rm(f"{tree}/dir", recursive=True, maxdepth=1)
    assert below(tree, fs.find(tree)) == ["dir/deep/d.txt", "dirt"]
    fs.rm(f"{tree}/dir", recursive=True)
    fs.rm_file(f"{tree}/dirt")
    assert fs.ls(tree, detail=False) == [f"{tree}/marked"]
    fs.rm(f"{tree}/marked", recursive=True)
    assert fs.ls(tree) == []


def test_many_objects_are_removed(fs: ObjectFileSystem, bucket: str) -> None:
    for number in range(1200):
        fs.store.put(bucket, f"many/{number}", b"")
    fs.rm(f"{bucket}/many", recursive=True)
    assert fs.find(bucket) == []


def test_buckets_are_directories(fs: ObjectFileSystem, bucket: str) -> None:
    other = f"{bucket}-other"
    with pytest.raises(FileExistsError):
        fs.mkdir(bucket)
    fs.makedirs(bucket, exist_ok=True)
    with pytest.raises(FileNotFoundError):
        fs.mkdir(f"{other}/dir", create_parents=False)
    fs.makedirs(f"{other}/dir/deep")
    assert fs.isdir(other) and not fs.exists(f"{other}/dir")
    fs.pipe(f"{other}/dir/a", b"")
    for full in (other, f"{other}/dir"):
        with pytest.raises(OSError, match="empty"):
            fs.rmdir(full)
    with pytest.raises(FileNotFoundError):
        fs.rmdir(f"{other}/none")
    fs.rm(f"{other}/dir/a")
    fs.store.put(other, "dir/", b"")
    fs.rmdir(f"{other}/dir")
    fs.rmdir(other)
    assert not fs.exists(other)


def test_pandas_reads_and_writes(place: str, fs: ObjectFileSystem, bucket: str) -> None:
    frame = pandas.DataFrame({"x": range(5000), "y": [f"ü{number}" for number in range(5000)]})
    options = {"endpoint": place}
    for name, write, read in (
        ("frame.csv", lambda *a, **o: frame.to_csv(*a, index=False, **o), pandas.read_csv),
        ("frame.csv.gz", lambda *a, **o: frame.to_csv(*a, index=False, **o), pandas.read_csv),
        ("frame.parquet", frame.to_parquet, pandas.read_parquet),
    ):
        write(f"fordway://{bucket}/{name}", storage_options=options)
        assert read(f"fordway://{bucket}/{name}", storage_options=options).equals(frame), name
    assert len(fs.find(bucket)) == 3


def test_s3_addresses_can_be_taken_over(place: str, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for protocol in ("s3", "s3a"):  # monkeypatch restores the registry after the test
        monkeypatch.setitem(importlib.import_module("fsspec.registry")._registry, protocol, None)
    register_s3()
    with fsspec.open(f"s3://{bucket}/a", "wb", endpoint_url=place) as file:
        file.write(b"abc")
    files, path = fsspec.core.url_to_fs(f"s3a://{bucket}/a", endpoint=place)
    assert isinstance(files, S3ObjectFileSystem) and path == f"{bucket}/a"
    assert files.cat(path) == b"abc"
    assert files.unstrip_protocol(path) == f"s3://{bucket}/a"


def test_a_pickled_file_system_reaches_the_same(fs: ObjectFileSystem, bucket: str) -> None:
    fs.pipe(f"{bucket}/a", b"abc")
    assert pickle.loads(pickle.dumps(fs)).cat(f"{bucket}/a") == b"abc"


def test_unknown_options_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="'anon'"):
        ObjectFileSystem(endpoint=str(tmp_path), anon=True)
    files = ObjectFileSystem(endpoint=str(tmp_path))
    files.mkdir("bucket")
    with pytest.raises(TypeError, match="acl"):
        files.open("bucket/a", "wb", acl="public-read")


def test_a_server_that_is_not_there_is_not_an_answer(tmp_path: Path) -> None:
    files = ObjectFileSystem(endpoint=f"unix://{tmp_path}/no-socket")
    with pytest.raises(UnavailableError):
        files.exists("bucket/key")


@pytest.mark.parametrize("kind", [ObjectFileSystem, S3ObjectFileSystem])
def test_another_endpoint_in_the_environment_is_another_instance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[ObjectFileSystem]
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    for name in ("one", "two"):
        (tmp_path / name / "bucket").mkdir(parents=True)
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"file://{tmp_path}/{name}")
        files = kind()
        assert kind() is files
        files.pipe("bucket/key", name.encode())
    assert files.cat("bucket/key") == b"two"
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"file://{tmp_path}/one")
    assert kind().cat("bucket/key") == b"one"


def test_coroutines_are_there_if_they_are_asked_for(place: str, bucket: str) -> None:
    async def work() -> None:
        files = fsspec.filesystem("fordway", endpoint=place, asynchronous=True)
        assert files.asynchronous and files.async_impl
        await files._pipe_file(f"{bucket}/dir/a", b"abc")
        await asyncio.gather(*(files._pipe_file(f"{bucket}/{number}", b"") for number in range(5)))
        assert await files._cat_file(f"{bucket}/dir/a", start=1) == b"bc"
        assert await files._cat_ranges([f"{bucket}/dir/a"] * 2, [0, 1], [1, 2]) == [b"a", b"b"]
        assert (await files._info(f"{bucket}/dir/a"))["size"] == 3
        assert len(await files._find(bucket)) == 6
        assert await files._exists(f"{bucket}/0")
        await files._rm(f"{bucket}/dir", recursive=True)
        assert not await files._exists(f"{bucket}/dir/a")
        with pytest.raises(FileNotFoundError):
            await files._cat_file(f"{bucket}/dir/a")
        assert files.cat(f"{bucket}/0") == b""
        assert [step async for step in files._walk(bucket)] == [*files.walk(bucket)] != []
        with pytest.raises(FileNotFoundError):
            async for _ in files._walk(f"{bucket}/nothing", on_error="raise"):
                pass
        for missing in ("_nothing", "nothing"):
            assert not hasattr(files, missing)

    asyncio.run(work())
    assert not hasattr(fsspec.filesystem("fordway", endpoint=place), "_cat_file")


def test_zarr_stores_arrays(place: str, bucket: str) -> None:
    zarr = pytest.importorskip("zarr")
    options = {"endpoint": place}
    made = zarr.create_array(
        f"fordway://{bucket}/array", shape=(100,), chunks=(10,), dtype="i4", storage_options=options
    )
    made[:] = range(100)
    again = zarr.open_array(f"fordway://{bucket}/array", mode="r", storage_options=options)
    assert again[:].tolist() == list(range(100))


RELEASED_LATE = """
import atexit, threading, time, weakref

from pyarrow.fs import FSSpecHandler

wrappers = []
atexit.register(lambda: print("released" if wrappers[0]() is None else "held"))
from fordway.fsspec import ObjectFileSystem

def use(wrapper):
    time.sleep({seconds})

wrapper = FSSpecHandler(ObjectFileSystem(endpoint="{root}"))
wrappers.append(weakref.ref(wrapper))
threading.Thread(target=use, args=[wrapper], daemon=True).start()
del wrapper
"""


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python 3.14 stops threads without an abort")
@pytest.mark.parametrize(("seconds", "expected"), [(0.1, "released"), (60, "held")])
def test_a_process_waits_at_its_end_until_pyarrow_has_released_it(
    tmp_path: Path, seconds: float, expected: str
) -> None:
    words = [sys.executable, "-c", RELEASED_LATE.format(seconds=seconds, root=tmp_path)]
    ran = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    assert ran.stdout == f"{expected}\n"
