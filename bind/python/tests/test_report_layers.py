"""Tests the analysis of messages of many sizes with synthetic data of known parameters and with published
data.
"""

import os
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from layers_data import messages, run_of
from scipy.stats import t as student
from test_report import Page
from test_report_kinds import bench

from fordway.report import cli, figures, kinds, page, runfile, tables_layers
from fordway.report.layers import changes, guidance, loss, published, windows
from fordway.report.layers.classes import MESSAGES_MIN, Classes, bands
from fordway.report.runfile import RunFileError

STEP = 262_144
HEADER = (
    '"Machine Tag","Experiment Tag","Document Path","Failed requests","Concurrency Level",'
    '"Total transferred","Time per request","Transfer rate","Requests per second","Retries","Response Code"\n'
)


def with_step(rows: pd.DataFrame, at: float, delay_ns: float) -> pd.DataFrame:
    """Returns `rows`, in which each message of at least `at` bytes takes `delay_ns` longer."""
    return rows.assign(duration_ns=rows["duration_ns"] + delay_ns * (rows["bytes"] >= at))


def found(rows: pd.DataFrame, seed: int = 1) -> list[changes.Change]:
    return changes.find(rows["bytes"].to_numpy(dtype=float), rows["duration_ns"].to_numpy(), seed)


@pytest.mark.parametrize("seed", range(4))
def test_a_jump_is_found_where_it_is(seed: int) -> None:
    # The sizes are dense enough to locate a jump within 2 %.
    rows = with_step(messages(seed, 6000), STEP, 1.5e6)
    (change,) = found(rows)
    assert change.size_bytes == pytest.approx(STEP, rel=0.02)
    assert change.low_bytes <= STEP * 1.01
    assert change.high_bytes >= STEP * 0.99
    assert change.jump == pytest.approx((300e3 + 2.5 * STEP + 1.5e6) / (300e3 + 2.5 * STEP), rel=0.25)


@pytest.mark.parametrize("seed", range(10))
def test_where_there_is_no_jump_none_is_found(seed: int) -> None:
    assert found(messages(seed)) == []


def test_two_jumps_are_both_found() -> None:
    rows = with_step(with_step(messages(5, 6000), 8_192, 0.5e6), STEP, 3e6)
    first, second = found(rows)
    assert first.size_bytes == pytest.approx(8_192, rel=0.05)
    assert second.size_bytes == pytest.approx(STEP, rel=0.05)


def test_few_messages_and_one_size_tell_nothing() -> None:
    assert found(with_step(messages(1, 40), STEP, 5e6)) == []
    assert found(messages(1).assign(bytes=1000)) == []


@pytest.mark.parametrize(
    ("vxlan", "known", "unknown"),
    [
        (messages(2, 600), "Times do not jump by 10% or more at any size.", ""),
        (messages(2, 40), "Times of the other set-ups do not jump", "vxlan, p (40 messages of"),
        (messages(2).assign(bytes=1000), "Times of the other set-ups do", "(1,600 messages of 1 sizes)"),
        (messages(2).head(0), "Times of the other set-ups do not jump", "vxlan, p (0 messages of 0 sizes)"),
    ],
)
def test_the_absence_of_jumps_is_only_stated_after_a_search(
    vxlan: pd.DataFrame, known: str, unknown: str
) -> None:
    run = run_of({("bare", "p"): messages(1, 600), ("vxlan", "p"): vxlan})
    said = tables_layers.changes(run, figures.lane_colours(run.lanes))
    assert known in said
    assert ("Cannot tell whether times jump" in said) == bool(unknown)
    assert unknown in said
    few = run_of({("bare", "p"): messages(1, 40)})
    said = tables_layers.changes(few, figures.lane_colours(few.lanes))
    assert "Cannot tell whether times jump: bare, p (40 messages" in said
    assert "do not jump" not in said


def sweep(place: float, moved: float) -> list[windows.Verdict]:
    """Returns the verdicts on a jump that occurs at `place` with one window, and at `moved` with a window of
    twice the size.
    """
    rows = {
        ("bare", "kept c=1 tcp_rmem=87380"): with_step(messages(1, 5000), place, 2e6),
        ("bare", "kept c=1 tcp_rmem=174760"): with_step(messages(2, 5000), moved, 2e6),
    }
    run = run_of(rows, {})
    assert windows.window_bytes(run, run.phases[1]) == 174_760
    return windows.verdicts(run, windows.all_changes(run))


