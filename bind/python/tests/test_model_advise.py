"""Tests advice from runs with known costs: times, intervals, choices and refusals."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from advice_data import Lane, Tree, write_machine
from model_data import model, refused
from sample_run import BLOCK_TYPES, OPERATION_TYPES, write_arrow, write_sample_run

from fordway.model import cli
from fordway.model.advice import cost, link, objects

LANES = {"posix": Lane(10, 0.0002), "http": Lane(80, 0.0006, made_us=9)}
PHASES = ["put", "list", "head", "get", "range", "delete"]


def advised(capsys: pytest.CaptureFixture[str], run: Path, *words: str) -> dict[str, Any]:
    return model(capsys, "advise", "--machine", str(run), *words)


def of_lane(found: dict[str, Any], phase: str, lane: str) -> dict[str, Any]:
    parts = [
        part for part in [*found["phases"], {"phase": "total"} | found["total"]] if part["phase"] == phase
    ]
    return next(each for each in parts[0]["lanes"] if each["lane"] == lane)


def truth_s(lane: Lane, phase: str, tree: pd.DataFrame) -> float:
    return lane.pass_us(phase, tree, np.random.default_rng(1)) / 1e6


def test_without_noise_another_tree_is_predicted_exactly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_machine(tmp_path / "one.run", LANES)
    other = Tree(500, 8.0, per_directory=3, seed=9)
    root = other.write(tmp_path / "other")
    found = advised(capsys, run, "--tree", str(root))
    assert [part["phase"] for part in found["phases"]] == PHASES
    directories = (other.count + 2) // 3
    assert found["objects"]["directories"] == directories
    # In this run, each file is in one directory.
    written = other.objects.assign(directories=1)
    for name, lane in LANES.items():
        for phase in ("put", "head", "get", "range", "delete"):
            seconds = of_lane(found, phase, name)["seconds"]
            assert seconds == pytest.approx(truth_s(lane, phase, written), rel=0.005), (name, phase)
        total = sum(of_lane(found, phase, name)["seconds"] for phase in PHASES)
        assert of_lane(found, "total", name)["seconds"] == pytest.approx(total)
    assert found["total"]["choice"] == {"lane": "posix", "between": [], "why": None}


def test_one_tree_does_not_say_what_directories_add_to_a_listing_and_two_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trees = [Tree(800, per_directory=5), Tree(600, per_directory=60, seed=2)]
    runs = [str(write_machine(tmp_path / f"{at}.run", LANES, tree)) for at, tree in enumerate(trees)]
    other = Tree(500, per_directory=2, seed=3)
    root = other.write(tmp_path / "other")
    true_s = truth_s(LANES["posix"], "list", other.objects)
    one = of_lane(advised(capsys, Path(runs[1]), "--tree", str(root)), "list", "posix")
    assert one["low"] < true_s < one["high"]
    assert one["high"] > 1.5 * one["low"]
    found = model(capsys, "advise", "--machine", *runs, "--tree", str(root))
    assert of_lane(found, "list", "posix")["seconds"] == pytest.approx(true_s, rel=0.005)


def test_intervals_hold_what_another_pass_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Simulates many machines with random deviations of each operation and of each round."""
    lanes = {"a": Lane(10, noise=0.3, state=0.1), "b": Lane(60, 0.001, noise=0.5, state=0.25)}
    held = []
    for seed in range(12):
        run = write_machine(tmp_path / f"{seed}.run", lanes, Tree(300, seed=seed), seed=seed)
        other = Tree(200, 8.5, per_directory=4, seed=100 + seed)
        file = other.histogram(tmp_path / f"{seed}.csv")
        found = advised(capsys, run, "--histogram", file, "--phase", "head,get,delete")
        random = np.random.default_rng(1000 + seed)
        flat = other.objects.assign(directories=0, emptied_directories=0)
        for name, lane in lanes.items():
            for phase in ("head", "get", "delete"):
                each = of_lane(found, phase, name)
                held.append(each["low"] <= lane.pass_us(phase, flat, random) / 1e6 <= each["high"])
    assert len(held) == 72
    # The intervals should contain 95 % of the times. With 72 trials, a share below 86 % is almost certainly a
    # defect.
    assert np.mean(held) >= 0.86
    widths = [each["high"] / each["low"] for part in found["phases"] for each in part["lanes"]]
    assert np.median(widths) < 4


