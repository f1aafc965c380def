"""Tests boto3 with its defaults, which verify every checksum that the server returns."""

from __future__ import annotations

import io
import subprocess

import pytest
from conftest import Gateway, digest, missing, program


@pytest.fixture
def s3(gateway: Gateway):
    """A client of the gateway."""
    try:
        import boto3
    except ImportError:
        missing("boto3")
    return boto3.client("s3", **gateway.boto_arguments)


def code(error) -> str:
    """Returns the S3 error code of a ClientError."""
    return error.value.response["Error"]["Code"]


def test_tour(s3, gateway: Gateway, bucket: str) -> None:
    s3.create_bucket(Bucket=bucket)
    s3.put_object(Bucket=bucket, Key="dir/ü k", Body=b"bytes", ContentType="text/plain", Metadata={"m": "1"})
    gateway.assert_stored(bucket, "dir/ü k", b"bytes")
    got = s3.get_object(Bucket=bucket, Key="dir/ü k")
    assert (got["Body"].read(), got["ContentType"], got["Metadata"]) == (b"bytes", "text/plain", {"m": "1"})
    part = s3.get_object(Bucket=bucket, Key="dir/ü k", Range="bytes=1-2")
    assert (part["Body"].read(), part["ContentRange"]) == (b"yt", "bytes 1-2/5")
    assert s3.head_object(Bucket=bucket, Key="dir/ü k")["ContentLength"] == 5
    s3.copy_object(Bucket=bucket, Key="copy", CopySource={"Bucket": bucket, "Key": "dir/ü k"})
    gateway.assert_stored(bucket, "copy", b"bytes")
    s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "copy"}, {"Key": "dir/ü k"}]})
    gateway.assert_gone(bucket, "copy")
    with pytest.raises(s3.exceptions.NoSuchKey):
        s3.get_object(Bucket=bucket, Key="copy")
    s3.delete_bucket(Bucket=bucket)
    with pytest.raises(s3.exceptions.ClientError) as error:
        s3.head_bucket(Bucket=bucket)
    assert code(error) == "404"


@pytest.mark.parametrize("algorithm", ["CRC32", "SHA1", "SHA256", "SHA512"])
def test_checksums(s3, bucket: str, algorithm: str) -> None:
    s3.create_bucket(Bucket=bucket)
    put = s3.put_object(Bucket=bucket, Key="k", Body=b"bytes", ChecksumAlgorithm=algorithm)
    got = s3.get_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    assert got[f"Checksum{algorithm}"] == put[f"Checksum{algorithm}"]
    assert got["Body"].read() == b"bytes"
    wrong = {f"Checksum{algorithm}": put[f"Checksum{algorithm}"]}
    with pytest.raises(s3.exceptions.ClientError) as error:
        s3.put_object(Bucket=bucket, Key="wrong", Body=b"other", **wrong)
    assert code(error) == "BadDigest"
    assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == 1


def test_listing_pages(s3, bucket: str) -> None:
    s3.create_bucket(Bucket=bucket)
    keys = [f"p/{number:03} +ü" for number in range(25)] + ["q/x", "r"]
    for key in keys:
        s3.put_object(Bucket=bucket, Key=key, Body=b"")
    for operation in ("list_objects_v2", "list_objects"):
        pages = s3.get_paginator(operation).paginate(Bucket=bucket, PaginationConfig={"PageSize": 10})
        assert [entry["Key"] for page in pages for entry in page["Contents"]] == keys
    rolled = s3.list_objects_v2(Bucket=bucket, Delimiter="/")
    assert [entry["Prefix"] for entry in rolled["CommonPrefixes"]] == ["p/", "q/"]


def test_conditions(s3, bucket: str) -> None:
    s3.create_bucket(Bucket=bucket)
    tag = s3.put_object(Bucket=bucket, Key="k", Body=b"1", IfNoneMatch="*")["ETag"]
    with pytest.raises(s3.exceptions.ClientError) as error:
        s3.put_object(Bucket=bucket, Key="k", Body=b"2", IfNoneMatch="*")
    assert code(error) == "PreconditionFailed"
    s3.put_object(Bucket=bucket, Key="k", Body=b"2", IfMatch=tag)
    with pytest.raises(s3.exceptions.ClientError) as error:
        s3.put_object(Bucket=bucket, Key="k", Body=b"3", IfMatch=tag)
    assert code(error) == "PreconditionFailed"
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"2"


def test_multipart(s3, gateway: Gateway, bucket: str, large: bytes) -> None:
    s3.create_bucket(Bucket=bucket)
    s3.upload_fileobj(io.BytesIO(large), bucket, "large")
    gateway.assert_stored(bucket, "large", large)
    taken = io.BytesIO()
    s3.download_fileobj(bucket, "large", taken)
    assert digest(taken.getvalue()) == digest(large)

    started = s3.create_multipart_upload(Bucket=bucket, Key="never")
    s3.upload_part(Bucket=bucket, Key="never", UploadId=started["UploadId"], PartNumber=1, Body=b"part")
    assert len(s3.list_multipart_uploads(Bucket=bucket)["Uploads"]) == 1
    s3.abort_multipart_upload(Bucket=bucket, Key="never", UploadId=started["UploadId"])
    assert "Uploads" not in s3.list_multipart_uploads(Bucket=bucket)
    gateway.assert_gone(bucket, "never")


def test_forms(s3, gateway: Gateway, bucket: str, tmp_path) -> None:
    """Boto3 signs a form, and curl sends the form as a browser would. By default, boto3 signs with Signature
    Version 2.
    """
    s3.create_bucket(Bucket=bucket)
    from boto3 import client
    from botocore.config import Config

    signer = client("s3", **gateway.boto_arguments, config=Config(signature_version="s3v4"))
    source = tmp_path / "a file.txt"
    source.write_bytes(b"from a form\r\n--")

    def send(form: dict, *more: str) -> str:
        pairs = [f"{name}={value}" for name, value in form["fields"].items()]
        fields = [word for pair in pairs for word in ("--form-string", pair)]
        command = [program("curl"), "--silent", "--show-error", "--write-out", "%{http_code}", *fields, *more]
        done = subprocess.run(
            [*command, "--form", f"file=@{source}", form["url"]],
            env=gateway.environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    limit = [["content-length-range", 1, 100], ["eq", "$x-amz-meta-colour", "red"]]
    form = signer.generate_presigned_post(
        bucket, "up/${filename}", Fields={"x-amz-meta-colour": "red"}, Conditions=limit, ExpiresIn=60
    )
    assert send(form) == "204"
    gateway.assert_stored(bucket, "up/a file.txt", b"from a form\r\n--")
    assert s3.head_object(Bucket=bucket, Key="up/a file.txt")["Metadata"] == {"colour": "red"}
    assert send(form, "--form-string", "acl=private").endswith("403")
    source.write_bytes(b"x" * 101)
    assert send(form).endswith("400")
    gateway.assert_stored(bucket, "up/a file.txt", b"from a form\r\n--")
    old = s3.generate_presigned_post(bucket, "old")
    assert "signature_version='s3v4'" in send(old).replace("&apos;", "'")
    expired = signer.generate_presigned_post(bucket, "late", ExpiresIn=-1)
    assert send(expired).endswith("403")
    gateway.assert_gone(bucket, "late")
