"""Tests boto3 within the process: the responses must equal a gateway's on the same directory."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from gateways import KEYS, endpoint, program

boto3 = pytest.importorskip("boto3")
from boto3.s3.transfer import TransferConfig  # noqa: E402
from botocore.exceptions import ClientError, ParamValidationError  # noqa: E402

import fordway.boto  # noqa: E402
from fordway.errors import UnsupportedError  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BUCKET = "bucket"
VARYING = {"ResponseMetadata", "LastModified", "Body", "UploadId"}
"""The fields that differ between the responses to any two requests."""


@pytest.fixture
def clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Any]]:
    """A client that uses the store within the process, and a client of a gateway."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with endpoint("http", tmp_path) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        through = boto3.session.Session().client("s3")
        fordway.boto.install(f"file://{tmp_path}/root?etag=md5")
        try:
            within = boto3.session.Session().client("s3")
            within.create_bucket(Bucket=BUCKET)
            fordway.boto.answered.clear()
            yield within, through
        finally:
            fordway.boto.uninstall()


def compared(response: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in response.items() if name not in VARYING}
    kept["status"] = response["ResponseMetadata"]["HTTPStatusCode"]
    if "Contents" in kept:
        kept["Contents"] = [
            {name: entry[name] for name in ("Key", "Size", "ETag")} for entry in kept["Contents"]
        ]
    if "CopyObjectResult" in kept:
        kept["CopyObjectResult"] = {
            name: value for name, value in kept["CopyObjectResult"].items() if name not in VARYING
        }
    if "Body" in response:
        kept["body"] = response["Body"].read()
    return kept


DESCRIBED = {
    "CacheControl": "no-cache",
    "ContentDisposition": 'attachment; filename="x"',
    "ContentEncoding": "gzip",
    "ContentLanguage": "de",
    "Expires": datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC),
}

CALLS = [
    ("put_object", {"Key": "a b/ü", "Body": b"abc" * 100, "Metadata": {"Run": "7"}, "ContentType": "text/x"}),
    ("put_object", {"Key": "tagged", "Body": "text", "Tagging": "a=1&b=%2F", "IfNoneMatch": "*"}),
    ("put_object", {"Key": "tagged", "Body": b"x", "IfNoneMatch": "*"}),
    ("put_object", {"Key": "empty"}),
    ("put_object", {"Key": "described", "Body": b"x", "StorageClass": "STANDARD", **DESCRIBED}),
    ("put_object", {"Key": "described", "Body": b"x", "Expires": "2030-01-02"}),
    ("put_object", {"Key": "described", "Body": b"x", **DESCRIBED}),
    ("get_object", {"Key": "described"}),
    ("head_object", {"Key": "described"}),
    ("get_object", {"Key": "a b/ü"}),
    ("get_object", {"Key": "a b/ü", "Range": "bytes=5-9"}),
    ("get_object", {"Key": "a b/ü", "Range": "bytes=-7"}),
    ("get_object", {"Key": "a b/ü", "Range": "bytes=298-"}),
    ("get_object", {"Key": "a b/ü", "Range": "bytes=400-"}),
    ("get_object", {"Key": "empty"}),
    ("get_object", {"Key": "tagged", "IfMatch": '"0123"'}),
    ("get_object", {"Key": "tagged", "ChecksumMode": "ENABLED"}),
    ("get_object", {"Key": "nothing"}),
    ("get_object", {"Key": "nothing", "Bucket": "nowhere"}),
    ("head_object", {"Key": "a b/ü"}),
    ("head_object", {"Key": "nothing"}),
    ("list_objects_v2", {}),
    ("list_objects_v2", {"Prefix": "a", "Delimiter": "/"}),
    ("list_objects_v2", {"MaxKeys": 1, "StartAfter": "a"}),
    ("list_objects_v2", {"Bucket": "nowhere"}),
    ("list_objects", {}),
    ("list_objects", {"Prefix": "a", "Delimiter": "/"}),
    ("list_objects", {"MaxKeys": 1, "Marker": "a"}),
    ("list_objects", {"MaxKeys": 2, "Marker": "a b/ü"}),
    ("list_objects", {"Bucket": "nowhere"}),
    ("copy_object", {"Key": "copied", "CopySource": {"Bucket": BUCKET, "Key": "tagged"}}),
    ("copy_object", {"Key": "copied", "CopySource": f"/{BUCKET}/a b/ü"}),
    ("head_object", {"Key": "copied"}),
    (
        "copy_object",
        {"Key": "copied", "CopySource": f"{BUCKET}/tagged", "MetadataDirective": "REPLACE", **DESCRIBED},
    ),
    ("head_object", {"Key": "copied"}),
    (
        "copy_object",
        {
            "Key": "copied",
            "CopySource": {"Bucket": BUCKET, "Key": "described"},
            "MetadataDirective": "REPLACE",
            "TaggingDirective": "REPLACE",
            "Tagging": "c=3",
        },
    ),
    ("head_object", {"Key": "copied"}),
    ("get_object_tagging", {"Key": "copied"}),
    ("copy_object", {"Key": "copied", "CopySource": {"Bucket": BUCKET, "Key": "nothing"}}),
    ("put_object_tagging", {"Key": "tagged", "Tagging": {"TagSet": [{"Key": "ä", "Value": "1"}]}}),
    ("put_object_tagging", {"Key": "nothing", "Tagging": {"TagSet": []}}),
    (
        "put_object_tagging",
        {"Key": "tagged", "Tagging": {"TagSet": [{"Key": f"{at}", "Value": ""} for at in range(11)]}},
    ),
    ("get_object_tagging", {"Key": "tagged"}),
    ("delete_object_tagging", {"Key": "tagged"}),
    ("get_object_tagging", {"Key": "tagged"}),
    ("get_object_tagging", {"Key": "nothing"}),
    ("get_bucket_location", {}),
    ("get_bucket_location", {"Bucket": "nowhere"}),
    ("get_bucket_versioning", {}),
    ("get_bucket_versioning", {"Bucket": "nowhere"}),
    ("head_bucket", {}),
    ("head_bucket", {"Bucket": "nowhere"}),
    ("delete_bucket", {}),
    ("delete_object", {"Key": "empty"}),
    ("delete_objects", {"Delete": {"Objects": [{"Key": "tagged"}, {"Key": "nothing"}]}}),
]


