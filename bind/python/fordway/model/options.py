"""Options of `fordway-model`. Importing this module needs no optional library."""

import json
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fordway.model import checks, readers, terms
    from fordway.model.advice import link as network_link
    from fordway.model.advice import objects as moved

FITTED = [
    "auto",
    "linear",
    "frequency-simple",
    "frequency",
    "frequency-bandwidth",
    "frequency-full",
    "break",
    "concurrency",
    "eq9",
]
PUBLISHED = ["eq8", "eq11", "eq12", "eq13"]
METHODS = ["ols", "bounded", "relative", "robust"]
EXAMPLES = """examples:
  fordway model fit runs.csv --model frequency
  fordway model fit load.run --lane http/1.1 --json > fit.json
  fordway model predict fit.json --size 4KiB,1MiB
  fordway model check runs.csv
  fordway compare TREE --out one.run && fordway model advise --machine one.run --tree DIR
  fordway model advise --machine one.run --sizes 4KiBx1000,1MiBx10 --rtt 30ms --bandwidth 1Gbit/s
  fordway model check runs.csv --model eq11 --memory-bandwidth 17444MB/s \\
      --network-bandwidth 5900MB/s --rtt 60us

The exit status is 2 if measurements or options are unusable, and otherwise 0.
docs/explain/model.md explains the models and the figures.
"""


def parser() -> ArgumentParser:
    """Returns the parser of the commands and their options."""
    about = "Fit cost models of requests to measurements, check them, and predict times with them."
    whole = ArgumentParser(
        prog="fordway-model", description=about, epilog=EXAMPLES, formatter_class=RawDescriptionHelpFormatter
    )
    commands = whole.add_subparsers(dest="command", required=True, metavar="COMMAND")
    fit = _command(commands, "fit", "fit a model's coefficients, and report how reliable they are")
    _files(fit)
    fit.add_argument(
        "--model", choices=FITTED, default="auto", help="model to fit (default: auto, by leave-one-out error)"
    )
    fit.add_argument(
        "--method",
        choices=METHODS,
        default="relative",
        help="error to minimize: in µs (ols; bounded: coefficients of at least 0) or in %% (relative; "
        "robust: outliers count less)",
    )
    check = _command(
        commands, "check", "check measurements, or check a model with given coefficients against them"
    )
    _files(check)
    check.add_argument(
        "--model", choices=PUBLISHED, help="published model to check (default: check the rows only)"
    )
    check.add_argument(
        "--fit", type=Path, metavar="FIT.json", help="check the coefficients of this fit instead"
    )
    predict = _command(commands, "predict", "predict times from a stored fit")
    predict.add_argument("fit", type=Path, metavar="FIT.json", help="output of `fordway model fit --json`")
    predict.add_argument(
        "--size", required=True, metavar="SIZE,...", help="sizes to predict, such as 4KiB,1MiB"
    )
    predict.add_argument(
        "--frequency", metavar="F", help="clock frequency of the client (default: as measured)"
    )
    predict.add_argument("--connections", type=float, metavar="N", help="number of concurrent connections")
    predict.add_argument("--json", action="store_true", help="print JSON")
    _advise(commands)
    return whole


def _advise(commands: "object") -> None:
    advise = _command(commands, "advise", "predict how long a tree takes on each lane, and recommend a lane")
    advise.add_argument(
        "--machine",
        required=True,
        nargs="+",
        type=Path,
        metavar="RUN",
        help="runs of `fordway compare` on the machine",
    )
    moved = advise.add_mutually_exclusive_group(required=True)
    moved.add_argument("--tree", type=Path, metavar="DIR", help="directory of the files to transfer")
    moved.add_argument(
        "--histogram", type=Path, metavar="FILE", help="or a CSV file with the columns size_B and count"
    )
    moved.add_argument("--sizes", metavar="SIZExN,...", help="or sizes and counts, such as 4KiBx1000,1MiBx10")
    advise.add_argument(
        "--phase", metavar="NAME,...", help="phases to predict (default: all measured phases)"
    )
    advise.add_argument("--lane", metavar="NAME,...", help="lanes to predict (default: all measured lanes)")
    advise.add_argument(
        "--rtt", metavar="T", help="round-trip time to the server, for HTTP lanes, such as 30ms"
    )
    advise.add_argument("--bandwidth", metavar="BW", help="network bandwidth, such as 1Gbit/s or 100MB/s")
    advise.add_argument("--json", action="store_true", help="print JSON")
    advise.add_argument(
        "--plot", type=Path, metavar="FILE", help="also draw a figure, to FILE.svg or FILE.html"
    )


