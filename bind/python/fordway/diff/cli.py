"""The `fordway-diff` command."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fordway import output

if TYPE_CHECKING:
    from fordway.diff.compare import CellDifference, Change, RunDifference

NOT_INSTALLED = "the packages that compare runs are not installed: pip install 'fordway[report]'"

WORSE, FAILED = 1, 2
CHANGED = ("slower", "faster")
AT_LEAST_MAX = 10_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the differences between two runs.

    Returns 1 if an operation became slower or fails more often, 0 if no operation did, and 2 if the runs
    cannot be compared or the output cannot be written.
    """
    options = _parser().parse_args(arguments)
    try:
        from fordway.diff.compare import DiffError, compare
        from fordway.report.runfile import RunFileError
    except ModuleNotFoundError as error:
        return _fail(f"{NOT_INSTALLED} ({error})")
    if not 0 <= options.at_least <= AT_LEAST_MAX:
        return _fail(f"--at-least is {options.at_least:g}: give a percentage from 0 to {AT_LEAST_MAX}")
    try:
        least = options.at_least / 100
        found = compare(options.before, options.after, least, different_work=options.different_work)
    except (DiffError, RunFileError) as error:
        return _fail(str(error))
    text = json.dumps(found.as_json(), indent=1) if options.json else table(found)
    try:
        output.write(text + "\n")
    except output.OutputError as error:
        return _fail(str(error))
    return WORSE if found.is_worse else 0


def table(found: "RunDifference") -> str:
    """Returns the difference as text."""
    lines = [f"settings differ: {each}" for each in found.settings]
    lines += [f"warning: {each}" for each in found.notes]
    lines += [f"failures: {each}" for each in found.failures]
    width = max(len(cell.lane) for cell in found.cells)
    phases = max(len(cell.phase) for cell in found.cells)
    for cell in found.cells:
        lines += [f"{cell.phase:<{phases}}  {cell.lane:<{width}}  {_change(each)}" for each in _shown(cell)]
    verdicts = [cell.verdict for cell in found.cells]
    counts = {verdict: verdicts.count(verdict) for verdict in ("slower", "faster", "same", "cannot tell")}
    lines.append(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    return "\n".join(map(output.line, lines))


def _shown(cell: "CellDifference") -> "list[Change]":
    """Returns the change of the median, and each other change whose verdict differs from the median's
    verdict. A 99th percentile whose change cannot be determined is omitted.
    """
    median, *others = cell.changes
    other = [each for each in others if each.verdict != median.verdict]
    return [median, *(each for each in other if each.statistic == "mean" or each.verdict in CHANGED)]


def _change(change: "Change") -> str:
    from fordway.report import units

    times = f"{units.duration(round(change.before_ns))} -> {units.duration(round(change.after_ns))}"
    times = f"{change.statistic:<6}  {times}"
    if change.ratio is None:
        return f"{times}  cannot tell: fewer than 5 rounds"
    if change.low is None or change.high is None:
        return f"{times}  x {change.ratio:.3f}  cannot tell: all rounds of a run took the same time"
    return f"{times}  x {change.ratio:.3f} [{_factor(change.low)}, {_factor(change.high)}]  {change.verdict}"


def _factor(value: float) -> str:
    return f"{value:.3f}" if 0.01 <= value < 1000 else f"{value:.1e}"


def _fail(message: str) -> int:
    output.write_error(f"fordway-diff: {message}\n")
    return FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fordway-diff",
        description="Show what became slower from one run to another. "
        "Compares the median and the mean time of an operation, and the 99th percentile of rounds with at "
        "least 500 operations. "
        "Exit status: 0 nothing, 1 something became slower or fails more often, 2 the runs cannot be "
        "compared, or the output cannot be written.",
    )
    parser.add_argument("before", type=Path, metavar="BEFORE.run", help="run directory")
    parser.add_argument("after", type=Path, metavar="AFTER.run", help="run directory of the same kind")
    parser.add_argument(
        "--at-least",
        type=float,
        default=5,
        metavar="PERCENT",
        help="ignore changes smaller than this percentage (default: 5)",
    )
    parser.add_argument(
        "--different-work",
        action="store_true",
        help="compare also runs whose work differs, such as in files, sizes, threads or durability",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser
