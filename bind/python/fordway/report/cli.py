"""The `fordway-report` command."""

import argparse
import itertools
import re
import shlex
import webbrowser
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fordway import output
from fordway.report import files

if TYPE_CHECKING:
    from fordway.report import runfile

NOT_INSTALLED = "the packages that draw reports are not installed: pip install 'fordway[report]'"


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the report of the runs in `arguments`. Returns the exit status."""
    options = _parser().parse_args(arguments)
    out = options.out or _beside(options.runs)
    is_made = False
    try:
        is_made = _report(options, out)
    finally:
        if not is_made and files.remove_outdated(out, options.runs):
            _fail(f"{out} was removed, because it describes an earlier run")
    if is_made and options.open:
        webbrowser.open(out.resolve().as_uri())
    return 0 if is_made else 1


def _report(options: argparse.Namespace, out: Path) -> bool:
    """Writes the report, and prints its path. If the report cannot be written, prints the reason and returns
    `False`.
    """
    try:
        from fordway.report import physics, runfile
        from fordway.report.counters import CounterError
    except ModuleNotFoundError as error:
        return _fail(f"{NOT_INSTALLED} ({error})")
    try:
        if files.is_foreign(out):
            return _fail(
                f"{out} exists and is not a Fordway report, so it was not changed; write the report to "
                f"another file with `fordway report {shlex.join(map(str, options.runs))} --out FILE`"
            )
        asked = sizes(options.size)
        runs = [replace(run, sizes_bytes=asked) for run in read_runs(options.runs, options.counters)]
        if wrong := [f"{run.name}: {each}" for run in runs for each in physics.impossible(run.info)]:
            return _fail(
                f"the page was not written, because run.json has impossible figures ({'; '.join(wrong)}); "
                "the file was changed or damaged. Measure again"
            )
        missing = [run.name for run in runs if not _has_sizes(run)]
        if missing:
            return _fail(f"{missing[0]} has no path at a size of --size: give sizes that it measured")
        write_report(runs, out, options.svg, options.png)
    except (runfile.RunFileError, CounterError) as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(f"the report cannot be written: {error}")
    try:
        output.write(f"{out}\n")
    except output.OutputError as error:
        return _fail(f"{out} was written, but {error}")
    return True


def sizes(text: str | None) -> tuple[int, ...]:
    """Returns the sizes in a list such as `4KiB,1MiB`, in bytes. Raises `RunFileError`."""
    from fordway.report import runfile

    found = []
    for part in (text or "").split(",") if text else ():
        match = re.fullmatch(r"\s*(\d+)\s*(|[KMG]i)B?\s*", part)
        if match is None:
            raise runfile.RunFileError(f"--size {part!r} is not a size: write 4KiB,1MiB")
        found.append(int(match[1]) * 1024 ** ["", "Ki", "Mi", "Gi"].index(match[2]))
    return tuple(found)


def _has_sizes(run: "runfile.Run") -> bool:
    if run.ledger is None:
        return True
    measured = {entry["size_bytes"] for entry in run.ledger["entries"]}
    return not run.ledger["entries"] or measured.issuperset(run.sizes_bytes)


def read_runs(directories: list[Path], counters: Path | None) -> "list[runfile.Run]":
    """Returns the runs. Hardware counters require exactly one run. Raises `CounterError`."""
    from fordway.report.counters import CounterError, read_counted

    runs = [_read(path) for path in directories]
    if counters is None:
        return runs
    if len(runs) != 1:
        raise CounterError(f"--counters needs exactly one run, but {len(runs)} are given")
    if runs[0].info["elapsed_ns"] is None:
        raise CounterError(
            f"--counters needs a run directory, but {directories[0]} is a published table, whose duration is "
            "unknown"
        )
    counted = read_counted(counters)
    counted.check_covers(runs[0].info["elapsed_ns"])
    return [replace(runs[0], counted=counted)]


def _read(path: Path) -> "runfile.Run":
    """Reads a run directory, or a published table, and returns it as a run."""
    from fordway.report import runfile
    from fordway.report.layers import published

    return published.read(path) if path.is_file() else runfile.read_run(path)


def write_report(runs: "list[runfile.Run]", out: Path, svg: Path | None, png: Path | None) -> None:
    """Writes the page to `out`, and one file for each figure if `svg` or `png` is given.

    A figure that cannot be drawn is left out, with a note on the page and on standard error.
    """
    from fordway.report import figures, kinds, page

    colours = figures.lane_colours([lane for run in runs for lane in run.lanes])
    drawn = [kinds.draw_all(run, colours) for run in runs]
    for run, of_run in zip(runs, drawn, strict=True):
        for note in of_run.failed:
            _fail(f"{run.name}: {note}")
    stems = figure_stems([(run.name, list(each.figures)) for run, each in zip(runs, drawn, strict=True)])
    for directory, form in ((svg, "svg"), (png, "png")):
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
            for stem, of_run in zip(stems, drawn, strict=True):
                for name, figure in of_run.figures.items():
                    with files.replacing(directory / f"{stem}-{name}.{form}") as temporary:
                        figures.save(figure, temporary, form)
    out.parent.mkdir(parents=True, exist_ok=True)
    with files.replacing(out) as temporary:
        temporary.write_text(page.page(runs, drawn, colours), encoding="utf-8")


def figure_stems(runs: list[tuple[str, list[str]]]) -> list[str]:
    """Returns the first part of the names of each run's figures. `runs` contains the name of each run, and
    the names of its figures.

    The part is the run's name. A number follows if a figure would otherwise have the same name as a figure of
    another run, as for the runs `a/x.run` and `b/x.run`.
    """
    stems, used = [], set()
    for run, figures in runs:
        numbers = itertools.count(2)
        stem = run
        while not used.isdisjoint(f"{stem}-{figure}" for figure in figures):
            stem = f"{run}-{next(numbers)}"
        used |= {f"{stem}-{figure}" for figure in figures}
        stems.append(stem)
    return stems


def _beside(runs: list[Path]) -> Path:
    """Returns the default path of the page: `NAME.html` next to `NAME.run`, or, for several runs,
    `report.html` next to the first run.
    """
    first = runs[0].resolve()
    name = first.name.removesuffix(".run").removesuffix(".csv") if len(runs) == 1 else "report"
    return first.with_name(f"{name}.html")


def _fail(message: str) -> bool:
    output.write_error(f"fordway-report: {message}\n")
    return False


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fordway-report", description="Write a self-contained HTML page about one or more runs."
    )
    parser.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="run directory NAME.run, or a table of ppbench or of the sdvn-impact-database (NAME.csv)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="page to write (default: NAME.html next to NAME.run)"
    )
    parser.add_argument(
        "--counters",
        "--likwid",
        type=Path,
        metavar="FILE",
        help="hardware counters of the run: output of likwid-perfctr or perf stat, or a JSON file of PAPI",
    )
    parser.add_argument(
        "--size", metavar="SIZE,...", help="sizes of a ledger to draw (default: the printed sizes)"
    )
    parser.add_argument("--open", action="store_true", help="show the page in a browser")
    parser.add_argument("--svg", type=Path, metavar="DIR", help="also write each figure as SVG into DIR")
    parser.add_argument("--png", type=Path, metavar="DIR", help="also write each figure as PNG into DIR")
    return parser