def test_what_moves_with_the_window_is_told_from_what_does_not() -> None:
    (stays,) = sweep(STEP, STEP)
    assert (stays.verdict, stays.phase) == (windows.STAYS, "kept c=1")
    (moves,) = sweep(87_380, 2 * 87_380)
    assert moves.verdict == windows.MOVES
    assert moves.sizes_bytes[174_760] == pytest.approx(2 * 87_380, rel=0.05)
    (neither,) = sweep(87_380, 20_000)
    assert neither.verdict == windows.CANNOT_TELL


def test_bands_are_exact_quantiles_of_their_classes() -> None:
    sizes = np.repeat([0, 1, 1000, 500_000], 101)
    rows = pd.DataFrame({"bytes": sizes, "duration_ns": np.tile(np.arange(101.0), 4)})
    of_classes = bands(rows, Classes.of(sizes), rows["duration_ns"])
    assert list(of_classes["size_bytes"]) == [0, 1, 1000, 500_000]
    for share in (0.05, 0.25, 0.5, 0.75, 0.95):
        assert list(of_classes[share]) == [100 * share] * 4


def test_every_message_is_in_the_class_of_its_size() -> None:
    sizes = messages(3)["bytes"].to_numpy()
    classes = Classes.of(sizes)
    numbers = classes.number(sizes)
    assert (classes.edges[numbers] <= sizes).all()
    assert (sizes < classes.edges[numbers + 1]).all()


def test_empty_classes_are_left_out_and_nothing_aborts() -> None:
    low, high = messages(1, 500, largest=1_000), messages(2, 500)
    high = high[high["bytes"] > 100_000]
    run = run_of({("bare", "kept c=1"): pd.concat([low, high]), ("vxlan", "kept c=1"): low})
    ratios = loss.against_reference(run, "kept c=1", "vxlan")
    assert len(ratios) > 3
    assert ratios["size_bytes"].max() < 1_100
    assert loss.near(run, "kept c=1", "vxlan", 400_000) is None
    (level,) = guidance.levels(run)
    assert (level.small, level.big) == ("100%", "not measured")
    few = bands(low.head(MESSAGES_MIN - 1), Classes.of(np.arange(1e5)), low.head(MESSAGES_MIN - 1)["bytes"])
    assert few.empty


def test_the_bands_of_a_loss_hold_the_truth() -> None:
    held, all_classes = 0, 0
    for seed in range(6):
        slow = messages(100 + seed)
        rows = {
            ("bare", "p"): messages(seed),
            ("vxlan", "p"): slow.assign(duration_ns=slow["duration_ns"] / 0.8),
        }
        ratios = loss.against_reference(run_of(rows), "p", "vxlan", seed)
        all_classes += len(ratios)
        held += int(((ratios["low"] <= 0.8) & (ratios["high"] >= 0.8)).sum())
    assert 0.85 < held / all_classes <= 1


@pytest.mark.parametrize(("messages_of_round", "state"), [(5, 0.0), (5, 0.1), (20, 0.05), (20, 0.1)])
def test_the_bands_of_a_loss_include_the_variation_between_rounds(
    messages_of_round: int, state: float
) -> None:
    """Simulates set-ups of equal speed, whose rounds differ by `state`."""
    held, widths = [], []
    for seed in range(200):
        random = np.random.default_rng(seed)
        rows = {}
        for lane in ("bare", "vxlan"):
            rounds = np.repeat(np.arange(8), messages_of_round)
            of_round = np.exp(state * random.standard_normal(8))[rounds]
            times = 300e3 * of_round * random.lognormal(0, 0.12, len(rounds))
            rows[lane, "p"] = pd.DataFrame({"bytes": 1000, "duration_ns": times, "round": rounds})
        (ratio,) = loss.against_reference(run_of(rows), "p", "vxlan", seed).itertuples()
        held.append(ratio.low <= 1 <= ratio.high)
        widths.append(ratio.high / ratio.low)
    # The intervals should contain 95 % of the ratios. The standard deviation of the share is 1.5 %.
    assert np.mean(held) >= 0.9
    assert np.median(widths) < (1.6 if state else 1.4)