def test_one_round_yields_neither_intervals_nor_a_choice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lanes = {"posix": Lane(10, noise=0.1, state=0.15), "http": Lane(90, noise=0.1, state=0.15)}
    run = write_machine(tmp_path / "x.run", lanes, rounds=1)
    drawn = tmp_path / "advice.svg"
    words = ["--sizes", "4KiBx1000", "--phase", "put,get", "--plot", str(drawn)]
    found = advised(capsys, run, *words)
    for part in [*found["phases"], found["total"]]:
        assert part["choice"]["lane"] is None
        assert "one round" in part["choice"]["why"]
        for each in part["lanes"]:
            assert each["seconds"] > 0
            assert (each["low"], each["high"]) == (None, None)
    assert drawn.exists()
    assert cli.main(["advise", "--machine", str(run), *words[:4]]) == 0
    assert "cannot tell between posix, http: one round" in capsys.readouterr().out


def test_the_same_run_counts_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lanes = {"posix": Lane(10, noise=0.1), "http": Lane(90, noise=0.1)}
    run = write_machine(tmp_path / "x.run", lanes, rounds=1)
    copied, linked = tmp_path / "copy.run", tmp_path / "latest.run"
    shutil.copytree(run, copied)
    linked.symlink_to(run)
    for other in (run, copied, linked):
        said = refused(capsys, "advise", "--machine", str(run), str(other), "--sizes", "4KiBx10")
        assert "the same measurements" in said


