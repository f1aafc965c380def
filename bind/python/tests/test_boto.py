"""Tests boto3 within the process. The responses must equal the responses of a gateway on the same
directory.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from boto_clients import BUCKET, clients, outcome, without_endpoint
from gateways import KEYS, program

boto3 = pytest.importorskip("boto3")
import botocore.session  # noqa: E402
from boto3.s3.transfer import TransferConfig  # noqa: E402
from botocore.client import ClientCreator  # noqa: E402
from botocore.exceptions import ClientError, ParamValidationError, UnStubbedResponseError  # noqa: E402
from botocore.stub import Stubber  # noqa: E402

import fordway.boto  # noqa: E402
from fordway.errors import FordwayError, UnsupportedError, exception_for  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["clients", "without_endpoint"]

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
    ("put_object", {"Key": "tagged", "Body": b"x", "Tagging": "a=1&a=2"}),
    ("put_object", {"Key": "empty"}),
    ("put_object", {"Key": "spaced", "Metadata": {"a": " b ", "C_D": "e  f", "empty": ""}}),
    ("get_object", {"Key": "spaced"}),
    ("put_object", {"Key": "described", "Body": b"x", "StorageClass": "STANDARD", **DESCRIBED}),
    ("put_object", {"Key": "described", "Body": b"x", "Expires": "2030-01-02"}),
    ("put_object", {"Key": "described", "Body": b"x", **DESCRIBED}),
    ("get_object", {"Key": "described"}),
    ("head_object", {"Key": "described"}),
    ("get_object", {"Key": "a b/ü"}),
    ("get_object", {"Key": "a b/ü", "Range": "bytes=5-9"}),
    ("get_object", {"Key": "a b/ü", "Range": "bytes=5-2"}),
    ("get_object", {"Key": "a b/ü", "Range": "bytes=-7"}),
    ("get_object", {"Key": "a b/ü", "Range": "bytes=298-"}),
    ("get_object", {"Key": "a b/ü", "Range": "bytes=400-"}),
    ("get_object", {"Key": "a b/ü", "Range": f"bytes=298-{10**18 - 1}"}),
    ("get_object", {"Key": "a b/ü", "Range": f"bytes=-{10**18 - 1}"}),
    ("get_object", {"Key": "a b/ü", "Range": f"bytes={10**18 - 1}-"}),
    ("get_object", {"Key": "empty"}),
    ("get_object", {"Key": "tagged", "IfMatch": '"0123"'}),
    ("get_object", {"Key": "tagged", "IfNoneMatch": '"1cb251ec0d568de6a929b520c4aed8d1"'}),
    ("get_object", {"Key": "tagged", "ChecksumMode": "ENABLED"}),
    ("get_object", {"Key": "nothing"}),
    ("get_object", {"Key": "nothing", "Bucket": "nowhere"}),
    ("get_object", {"Key": "nothing", "Bucket": "No_Where"}),
    ("get_object", {"Key": "n\0"}),
    ("get_object", {"Key": "empty", "Range": "bytes=0-"}),
    ("get_object", {"Key": "tagged", "VersionId": "0" * 32}),
    ("get_object", {"Key": "tagged", "VersionId": "null"}),
    *(
        (name, {"Key": "tagged", "VersionId": version})
        for name in ("get_object", "head_object", "delete_object", "get_object_tagging")
        for version in ("None", "", "0" * 23, "ä" * 24, "0" * 1025)
    ),
    ("put_object", {"Key": "sums", "Body": b"abc", "ChecksumAlgorithm": "sha256"}),
    ("put_object", {"Key": "sums", "Body": b"abc", "Metadata": {"a": "x" * 2047}}),
    ("head_object", {"Key": "a b/ü"}),
    ("head_object", {"Key": "nothing"}),
    ("list_objects_v2", {}),
    ("list_objects_v2", {"Prefix": "a", "Delimiter": "/"}),
    ("list_objects_v2", {"MaxKeys": 0}),
    ("list_objects_v2", {"MaxKeys": 0, "Bucket": "nowhere"}),
    ("list_objects", {"MaxKeys": 0, "Prefix": "a", "Marker": "a"}),
    ("list_objects_v2", {"MaxKeys": 1, "StartAfter": "a"}),
    ("list_objects_v2", {"MaxKeys": 5000, "Delimiter": " ", "StartAfter": "a ", "EncodingType": "url"}),
    ("list_objects_v2", {"MaxKeys": 5000, "Delimiter": " ", "StartAfter": "a "}),
    ("list_objects_v2", {"Delimiter": "", "StartAfter": ""}),
    ("list_objects_v2", {"Bucket": "nowhere"}),
    ("list_objects", {}),
    ("list_objects", {"Prefix": "a", "Delimiter": "/"}),
    ("list_objects", {"MaxKeys": 1, "Marker": "a"}),
    ("list_objects", {"MaxKeys": 2, "Marker": "a b/ü"}),
    ("list_objects", {"MaxKeys": 5000, "Delimiter": " ", "Marker": "a ", "EncodingType": "url"}),
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
            "CopySource": f"{BUCKET}/tagged",
            "MetadataDirective": "REPLACE",
            "Metadata": {"A": " x ", "b": ""},
        },
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
    ("copy_object", {"Key": "copied", "CopySource": {"Bucket": BUCKET, "Key": "copied"}}),
    ("copy_object", {"Key": "nothing", "CopySource": f"{BUCKET}/nothing"}),
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
    ("create_bucket", {"Bucket": "Data_2024.X"}),
    ("create_bucket", {"Bucket": "a" * 64}),
    ("create_bucket", {"Bucket": "another"}),
    (
        "create_bucket",
        {"Bucket": "another", "CreateBucketConfiguration": {"LocationConstraint": "eu-west-1"}},
    ),
    ("create_bucket", {"Bucket": "a"}),
    ("create_bucket", {"Bucket": "192.168.5.123"}),
    ("head_bucket", {"Bucket": "Data_2024.X"}),
    ("head_bucket", {}),
    ("head_bucket", {"Bucket": "nowhere"}),
    ("delete_bucket", {}),
    ("delete_object", {"Key": "empty"}),
    ("delete_objects", {"Delete": {"Objects": [{"Key": "tagged"}, {"Key": "nothing"}]}}),
    ("delete_objects", {"Delete": {"Objects": [{"Key": "x"}, {"Key": "n/" * 300}], "Quiet": True}}),
    ("delete_objects", {"Delete": {"Objects": [{"Key": "x"}, {"Key": "n" * 1025}, {"Key": "tagged"}]}}),
    ("delete_objects", {"Delete": {"Objects": [{"Key": f"{at}"} for at in range(1001)]}}),
    ("delete_objects", {"Bucket": "nowhere", "Delete": {"Objects": [{"Key": "tagged"}]}}),
]


def test_answers_are_those_of_a_gateway(clients: tuple[Any, Any]) -> None:
    within, through = clients
    differing = []
    for name, parameters in CALLS:
        ours = outcome(within, name, parameters)
        if name == "create_bucket" and "error" not in ours:
            within.delete_bucket(Bucket=parameters["Bucket"])
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


FOR_A_GATEWAY = [
    ("list_objects_v2", {"EncodingType": "xx"}),
    ("list_objects_v2", {"MaxKeys": -1}),
    ("get_object", {"Key": "key", "Range": "bytes=1-18446744073709551614"}),
    ("get_object", {"Key": "key", "Range": "bytes=0-18446744073709551615"}),
    ("get_object", {"Key": "key", "Range": "bytes=0-18446744073709551616"}),
    ("get_object", {"Key": "key", "Range": "bytes=-9223372036854775809"}),
    ("get_object", {"Key": "key", "Range": "bytes=-99999999999999999999"}),
    ("get_object", {"Key": "key", "Range": "bytes=18446744073709551616-"}),
    ("get_object", {"Key": "key", "Range": f"bytes=0-{'9' * 5000}"}),
    ("put_object", {"Key": "key", "Metadata": {"u": "=?UTF-8?B?w6k=?="}}),
    ("put_object", {"Key": "key", "ContentEncoding": "aws-chunked,gzip"}),
    ("put_object", {"Key": "key", "ContentType": "  text/x "}),
    ("put_object", {"Key": "key", "ContentType": ""}),
    ("put_object", {"Key": "key", "Metadata": {"a": "x" * 2048}}),
    ("copy_object", {"Key": "to", "CopySource": f"{BUCKET}/key", "MetadataDirective": "REPLACED"}),
    ("copy_object", {"Key": "to", "CopySource": f"{BUCKET}/key", "TaggingDirective": "replace"}),
    ("copy_object", {"Key": "to", "CopySource": f"{BUCKET}/key", "MetadataDirective": ""}),
    ("list_objects_v2", {"ContinuationToken": "!!!"}),
    ("list_objects_v2", {"ContinuationToken": "a2V5!"}),
    ("list_objects_v2", {"ContinuationToken": "a2V5Cg=="}),
    ("list_objects_v2", {"ContinuationToken": "a+/b"}),
    ("list_objects_v2", {"ContinuationToken": "Zh"}),
    *(
        (name, {"Key": "key", field: text})
        for name, field in (
            ("put_object", "IfNoneMatch"),
            ("put_object", "IfMatch"),
            ("get_object", "IfMatch"),
            ("get_object", "IfNoneMatch"),
            ("delete_object", "IfMatch"),
        )
        for text in ("", " ", ",", '"*"', '"a", "b"', '"900150983cd24fb0d6963f7d28e17f72", "b"', 'W/"a"')
    ),
]
"""Calls with values that the gateway interprets or refuses."""


def test_a_gateway_interprets_unusual_values(clients: tuple[Any, Any]) -> None:
    within, through = clients
    differing = []
    for name, parameters in FOR_A_GATEWAY:
        outcomes = []
        for client in clients:
            through.put_object(Bucket=BUCKET, Key="key", Body=b"abc")
            found = outcome(client, name, parameters)
            found["headers"].pop("last-modified", None)
            outcomes.append((found, within.list_objects_v2(Bucket=BUCKET)["KeyCount"]))
        if outcomes[0] != outcomes[1]:
            differing.append((name, parameters, outcomes))
    assert differing == [], "\n".join(map(str, differing))
    ways = {way for operation, way in fordway.boto.answered if operation != "ListObjectsV2"}
    assert fordway.boto.answered["ListObjectsV2", "botocore"] == 7
    assert ways == {"botocore"}


def test_locks_are_described_as_by_a_gateway(clients: tuple[Any, Any]) -> None:
    within, through = clients
    through.create_bucket(Bucket="locked", ObjectLockEnabledForBucket=True)
    for key in ("plain", "held", "retained"):
        through.put_object(Bucket="locked", Key=key, Body=b"x")
    through.put_object_legal_hold(Bucket="locked", Key="held", LegalHold={"Status": "ON"})
    until = datetime.now(UTC).replace(microsecond=678_000) + timedelta(seconds=2)
    retention = {"Mode": "GOVERNANCE", "RetainUntilDate": until}
    through.put_object_retention(Bucket="locked", Key="retained", Retention=retention)
    try:
        for key in ("plain", "held", "retained"):
            for name in ("head_object", "get_object"):
                ours, theirs = (
                    outcome(client, name, {"Bucket": "locked", "Key": key}) for client in (within, through)
                )
                assert ours == theirs
                assert ("ObjectLockLegalHoldStatus" in ours) == (key == "held")
                assert ("ObjectLockMode" in ours) == (key == "retained")
    finally:
        through.put_object_legal_hold(Bucket="locked", Key="held", LegalHold={"Status": "OFF"})
    assert not [operation for operation, way in fordway.boto.answered if way == "botocore"]


def test_a_suspended_bucket_names_no_version(clients: tuple[Any, Any]) -> None:
    within, _ = clients
    within.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Suspended"})
    ours, theirs = (outcome(client, "put_object", {"Key": "key", "Body": b"x"}) for client in clients)
    assert ours == theirs


def test_a_call_that_names_the_null_version_returns_it(clients: tuple[Any, Any]) -> None:
    within, _ = clients
    named = {"Key": "key", "VersionId": "null"}
    within.put_object(Bucket=BUCKET, Key="key", Body=b"x")
    for status in (None, "Enabled", "Suspended"):
        if status is not None:
            within.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": status})
        for call in ("head_object", "get_object"):
            ours, theirs = (getattr(client, call)(Bucket=BUCKET, **named) for client in clients)
            assert ours.get("VersionId") == theirs.get("VersionId") == (status and "null")


def test_a_raw_body_has_the_methods_of_urllib3(clients: tuple[Any, Any]) -> None:
    content = random.Random(7).randbytes(3 << 20)
    clients[0].put_object(Bucket=BUCKET, Key="key", Body=content)
    for client in clients:
        for size in (3 << 20, 1000):
            asked = {"Range": f"bytes=0-{size - 1}"}
            with client.get_object(Bucket=BUCKET, Key="key", **asked)["Body"] as raw:
                start = raw.read(amt=100, decode_content=True)
                assert not raw.isclosed()
                pieces = [start, *raw.stream(1 << 16, decode_content=False)]
                assert raw.isclosed()
            assert b"".join(pieces) == content[:size]
            buffer = bytearray(1 << 20)
            raw, read = client.get_object(Bucket=BUCKET, Key="key", **asked)["Body"]._raw_stream, 0
            while not raw.isclosed():
                read += raw.readinto(buffer)
            assert read == size


def test_an_empty_token_begins_after_start_after(clients: tuple[Any, Any]) -> None:
    for key in ("a", "z"):
        clients[0].put_object(Bucket=BUCKET, Key=key, Body=b"")
    for client in clients:
        page = client.list_objects_v2(Bucket=BUCKET, StartAfter="m", ContinuationToken="")
        assert [entry["Key"] for entry in page["Contents"]] == ["z"]


def test_the_versions_of_a_bucket_are_named_as_the_reason(tmp_path: Path) -> None:
    (tmp_path / BUCKET).mkdir()
    store = fordway.boto.install(tmp_path)
    try:
        client = boto3.session.Session().client("s3")
        client.put_object(Bucket=BUCKET, Key="key", Body=b"abc")
        store.set_versioning(BUCKET, True)
        with pytest.raises(UnsupportedError, match="a bucket of this call keeps versions"):
            client.copy_object(Bucket=BUCKET, Key="copy", CopySource={"Bucket": BUCKET, "Key": "key"})
    finally:
        fordway.boto.uninstall()


def test_a_body_accepts_a_timeout(clients: tuple[Any, Any]) -> None:
    within, _ = clients
    within.put_object(Bucket=BUCKET, Key="key", Body=bytes(3 << 20))
    for asked in ({}, {"Range": "bytes=0-9"}):
        body = within.get_object(Bucket=BUCKET, Key="key", **asked)["Body"]
        body.set_socket_timeout(5)
        assert len(body.read()) == (10 if asked else 3 << 20)


TAGGING = ["a=1&a=2", "a=%zz", "a=%2", "=1", "a=1&=2", "a=%FF", "&".join(f"t{at}=" for at in range(11))]
TAGGING += [
    "aws:x=1",
    "AWS:x=1",
    f"a={'b' * 257}",
    f"{'a' * 129}=1",
    "a;b=1",
    "a=%3C",
    "a=1&b=2",
    "a+b=%C3%A4",
    "a",
]


@pytest.mark.parametrize("tagging", TAGGING)
def test_tags_are_refused_as_by_a_gateway(clients: tuple[Any, Any], tagging: str) -> None:
    within, through = clients
    within.put_object(Bucket=BUCKET, Key="source", Body=b"x", Tagging="s=1")
    replace = {"CopySource": f"{BUCKET}/source", "TaggingDirective": "REPLACE"}
    upload = {"ChecksumAlgorithm": "CRC32"}
    for name, more in (("put_object", {}), ("copy_object", replace), ("create_multipart_upload", upload)):
        ours, theirs = (
            outcome(client, name, {"Key": "key", "Tagging": tagging, **more}) for client in clients
        )
        assert ours == theirs
        if name != "create_multipart_upload" and "error" not in ours:
            tags = within.get_object_tagging(Bucket=BUCKET, Key="key")["TagSet"]
            assert tags == through.get_object_tagging(Bucket=BUCKET, Key="key")["TagSet"] != []
    assert {way for _, way in fordway.boto.answered} == {"in process"}


@pytest.mark.parametrize(
    "tags",
    [
        [("a", "1"), ("a", "2")],
        [("aws:a", "1")],
        [("a" * 129, "1")],
        [("a<", "1")],
        [("a", ">")],
        [("a", "b" * 257)],
        [("a\u0903", "ä\u0903")],
        [("\u24b6", "\U0001f130")],
        [("a\U0001f389", "1")],
        [("a", "\u2603")],
        [("a ", "+-=._:/@")],
    ],
)
def test_tags_in_documents_are_refused_as_by_a_gateway(
    clients: tuple[Any, Any], tags: list[tuple[str, str]]
) -> None:
    clients[0].put_object(Bucket=BUCKET, Key="key", Body=b"x")
    asked = {"Key": "key", "Tagging": {"TagSet": [{"Key": name, "Value": value} for name, value in tags]}}
    ours, theirs = (outcome(client, "put_object_tagging", asked) for client in clients)
    assert ours == theirs


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


def test_stubbed_responses_come_before_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    store = fordway.boto.install(tmp_path)
    try:
        store.create_bucket(BUCKET)
        store.put(BUCKET, "key", b"real")
        client = boto3.session.Session().client("s3", region_name="us-east-1")
        with Stubber(client) as stubber:
            stubber.add_response("delete_object", {}, {"Bucket": BUCKET, "Key": "key"})
            stubber.add_client_error("head_bucket", "Scripted")
            client.delete_object(Bucket=BUCKET, Key="key")
            with pytest.raises(ClientError, match="Scripted"):
                client.head_bucket(Bucket=BUCKET)
            with pytest.raises(UnStubbedResponseError):
                client.delete_object(Bucket=BUCKET, Key="key")
        assert client.get_object(Bucket=BUCKET, Key="key")["Body"].read() == b"real"
        with mock.patch("botocore.client.BaseClient._make_api_call", return_value="mocked"):
            assert client.delete_object(Bucket=BUCKET, Key="key") == "mocked"
        assert client.get_object(Bucket=BUCKET, Key="key")["Body"].read() == b"real"
    finally:
        fordway.boto.uninstall()


@pytest.mark.parametrize("as_body", [bytes, io.BytesIO])
@pytest.mark.parametrize(
    ("stated", "code"), [(3, None), (5, "IncompleteBody"), (2, "XAmzContentSHA256Mismatch")]
)
def test_a_body_of_another_length_is_not_stored(
    clients: tuple[Any, Any], as_body: type, stated: int, code: str | None
) -> None:
    client = clients[0]
    upload = client.create_multipart_upload(Bucket=BUCKET, Key="parts")["UploadId"]
    part = {"UploadId": upload, "PartNumber": 1}
    for call, names in ((client.put_object, {"Key": "key"}), (client.upload_part, {"Key": "parts"} | part)):
        expected = pytest.raises(ClientError, match=code) if code else contextlib.nullcontext()
        with expected:
            call(Bucket=BUCKET, **names, Body=as_body(b"abc"), ContentLength=stated)
    is_stored = code is None
    assert ("Contents" in client.list_objects_v2(Bucket=BUCKET)) == is_stored
    assert ("Parts" in clients[1].list_parts(Bucket=BUCKET, Key="parts", UploadId=upload)) == is_stored
    assert {way for _, way in fordway.boto.answered} == {"in process"}


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
        with pytest.raises(UnsupportedError, match=r"PutObject .*because of ACL, .*AWS_ENDPOINT_URL"):
            client.put_object(Bucket=BUCKET, Key="key", Body=b"secret", ACL="private")
        with pytest.raises(ParamValidationError):
            client.put_object(Bucket=BUCKET, Key=5)
        client.meta.events.register("before-call.s3", lambda **_: None)
        with pytest.raises(UnsupportedError, match="GetObject in the process, because the program has"):
            client.get_object(Bucket=BUCKET, Key="key")
        with pytest.raises(UnsupportedError, match=r"presign GetObject.*endpoint_url"):
            client.generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": "key"})
        with pytest.raises(UnsupportedError, match=r"presign PutObject"):
            client.generate_presigned_post(BUCKET, "key")
    finally:
        fordway.boto.uninstall()
    assert (tmp_path / BUCKET / "key").read_bytes() == b"abc"


SESSIONS: dict[str, Callable[[], Callable[[], Any]]] = {
    "default": lambda: (boto3.client("sts"), lambda: boto3.client("s3"))[1],
    "boto3": lambda: (lambda session: lambda: session.client("s3"))(boto3.session.Session()),
    "botocore": lambda: (lambda session: lambda: session.create_client("s3"))(used_session()),
    "resource": lambda: (lambda session: lambda: session.resource("s3").meta.client)(boto3.session.Session()),
}
"""Functions that create a session, and return a function that creates a client of this session."""


def used_session() -> botocore.session.Session:
    """Returns a session of botocore that has created a client."""
    session = botocore.session.Session()
    session.create_client("s3")
    return session


@pytest.mark.usefixtures("without_endpoint")
@pytest.mark.parametrize("kind", SESSIONS)
def test_clients_of_sessions_from_before_the_installation_call_the_store(tmp_path: Path, kind: str) -> None:
    (tmp_path / BUCKET).mkdir()
    create = SESSIONS[kind]()
    before = create()
    fordway.boto.answered.clear()
    fordway.boto.install(tmp_path)
    try:
        fordway.boto.install(tmp_path)
        client = create()
        client.put_object(Bucket=BUCKET, Key="key", Body=b"abc")
        assert [entry["Key"] for entry in client.list_objects_v2(Bucket=BUCKET)["Contents"]] == ["key"]
        client.delete_object(Bucket=BUCKET, Key="key")
        with pytest.raises(UnsupportedError, match="AWS_ENDPOINT_URL"):
            client.list_object_versions(Bucket=BUCKET)
        assert type(client).__name__ == type(before).__name__
    finally:
        fordway.boto.uninstall()
    in_process = ("PutObject", "ListObjectsV2", "DeleteObject")
    assert {call: fordway.boto.answered[call, "in process"] for call in in_process} == dict.fromkeys(
        in_process, 1
    )
    assert fordway.boto.answered["ListObjectVersions", "botocore"] == 1
    assert not hasattr(create(), "_fordway_is_watched"), "not after uninstall"


@pytest.mark.usefixtures("without_endpoint")
def test_handlers_that_replace_the_call_come_before_the_store(tmp_path: Path) -> None:
    def on_creating(class_attributes: dict[str, Any], **_: object) -> None:
        class_attributes["_make_api_call"] = lambda *_: "replaced"

    (tmp_path / BUCKET).mkdir()
    session = boto3.session.Session()
    session.events.register("creating-client-class.s3", on_creating)
    fordway.boto.install(tmp_path)
    try:
        assert session.client("s3").list_objects_v2(Bucket=BUCKET) == "replaced"
        assert "Contents" not in boto3.client("s3").list_objects_v2(Bucket=BUCKET)
    finally:
        fordway.boto.uninstall()


@pytest.mark.usefixtures("without_endpoint")
def test_a_later_replacement_of_botocores_method_survives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / BUCKET).mkdir()
    session, created = boto3.session.Session(), []
    fordway.boto.install(tmp_path)
    ours = ClientCreator._create_client_class

    def creating(creator: ClientCreator, name: str, model: object) -> type:
        created.append(name)
        return ours(creator, name, model)

    with monkeypatch.context() as patched:
        patched.setattr(ClientCreator, "_create_client_class", creating)
        fordway.boto.uninstall()
        assert not hasattr(session.client("s3"), "_fordway_is_watched")
        fordway.boto.install(tmp_path)
        session.client("s3").put_object(Bucket=BUCKET, Key="key", Body=b"abc")
        assert created == ["s3", "s3"]
    fordway.boto.uninstall()
    assert ClientCreator._create_client_class is not ours
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


@pytest.mark.parametrize("name", ["Data_2024.X", "UPPER", "a_b"])
def test_buckets_may_have_all_names_that_the_store_accepts(
    clients: tuple[Any, Any], tmp_path: Path, name: str
) -> None:
    within, through = clients
    (tmp_path / "root" / name).mkdir()
    within.put_object(Bucket=name, Key="key", Body=b"abc")
    assert through.get_object(Bucket=name, Key="key")["Body"].read() == b"abc"
    within.copy_object(Bucket=name, Key="copy", CopySource={"Bucket": name, "Key": "key"})
    within.delete_objects(Bucket=name, Delete={"Objects": [{"Key": "key"}, {"Key": "copy"}]})
    within.delete_bucket(Bucket=name)
    assert not [operation for operation, way in fordway.boto.answered if way == "botocore"]


def test_a_deletion_that_fails_is_told_by_its_key(
    clients: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class FullStore:
        def versioning(self, _: str) -> None:
            pass

        def delete_many(self, bucket: str, keys: list[str]) -> list[FordwayError | None]:
            target = f"s3://{bucket}/{keys[0]}"
            return [exception_for("NoSpace", "delete: no space", target, "no space"), None]

    within, _ = clients
    monkeypatch.setattr(fordway.boto, "_store", FullStore())
    done = within.delete_objects(Bucket=BUCKET, Delete={"Objects": [{"Key": "a"}, {"Key": "b"}]})
    assert done["Errors"] == [{"Key": "a", "Code": "InsufficientStorage", "Message": "no space"}]
    assert done["Deleted"] == [{"Key": "b"}]


@pytest.mark.parametrize("names", [("-nowhere", "key"), (".nowhere", "key"), (BUCKET, "n" * 1025)])
def test_names_that_the_store_refuses_get_a_gateways_error(
    clients: tuple[Any, Any], names: tuple[str, str]
) -> None:
    ours, theirs = (
        outcome(client, "get_object", {"Bucket": names[0], "Key": names[1]}) for client in clients
    )
    # The gateway refuses these names before it calls the store, so the error has no detail.
    assert {name: ours[name] for name in theirs if name != "headers"} == {
        name: it for name, it in theirs.items() if name != "headers"
    }
    assert not [operation for operation, way in fordway.boto.answered if way == "botocore"]


WRONG_TYPES = [
    ("put_object", {"Key": "key", "Body": b"", "ContentLength": "many"}),
    ("put_object", {"Key": "key", "Body": b"", "Metadata": ["run"]}),
    ("put_object", {"Key": "key", "Body": b"", "Tagging": 5}),
    ("put_object", {"Key": "key", "Body": b"", "ContentType": 5}),
    ("put_object", {"Key": "key", "Body": b"", "Expires": []}),
    ("put_object", {"Key": "key", "Body": b"", "IfMatch": 5}),
    ("put_object", {"Key": "key", "Body": 5}),
    ("put_object", {"Key": "key", "Body": memoryview(b"abc")}),
    ("get_object", {"Key": "key", "Range": 5}),
    ("get_object", {"Key": "key", "VersionId": 5}),
    ("head_object", {"Key": "key", "VersionId": None}),
    ("list_objects_v2", {"Prefix": 5}),
    ("list_objects_v2", {"Delimiter": b"/"}),
    ("list_objects_v2", {"ContinuationToken": 5}),
    ("list_objects", {"Marker": 5}),
    ("delete_objects", {"Delete": {"Objects": [5]}}),
    ("delete_objects", {"Delete": {"Objects": 5}}),
    ("upload_part", {"Key": "key", "UploadId": 5, "PartNumber": 1}),
    ("complete_multipart_upload", {"Key": "key", "UploadId": "u", "MultipartUpload": []}),
    ("complete_multipart_upload", {"Key": "key", "UploadId": "u", "MultipartUpload": {"Parts": [5]}}),
    ("put_object_tagging", {"Key": "key", "Tagging": {"TagSet": [5]}}),
    ("put_object_tagging", {"Key": "key", "Tagging": {"TagSet": [{"Key": "a", "Value": 5}]}}),
    ("copy_object", {"Key": "key", "CopySource": 5}),
]


@pytest.mark.parametrize(("name", "parameters"), WRONG_TYPES)
def test_botocore_refuses_wrong_types(
    clients: tuple[Any, Any], name: str, parameters: dict[str, Any]
) -> None:
    within, _ = clients
    with pytest.raises(ParamValidationError):
        getattr(within, name)(**{"Bucket": BUCKET, **parameters})


def test_metadata_must_be_ascii(clients: tuple[Any, Any]) -> None:
    within, _ = clients
    within.put_object(Bucket=BUCKET, Key="key")
    source = f"{BUCKET}/key"
    for metadata in ({"place": "Jülich"}, {"straße": "1"}):
        for call, more in (
            (within.put_object, {}),
            (within.create_multipart_upload, {}),
            (within.copy_object, {"CopySource": source, "MetadataDirective": "REPLACE"}),
        ):
            with pytest.raises(ParamValidationError, match="Non ascii"):
                call(Bucket=BUCKET, Key="other", Metadata=metadata, **more)


def test_metadata_names_that_differ_only_in_case_are_refused(clients: tuple[Any, Any]) -> None:
    within, _ = clients
    within.put_object(Bucket=BUCKET, Key="key")
    for call, more in (
        (within.put_object, {}),
        (within.create_multipart_upload, {}),
        (within.copy_object, {"CopySource": f"{BUCKET}/key", "MetadataDirective": "REPLACE"}),
    ):
        with pytest.raises(ClientError, match=r'InvalidArgument.*"A" and "a" in'):
            call(Bucket=BUCKET, Key="other", Metadata={"a": "1", "A": "2"}, **more)


@pytest.mark.parametrize("size", [10, 1_100_000])
def test_the_position_of_a_closed_body_is_kept(clients: tuple[Any, Any], size: int) -> None:
    for client in clients:
        client.put_object(Bucket=BUCKET, Key="key", Body=bytes(size))
        bodies = [client.get_object(Bucket=BUCKET, Key="key")["Body"] for _ in range(3)]
        with bodies[0] as raw:
            raw.read(2)
        bodies[1].read(3)
        bodies[1].close()
        bodies[2].read()
        assert bodies[2].tell() == size
        bodies[2].close()
        assert [body.tell() for body in bodies] == [2, 3, size]


def test_metadata_of_other_programs_is_encoded(clients: tuple[Any, Any], tmp_path: Path) -> None:
    within, through = clients
    with fordway.open(tmp_path / "root") as store:
        metadata = {"place": "Jülich", "spaced": " a  b ", "plain": "a b", "marked": "=?x", "double": "a  b"}
        metadata["literal"] = "=?UTF-8?B?w6Q=?="
        store.put(BUCKET, "key", b"abc", metadata=metadata)
    for call in ("get_object", "head_object"):
        assert outcome(within, call, {"Key": "key"}) == outcome(through, call, {"Key": "key"})


@pytest.mark.parametrize("wanted", [None, "bytes=100-", "bytes=-2500000"])
def test_a_body_is_read_from_the_object_that_was_opened(clients: tuple[Any, Any], wanted: str | None) -> None:
    within, _ = clients
    old = os.urandom(3_000_000)
    within.put_object(Bucket=BUCKET, Key="key", Body=old)
    asked = {"Range": wanted} if wanted else {}
    bodies = [within.get_object(Bucket=BUCKET, Key="key", **asked)["Body"] for _ in range(3)]
    start = bodies[0].read(1000)
    within.put_object(Bucket=BUCKET, Key="key", Body=os.urandom(3_000_000))
    middle = b"".join(bodies[1].iter_chunks(70_001))
    within.delete_object(Bucket=BUCKET, Key="key")
    content = {None: old, "bytes=100-": old[100:], "bytes=-2500000": old[-2_500_000:]}[wanted]
    assert start + bodies[0].read() == content
    assert middle == bodies[2].read() == content


def test_long_bodies_hold_a_file_until_they_are_read_or_closed(clients: tuple[Any, Any]) -> None:
    within, _ = clients
    within.put_object(Bucket=BUCKET, Key="long", Body=bytes(1_100_000))
    within.put_object(Bucket=BUCKET, Key="short", Body=bytes(1_000_000))

    def files() -> int:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 (without a file of its own)

    within.get_object(Bucket=BUCKET, Key="long")["Body"].read()
    before = files()
    short = [within.get_object(Bucket=BUCKET, Key="short") for _ in range(10)]
    assert files() == before
    long = [within.get_object(Bucket=BUCKET, Key="long")["Body"] for _ in range(10)]
    assert files() == before + 10
    for body in long[:5]:
        body.read()
    for body in long[5:]:
        body.close()
    assert files() == before
    assert sum(len(response["Body"].read()) for response in short) == 10_000_000


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
@pytest.mark.parametrize("scheme", ["file://", ""])
def test_the_endpoint_of_the_environment_may_be_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, scheme: str
) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "FORDWAY_STORE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, f"{scheme}{tmp_path}")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    (tmp_path / BUCKET).mkdir()
    fordway.boto.install()
    try:
        for made in (
            boto3.session.Session().client("s3"),
            boto3.session.Session().resource("s3").meta.client,
        ):
            made.put_object(Bucket=BUCKET, Key="key", Body=b"abc")
            assert made.get_object(Bucket=BUCKET, Key="key")["Body"].read() == b"abc"
            with pytest.raises(UnsupportedError, match="PutBucketAcl"):
                made.put_bucket_acl(Bucket=BUCKET, ACL="private")
    finally:
        fordway.boto.uninstall()
    with pytest.raises(ValueError, match="Invalid endpoint"):
        boto3.session.Session().client("s3")


@pytest.mark.parametrize("endpoint_url", ["https://s3.us-east-1.amazonaws.com", "https://s3.example.org"])
def test_an_endpoint_that_the_program_selected_is_used(clients: tuple[Any, Any], endpoint_url: str) -> None:
    class SentError(Exception):
        pass

    def sent(request: Any, **_: object) -> None:  # noqa: ANN401
        raise SentError(request.url)

    session = boto3.session.Session()
    for client in (
        session.client("s3", endpoint_url=endpoint_url),
        session.resource("s3", endpoint_url=endpoint_url).meta.client,
    ):
        assert client._fordway_is_watched
        client.meta.events.register("before-send.s3", sent)
        with pytest.raises(SentError, match=endpoint_url.removeprefix("https://")):
            client.get_object(Bucket=BUCKET, Key="key")
    named = session.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    assert not named._fordway_is_watched


class SlowCounter(Counter[tuple[str, str]]):
    """A counter that sleeps between reading and writing a count, so that another thread can run in
    between.
    """

    def __getitem__(self, name: tuple[str, str]) -> int:
        found = super().__getitem__(name)
        time.sleep(0.0001)
        return found


def test_calls_of_several_threads_are_all_counted(
    clients: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    within, _ = clients
    monkeypatch.setattr(fordway.boto, "answered", SlowCounter())

    def work() -> None:
        for _ in range(20):
            within.head_bucket(Bucket=BUCKET)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fordway.boto.answered["HeadBucket", "in process"] == 80
