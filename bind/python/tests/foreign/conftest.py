"""A gateway for tests of unmodified S3 clients.

If FORDWAY_TEST_ENDPOINT is set (with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY), the tests use the gateway
at this endpoint. FORDWAY_TEST_ROOT names the directory that this gateway serves; if it is not set, the tests
do not check files. If FORDWAY_TEST_ENDPOINT is not set, the tests start the binary named by FORDWAY_BIN
(default: `fordway` on PATH) on an empty directory, once without TLS and once with TLS. Each test runs with
both gateways.

Tests of a client that is not installed are skipped with the client's name.
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
    """A gateway: its address, its keys, the directory that it serves (if known), and the CA certificate that
    signed its certificate (unless the system trusts it).
    """

    endpoint: str
    access_key: str
    secret_key: str
    root: Path | None
    ca: Path | None = None

    @property
    def environment(self) -> dict[str, str]:
        """The environment for S3 clients. The environment contains the gateway's settings, but no AWS
        settings of the user.
        """
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        return (
            kept
            | {
                "AWS_ACCESS_KEY_ID": self.access_key,
                "AWS_SECRET_ACCESS_KEY": self.secret_key,
                "AWS_DEFAULT_REGION": "us-east-1",
                "AWS_ENDPOINT_URL": self.endpoint,
                "AWS_CONFIG_FILE": os.devnull,
                "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
                "AWS_EC2_METADATA_DISABLED": "true",
            }
            | dict.fromkeys(self.ca_variables, str(self.ca))
        )

    @property
    def ca_variables(self) -> list[str]:
        """The environment variables that make clients trust the gateway's certificate. Empty if the system
        already trusts the certificate.
        """
        return ["AWS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"] if self.ca else []

    @property
    def boto_arguments(self) -> dict:
        """The arguments that make boto3 and similar clients use the gateway."""
        return {
            "endpoint_url": self.endpoint,
            "aws_access_key_id": self.access_key,
            "aws_secret_access_key": self.secret_key,
            "region_name": "us-east-1",
            "verify": str(self.ca) if self.ca else None,
        }

    def assert_stored(self, bucket: str, key: str, content: bytes) -> None:
        """Asserts that the object is a plain file at the path of its key, and has this content."""
        if self.root is not None:
            assert (self.root / bucket / key).read_bytes() == content

    def assert_gone(self, bucket: str, key: str) -> None:
        """Asserts that no file exists at the path of the key."""
        if self.root is not None:
            assert not (self.root / bucket / key).exists()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs each test both without and with TLS if the tests start the gateway."""
    if "gateway" in metafunc.fixturenames:
        schemes = ["given"] if os.environ.get("FORDWAY_TEST_ENDPOINT") else ["http", "https"]
        metafunc.parametrize("gateway", schemes, indirect=True, scope="session")


@pytest.fixture(scope="session")
def gateway(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """The gateway of this session."""
    if request.param == "given":
        root = os.environ.get("FORDWAY_TEST_ROOT")
        keys = os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
        yield Gateway(os.environ["FORDWAY_TEST_ENDPOINT"], *keys, Path(root) if root else None)
        return
    certificates = tmp_path_factory.mktemp("tls") if request.param == "https" else None
    yield from started_gateway(tmp_path_factory.mktemp("root"), certificates)


def started_gateway(root: Path, certificates: Path | None):
    """Starts `fordway serve`, and ends it after the session."""
    binary = shutil.which(os.environ.get("FORDWAY_BIN", "fordway"))
    if binary is None:
        missing("fordway (set FORDWAY_BIN to the binary, or FORDWAY_TEST_ENDPOINT to a running gateway)")
    access_key, secret_key = "FOREIGNTESTKEY", uuid.uuid4().hex
    environment = os.environ | {"AWS_ACCESS_KEY_ID": access_key, "AWS_SECRET_ACCESS_KEY": secret_key}
    command = [binary, "serve", str(root), "--listen", "127.0.0.1:0"]
    if certificates:
        make_certificates(certificates)
        command += ["--tls-cert", str(certificates / "cert.pem"), "--tls-key", str(certificates / "key.pem")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        ready = server.stdout.readline()
        assert ready.startswith(READY), f"not the ready line: {ready!r}"
        ca = certificates / "ca.pem" if certificates else None
        yield Gateway(ready.rsplit(" at ", 1)[1].strip(), access_key, secret_key, root, ca)
        server.terminate()
        assert server.wait(timeout=30) == 0


def make_certificates(directory: Path) -> None:
    """Creates a certificate authority, and a certificate that it signed for the loopback address."""
    made = [program("openssl"), "req", "-x509", "-nodes", "-days", "2", "-newkey", "ec"]
    made += ["-pkeyopt", "ec_paramgen_curve:prime256v1"]
    authority = ["-subj", "/CN=Fordway test authority", "-keyout", "ca.key", "-out", "ca.pem"]
    authority += ["-addext", "keyUsage=critical,keyCertSign,cRLSign"]
    server = ["-subj", "/CN=localhost", "-keyout", "key.pem", "-out", "cert.pem", "-CA", "ca.pem"]
    server += ["-CAkey", "ca.key", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    server += ["-addext", "basicConstraints=critical,CA:FALSE"]
    for arguments in (authority, server):
        subprocess.run([*made, *arguments], cwd=directory, check=True, capture_output=True)


@pytest.fixture
def bucket() -> str:
    """Returns the name of a bucket that no other test uses."""
    return f"foreign-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def large() -> bytes:
    """Returns 64 MiB of incompressible content that is the same in every session."""
    return random.Random(64).randbytes(LARGE_BYTES)


def missing(client: str) -> None:
    """Skips the test because a client is missing. CI fails in that case, because `.ci/may-skip`, the list of
    tests that CI may skip, contains no tests of clients.
    """
    pytest.skip(f"{client} is missing")


def program(name: str) -> str:
    """Returns the path of an installed client, or skips the test if the client is missing."""
    found = shutil.which(name)
    if found is None:
        missing(name)
    return found


def digest(content: bytes) -> str:
    """Returns a short description of content for failed assertions."""
    return hashlib.sha256(content).hexdigest()
