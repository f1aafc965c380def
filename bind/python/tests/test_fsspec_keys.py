"""Tests fsspec's access to objects whose keys are unusual paths, on every lane."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from fsspec_lanes import below, bucket, contents, fs, place

from fordway.errors import InvalidArgumentError

if TYPE_CHECKING:
    from pathlib import Path

    from fordway.fsspec import ObjectFileSystem

__all__ = ["bucket", "fs", "place"]

ODD_KEYS = {"a//b": b"1", "d": b"12", "d/": b"123", "d//": b"1234", "d/e//": b"12345", "d/f": b"123456"}
"""Keys with empty segments, and an object whose key is also the name of a directory."""


def test_names_may_be_empty(fs: ObjectFileSystem, bucket: str) -> None:
    for key, content in ODD_KEYS.items():
        fs.store.put(bucket, key, content)
    fs.store.put(bucket, "/x", b"")
    walked = {root: (dirs, files) for root, dirs, files in fs.walk(bucket)}
    assert walked == {
        bucket: (["", "a", "d"], ["d"]),
        f"{bucket}/": ([], ["x"]),
        f"{bucket}/a": ([""], []),
        f"{bucket}/a/": ([], ["b"]),
        f"{bucket}/d": (["", "e"], ["f"]),
        f"{bucket}/d/": ([], []),
        f"{bucket}/d/e": ([""], []),
        f"{bucket}/d/e/": ([], []),
    }
    assert fs.find(bucket, detail=True) == fs.find(bucket, detail=True, maxdepth=9)
    assert below(bucket, fs.find(bucket)) == ["/x", "a//b", "d", "d/f"]
    assert fs.find(bucket, withdirs=True) == fs.find(bucket, withdirs=True, maxdepth=9)
    assert fs.du(bucket) == sum(map(len, ODD_KEYS.values()))
    pruned = []
    for root, dirs, _ in fs.walk(bucket):
        pruned.append(root)
        dirs[:] = [name for name in dirs if name != "d"]
    assert pruned == [bucket, f"{bucket}/", f"{bucket}/a", f"{bucket}/a/"]


@pytest.mark.parametrize("source", ["", "/*"])
def test_copies_and_moves_omit_no_key(fs: ObjectFileSystem, bucket: str, source: str) -> None:
    for key, content in ODD_KEYS.items():
        fs.store.put(bucket, f"from/{key}", content)
    copied = {f"to/{key}": content for key, content in ODD_KEYS.items()}
    original = {f"from/{key}": content for key, content in ODD_KEYS.items()}
    fs.cp(f"{bucket}/from{source}", f"{bucket}/to", recursive=True)
    assert contents(fs, bucket) == original | copied
    fs.rm(f"{bucket}/to", recursive=True)
    fs.mv(f"{bucket}/from{source}", f"{bucket}/to", recursive=True)
    assert contents(fs, bucket) == copied


def test_a_bucket_is_moved_with_all_its_keys(fs: ObjectFileSystem, bucket: str) -> None:
    fs.mkdir(f"{bucket}-from")
    for key, content in ODD_KEYS.items():
        fs.store.put(f"{bucket}-from", key, content)
    fs.mv(f"{bucket}-from", f"{bucket}/to", recursive=True)
    assert contents(fs, bucket) == {f"to/{key}": content for key, content in ODD_KEYS.items()}
    assert not fs.exists(f"{bucket}-from")


def test_a_download_does_not_leave_its_directory(
    fs: ObjectFileSystem, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Before version 2026.9, fsspec does not check the paths.
    monkeypatch.setattr("fsspec.spec.check_contained", lambda *_: None, raising=False)
    into = tmp_path / "deep" / "into"
    into.mkdir(parents=True)
    for key in ("in/../../outside", "plain/file"):
        fs.pipe(f"{bucket}/{key}", b"content")
    for source in (f"{bucket}/in", f"{bucket}/in/", f"{bucket}/in/**", bucket):
        with pytest.raises(InvalidArgumentError, match=r"would be copied to .*, outside of"):
            fs.get(source, f"{into}/", recursive=True)
    fs.pipe(f"{bucket}/..", b"content")
    with pytest.raises(InvalidArgumentError, match="outside of"):
        fs.get([f"{bucket}/plain/file", f"{bucket}/.."], into)
    assert [*tmp_path.rglob("*")] == [into.parent, into]
    fs.get(f"{bucket}/in/../../outside", f"{into}/")
    fs.get([f"{bucket}/in/../../outside"], [f"{into}/../named"])
    fs.get(f"{bucket}/plain", into, recursive=True)
    assert sorted(str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*")) == [
        "deep",
        "deep/into",
        "deep/into/outside",
        "deep/into/plain",
        "deep/into/plain/file",
        "deep/named",
    ]


def test_a_listing_writes_into_no_private_area(fs: ObjectFileSystem, bucket: str, tmp_path: Path) -> None:
    for key in ("in/.fordway/document-policy", "in/file"):
        fs.store.put(bucket, key, b"content")
    for source in (f"{bucket}/in", f"{bucket}/in/", f"{bucket}/in/**", bucket):
        with pytest.raises(InvalidArgumentError, match="the private area of a bucket"):
            fs.get(source, f"{tmp_path}/", recursive=True)
    assert not [*tmp_path.iterdir()]
    fs.get(f"{bucket}/in/.fordway/document-policy", f"{tmp_path}/named")
    fs.get(f"{bucket}/in/file", f"{tmp_path}/.fordway/file")
    assert sorted(each.name for each in tmp_path.iterdir()) == [".fordway", "named"]


def test_a_download_overwrites_no_other_object(fs: ObjectFileSystem, bucket: str, tmp_path: Path) -> None:
    for key in ("a/b/c", "a//b/d", "a/e/"):
        fs.store.put(bucket, key, key.encode())
    fs.get(bucket, f"{tmp_path}/first", recursive=True)
    assert (tmp_path / "first/a/b/c").read_bytes() == b"a/b/c"
    assert (tmp_path / "first/a/b/d").read_bytes() == b"a//b/d"
    fs.store.put(bucket, "a//b/c", b"")
    with pytest.raises(InvalidArgumentError, match=r"would both be copied to .*/a/b/c"):
        fs.get(bucket, f"{tmp_path}/second", recursive=True)
    assert not (tmp_path / "second").exists()
