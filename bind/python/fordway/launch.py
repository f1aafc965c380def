"""`fordway run`: runs an unchanged S3 program on a directory."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import resource
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import fordway
from fordway.errors import FordwayError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import NoReturn

HOOK = Path(__file__).parent / "hook"
READY = "fordway: serving "
ACCESS_KEY = "fordway-run"
NOT_FOUND = 127
"""The exit status that shells return for a program that does not exist."""
PASSED_ON = (signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that this process forwards to the program."""
FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
"""Signals that the terminal also sends to the program. This process ignores them while the program runs."""
PR_SET_PDEATHSIG = 1
GATEWAY_END_S = 10
"""The maximum time for the gateway to close its connections. After this time, the gateway is killed."""

DESCRIPTION = """\
Runs PROGRAM with the objects of a directory as its S3 service.

boto3 and the programs built on it (s3transfer, aws-cli from Python packages) call the store inside their
own process. Other S3 clients use a gateway, which listens on loopback and exits when PROGRAM exits. They
find it in AWS_ENDPOINT_URL (aws-cli, s3fs, obstore, polars) or in S3_ENDPOINT_URL (s5cmd); rclone has a
remote `fordway:`. A boto program that selects a profile with an endpoint_url uses this endpoint. PyArrow,
DuckDB and s3cmd read none of these, and need the endpoint as an option. With --libs3, C programs that use
libs3 (IOR, s3) also call the store inside their own process. The exit status is PROGRAM's own; if a
signal ends PROGRAM, it ends this command too. The signals HUP, TERM, USR1 and USR2 are passed on to
PROGRAM. If this command is killed, PROGRAM and the gateway get TERM."""

EXAMPLES = """\
Examples:
  fordway run --root data -- python3 analysis.py
  fordway run --root data --explain -- aws s3 ls s3://results
  fordway run --root data -- rclone lsf fordway:results
  fordway run --root data --libs3 out/lib -- s3 -u list results"""
LIBS3_NAMES = ("libs3.so.4", "libs3.so.2")
"""The drop-ins for the two versions of libs3."""


