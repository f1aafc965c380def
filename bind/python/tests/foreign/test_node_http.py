"""Tests programs that use S3 over HTTP on the Unix socket of `fordway node`: unmodified curl, and urllib3 and
boto3 with a connection class that connects to the socket.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import READY, digest, missing, program

PART_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True)
class Node:
    """A node gateway: its socket, and the directory that it serves."""

    socket: Path
    root: Path


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory):
    """Starts `fordway node` on an empty directory."""
    binary = shutil.which(os.environ.get("FORDWAY_BIN", "fordway"))
    if binary is None:
        missing("fordway (set FORDWAY_BIN to the binary)")
    place = tmp_path_factory.mktemp("node")
    (place / "root").mkdir()
    command = [binary, "node", str(place / "root"), "--socket", str(place / "socket")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as gateway:
        ready = gateway.stdout.readline()
        assert ready.startswith(READY), f"not the ready line: {ready!r}"
        yield Node(place / "socket", place / "root")
        gateway.terminate()
        assert gateway.wait(timeout=30) == 0


@pytest.fixture(params=["--http1.1", "--http2-prior-knowledge"])
def curl(request: pytest.FixtureRequest, node: Node):
    """Returns a function that runs `curl ARGUMENTS` on a path of the gateway, and returns the response
    body.
    """
    command = program("curl")

    def run(path: str, *arguments: str, status: str = "20") -> bytes:
        written = ["--silent", "--show-error", "--write-out", "%{stderr}%{http_code}"]
        way = [request.param, "--unix-socket", str(node.socket)]
        url = f"http://localhost/{path}"
        done = subprocess.run([command, *way, *written, *arguments, url], capture_output=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert done.stderr.decode().startswith(status), done.stdout
        return done.stdout

    return run


def test_curl_tour(curl, node: Node, bucket: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"some bytes")
    curl(bucket, "--request", "PUT")
    curl(f"{bucket}/dir/file", "--upload-file", str(source))
    assert (node.root / bucket / "dir/file").read_bytes() == b"some bytes"
    assert curl(f"{bucket}/dir/file") == b"some bytes"
    assert curl(f"{bucket}/dir/file", "--range", "5-7", status="206") == b"byt"
    assert b"content-length: 10" in curl(f"{bucket}/dir/file", "--head").lower()
    assert b"<Key>dir/file</Key>" in curl(f"{bucket}?list-type=2")
    assert b"<Code>NoSuchKey</Code>" in curl(f"{bucket}/none", status="404")
    curl(f"{bucket}/dir/file", "--request", "DELETE")
    assert not (node.root / bucket / "dir/file").exists()
    curl(bucket, "--request", "DELETE")


def test_curl_multipart(curl, node: Node, bucket: str, large: bytes, tmp_path: Path) -> None:
    curl(bucket, "--request", "PUT")
    started = curl(f"{bucket}/large?uploads", "--request", "POST").decode()
    upload = started.split("<UploadId>")[1].split("</UploadId>")[0]
    parts = ""
    for number, start in enumerate(range(0, len(large), PART_BYTES), 1):
        part = tmp_path / "part"
        part.write_bytes(large[start : start + PART_BYTES])
        where = f"{bucket}/large?partNumber={number}&uploadId={upload}"
        head = curl(where, "--upload-file", str(part), "--dump-header", "-").decode()
        etag = next(line.split(" ")[1] for line in head.splitlines() if line.lower().startswith("etag:"))
        parts += f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>"
    document = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>"
    curl(f"{bucket}/large?uploadId={upload}", "--data", document)
    assert digest((node.root / bucket / "large").read_bytes()) == digest(large)
    assert digest(curl(f"{bucket}/large")) == digest(large)


def test_urllib3(node: Node, bucket: str, large: bytes) -> None:
    urllib3 = pytest.importorskip("urllib3")

    class Connection(urllib3.connection.HTTPConnection):
        def _new_conn(self) -> socket.socket:
            return connected(node)

    class Pool(urllib3.HTTPConnectionPool):
        ConnectionCls = Connection

    pool = Pool("localhost")
    assert pool.request("PUT", f"/{bucket}").status == 200
    assert pool.request("PUT", f"/{bucket}/key", body=large).status == 200
    assert digest(pool.request("GET", f"/{bucket}/key").data) == digest(large)
    pool.request("DELETE", f"/{bucket}/key")
    assert pool.request("GET", f"/{bucket}/key").status == 404


def connected(node: Node) -> socket.socket:
    """Returns a connection to the gateway."""
    stream = socket.socket(socket.AF_UNIX)
    stream.connect(str(node.socket))
    return stream


def test_boto3(node: Node, bucket: str, large: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces only the class with which botocore opens connections. boto3 signs requests, sends checksums in
    the trailers of aws-chunked bodies, and presigns URLs. The access key is not known to the gateway.
    """
    boto3 = pytest.importorskip("boto3")
    from boto3.s3.transfer import TransferConfig
    from botocore.awsrequest import AWSHTTPConnection
    from botocore.config import Config

    monkeypatch.setattr(AWSHTTPConnection, "_new_conn", lambda _: connected(node))
    s3 = boto3.client(
        "s3",
        endpoint_url="http://localhost",
        region_name="us-east-1",
        aws_access_key_id="anything",
        aws_secret_access_key="nothing",
        config=Config(s3={"addressing_style": "path"}),
    )
    s3.create_bucket(Bucket=bucket)
    s3.put_object(Bucket=bucket, Key="small", Body=b"small", ChecksumAlgorithm="SHA256", Metadata={"a": "b"})
    got = s3.get_object(Bucket=bucket, Key="small", ChecksumMode="ENABLED")
    assert got["Body"].read() == b"small" and got["Metadata"] == {"a": "b"} and got["ChecksumSHA256"]
    source = node.root.parent / "large"
    source.write_bytes(large)
    s3.upload_file(str(source), bucket, "large", Config=TransferConfig(multipart_chunksize=PART_BYTES))
    s3.download_file(bucket, "large", str(source))
    assert digest(source.read_bytes()) == digest(large)
    assert [found["Key"] for found in s3.list_objects_v2(Bucket=bucket)["Contents"]] == ["large", "small"]
    with pytest.raises(s3.exceptions.NoSuchKey):
        s3.get_object(Bucket=bucket, Key="none")
    s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "large"}, {"Key": "small"}]})
    s3.delete_bucket(Bucket=bucket)
    assert not (node.root / bucket).exists()
