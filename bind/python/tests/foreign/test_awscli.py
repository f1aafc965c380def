"""Tests the AWS command line with its defaults: CRC trailers, and multipart uploads for files of 8 MiB or
more.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from conftest import Gateway, digest, program


@pytest.fixture
def aws(gateway: Gateway):
    """Returns a function that runs `aws ARGUMENTS` and returns its output."""
    command = program("aws")

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [command, *arguments], env=gateway.environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_tour(aws, gateway: Gateway, bucket: str, tmp_path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"some bytes")
    aws("s3", "mb", f"s3://{bucket}")
    assert bucket in aws("s3", "ls")
    aws("s3", "cp", str(source), f"s3://{bucket}/dir/a b+c", "--metadata", "colour=blue")
    gateway.assert_stored(bucket, "dir/a b+c", b"some bytes")
    assert "a b+c" in aws("s3", "ls", f"s3://{bucket}/dir/")
    head = json.loads(
        aws("s3api", "head-object", "--bucket", bucket, "--key", "dir/a b+c", "--output", "json")
    )
    assert (head["ContentLength"], head["Metadata"]) == (10, {"colour": "blue"})
    aws("s3", "cp", f"s3://{bucket}/dir/a b+c", str(target))
    assert target.read_bytes() == b"some bytes"
    aws("s3", "mv", f"s3://{bucket}/dir/a b+c", f"s3://{bucket}/moved")
    gateway.assert_stored(bucket, "moved", b"some bytes")
    gateway.assert_gone(bucket, "dir/a b+c")
    aws("s3", "rb", "--force", f"s3://{bucket}")
    assert bucket not in aws("s3", "ls")


def test_multipart(aws, gateway: Gateway, bucket: str, large: bytes, tmp_path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(large)
    aws("s3", "mb", f"s3://{bucket}")
    aws("s3", "cp", "--no-progress", str(source), f"s3://{bucket}/large")
    gateway.assert_stored(bucket, "large", large)
    aws("s3", "cp", "--no-progress", f"s3://{bucket}/large", str(target))
    assert digest(target.read_bytes()) == digest(large)
    aws("s3", "rb", "--force", f"s3://{bucket}")


def test_sync(aws, bucket: str, tmp_path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    for number in range(30):
        path = source / f"d{number % 3}" / f"file {number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(number))
    aws("s3", "mb", f"s3://{bucket}")
    aws("s3", "sync", str(source), f"s3://{bucket}/tree")
    assert aws("s3", "sync", str(source), f"s3://{bucket}/tree") == ""
    aws("s3", "sync", f"s3://{bucket}/tree", str(target))
    assert sorted(path.read_text() for path in target.rglob("file *")) == sorted(map(str, range(30)))
    aws("s3", "rb", "--force", f"s3://{bucket}")


def test_calls_in_the_process_print_the_same(aws, gateway: Gateway, bucket: str, tmp_path) -> None:
    if gateway.root is None:
        pytest.skip("the gateway's directory is not known")
    source = tmp_path / "source"
    source.write_bytes(b"some bytes")
    aws("s3", "mb", f"s3://{bucket}")
    # Without the `fordway` program, there is no gateway that could respond.
    variables = gateway.environment | {"FORDWAY_BIN": "/nonesuch"}
    launch = [sys.executable, "-m", "fordway.launch", "--root", str(gateway.root), "--explain", "--"]

    def within(*arguments: str) -> str:
        done = subprocess.run(
            [*launch, program("aws"), *arguments], env=variables, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        assert "in process" in done.stderr and "botocore" not in done.stderr, done.stderr
        return done.stdout

    within("s3", "cp", "--no-progress", str(source), f"s3://{bucket}/dir/key")
    gateway.assert_stored(bucket, "dir/key", b"some bytes")
    assert within("s3", "ls", f"s3://{bucket}/dir/") == aws("s3", "ls", f"s3://{bucket}/dir/") != ""
    of_object = ["s3api", "head-object", "--bucket", bucket, "--key", "dir/key", "--output", "json"]
    ours, theirs = json.loads(within(*of_object)), json.loads(aws(*of_object))
    assert ours == theirs and ours["LastModified"].endswith(" GMT")
    of_bucket = ["s3api", "list-objects-v2", "--bucket", bucket, "--output", "json"]
    ours, theirs = (json.loads(run(*of_bucket))["Contents"][0] for run in (within, aws))
    # Listings in the process contain no checksums.
    assert ours == {name: value for name, value in theirs.items() if not name.startswith("Checksum")}
    assert ours["LastModified"].endswith("Z")
    assert within("s3", "cp", f"s3://{bucket}/dir/key", "-") == "some bytes"
    aws("s3", "rb", "--force", f"s3://{bucket}")