def main() -> None:
    """Runs the `fordway run` command."""
    parser = argparse.ArgumentParser(
        prog="fordway run",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--root", type=Path, default=Path(), help="the directory with the buckets (default: .)"
    )
    parser.add_argument(
        "--explain",
        action="store_true",
        help="print to stderr how the calls of each library were carried out",
    )
    parser.add_argument(
        "--libs3",
        type=Path,
        metavar="DIR",
        help="the directory with Fordway's drop-in for libs3 (`make libs3` builds out/lib)",
    )
    # With two arguments, PROGRAM and a remainder, argparse would drop a `--` that follows PROGRAM.
    parser.add_argument(
        "command", metavar="PROGRAM", nargs=argparse.PARSER, help="the program to run, and its arguments"
    )
    asked = parser.parse_args()
    # Not every version of argparse removes the `--` before PROGRAM.
    command = asked.command[1:] if asked.command[0] == "--" else asked.command
    if not command:
        parser.error("the following arguments are required: PROGRAM")
    try:
        end_like(run(asked.root, command, asked.explain, asked.libs3))
    except (FordwayError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 (this is the command)
        sys.exit(NOT_FOUND if isinstance(error, FileNotFoundError) else 1)


def run(root: Path, command: list[str], is_explained: bool, libs3: Path | None = None) -> int:
    """Runs a program and returns its exit status, or the negative number of the signal that ended it."""
    root = root.resolve()
    libraries = drop_ins(libs3) if libs3 else []
    fordway.open(root).close()
    if shutil.which(command[0]) is None:
        raise FileNotFoundError(f"the program {command[0]} is not on PATH")
    keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": secrets.token_urlsafe(30)}
    with passing_signals_on() as programs, gateway(root, keys) as endpoint, contextlib.ExitStack() as ending:
        if is_explained:
            print(f"fordway run: other S3 clients: {endpoint or 'no gateway'}", file=sys.stderr)  # noqa: T201
        variables = environment(os.environ, root, endpoint, keys)
        if libs3:
            variables |= libs3_variables(libs3.resolve(), root, variables)
        if Path(command[0]).name == "rclone":
            variables = for_rclone(variables)
        if is_explained:
            variables["FORDWAY_EXPLAIN"] = ending.enter_context(explaining_calls())
            said = (
                f"in process, with {' or '.join(libraries)}"
                if libraries
                else "not redirected, without --libs3"
            )
            print(f"fordway run: libs3 programs: {said}", file=sys.stderr)  # noqa: T201
        # The program inherits open descriptors, for example of a shell's `<(...)` or `3<file`.
        with subprocess.Popen(
            command, env=variables, close_fds=False, preexec_fn=ending_with_parent()
        ) as program:
            programs.append(program)
            return program.wait()


@contextlib.contextmanager
def explaining_calls() -> Iterator[str]:
    """Yields the path of a file to which the processes of the program add a line for each call of boto. At
    the end, prints the numbers of these calls.
    """
    with tempfile.NamedTemporaryFile(prefix="fordway-run-") as calls:
        yield calls.name
        counts = Counter(line.decode().strip().replace("\t", " ") for line in calls)
        told = ", ".join(f"{call}: {count}" for call, count in sorted(counts.items()))
        print(f"fordway run: boto: {told or 'no calls'}", file=sys.stderr)  # noqa: T201


def end_like(status: int) -> NoReturn:
    """Ends this process with the program's exit status or signal, so that a shell receives the same status as
    from the program.
    """
    if status < 0:
        # This process must not write a second core file after the program has written one.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -status not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status if status >= 0 else 128 - status)


@contextlib.contextmanager
def passing_signals_on() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Yields a list to which the caller adds the started program. From then on, signals to this process are
    forwarded to the program. Until then, signals end this process and the gateway. Ignored signals stay
    ignored.
    """
    programs: list[subprocess.Popen[bytes]] = []

    def on_signal(number: int, _: object) -> None:
        if not programs:
            sys.exit(128 + number)
        if number in PASSED_ON:
            programs[0].send_signal(number)

    taken = [each for each in (*PASSED_ON, *FROM_TERMINAL) if signal.getsignal(each) is not signal.SIG_IGN]
    before = {each: signal.signal(each, on_signal) for each in taken}
    try:
        yield programs
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def ending_with_parent() -> Callable[[], None]:
    """Returns a function that a new process must run first. The new process then receives SIGTERM when this
    process ends, even if this process is killed.
    """
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def arrange() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)

    return arrange


def environment(
    inherited: Mapping[str, str], root: Path, endpoint: str | None, keys: Mapping[str, str]
) -> dict[str, str]:
    """Returns the environment variables for the program, without inherited settings that select another S3
    service.
    """
    dropped = (
        "FORDWAY_RUN_PROGRAM",
        "AWS_ENDPOINT_URL_S3",
        "AWS_SESSION_TOKEN",
        "AWS_PROFILE",
        "AWS_DEFAULT_PROFILE",
        "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS",
    )
    kept = {name: value for name, value in inherited.items() if name not in dropped}
    region = {"AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1"}
    path = [str(HOOK), *filter(None, [inherited.get("PYTHONPATH")])]
    # Without a gateway, nothing listens at this address, so calls fail immediately and do not leave the
    # machine.
    address = endpoint or "http://127.0.0.1:9"
    return {
        **region,
        **kept,
        **keys,
        **rclone_remote(address, keys),
        **direct_connections(inherited),
        "AWS_ENDPOINT_URL": address,
        # `fordway.boto` compares the endpoint of a client with this address, and signs with this key.
        "FORDWAY_RUN_ENDPOINT": address,
        "FORDWAY_RUN_SECRET_KEY": keys["AWS_SECRET_ACCESS_KEY"],
        # s5cmd reads the endpoint from this variable.
        "S3_ENDPOINT_URL": address,
        # Programs with the Rust library object_store (obstore, polars) otherwise refuse the address.
        "AWS_ALLOW_HTTP": "true",
        # In a URL, the part of the path after a `?` would be options of the store.
        "FORDWAY_STORE": str(root),
        "PYTHONPATH": os.pathsep.join(path),
    }


def direct_connections(inherited: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables with which clients connect to the gateway directly, even if the environment names
    a proxy.
    """
    names = ("no_proxy", "NO_PROXY")
    # Some clients read only one of the variables, and others prefer one of them.
    other = next(filter(None, map(inherited.get, names)), "")
    excepted = {name: inherited.get(name) or other for name in names}
    return {
        name: hosts if hosts.strip() == "*" else ",".join(filter(None, [hosts, "127.0.0.1"]))
        for name, hosts in excepted.items()
    }


def rclone_remote(endpoint: str, keys: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that define rclone's remote `fordway:`, or redirect this remote if the
    configuration file defines it. RCLONE_S3_ENDPOINT would also redirect all other remotes of the
    configuration file.
    """
    settings = {
        "TYPE": "s3",
        "PROVIDER": "Other",
        "ENDPOINT": endpoint,
        "ACCESS_KEY_ID": keys["AWS_ACCESS_KEY_ID"],
        "SECRET_ACCESS_KEY": keys["AWS_SECRET_ACCESS_KEY"],
    }
    return {f"RCLONE_CONFIG_FORDWAY_{name}": value for name, value in settings.items()}


def for_rclone(variables: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables, with the certificates to trust in the variable that all versions of rclone
    support. rclone 1.60 fails if `AWS_CA_BUNDLE` is set.
    """
    others = {name: value for name, value in variables.items() if name != "AWS_CA_BUNDLE"}
    bundle = variables.get("AWS_CA_BUNDLE")
    return {"SSL_CERT_FILE": bundle, **others} if bundle else others


def drop_ins(directory: Path) -> list[str]:
    """Returns the drop-ins for libs3 in a directory. Raises `OSError` if there are none."""
    found = [name for name in LIBS3_NAMES if (directory / name).exists()]
    if not found:
        raise OSError(f"{directory} contains no {' or '.join(LIBS3_NAMES)}; run: make libs3")
    return found


def libs3_variables(directory: Path, root: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables with which programs load the drop-in, and with which the `s3` program finds the
    directory of the buckets.
    """
    path = [str(directory), *filter(None, [variables.get("LD_LIBRARY_PATH")])]
    return {
        "LD_LIBRARY_PATH": os.pathsep.join(path),
        "S3_HOSTNAME": str(root),
        "S3_ACCESS_KEY_ID": variables["AWS_ACCESS_KEY_ID"],
        "S3_SECRET_ACCESS_KEY": variables["AWS_SECRET_ACCESS_KEY"],
    }


@contextlib.contextmanager
def gateway(root: Path, keys: Mapping[str, str]) -> Iterator[str | None]:
    """Serves `root` on loopback during the `with` block. Yields the gateway's address, or `None` if there is
    no program `fordway`: in FORDWAY_BIN, else the program that runs `fordway run`, else on PATH.
    """
    own = os.environ.get("FORDWAY_RUN_PROGRAM", "fordway")
    program = shutil.which(os.environ.get("FORDWAY_BIN", own))
    if program is None:
        yield None
        return
    # Clients create presigned URLs with version 2 signatures if the endpoint is not AWS's.
    command = [program, "serve", str(root), "--listen", "127.0.0.1:0", "--signature-v2"]
    # The gateway runs in a separate process group, so that Ctrl-C does not end it before the program.
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **keys},
        process_group=0,
        preexec_fn=ending_with_parent(),
    ) as served:
        try:
            ready = served.stdout.readline() if served.stdout else ""
            if not ready.startswith(READY):
                raise OSError(f"the gateway did not start; try: {' '.join(command)}")
            yield ready.rsplit(" at ", 1)[1].strip()
        finally:
            served.terminate()
            try:
                served.wait(GATEWAY_END_S)
            except subprocess.TimeoutExpired:
                served.kill()


if __name__ == "__main__":
    main()
