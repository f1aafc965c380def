"""Tests curl, which can sign requests, over each version of HTTP."""

from __future__ import annotations

import subprocess

import pytest
from conftest import Gateway, digest, program


@pytest.fixture(params=["--http1.1", "--http2"])
def curl(request: pytest.FixtureRequest, gateway: Gateway):
    """Returns a function that runs `curl ARGUMENTS URL`, checks the HTTP version, and returns the response
    body.
    """
    command, version = program("curl"), request.param
    in_the_clear = version == "--http2" and gateway.endpoint.startswith("http:")
    option = "--http2-prior-knowledge" if in_the_clear else version

    def run(path: str, *arguments: str) -> bytes:
        signing = ["--aws-sigv4", "aws:amz:us-east-1:s3"]
        signing += ["--user", f"{gateway.access_key}:{gateway.secret_key}"]
        # S3 requires this header, and curl before 8.1 does not send it by default.
        signing += ["--header", "x-amz-content-sha256: UNSIGNED-PAYLOAD"]
        written = ["--silent", "--show-error", "--fail", "--write-out", "%{stderr}%{http_version}"]
        done = subprocess.run(
            [command, option, *signing, *written, *arguments, f"{gateway.endpoint}/{path}"],
            env=gateway.environment,
            capture_output=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        # With TLS, the gateway prefers HTTP/1.1, and curl offers both versions.
        assert done.stderr.decode() == ("2" if in_the_clear else "1.1")
        return done.stdout

    return run


def test_tour(curl, gateway: Gateway, bucket: str, tmp_path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"some bytes")
    curl(bucket, "--request", "PUT")
    curl(f"{bucket}/dir/file", "--upload-file", str(source))
    gateway.assert_stored(bucket, "dir/file", b"some bytes")
    assert curl(f"{bucket}/dir/file") == b"some bytes"
    assert curl(f"{bucket}/dir/file", "--range", "5-7") == b"byt"
    assert b"content-length: 10" in curl(f"{bucket}/dir/file", "--head").lower()
    assert b"<Key>dir/file</Key>" in curl(f"{bucket}?list-type=2")
    curl(f"{bucket}/dir/file", "--request", "DELETE")
    gateway.assert_gone(bucket, "dir/file")
    curl(bucket, "--request", "DELETE")


def test_large(curl, gateway: Gateway, bucket: str, large: bytes, tmp_path) -> None:
    source = tmp_path / "source"
    source.write_bytes(large)
    curl(bucket, "--request", "PUT")
    curl(f"{bucket}/large", "--upload-file", str(source))
    gateway.assert_stored(bucket, "large", large)
    assert digest(curl(f"{bucket}/large")) == digest(large)
    curl(f"{bucket}/large", "--request", "DELETE")
    curl(bucket, "--request", "DELETE")
