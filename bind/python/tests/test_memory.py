"""Tests reads into buffers, reads of many ranges, and reads that return newly allocated memory."""

from pathlib import Path

import pytest

import fordway
from fordway import errors

BUCKET = "bucket"
DATA = bytes(i * 7 % 251 for i in range(300_000))


@pytest.fixture
def store(tmp_path: Path) -> fordway.Store:
    opened = fordway.open(f"file://{tmp_path}")
    opened.create_bucket(BUCKET)
    opened.put(BUCKET, "key", DATA)
    return opened


def test_a_buffer_is_filled(store: fordway.Store) -> None:
    buffer = bytearray(len(DATA) + 5)
    assert store.get_into(BUCKET, "key", buffer) == len(DATA)
    assert buffer == DATA + b"\0" * 5
    piece = bytearray(1000)
    assert store.get_into(BUCKET, "key", memoryview(piece)[100:], start=299_500) == 500
    assert piece == b"\0" * 100 + DATA[299_500:] + b"\0" * 400


def test_what_does_not_fit_or_cannot_be_written_is_refused(store: fordway.Store) -> None:
    with pytest.raises(ValueError, match="300000 bytes do not fit into a buffer of 10"):
        store.get_into(BUCKET, "key", bytearray(10))
    with pytest.raises(BufferError):
        store.get_into(BUCKET, "key", bytes(300_000))
    with pytest.raises(BufferError):
        store.get_into(BUCKET, "key", memoryview(bytearray(600_000))[::2])


def test_many_ranges(store: fordway.Store) -> None:
    ranges = [(0, 1), (299_999, 10), (5, 100_000), (5, 100_000)]
    assert store.get_ranges(BUCKET, "key", ranges) == [
        DATA[start : start + length] for start, length in ranges
    ]
    assert store.get_ranges(BUCKET, "key", []) == []
    with pytest.raises(errors.InvalidArgumentError):
        store.get_ranges(BUCKET, "key", [(0, 1), (300_000, 1)])


def test_mapped_memory_stays_what_it_was(store: fordway.Store) -> None:
    mapped = store.map(BUCKET, "key")
    view = memoryview(store.map(BUCKET, "key", start=5000, length=7))
    store.put(BUCKET, "key", b"new")
    assert len(mapped) == len(DATA)
    assert memoryview(mapped) == DATA
    assert bytes(view) == DATA[5000:5007]
    assert view.readonly
    assert bytes(store.map(BUCKET, "key")) == b"new"
    store.put(BUCKET, "empty", b"")
    assert bytes(store.map(BUCKET, "empty")) == b""