def _command(commands: "object", name: str, about: str) -> ArgumentParser:
    return commands.add_parser(
        name, help=about, description=about, epilog=EXAMPLES, formatter_class=RawDescriptionHelpFormatter
    )


def _files(command: ArgumentParser) -> None:
    command.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="run directory, JSON of `bench rest`, CSV file, or output of wrk, wrk2 or h2load",
    )
    command.add_argument("--json", action="store_true", help="print JSON")
    command.add_argument(
        "--plot", type=Path, metavar="FILE", help="also draw a figure, to FILE.svg or FILE.html"
    )
    rows = command.add_argument_group("selection of data")
    rows.add_argument(
        "--statistic",
        choices=["auto", "mean", "p50"],
        default="auto",
        help="fit mean or median times (default: means)",
    )
    rows.add_argument("--lane", metavar="NAME", help="lane of a run (default: its only lane)")
    rows.add_argument("--phase", metavar="NAME", help="phase of a run of operations (default: get)")
    rows.add_argument(
        "--object-size", metavar="SIZE", help="size of the objects, for wrk (default: from the URL)"
    )
    rows.add_argument(
        "--server-likwid",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="output of likwid-perfctr for the server, one file for each text file, in the same order as the "
        "text files",
    )
    rows.add_argument("--asked-rate", metavar="N/s", help="request rate of wrk2 (its option -R)")
    rows.add_argument("--skip-bad", action="store_true", help="skip unusable rows, and report them")
    _machine(command)


def _machine(command: ArgumentParser) -> None:
    machine = command.add_argument_group("properties of the machines, with units")
    machine.add_argument(
        "--machine",
        type=Path,
        metavar="PROBE.json",
        help="output of `fordway machines probe --json`, for properties that are not given here",
    )
    machine.add_argument(
        "--clock", metavar="F", help="R, the nominal clock frequency (default: from the rows)"
    )
    machine.add_argument(
        "--frequency", metavar="F", help="clock frequency of the client, if cycles were not counted"
    )
    machine.add_argument(
        "--memory-bandwidth", metavar="BW", help="memory bandwidth mem_tp, such as 17444MB/s"
    )
    machine.add_argument(
        "--network-bandwidth",
        metavar="BW",
        help="network bandwidth eBW of eq. 4, such as 5900MB/s or 1Gbit/s",
    )
    machine.add_argument(
        "--rtt", metavar="T", help="round-trip time, such as 60us (default for eq. 4: TCP_INFO)"
    )
    machine.add_argument("--mss", metavar="SIZE", help="segment size, for eq. 4 (default: TCP_INFO)")
    machine.add_argument(
        "--loss", type=float, metavar="P", help="packet loss, for eq. 4 (default: retransmits)"
    )
    machine.add_argument(
        "--small-bytes", default="64KiB", metavar="SIZE", help="size up to which k2 applies (default: 64KiB)"
    )


PROBED = {
    "R": "clock",
    "mem_tp": "memory_bandwidth",
    "eBW": "network_bandwidth",
    "rtt": "rtt",
    "mss": "mss",
}
"""The option that each quantity of a probe can replace."""


