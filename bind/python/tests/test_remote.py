"""Tests reads of files on web servers: directly, through fsspec, and by uproot."""

from __future__ import annotations

import os
import random
import re
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import fsspec
import numpy
import pytest
import uproot
from gateways import KEYS, program, serving
from range_server import RangeServer

import fordway
from fordway._fordway import ERROR_KINDS
from fordway.errors import InvalidArgumentError, NotFoundError, UnsupportedError
from fordway.fsspec import FordwayFileSystem

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONTENT = random.Random(1).randbytes(300_000)
RANGES = [(7, 100), (290_000, 10_000), (50_000, 1), (0, 0), (20, 50)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RangeServer]:
    (tmp_path / "f").write_bytes(CONTENT)
    with RangeServer(tmp_path) as running:
        yield running


@pytest.fixture
def files() -> Iterator[FordwayFileSystem]:
    """Yields a new file system, and then clears fsspec's cache, because fsspec shares its instances."""
    made = FordwayFileSystem(skip_instance_cache=True)
    yield made
    FordwayFileSystem.clear_instance_cache()


def test_ranges_come_in_one_request(server: RangeServer) -> None:
    opened = fordway.open_url(f"{server.url}/f?signature=secret")
    assert (opened.size, opened.requests) == (len(CONTENT), 1)
    assert opened.read_ranges(RANGES) == [CONTENT[start : start + length] for start, length in RANGES]
    assert opened.requests == 2
    assert len(server.lists) == 1
    assert opened.read(299_990, 100) == CONTENT[299_990:]
    assert opened.read(10**12, 1) == b""
    assert "secret" not in repr(opened)


PROPORTION = """
import resource, sys
import fordway
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
opened = fordway.open_url(sys.argv[1])
assert opened.size == int(sys.argv[2])
for read in (
    lambda: opened.read(0, opened.size),
    lambda: opened.read_ranges([(0, opened.size)]),
    lambda: opened.read_ranges([(0, opened.size - 1), (1, opened.size - 1)]),
):
    try:
        read()
    except Exception as error:
        print(type(error).__name__)
"""


@pytest.mark.parametrize("size", [1 << 40, 1 << 50, 2**63 - 1])
def test_a_size_alone_takes_no_memory(size: int) -> None:
    """If a server declares a large size but sends only a few bytes, the read must fail without allocating the
    declared size.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_boast, args=(listener, size), daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/f"
        command = [sys.executable, "-c", PROPORTION, url, str(size)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ran.returncode, len(ran.stdout.split())) == (0, 3), ran.stderr


def _boast(listener: socket.socket, size: int) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            head = connection.recv(65536).decode()
            first = re.search(r"bytes=(\d+)-(\d+)", head)
            length = int(first[2]) - int(first[1]) + 1 if first else size
            said = f"Content-Range: bytes {first[1]}-{first[2]}/{size}\r\n" if first else ""
            status = "206 Partial Content" if first else "200 OK"
            said += f'Content-Length: {length}\r\nETag: "e"\r\nConnection: close\r\n\r\n'
            connection.sendall(f"HTTP/1.1 {status}\r\n{said}few bytes".encode())


VERSION = """
import sys
import fordway
import fsspec
import fordway.fsspec
url, size = sys.argv[1], int(sys.argv[2])
opened = fordway.open_url(url)
assert opened.read(0, size) == b"".join(opened.read_ranges([(0, 7), (7, size - 7)]))
with fsspec.open("fordway+" + url, block_size=4096) as file:
    sys.stdout.buffer.write(file.read())
