"""Tests how `fordway run` and the processes that it started end."""

from __future__ import annotations

import ast
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from gateways import program

import fordway.launch

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE_S = 60
WAITING = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
HANDLING = """
import os, signal, sys
for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda number, _: sys.exit(40 + number))
print(os.getpid(), flush=True)
signal.pause()
"""
CTRL_C = """
import os, signal, sys
signal.signal(signal.SIGINT, lambda *_: sys.exit(3))
os.killpg(0, signal.SIGINT)
"""


def as_at_a_terminal() -> None:
    """Restores signals that this process ignores because its shell runs the tests in the background."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("FORDWAY_BIN", program())
    return [sys.executable, "-m", "fordway.launch", "--root", str(tmp_path), "--"]


@pytest.fixture
def started(
    command: list[str], request: pytest.FixtureRequest
) -> Iterator[tuple[subprocess.Popen, list[int]]]:
    """Yields a command that runs the test's program, and descriptors of the processes that the command
    started.
    """
    words = [*command, sys.executable, "-c", request.param]
    with subprocess.Popen(words, stdout=subprocess.PIPE, preexec_fn=as_at_a_terminal) as run:
        assert int(run.stdout.readline()) > 0
        children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
        assert len(children) == 2, "the gateway and the program"
        descriptors = [os.pidfd_open(int(child)) for child in children]
        try:
            yield run, descriptors
        finally:
            run.kill()
            for descriptor in descriptors:
                os.close(descriptor)


def has_ended(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], PATIENCE_S)[0])


@pytest.mark.parametrize("started", [WAITING], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGUSR2, signal.SIGKILL])
def test_a_signal_ends_all_processes(started: tuple[subprocess.Popen, list[int]], number: int) -> None:
    run, descriptors = started
    run.send_signal(number)
    assert run.wait(PATIENCE_S) == -number
    assert all(map(has_ended, descriptors))


@pytest.mark.parametrize("started", [HANDLING], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1])
def test_the_program_may_handle_a_signal(started: tuple[subprocess.Popen, list[int]], number: int) -> None:
    run, descriptors = started
    run.send_signal(number)
    assert run.wait(PATIENCE_S) == 40 + number
    assert all(map(has_ended, descriptors))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_a_program_that_a_signal_ends(command: list[str], number: int) -> None:
    words = [*command, "sh", "-c", f"kill -{number} $$"]
    ran = subprocess.run(words, timeout=PATIENCE_S, check=False, preexec_fn=as_at_a_terminal)
    assert ran.returncode == -number


def test_ctrl_c_ends_the_program_first(command: list[str]) -> None:
    words = [*command, sys.executable, "-c", CTRL_C]
    with subprocess.Popen(words, start_new_session=True, preexec_fn=as_at_a_terminal) as ran:
        ran.wait(PATIENCE_S)
    assert ran.returncode == 3


def test_the_program_inherits_open_descriptors(command: list[str]) -> None:
    script = '"$@" cat <(echo "by a path") && "$@" cat /dev/fd/7 7<<<"by its number"'
    ran = subprocess.run(
        ["bash", "-c", script, "bash", *command], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (ran.returncode, ran.stdout) == (0, "by a path\nby its number\n"), ran.stderr


@pytest.mark.parametrize("is_marked", [True, False])
@pytest.mark.parametrize("words", [["--", "a", "--", "-v"], ["-v", "--root", "none"], []])
def test_the_program_gets_all_its_arguments(command: list[str], is_marked: bool, words: list[str]) -> None:
    command = command if is_marked else command[:-1]
    shown = subprocess.run([*command, "echo", *words], capture_output=True, text=True, timeout=PATIENCE_S)
    assert shown.stdout == " ".join(words) + "\n", shown.stderr


def test_a_program_must_be_named(command: list[str]) -> None:
    for words in (command, command[:-1]):
        ran = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S)
        assert ran.returncode == 2 and "arguments are required: PROGRAM" in ran.stderr


UNSUPPORTED_IN_PROCESS = """
import boto3
from botocore.config import Config
client = boto3.client("s3", config=Config(retries={"max_attempts": 0}))
client.create_bucket(Bucket="bucket")
client.put_object(Bucket="bucket", Key="key", Body=b"abc", ACL="private")
"""


def test_no_proxy_is_used_for_the_gateway(command: list[str], tmp_path: Path) -> None:
    variables = os.environ | dict.fromkeys(("http_proxy", "HTTP_PROXY"), "http://127.0.0.1:9")
    for excepted in ({"NO_PROXY": "localhost"}, {"no_proxy": "*"}, {}):
        given = {name: value for name, value in variables.items() if name.lower() != "no_proxy"} | excepted
        ran = subprocess.run(
            [*command, sys.executable, "-c", UNSUPPORTED_IN_PROCESS],
            env=given,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert ran.returncode == 0, ran.stderr
        assert (tmp_path / "bucket/key").read_bytes() == b"abc"
        shutil.rmtree(tmp_path / "bucket")


def test_hosts_without_a_proxy_are_kept() -> None:
    for given, wanted in (
        ({}, ("127.0.0.1", "127.0.0.1")),
        ({"no_proxy": "a,.b"}, ("a,.b,127.0.0.1", "a,.b,127.0.0.1")),
        ({"NO_PROXY": "a"}, ("a,127.0.0.1", "a,127.0.0.1")),
        ({"no_proxy": "a", "NO_PROXY": "*"}, ("a,127.0.0.1", "*")),
    ):
        found = fordway.launch.direct_connections(given)
        assert (found["no_proxy"], found["NO_PROXY"]) == wanted


def test_the_directory_may_have_any_name(command: list[str], tmp_path: Path) -> None:
    root = tmp_path / "of?durability=none"
    root.mkdir()
    ran = subprocess.run(
        [*command[:4], str(root), "--", sys.executable, "-c", UNSUPPORTED_IN_PROCESS],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ran.returncode == 0, ran.stderr
    assert [path.name for path in tmp_path.iterdir()] == [root.name]
    assert (root / "bucket/key").read_bytes() == b"abc"


def test_every_python_can_import_the_hook() -> None:
    """Python before 3.10 refuses `A | B` when it evaluates an annotation."""
    source = (fordway.launch.HOOK / "sitecustomize.py").read_text()
    tree = ast.parse(source, feature_version=(3, 7))
    annotations = [
        getattr(node, "returns", None) or getattr(node, "annotation", None) for node in ast.walk(tree)
    ]
    inside = [node for each in filter(None, annotations) for node in ast.walk(each)]
    assert inside and not [node for node in inside if isinstance(node, ast.BinOp | ast.Subscript)]


OBSTORE = """
import obstore
from obstore.store import S3Store
print(*[each["path"] for each in obstore.list(S3Store("bucket")).collect()])
"""


def test_clients_that_do_not_read_the_usual_variable_use_the_gateway(
    command: list[str], tmp_path: Path
) -> None:
    """The configuration of rclone has a remote `fordway`, and another remote that keeps its own endpoint."""
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket/key").write_text("content")
    config = tmp_path / "rclone.conf"
    config.write_text(
        "[fordway]\ntype = s3\nprovider = AWS\nendpoint = http://127.0.0.1:9\naccess_key_id = other\n"
        "secret_access_key = other\n\n[other]\ntype = s3\nprovider = AWS\nendpoint = http://127.0.0.1:9\n"
    )
    # rclone 1.60 fails if this variable is set.
    dropped = ("AWS_CA_BUNDLE", "AWS_ALLOW_HTTP", "RCLONE_S3_ENDPOINT")
    variables = {name: value for name, value in os.environ.items() if name not in dropped}
    variables |= {"RCLONE_CONFIG": str(config), "RCLONE_RETRIES": "1", "RCLONE_LOW_LEVEL_RETRIES": "1"}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *words], env=variables, capture_output=True, text=True, timeout=60)

    shown = run("sh", "-c", "echo $AWS_ENDPOINT_URL $S3_ENDPOINT_URL $RCLONE_CONFIG_FORDWAY_ENDPOINT")
    addresses = shown.stdout.split()
    assert len(addresses) == 3 and len(set(addresses)) == 1, shown
    if shutil.which("rclone"):
        listed = run("rclone", "lsf", "fordway:bucket")
        assert listed.stdout == "key\n", listed.stderr
        other = run("rclone", "lsf", "other:bucket")
        assert other.returncode != 0 and "127.0.0.1:9/" in other.stderr, other.stderr
    pytest.importorskip("obstore")
    listed = run(sys.executable, "-c", OBSTORE)
    assert listed.stdout == "key\n", listed.stderr


PROFILES = """
import sys
import boto3
s3 = boto3.Session(profile_name=sys.argv[1]).client("s3")
print(s3.meta.endpoint_url)
s3.delete_object(Bucket="bucket", Key="key")
"""
S3FS = """
import sys
import s3fs
print(s3fs.S3FileSystem(profile=sys.argv[1]).ls("bucket"))
"""
CONFIG = """
[default]
endpoint_url = http://127.0.0.1:1
[profile other]
aws_access_key_id = a
aws_secret_access_key = b
endpoint_url = http://127.0.0.1:2
[profile of-services]
aws_access_key_id = a
aws_secret_access_key = b
services = there
[profile embedded]
aws_access_key_id = a
aws_secret_access_key = b
endpoint_url = file:///nonesuch
[profile keys]
aws_access_key_id = a
aws_secret_access_key = b
[services there]
s3 =
  endpoint_url = http://127.0.0.1:3
