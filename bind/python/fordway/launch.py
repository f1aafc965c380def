"""`fordway run`: an unchanged program on a directory, as if the directory were S3."""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import fordway
from fordway.errors import FordwayError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

HOOK = Path(__file__).parent / "hook"
READY = "fordway: serving "
NOT_FOUND = 127
"""The exit status of shells for a program that does not exist."""

DESCRIPTION = """\
Runs PROGRAM with the objects of a directory as its S3.

boto3 and the programs built on it (s3transfer, aws-cli from Python packages) call the store inside their own
process. All other S3 clients that read AWS_ENDPOINT_URL use a gateway, which listens on loopback and ends
with PROGRAM. The exit status is PROGRAM's own."""

EXAMPLES = """\
Examples:
  fordway run --root data -- python3 analysis.py
  fordway run --root data --explain -- aws s3 ls s3://results"""


def main() -> None:
    """Runs the command `fordway run`."""
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
    parser.add_argument("program", metavar="PROGRAM", help="the program to run")
    parser.add_argument("arguments", metavar="ARGUMENT", nargs=argparse.REMAINDER, help="its arguments")
    asked = parser.parse_args()
    try:
        sys.exit(run(asked.root, [asked.program, *asked.arguments], asked.explain))
    except (FordwayError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 (this is the command)
        sys.exit(NOT_FOUND if isinstance(error, FileNotFoundError) else 1)


def run(root: Path, command: list[str], is_explained: bool) -> int:
    """Runs a program and returns its exit status, or 128 plus the number of the signal that ended it."""
    root = root.resolve()
    fordway.open(root).close()
    if shutil.which(command[0]) is None:
        raise FileNotFoundError(f"the program {command[0]} is not on PATH")
    keys = {"AWS_ACCESS_KEY_ID": "fordway-run", "AWS_SECRET_ACCESS_KEY": secrets.token_urlsafe(30)}
    with gateway(root, keys) as endpoint:
        if is_explained:
            print(f"fordway run: other S3 clients go to {endpoint or 'no gateway'}", file=sys.stderr)  # noqa: T201
        variables = environment(os.environ, root, endpoint, keys)
        if is_explained:
            variables["FORDWAY_EXPLAIN"] = "1"
        with subprocess.Popen(command, env=variables) as program:
            # The terminal sends Ctrl-C to the program too; this process ends after it.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, lambda *_: program.terminate())
            status = program.wait()
    return status if status >= 0 else 128 - status


def environment(
    inherited: Mapping[str, str], root: Path, endpoint: str | None, keys: Mapping[str, str]
) -> dict[str, str]:
    """Returns the environment variables for the program, without settings for other services."""
    dropped = (
        "AWS_ENDPOINT_URL_S3",
        "AWS_SESSION_TOKEN",
        "AWS_PROFILE",
        "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS",
    )
    kept = {name: value for name, value in inherited.items() if name not in dropped}
    region = {"AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1"}
    path = [str(HOOK), *filter(None, [inherited.get("PYTHONPATH")])]
    return {
        **region,
        **kept,
        **keys,
        # Without a gateway, a call to it fails at once, and does not leave the machine.
        "AWS_ENDPOINT_URL": endpoint or "http://127.0.0.1:9",
        "FORDWAY_STORE": f"file://{root}",
        "PYTHONPATH": os.pathsep.join(path),
    }


@contextlib.contextmanager
def gateway(root: Path, keys: Mapping[str, str]) -> Iterator[str | None]:
    """Serves `root` on loopback for the length of the block, if the program `fordway` is on PATH."""
    program = shutil.which(os.environ.get("FORDWAY_BIN", "fordway"))
    if program is None:
        yield None
        return
    command = [program, "serve", str(root), "--listen", "127.0.0.1:0"]
    # In a separate process group, Ctrl-C does not end the gateway before the program.
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, **keys}, process_group=0
    ) as served:
        try:
            ready = served.stdout.readline() if served.stdout else ""
            if not ready.startswith(READY):
                raise OSError(f"the gateway did not start; try: {' '.join(command)}")
            yield ready.rsplit(" at ", 1)[1].strip()
        finally:
            served.terminate()


if __name__ == "__main__":
    main()
