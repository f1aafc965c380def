"""Runs fsspec's own tests for file systems on every lane, in a new bucket for each run."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import fsspec
import pytest
from fsspec.tests import abstract
from gateways import KEYS, LANES, endpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fordway.fsspec import ObjectFileSystem


class LaneFixtures(abstract.AbstractFixtures):
    @pytest.fixture(scope="class", params=LANES)
    @classmethod
    def made(
        cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[tuple[ObjectFileSystem, str]]:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in KEYS.items():
                patch.setenv(name, value)
            with endpoint(request.param, tmp_path_factory.mktemp("lane")) as where:
                fs = fsspec.filesystem("fordway", endpoint=where, skip_instance_cache=True)
                assert fs.store.lane == request.param
                bucket = f"run-{uuid.uuid4().hex[:12]}"
                fs.mkdir(bucket)
                yield fs, bucket
                fs.rm(bucket, recursive=True)
                assert not fs.exists(bucket)

    @pytest.fixture
    def fs(self, made: tuple[ObjectFileSystem, str]) -> ObjectFileSystem:
        return made[0]

    @pytest.fixture
    def fs_path(self, made: tuple[ObjectFileSystem, str]) -> str:
        return made[1]

    @pytest.fixture
    def supports_empty_directories(self) -> bool:
        return False


class TestCopy(abstract.AbstractCopyTests, LaneFixtures):
    pass


class TestGet(abstract.AbstractGetTests, LaneFixtures):
    pass


class TestPut(abstract.AbstractPutTests, LaneFixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, LaneFixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, LaneFixtures):
    pass
