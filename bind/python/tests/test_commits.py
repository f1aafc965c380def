"""Tests that no commit is lost if several processes commit to one table.

If FORDWAY_SOAK is set, 8 processes make 50 commits each. The test repeats these commits on a plain directory,
and prints how many of them are lost.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from gateways import KEYS, endpoint
from table_writer import table

import fordway

if TYPE_CHECKING:
    from collections.abc import Iterator

IS_SOAK = bool(os.environ.get("FORDWAY_SOAK"))
WRITERS, COMMITS = (8, 50) if IS_SOAK else (4, 12)
QUIET = os.environ | {"ICECHUNK_LOG": "error"}
"""Settings that stop icechunk from logging to standard output."""
WRITER = Path(__file__).parent / "table_writer.py"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in KEYS.items():
            patch.setenv(name, value)
        with endpoint("http", tmp_path_factory.mktemp("tables")) as where:
            fordway.open(where).create_bucket("tables")
            yield {"endpoint": where, "bucket": "tables"}


def commit_at_once(kind: str, place: dict[str, str]) -> tuple[int, int]:
    """Makes all writers commit to a new table. Returns the numbers of reported commits and conflicts."""
    command = [sys.executable, str(WRITER), kind, json.dumps(place)]
    subprocess.run([*command, "-1", "0"], check=True, timeout=60)
    writers = [
        subprocess.Popen(
            [*command, str(rank), str(COMMITS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=QUIET
        )
        for rank in range(WRITERS)
    ]
    assert [writer.stdout.readline() for writer in writers] == [b"ready\n"] * WRITERS
    for writer in writers:
        writer.stdin.write(b"\n")
        writer.stdin.flush()
    said = [writer.communicate(timeout=1200)[0] for writer in writers]
    assert [writer.returncode for writer in writers] == [0] * WRITERS
    found = [json.loads(each) for each in said]
    return sum(each["commits"] for each in found), sum(each["conflicts"] for each in found)


def show(kind: str, where: str, commits: int, conflicts: int, lost: int) -> None:
    """Prints the results of a run, for `pytest -s`."""
    sys.stdout.write(f"{kind}, {where}: {commits} commits reported, {conflicts} conflicts, {lost} lost\n")


@pytest.mark.parametrize("kind", ["icechunk", "delta"])
def test_no_commit_is_lost(kind: str, place: dict[str, str]) -> None:
    commits, conflicts = commit_at_once(kind, place)
    opened = table(kind, place)
    entries = opened.entries()
    show(kind, "http gateway", commits, conflicts, commits - len(entries))
    assert entries == [(rank, number) for rank in range(WRITERS) for number in range(COMMITS)]
    assert opened.commits() == commits == WRITERS * COMMITS
    assert conflicts > 0, "nobody met a conflict, so nothing was shown"


if IS_SOAK:

    @pytest.mark.parametrize("kind", ["icechunk", "delta"])
    def test_a_plain_directory_beside_it(kind: str, tmp_path: Path) -> None:
        """Prints the results of commits to a plain directory, for comparison. Passes with any result, because
        the plain directory does not use our code.
        """
        place = {"path": str(tmp_path)}
        commits, conflicts = commit_at_once(kind, place)
        kept = len(table(kind, place).entries())
        show(kind, "plain directory", commits, conflicts, commits - kept)
        assert 0 < kept <= commits <= WRITERS * COMMITS
