"""Runs Zarr's own tests of stores on every lane, and arrays whose chunks several processes write."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import pytest
import zarr
from gateways import KEYS, endpoint
from zarr.abc.store import RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import Buffer, cpu, default_buffer_prototype
from zarr.errors import ZarrUserWarning
from zarr.testing.store import StoreTests

import fordway
from fordway import aio
from fordway.errors import InvalidArgumentError, PreconditionFailedError
from fordway.zarr import ZarrStore

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module", params=["embedded", "node", "http"])
def where(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in KEYS.items():
            patch.setenv(name, value)
        with endpoint(request.param, tmp_path_factory.mktemp("zarr")) as opened:
            yield opened


BUCKETS = (f"zarr-{number}" for number in range(10_000))


@pytest.fixture
def bucket(where: str) -> str:
    name = next(BUCKETS)
    fordway.open(where).create_bucket(name)
    return name


class TestZarrStore(StoreTests[ZarrStore, cpu.Buffer]):
    store_cls = ZarrStore
    buffer_cls = cpu.Buffer

    @pytest.fixture
    def store_kwargs(self, where: str, bucket: str) -> dict[str, Any]:
        return {"bucket": bucket, "prefix": "a/prefix", "endpoint": where}

    async def set(self, store: ZarrStore, key: str, value: Buffer) -> None:
        fordway.open(store.endpoint).put(store.bucket, f"a/prefix/{key}", value.to_bytes())

    async def get(self, store: ZarrStore, key: str) -> Buffer:
        return self.buffer_cls.from_bytes(fordway.open(store.endpoint).get(store.bucket, f"a/prefix/{key}"))

    def test_store_repr(self, store: ZarrStore) -> None:
        assert repr(store) == f"ZarrStore({store.bucket!r}, 'a/prefix', endpoint={store.endpoint!r})"

    def test_store_supports_writes(self, store: ZarrStore) -> None:
        assert store.supports_writes

    def test_store_supports_listing(self, store: ZarrStore) -> None:
        assert store.supports_listing


class StoreBefore313(ABC):
    """What zarr before version 3.1.3 also requires of a store."""

    @property
    @abstractmethod
    def supports_partial_writes(self) -> bool: ...

    @abstractmethod
    async def set_partial_values(self, key_start_values: object) -> None: ...


def test_older_versions_of_zarr_accept_the_store(
    where: str, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("zarr.core.buffer.Buffer.as_buffer_like", raising=False)

    class StoreOfOlderZarr(ZarrStore, StoreBefore313):
        pass

    store = StoreOfOlderZarr(bucket, endpoint=where)
    assert not store.supports_partial_writes
    with pytest.raises(NotImplementedError):
        asyncio.run(store.set_partial_values([("key", 0, b"x")]))
    store.set_sync("key", cpu.Buffer.from_bytes(b"content"))
    assert fordway.open(where).get(bucket, "key") == b"content"


def test_an_array_is_what_was_written(where: str, bucket: str) -> None:
    values = numpy.arange(60_000).reshape(200, 300)
    group = zarr.create_group(ZarrStore(bucket, endpoint=where))
    array = group.create_array("values", shape=values.shape, chunks=(30, 70), dtype=values.dtype)
    array[:] = values
    opened = zarr.open_group(ZarrStore(bucket, endpoint=where, read_only=True), mode="r")
    assert list(opened) == ["values"]
    assert (opened["values"][:] == values).all()
    assert (opened["values"][17:190:3, 250:] == values[17:190:3, 250:]).all()
    chunks = [entry.key for entry in fordway.open(where).list(bucket, "values/c/")]
    assert len(chunks) == 7 * 5


WRITER = """
import sys, zarr
from fordway.zarr import ZarrStore
where, bucket, rank = sys.argv[1:]
array = zarr.open_array(ZarrStore(bucket, "shared", endpoint=where), mode="r+")
for row in range(int(rank), 40, 4):
    array[row] = row