def test_a_single_slow_operation_does_not_make_an_interval_endless(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_machine(tmp_path / "x.run", {"slow": Lane(10, noise=0.1)}, Tree(300), rounds=2)
    operations, blocks = (
        pa.ipc.open_file((run / f"{name}.arrow").read_bytes()).read_pandas()
        for name in ("operations", "blocks")
    )
    at = operations.index[operations["phase"] == "put"][0]
    pause_ns = 60_000_000_000
    operations.loc[at, "duration_ns"] += pause_ns
    of_block = blocks["block"] == operations.loc[at, "block"]
    blocks.loc[of_block & (blocks["phase"] == "put"), "elapsed_ns"] += pause_ns
    write_arrow(run / "operations.arrow", operations, OPERATION_TYPES)
    write_arrow(run / "blocks.arrow", blocks, BLOCK_TYPES)
    each = of_lane(advised(capsys, run, "--sizes", "1KiBx1", "--phase", "put"), "put", "slow")
    assert each["low"] <= each["seconds"] <= each["high"]
    assert each["high"] < 100 * pause_ns / 1e9


class Counted(np.ndarray):
    """An array that counts the elements that NumPy's elementwise functions read from it."""

    elements = 0

    def __array_ufunc__(self, function: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:  # noqa: ANN401
        Counted.elements += sum(each.size for each in inputs if isinstance(each, Counted))
        plain = [each.view(np.ndarray) if isinstance(each, Counted) else each for each in inputs]
        return getattr(function, method)(*plain, **options)


def test_the_sums_of_blocks_read_each_operation_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    for blocks in (100, 800):
        random = np.random.default_rng(1)
        group = random.permutation(np.repeat(np.arange(blocks), 5))
        columns, times, weights = random.random((5 * blocks, 2)), *random.random((2, 5 * blocks))
        monkeypatch.setattr(Counted, "elements", 0)
        found = cost._sums(columns, times, weights, group.view(Counted), blocks)
        read.append(Counted.elements)
        own = group == 7
        assert found.squares[7] == pytest.approx((columns[own] * weights[own, None]).T @ columns[own])
        assert found.products[7] == pytest.approx((columns[own] * weights[own, None]).T @ times[own])
    assert read[1] <= 8 * read[0]


def test_lanes_that_differ_less_than_they_scatter_are_not_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lanes = {"a": Lane(10, noise=0.3, state=0.1), "b": Lane(10.2, noise=0.3, state=0.1), "c": Lane(50)}
    found = advised(capsys, write_machine(tmp_path / "x.run", lanes), "--sizes", "4KiBx500")
    choice = found["total"]["choice"]
    assert (choice["lane"], sorted(choice["between"])) == (None, ["a", "b"])
    clear = advised(capsys, tmp_path / "x.run", "--sizes", "4KiBx500", "--lane", "a,c")
    assert clear["total"]["choice"]["lane"] == "a"


def test_sizes_that_were_not_measured_are_said_and_nothing_is_chosen_by_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_machine(tmp_path / "x.run", LANES)
    found = advised(capsys, run, "--sizes", "4KiBx10,1GiBx2")
    assert any(each.startswith("2 object(s) are outside the measured") for each in found["warnings"])
    assert of_lane(found, "put", "posix")["outside_share"] > 0.9
    choice = next(part["choice"] for part in found["phases"] if part["phase"] == "put")
    assert choice["lane"] is None
    within = advised(capsys, run, "--sizes", "4KiBx10")
    assert not any("outside" in each for each in within["warnings"])


def test_a_link_adds_a_round_trip_and_the_bytes_that_it_is_slower_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_machine(tmp_path / "x.run", LANES)
    words = ("--sizes", "64KiBx100", "--phase", "get,head")
    here = advised(capsys, run, *words)
    there = advised(capsys, run, *words, "--rtt", "10ms", "--bandwidth", "100Mbit/s")
    assert of_lane(there, "get", "posix") == of_lane(here, "get", "posix")
    head = of_lane(there, "head", "http")["seconds"] - of_lane(here, "head", "http")["seconds"]
    assert head == pytest.approx(1.0)
    get = of_lane(there, "get", "http")["seconds"] - of_lane(here, "get", "http")["seconds"]
    line_us = 65_536 / (12.5 * 1_448 / 1_500)
    slow_start_us = 2 * 10_000  # three windows: 14,480, 28,960 and 57,920 B
    expected_us = 100 * (10_000 + line_us - 0.0006 * 65_536) + slow_start_us
    assert get == pytest.approx(expected_us / 1e6, rel=0.001)


def test_round_trips_of_several_threads_overlap(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_machine(tmp_path / "x.run", LANES, change=lambda info: info["parameters"].update(threads=8))
    words = ("--sizes", "1KiBx101", "--phase", "head,list")
    here, there = advised(capsys, run, *words), advised(capsys, run, *words, "--rtt", "10ms")
    more = {
        phase: of_lane(there, phase, "http")["seconds"] - of_lane(here, phase, "http")["seconds"]
        for phase in ("head", "list")
    }
    assert more == pytest.approx({"head": 13 * 0.01, "list": 0.01})


def test_threads_of_several_clients_overlap_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change = {"threads": 2, "clients": 4}
    run = write_machine(tmp_path / "x.run", LANES, change=lambda info: info["parameters"].update(change))
    words = ("--sizes", "1KiBx101", "--phase", "head")
    here, there = advised(capsys, run, *words), advised(capsys, run, *words, "--rtt", "10ms")
    more = of_lane(there, "head", "http")["seconds"] - of_lane(here, "head", "http")["seconds"]
    assert more == pytest.approx(13 * 0.01)


def test_a_run_over_a_link_takes_no_other_link(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change = {"link": "rtt=5ms", "cache": "cold"}
    run = write_machine(tmp_path / "x.run", LANES, change=lambda info: info["parameters"].update(change))
    words = ("--sizes", "1KiBx101", "--phase", "head")
    here, there = advised(capsys, run, *words), advised(capsys, run, *words, "--rtt", "10ms")
    assert of_lane(here, "head", "http")["seconds"] == of_lane(there, "head", "http")["seconds"]
    assert any("over an emulated link (rtt=5ms)" in each for each in there["warnings"])
    assert not any("cold caches" in each for each in there["warnings"])
    other = write_machine(tmp_path / "y.run", LANES)
    said = refused(capsys, "advise", "--machine", str(run), str(other), *words)
    assert "a different cache" in said


def with_targets(**targets: object) -> Callable[[dict[str, Any]], object]:
    return lambda info: info["parameters"].update(targets=targets)


def test_a_target_takes_the_link_that_its_url_tells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lanes = dict.fromkeys(["minio", "https-far", "httpd", "node", "http"], Lane(80))
    change = with_targets(
        minio="http://127.0.0.1:9000/bucket",
        node="unix:///run/s3.sock",
        httpd="file:///data",
        **{"https-far": "https://storage.example.org"},
    )
    run = write_machine(tmp_path / "x.run", lanes, change=change)
    words = ("--sizes", "64KiBx100", "--phase", "head")
    here = advised(capsys, run, *words)
    there = advised(capsys, run, *words, "--rtt", "10ms")
    more = {
        lane: of_lane(there, "head", lane)["seconds"] - of_lane(here, "head", lane)["seconds"]
        for lane in lanes
    }
    assert more == pytest.approx({"minio": 1, "https-far": 0, "httpd": 0, "node": 0, "http": 1})
    for found in (here, there):
        named = [each for each in found["warnings"] if "over the network to" in each]
        assert [each.startswith("the lane https-far was measured") for each in named] == [True]
    assert any("over loopback, as measured" in each for each in here["warnings"])
    assert not any("over loopback, as measured" in each for each in there["warnings"])


@pytest.mark.parametrize(
    ("host", "is_far"),
    [
        *((host, False) for host in ("localhost", "s3.localhost", "127.8.0.1", "[::1]", "0.0.0.0")),
        *((host, True) for host in ("10.0.0.1", "[fe80::1]", "store", "localhost.example.org")),
    ],
)
def test_only_loopback_addresses_are_no_network(host: str, is_far: bool) -> None:
    targets = {"own": f"http://{host}:9000"}
    assert link.is_over_network("own", targets) == is_far
    assert link.crosses("own", targets) != is_far


@pytest.mark.parametrize(
    ("targets", "says"),
    [({"own": 5}, "parameters.targets does not"), ({"own": "http://[::1"}, "is not a URL")],
)
def test_damaged_targets_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], targets: dict[str, object], says: str
) -> None:
    run = write_machine(tmp_path / "x.run", LANES, rounds=1, change=with_targets(**targets))
    assert says in refused(capsys, "advise", "--machine", str(run), "--sizes", "1B")


@pytest.mark.parametrize(
    ("name", "value"),
    [("threads", "many"), ("threads", 0), ("threads", None), ("clients", None), ("range_bytes_max", "x")],
)
def test_damaged_numbers_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, value: object
) -> None:
    def change(info: dict[str, Any]) -> None:
        info["parameters"][name] = value

    run = write_machine(tmp_path / "x.run", LANES, rounds=1, change=change)
    said = refused(capsys, "advise", "--machine", str(run), "--sizes", "1B")
    assert f"parameters.{name} is not a whole number from 1" in said


def test_slow_start_ends_where_the_line_is_full() -> None:
    path = link.NetworkPath(30_000, 125)
    full = path.slow_start_us(2**40, "get")
    assert full == path.slow_start_us(2**30, "get")
    assert full / 30_000 == 7  # the window doubles from 14,480 B until 3.6 MB are in flight
    assert path.slow_start_us(10_000, "get") == path.slow_start_us(2**30, "head") == 0
    assert link.NetworkPath(30_000, None).listing_us(2_500) == 90_000


def test_a_tree_is_its_regular_files(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    (tmp_path / "a" / "b" / "one").write_bytes(b"12345")
    (tmp_path / "two").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "a" / "b" / "one")
    found = objects.of_tree(tmp_path)
    assert (found.count, found.bytes, found.directories) == (2, 5, 2)
    assert sorted(found.rows["directories"]) == [0, 2]


def test_directories_without_access_are_left_out_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("open", "listed", "closed", "only-links"):
        (tmp_path / name).mkdir()
    (tmp_path / "open" / "one").write_bytes(b"12345")
    for name in ("one", "two"):
        (tmp_path / "listed" / name).write_bytes(b"1")
    (tmp_path / "only-links" / "link").symlink_to(tmp_path / "open" / "one")
    stat, scandir = Path.stat, os.scandir

    def stat_outside(path: Path, **options: bool) -> os.stat_result:
        if path.parent.name == "listed":
            raise PermissionError(errno.EACCES, "denied", str(path))
        return stat(path, **options)

    def scandir_outside(path: str) -> Any:  # noqa: ANN401
        if Path(path).name == "closed":
            raise PermissionError(errno.EACCES, "denied", path)
        return scandir(path)

    # The tests may run as root, whose access is not limited by permissions.
    monkeypatch.setattr(Path, "stat", stat_outside)
    monkeypatch.setattr(os, "scandir", scandir_outside)
    found = objects.of_tree(tmp_path)
    assert (found.count, found.bytes, found.directories) == (1, 5, 1)
    assert [note.partition(" ")[0] for note in found.notes] == ["3"]
    run = write_machine(tmp_path / "x.run", LANES, rounds=1)
    said = refused(capsys, "advise", "--machine", str(run), "--tree", str(tmp_path / "listed"))
    assert "no regular file that can be read" in said


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is empty"),
        ("size_B,count\n", "a header but no rows"),
        ("size_B;count\n4096;10\n", "semicolons"),
        ("size,count\n4096,10\n", "does not state its unit"),
        ("size_B,number\n4096,10\n", "no column 'count'"),
        ("size_B,count\n4096,many\n", "'many', not a number"),
        ("size_B,count\n4096,\n", "the count is missing or not a finite number"),
        ("size_B,count\ninf,1\n", "the size is missing or not a finite number"),
        ("size_B,count\n-1,1\n", "the size is -1"),
        ("size_B,count\n4096,1.5\n", "the count is 1.5"),
        ("size_GiB,count\n1e30,1\n", "more than any file system holds"),
        ("size_B,count\n4096,1e300\n", "more than any file system holds"),
        ("size_B,count\n4096,0\n", "all counts are 0"),
        ("size_B,count\n1,2,3\n4,5,6,7\n", "cannot be read as a table"),
        ("\x00\x01\x02", "no rows"),
    ],
)
def test_bad_histograms_are_refused_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, says: str
) -> None:
    file = tmp_path / "sizes.csv"
    file.write_text(content)
    run = write_machine(tmp_path / "x.run", LANES, rounds=1)
    said = refused(capsys, "advise", "--machine", str(run), "--histogram", str(file))
    assert says in said
    assert "sizes.csv" in said


