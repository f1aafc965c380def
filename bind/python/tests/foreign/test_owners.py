"""Tests the owners of buckets through boto3: the headers that name the expected owner, and the ACLs."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import READY, program

boto3 = pytest.importorskip("boto3", reason="boto3 is missing")
ClientError = pytest.importorskip("botocore.exceptions").ClientError

UIDS = {"alice": 54_321, "bob": 54_322}
USER = """
[[user]]
name = "{name}"
access_key = "{name}"
secret_key = "secret"
uid = {uid}
gid = {uid}
"""


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A directory that all users can reach, unlike the directories of pytest."""
    if os.geteuid() != 0:
        pytest.skip("only root can be several users")
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        yield Path(place)


@pytest.fixture(scope="module")
def clients(place: Path) -> Iterator[dict]:
    """Clients of two users, who may both write in Alice's bucket `data`."""
    (place / "root" / "data").mkdir(parents=True)
    (place / "root" / "data" / "key").write_bytes(b"content")
    # The modes do not depend on the umask.
    (place / "root").chmod(0o755)
    (place / "root" / "data").chmod(0o1777)
    (place / "root" / "data" / "key").chmod(0o644)
    os.chown(place / "root" / "data", UIDS["alice"], UIDS["alice"])
    (place / "users.toml").touch(mode=0o600)
    (place / "users.toml").write_text("".join(USER.format(name=name, uid=uid) for name, uid in UIDS.items()))
    command = [program(os.environ.get("FORDWAY_BIN", "fordway")), "serve", str(place / "root")]
    command += ["--listen", "127.0.0.1:0", "--credentials", str(place / "users.toml")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            ready = server.stdout.readline()
            assert ready.startswith(READY), f"not the ready line: {ready!r}"
            address = ready.rsplit(" at ", 1)[1].strip()
            where = {"endpoint_url": address, "region_name": "us-east-1", "aws_secret_access_key": "secret"}
            yield {name: boto3.client("s3", aws_access_key_id=name, **where) for name in UIDS}
        finally:
            server.terminate()
            assert server.wait(timeout=30) == 0


def code_of(call: Callable[..., object], **options: object) -> str:
    """Returns the error code of a call, or an empty string."""
    try:
        call(**options)
    except ClientError as error:
        return error.response["Error"]["Code"]
    return ""


@pytest.mark.parametrize("name", UIDS)
def test_the_expected_owner_is_the_owner_of_the_bucket(clients: dict, name: str) -> None:
    client = clients[name]
    place = {"Bucket": "data", "Key": "key"}
    for call, options in (
        (client.get_object, place),
        (client.put_object, place | {"Key": name, "Body": b"new"}),
        (client.list_objects_v2, {"Bucket": "data"}),
        (client.get_bucket_versioning, {"Bucket": "data"}),
        (client.delete_object, place | {"Key": name}),
    ):
        assert code_of(call, ExpectedBucketOwner="bob", **options) == "AccessDenied", call
        assert code_of(call, ExpectedBucketOwner="alice", **options) == "", call
    missing = {"Bucket": "no-bucket", "Key": "key"}
    assert code_of(client.get_object, ExpectedBucketOwner="alice", **missing) == "NoSuchBucket"


def test_the_owner_of_the_source_of_a_copy(clients: dict) -> None:
    copy = {"Bucket": "data", "Key": "copy", "CopySource": "data/key", "ExpectedBucketOwner": "alice"}
    for owner, expected in (("bob", "AccessDenied"), ("alice", "")):
        assert code_of(clients["bob"].copy_object, ExpectedSourceBucketOwner=owner, **copy) == expected


@pytest.mark.parametrize("name", UIDS)
def test_access_control_lists_name_the_owner(clients: dict, name: str) -> None:
    client = clients[name]
    for found in (
        client.get_bucket_acl(Bucket="data"),
        client.get_object_acl(Bucket="data", Key="key"),
    ):
        assert found["Owner"]["ID"] == "alice"
        assert found["Grants"][0]["Grantee"]["ID"] == "alice"
