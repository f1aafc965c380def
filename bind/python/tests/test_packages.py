"""Tests the installation, upgrade under load, interrupted upgrade and removal of Debian packages.

The packages contain the built programs. The test installs the packages in a separate root directory, so that
the machine does not change. The separate directory is an overlay over the machine's root directory.
tools/soak-dist tests the packages that tools/dist creates for a release.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import os
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.config import Config
from gateways import KEYS, READY, program

if TYPE_CHECKING:
    from collections.abc import Iterator

TREE = Path(__file__).parents[3]
OLD, NEW = "0.1.0", "0.1.1"
CLIENTS = 64
BUCKET = "bucket"


def make_packages(place: Path, version: str) -> Path:
    """Builds the `fordway` package with this version as tools/dist does, but with a low compression level."""
    work, out = place / f"work-{version}", place / version
    (work / "bin").mkdir(parents=True)
    out.mkdir()
    for name in ("fordway", "fordway-lab"):
        binary = work / "bin" / name
        subprocess.run(["strip", "-o", binary, Path(program()).with_name(name)], check=True)
        pages = work / "share" / name / "man/man1"
        pages.mkdir(parents=True)
        subprocess.run([binary, "man", "--out", pages], check=True, env={"PATH": "/nonexistent"})
        (work / "share" / name / "zsh/site-functions").mkdir(parents=True)
    environment = os.environ | {"SOURCE_DATE_EPOCH": "1700000000", "DPKG_DEB_COMPRESSOR_LEVEL": "0"}
    subprocess.run(
        [TREE / "tools/dist.d/packages", work, out, version, "--debian"],
        check=True,
        env=environment,
        stderr=subprocess.DEVNULL,
    )
    return out / f"fordway_{version}-1_amd64.deb"


class OwnRoot:
    """A root directory that is an overlay over the root directory of this machine, in a mount namespace that
    ends with the test.
    """

    def __init__(self, place: Path) -> None:
        self.root = place / "root"
        script = f"""
            umask 022
            mount --make-rprivate / && mount -t tmpfs tmpfs {place} && cd {place} && mkdir upper work root
            mount -t overlay -o lowerdir=/,upperdir=upper,workdir=work overlay root
            mount --rbind /proc root/proc && mount --rbind /dev root/dev
            echo ready && exec sleep infinity
        """
        command = ["unshare", "--mount", "bash", "-euc", script]
        self.holder = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if self.holder.stdout.readline() != "ready\n":
            pytest.skip(f"no root directory can be made: {self.holder.stderr.read().strip()}")

    def words(self, *command: str | Path) -> list[str]:
        """Returns the command line that runs a command in this root directory."""
        namespace = f"--mount=/proc/{self.holder.pid}/ns/mnt"
        return ["nsenter", namespace, "chroot", str(self.root), *map(str, command)]

    def run(self, *command: str | Path) -> str:
        done = subprocess.run(self.words(*command), capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def install(self, package: Path, *options: str) -> None:
        with package.open("rb") as content:
            copy = self.words("sh", "-c", "cat >/package.deb")
            subprocess.run(copy, stdin=content, check=True)
        self.run("dpkg", *(options or ("--install",)), "/package.deb")

    def end(self) -> None:
        self.holder.kill()
        self.holder.communicate()


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    for needed in ("dpkg-deb", "strip", "unshare"):
        if shutil.which(needed) is None:
            pytest.skip(f"{needed} is missing")
    if os.geteuid() != 0:
        pytest.skip("only root can make a root directory to install in")
    place = tmp_path_factory.mktemp("packages")
    return {version: make_packages(place, version) for version in (OLD, NEW)}


@pytest.fixture
def machine(tmp_path: Path, packages: dict[str, Path]) -> Iterator[OwnRoot]:
    """A machine on which the old package is installed."""
    root = OwnRoot(tmp_path)
    try:
        root.install(packages[OLD])
        yield root
    finally:
        root.end()


class ServiceManager:
    """Starts, restarts and stops the gateway as systemd would, in a root directory without systemd."""

    def __init__(self, machine: OwnRoot) -> None:
        self.machine = machine
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self.port = self.socket.getsockname()[1]
        self.gateway: subprocess.Popen[str] | None = None
        self.root = "/srv/objects"
        machine.run("install", "--directory", "--owner=fordway", f"{self.root}/{BUCKET}")

    def start(self) -> None:
        unit = self.machine.run("cat", "/usr/lib/systemd/system/fordway-serve.service")
        started = next(line for line in unit.splitlines() if line.startswith("ExecStart="))
        command = started.removeprefix("ExecStart=").replace("${ROOT}", self.root).replace("$OPTIONS", "")
        script = f"export LISTEN_PID=$$ LISTEN_FDS=1; exec setpriv --reuid=fordway --clear-groups {command}"
        script += " 3<&0 0</dev/null"
        words = self.machine.words("sh", "-c", script)
        self.gateway = subprocess.Popen(
            words, stdin=self.socket, stdout=subprocess.PIPE, text=True, env=os.environ | KEYS
        )
        assert self.gateway.stdout.readline().startswith(READY)

    def refusal(self, *options: str) -> str:
        """Starts the gateway with `options`, which must fail, and returns the gateway's error message."""
        command = ["fordway", "serve", self.root, "--listen", "127.0.0.1:0", "--until-eof", *options]
        words = self.machine.words("setpriv", "--reuid=fordway", "--clear-groups", *command)
        ended = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        assert ended.returncode != 0, f"{options}: it started: {ended.stdout}"
        return ended.stderr

    def stop(self) -> None:
        self.gateway.terminate()
        self.gateway.communicate(timeout=30)
        assert self.gateway.returncode == 0

    def restart(self) -> None:
        self.stop()
        self.start()

    def end(self) -> None:
        if self.gateway is not None:
            self.gateway.kill()
            self.gateway.communicate()
        self.socket.close()


