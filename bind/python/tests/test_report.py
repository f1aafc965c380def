"""Tests reports of runs, from the command to the content of the page."""

import base64
import errno
import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from sample_run import BLOCK_TYPES, LANES, OPERATION_TYPES, PHASES, write_arrow, write_sample_run

from fordway.diff import cli as diff_cli
from fordway.report import cli, figures, kinds, physics, runfile, shape, units


class Page(HTMLParser):
    """Parses a page as a browser does: its text, its table cells, and the resources that it would load."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text = ""
        self.links: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "data")]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th") and self.rows:
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


def report(*runs: Path) -> str:
    out = runs[0].with_name("page.html")
    assert cli.main([*map(str, runs), "--out", str(out)]) == 0
    return out.read_text(encoding="utf-8")


def test_a_page_loads_nothing_from_anywhere(tmp_path: Path) -> None:
    html = report(write_sample_run(tmp_path / "a.run"), write_sample_run(tmp_path / "b.run", seed=2))
    page = Page(html)
    assert page.tags.count("svg") == 8
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert page.links
    assert [link for link in page.links if not link.startswith("#")] == []
    assert not re.search(r"@import|url\((?!#)|<metadata", html)
    assert len(page.ids) == len(set(page.ids))
    targets = [link[1:] for link in page.links] + re.findall(r"url\(#([^)]*)\)", html)
    assert set(targets) <= set(page.ids)


def test_the_page_says_what_was_run_and_what_came_out(tmp_path: Path) -> None:
    run = write_sample_run(tmp_path / "doc.run")
    page = Page(report(run))
    info = json.loads((run / "run.json").read_text())
    for said in [
        "$ fordway compare /usr/share/doc --out out/doc.run --seed 1",
        "An Example Processor 9000",
        "etag_policy",
        "41943040 (40.0 MiB)",
        "How to read this",
        info["warnings"][0],
        "Conditions: measured, with doubts",
        "run it again when the machine is idle (put on http)",
        "28.0 %",
        *LANES,
        *PHASES,
    ]:
        assert said in page.text
    put = info["summaries"][0]
    assert (put["lane"], put["phase"]) == ("posix", "put")
    row = page.rows[2]
    assert row[:4] == ["posix", units.count(put["operations"]), units.rate(put["ops_per_s"]), row[3]]
    assert units.duration(put["latency"]["p99_ns"]) in row


def test_what_was_not_measured_is_said_and_never_zero(tmp_path: Path) -> None:
    run = EditedRun(write_sample_run(tmp_path / "doc.run"))
    for summary in run.info["summaries"]:
        summary |= {"ops_per_s": None, "bytes_per_s": None, "latency": None, "client_cpu_ns_per_op": None}
    run.info["machine"] |= dict.fromkeys(["kernel", "memory_bytes", "is_virtual", "load_1min", "cpu_model"])
    page = Page(report(run.write()))
    put = page.rows[2]
    assert put[0] == "posix"
    assert put[2:8] == ["not measured"] * 6
    assert "0" not in "".join(put[2:8])


def test_verdicts_and_errors_are_told(tmp_path: Path) -> None:
    few = write_sample_run(tmp_path / "few.run", blocks=3, fail=("get", "http"))
    page = Page(report(few))
    assert "cannot tell in 6" in page.text
    assert "too few blocks" in page.text
    assert re.search(r"get on http: \d+ of 180 operations failed", page.text)
    many = Page(report(write_sample_run(tmp_path / "many.run")))
    assert "slower" in many.text
    assert "failed or returned wrong content" not in many.text


def test_runs_with_holes_are_reported(tmp_path: Path) -> None:
    run = EditedRun(write_sample_run(tmp_path / "holes.run"))
    run.info["summaries"] = [s for s in run.info["summaries"] if (s["lane"], s["phase"]) != ("http", "get")]
    page = Page(report(run.write()))
    assert "Not run: get on http." in page.text


def test_runs_without_operations_are_reported(tmp_path: Path) -> None:
    html = report(write_sample_run(tmp_path / "none.run", blocks=0))
    assert "not measured" in html
    assert "<h3>Latency</h3>" not in html
    html = report(write_sample_run(tmp_path / "empty.run", {"posix": ""}, summaries=[], phases=[], blocks=0))
    assert "No phase was run" in html


def test_names_cannot_break_the_page(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    html = report(write_sample_run(tmp_path / "evil.run", {"posix": evil, "x<b>": evil}, command=[evil]))
    assert "<script" not in html
    assert "<b>x<b>" not in html


def test_figures_are_written_where_asked(tmp_path: Path) -> None:
    run = write_sample_run(tmp_path / "doc.run")
    assert cli.main([str(run), "--svg", str(tmp_path / "svg"), "--png", str(tmp_path / "png")]) == 0
    assert (tmp_path / "doc.html").exists()
    wanted = {"doc-ratios", "doc-latency", "doc-by-size", "doc-cpu"}
    for form, start in (("svg", b"<?xml"), ("png", b"\x89PNG")):
        files = list((tmp_path / form).iterdir())
        assert {file.stem for file in files} == wanted
        assert all(file.read_bytes().startswith(start) for file in files)


def test_figures_of_runs_with_the_same_name_are_all_written(tmp_path: Path) -> None:
    runs = [str(write_sample_run(tmp_path / name / "x.run", blocks=1)) for name in ("a", "b")]
    words = ["--svg", str(tmp_path / "svg"), "--out", str(tmp_path / "page.html")]
    assert cli.main([*runs, *words]) == 0
    names = [file.stem for file in (tmp_path / "svg").iterdir()]
    assert {name for name in names if name.endswith("ratios")} == {"x-ratios", "x-2-ratios"}
    assert len(names) % 2 == 0


def test_the_names_of_figures_differ() -> None:
    pairs = [("x", ["latency"]), ("x-2", ["latency"]), ("x", ["latency"]), ("x", ["cpu"])]
    assert cli.figure_stems(pairs) == ["x", "x-2", "x-3", "x"]
    assert cli.figure_stems([("x", ["transfer-cpu"]), ("x-transfer", ["cpu"])]) == ["x", "x-transfer-2"]


def test_a_size_class_of_few_operations_is_not_drawn(tmp_path: Path) -> None:
    run = write_sample_run(tmp_path / "few.run", blocks=1)
    with pa.OSFile(str(run / "operations.arrow")) as source:
        rows = pa.ipc.open_file(source).read_all().to_pandas()
    few = rows.groupby(["lane", "phase"]).head(4)
    write_arrow(run / "operations.arrow", few, OPERATION_TYPES)
    edited = EditedRun(run)
    moved = few.groupby(["lane", "phase"])["bytes"].sum()
    for summary in edited.info["summaries"]:
        summary |= {"operations": 4, "bytes": int(moved[summary["lane"], summary["phase"]])}
    html = report(edited.write())
    assert "Latency and throughput by size" not in html
    assert "cannot be drawn" not in html
    assert "<h3>Latency</h3>" in html


def test_a_figure_that_fails_costs_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no room")

    monkeypatch.setitem(kinds.DRAWINGS, "latency", replace(kinds.DRAWINGS["latency"], draw=fail))
    page = Page(report(write_sample_run(tmp_path / "doc.run")))
    said = "The figure “Latency” cannot be drawn (ValueError: no room)."
    assert said in page.text
    assert f"fordway-report: doc: {said}" in capsys.readouterr().err
    assert page.tags.count("svg") == 3


def test_a_report_that_cannot_be_made_leaves_no_report_of_an_earlier_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, html = write_sample_run(tmp_path / "doc.run"), tmp_path / "doc.html"
    assert cli.main([str(run)]) == 0
    (run / "operations.arrow").rename(run / "other")
    os.utime(run / "run.json", (1, 1))
    os.utime(html, ns=(2**62, 2**62))
    assert cli.main([str(run)]) == 1
    assert html.exists(), "this report is newer than the run"
    os.utime(html, (1, 1))
    assert cli.main([str(run)]) == 1
    assert not html.exists()
    assert f"{html} was removed, because it describes an earlier run" in capsys.readouterr().err
    html.write_text("<!doctype html><title>thesis</title>")
    os.utime(html, (1, 1))
    assert cli.main([str(run)]) == 1
    assert html.exists(), "a file of the user stays"


def test_a_file_that_is_no_report_is_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, html = write_sample_run(tmp_path / "doc.run", blocks=1), tmp_path / "doc.html"
    for words in ([], ["--out", str(html)]):
        html.write_text("thesis")
        assert cli.main([str(run), *words]) == 1
        assert html.read_text() == "thesis"
        err = capsys.readouterr().err
        assert f"{html} exists and is not a Fordway report, so it was not changed" in err
        assert f"fordway report {run} --out FILE" in err
    for ours in ("", "<!doctype html>\n<html><head><title>doc · Fordway</title>"):
        html.write_text(ours)
        assert cli.main([str(run)]) == 0
    new = html.read_text()
    html.write_text(new.replace("· Fordway</title>", "</title>"))
    assert cli.main([str(run)]) == 0
    assert html.read_text() == new


def test_a_full_disk_leaves_no_half_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object, path: Path, **__: object) -> None:
        Path(path).write_bytes(b"")
        raise OSError(errno.ENOSPC, "No space left on device")

    run = write_sample_run(tmp_path / "doc.run")
    monkeypatch.setattr(figures.Figure, "savefig", fail)
    assert cli.main([str(run), "--svg", str(tmp_path / "svg")]) == 1
    assert "cannot be written" in capsys.readouterr().err
    assert list((tmp_path / "svg").iterdir()) == []
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".run"] == ["svg"]


def test_a_page_can_be_written_to_a_device(tmp_path: Path) -> None:
    run = write_sample_run(tmp_path / "doc.run", blocks=1)
    assert cli.main([str(run), "--out", os.devnull]) == 0
    assert not Path(os.devnull).is_file()


def test_a_run_of_any_size_gives_a_page_of_the_same_size(tmp_path: Path) -> None:
    small = len(report(write_sample_run(tmp_path / "small.run", blocks=12)))
    large = len(report(write_sample_run(tmp_path / "large.run", blocks=240)))
    assert large < small * 1.4


def test_what_is_no_run_is_refused_with_a_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = write_sample_run(tmp_path / "other.run", schema="something")
    newer = write_sample_run(tmp_path / "newer.run", schema_version=runfile.SCHEMA_VERSION + 1)
    cut = write_sample_run(tmp_path / "cut.run")
    (cut / "operations.arrow").write_bytes(b"ARROW1")
    for run, reason in [
        (tmp_path / "missing.run", "is missing"),
        (other, "is not a run"),
        (newer, "install a newer fordway"),
        (cut, "operations.arrow cannot be read"),
    ]:
        assert cli.main([str(run)]) == 1
        assert reason in capsys.readouterr().err
        assert not run.with_suffix(".html").exists()


def test_every_lane_has_one_colour_and_the_known_ones_keep_theirs() -> None:
    lanes = ["posix", "embedded", "node", "http", "mine", "yours"]
    colours = figures.lane_colours(lanes)
    assert len(set(colours.values())) == len(lanes)
    assert figures.lane_colours(["http"])["http"] == colours["http"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (units.duration(999), "999 ns"),
        (units.duration(1_500), "1.50 µs"),
        (units.duration(12_345_678), "12.3 ms"),
        (units.size(1_536), "1.50 KiB"),
        (units.mib_per_s(1024**2 * 12_345.6), "12,346"),
        (units.ratio(0.8321), "0.83×"),
        (units.ratio(0.0272), "0.027×"),
        (units.duration(None), "not measured"),
        (units.cpu_us(None), "not measured"),
        (units.cpu_us(0), "0"),
    ],
)
def test_numbers_as_people_read_them(text: str, wanted: str) -> None:
    assert text == wanted


@pytest.mark.parametrize(
    ("low", "high"), [(230e3, 450e3), (9e3, 11e3), (3.2e3, 4.8e3), (1.1e3, 60e3), (5, 3e9), (900, 90e3)]
)
def test_a_time_axis_has_at_most_four_labels(low: float, high: float) -> None:
    ticks = figures.TimeLocator().tick_values(low, high)
    assert 1 <= len(ticks) <= 4
    assert all(low <= tick <= high for tick in ticks)


@pytest.mark.parametrize(
    ("ends", "wanted"),
    [
        ((1024, 1024), [1024]),
        ((500, 30_000), [500, 4096, 30_000]),
        ((1000, 1500), [1000, 1500]),
        ((1, 2**30), [1, 2**10, 2**20, 2**30]),
    ],
)
def test_the_ends_of_a_size_axis_are_labelled(ends: tuple[int, int], wanted: list[int]) -> None:
    assert figures.size_ticks(*ends) == wanted


class EditedRun:
    """A run whose `run.json` a test changes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.info = json.loads((directory / "run.json").read_text())

    def write(self) -> Path:
        (self.directory / "run.json").write_text(json.dumps(self.info))
        return self.directory


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"bytes_per_s": 25_843_308 * 2.0**20}, "25,843,308 MiB/s is faster than any memory"),
        ({"client_cpu_ns_per_op": 3e9, "ops_per_s": 1.0}, "3.00 processors were busy on a machine of 2"),
        ({"latency": dict.fromkeys([*physics.QUANTILES, "mean_ns"], 5) | {"p50_ns": 9}}, "above p90_ns"),
    ],
)
def test_figures_that_cannot_be_stop_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, object], problem: str
) -> None:
    run = write_sample_run(tmp_path / "x.run")
    info = json.loads((run / "run.json").read_text())
    assert physics.impossible(info) == []
    info["summaries"][0] |= change
    (run / "run.json").write_text(json.dumps(info))
    assert cli.main([str(run)]) == 1
    assert problem in capsys.readouterr().err
    assert not run.with_suffix(".html").exists()


