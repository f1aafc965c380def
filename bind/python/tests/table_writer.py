"""A program that commits to one table while other processes commit to the same table.

usage: table_writer.py icechunk|delta PLACE RANK COMMITS

PLACE is JSON: {"path": DIRECTORY} or {"endpoint": URL, "bucket": NAME}. With RANK -1, the program creates the
table. Each commit adds one entry, which no other writer adds. The program prints a line after it has opened
the table, and waits for a line on standard input before it commits. At the end, the program prints the number
of successful commits and the number of attempts with a conflict, as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import deltalake
    import icechunk

KEY, SECRET, REGION = "TESTKEY", "test-secret-key", "us-east-1"


class Table(Protocol):
    """A table to which programs commit."""

    def make(self) -> None:
        """Creates the table, without entries."""

    def add(self, rank: int, number: int) -> int:
        """Commits the entry. Returns the number of attempts that had a conflict."""

    def entries(self) -> list[tuple[int, int]]:
        """Returns the table's entries, sorted."""

    def commits(self) -> int:
        """Returns the number of commits in the table's history, not counting the creation of the table."""


class IcechunkTable:
    """An icechunk repository. Each entry is an array."""

    def __init__(self, place: dict[str, str]) -> None:
        import icechunk

        if "path" in place:
            self._storage = icechunk.local_filesystem_storage(f"{place['path']}/icechunk")
            return
        self._storage = icechunk.s3_storage(
            bucket=place["bucket"],
            prefix="icechunk",
            endpoint_url=place["endpoint"],
            region=REGION,
            access_key_id=KEY,
            secret_access_key=SECRET,
            allow_http=True,
            force_path_style=True,
        )

    def _opened(self) -> icechunk.Repository:
        import icechunk

        return icechunk.Repository.open(self._storage)

    def make(self) -> None:
        """Creates the repository."""
        import icechunk
        import zarr

        session = icechunk.Repository.create(self._storage).writable_session("main")
        zarr.group(session.store)
        session.commit("made")

    def add(self, rank: int, number: int) -> int:
        """Commits an array. After a conflict, rebases the session on the earlier commits."""
        import icechunk
        import zarr

        session = self._opened().writable_session("main")
        array = zarr.create_array(session.store, name=f"{rank}-{number}", shape=(1,), dtype="i4")
        array[0] = number
        conflicts = 0
        while True:
            try:
                session.commit(f"{rank}-{number}")
                return conflicts
            except icechunk.ConflictError:
                conflicts += 1
                session.rebase(icechunk.ConflictDetector())

    def entries(self) -> list[tuple[int, int]]:
        """Returns the entries, and checks that the values in their arrays are correct."""
        import zarr

        group = zarr.open_group(self._opened().readonly_session("main").store, mode="r")
        found = [(*map(int, name.split("-")), int(array[0])) for name, array in group.arrays()]
        return sorted((rank, number) for rank, number, value in found if number == value)

    def commits(self) -> int:
        """Returns the number of snapshots, without the initial snapshot and the creation of the group."""
        return len(list(self._opened().ancestry(branch="main"))) - 2


class DeltaTable:
    """A table of delta-rs. Each entry is a row."""

    def __init__(self, place: dict[str, str]) -> None:
        if "path" in place:
            self._options = None
            self._where = f"{place['path']}/delta"
            return
        self._where = f"s3://{place['bucket']}/delta"
        self._options = {
            "AWS_ENDPOINT_URL": place["endpoint"],
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": REGION,
            "AWS_ALLOW_HTTP": "true",
            "aws_conditional_put": "etag",
        }

    def _write(self, rows: dict[str, list[int]]) -> None:
        import deltalake
        import pyarrow

        # The library must not retry, so that each conflict is counted.
        once = deltalake.CommitProperties(max_commit_retries=0)
        table = pyarrow.table(rows, pyarrow.schema([("rank", pyarrow.int64()), ("number", pyarrow.int64())]))
        deltalake.write_deltalake(
            self._where, table, mode="append", storage_options=self._options, commit_properties=once
        )

    def _opened(self) -> deltalake.DeltaTable:
        import deltalake

        return deltalake.DeltaTable(self._where, storage_options=self._options)

    def make(self) -> None:
        """Creates the table, without rows."""
        self._write({"rank": [], "number": []})

    def add(self, rank: int, number: int) -> int:
        """Appends a row."""
        from deltalake.exceptions import CommitFailedError

        conflicts = 0
        while True:
            try:
                self._write({"rank": [rank], "number": [number]})
                return conflicts
            except CommitFailedError:
                conflicts += 1

    def entries(self) -> list[tuple[int, int]]:
        """Returns the rows as pairs of rank and number, sorted."""
        rows = self._opened().to_pyarrow_table().to_pydict()
        return sorted(zip(rows["rank"], rows["number"], strict=True))

    def commits(self) -> int:
        """Returns the number of versions after the initial version."""
        return self._opened().version()


def table(kind: str, place: dict[str, str]) -> Table:
    """Returns a table of this kind at this place."""
    return {"icechunk": IcechunkTable, "delta": DeltaTable}[kind](place)


def main(kind: str, place: str, rank: str, commits: str) -> None:
    """Creates the table, or commits to it."""
    opened = table(kind, json.loads(place))
    if rank == "-1":
        opened.make()
        return
    opened.commits()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    done, conflicts = 0, 0
    for number in range(int(commits)):
        try:
            conflicts += opened.add(int(rank), number)
            done += 1
        except Exception as error:  # a table may break; try the remaining commits anyway
            sys.stderr.write(f"{kind}: {error}\n")
    sys.stdout.write(json.dumps({"commits": done, "conflicts": conflicts}))


if __name__ == "__main__":
    assert len(sys.argv) == 5, Path(__file__).name + ": " + (__doc__ or "")
    main(*sys.argv[1:])