@pytest.fixture
def manager(machine: OwnRoot) -> Iterator[ServiceManager]:
    made = ServiceManager(machine)
    try:
        yield made
    finally:
        made.end()


@functools.cache
def signer(port: int) -> object:
    return boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{port}",
        region_name="us-east-1",
        aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
        config=Config(signature_version="s3v4"),
    )


class Load:
    """Clients that write and read, without retries."""

    def __init__(self, port: int) -> None:
        self.port, self.stop, self.failures = port, threading.Event(), []
        self.written: list[int] = [0] * CLIENTS
        self.threads = [threading.Thread(target=self.client, args=(number,)) for number in range(CLIENTS)]

    def __enter__(self) -> Load:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join()

    def client(self, number: int) -> None:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            try:
                while not self.stop.is_set():
                    self.write_and_read(connection, f"{number}/{self.written[number]}")
                    self.written[number] += 1
            except Exception as error:
                self.failures.append(error)

    def write_and_read(self, connection: http.client.HTTPConnection, key: str) -> None:
        for method, operation in (("PUT", "put_object"), ("GET", "get_object")):
            url = urlsplit(
                signer(self.port).generate_presigned_url(operation, {"Bucket": BUCKET, "Key": key})
            )
            body = key.encode() if method == "PUT" else None
            connection.request(method, f"{url.path}?{url.query}", body)
            answer = connection.getresponse()
            content = answer.read()
            assert answer.status == 200, (method, key, answer.status, content)
        assert content == key.encode()

    def wait_for_more(self) -> None:
        before, until = sum(self.written), time.monotonic() + 60
        while sum(self.written) < before + 2 * CLIENTS and not self.failures and time.monotonic() < until:
            time.sleep(0.01)
        assert sum(self.written) > before or self.failures, "nothing moves"


def installed(machine: OwnRoot) -> str:
    return machine.run("dpkg-query", "--show", "--showformat=${Version} ${db:Status-Status}", "fordway")


def test_an_installed_package_serves_nothing_until_it_is_told(machine: OwnRoot) -> None:
    assert installed(machine) == f"{OLD}-1 installed"
    assert machine.run("id", "--user", "--name", "fordway") == "fordway\n"
    condition = machine.run("sh", "-c", '. /etc/fordway/serve.conf; test -n "$ROOT" || echo nothing')
    assert condition == "nothing\n"
    for unit in ("fordway-serve.service", "fordway-serve.socket"):
        machine.run("test", "-s", f"/usr/lib/systemd/system/{unit}")


def test_an_upgrade_under_load_fails_no_request(
    machine: OwnRoot, manager: ServiceManager, packages: dict[str, Path]
) -> None:
    manager.start()
    with Load(manager.port) as load:
        load.wait_for_more()
        machine.install(packages[NEW])
        assert installed(machine) == f"{NEW}-1 installed"
        load.wait_for_more()
        # Restart the gateway, as the systemd commands in the script after-install would.
        manager.restart()
        load.wait_for_more()
    assert load.failures == []
    found = machine.run(
        "find", f"{manager.root}/{BUCKET}", "-path", "*/.fordway", "-prune", "-o", "-type", "f", "-print"
    )
    assert len(found.splitlines()) == sum(load.written)


def test_an_upgrade_that_was_interrupted_is_finished_later(
    machine: OwnRoot, manager: ServiceManager, packages: dict[str, Path]
) -> None:
    machine.run("sh", "-c", "echo '# the admin wrote this' >>/etc/fordway/serve.conf")
    # Install the files without running the script after-install.
    machine.install(packages[NEW], "--unpack")
    assert installed(machine) == f"{NEW}-1 unpacked"
    manager.start()
    with Load(manager.port) as load:
        load.wait_for_more()
    assert load.failures == []
    machine.run("dpkg", "--configure", "--pending")
    assert installed(machine) == f"{NEW}-1 installed"
    assert "the admin wrote this" in machine.run("cat", "/etc/fordway/serve.conf")


def test_what_a_later_release_wrote_is_refused_by_an_older_one(
    machine: OwnRoot, manager: ServiceManager
) -> None:
    """Tests a downgrade: a later release has written the directory, the users file and the options."""
    users = """[[user]]\nname = "a"\naccess_key = "A"\nsecret_key = "a-long-secret"\nof_the_future = 1\n"""
    machine.run("sh", "-c", f"umask 077; printf '%s' '{users}' >/etc/users; chown fordway /etc/users")
    assert "of_the_future" in manager.refusal("--credentials", "/etc/users")
    assert "--of-the-future" in manager.refusal("--of-the-future")
    script = f"umask 022; mkdir -p {manager.root}/.fordway && echo fordway 99 >{manager.root}/.fordway/format"
    machine.run("sh", "-c", script)
    said = manager.refusal()
    assert "version 99" in said and "use the Fordway that wrote it, or a later release" in said, said
    # The older release starts with the settings that it supports.
    machine.run("rm", f"{manager.root}/.fordway/format")
    manager.start()
    manager.stop()


def test_what_people_made_stays_when_the_package_goes(machine: OwnRoot, manager: ServiceManager) -> None:
    manager.start()
    with Load(manager.port) as load:
        load.wait_for_more()
    manager.stop()
    machine.run("dpkg", "--remove", "fordway")
    machine.run("test", "!", "-e", "/usr/bin/fordway")
    machine.run("test", "-e", "/etc/fordway/serve.conf")
    assert machine.run("cat", f"{manager.root}/{BUCKET}/0/0") == "0/0"