"""


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration file with several profiles, and a key in the bucket `bucket`."""
    (tmp_path / "bucket").mkdir()
    key = tmp_path / "bucket/key"
    key.write_text("content")
    config = tmp_path / "config"
    config.write_text(CONFIG)
    for name, value in {"AWS_CONFIG_FILE": str(config), "AWS_MAX_ATTEMPTS": "1"}.items():
        monkeypatch.setenv(name, value)
    return key


@pytest.mark.parametrize(
    ("profile", "endpoint"),
    [
        ("other", "http://127.0.0.1:2"),
        ("of-services", "http://127.0.0.1:3"),
        ("embedded", "file:///nonesuch"),
    ],
)
@pytest.mark.parametrize("code", [PROFILES, S3FS], ids=["boto3", "s3fs"])
def test_profiles_keep_their_endpoints(
    command: list[str], configured: Path, profile: str, endpoint: str, code: str
) -> None:
    """A program that works on two services must not work on one directory instead."""
    if code == S3FS:
        pytest.importorskip("s3fs")
    words = [*command, sys.executable, "-c", code, profile]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert ran.returncode != 0 and endpoint in ran.stderr, ran
    assert configured.exists()


def test_the_default_profile_is_the_directory(command: list[str], configured: Path) -> None:
    words = [*command, sys.executable, "-c", PROFILES, "default"]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert ran.returncode == 0, ran.stderr
    assert not configured.exists()


