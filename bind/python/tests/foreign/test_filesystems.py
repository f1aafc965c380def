"""Tests the libraries that read data frames and arrays: obstore, pyarrow's S3FileSystem and s3fs."""

from __future__ import annotations

import io

import pytest
from conftest import Gateway, digest, missing

PIECE_BYTES = 8 * 1024 * 1024


@pytest.fixture(autouse=True)
def trusted(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets environment variables, because some libraries read trusted certificates only from the
    environment.
    """
    for name in gateway.ca_variables:
        monkeypatch.setenv(name, str(gateway.ca))


@pytest.fixture
def made(gateway: Gateway, bucket: str) -> str:
    """An existing bucket."""
    try:
        import boto3
    except ImportError:
        missing("boto3")
    boto3.client("s3", **gateway.boto_arguments).create_bucket(Bucket=bucket)
    return bucket


def test_obstore(gateway: Gateway, made: str, large: bytes) -> None:
    try:
        import obstore
        from obstore.store import S3Store
    except ImportError:
        missing("obstore")
    store = S3Store(
        made,
        endpoint=gateway.endpoint,
        access_key_id=gateway.access_key,
        secret_access_key=gateway.secret_key,
        region="us-east-1",
        client_options={"allow_http": True},
    )
    obstore.put(store, "dir/a b+c", b"some bytes", attributes={"Content-Type": "text/plain"})
    gateway.assert_stored(made, "dir/a b+c", b"some bytes")
    assert bytes(obstore.get(store, "dir/a b+c").bytes()) == b"some bytes"
    pieces = obstore.get_ranges(store, "dir/a b+c", starts=[0, 5], ends=[4, 10])
    assert [bytes(piece) for piece in pieces] == [b"some", b"bytes"]
    with pytest.raises(obstore.exceptions.AlreadyExistsError):
        obstore.put(store, "dir/a b+c", b"other", mode="create")
    obstore.put(store, "large", io.BytesIO(large), chunk_size=PIECE_BYTES, use_multipart=True)
    gateway.assert_stored(made, "large", large)
    assert digest(bytes(obstore.get(store, "large").bytes())) == digest(large)
    obstore.copy(store, "dir/a b+c", "copy")
    listed = [entry["path"] for page in obstore.list(store) for entry in page]
    assert listed == ["copy", "dir/a b+c", "large"]
    obstore.delete(store, listed)
    assert list(obstore.list(store)) == []


def test_pyarrow(gateway: Gateway, made: str, large: bytes) -> None:
    try:
        from pyarrow.fs import FileSelector, S3FileSystem
    except ImportError:
        missing("pyarrow")
    trust = {"tls_ca_file_path": str(gateway.ca)} if gateway.ca else {}
    scheme, host = gateway.endpoint.split("://")
    files = S3FileSystem(
        access_key=gateway.access_key,
        secret_key=gateway.secret_key,
        endpoint_override=host,
        scheme=scheme,
        region="us-east-1",
        **trust,
    )
    files.create_dir(f"{made}/dir")
    for key, content in {"dir/a b+c": b"some bytes", "large": large}.items():
        with files.open_output_stream(f"{made}/{key}") as stream:
            stream.write(content)
        gateway.assert_stored(made, key, content)
        with files.open_input_file(f"{made}/{key}") as file:
            assert file.size() == len(content)
            assert file.read_at(4, 5) == content[5:9]
            assert digest(file.read()) == digest(content)
    found = files.get_file_info(FileSelector(made, recursive=True))
    assert sorted(info.path for info in found) == [f"{made}/dir", f"{made}/dir/a b+c", f"{made}/large"]
    files.move(f"{made}/dir/a b+c", f"{made}/moved")
    gateway.assert_stored(made, "moved", b"some bytes")
    files.delete_dir_contents(made)
    assert files.get_file_info(FileSelector(made, recursive=True)) == []


def test_s3fs(gateway: Gateway, made: str, large: bytes, tmp_path) -> None:
    try:
        from s3fs import S3FileSystem
    except ImportError:
        missing("s3fs")
    files = S3FileSystem(
        key=gateway.access_key,
        secret=gateway.secret_key,
        client_kwargs={
            "endpoint_url": gateway.endpoint,
            "region_name": "us-east-1",
            "verify": str(gateway.ca) if gateway.ca else None,
        },
        skip_instance_cache=True,
        use_listings_cache=False,
    )
    files.pipe(f"{made}/dir/a b+c", b"some bytes")
    gateway.assert_stored(made, "dir/a b+c", b"some bytes")
    assert files.cat_file(f"{made}/dir/a b+c", start=5, end=8) == b"byt"
    with files.open(f"{made}/large", "wb", block_size=PIECE_BYTES) as stream:
        stream.write(large)
    gateway.assert_stored(made, "large", large)
    with files.open(f"{made}/large", "rb") as stream:
        stream.seek(1_000_000)
        assert stream.read(10) == large[1_000_000:1_000_010]
    assert digest(files.cat(f"{made}/large")) == digest(large)
    assert files.find(made) == [f"{made}/dir/a b+c", f"{made}/large"]
    files.copy(f"{made}/dir/a b+c", f"{made}/copy")
    assert sorted(files.ls(made, detail=False)) == [f"{made}/{name}" for name in ("copy", "dir", "large")]
    files.rm(made, recursive=True)
    assert not files.exists(made)
