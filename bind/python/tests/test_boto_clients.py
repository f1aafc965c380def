"""Tests which clients call the store in the process, and where all other clients send their calls."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from boto_clients import BUCKET, without_endpoint

boto3 = pytest.importorskip("boto3")
import botocore.session  # noqa: E402

import fordway.boto  # noqa: E402
from fordway.errors import UnsupportedError  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["without_endpoint"]


@contextlib.contextmanager
def installed(root: Path | None) -> Iterator[None]:
    """Makes new clients call the store in `root`, or in the directory that the environment names."""
    fordway.boto.install(root)
    try:
        yield
    finally:
        fordway.boto.uninstall()


@pytest.mark.usefixtures("without_endpoint")
def test_clients_of_aiobotocore_refuse_a_directory_as_endpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aiobotocore = pytest.importorskip("aiobotocore.session")

    async def endpoint() -> str:
        async with aiobotocore.get_session().create_client("s3") as client:
            return str(client.meta.endpoint_url)

    (tmp_path / BUCKET).mkdir()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"file://{tmp_path}")
    with installed(None):
        with pytest.raises(ValueError, match="Invalid endpoint: file"):
            asyncio.run(endpoint())
        client = boto3.session.Session().client("s3")
        client.put_object(Bucket=BUCKET, Key="key", Body=b"abc")
        with pytest.raises(ValueError, match="Invalid endpoint: file"):
            asyncio.run(endpoint())
    assert (tmp_path / BUCKET / "key").read_bytes() == b"abc"


def regions() -> list[str]:
    """Returns a region of each of AWS's partitions that the installed botocore knows."""
    session = botocore.session.Session()
    partitions = session.get_available_partitions()
    found = (session.get_available_regions("s3", partition_name=partition) for partition in partitions)
    return [names[0] for names in found if names]


@pytest.mark.usefixtures("without_endpoint")
@pytest.mark.parametrize("region", regions())
def test_no_call_goes_to_aws_in_any_partition(tmp_path: Path, region: str) -> None:
    (tmp_path / BUCKET).mkdir()
    with installed(tmp_path):
        client = boto3.session.Session().client("s3", region_name=region)
        assert urlsplit(client.meta.endpoint_url).hostname.endswith(fordway.boto.AWS_DOMAINS)
        client.put_object(Bucket=BUCKET, Key="key", Body=b"abc")
        with pytest.raises(UnsupportedError, match=r"PutObject .*because of ACL, .*AWS_ENDPOINT_URL"):
            client.put_object(Bucket=BUCKET, Key="key", Body=b"secret", ACL="private")
    assert (tmp_path / BUCKET / "key").read_bytes() == b"abc"


@pytest.mark.usefixtures("without_endpoint")
def test_a_client_remembers_the_endpoint_with_which_it_was_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / BUCKET).mkdir()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with installed(tmp_path):
        client = boto3.session.Session().client("s3")
        monkeypatch.delenv("AWS_ENDPOINT_URL")

        def handler(**_: object) -> None:
            pass

        client.meta.events.register("before-call.s3", handler)
        client.meta.events.unregister("before-call.s3", handler)
        client.put_object(Bucket=BUCKET, Key="key", Body=b"abc")
    assert (tmp_path / BUCKET / "key").read_bytes() == b"abc"
