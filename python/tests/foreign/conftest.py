"""A gateway for unmodified S3 clients.

With FORDWAY_TEST_ENDPOINT set (and AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY), the gateway there is used;
FORDWAY_TEST_ROOT names the directory it serves, and leaves files unchecked when it is unset. Otherwise
the binary named by FORDWAY_BIN (`fordway` on PATH if unset) is started on an empty directory.

A client that is not installed is skipped by name; where CI is set, that is a failure.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import subprocess
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest

READY = "fordway: serving "
LARGE_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class Gateway:
    """Where the gateway is, who may call it, and the directory it serves (if that is known)."""

    endpoint: str
    access_key: str
    secret_key: str
    root: Path | None

    @property
    def environment(self) -> dict[str, str]:
        """The process environment in which S3 clients find the gateway and nothing of the user's own."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        return kept | {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def assert_stored(self, bucket: str, key: str, content: bytes) -> None:
        """The object is a plain file at its key's path, with these bytes."""
        if self.root is not None:
            assert (self.root / bucket / key).read_bytes() == content

    def assert_gone(self, bucket: str, key: str) -> None:
        """No file is left at the key's path."""
        if self.root is not None:
            assert not (self.root / bucket / key).exists()


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory):
    """The gateway of this session."""
    endpoint = os.environ.get("FORDWAY_TEST_ENDPOINT")
    if endpoint:
        root = os.environ.get("FORDWAY_TEST_ROOT")
        keys = os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
        yield Gateway(endpoint, *keys, Path(root) if root else None)
    else:
        yield from started_gateway(tmp_path_factory.mktemp("root"))


def started_gateway(root: Path):
    """Starts `fordway serve` and ends it after the session."""
    binary = shutil.which(os.environ.get("FORDWAY_BIN", "fordway"))
    if binary is None:
        missing("fordway (set FORDWAY_BIN to the binary, or FORDWAY_TEST_ENDPOINT to a running gateway)")
    access_key, secret_key = "FOREIGNTESTKEY", uuid.uuid4().hex
    environment = os.environ | {"AWS_ACCESS_KEY_ID": access_key, "AWS_SECRET_ACCESS_KEY": secret_key}
    command = [binary, "serve", str(root), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        ready = server.stdout.readline()
        assert ready.startswith(READY), f"not the ready line: {ready!r}"
        yield Gateway(ready.rsplit(" at ", 1)[1].strip(), access_key, secret_key, root)
        server.terminate()
        assert server.wait(timeout=30) == 0


@pytest.fixture
def bucket() -> str:
    """The name of a bucket that no other test uses."""
    return f"foreign-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def large() -> bytes:
    """64 MiB that do not compress and are the same in every session."""
    return random.Random(64).randbytes(LARGE_BYTES)


def missing(client: str) -> None:
    """Skips for want of a client, or fails where CI promises to have it."""
    if os.environ.get("CI"):
        pytest.fail(f"{client} is missing")
    pytest.skip(f"{client} is missing")


def program(name: str) -> str:
    """The path of an installed client."""
    found = shutil.which(name)
    if found is None:
        missing(name)
    return found


def digest(content: bytes) -> str:
    """A short stand-in for content in failed assertions."""
    return hashlib.sha256(content).hexdigest()
