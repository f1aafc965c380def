"""Tests `fordway diff` on runs with a known difference."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sample_run import OPERATION_TYPES, write_arrow, write_sample_run

from fordway import output
from fordway.diff import cli
from fordway.diff.compare import CellTimes, _cell, log_mean
from fordway.model import cli as model_cli
from fordway.report import cli as report_cli


def write_run(directory: Path, factor: float = 1.0, sample: int = 1, **parameters: object) -> Path:
    """Writes a run with 12 rounds, in which operations of the `embedded` lane take `factor` times as long."""
    run = write_sample_run(directory, seed=sample)
    with pa.OSFile(str(run / "operations.arrow")) as source:
        rows = pa.ipc.open_file(source).read_all().to_pandas()
    rows["round"] = rows.groupby(["lane", "phase"])["block"].transform(lambda block: block - block.min())
    scale = np.where(rows["lane"] == "embedded", factor, 1.0)
    rows["duration_ns"] = (rows["duration_ns"] * scale).astype(np.uint64)
    write_arrow(run / "operations.arrow", rows, OPERATION_TYPES)
    info = json.loads((run / "run.json").read_text())
    info["parameters"].update(parameters)
    (run / "run.json").write_text(json.dumps(info))
    return run


def diff(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, dict[str, Any]]:
    status = cli.main([*map(str, words), "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_a_run_does_not_differ_from_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "a.run")
    status, found = diff(capsys, run, run)
    assert status == 0
    assert found["settings"] == []
    assert {change["ratio"] for cell in found["cells"] for change in cell["changes"]} == {1.0}
    assert not {cell["verdict"] for cell in found["cells"]} & {"slower", "faster"}


def test_runs_of_one_program_do_not_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = write_run(tmp_path / "1.run")
    for sample in range(2, 7):
        status, found = diff(capsys, first, write_run(tmp_path / f"{sample}.run", sample=sample))
        assert status == 0, found
        assert not any(cell["verdict"] == "faster" for cell in found["cells"])


def test_a_slower_lane_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = write_run(tmp_path / "a.run"), write_run(tmp_path / "b.run", factor=1.3, sample=2)
    status, found = diff(capsys, before, after)
    verdicts = {(cell["phase"], cell["lane"]): cell["verdict"] for cell in found["cells"]}
    assert status == 1
    # The listing phase is not checked, because it has few operations, and their times vary widely.
    slower = {cell for cell, verdict in verdicts.items() if verdict == "slower"}
    assert {lane for _, lane in slower} == {"embedded"}
    assert {phase for phase, _ in slower} >= {"put", "head", "get", "range", "delete"}
    get = next(cell for cell in found["cells"] if (cell["phase"], cell["lane"]) == ("get", "embedded"))
    median = get["changes"][0]
    assert median["statistic"] == "median"
    assert median["low"] < 1.3 < median["high"]
    assert diff(capsys, after, before)[0] == 0, "faster is no failure"
    assert cli.main([str(before), str(after)]) == 1
    assert "embedded" in capsys.readouterr().out


def test_different_settings_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = write_run(tmp_path / "a.run"), write_run(tmp_path / "b.run", rounds=13, seed=7)
    status, found = diff(capsys, before, after)
    assert status == 0
    assert found["settings"] == ["rounds: 3 and 13"]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("durability", "data", "durability: none and data"),
        ("etag_policy", "exact", "etag_policy: fast and exact"),
        ("threads", 4, "threads: 1 and 4"),
        ("link", "rtt=5ms", "link: none and rtt=5ms"),
        ("content_bytes", 5, "content_bytes: 41943040 and 5"),
        ("objects", 9, "objects: 720 and 9"),
    ],
)
def test_different_work_is_not_called_a_regression(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, value: str | int, said: str
) -> None:
    before, after = write_run(tmp_path / "a.run"), write_run(tmp_path / "b.run", **{name: value})
    assert cli.main([str(before), str(after)]) == 2
    err = capsys.readouterr().err
    assert f"the runs did different work ({said})" in err
    assert "--different-work" in err
    status, found = diff(capsys, before, after, "--different-work")
    assert status == 0
    assert found["settings"] == [said]
    assert f"the runs did different work: {said}" in found["notes"]


IOR = {"transfer_size": 4096, "block_size": 8192, "segments": 2, "file_per_process": False, "reorder": False}
WIRE = {"rate_bits_per_s": None, "rtt": {"secs": 0, "nanos": 0}, "loss": 0.0, "seed": 1, "mtu_bytes": None}


@pytest.mark.parametrize(
    ("setting", "change"),
    [
        *(({"rate": 100.0, "arrivals": "fixed"}, each) for each in ({"rate": 200.0}, {"rate": None})),
        ({"rate": 100.0, "arrivals": "fixed"}, {"arrivals": "poisson"}),
        *((IOR, {name: 1 + int(value)}) for name, value in IOR.items()),
        ({"mapping": "fragment", "fsync": False}, {"mapping": "bucket"}),
        ({"mapping": "fragment", "fsync": False}, {"fsync": True}),
        ({"wire": WIRE}, {"wire": WIRE | {"rtt": {"secs": 0, "nanos": 10_000_000}}}),
        ({"wire": WIRE}, {"wire": WIRE | {"rate_bits_per_s": 100_000_000}}),
        ({"wire": WIRE}, {"wire": WIRE | {"loss": 0.01}}),
        ({"block_bytes_max": 1 << 20}, {"block_bytes_max": 8 << 20}),
        ({"messages_max": 4}, {"messages_max": 100}),
    ],
)
def test_different_loads_are_different_work(
    tmp_path: Path, setting: dict[str, Any], change: dict[str, Any]
) -> None:
    before = write_run(tmp_path / "a.run", **setting)
    after = write_run(tmp_path / "b.run", **(setting | change))
    assert cli.main([str(before), str(after)]) == 2
    assert cli.main([str(before), str(after), "--different-work"]) == 0


def test_another_job_is_different_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = write_run(tmp_path / "a.run", job=["old/solver", "--cells", "100"])
    after = write_run(tmp_path / "b.run", job=["new/solver", "--cells", "1000"])
    assert cli.main([str(before), str(after)]) == 2
    assert "different work (job: " in capsys.readouterr().err
    rebuilt = write_run(tmp_path / "c.run", job=["new/solver", "--cells", "100"])
    assert diff(capsys, before, rebuilt)[0] == 0


def test_the_conditions_of_both_runs_are_fields(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = write_run(tmp_path / "a.run"), write_run(tmp_path / "b.run")
    info = json.loads((after / "run.json").read_text())
    info["conditions"] |= {"verdict": "refused", "is_forced": True}
    (after / "run.json").write_text(json.dumps(info))
    before_info = json.loads((before / "run.json").read_text())
    verdict = before_info["conditions"]["verdict"]
    assert diff(capsys, before, after)[1]["conditions"] == {"before": verdict, "after": "refused"}
    del before_info["conditions"]
    (before / "run.json").write_text(json.dumps(before_info))
    assert diff(capsys, before, after)[1]["conditions"]["before"] == "unknown"


def test_another_seed_of_a_wire_is_no_different_work(tmp_path: Path) -> None:
    before = write_run(tmp_path / "a.run", wire=WIRE)
    after = write_run(tmp_path / "b.run", wire=WIRE | {"seed": 2})
    assert cli.main([str(before), str(after)]) == 0


def test_a_parameter_of_newer_runs_is_no_different_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = write_run(tmp_path / "a.run"), write_run(tmp_path / "b.run", range_bytes_max=65536)
    assert diff(capsys, before, after)[0] == 0


EVIL = "x\x1b]0;title\x07\x1b[2J\x9b2J\u202eback\ud800\nfaster"


def test_names_in_a_run_do_not_control_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = write_run(tmp_path / "a.run"), write_run(tmp_path / "b.run", evil=EVIL)
    assert cli.main([str(before), str(after)]) == 0
    printed = capsys.readouterr().out
    assert "evil: None and x\\u001b]0;title\\u0007\\u001b[2J\\u009b2J\\u202eback\\ud800\\nfaster\n" in printed
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", printed)
    output.write(json.dumps({"evil": EVIL}, ensure_ascii=False))
    assert json.loads(capsys.readouterr().out) == {"evil": EVIL}
    for command in (cli.main, report_cli.main, lambda words: model_cli.main(["check", words[0]])):
        command([str(tmp_path / "no\x1b[2J.run")] * 2)
        err = capsys.readouterr().err
        assert "no\\u001b[2J.run" in err
        assert "\x1b" not in err


def test_what_cannot_be_compared_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = write_run(tmp_path / "a.run"), write_run(tmp_path / "b.run")
    info = json.loads((after / "run.json").read_text()) | {"kind": "ledger"}
    (after / "run.json").write_text(json.dumps(info))
    assert cli.main([str(before), str(after)]) == 2
    assert "compare and ledger" in capsys.readouterr().err
    assert cli.main([str(before), str(tmp_path / "none.run")]) == 2
    few = write_sample_run(tmp_path / "few.run")
    assert {cell["verdict"] for cell in diff(capsys, few, few)[1]["cells"]} == {"cannot tell"}


def test_rounds_that_resemble_their_neighbours_count_for_less() -> None:
    random = np.random.default_rng(1)
    steps = random.normal(0, 0.1, 200)
    drifting = np.exp(np.cumsum(steps))
    assert log_mean(np.exp(steps))[2] > 100
    assert log_mean(drifting)[2] < 20


def autocorrelated(random: np.random.Generator, rounds: int, rho: float) -> CellTimes:
    """Returns times of rounds whose logarithms have the autocorrelation `rho`."""
    steps = random.standard_normal(rounds)
    for at in range(1, rounds):
        steps[at] = rho * steps[at - 1] + (1 - rho**2) ** 0.5 * steps[at]
    return CellTimes({"median": 1e6 * np.exp(0.05 * steps)}, np.array([]))


@pytest.mark.parametrize("rounds", [5, 10, 30])
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.8])
def test_intervals_contain_the_true_ratio_even_if_rounds_resemble_their_neighbours(
    rounds: int, rho: float
) -> None:
    random = np.random.default_rng(1)
    pairs = [[autocorrelated(random, rounds, rho) for _ in range(2)] for _ in range(250)]
    [*found] = [_cell(("put", "posix"), *pair, 0.95, 0.0).changes[0] for pair in pairs]
    assert np.mean([change.low <= 1 <= change.high for change in found]) >= 0.9


def test_a_small_change_of_every_operation_is_found() -> None:
    random = np.random.default_rng(2)
    before, after = (autocorrelated(random, 20, 0) for _ in range(2))
    slower = CellTimes({"median": 1.1 * after.statistics["median"]}, np.array([]))
    found = _cell(("put", "posix"), before, slower, 0.99, 0.0)
    assert found.changes[0].verdict == "slower"


def with_durations(run: Path, change: Callable[[np.ndarray], np.ndarray], **only: str) -> Path:
    """Changes the durations of the operations of a run. `only` contains column values that select the
    operations.
    """
    rows = pa.ipc.open_file((run / "operations.arrow").read_bytes()).read_all().to_pandas()
    chosen = np.logical_and.reduce([rows[name] == value for name, value in only.items()], axis=0)
    chosen = np.broadcast_to(chosen, len(rows))
    durations = rows["duration_ns"].to_numpy().copy()
    durations[chosen] = change(durations[chosen]).astype(np.uint64)
    write_arrow(run / "operations.arrow", rows.assign(duration_ns=durations), OPERATION_TYPES)
    return run


def test_operations_of_which_a_tenth_takes_much_longer_are_slower(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random = np.random.default_rng(3)

    def steady(durations: np.ndarray) -> np.ndarray:
        return 10_000 * np.exp(0.02 * random.standard_normal(len(durations)))

    def tenth(durations: np.ndarray) -> np.ndarray:
        return steady(durations) * np.where(np.arange(len(durations)) % 10 == 0, 100, 1)

    before = with_durations(write_run(tmp_path / "a.run"), steady)
    after = with_durations(write_run(tmp_path / "b.run"), tenth, phase="get", lane="posix")
    after = with_durations(after, steady, lane="http")
    status, found = diff(capsys, before, after)
    cells = {(cell["phase"], cell["lane"]): cell for cell in found["cells"]}
    assert status == 1
    assert cells["get", "posix"]["verdict"] == "slower"
    verdicts = {change["statistic"]: change["verdict"] for change in cells["get", "posix"]["changes"]}
    assert verdicts == {"median": "same", "mean": "slower"}
    assert cells["get", "http"]["verdict"] == "same"
    cli.main([str(before), str(after)])
    printed = capsys.readouterr().out
    assert re.search(r"get +posix +median .* same\nget +posix +mean .* slower\n", printed)


def test_a_coarse_clock_is_no_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(4)

    def clock(true_us: float) -> Callable[[np.ndarray], np.ndarray]:
        return lambda old: 1000 * np.round(true_us * np.exp(0.0005 * random.standard_normal(len(old))))

    before = with_durations(write_run(tmp_path / "a.run"), clock(1.497))
    after = with_durations(write_run(tmp_path / "b.run"), clock(1.503))
    status, found = diff(capsys, before, after)
    assert status == 0
    for cell in found["cells"]:
        assert cell["verdict"] == "cannot tell"
        assert cell["changes"][0]["low"] <= 1.503 / 1.497 <= cell["changes"][0]["high"]
    status, found = diff(capsys, before, with_durations(after, clock(4.4)))
    assert status == 1
    equal = with_durations(after, lambda old: 0 * old + 1000)
    assert {cell["verdict"] for cell in diff(capsys, equal, equal)[1]["cells"]} == {"cannot tell"}
    cli.main([str(equal), str(equal)])
    assert "all rounds of a run took the same time" in capsys.readouterr().out


def test_failures_are_not_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = write_run(tmp_path / "a.run"), write_run(tmp_path / "b.run")
    info = json.loads((after / "run.json").read_text())
    row = next(row for row in info["summaries"] if (row["phase"], row["lane"]) == ("get", "http"))
    row |= {"operations": 648, "errors": 72}
    rows = pa.ipc.open_file((after / "operations.arrow").read_bytes()).read_all().to_pandas()
    cell = (rows["phase"] == "get") & (rows["lane"] == "http")
    rows.loc[cell, "ok"] = np.arange(cell.sum()) % 10 > 0
    write_arrow(after / "operations.arrow", rows, OPERATION_TYPES)
    (after / "run.json").write_text(json.dumps(info))
    status, found = diff(capsys, before, after)
    assert status == 1
    assert len(found["failures"]) == 1
    assert found["failures"][0].startswith("get on http: 0 of ")
    assert found["failures"][0].endswith("failed before, 72 of 720 after")
    assert diff(capsys, after, before)[0] == 0, "fewer failures are no failure"


def test_operations_without_times_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = write_run(tmp_path / "a.run"), write_run(tmp_path / "b.run")
    for run in (before, after):
        info = json.loads((run / "run.json").read_text()) | {"kind": "mdtest"}
        (run / "run.json").write_text(json.dumps(info))
    usual = diff(capsys, before, after)[1]["notes"]
    row = next(row for row in info["summaries"] if (row["phase"], row["lane"]) == ("get", "posix"))
    row |= {"operations": 1000, "ops_per_s": row["ops_per_s"] * 1000 / 720}
    (after / "run.json").write_text(json.dumps(info))
    notes = diff(capsys, before, after)[1]["notes"]
    assert len(notes) == len(usual) + 1
    assert notes[0].startswith("the second run has the times of only the first 720 of 1000 operations of get")


@pytest.mark.parametrize("least", ["-5", "nan", "inf"])
def test_a_least_change_that_is_none_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], least: str
) -> None:
    run = str(write_run(tmp_path / "a.run"))
    assert cli.main([run, run, f"--at-least={least}"]) == 2
    assert "give a percentage" in capsys.readouterr().err


def test_output_that_cannot_be_written_is_no_slower_run(tmp_path: Path) -> None:
    run = str(write_run(tmp_path / "a.run"))
    for program, words in {
        "diff": [run, run],
        "model": ["advise", "--machine", run, "--sizes", "4KiBx10"],
        "report": [run],
    }.items():
        code = f"import sys; from fordway.{program}.cli import main; sys.exit(main(sys.argv[1:]))"
        with Path("/dev/full").open("w") as full:
            ran = subprocess.run(
                [sys.executable, "-c", code, *words],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                timeout=120,
                check=False,
            )
        assert ran.returncode == (1 if program == "report" else 2)
        assert "cannot be written: [Errno 28]" in ran.stderr
        assert len(ran.stderr.splitlines()) == 1


def replace_intended(run: Path, values: pa.Array) -> None:
    """Replaces the `intended_ns` column of a run, including its type."""
    table = pa.ipc.open_file((run / "operations.arrow").read_bytes()).read_all()
    changed = table.set_column(table.schema.get_field_index("intended_ns"), "intended_ns", values)
    with (
        pa.OSFile(str(run / "operations.arrow"), "wb") as sink,
        pa.ipc.new_file(sink, changed.schema) as file,
    ):
        file.write_table(changed)


@pytest.mark.parametrize("value", ["late", -1, float("inf"), True])
def test_intended_times_of_another_type_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], value: object
) -> None:
    run = write_run(tmp_path / "a.run")
    replace_intended(run, pa.array([value] * operations_of(run)))
    assert cli.main([str(run), str(run)]) == 2
    assert "the column intended_ns has values that no run has" in capsys.readouterr().err


def test_intended_times_may_be_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "a.run")
    replace_intended(run, pa.nulls(operations_of(run)))
    assert diff(capsys, run, run)[0] == 0


def operations_of(run: Path) -> int:
    return pa.ipc.open_file((run / "operations.arrow").read_bytes()).read_all().num_rows
