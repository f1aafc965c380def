"""Tests rclone, which stores a file's modification time in metadata and compares MD5s after every
transfer.
"""

from __future__ import annotations

import os
import subprocess

import pytest
from conftest import Gateway, digest, program


@pytest.fixture
def rclone(gateway: Gateway):
    """Returns a function that runs `rclone ARGUMENTS`, with the gateway as the remote `fw`, and returns its
    output.
    """
    command = program("rclone")
    environment = gateway.environment | {
        "RCLONE_CONFIG": os.devnull,
        "RCLONE_CONFIG_FW_TYPE": "s3",
        "RCLONE_CONFIG_FW_PROVIDER": "Other",
        "RCLONE_CONFIG_FW_ACCESS_KEY_ID": gateway.access_key,
        "RCLONE_CONFIG_FW_SECRET_ACCESS_KEY": gateway.secret_key,
        "RCLONE_CONFIG_FW_ENDPOINT": gateway.endpoint,
        "RCLONE_RETRIES": "1",
    }
    # rclone's own HTTP transport ignores AWS_CA_BUNDLE, but reads Go's SSL_CERT_FILE.
    environment.pop("AWS_CA_BUNDLE", None)

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [command, *arguments], env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_tour(rclone, gateway: Gateway, bucket: str, tmp_path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"some bytes")
    rclone("mkdir", f"fw:{bucket}")
    assert bucket in rclone("lsd", "fw:")
    rclone("copyto", str(source), f"fw:{bucket}/dir/a b+c")
    gateway.assert_stored(bucket, "dir/a b+c", b"some bytes")
    assert rclone("lsf", "-R", "--files-only", f"fw:{bucket}") == "dir/a b+c\n"
    assert rclone("size", f"fw:{bucket}").splitlines()[0].endswith("1 (1)")
    rclone("copyto", f"fw:{bucket}/dir/a b+c", str(target))
    assert target.read_bytes() == b"some bytes"
    assert int(target.stat().st_mtime) == int(source.stat().st_mtime)
    rclone("moveto", f"fw:{bucket}/dir/a b+c", f"fw:{bucket}/moved")
    gateway.assert_stored(bucket, "moved", b"some bytes")
    rclone("purge", f"fw:{bucket}")
    gateway.assert_gone(bucket, "moved")
    assert bucket not in rclone("lsd", "fw:")


def test_multipart(rclone, gateway: Gateway, bucket: str, large: bytes, tmp_path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(large)
    rclone("mkdir", f"fw:{bucket}")
    rclone("copyto", "--s3-upload-cutoff", "16M", str(source), f"fw:{bucket}/large")
    gateway.assert_stored(bucket, "large", large)
    rclone("copyto", f"fw:{bucket}/large", str(target))
    assert digest(target.read_bytes()) == digest(large)
    rclone("purge", f"fw:{bucket}")
