"""Tests reports of every kind of run that the binary writes."""

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from test_report import Page

from fordway.report import cli, figures_ranks, figures_speedup, figures_transport, kinds, runfile

FORDWAY = os.environ.get("FORDWAY_BIN") or shutil.which("fordway")
LANES = ["posix", "embedded", "node", "http"]


class Answers(BaseHTTPRequestHandler):
    """Responds to any GET with 1,000 bytes, and keeps the connection open."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "1000")
        self.end_headers()
        self.wfile.write(b"x" * 1000)

    def log_message(self, *_: object) -> None:
        """Prints nothing."""


@pytest.fixture
def server() -> Iterator[str]:
    """Yields the address of a server that stops at the end of the test."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def bench(directory: Path, *words: str) -> Path:
    """Runs `fordway bench WORDS`, and returns the run. Skips the test if the binary is missing."""
    if FORDWAY is None:
        pytest.skip("FORDWAY_BIN is not set, and no fordway is in PATH")
    run = directory / f"{words[0]}.run"
    command = [str(FORDWAY), "bench", *words, "--out", str(run)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return run


def report(run: Path, *options: str) -> tuple[Page, dict]:
    """Returns the page of `run`, and the content of its `run.json`."""
    out = run.with_suffix(".html")
    assert cli.main([str(run), "--out", str(out), *options]) == 0
    return Page(out.read_text(encoding="utf-8")), json.loads((run / "run.json").read_text())


def assert_says(page: Page, info: dict, names: list[str]) -> None:
    """Asserts that the page has a row with the limit for each summary, and exactly the figures `names`."""
    assert page.tags.count("svg") == len(names)
    for name in names:
        assert kinds.DRAWINGS[name].title in page.text
    limits = [
        row[-1]
        for row in page.rows
        if row and any(s["limit"]["evidence"] in row[-1] for s in info["summaries"])
    ]
    assert len(limits) == len(info["summaries"])
    assert all(row["limit"]["name"] for row in info["summaries"])


@pytest.mark.parametrize(
    ("words", "phases"),
    [
        (["ior", "--block-size", "4MiB", "--transfer-size", "64KiB"], ["ior-write", "ior-read"]),
        (["mdtest", "--items", "60"], ["mdtest-create", "mdtest-stat", "mdtest-read", "mdtest-delete"]),
        (["mdworkbench", "--datasets", "2", "--objects", "40"], ["precreate", "benchmark-read", "cleanup"]),
    ],
)
def test_workloads_have_densities_and_ratios(tmp_path: Path, words: list[str], phases: list[str]) -> None:
    run = bench(tmp_path, *words, str(tmp_path), "--all-lanes", "--threads", "2")
    page, info = report(run)
    assert info["kind"] == words[0]
    assert_says(page, info, ["ratios", "density", "latency", "cpu"])
    assert [said for said in [*phases, *LANES] if said not in page.text] == []
    # With one round, there is no interval, and only the ratio of the rates is known.
    assert "too few blocks" in page.text
    read = runfile.read_run(run)
    row = read.summary(phases[0], "embedded")
    posix = read.summary(phases[0], "posix")
    assert row is not None
    assert posix is not None
    assert read.speed(row) == pytest.approx(row["ops_per_s"] / posix["ops_per_s"])
    assert read.speed(posix) is None


def test_transports_are_drawn_over_the_size(tmp_path: Path) -> None:
    words = ["--transport", "tcp,http,embedded", "--size", "1,4096,100000", "--messages", "5", "--no-report"]
    run = bench(tmp_path, "transport", *words, "--root", str(tmp_path), "--rounds", "5")
    page, info = report(run)
    assert info["kind"] == "transport"
    assert_says(page, info, ["transfer-latency", "transfer-bandwidth", "transfer-ratio", "transfer-cpu"])
    figure = figures_transport.transfer_latency(
        runfile.read_run(run), dict.fromkeys(LANES, "#000000") | {"tcp": "#000000"}
    )
    assert figure is not None
    assert [axes.get_title() for axes in figure.axes] == ["latency", "half-round-trip"]
    # Half round trips are known only for links.
    lines = [[line for line in axes.get_lines() if len(line.get_xdata()) == 3] for axes in figure.axes]
    assert [len(of) for of in lines] == [3, 1]


def test_a_run_of_one_round_has_no_intervals_to_draw(tmp_path: Path) -> None:
    words = ["--transport", "tcp,embedded", "--size", "1,64", "--messages", "3", "--no-report"]
    run = bench(tmp_path, "transport", *words, "--root", str(tmp_path), "--rounds", "1")
    page, info = report(run)
    assert all(row["transfer"]["time_ns"] is None for row in info["summaries"])
    assert "too few blocks" in page.text
    assert page.tags.count("svg") == 4


REPORTING_RANK = (
    "r=$OMPI_COMM_WORLD_RANK; e=$((11000000 / OMPI_COMM_WORLD_SIZE + r * 1000000)); "
    'echo "{\\"rank\\": $r, \\"start_ns\\": 1000000, \\"end_ns\\": $e, \\"mpi_ns\\": 1000000}" '
    "> $FORDWAY_RANK_REPORTS/rank-$r.json"
)
"""A job that reports 10 ms on one rank, and 5.5 ms on each of two ranks, of which 1 ms is spent in MPI."""


def has_open_mpi() -> bool:
    """Returns whether `mpirun` belongs to the MPI that `fordway speedup` needs; another MPI may have a
    program of the same name.
    """
    if shutil.which("mpirun") is None:
        return False
    return "(Open MPI) 4." in subprocess.run(["mpirun", "--version"], capture_output=True, text=True).stdout


def test_speedup_is_drawn_over_the_ranks(tmp_path: Path) -> None:
    if FORDWAY is None or not has_open_mpi():
        pytest.skip("there is no fordway, or no mpirun of Open MPI 4 (Debian: openmpi-bin)")
    run = tmp_path / "x.run"
    words = ["speedup", "--setup", "shm,loopback", "--time", "work", "--no-report", "--out", str(run)]
    command = [str(FORDWAY), *words, "--", "sh", "-c", REPORTING_RANK]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    page, info = report(run)
    assert_says(page, info, ["speedup", "communication"])
    read = runfile.read_run(run)
    assert figures_speedup.run_ranks(read) == [1, 2]
    figure = figures_speedup.speedup(read, dict.fromkeys(read.lanes, "#000000"))
    assert figure is not None
    drawn = [line.get_ydata()[-1] for line in figure.axes[0].get_lines() if len(line.get_xdata()) <= 2]
    assert 10 / 5.5 in [pytest.approx(value) for value in drawn]


def test_io500_has_a_radar_and_a_table_with_scores(tmp_path: Path) -> None:
    sizes = ["--easy-bytes", "2MiB", "--hard-transfers", "3", "--easy-files", "30", "--hard-files", "30"]
    run = bench(tmp_path, "io500", str(tmp_path), "--all-lanes", "--stonewall", "1", *sizes)
    page, info = report(run, "--svg", str(tmp_path / "svg"))
    assert_says(page, info, ["radar", "ratios", "density", "cpu"])
    assert "non-compliant" in page.text
    assert [score["lane"] for score in info["scores"]] == LANES
    totals = [row for row in page.rows if row[:1] == ["total"]]
    assert len(totals) == 1
    assert len(totals[0]) == 2 + len(LANES)
    of_posix, of_embedded = (score["scores"]["total"] for score in info["scores"][:2])
    assert totals[0][3].endswith("×")
    assert float(totals[0][3].split("×")[0][-4:]) == pytest.approx(of_embedded / of_posix, rel=0.1, abs=0.01)
    radar = (tmp_path / "svg" / "io500-radar.svg").read_text()
    assert all(phase in radar for phase in info["phases"])


def test_load_has_a_sweep_and_says_how_it_was_made(tmp_path: Path, server: str) -> None:
    run = bench(
        tmp_path,
        "rest",
        f"{server}/x",
        "--connections",
        "1,2",
        "--rounds",
        "2",
        "--duration",
        "1s",
        "--warm-up",
        "0s",
    )
    page, info = report(run)
    assert_says(page, info, ["sweep", "latency", "cpu"])
    assert "closed loop" in page.text
    assert "cannot tell" in page.text
    assert "--server-pid" in page.text


def test_latency_of_the_open_loop_counts_from_the_intended_start(tmp_path: Path, server: str) -> None:
    words = ["--rate", "200", "--arrivals", "fixed", "--duration", "1s", "--warm-up", "0s"]
    run = bench(tmp_path, "rest", f"{server}/x", *words)
    page, info = report(run)
    read = runfile.read_run(run)
    summary = info["summaries"][0]
    durations = read.operations["duration_ns"]
    # With an even number of operations, the two middle values may differ. The histogram returns one of the
    # two, with three significant digits.
    low_ns, high_ns = (float(np.quantile(durations, 0.5, method=which)) for which in ("lower", "higher"))
    assert low_ns * 0.99 <= summary["latency"]["p50_ns"] <= high_ns * 1.01
    assert summary["limit"]["name"] == "rate"
    assert "of the 200 requests/s that were requested" in page.text


def test_a_density_has_the_area_one_and_its_hills_where_the_values_are() -> None:
    random = np.random.default_rng(1)
    values = np.concatenate([random.normal(3, 0.1, 3_000), random.normal(5, 0.1, 1_000)])
    at, heights = figures_ranks.smoothed(values, (2, 6))
    assert np.sum(heights) * (at[1] - at[0]) == pytest.approx(1, abs=0.01)
    assert at[np.argmax(heights)] == pytest.approx(3, abs=0.1)
    left, right = heights[at < 4].max(), heights[at >= 4].max()
    assert left / right == pytest.approx(3, rel=0.25)