def test_some_quantiles_in_the_wrong_order_are_impossible(tmp_path: Path) -> None:
    """Tables of other projects contain only some of the quantiles."""
    info = json.loads((write_sample_run(tmp_path / "x.run") / "run.json").read_text())
    info["summaries"][0]["latency"] = {"p50_ns": 9, "p99_ns": 5}
    (said,) = physics.impossible(info)
    assert said.endswith("latency: the quantiles of its latencies are not in order")


def changed_json(run: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes the `run.json` of `run`."""
    info = json.loads((run / "run.json").read_text())
    change(info)
    (run / "run.json").write_text(json.dumps(info))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda info: info.update(warnings=None), "warnings is not a list"),
        (lambda info: info.update(parameters=[]), "parameters is not an object"),
        (lambda info: info.update(elapsed_ns=10**400), "elapsed_ns is not a number"),
        (lambda info: info.update(started=5), "started is not a time (RFC 3339)"),
        (lambda info: info.update(schema_version="1"), "schema_version is not a whole number"),
        (lambda info: info["machine"].pop("cpus"), "machine.cpus is missing"),
        (lambda info: info.update(lanes=[]), "lanes is empty"),
        (lambda info: info["lanes"].append("x"), "lanes[3] is not an object"),
        (
            lambda info: info["summaries"][2].update(ops_per_s="9"),
            "summaries[2].ops_per_s is not a number from 0",
        ),
        (lambda info: info["summaries"][2].update(errors=-1), "summaries[2].errors is not a whole number"),
        (lambda info: info["summaries"][2]["limit"].pop("name"), "summaries[2].limit.name is missing"),
        (lambda info: info.update(schema_version=0), "schema_version is not a whole number from 1"),
        (lambda info: info.update(started="yesterday"), "started is not a time (RFC 3339)"),
        (lambda info: info.update(started="2026-13-20T09:15:02Z"), "started is not a time (RFC 3339)"),
        (lambda info: info.update(elapsed_ns=-1), "elapsed_ns is not a number above 0"),
        (
            lambda info: info["summaries"][2].update(ops_per_s=-5),
            "summaries[2].ops_per_s is not a number from",
        ),
        (
            lambda info: info["summaries"][2]["latency"].update(min_ns=-5),
            "summaries[2].latency.min_ns is not a number from 0",
        ),
        (
            lambda info: info["summaries"][2].update(histogram="garbage"),
            "summaries[2].histogram is not an HdrHistogram",
        ),
        (
            lambda info: info["summaries"][2].update(operations=999_999),
            "summaries[2].operations is 999999, but operations.arrow has 720 of them",
        ),
        (
            lambda info: info["summaries"][2].update(errors=1),
            "summaries[2].errors is 1, but operations.arrow has 0 of them",
        ),
        (
            lambda info: info["conditions"].update(verdict="measured"),
            "conditions.verdict is 'measured', but conditions.doubts is not empty",
        ),
        (
            lambda info: info["conditions"].update(is_forced=True),
            "conditions.verdict is 'doubtful', but conditions.is_forced is true",
        ),
        (lambda info: info["conditions"].update(verdict="fine"), "conditions.verdict is 'fine', not one of"),
        (lambda info: info.update(conditions=[]), "conditions is not an object"),
        (
            lambda info: info["conditions"]["figures"].update(others_share="x"),
            "conditions.figures.others_share is not a number",
        ),
        (
            lambda info: info["parameters"].update(setups=[{"name": "bare"}]),
            "parameters.setups[0].settings is missing",
        ),
        (
            lambda info: info["parameters"].update(setups=[{"settings": [{"net/ipv4/tcp_rmem": 5}]}]),
            "parameters.setups[0].settings[0].net/ipv4/tcp_rmem is not text",
        ),
        (lambda info: info["parameters"].update(tcp_rmem_bytes="x"), "tcp_rmem_bytes is not a number"),
        (lambda info: info.update(scores=[{"lane": "posix"}]), "scores[0].scores is missing"),
        (lambda info: info.update(elapsed_ns=float("nan")), "NaN is not JSON"),
    ],
)
def test_a_run_of_another_form_is_refused_by_the_name_of_the_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Callable[[dict[str, Any]], object], said: str
) -> None:
    run = write_sample_run(tmp_path / "x.run")
    changed_json(run, change)
    for command in (cli.main, lambda words: diff_cli.main([*words, *words])):
        assert command([str(run)]) in (1, 2)
        assert said in (err := capsys.readouterr().err)
        assert "report this bug" not in err


@pytest.mark.parametrize("name", ["operations", "blocks", "objects", "ranks"])
def test_every_table_of_a_run_is_opened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    run = write_sample_run(tmp_path / "x.run", blocks=1)
    (run / f"{name}.arrow").write_bytes(b"ARROW1\0\0" + bytes(999))
    for command in (cli.main, lambda words: diff_cli.main([*words, *words])):
        assert command([str(run)]) in (1, 2)
        assert f"{name}.arrow cannot be read" in capsys.readouterr().err


def test_a_pipe_in_a_run_does_not_block(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_sample_run(tmp_path / "x.run", blocks=1)
    for name in ("blocks.arrow", "run.json"):
        (run / name).unlink()
        os.mkfifo(run / name)
        assert cli.main([str(run)]) == 1
        assert f"{name}" in (err := capsys.readouterr().err)
        assert "not a regular file" in err


def test_a_real_histogram_is_accepted(tmp_path: Path) -> None:
    run = write_sample_run(tmp_path / "x.run", blocks=1)
    empty = bytes.fromhex("1c84931300000000000000000000000300000000000000010000034630b8a0003ff0000000000000")
    changed_json(run, lambda info: info["summaries"][0].update(histogram=base64.b64encode(empty).decode()))
    runfile.read_info(run)


@pytest.mark.parametrize(
    ("interval", "is_right"),
    [
        ((0.5, 0.4, 0.6), True),
        ((0.5, 0.5, 0.5), True),
        ((0.5, 0, 0.6), False),
        ((0, 0, 0), False),
        ((-0.5, -0.6, -0.4), False),
        ((0.5, 0.6, 0.7), False),
        ((0.5, 0.3, 0.4), False),
    ],
)
def test_an_interval_contains_its_value(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    interval: tuple[float, float, float],
    is_right: bool,
) -> None:
    run = write_sample_run(tmp_path / "x.run")
    found = dict(zip(("value", "low", "high"), interval, strict=True)) | {"confidence": 0.95, "samples": 9}
    changed_json(run, lambda info: info["summaries"][-1]["ratio"].update(interval=found))
    if is_right:
        assert cli.main([str(run)]) == 0
        return
    assert cli.main([str(run)]) == 1
    said = "ratio.interval is not an interval with 0 < low <= value <= high"
    assert said in capsys.readouterr().err


INTERVAL = {"value": 2.0, "low": 1.0, "high": 3.0, "confidence": 0.95, "samples": 9}
NONE = {"value": 0, "low": 0, "high": 0, "confidence": 0.95, "samples": 9}
KINDS = {
    "transfer": {
        "exchange": "latency",
        "size_bytes": 64,
        "window": 1,
        "messages": 9,
        "time_ns": INTERVAL,
        "bytes_per_s": INTERVAL,
        "client_cpu_ns_per_message": 5.0,
        "server_cpu_ns_per_message": None,
        "processors_busy": 1.0,
    },
    "parallel": {
        "ranks": 2,
        "wall_ns": INTERVAL,
        "work_ns": None,
        "speedup": INTERVAL,
        "efficiency": INTERVAL,
        "communication_share": NONE,
        "late_ns": None,
    },
    "load": {
        "rate_asked_per_s": 5.0,
        "connections": 1,
        "streams": 1,
        "threads": 1,
        "skipped": 0,
        "errors": {"status 503": 1},
        "first_byte": None,
        "lateness": None,
        "header_sent_bytes_per_op": None,
        "header_received_bytes_per_op": None,
        "reconnects": 0,
        "tcp": None,
        "client": None,
        "server": None,
    },
}


@pytest.mark.parametrize(
    ("part", "field", "value", "said"),
    [
        ("transfer", "exchange", 5, "is not text"),
        ("transfer", "size_bytes", "64", "is not a whole number"),
        ("transfer", "time_ns", 5, "is not an object"),
        ("transfer", "time_ns", INTERVAL | {"low": -1}, "is not an interval with 0 <= low <= value <= high"),
        ("transfer", "bytes_per_s", INTERVAL | {"high": 1.5}, "is not an interval"),
        ("transfer", "client_cpu_ns_per_message", None, "is not a number"),
        ("transfer", "processors_busy", "all", "is not a number"),
        ("parallel", "ranks", None, "is not a whole number"),
        ("parallel", "speedup", INTERVAL | {"low": 2.5}, "is not an interval with 0 < low <= value <= high"),
        ("parallel", "efficiency", NONE, "is not an interval"),
        ("parallel", "late_ns", {"value": 1}, "low is missing"),
        ("load", "threads", None, "is not a whole number"),
        ("load", "errors", ["status 503"], "is not an object"),
        ("load", "errors", {"status 503": "many"}, ".status 503 is not a whole number"),
        ("load", "retries", None, "is not a whole number"),
        ("load", "rate_asked_per_s", 0, "is not a number above 0"),
    ],
)
def test_damaged_values_of_a_kind_are_refused_by_the_name_of_the_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], part: str, field: str, value: object, said: str
) -> None:
    run = write_sample_run(tmp_path / "x.run")
    changed_json(run, lambda info: info["summaries"][1].update({part: KINDS[part]}))
    runfile.read_info(run)
    changed_json(run, lambda info: info["summaries"][1].update({part: KINDS[part] | {field: value}}))
    assert cli.main([str(run)]) == 1
    err = capsys.readouterr().err
    assert f"summaries[1].{part}.{field}" in err
    assert said in err
    if field != "retries":
        changed_json(run, lambda info: info["summaries"][1][part].pop(field))
        with pytest.raises(runfile.RunFileError, match=rf"summaries\[1\].{part}.{field} is missing"):
            runfile.read_info(run)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("kind", "compares", "kind is 'compares', not one of compare, rest,"),
        ("elapsed_ns", 0, "elapsed_ns is not a number above 0"),
    ],
)
def test_a_run_of_no_kind_or_no_time_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], field: str, value: object, said: str
) -> None:
    run = write_sample_run(tmp_path / "x.run", **{field: value})
    assert cli.main([str(run)]) == 1
    assert said in capsys.readouterr().err


def test_quantiles_in_the_wrong_order_are_refused_by_the_name_of_the_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_sample_run(tmp_path / "x.run")
    changed_json(run, lambda info: info["summaries"][1]["latency"].update(p50_ns=10**9, max_ns=10**10))
    assert cli.main([str(run)]) == 1
    assert "summaries[1].latency.p50_ns is 1000000000, above p90_ns" in capsys.readouterr().err
    changed_json(run, lambda info: info["summaries"][1].update(latency=None, load=KINDS["load"]))
    runfile.read_info(run)
    wrong = dict.fromkeys(shape.QUANTILES, 100) | {"p99_ns": 1000}
    changed_json(run, lambda info: info["summaries"][1]["load"].update(lateness=wrong))
    said = r"summaries\[1\].load.lateness.p99_ns is 1000, above p999_ns"
    with pytest.raises(runfile.RunFileError, match=said):
        runfile.read_info(run)


def test_a_block_that_took_no_time_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_sample_run(tmp_path / "x.run")
    rows = pd.read_feather(run / "blocks.arrow")
    rows.loc[3, "elapsed_ns"] = 0
    write_arrow(run / "blocks.arrow", rows, BLOCK_TYPES)
    assert cli.main([str(run)]) == 1
    err = capsys.readouterr().err
    assert "blocks.arrow: row 3 (put on posix) has" in err
    # A block in which every operation failed may have no time.
    rows.loc[3, "operations"] = 0
    write_arrow(run / "blocks.arrow", rows, BLOCK_TYPES)
    runfile.read_info(run)


@pytest.mark.parametrize("kind", ["rest", "vector", "speedup"])
def test_rows_that_do_not_fit_the_document_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    run = write_sample_run(tmp_path / "x.run", kind=kind)
    said = json.loads((run / "run.json").read_text())["summaries"][0]["operations"]
    changed_json(run, lambda info: info["summaries"][0].update(operations=said + 1))
    assert cli.main([str(run)]) == 1
    assert (
        f"summaries[0].operations is {said + 1}, but operations.arrow has {said}" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda row, _: row["ratio"].update(verdict="faster"), "verdict is 'faster', but the interval means"),
        (lambda row, _: row["ratio"]["interval"].update(confidence=3), "interval.confidence is 3, not"),
        (lambda row, _: row["ratio"]["interval"].update(samples=0), "interval.samples is 0"),
        (lambda row, _: row["ratio"].update(to="none"), "to is 'none', which is not a lane"),
        (lambda row, rows: rows.insert(0, row), "is a second summary of delete on http"),
        (lambda row, _: row.update(bytes=10**15), ".bytes is 1000000000000000, but the operations of"),
    ],
)
def test_summaries_that_contradict_the_run_are_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[dict[str, Any], list[dict[str, Any]]], object],
    said: str,
) -> None:
    run = write_sample_run(tmp_path / "x.run")
    runfile.read_run(run)
    changed_json(run, lambda info: change(info["summaries"][-1], info["summaries"]))
    assert cli.main([str(run)]) == 1
    assert said in capsys.readouterr().err


def test_json_without_end_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_sample_run(tmp_path / "x.run")
    (run / "run.json").write_text("[" * 100_000)
    assert cli.main([str(run)]) == 1
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [
        ("duration_ns", pa.array(["x"]), "values that no run has"),
        ("duration_ns", pa.array([-5]), "values that no run has"),
        ("duration_ns", pa.array([float("nan")]), "values that no run has"),
        ("duration_ns", pa.array([None], pa.uint64()), "has gaps"),
        ("ok", pa.array([1]), "values that no run has"),
        ("ok", pa.array([None], pa.bool_()), "has gaps"),
        ("lane", pa.array([1]), "values that no run has"),
    ],
)
def test_columns_that_no_run_has_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], column: str, values: pa.Array, said: str
) -> None:
    run = write_sample_run(tmp_path / "x.run")
    path = run / "operations.arrow"
    with pa.OSFile(str(path)) as source:
        table = pa.ipc.open_file(source).read_all()
    at = table.schema.get_field_index(column)
    table = table.set_column(at, column, pa.concat_arrays([values] * table.num_rows))
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    for command in (cli.main, lambda words: diff_cli.main([*words, *words])):
        assert command([str(run)]) in (1, 2)
        assert f"the column {column} " in (err := capsys.readouterr().err)
        assert said in err


def test_a_name_with_dollar_signs_is_not_a_formula(tmp_path: Path) -> None:
    name = "a$b_{c$"
    run = write_sample_run(tmp_path / "x.run", {"posix": "files", name: "a service"})
    assert cli.main([str(run)]) == 0
    page = (tmp_path / "x.html").read_text()
    assert name in page
    assert "mathdefault" not in page
