"""Draws the rate of each language's pong relative to the built-in pong, by network, kind of connection and
size.

usage: languages.py RUN.run FIGURE.svg

Set-ups of the run are named LANGUAGE@NETWORK. The script `languages` creates the run.
"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from fordway.report import figures, runfile
from fordway.report.layers import loss

REFERENCE = "built-in"
SIZES = {"1 kB": 1e3, "30 kB": 3e4, "400 kB": 4e5}


def split(lane):
    """Returns the language and the network of a set-up."""
    return lane.split("@")


def unique(words):
    return list(dict.fromkeys(words))


def rates(run, phase, language, network):
    """Returns the rate of the language's pong, relative to the built-in pong on the same network, by class of size."""
    lanes = [{"name": f"{REFERENCE}@{network}"}, *run.info["lanes"]]
    found = loss.against_reference(replace(run, info=run.info | {"lanes": lanes}), phase, f"{language}@{network}")
    return found[found["size_bytes"] > 0]


def draw(run):
    """Returns a figure with a panel for each kind of connection and network."""
    languages = [name for name in unique(split(lane)[0] for lane in run.lanes) if name != REFERENCE]
    networks = unique(split(lane)[1] for lane in run.lanes)
    colours = figures.lane_colours([REFERENCE, *languages])
    figure = Figure(figsize=(11, 3.2 * len(run.phases)), layout="constrained")
    grid = figure.subplots(len(run.phases), len(networks), squeeze=False, sharex=True, sharey="row")
    for row, phase in zip(grid, run.phases, strict=True):
        for axes, network in zip(row, networks, strict=True):
            axes.axhline(1, color=figures.INK, linewidth=1)
            for language in languages:
                one, colour = rates(run, phase, language, network), colours[language]
                if one.empty:
                    continue
                axes.fill_between(one["size_bytes"], one["low"], one["high"], color=colour, alpha=0.2, linewidth=0)
                axes.plot(one["size_bytes"], one["ratio"], "o-", color=colour, markersize=3, label=language)
            axes.set(title=f"{network}, {phase}", xscale="log", yscale="log")
            figures.size_axis(axes)
    grid[0, 0].legend()
    figure.supylabel("rate, the built-in pong on the same network = 1")
    figure.supxlabel("size of the message")
    return figure


def table(run):
    """Yields a line for each kind of connection, network and language: the rate near each of `SIZES`."""
    yield line("connections", "network", "language", SIZES)
    for phase in run.phases:
        for lane in run.lanes:
            language, network = split(lane)
            if language != REFERENCE:
                found = rates(run, phase, language, network)
                yield line(phase, network, language, [near(found, size) for size in SIZES.values()])


def line(phase, network, language, cells):
    return f"{phase:18} {network:8} {language:9}" + "".join(f"{cell:>22}" for cell in cells)


def near(found, size_bytes):
    """Returns the rate and its interval in the class whose size is nearest to `size_bytes`."""
    if found.empty:
        return "-"
    one = found.iloc[np.abs(np.log(found["size_bytes"] / size_bytes)).argmin()]
    return f"{one['ratio']:.2f} [{one['low']:.2f}, {one['high']:.2f}]"


if __name__ == "__main__":
    measured = runfile.read_run(Path(sys.argv[1]))
    draw(measured).savefig(sys.argv[2])
    print("\n".join(table(measured)))
