"""Tests reports of ledgers, and probes used as constants of a model."""

import json
from argparse import Namespace
from pathlib import Path

import pytest
from sample_run import write_sample_run

from fordway.model import options, readers
from fordway.model.points import MeasurementError
from fordway.report import cli, figures_ledger, kinds, runfile

INTERVAL = {"confidence": 0.95, "samples": 9}


def interval(value: float) -> dict[str, float]:
    return {"value": value, "low": 0.9 * value, "high": 1.1 * value} | INTERVAL


def entry(size: int) -> dict[str, object]:
    """Returns a path that takes 3 µs. The two components of the path explain 2.5 µs of this time."""
    parts = [
        {"component": "socket", "times": 1.0, "ns": interval(2_000.0)},
        {"component": "copy", "times": 2.0, "ns": interval(500.0)},
    ]
    return {
        "path": "http get",
        "size_bytes": size,
        "parts": parts,
        "sum_ns": interval(2_500.0),
        "fitted_sum_ns": 2_500.0,
        "measured_ns": interval(3_000.0),
        "residual_ns": interval(500.0),
        "residual_share": interval(1 / 6),
    }


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """A ledger with one path at three sizes, two of which were printed."""
    run = write_sample_run(tmp_path / "x.run", kind="ledger", parameters={"printed_bytes": [4096, 1 << 20]})
    account = {"components": [], "paths": [], "entries": [entry(size) for size in (1, 4096, 1 << 20)]}
    (run / "ledger.json").write_text(json.dumps(account), encoding="utf-8")
    return run


def test_bars_add_up_to_the_whole() -> None:
    bars = figures_ledger.steps(entry(1))
    assert [bar[0] for bar in bars] == ["socket", "2 × copy", "residual", "measured"]
    begins = [begin for _, begin, _, _ in bars]
    assert begins == [0, 2_000, 2_500, 0]
    assert begins[2] + bars[2][2]["value"] == bars[3][2]["value"]


def test_what_is_taken_off_goes_back() -> None:
    taken = {"component": "pipe", "times": -1.0, "ns": interval(-300.0)}
    whole = entry(1)
    bars = figures_ledger.steps(whole | {"parts": [*whole["parts"], taken]})
    assert [bar[0] for bar in bars][2:4] == ["-1 × pipe", "residual"]
    assert [begin for _, begin, _, _ in bars][2:4] == [2_500, 2_200]


def test_what_is_counted_apart_is_named() -> None:
    more = {"component": "quic", "beyond": "udp", "times": 1.0, "ns": interval(300.0)}
    whole = entry(1)
    bars = figures_ledger.steps(whole | {"parts": [*whole["parts"], more]})
    assert [bar[0] for bar in bars][2:4] == ["quic\nbeyond udp", "residual"]
    assert [begin for _, begin, _, _ in bars][2:4] == [2_500, 2_800]


def test_a_run_that_calls_components_rungs_is_drawn_alike() -> None:
    now = entry(1)
    older = now | {"parts": [{"rung": part.pop("component")} | part for part in entry(1)["parts"]]}
    assert figures_ledger.steps(older) == figures_ledger.steps(now)


def test_what_was_printed_is_drawn_unless_sizes_are_asked_for(ledger: Path) -> None:
    run = runfile.read_run(ledger)
    assert [shown["size_bytes"] for shown in figures_ledger.entries(run)] == [4096, 1 << 20]
    drawn = kinds.draw_all(run, dict.fromkeys(run.lanes, "#000000")).figures
    assert list(drawn) == ["waterfall"]
    titles = [axes.get_title(loc="left") for axes in drawn["waterfall"].axes if axes.get_visible()]
    assert [title.splitlines()[0] for title in titles] == ["http get, 4.00 KiB", "http get, 1.00 MiB"]


def test_the_page_and_its_sizes(ledger: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "x.html"
    assert cli.main([str(ledger), "--out", str(page), "--size", "1B"]) == 0
    text = page.read_text(encoding="utf-8")
    assert "http get, 1.00 B" in text
    assert "http get, 4.00 KiB" not in text
    assert cli.main([str(ledger), "--out", str(page), "--size", "8KiB"]) == 1
    assert "no path at a size" in capsys.readouterr().err
    assert cli.main([str(ledger), "--out", str(page), "--size", "much"]) == 1
    assert "is not a size" in capsys.readouterr().err


def test_a_ledger_without_its_account_is_refused(ledger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (ledger / "ledger.json").unlink()
    assert cli.main([str(ledger)]) == 1
    assert "ledger.json cannot be read" in capsys.readouterr().err


def chosen(machine: Path, **given: str) -> Namespace:
    names = ["clock", "memory_bandwidth", "network_bandwidth", "rtt", "mss"]
    return Namespace(**(dict.fromkeys(names) | {"machine": machine} | given))


def test_a_probe_stands_in_for_what_is_not_given(tmp_path: Path) -> None:
    probe = tmp_path / "probe.json"
    found = [("R", 2499.9, "MHz"), ("mem_tp", 17444.0, "MB/s"), ("rtt", 60.0, "us"), ("mss", None, "B")]
    quantities = [{"name": name, "value": value, "unit": unit, "how": "x"} for name, value, unit in found]
    probe.write_text(json.dumps({"schema": "fordway.probe", "quantities": quantities}), encoding="utf-8")
    taken = chosen(probe, rtt="20us")
    options.take_probe(taken)
    assert options.quantity(taken.clock, "frequency") == 2499.9
    assert options.quantity(taken.memory_bandwidth, "bandwidth") == 17444.0
    assert options.quantity(taken.rtt, "time") == 20
    assert (taken.mss, taken.network_bandwidth) == (None, None)


def test_what_is_no_probe_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "run.json"
    other.write_text("{}", encoding="utf-8")
    with pytest.raises(MeasurementError, match="machines probe --json"):
        options.take_probe(chosen(other))
    with pytest.raises(MeasurementError, match="cannot be read"):
        options.take_probe(chosen(tmp_path / "missing.json"))


def test_all_sizes_of_a_ledger_are_one_model(ledger: Path) -> None:
    run = runfile.read_run(ledger)
    choice = readers.Choice("p50", "posix", None, None, [])
    points = readers.read([ledger], choice)
    counted = points.rows["requests"].sum()
    of_lane = len(run.operations[run.operations["lane"] == "posix"])
    assert of_lane - 100 < counted <= of_lane
    assert counted > len(run.durations_ns("get", "posix"))