def test_histograms_of_other_systems_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "sizes.csv"
    file.write_bytes("\ufeffsize_KiB, count\r\n4,10\r\n4,5\r\n0,1\r\n".encode())
    run = write_machine(tmp_path / "x.run", LANES, rounds=1)
    found = advised(capsys, run, "--histogram", str(file))
    assert found["objects"] | {"source": None} == {
        "source": None,
        "objects": 16,
        "bytes": 15 * 4096,
        "directories": 0,
    }


def newer(info: dict[str, Any]) -> None:
    info["schema_version"] = 99


def other_kind(info: dict[str, Any]) -> None:
    info["kind"] = "rest"


def other_machine(info: dict[str, Any]) -> None:
    info["machine"]["cpu_model"] = "Another"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--sizes", "4KiBx0"], "all counts are 0"),
        (["--sizes", "4096"], "is not a size"),
        (["--sizes", ""], "is not a size"),
        (["--sizes", "1MiB, 0x5"], "'0x5': '0' is not a size: write a number and a unit"),
        (["--sizes", "4KiBx-3"], "is not a size"),
        (["--histogram", "{tmp}/none.csv"], "cannot be read"),
        (["--histogram", "{tmp}"], "is a directory"),
        (["--tree", "{tmp}/none"], "is not a directory"),
        (["--tree", "{tmp}/empty"], "contains no regular file"),
        (["--sizes", "1B", "--phase", "put,push"], "was not measured in the phase push"),
        (["--sizes", "1B", "--lane", "rdma"], "was not measured in the lane rdma"),
        (["--sizes", "1B", "--rtt", "30"], "'30' is not a time"),
        (["--sizes", "1B", "--bandwidth", "0MB/s"], "give a value above 0"),
        (["--sizes", "1B", "--plot", "x.png"], "FILE.svg or FILE.html"),
    ],
)
def test_bad_options_are_refused_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    run = write_machine(tmp_path / "x.run", LANES, rounds=1)
    (tmp_path / "empty").mkdir()
    words = [word.format(tmp=tmp_path) for word in words]
    assert says in refused(capsys, "advise", "--machine", str(run), *words)