"""


@pytest.mark.parametrize("version", ["1.1", "2", "3"])
def test_the_environment_names_the_version_of_http(version: str, tmp_path: Path) -> None:
    """A gateway supports all versions of HTTP, but HTTP/3 only with TLS."""
    (tmp_path / "root" / "b").mkdir(parents=True)
    (tmp_path / "root" / "b" / "f").write_bytes(CONTENT)
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make = ["openssl", "req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    names = ["-subj", "/CN=h", "-addext", "subjectAltName=IP:127.0.0.1"]
    leaf = ["-addext", "basicConstraints=critical,CA:FALSE", "-keyout", str(key), "-out", str(cert)]
    subprocess.run([*make, *names, *leaf], check=True, capture_output=True)
    options = ["--http3", "--tls-cert", str(cert), "--tls-key", str(key)]
    environment = os.environ | KEYS | {"FORDWAY_HTTP_VERSION": version, "AWS_CA_BUNDLE": str(cert)}
    with serving(tmp_path / "root", *options) as endpoint:
        sign = [program(), "--endpoint", endpoint, "presign", "s3://b/f"]
        url = subprocess.run(sign, env=environment, check=True, capture_output=True, text=True).stdout.strip()
        reading = [sys.executable, "-c", VERSION, url, str(len(CONTENT))]
        assert subprocess.run(reading, env=environment, check=True, capture_output=True).stdout == CONTENT
    if version == "2":
        wrong = environment | {"FORDWAY_HTTP_VERSION": "4"}
        failed = subprocess.run(reading, env=wrong, check=False, capture_output=True, text=True)
        assert failed.returncode != 0 and "FORDWAY_HTTP_VERSION" in failed.stderr


def test_mistakes_are_errors_of_their_kind(server: RangeServer) -> None:
    with pytest.raises(NotFoundError) as missing:
        fordway.open_url(f"{server.url}/missing")
    assert isinstance(missing.value, FileNotFoundError)
    opened = fordway.open_url(f"{server.url}/f", connections=2, deadline=60)
    for ranges in ([(299_999, 2)], [(2**63, 2**63)]):
        with pytest.raises(InvalidArgumentError, match="of a file of 300000 bytes"):
            opened.read_ranges(ranges)
    for wrong in (
        {"deadline": -1},
        {"deadline": 0},
        {"connections": 0},
        {"connections": 1025},
        {"ca_bundle": "/nonesuch"},
    ):
        with pytest.raises(InvalidArgumentError, match=next(iter(wrong))):
            fordway.open_url(f"{server.url}/f", **wrong)
    for local in ("/tmp/x.root", "file:///tmp/x.root", "x.root"):
        with pytest.raises(InvalidArgumentError, match=r"read local files with Python's open\(\)"):
            fordway.open_url(local)
    with pytest.raises(InvalidArgumentError, match=r"fordway\.open\(ENDPOINT\)\.get\(\"b\", \"d/f\"\)"):
        fordway.open_url("s3://b/d/f")


def test_fsspec_reads_many_ranges_of_many_files(
    server: RangeServer, tmp_path: Path, files: FordwayFileSystem
) -> None:
    (tmp_path / "g").write_bytes(CONTENT[::-1])
    names = [f"{server.url}/f", f"fordway+{server.url}/g"] * 3
    starts, ends = [0, 5, 200_000, 70_000, -10, None], [10, 9, 200_005, 10**9, None, 4]
    found = files.cat_ranges(names, starts, ends)
    contents = [CONTENT, CONTENT[::-1]] * 3
    expected = [whole[start:end] for whole, start, end in zip(contents, starts, ends, strict=True)]
    assert found == expected
    assert [command for command, _ in server.asked] == ["HEAD", "GET"] * 2
    assert files.cat_file(names[0], 3, 9) == CONTENT[3:9]
    lost = files.cat_ranges([f"{server.url}/missing", names[0]], 0, [1, 2])
    assert isinstance(lost[0], NotFoundError) and lost[1] == CONTENT[:2]
    with pytest.raises(NotFoundError):
        files.cat_ranges([f"{server.url}/missing"], 0, 1, on_error="raise")
    with pytest.raises(ValueError, match="as many"):
        files.cat_ranges(names, [1], 2)


def test_fsspec_opens_files_by_address(server: RangeServer) -> None:
    with fsspec.open(f"fordway+{server.url}/f", block_size=1000) as file:
        file.seek(100_000)
        assert file.read(5_000) == CONTENT[100_000:105_000]
        assert file.seek(-7, 2) == len(CONTENT) - 7
        assert file.read() == CONTENT[-7:]
    system, path = fsspec.core.url_to_fs(f"fordway+{server.url}/f")
    assert path == f"{server.url}/f" and system.size(path) == len(CONTENT)
    assert system.exists(path) and not system.exists(f"{server.url}/missing")
    assert system.ls(path, detail=False) == [path] and system.isfile(path)
    with pytest.raises(UnsupportedError, match="fordway cp") as refused:
        system.open(path, "wb")
    assert refused.value.kind in ERROR_KINDS


def test_what_needs_a_listing_is_refused_and_not_empty(server: RangeServer, files: FordwayFileSystem) -> None:
    for listing in (files.glob, files.find, files.ls):
        with pytest.raises(UnsupportedError, match="listing") as refused:
            listing(f"{server.url}/*" if listing == files.glob else f"{server.url}/")
        assert refused.value.kind in ERROR_KINDS
    signed = f"{server.url}/f?signature=[1]"
    assert files.glob(f"{server.url}/f?signature=1") == [f"{server.url}/f?signature=1"]
    assert files.cat_file(signed, 0, 3) == CONTENT[:3]
    assert files.find(f"{server.url}/f") == [f"{server.url}/f"]
    assert files.glob(f"{server.url}/missing") == []


def test_a_file_that_changed_is_read_anew_when_asked(
    server: RangeServer, tmp_path: Path, files: FordwayFileSystem
) -> None:
    name = f"{server.url}/f"
    assert files.size(name) == len(CONTENT)
    (tmp_path / "f").write_bytes(b"short")
    files.invalidate_cache(name)
    assert files.cat_file(name) == b"short"


def test_a_file_that_changed_is_an_error_once(
    server: RangeServer, tmp_path: Path, files: FordwayFileSystem
) -> None:
    """A read never mixes two versions. After the error, the file is opened again, but a file that was open
    keeps its version.
    """
    name = f"{server.url}/f"

    def read_open() -> None:
        with files.open(name) as file:
            file.read()

    for number, read in enumerate(
        [
            lambda: files.cat_file(name, 0, 3),
            lambda: files.cat_ranges([name], 0, 3, on_error="raise"),
            lambda: files.get_file(name, tmp_path / "copy"),
            read_open,
        ]
    ):
        size, short = files.size(name), f"short {number}".encode()
        opened = files.open(name, block_size=10, cache_type="none")
        assert (opened.size, opened.details["size"]) == (size, size)
        (tmp_path / "f").write_bytes(short)
        with pytest.raises(fordway.errors.PreconditionFailedError):
            read()
        assert (files.cat_file(name), files.size(name)) == (short, len(short))
        assert files.open(name).read() == short
        with pytest.raises(fordway.errors.PreconditionFailedError):
            opened.read(3)
        assert files.cat_file(name) == short, "the error of an old version does not close the new one"
    lost = (tmp_path / "f").write_bytes(b"again") and files.cat_ranges([name], 0, 3)
    assert isinstance(lost[0], fordway.errors.PreconditionFailedError)
    assert files.cat_ranges([name], 0, 3) == [b"aga"]


def test_the_file_system_keeps_a_limited_number_of_files(
    server: RangeServer, files: FordwayFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fordway.fsspec.web.FILES_MAX", 3)
    opened = files.open(f"{server.url}/f?0")
    for number in range(10):
        assert files.cat_file(f"{server.url}/f?{number}", 0, 3) == CONTENT[:3]
    assert len(files._files) == 3
    asked = len(server.asked)
    assert files.cat_file(f"{server.url}/f?9", 0, 3) == CONTENT[:3]
    assert opened.read() == CONTENT
    assert "HEAD" not in [command for command, _ in server.asked[asked:]], "both are still open"


def test_a_failed_download_leaves_the_local_file(
    server: RangeServer, tmp_path: Path, files: FordwayFileSystem
) -> None:
    local = tmp_path / "down" / "local"
    files.get_file(f"{server.url}/f", local)
    assert local.read_bytes() == CONTENT
    (tmp_path / "f").write_bytes(b"short")
    with pytest.raises(fordway.errors.PreconditionFailedError):
        files.get_file(f"{server.url}/f", local)
    assert local.read_bytes() == CONTENT
    assert list(local.parent.iterdir()) == [local]


def test_uproot_reads_baskets_by_lists_of_ranges(server: RangeServer, tmp_path: Path) -> None:
    draw = numpy.random.default_rng(3)
    columns = {f"x{number}": draw.normal(size=40_000) for number in range(12)}
    with uproot.recreate(tmp_path / "events.root") as written:
        written.mktree("events", {name: column.dtype for name, column in columns.items()})
        for start in range(0, 40_000, 10_000):
            written["events"].extend(
                {name: column[start : start + 10_000] for name, column in columns.items()}
            )
    chosen = ["x2", "x5", "x11"]
    with uproot.open(f"fordway+{server.url}/events.root") as opened:
        before = len(server.asked)
        read = opened["events"].arrays(chosen, library="np")
        asked = server.asked[before:]
    for name in chosen:
        assert (read[name] == columns[name]).all()
    baskets = 4 * len(chosen)
    ranges = [len(listed.split(",")) for _, listed in asked if listed]
    assert sum(ranges) >= baskets // 2 and len(asked) <= baskets // 2, "many baskets in a request"
