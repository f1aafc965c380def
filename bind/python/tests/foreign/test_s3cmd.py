"""Tests s3cmd, which uses multipart uploads for files of 15 MiB or more, and many bucket-level requests."""

from __future__ import annotations

import subprocess
from urllib.parse import urlsplit

import pytest
from conftest import Gateway, digest, program


@pytest.fixture
def s3cmd(gateway: Gateway, tmp_path):
    """Returns a function that runs `s3cmd ARGUMENTS` and returns its output."""
    scheme, host = urlsplit(gateway.endpoint)[:2]
    config = tmp_path / "s3cfg"
    config.write_text(
        f"[default]\naccess_key = {gateway.access_key}\nsecret_key = {gateway.secret_key}\n"
        f"host_base = {host}\nhost_bucket = {host}\nuse_https = {scheme == 'https'}\n"
        f"ca_certs_file = {gateway.ca or ''}\n"
    )
    command = program("s3cmd")

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [command, "-c", str(config), "--no-progress", *arguments],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_tour(s3cmd, gateway: Gateway, bucket: str, tmp_path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"some bytes")
    s3cmd("mb", f"s3://{bucket}")
    assert bucket in s3cmd("ls")
    s3cmd("put", str(source), f"s3://{bucket}/dir/a b+c")
    gateway.assert_stored(bucket, "dir/a b+c", b"some bytes")
    assert "a b+c" in s3cmd("ls", f"s3://{bucket}/dir/")
    assert "FULL_CONTROL" in s3cmd("info", f"s3://{bucket}/dir/a b+c")
    assert bucket in s3cmd("info", f"s3://{bucket}")
    s3cmd("get", f"s3://{bucket}/dir/a b+c", str(target))
    assert target.read_bytes() == b"some bytes"
    s3cmd("cp", f"s3://{bucket}/dir/a b+c", f"s3://{bucket}/copy")
    gateway.assert_stored(bucket, "copy", b"some bytes")
    s3cmd("del", "--recursive", "--force", f"s3://{bucket}")
    gateway.assert_gone(bucket, "copy")
    s3cmd("rb", f"s3://{bucket}")
    assert bucket not in s3cmd("ls")


def test_multipart(s3cmd, gateway: Gateway, bucket: str, large: bytes, tmp_path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(large)
    s3cmd("mb", f"s3://{bucket}")
    s3cmd("put", str(source), f"s3://{bucket}/large")
    gateway.assert_stored(bucket, "large", large)
    s3cmd("get", f"s3://{bucket}/large", str(target))
    assert digest(target.read_bytes()) == digest(large)
    s3cmd("rb", "--recursive", "--force", f"s3://{bucket}")