@pytest.mark.parametrize(
    ("change", "says"), [(newer, "install a newer fordway"), (other_kind, "is a run of rest")]
)
def test_runs_that_say_nothing_of_trees_are_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[dict[str, Any]], object],
    says: str,
) -> None:
    run = write_machine(tmp_path / "x.run", LANES, rounds=1, change=change)
    assert says in refused(capsys, "advise", "--machine", str(run), "--sizes", "1B")


def test_damaged_and_foreign_runs_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = write_machine(tmp_path / "one.run", LANES, rounds=1)
    two = write_machine(tmp_path / "two.run", LANES, Tree(300), rounds=1, change=other_machine)
    said = refused(capsys, "advise", "--machine", str(one), str(two), "--sizes", "1B")
    assert "a different machine" in said
    (one / "objects.arrow").write_bytes((two / "objects.arrow").read_bytes())
    assert "belong to different runs" in refused(capsys, "advise", "--machine", str(one), "--sizes", "1B")
    (one / "objects.arrow").write_bytes(b"no arrow")
    assert "cannot be read" in refused(capsys, "advise", "--machine", str(one), "--sizes", "1B")
    (two / "operations.arrow").unlink()
    assert "cannot be read" in refused(capsys, "advise", "--machine", str(two), "--sizes", "1B")
    three = write_machine(tmp_path / "three.run", LANES, rounds=1, change=lambda info: info.update(phases=[]))
    assert "of its own lanes and phases" in refused(
        capsys, "advise", "--machine", str(three), "--sizes", "1B"
    )
    (two / "run.json").write_text('{"schema": "fordway.run"}')
    assert "lacks" in refused(capsys, "advise", "--machine", str(two), "--sizes", "1B")
    assert "is missing" in refused(capsys, "advise", "--machine", str(tmp_path), "--sizes", "1B")