def test_the_quantiles_of_students_distribution_are_right() -> None:
    for freedom in (1, 2, 7, 10, 11, 15, 30, 200, 999):
        assert loss._student(freedom) == pytest.approx(student.ppf(0.975, freedom), abs=0.003)


def test_one_round_has_no_band() -> None:
    rows = messages(1).assign(round=0)
    run = run_of({("bare", "p"): rows, ("vxlan", "p"): rows})
    ratios = loss.against_reference(run, "p", "vxlan")
    assert (ratios["ratio"] == 1).all()
    assert ratios[["low", "high"]].isna().all(axis=None)
    figure = kinds.draw_all(run, figures.lane_colours(run.lanes)).figures["layers"]
    assert page.inline_svg(figure, "x").startswith("<svg")


def test_guidance_tells_small_from_big() -> None:
    slow = messages(9, 4000)
    slow["duration_ns"] /= np.where(slow["bytes"] > 3 * 87_380, 0.9, 0.5)
    run = run_of({("bare", "p"): messages(8, 4000), ("sdn", "p"): slow})
    (level,) = guidance.levels(run)
    assert (level.small.split("%")[0], level.big.split("%")[0]) in {
        ("50", "90"),
        ("45", "90"),
        ("45", "85"),
        ("50", "85"),
    }


def test_guidance_has_a_column_for_each_number_of_cores() -> None:
    rows = {}
    for cores, left in ((1, 0.5), (2, 0.8)):
        phase = f"kept c=1 cores={cores}"
        slow = messages(10 + cores, 4000)
        rows["bare", phase] = messages(cores, 4000)
        rows["vxlan", phase] = slow.assign(duration_ns=slow["duration_ns"] / left)
    run = run_of(rows)
    levels = guidance.by_cores(guidance.levels(run))
    assert list(levels) == [("kept c=1", "vxlan")]
    assert list(levels["kept c=1", "vxlan"]) == [1, 2]
    text = tables_layers.levels(run, dict.fromkeys(run.lanes, "#0072b2"))
    heads = [f"{size} messages,<br>{cores}" for size in ("small", "big") for cores in ("1 core", "2 cores")]
    assert re.findall(r"<th>(\w+ messages.*?)</th>", text) == heads
    small_1, small_2, big_1, big_2 = re.findall(r"<td>(\d+)%", text)
    assert {small_1, big_1} <= {"45", "50"}
    assert {small_2, big_2} <= {"75", "80"}


def test_a_set_up_that_lacks_a_number_of_cores_is_not_measured_there() -> None:
    both, one = "kept c=1 cores=1", "kept c=1 cores=2"
    run = run_of(
        {
            ("bare", both): messages(1),
            ("bare", one): messages(2),
            ("vxlan", both): messages(3),
            ("tunnel", one): messages(4),
        }
    )
    text = tables_layers.levels(run, dict.fromkeys(run.lanes, "#0072b2"))
    cells = re.findall(r"<td>(.*?)</td>", text)
    none = "not measured"
    assert [cell == none for cell in cells] == [False, True, False, True, True, False, True, False]


EMPTY = pd.DataFrame({"bytes": np.array([], dtype=np.uint64), "duration_ns": np.array([], dtype=float)})


@pytest.mark.parametrize(
    ("bare", "vxlan", "drawn", "said"),
    [
        pytest.param(messages(1), None, 3, "has only one set-up", id="one set-up"),
        pytest.param(messages(1), EMPTY, 3, "only the reference delivered", id="the other failed"),
        pytest.param(EMPTY, messages(1), 3, "bare, delivered no message", id="the reference failed"),
        pytest.param(EMPTY, EMPTY, 0, "no message was delivered.", id="all failed"),
        pytest.param(messages(1).assign(bytes=1000), messages(2).assign(bytes=1000), 4, "", id="one size"),
        pytest.param(messages(1).assign(bytes=0), messages(2).assign(bytes=0), 0, "are empty", id="no bytes"),
        pytest.param(messages(1, 3), messages(2, 3), 0, "measure more rounds", id="few messages"),
    ],
)
def test_what_a_run_lacks_is_said(
    bare: pd.DataFrame, vxlan: pd.DataFrame | None, drawn: int, said: str
) -> None:
    rows = {("bare", "kept c=1"): bare} | ({} if vxlan is None else {("vxlan", "kept c=1"): vxlan})
    run = run_of(rows)
    colours = figures.lane_colours(run.lanes)
    names = kinds.draw_all(run, colours).figures
    assert len(names) == drawn
    for figure in names.values():
        assert page.inline_svg(figure, "x").startswith("<svg")
    texts = [table(run, colours) for table in kinds.tables_of(run)]
    assert said in texts[0]
    assert bool(texts[0]) == bool(said)


