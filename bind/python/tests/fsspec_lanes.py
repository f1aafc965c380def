"""File systems of fsspec on every lane, each with an empty bucket."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import fsspec
import pytest
from gateways import KEYS, LANES, endpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fordway.fsspec import ObjectFileSystem


@pytest.fixture(scope="module", params=LANES)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in KEYS.items():
            patch.setenv(name, value)
        with endpoint(request.param, tmp_path_factory.mktemp("lane")) as where:
            yield where


@pytest.fixture
def fs(place: str) -> ObjectFileSystem:
    return fsspec.filesystem("fordway", endpoint=place, skip_instance_cache=True)


@pytest.fixture
def bucket(fs: ObjectFileSystem) -> Iterator[str]:
    name = f"run-{uuid.uuid4().hex[:12]}"
    fs.mkdir(name)
    yield name
    fs.rm(name, recursive=True)


def below(bucket: str, names: list[str]) -> list[str]:
    return [name.removeprefix(f"{bucket}/") for name in names]


def contents(fs: ObjectFileSystem, bucket: str) -> dict[str, bytes]:
    """Returns the contents of all objects of a bucket, including objects that mark directories."""
    return {each.key: fs.store.get(bucket, each.key) for each in fs.store.list(bucket)}