def test_runs_of_an_older_fordway_say_less_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_sample_run(tmp_path / "old.run", fail=("get", "http"))
    found = advised(capsys, run, "--sizes", "8KiBx1000")
    assert any("no objects.arrow" in each for each in found["warnings"])
    assert any("operation(s) failed and are left out" in each for each in found["warnings"])
    assert found["total"]["choice"]["lane"] != "http"


def test_a_machine_in_several_states_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lanes = {"steady": Lane(10), "moody": Lane(10, state=0.8)}
    run = write_machine(tmp_path / "x.run", lanes, rounds=4)
    said = next(each for each in advised(capsys, run, "--sizes", "1KiB")["warnings"] if "differ:" in each)
    assert "moody (" in said
    assert "steady (" not in said


def test_text_and_picture_say_what_the_document_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from fordway.model import cli

    run = write_machine(tmp_path / "x.run", LANES)
    page = tmp_path / "advice.html"
    assert cli.main(["advise", "--machine", str(run), "--sizes", "4KiBx9", "--plot", str(page)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("9 objects, 36.0 KiB, in 0 directories")
    assert "total: choose posix." in said
    assert "total: choose posix." in page.read_text()
    assert "<svg" in page.read_text()
    assert json.loads(json.dumps(advised(capsys, run, "--sizes", "4KiBx9")))["command"] == "advise"
