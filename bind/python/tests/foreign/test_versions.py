"""Tests versions, tags, attributes and checksums of parts with boto3 and the AWS command line."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import zlib

import pytest
from conftest import Gateway, missing, program

PART_BYTES = 5 * 1024 * 1024


@pytest.fixture
def s3(gateway: Gateway):
    """A client of the gateway."""
    try:
        import boto3
    except ImportError:
        missing("boto3")
    return boto3.client("s3", **gateway.boto_arguments)


@pytest.fixture
def versioned(s3, bucket: str) -> str:
    """A bucket that keeps versions."""
    s3.create_bucket(Bucket=bucket)
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    return bucket


def code(error) -> str:
    """Returns the S3 error code of a ClientError."""
    return error.value.response["Error"]["Code"]


def test_versions(s3, versioned: str) -> None:
    assert s3.get_bucket_versioning(Bucket=versioned)["Status"] == "Enabled"
    one, two = (
        s3.put_object(Bucket=versioned, Key="d/ü k", Body=body)["VersionId"] for body in (b"1", b"22")
    )
    assert s3.get_object(Bucket=versioned, Key="d/ü k", VersionId=one)["Body"].read() == b"1"
    assert s3.head_object(Bucket=versioned, Key="d/ü k")["VersionId"] == two
    marked = s3.delete_object(Bucket=versioned, Key="d/ü k")
    assert marked["DeleteMarker"]
    with pytest.raises(s3.exceptions.NoSuchKey):
        s3.get_object(Bucket=versioned, Key="d/ü k")
    with pytest.raises(s3.exceptions.ClientError) as error:
        s3.get_object(Bucket=versioned, Key="d/ü k", VersionId=marked["VersionId"])
    assert code(error) == "MethodNotAllowed"

    listed = s3.list_object_versions(Bucket=versioned, Prefix="d/")
    found = [(entry["VersionId"], entry["IsLatest"], entry["Size"]) for entry in listed["Versions"]]
    assert found == [(two, False, 2), (one, False, 1)]
    assert [entry["IsLatest"] for entry in listed["DeleteMarkers"]] == [True]
    s3.delete_object(Bucket=versioned, Key="d/ü k", VersionId=marked["VersionId"])
    assert s3.get_object(Bucket=versioned, Key="d/ü k")["Body"].read() == b"22"
    source = {"Bucket": versioned, "Key": "d/ü k", "VersionId": one}
    assert s3.copy_object(Bucket=versioned, Key="d/ü k", CopySource=source)["CopySourceVersionId"] == one
    assert s3.get_object(Bucket=versioned, Key="d/ü k")["Body"].read() == b"1"


def test_pages_of_versions_and_their_removal(s3, versioned: str) -> None:
    for number in range(7):
        s3.put_object(Bucket=versioned, Key=f"p/{number % 3} +", Body=b"x")
    s3.delete_object(Bucket=versioned, Key="p/0 +")
    pages = s3.get_paginator("list_object_versions").paginate(
        Bucket=versioned, PaginationConfig={"PageSize": 2}
    )
    pages = list(pages)
    entries = [entry for page in pages for entry in page.get("Versions", []) + page.get("DeleteMarkers", [])]
    assert (len(pages), len(entries)) == (4, 8)
    assert len({(entry["Key"], entry["VersionId"]) for entry in entries}) == 8
    rolled = s3.list_object_versions(Bucket=versioned, Delimiter="/")
    assert [entry["Prefix"] for entry in rolled["CommonPrefixes"]] == ["p/"]
    objects = [{"Key": entry["Key"], "VersionId": entry["VersionId"]} for entry in entries]
    done = s3.delete_objects(Bucket=versioned, Delete={"Objects": objects})
    assert (len(done["Deleted"]), "Errors" in done) == (8, False)
    s3.delete_bucket(Bucket=versioned)


def test_suspended(s3, versioned: str) -> None:
    kept = s3.put_object(Bucket=versioned, Key="k", Body=b"kept")["VersionId"]
    s3.put_bucket_versioning(Bucket=versioned, VersioningConfiguration={"Status": "Suspended"})
    assert "VersionId" not in s3.put_object(Bucket=versioned, Key="k", Body=b"null")
    listed = s3.list_object_versions(Bucket=versioned)["Versions"]
    assert [entry["VersionId"] for entry in listed] == ["null", kept]


def test_tags(s3, bucket: str) -> None:
    s3.create_bucket(Bucket=bucket)
    s3.put_object(Bucket=bucket, Key="k", Body=b"x", Tagging="a=1&b%20c=%C3%BC")
    wanted = [{"Key": "a", "Value": "1"}, {"Key": "b c", "Value": "ü"}]
    assert s3.get_object_tagging(Bucket=bucket, Key="k")["TagSet"] == wanted
    assert s3.get_object(Bucket=bucket, Key="k")["TagCount"] == 2
    source = {"Bucket": bucket, "Key": "k"}
    s3.copy_object(Bucket=bucket, Key="kept", CopySource=source)
    assert s3.get_object_tagging(Bucket=bucket, Key="kept")["TagSet"] == wanted
    s3.copy_object(Bucket=bucket, Key="new", CopySource=source, TaggingDirective="REPLACE", Tagging="n=2")
    assert s3.get_object_tagging(Bucket=bucket, Key="new")["TagSet"] == [{"Key": "n", "Value": "2"}]
    s3.put_object_tagging(Bucket=bucket, Key="k", Tagging={"TagSet": [{"Key": "only", "Value": ""}]})
    assert s3.get_object_tagging(Bucket=bucket, Key="k")["TagSet"] == [{"Key": "only", "Value": ""}]
    many = [{"Key": str(number), "Value": ""} for number in range(11)]
    with pytest.raises(s3.exceptions.ClientError) as error:
        s3.put_object_tagging(Bucket=bucket, Key="k", Tagging={"TagSet": many})
    assert code(error) == "BadRequest"
    s3.delete_object_tagging(Bucket=bucket, Key="k")
    assert s3.get_object_tagging(Bucket=bucket, Key="k")["TagSet"] == []


@pytest.mark.parametrize(
    ("algorithm", "kind"),
    [
        ("CRC32", "COMPOSITE"),
        ("CRC32", "FULL_OBJECT"),
        ("SHA256", "COMPOSITE"),
    ],
)
def test_multipart_checksums(s3, bucket: str, algorithm: str, kind: str) -> None:
    s3.create_bucket(Bucket=bucket)
    bodies = [b"\x07" * PART_BYTES, b"tail"]
    field = f"Checksum{algorithm}"
    upload = {"Bucket": bucket, "Key": "k"}
    started = s3.create_multipart_upload(**upload, ChecksumAlgorithm=algorithm, ChecksumType=kind)
    assert (started["ChecksumAlgorithm"], started["ChecksumType"]) == (algorithm, kind)
    upload["UploadId"] = started["UploadId"]
    parts = []
    for number, body in enumerate(bodies, 1):
        made = s3.upload_part(**upload, PartNumber=number, Body=body, ChecksumAlgorithm=algorithm)
        parts.append({"PartNumber": number, "ETag": made["ETag"], field: made[field]})
    assert [part[field] for part in s3.list_parts(**upload)["Parts"]] == [part[field] for part in parts]
    wrong = [parts[0] | {field: parts[1][field]}, parts[1]]
    with pytest.raises(s3.exceptions.ClientError) as error:
        s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": wrong})
    assert code(error) == "InvalidPart"
    done = s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts}, ChecksumType=kind)
    assert done["ChecksumType"] == kind
    if (algorithm, kind) == ("CRC32", "FULL_OBJECT"):
        whole = zlib.crc32(b"".join(bodies)).to_bytes(4, "big")
        assert done[field] == base64.b64encode(whole).decode()
    if algorithm == "SHA256":
        joined = hashlib.sha256(b"".join(hashlib.sha256(body).digest() for body in bodies)).digest()
        assert done[field] == base64.b64encode(joined).decode() + "-2"

    wanted = ["ETag", "Checksum", "ObjectParts", "ObjectSize", "StorageClass"]
    attributes = s3.get_object_attributes(Bucket=bucket, Key="k", ObjectAttributes=wanted)
    assert attributes["ObjectSize"] == PART_BYTES + 4
    # In this response, AWS omits the number of parts from the checksum.
    assert attributes["Checksum"][field] == done[field].removesuffix("-2")
    assert attributes["ObjectParts"]["TotalPartsCount"] == 2
    assert [part["Size"] for part in attributes["ObjectParts"]["Parts"]] == [PART_BYTES, 4]
    part = s3.get_object(Bucket=bucket, Key="k", PartNumber=2)
    assert (part["Body"].read(), part["PartsCount"]) == (b"tail", 2)
    assert s3.head_object(Bucket=bucket, Key="k", PartNumber=1)["ContentLength"] == PART_BYTES
    # The client compares the content that it reads with a checksum of the whole object.
    assert s3.get_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")["Body"].read() == b"".join(bodies)


def test_a_crc64nvme_that_the_caller_computed(s3, bucket: str) -> None:
    """Uses the check value from the CRC catalogue, because boto3 needs another package to compute this
    checksum.
    """
    s3.create_bucket(Bucket=bucket)
    upload = {"Bucket": bucket, "Key": "k"}
    started = s3.create_multipart_upload(**upload, ChecksumAlgorithm="CRC64NVME")
    assert started["ChecksumType"] == "FULL_OBJECT"
    upload["UploadId"] = started["UploadId"]
    check = {"ChecksumCRC64NVME": "rosUhgp5mIg="}
    made = s3.upload_part(**upload, PartNumber=1, Body=b"123456789", **check)
    part = {"PartNumber": 1, "ETag": made["ETag"], **check}
    done = s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": [part]}, MpuObjectSize=9, **check)
    assert done["ChecksumCRC64NVME"] == check["ChecksumCRC64NVME"]


def test_aws_command_line(gateway: Gateway, bucket: str, tmp_path) -> None:
    command = program("aws")

    def api(*arguments: str) -> dict:
        done = subprocess.run(
            [command, "s3api", *arguments, "--output", "json"],
            env=gateway.environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout or "{}")

    body, taken = tmp_path / "body", tmp_path / "taken"
    there = ["--bucket", bucket, "--key", "dir/a b"]
    api("create-bucket", "--bucket", bucket)
    api("put-bucket-versioning", "--bucket", bucket, "--versioning-configuration", "Status=Enabled")
    versions = []
    for text in ("older", "newer"):
        body.write_text(text)
        versions.append(api("put-object", *there, "--body", str(body), "--tagging", "state=raw")["VersionId"])
    api("get-object", *there, "--version-id", versions[0], str(taken))
    assert taken.read_text() == "older"
    assert api("get-object-tagging", *there)["TagSet"] == [{"Key": "state", "Value": "raw"}]
    assert api("delete-object", *there)["DeleteMarker"]
    listed = api("list-object-versions", "--bucket", bucket)
    assert [entry["VersionId"] for entry in listed["Versions"]] == versions[::-1]
    assert len(listed["DeleteMarkers"]) == 1