def ppbench(path: Path, rows: list[tuple[str, int, float, int, int]]) -> Path:
    """Writes a table in ppbench's format. Each row has an experiment, a size, milliseconds, failed requests
    and retries.
    """
    lines = [
        f'"m","{tag}","/mping/{size}","{failed}","10","{size}","{ms}","1","{1000 / ms}","{retries}","200"'
        for tag, size, ms, failed, retries in rows
    ]
    path.write_text(HEADER + "\n".join(lines) + "\n")
    return path


def test_ppbench_tables_are_read_with_what_failed_and_was_retried(tmp_path: Path) -> None:
    sizes = range(1, 60)
    weave = [("weave", size, 4.0, int(size == 7), 3) for size in sizes]
    bare = [("bare", size, 2.0, 0, 0) for size in sizes]
    run = published.read(ppbench(tmp_path / "experiment.csv", weave + bare))
    assert run.lanes == ["bare", "weave"], "the reference is the first"
    assert loss.near(run, run.phases[0], "weave", 30) == pytest.approx(0.5)
    assert [row["errors"] for row in run.info["summaries"]] == [0, 1]
    assert any("177 times" in warning for warning in run.info["warnings"])


def test_other_tables_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    with pytest.raises(RunFileError, match="neither a table of ppbench"):
        published.read(other)
    other.write_text(HEADER + '"m","x","/mping/many","0","1","1","1","1","1","0","200"\n')
    with pytest.raises(RunFileError, match="not a number of bytes"):
        published.read(other)


def test_parameters_are_no_raw_json() -> None:
    setups = [
        {
            "name": "vxlan",
            "emulated": False,
            "started_in_ns": 12_345,
            "settings": [{"net/ipv4/tcp_rmem": "4096"}],
        },
        {"name": "<vm>", "emulated": True, "started_in_ns": 5, "problem": "no & kernel"},
    ]
    wire = {"rtt": {"secs": 0, "nanos": 30_000_000}, "loss": 0.01, "congestion_control": None}
    run = run_of({("bare", "p"): messages(1, 9)}, {"setups": setups, "wire": wire, "sizes_bytes": [1, 4096]})
    said = page._parameters(run)
    assert "{" not in said
    assert "rtt 30.0 ms; loss 0.01; congestion_control not set" in said
    assert "4096 (4.00 KiB)" in said
    assert "<h4>setups</h4>" in said
    assert '<td class="text">12345 (12.3 µs)</td>' in said
    assert "net/ipv4/tcp_rmem 4096" in said
    assert "&lt;vm&gt;" in said
    assert "no &amp; kernel" in said


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ('"m","x","/mping/9","0","10","9","1","1","2,5","0","200"', "Requests per second is '2,5' in row 1"),
        ('"m","x","/mping/9","many","10","9","1","1","2","0","200"', "Failed requests is 'many'"),
        ('"m","x","/mping/9","0","ten","9","1","1","2","0","200"', "Concurrency Level is 'ten'"),
        ('"m","x","/mping/9","0","10","9","1","1","-2","0","200"', "Requests per second is '-2"),
        ('"m","x","/mping/-9","0","10","9","1","1","2","0","200"', "whose size is impossible"),
        ('"m","x","/mping/1e30","0","10","9","1","1","2","0","200"', "whose size is impossible"),
    ],
)
def test_impossible_cells_are_refused_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], row: str, said: str
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(HEADER + row + "\n")
    assert cli.main([str(path)]) == 1
    assert said in capsys.readouterr().err


