"""Tests `fordway env PROGRAM`: the printed settings must suffice for the program to use the gateway."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from conftest import Gateway, missing, program

if TYPE_CHECKING:
    from pathlib import Path

CONTENT = b"some bytes"

# Each program runs after the lines that `fordway env` prints for it, and writes the object `python`. BUCKET
# is replaced by the name of a bucket.
PYTHON = {
    "boto3": "s3.put_object(Bucket='BUCKET', Key='python', Body=b'some bytes')",
    "s3fs": "files.pipe('BUCKET/python', b'some bytes')",
    "pyarrow": "with files.open_output_stream('BUCKET/python') as out: out.write(b'some bytes')",
    "obstore": "import obstore; obstore.put(store, 'python', b'some bytes')",
    # The tests do not install Polars. The tested options belong to the library that Polars and delta-rs both
    # use.
    "polars": (
        "import pyarrow, deltalake\n"
        "deltalake.write_deltalake('s3://BUCKET/table', pyarrow.table({'a': [1]}),"
        " storage_options=storage_options)\n"
        "assert deltalake.DeltaTable('s3://BUCKET/table', storage_options=storage_options).version() == 0"
    ),
}


def settings(gateway: Gateway, tool: str) -> str:
    """Returns the output of `fordway env TOOL` for the gateway."""
    binary = shutil.which(os.environ.get("FORDWAY_BIN", "fordway"))
    if binary is None:
        missing("fordway")
    done = subprocess.run([binary, "env", tool], env=gateway.environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def outside(gateway: Gateway, **more: str | Path) -> dict[str, str]:
    """Returns an environment without S3 settings. Only the trusted certificates are named, for programs
    without a separate setting for certificates.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    trust = {"SSL_CERT_FILE": str(gateway.ca)} if gateway.ca else {}
    return kept | trust | {name: str(value) for name, value in more.items()}


def run(command: list[str | Path], environment: dict[str, str]) -> bytes:
    done = subprocess.run(command, env=environment, capture_output=True, timeout=120)
    assert done.returncode == 0, (command, done.stderr.decode())
    return done.stdout


@pytest.fixture
def made(gateway: Gateway, bucket: str) -> str:
    """An existing bucket."""
    run([program(os.environ.get("FORDWAY_BIN", "fordway")), "mb", f"s3://{bucket}"], gateway.environment)
    return bucket


@pytest.mark.parametrize("tool", PYTHON)
def test_python(gateway: Gateway, made: str, tool: str) -> None:
    pytest.importorskip({"polars": "deltalake"}.get(tool, tool))
    code = (settings(gateway, tool) + PYTHON[tool]).replace("BUCKET", made)
    run([sys.executable, "-c", code], outside(gateway))
    if tool != "polars":
        gateway.assert_stored(made, "python", CONTENT)


def test_aws_cli(gateway: Gateway, made: str, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(settings(gateway, "aws-cli"))
    (tmp_path / "source").write_bytes(CONTENT)
    environment = outside(gateway, AWS_CONFIG_FILE=tmp_path / "config", AWS_EC2_METADATA_DISABLED="true")
    copy = ["s3", "cp", tmp_path / "source", f"s3://{made}/aws"]
    run([program("aws"), "--profile", "fordway", *copy], environment)
    gateway.assert_stored(made, "aws", CONTENT)
    # The `fordway` command can also use the profile that it printed.
    found = run(
        [
            program(os.environ.get("FORDWAY_BIN", "fordway")),
            "--profile",
            "fordway",
            "cat",
            f"s3://{made}/aws",
        ],
        environment,
    )
    assert found == CONTENT


def test_rclone(gateway: Gateway, made: str, tmp_path: Path) -> None:
    (tmp_path / "rclone.conf").write_text(settings(gateway, "rclone"))
    (tmp_path / "source").write_bytes(CONTENT)
    environment = outside(gateway, RCLONE_CONFIG=tmp_path / "rclone.conf", RCLONE_RETRIES="1")
    run([program("rclone"), "copyto", tmp_path / "source", f"fordway:{made}/rclone"], environment)
    gateway.assert_stored(made, "rclone", CONTENT)


def test_s3cmd(gateway: Gateway, made: str, tmp_path: Path) -> None:
    (tmp_path / "s3cfg").write_text(settings(gateway, "s3cmd"))
    (tmp_path / "source").write_bytes(CONTENT)
    put = ["put", tmp_path / "source", f"s3://{made}/s3cmd"]
    run([program("s3cmd"), "-c", tmp_path / "s3cfg", *put], outside(gateway))
    gateway.assert_stored(made, "s3cmd", CONTENT)


def test_curl(gateway: Gateway, made: str, tmp_path: Path) -> None:
    (tmp_path / "curl").write_text(settings(gateway, "curl"))
    (tmp_path / "source").write_bytes(CONTENT)
    config = ["--config", tmp_path / "curl", "--silent", "--show-error", "--fail"]
    address = f"{gateway.endpoint}/{made}/curl"
    run([program("curl"), *config, "--upload-file", tmp_path / "source", address], outside(gateway))
    gateway.assert_stored(made, "curl", CONTENT)


def test_shell(gateway: Gateway, made: str, tmp_path: Path) -> None:
    (tmp_path / "fordway.env").write_text(settings(gateway, "shell"))
    script = f'. {tmp_path}/fordway.env && echo hello | "$0" --quiet cp - s3://{made}/shell'
    run(["sh", "-ec", script, program(os.environ.get("FORDWAY_BIN", "fordway"))], outside(gateway))
    gateway.assert_stored(made, "shell", b"hello\n")