def outcome(client: Any, name: str, parameters: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401
    try:
        return compared(getattr(client, name)(**{"Bucket": BUCKET, **parameters}))
    except ClientError as error:
        status = error.response["ResponseMetadata"]["HTTPStatusCode"]
        return {"error": type(error).__name__, "code": error.response["Error"]["Code"], "status": status}


def test_answers_are_those_of_a_gateway(clients: tuple[Any, Any]) -> None:
    within, through = clients
    differing = []
    for name, parameters in CALLS:
        ours = outcome(within, name, parameters)
        if name.startswith(("put", "delete")) and "error" not in ours:
            if name.startswith("put") and "IfNoneMatch" in parameters:
                through.delete_object(Bucket=BUCKET, Key=parameters["Key"])
            if name == "delete_objects":
                through.put_object(Bucket=BUCKET, Key="tagged", Body=b"x")
        theirs = outcome(through, name, parameters)
        if ours != theirs:
            changed = {it for it in ours.keys() | theirs.keys() if ours.get(it) != theirs.get(it)}
            differing.append((name, parameters, {it: (ours.get(it), theirs.get(it)) for it in changed}))
    assert differing == [], "\n".join(map(str, differing))
    assert not [operation for operation, way in fordway.boto.answered if way == "botocore"]


def test_transfers_and_pages_are_answered_in_the_process(clients: tuple[Any, Any], tmp_path: Path) -> None:
    within, through = clients
    data = os.urandom(20_000_001)
    (tmp_path / "file").write_bytes(data)
    seen = []
    within.upload_file(str(tmp_path / "file"), BUCKET, "large", Callback=seen.append)
    assert sum(seen) == len(data)
    within.download_file(BUCKET, "large", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == data
    assert through.get_object(Bucket=BUCKET, Key="large")["Body"].read() == data
    within.copy(
        {"Bucket": BUCKET, "Key": "large"}, BUCKET, "copied", Config=TransferConfig(multipart_threshold=1)
    )
    assert through.get_object(Bucket=BUCKET, Key="copied")["Body"].read() == data
    within.delete_object(Bucket=BUCKET, Key="copied")
    body = within.get_object(Bucket=BUCKET, Key="large", Range="bytes=100-")["Body"]
    assert b"".join(body.iter_chunks(700_001)) == data[100:]
    for number in range(5):
        within.put_object(Bucket=BUCKET, Key=f"k{number}", Body=b"")
    pages = within.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, PaginationConfig={"PageSize": 2})
    assert [entry["Key"] for page in pages for entry in page["Contents"]] == [
        *(f"k{number}" for number in range(5)),
        "large",
    ]
    assert not [operation for operation, way in fordway.boto.answered if way == "botocore"]


def test_what_is_not_known_takes_botocores_path(clients: tuple[Any, Any]) -> None:
    within, _ = clients
    within.put_object(Bucket=BUCKET, Key="key", Body=b"abc", ACL="bucket-owner-full-control")
    assert fordway.boto.answered == {("PutObject", "botocore"): 1}
    with pytest.raises(ParamValidationError, match="Keyy"):
        within.get_object(Bucket=BUCKET, Keyy="key")
    with pytest.raises(ParamValidationError):
        within.get_object(Bucket=BUCKET, Key=5)
    assert fordway.boto.answered["GetObject", "botocore"] == 2
    heard = []
    within.meta.events.register("before-call.s3.GetObject", lambda **_: heard.append("call"))
    assert within.get_object(Bucket=BUCKET, Key="key")["Body"].read() == b"abc"
    assert heard == ["call"]
    session = boto3.session.Session()
    session.events.register("before-call.s3", lambda **_: heard.append("session"))
    session.client("s3").head_object(Bucket=BUCKET, Key="key")
    assert heard == ["call", "session"]
    other = boto3.session.Session().client("s3", endpoint_url="http://127.0.0.1:9")
    assert other._fordway_is_watched, "the program chose another endpoint"


def test_the_resource_of_a_bucket_is_listed_in_the_process(clients: tuple[Any, Any]) -> None:
    within, _ = clients
    for number in range(3):
        within.put_object(Bucket=BUCKET, Key=f"k{number}", Body=b"")
    fordway.boto.answered.clear()
    objects = boto3.session.Session().resource("s3").Bucket(BUCKET).objects
    assert [found.key for found in objects.page_size(2)] == ["k0", "k1", "k2"]
    assert [found.key for found in objects.limit(1)] == ["k0"]
    assert {way for _, way in fordway.boto.answered} == {"in process"}


def test_no_call_goes_to_aws_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    (tmp_path / BUCKET).mkdir()
    fordway.boto.install(tmp_path)
    try:
        client = boto3.session.Session().client("s3")
        client.put_object(Bucket=BUCKET, Key="key", Body=b"abc")
        with pytest.raises(UnsupportedError, match=r"PutObject.*AWS_ENDPOINT_URL"):
            client.put_object(Bucket=BUCKET, Key="key", Body=b"secret", ACL="private")
        with pytest.raises(ParamValidationError):
            client.put_object(Bucket=BUCKET, Key=5)
        client.meta.events.register("before-call.s3", lambda **_: None)
        with pytest.raises(UnsupportedError, match="GetObject"):
            client.get_object(Bucket=BUCKET, Key="key")
        assert client.generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": "key"})
    finally:
        fordway.boto.uninstall()
    assert (tmp_path / BUCKET / "key").read_bytes() == b"abc"


PROGRAM = """
import boto3

s3 = boto3.client("s3")
s3.put_object(Bucket="bucket", Key="key", Body=b"abc")
print(s3.get_object(Bucket="bucket", Key="key")["Body"].read())
print(s3.list_object_versions(Bucket="bucket")["ResponseMetadata"]["HTTPStatusCode"])
raise SystemExit(7)
"""


def test_a_program_runs_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORDWAY_BIN", program())
    (tmp_path / "root" / BUCKET).mkdir(parents=True)
    command = [sys.executable, "-m", "fordway.launch", "--root", str(tmp_path / "root"), "--explain"]
    ran = subprocess.run(
        [*command, "--", sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (7, "b'abc'\n200\n"), ran.stderr
    assert "GetObject in process: 1, ListObjectVersions botocore: 1, PutObject in process: 1" in ran.stderr
    assert (tmp_path / "root" / BUCKET / "key").read_bytes() == b"abc"
    for wrong in (["--root", "/does/not/exist", "--", "true"], ["--", "no-such-program"]):
        ran = subprocess.run(
            [sys.executable, "-m", "fordway.launch", *wrong], capture_output=True, text=True, check=False
        )
        assert ran.returncode != 0 and ran.stderr.startswith("error: ")