def test_the_page_has_all_figures_and_tables(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    rows = [
        (tag, int(size), round(ms * random.lognormal(0, 0.1), 4), 0, 0)
        for tag, ms in (("bare", 2), ("weave", 3))
        for size in random.integers(1, 500_000, 300)
    ]
    table = ppbench(tmp_path / "experiment.csv", rows)
    out = tmp_path / "page.html"
    assert cli.main([str(table), "--out", str(out)]) == 0
    told = Page(out.read_text(encoding="utf-8"))
    run = published.read(table)
    drawn = kinds.draw_all(run, figures.lane_colours(run.lanes)).figures
    assert list(drawn) == ["layers", "transfer", "requests", "latency-by-size"]
    assert told.tags.count("svg") == len(drawn)
    assert "Expected rates" in told.text


def test_a_run_of_the_binary_has_a_page_and_counts_what_fails(tmp_path: Path) -> None:
    ports = ["--set", "port=28280", "--set", "ping-port=28281"]
    few = ["--rounds", "1", "--points", "80", "--warm-up", "0s", "--min", "0", "--seed", "1"]
    run = bench(tmp_path, "pingpong", "--setup", "loopback", *ports, *few)
    out = tmp_path / "page.html"
    assert cli.main([str(run), "--out", str(out)]) == 0
    told = Page(out.read_text(encoding="utf-8"))
    # With a single set-up, there is no figure of a comparison.
    assert told.tags.count("svg") == 3
    rows = [row for row in told.rows if row[1:2] == ["loopback"] and len(row) == 6]
    # Another table may have a row of this length, which begins with a size.
    counts = [row[2:5] for row in rows if row[2].isdigit()]
    assert counts == [["160", "0", "0"]] * 2, "answered, failed, asked again"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make network namespaces")
@pytest.mark.parametrize(
    ("option", "verdict"),
    [("--delay-from=262144", windows.STAYS), ("--delay-from-windows=2", windows.MOVES)],
)
def test_a_delay_of_pong_is_found_and_told_from_the_window(tmp_path: Path, option: str, verdict: str) -> None:
    sweep = ["--setup", "bare", "--connection-policy", "kept", "--tcp-rmem", "87380,131072", "--seed", "1"]
    sizes = ["--min", "100kB", "--max", "500kB", "--scale", "linear", "--points", "300", "--rounds", "2"]
    # Use a delay that is longer than any stall that affects more than a few messages on a busy machine.
    delay = ["--pong-option=--delay=10ms", f"--pong-option={option}"]
    places = {window: window * 2 if verdict == windows.MOVES else 262_144 for window in (87_380, 131_072)}
    # If a busy machine stalled a phase, "cannot tell" is the correct verdict. In that case, measure again.
    for attempt in range(3):
        place = tmp_path / str(attempt)
        place.mkdir()
        run = runfile.read_run(bench(place, "pingpong", *sweep, *sizes, *delay))
        found = windows.all_changes(run)
        # On a busy machine, rounds differ, and the differences may look like another small jump.
        is_there = [
            one
            for one in windows.verdicts(run, found)
            if one.sizes_bytes[87_380] == pytest.approx(places[87_380], rel=0.02)
        ]
        if windows.CANNOT_TELL not in [one.verdict for one in is_there]:
            break
    highest = max(found, key=lambda one: one.change.jump)
    window = windows.window_bytes(run, highest.phase)
    assert highest.change.size_bytes == pytest.approx(places[window or 0], rel=0.02)
    assert {one.verdict for one in is_there} == {verdict}
    # A stall of the machine can shift the smaller jump. If the other verdict were correct, the size with one
    # of the windows would differ by at least 33 %.
    assert is_there[0].sizes_bytes == pytest.approx(places, rel=0.15)


DIRECTORY = os.environ.get("FORDWAY_SDVN")


@pytest.mark.skipif(
    DIRECTORY is None, reason="FORDWAY_SDVN does not name the directory of the sdvn-impact-database"
)
def test_the_published_ratios_come_back() -> None:
    run = published.read(Path(DIRECTORY or "") / "logdata.csv")
    assert run.reference == "Reference"
    expected = {"Docker": (0.84, 0.83, 0.90), "Docker+SDN": (0.55, 0.25, 0.28)}
    for lane, ratios in expected.items():
        for size, ratio in zip((1_000, 100_000, 500_000), ratios, strict=True):
            assert loss.near(run, run.phases[0], lane, size) == pytest.approx(ratio, abs=0.02), (lane, size)


def test_the_time_of_a_request_counts_requests_at_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    head = "Tag,Document Path,Concurrency Level,Requests per second,Failed requests"
    path.write_text(f"{head}\nbare,/mping/100,10,1000,0\nbare,/mping/200,1,1000,0\n")
    assert list(published.read(path).operations["duration_ns"]) == pytest.approx([1e7, 1e6])
