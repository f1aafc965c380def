"""Prints the results of bench/two-nodes as one table.

usage: two_nodes.py FILE.jsonl...

Each line of a file is the run.json of one run. The name of a file is two-nodes-SYSTEM.jsonl.
"""

import json
import sys
from pathlib import Path

LANES = ("posix", "embedded", "node", "http")


def rows(file):
    """Yields the name of the file system, the ranks per node, the phase, and the summaries by lane."""
    system = file.stem.removeprefix("two-nodes-")
    for run in map(json.loads, file.read_text().splitlines()):
        for phase in run["phases"]:
            lanes = {each["lane"]: each for each in run["summaries"] if each["phase"] == phase}
            yield system, run["parameters"]["ranks"] // 2, phase, lanes


def rate(summary):
    """Returns the rate of plain files, in operations per second."""
    return f"{summary['ops_per_s']:.3g}"


def ratio(summary):
    """Returns the ratio to plain files with its 95 % interval, or the number of errors."""
    if summary["errors"]:
        return f"{summary['errors']} errors"
    interval = (summary["ratio"] or {}).get("interval")
    return f"{interval['value']:.2f} [{interval['low']:.2f}, {interval['high']:.2f}]" if interval else "-"


def main(files):
    heading = ("file system", "ranks", "phase", "posix ops/s", *(f"{lane} x posix" for lane in LANES[1:]))
    table = [heading]
    for system, ranks, phase, lanes in (row for file in files for row in rows(file)):
        cells = [ratio(lanes[lane]) for lane in LANES[1:]]
        table.append((system, f"2 x {ranks}", phase, rate(lanes["posix"]), *cells))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print("\nranks: nodes x ranks per node. x posix: rate in units of the rate of plain files, with its 95 % interval.")


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