"""


def test_several_processes_write_chunks(where: str, bucket: str) -> None:
    store = ZarrStore(bucket, "shared", endpoint=where)
    zarr.create_array(store, shape=(40, 1000), chunks=(1, 1000), dtype="int64", fill_value=-1)
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, where, bucket, str(rank)]) for rank in range(4)
    ]
    assert [writer.wait(120) for writer in writers] == [0] * 4
    array = zarr.open_array(store, mode="r")
    assert (array[:] == numpy.arange(40)[:, None]).all()


def test_exactly_one_creates_a_key(where: str, bucket: str) -> None:
    store = ZarrStore(bucket, endpoint=where)

    async def race() -> bytes:
        values = [cpu.Buffer.from_bytes(bytes([number])) for number in range(16)]
        await asyncio.gather(*(store.set_if_not_exists("key", value) for value in values))
        first = fordway.open(where).get(bucket, "key")
        await store.set_if_not_exists("key", cpu.Buffer.from_bytes(b"late"))
        return first

    assert asyncio.run(race()) == fordway.open(where).get(bucket, "key")


def test_a_missing_bucket_is_an_error(where: str, bucket: str) -> None:
    with pytest.raises(fordway.errors.NotFoundError):
        zarr.create_group(ZarrStore("nonesuch", endpoint=where))
    array = zarr.create_array(ZarrStore(bucket, endpoint=where), shape=(4,), chunks=(2,), dtype="int64")
    array[:] = 7
    store = fordway.open(where)
    store.delete_many(bucket, [entry.key for entry in store.list(bucket)])
    store.delete_bucket(bucket)
    # Otherwise, the chunks would have the fill value.
    with pytest.raises(fordway.errors.NotFoundError):
        array[:]


def test_markers_of_directories_are_no_members(where: str, bucket: str) -> None:
    group = zarr.create_group(ZarrStore(bucket, "a/group", endpoint=where))
    group.create_group("inner").create_array("values", shape=(2,), dtype="int8")
    store = fordway.open(where)
    for marker in ("a/group/", "a/group/inner/"):
        store.put(bucket, marker, b"")
    opened = zarr.open_group(ZarrStore(bucket, "a/group", endpoint=where), mode="r+")
    assert list(opened) == ["inner"]
    assert sorted(name for name, _ in opened.members(max_depth=None)) == ["inner", "inner/values"]
    with pytest.warns(ZarrUserWarning, match="not part in the Zarr format 3"):
        zarr.consolidate_metadata(opened.store)
    asyncio.run(opened.store.delete_dir(""))
    assert list(store.list(bucket)) == []


class RefusingStore:
    """Refuses calls as a server does."""

    def __init__(self, *kinds: str) -> None:
        self.kinds = list(kinds)

    def get(self, *_: object, **__: object) -> bytes:
        raise InvalidArgumentError("refused", self.kinds.pop(0))

    def put(self, *_: object, **__: object) -> str:
        if self.kinds:
            raise PreconditionFailedError("refused", self.kinds.pop(0))
        return "etag"


def test_a_refused_range_is_no_missing_chunk(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    store = ZarrStore("bucket", endpoint=tmp_path)
    prototype = default_buffer_prototype()
    asked = RangeByteRequest(5, 9)
    with pytest.raises(InvalidArgumentError):
        store._get(RefusingStore("InvalidArgument"), "key", prototype, asked)
    assert store._get(RefusingStore("InvalidRange"), "key", prototype, asked).to_bytes() == b""
    for empty in (RangeByteRequest(0, 0), SuffixByteRequest(0)):
        assert store.get_sync("key", byte_range=empty) is None
        store.set_sync("there", cpu.Buffer.from_bytes(b"x"))
        assert store.get_sync("there", byte_range=empty).to_bytes() == b""


def test_a_conflict_is_tried_again(tmp_path: Path) -> None:
    store = ZarrStore("bucket", endpoint=tmp_path)
    value = cpu.Buffer.from_bytes(b"x")

    def attempt(*kinds: str) -> list[str]:
        refusing = RefusingStore(*kinds)
        store.store = aio.AsyncStore(refusing)
        asyncio.run(store.set_if_not_exists("key", value))
        return refusing.kinds

    assert attempt("ConditionalConflict", "ConditionalConflict") == []
    assert attempt("ConditionalConflict", "PreconditionFailed", "never reached") == ["never reached"]
    with pytest.raises(PreconditionFailedError):
        attempt(*["ConditionalConflict"] * 20)


def test_a_relative_path_is_the_same_directory_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data/bucket").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    store = ZarrStore("bucket", endpoint=Path("data"))
    monkeypatch.chdir("/")
    pickle.loads(pickle.dumps(store)).set_sync("key", cpu.Buffer.from_bytes(b"x"))
    assert (tmp_path / "data/bucket/key").read_bytes() == b"x"
