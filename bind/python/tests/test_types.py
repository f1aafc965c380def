"""Tests the type stubs with programs checked by `mypy --strict`."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

RIGHT = """
import asyncio
import io
import mmap
from array import array
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

import fordway
import fordway.aio
from fordway.errors import FordwayError


def use(store: fordway.Store, mapped: mmap.mmap) -> None:
    numbers = np.zeros(10, dtype=np.float64)
    for data in (b"a", bytearray(b"a"), memoryview(b"a"), array("d", [1.0]), mapped, numbers):
        store.put("bucket", "key", data)
    store.put("bucket", "key", np.zeros((2, 3), dtype=np.int32), metadata={"a": "b"})
    read: int = store.get_into("bucket", "key", numbers)
    with store.writer("bucket", "key", size=read) as writer:
        writer.write(numbers)
    content, info = store.get_with_info("bucket", "key", start=0)
    described: tuple[bytes, str] = content, info.etag
    parts: list[bytes] = store.get_ranges("bucket", "key", [(0, 1)])
    failed: Sequence[FordwayError | None] = store.delete_many("bucket", ["a", "b"])
    names: list[str] = [bucket.name for bucket in store.list_buckets()]
    for entry in store.list("bucket", delimiter="/"):
        names.append(entry.prefix if isinstance(entry, fordway.CommonPrefix) else entry.key)
    np.frombuffer(memoryview(store.map("bucket", "key")), dtype=np.uint8)
    with fordway.open() as other:
        other.copy("bucket", "key", "bucket", "copy", if_none_match="*")
    with Path("file").open("rb") as file:
        version: str | None = store.put_with_info("bucket", "key", file, checksum="CRC32").version
    store.put("bucket", "key", [b"a", bytearray(b"b")])
    etags: list[str | FordwayError] = store.put_many("bucket", [("a", b"a"), ("b", numbers)])
    contents: list[bytes | FordwayError] = store.get_many("bucket", ["a"])
    with io.BufferedReader(store.reader("bucket", "key", version=version)) as reader:
        line: bytes = reader.readline()
    with store.writer("bucket", "key") as raw, io.TextIOWrapper(io.BufferedWriter(raw)) as text:
        text.write("text")
    with store.upload("bucket", "key") as upload:
        upload.put_part(1, numbers)
        number: int = upload.parts()[0].number
    with store.stream("bucket", "key")[0] as stream:
        piece: bytes = stream.read(10)
    mapping: fordway.Mapped = store.map("bucket", "key")
    table: pa.Table = store.list("bucket").to_arrow()
    after: str | None = store.list_page("bucket", limit=10).next
    fordway.open(Path("data"))
    fordway.open("http://localhost:9000", timeout=1.5, retries=0)


async def use_async(store: fordway.aio.AsyncStore) -> bytes:
    etag: str = await store.put("bucket", "key", b"data", if_none_match="*")
    async for entry in store.list("bucket"):
        print(entry)
    async with await store.upload("bucket", "key", content_type="text/plain") as upload:
        sent: fordway.PutInfo = await upload.put_part(1, b"data")
        sizes: list[int] = [part.size for part in await upload.parts()]
        await asyncio.create_task(upload.put_part(number=2, data=b"data"))
    entries = store.list("bucket")
    await entries.aclose()
    task: asyncio.Task[bytes] = asyncio.create_task(store.get("bucket", "key"))
    async with asyncio.TaskGroup() as group:
        begun: asyncio.Task[fordway.aio.AsyncUpload] = group.create_task(store.upload("bucket", "key"))
    return await store.get("bucket", "key", if_match=etag)
"""

WRONG = """
import fordway.aio


def use(store: fordway.Store) -> None:
    store.put("bucket", "key", "text")
    store.put("bucket", "key", 5)
    store.get("bucket", "key", start="0")
    store.get("bucket", "key", offset=0)
    store.nothing()
    store.put("bucket", "key", open("file"))
    fordway.open(timeout="1")


async def use_async(store: fordway.aio.AsyncStore) -> None:
    await store.get("bucket", "key", start="0")
    await (await store.upload("bucket", "key")).put_part("1", b"data")
    await store.upload("bucket")
"""


def checked(program: str, place: Path) -> list[str]:
    file = place / "program.py"
    file.write_text(program)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(place / "cache"), str(file)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert ran.returncode in (0, 1), ran.stderr
    return [line for line in ran.stdout.splitlines() if ": error:" in line]


def test_programs_with_arrays_are_right(tmp_path: Path) -> None:
    assert checked(RIGHT, tmp_path) == []


def test_wrong_programs_are_told(tmp_path: Path) -> None:
    errors = checked(WRONG, tmp_path)
    assert [line.split(":")[1] for line in errors] == ["6", "7", "8", "9", "10", "11", "12", "16", "17", "18"]