OWN_KEYS = """
import boto3
from botocore import UNSIGNED
from botocore.config import Config
for s3 in (
    boto3.client("s3", aws_access_key_id="AKIAX", aws_secret_access_key="y", aws_session_token="z"),
    boto3.Session(profile_name="keys").client("s3"),
    boto3.client("s3", config=Config(signature_version=UNSIGNED)),
):
    s3.put_object(Bucket="bucket", Key="key", Body=b"content", ACL="private")
    print(s3.list_object_versions(Bucket="bucket")["ResponseMetadata"]["HTTPStatusCode"])
"""


def test_calls_to_the_gateway_need_no_keys_of_its_own(command: list[str], configured: Path) -> None:
    words = [*command, sys.executable, "-c", OWN_KEYS]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert ran.stdout == "200\n200\n200\n", ran.stderr
    assert configured.read_text() == "content"


PRESIGNED = """
import urllib.request
import boto3
s3 = boto3.client("s3")
url = s3.generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": "key"})
print(urllib.request.urlopen(url).read())
form = s3.generate_presigned_post("bucket", "posted")
name = "limit"
body = ""
for field, value in [*form["fields"].items(), ("file", "by form")]:
    body += f'--{name}\\r\\nContent-Disposition: form-data; name="{field}"\\r\\n\\r\\n{value}\\r\\n'
headers = {"Content-Type": f"multipart/form-data; boundary={name}"}
urllib.request.urlopen(urllib.request.Request(form["url"], f"{body}--{name}--\\r\\n".encode(), headers))
print(s3.get_object(Bucket="bucket", Key="posted")["Body"].read())
"""


def test_presigned_urls_and_forms_work_at_the_gateway(command: list[str], configured: Path) -> None:
    words = [*command, sys.executable, "-c", PRESIGNED]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert ran.stdout == "b'content'\nb'by form'\n", ran.stderr