def take_probe(chosen: Namespace) -> list[str]:
    """Fills missing options with the values of a probe of the machine. Returns the reasons to doubt these
    values. Raises `MeasurementError`.
    """
    from fordway.model import points
    from fordway.report import runfile, shape

    if getattr(chosen, "machine", None) is None:
        return []
    try:
        probe = json.loads(chosen.machine.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise points.MeasurementError(f"{chosen.machine} cannot be read: {error}") from error
    if not isinstance(probe, dict) or probe.get("schema") != "fordway.probe":
        raise points.MeasurementError(
            f"{chosen.machine} is not the output of `fordway machines probe --json`"
        )
    quantities = [{"name": str, "value": shape.Or(shape.NUMBER), "unit": str}]
    form = {"quantities": quantities, "conditions": shape.Optional(shape.Or(shape.CONDITIONS))}
    if problem := shape.problem(probe, form):
        raise points.MeasurementError(
            f"{chosen.machine} is not a valid probe: {problem}; run `fordway machines probe --json` again"
        )
    used = []
    for found in probe["quantities"]:
        option = PROBED.get(found["name"])
        if option and found["value"] is not None and getattr(chosen, option) is None:
            setattr(chosen, option, f"{found['value']}{found['unit']}")
            used.append(found["name"])
    # A probe whose values are not used does not matter.
    return runfile.doubts_of(chosen.machine.name, probe) if used else []


def quantity(text: str | None, kind: str) -> float | None:
    """Returns an option's quantity, or `None` if the option is not given. Raises `MeasurementError` for a
    value that is not greater than 0.
    """
    from fordway.model import points, quantities

    if text is None:
        return None
    value = quantities.parse(text, kind)
    if value <= 0 and kind != "size":
        raise points.MeasurementError(f"{text!r} is not a possible {kind}: give a value above 0")
    return value


def choice(chosen: Namespace) -> "readers.Choice":
    """Returns the options that select measurements in the input files."""
    from fordway.model import readers

    return readers.Choice(
        chosen.statistic,
        chosen.lane,
        chosen.phase,
        quantity(chosen.object_size, "size"),
        chosen.server_likwid,
    )


def load(chosen: Namespace) -> "checks.LoadProperties":
    """Returns the properties of the network and the load, for checks."""
    from fordway.model import checks

    return checks.LoadProperties(
        quantity(chosen.network_bandwidth, "bandwidth"), quantity(chosen.asked_rate, "rate")
    )


def objects(chosen: Namespace) -> "moved.Objects":
    """Returns the objects to transfer. Raises `MeasurementError`."""
    from fordway.model.advice import objects as moved

    if chosen.tree is not None:
        return moved.of_tree(chosen.tree)
    return moved.of_sizes(chosen.sizes) if chosen.histogram is None else moved.of_histogram(chosen.histogram)


def network(chosen: Namespace) -> "network_link.NetworkPath":
    """Returns the network path of the HTTP lanes."""
    from fordway.model.advice.link import NetworkPath

    return NetworkPath(quantity(chosen.rtt, "time"), quantity(chosen.bandwidth, "bandwidth"))


def names(text: str | None) -> list[str] | None:
    """Returns the names in a comma-separated list, or `None` if there is no list."""
    return None if text is None else [name.strip() for name in text.split(",")]


def constants(chosen: Namespace) -> "terms.Constants":
    """Returns the properties of the machines. Raises `MeasurementError` for impossible values."""
    from fordway.model import checks, mathis, points, terms

    clocks = {name: quantity(getattr(chosen, name), "frequency") for name in ("clock", "frequency")}
    low, high = checks.CLOCK_MHZ
    for name, mhz in clocks.items():
        if mhz is not None and not low <= mhz <= high:
            raise points.MeasurementError(
                f"--{name} is {mhz:,.0f} MHz, which no processor has: check its unit"
            )
    if chosen.loss is not None and not 0 <= chosen.loss < 1:
        raise points.MeasurementError(
            f"--loss is {chosen.loss:g}: it is a share of packets, from 0 to below 1"
        )
    path = mathis.Path(quantity(chosen.mss, "size"), quantity(chosen.rtt, "time"), chosen.loss)
    return terms.Constants(
        clocks["clock"],
        clocks["frequency"],
        quantity(chosen.memory_bandwidth, "bandwidth"),
        quantity(chosen.network_bandwidth, "bandwidth"),
        path,
        quantity(chosen.small_bytes, "size"),
    )
