"""Tests how `fordway run` and the processes that it started end."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from gateways import program

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