def test_a_client_may_name_a_region(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    code = (
        "import boto3; boto3.client('s3').create_bucket(Bucket='made', "
        "CreateBucketConfiguration={'LocationConstraint': 'eu-west-1'})"
    )
    subprocess.run([*command, sys.executable, "-c", code], timeout=PATIENCE_S, check=True)
    assert (tmp_path / "made").is_dir()


WORKERS = """
import multiprocessing, os
import boto3

def put(number):
    boto3.client("s3").put_object(Bucket="bucket", Key=f"key-{number}", Body=b"")
    if number == "exit":
        os._exit(0)

if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        worker = multiprocessing.get_context(method).Process(target=put, args=(method,))
        worker.start()
        worker.join()
    if os.fork() == 0:
        put("exit")
    os.wait()
    boto3.client("s3").list_buckets()
"""


def test_the_calls_of_all_processes_are_counted(command: list[str], configured: Path, tmp_path: Path) -> None:
    script = tmp_path / "workers.py"
    script.write_text(WORKERS)
    words = [*command[:-1], "--explain", "--", sys.executable, str(script)]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    told = [line for line in ran.stderr.splitlines() if "boto:" in line]
    assert told == ["fordway run: boto: ListBuckets in process: 1, PutObject in process: 4"], ran.stderr


def test_rclone_gets_the_certificates_that_it_can_read(command: list[str], tmp_path: Path) -> None:
    rclone = tmp_path / "rclone"
    rclone.write_text("#!/bin/sh\necho ${AWS_CA_BUNDLE-none} $SSL_CERT_FILE\n")
    rclone.chmod(0o755)
    variables = os.environ | {"AWS_CA_BUNDLE": "/bundle"}
    variables.pop("SSL_CERT_FILE", None)
    ran = subprocess.run([*command, str(rclone)], env=variables, capture_output=True, text=True, check=True)
    assert ran.stdout == "none /bundle\n"


def test_programs_that_use_libs3_call_the_store_in_their_process(tmp_path: Path) -> None:
    if shutil.which("s3") is None or "FORDWAY_CAPI" not in os.environ:
        pytest.skip("there is no s3 (Debian: libs3-2), or FORDWAY_CAPI is not set; `make test` sets it")
    libraries = Path(os.environ["FORDWAY_CAPI"]) / "lib"
    (tmp_path / "root/bucket").mkdir(parents=True)
    (tmp_path / "file").write_bytes(b"content")
    words = [sys.executable, "-m", "fordway.launch", "--root", str(tmp_path / "root"), "--explain", "--libs3"]
    # Without the `fordway` program, there is no gateway that could answer.
    variables = os.environ | {"FORDWAY_BIN": "/nonesuch"}

    def run(directory: Path, *command: str) -> subprocess.CompletedProcess[str]:
        asked = [*words, str(directory), "--", *command]
        return subprocess.run(asked, env=variables, capture_output=True, text=True, timeout=PATIENCE_S)

    put = run(libraries, "s3", "-u", "put", "bucket/a/key", f"filename={tmp_path / 'file'}")
    assert put.returncode == 0, put.stderr
    assert "libs3 programs: in process, with libs3.so.4 or libs3.so.2" in put.stderr
    assert (tmp_path / "root/bucket/a/key").read_bytes() == b"content"
    listed = run(libraries, "s3", "-u", "list", "bucket")
    assert listed.returncode == 0 and "a/key" in listed.stdout
    wrong = run(tmp_path, "s3", "-u", "list", "bucket")
    assert (wrong.returncode, wrong.stdout) == (1, "") and "run: make libs3" in wrong.stderr


def test_the_program_that_runs_serves_the_gateway(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    own = Path(program()).resolve()
    path = os.pathsep.join((str(Path(sys.executable).parent), "/usr/bin", "/bin"))
    if shutil.which("fordway", path=path):
        pytest.skip("fordway is installed beside Python")
    variables = {name: text for name, text in os.environ.items() if name != "FORDWAY_BIN"} | {"PATH": path}
    script = "import os; assert 'FORDWAY_RUN_PROGRAM' not in os.environ; print(os.getenv('AWS_ENDPOINT_URL'))"
    command = [own, "run", "--root", tmp_path, "--", sys.executable, "-c", script]
    ended = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=True)
    assert not ended.stdout.strip().endswith(":9")
