"""Tests that fits recover the parameters of synthetic measurements, or report that they cannot."""

import json
from pathlib import Path
from xml.etree import ElementTree

import model_data as data
import numpy as np
import pandas as pd
import pytest
from model_data import model, refused, value, write

from fordway.model import cli, diagnostics, fitting, models, options


def test_the_options_name_every_model_and_method() -> None:
    assert ["auto", *models.FITTED] == options.FITTED
    assert options.PUBLISHED == models.PUBLISHED
    assert list(fitting.METHODS) == options.METHODS


@pytest.mark.parametrize("method", ["relative", "robust"])
def test_a_relative_fit_recovers_the_frequency_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], method: str
) -> None:
    table = write(tmp_path / "a.csv", data.by_size())
    found = model(capsys, "fit", table, "--model", "frequency", "--method", method)
    assert found["reliable"] is True
    assert found["warnings"] == []
    for name, truth in (("t0", 80), ("k", 1.3), ("k2", 0.6)):
        each = next(each for each in found["coefficients"] if each["name"] == name)
        assert abs(each["value"] - truth) < 4 * each["standard_error"]
        assert each["left_out_low"] <= each["value"] <= each["left_out_high"]
        assert each["vif"] >= 1
    assert found["errors"]["max_pct"] < 5
    assert found["leave_one_out"]["rms_pct"] > found["errors"]["rms_pct"]


def test_least_squares_in_microseconds_forgets_small_objects(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write(tmp_path / "a.csv", data.by_size(noise=0.03))
    ols = model(capsys, "fit", table, "--model", "frequency", "--method", "ols")
    relative = model(capsys, "fit", table, "--model", "frequency", "--method", "relative")
    assert ols["r2"] >= relative["r2"]
    assert ols["errors"]["median_pct"] > 2 * relative["errors"]["median_pct"]


def test_bounds_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = write(tmp_path / "a.csv", data.by_size(t0_us=80, k2=-0.5, noise=0))
    free = model(capsys, "fit", table, "--model", "frequency", "--method", "ols")
    assert value(free, "k2") == pytest.approx(-0.5)
    assert any("below 0" in each for each in free["warnings"])
    bounded = model(capsys, "fit", table, "--model", "frequency", "--method", "bounded")
    assert value(bounded, "k2") == 0
    assert bounded["reliable"] is False
    assert any("at its bound" in each for each in bounded["warnings"])


def test_a_robust_fit_heeds_a_row_far_off_less(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = data.by_size()
    rows.loc[10, ["lat_avg_us", "dur_us_txt"]] *= 3
    rows.loc[10, "rps"] /= 3
    rows["client_likwid_runtime_s"] = rows["server_likwid_runtime_s"] = rows["dur_us_txt"] / 1e6
    table = write(tmp_path / "a.csv", rows)
    off = {
        method: abs(value(model(capsys, "fit", table, "--model", "frequency", "--method", method), "t0") - 80)
        for method in ("relative", "robust")
    }
    assert off["robust"] < off["relative"]


def test_the_papers_six_factors_are_recovered_where_counters_vary_by_themselves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write(tmp_path / "a.csv", data.independent())
    found = model(capsys, "fit", table, "--model", "eq9", "--clock", "2.5GHz", *data.CONSTANTS)
    assert [each["value"] for each in found["coefficients"]] == pytest.approx(data.TRUTH, rel=0.04)
    assert found["reliable"] is True
    assert found["condition_number"] < 30


@pytest.mark.parametrize("method", options.METHODS)
def test_factors_that_cannot_be_told_apart_are_not_called_reliable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], method: str
) -> None:
    table = write(tmp_path / "a.csv", data.by_size())
    found = model(capsys, "fit", table, "--model", "eq9", "--method", method, *data.CONSTANTS)
    assert found["condition_number"] > 30
    assert found["reliable"] is False
    assert any("not identifiable: the condition number" in each for each in found["warnings"])
    assert any("coefficients are not reliable" in each for each in found["warnings"])


def test_a_published_model_is_held_against_rows_and_its_factors_are_doubted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = data.by_size()
    table = write(tmp_path / "a.csv", rows)
    found = model(capsys, "check", table, "--model", "eq11", *data.CONSTANTS)
    counted = {
        side: rows[f"{side}_CUC_cycles"] / data.REQUESTS / data.CLOCK_MHZ for side in ("server", "client")
    }
    evicted = {side: rows[f"{side}_LLOD_lines"] * 64 / data.REQUESTS / data.MEMORY for side in counted}
    expected = data.RTT_US + counted["server"] + 6 * evicted["server"] + counted["client"] + evicted["client"]
    expected += 1.5 * rows["obj_size_B"] / data.NETWORK
    assert [each["predicted_us"] for each in found["points"]] == pytest.approx(list(expected))
    error = 100 * (rows["lat_avg_us"][3] - expected[3]) / rows["lat_avg_us"][3]
    assert found["points"][3]["error_pct"] == pytest.approx(error)
    assert found["reliable"] is None
    assert any("agreement here does not confirm" in each for each in found["warnings"])


def test_models_without_a_round_trip_do_not_ask_for_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write(tmp_path / "a.csv", data.by_size())
    for name in ("eq8", "eq13"):
        found = model(capsys, "check", table, "--model", name, *data.CONSTANTS[:4])
        assert "alpha" not in [each["name"] for each in found["coefficients"]]
    assert "--rtt is not given" in refused(capsys, "check", table, "--model", "eq12", *data.CONSTANTS[:4])


def test_a_break_is_found_where_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = data.SIZES
    time_us = np.where(size <= 8192, 30 + size / 1000, 90 + size / 2000)
    table = write(tmp_path / "a.csv", pd.DataFrame({"obj_size_B": size, "t_req_us": time_us}))
    found = model(capsys, "fit", table, "--model", "break")
    assert found["break_bytes"] == 8192
    assert [each["value"] for each in found["coefficients"]] == pytest.approx(
        [30, 1 / 1000, 90, 1 / 2000], rel=1e-3
    )
    assert found["model"] == model(capsys, "fit", table)["model"]


def test_the_maximum_over_concurrency_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size, connections = (each.ravel() for each in np.meshgrid([1e3, 1e5, 1e6, 1e7], [1, 2, 4, 8, 16, 64]))
    alone, turn = 100 + size / 500, 10 + size / 2000
    time_us = np.maximum(alone, connections * turn)
    rows = pd.DataFrame({"obj_size_B": size, "t_req_us": time_us, "conns": connections})
    fit = tmp_path / "fit.json"
    table = write(tmp_path / "a.csv", rows)
    found = model(capsys, "fit", table, "--model", "concurrency")
    assert [each["value"] for each in found["coefficients"]] == pytest.approx(
        [100, 1 / 500, 10, 1 / 2000], rel=1e-3
    )
    assert model(capsys, "fit", table)["model"] == "concurrency"
    assert cli.main(["fit", table, "--model", "concurrency", "--json"]) == 0
    fit.write_text(capsys.readouterr().out)
    said = model(capsys, "predict", str(fit), "--size", "50kB", "--connections", "32")
    assert said["predictions"][0]["predicted_us"] == pytest.approx(32 * (10 + 50_000 / 2000), rel=1e-3)
    assert "--connections" in refused(capsys, "predict", str(fit), "--size", "50kB")


def test_auto_takes_what_predicts_rows_that_it_did_not_see(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = model(capsys, "fit", write(tmp_path / "a.csv", data.by_size()))
    assert found["model"] == "frequency"
    tried = {each["model"]: each for each in found["candidates"]}
    assert list(tried) == models.FITTED
    assert tried["linear"]["leave_one_out"]["rms_pct"] > tried["frequency"]["leave_one_out"]["rms_pct"]
    assert "--rtt is not given" in tried["eq9"]["why_not"]
    plain = data.by_size().filter(["obj_size_B", "lat_avg_us"])
    plain["lat_avg_us"] = 100 + plain["obj_size_B"] / 700
    assert model(capsys, "fit", write(tmp_path / "b.csv", plain))["model"] == "linear"


def test_a_fit_predicts_and_is_held_against_other_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit = tmp_path / "fit.json"
    assert (
        cli.main(["fit", write(tmp_path / "a.csv", data.by_size(noise=0)), "--model", "frequency", "--json"])
        == 0
    )
    fit.write_text(capsys.readouterr().out)
    said = model(capsys, "predict", str(fit), "--size", "1KiB,64KiB,1GiB", "--frequency", "2GHz")
    expected = [80 + 1.9 * 1024 / 2000, 80 + 1.9 * 65_536 / 2000, 80 + (1.3 * 2**30 + 0.6 * 65_536) / 2000]
    assert [each["predicted_us"] for each in said["predictions"]] == pytest.approx(expected)
    assert ["outside the measured" in each for each in said["warnings"]] == [True]
    as_measured = model(capsys, "predict", str(fit), "--size", "1KiB")
    assert as_measured["predictions"][0]["frequency_mhz"] == pytest.approx(1_200)
    other = write(tmp_path / "b.csv", data.by_size(t0_us=160, noise=0))
    held = model(capsys, "check", other, "--fit", str(fit))
    assert held["points"][0]["error_pct"] == pytest.approx(50, abs=0.1)


def test_models_of_counters_do_not_predict_what_nobody_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit = tmp_path / "fit.json"
    table = write(tmp_path / "a.csv", data.independent())
    assert cli.main(["fit", table, "--model", "eq9", "--clock", "2.5GHz", *data.CONSTANTS, "--json"]) == 0
    fit.write_text(capsys.readouterr().out)
    assert "needs counters" in refused(capsys, "predict", str(fit), "--size", "1MiB")


@pytest.mark.parametrize("form", ["svg", "html"])
def test_the_picture_can_be_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str) -> None:
    out = tmp_path / f"fit.{form}"
    model(
        capsys, "fit", write(tmp_path / "a.csv", data.by_size()), "--model", "frequency", "--plot", str(out)
    )
    text = out.read_text()
    assert "measured" in text
    if form == "svg":
        assert ElementTree.fromstring(text).tag.endswith("svg")
    else:
        assert "leave-one-out" in text


def test_the_text_says_what_json_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = write(tmp_path / "a.csv", data.by_size())
    assert cli.main(["fit", table]) == 0
    said = capsys.readouterr().out
    for part in ("R² 0.99", "condition number", "leave-one-out: median", "± std. error", "VIF", "left out %"):
        assert part in said
    assert len([line for line in said.splitlines() if line.strip().startswith("134,217,728")]) == 1


def test_condition_and_inflation_of_known_columns() -> None:
    right = np.eye(3)
    assert diagnostics.condition(right) == pytest.approx(1)
    assert diagnostics.inflation(right) == pytest.approx([1, 1, 1])
    assert diagnostics.entangled(right) == []
    near = np.column_stack([np.ones(4), [1, 1, 1, 1.001], [0, 5, -5, 0]])
    assert diagnostics.condition(near) > 1_000
    assert diagnostics.entangled(near) == [0, 1]
    assert diagnostics.condition(np.ones((4, 2))) > 1e12
    assert diagnostics.condition(np.zeros((4, 2))) is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema_version": 2}, "of a newer version"),
        ({"schema_version": "1"}, "of a newer version"),
        ({"constants": ...}, "constants is missing"),
        ({"constants": {}}, "constants.small_bytes is missing"),
        ({"coefficients": []}, "linear has 2 coefficients"),
        ({"coefficients": None}, "coefficients is not a list"),
        ({"coefficients": [{"name": "t0", "value": None}]}, "coefficients[0].value is not a number"),
        ({"coefficients": [{"name": "t0", "value": float("nan")}]}, "NaN is not JSON"),
        ({"points": []}, "points is empty"),
        ({"leave_one_out": "x"}, "leave_one_out is not an object"),
        ({"model": []}, "of a newer version"),
        ({"model": "break", "coefficients": [{"value": 1}] * 4}, "break_bytes is not a number"),
    ],
)
def test_fits_that_were_changed_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, object], says: str
) -> None:
    table = data.write(tmp_path / "x.csv", data.by_size())
    found = model(capsys, "fit", table, "--model", "linear") | change
    path = tmp_path / "fit.json"
    path.write_text(json.dumps({name: each for name, each in found.items() if each is not ...}))
    assert says in refused(capsys, "predict", str(path), "--size", "4KiB")


@pytest.mark.parametrize(
    "words",
    [["--connections", "nan"], ["--connections", "0"], ["--size", "1e400B"], ["--frequency", "900GHz"]],
)
def test_predictions_of_nothing_that_is_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    table = data.write(tmp_path / "x.csv", data.by_size())
    path = tmp_path / "fit.json"
    path.write_text(json.dumps(model(capsys, "fit", table, "--model", "linear")))
    said = refused(capsys, "predict", str(path), "--size", "4KiB", *words)
    assert any(each in said for each in ("'1e400B' is too large", "should be 1 or more", "no processor has"))


def test_many_rows_are_left_out_several_at_a_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(5)
    sizes = np.exp(random.uniform(0, np.log(1e8), 1_000)).astype(int)
    times = (80 + sizes / 1_000) * (1 + 0.02 * random.standard_normal(len(sizes)))
    table = write(tmp_path / "a.csv", pd.DataFrame({"obj_size_B": sizes, "lat_avg_us": times}))
    solved = []
    solve = fitting.solve
    monkeypatch.setattr(fitting, "solve", lambda *words: solved.append(1) or solve(*words))
    found = model(capsys, "fit", table)
    assert found["model"] == "linear"
    assert found["reliable"] is True
    assert found["leave_one_out"]["rows"] == 1_000
    assert all(each["left_out_error_pct"] is not None for each in found["points"])
    # There are 100 fits of each model that leave out rows, and one fit of all rows. Each fit of a break tries
    # at most 50 sizes, and iterates only a few of them.
    assert len(solved) <= 101 * 2 * models.BREAKS_MAX


@pytest.mark.parametrize("method", list(fitting.METHODS))
def test_a_reduced_system_has_the_same_solution(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    random = np.random.default_rng(6)
    design = np.column_stack([np.ones(500), random.uniform(1, 1e6, 500), random.uniform(0, 1, 500)])
    times = design @ [50, 1e-3, -5] * (1 + 0.1 * random.standard_normal(500))
    highs = [np.inf] * 3
    reduced = fitting.solve(design, times, highs, method)
    monkeypatch.setattr(fitting, "REDUCED_ROWS_MIN", 1_000)
    assert reduced == pytest.approx(fitting.solve(design, times, highs, method), rel=1e-6, abs=1e-6)


def test_no_time_below_zero_is_predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "fit.json"
    found = model(capsys, "fit", data.write(tmp_path / "x.csv", data.by_size()), "--model", "linear")
    found["coefficients"][1]["value"] = -1.0
    path.write_text(json.dumps(found))
    predicted = model(capsys, "predict", str(path), "--size", "1B,4KiB")
    assert [each["predicted_us"] is None for each in predicted["predictions"]] == [False, True]
    assert any("no time is predicted for 4,096 B" in each for each in predicted["warnings"])


def test_connections_that_were_not_measured_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    size, connections = (each.ravel() for each in np.meshgrid([1e3, 1e5, 1e6, 1e7], [1, 2, 4, 8]))
    times = np.maximum(50 + size / 1_000, connections * (20 + size / 3_000))
    table = write(
        tmp_path / "a.csv", pd.DataFrame({"obj_size_B": size, "t_req_us": times, "conns": connections})
    )
    path = tmp_path / "fit.json"
    for name, said in (("concurrency", "outside the measured 1 to 8"), ("linear", "no term for connections")):
        path.write_text(json.dumps(model(capsys, "fit", table, "--model", name)))
        found = model(capsys, "predict", str(path), "--size", "10kB", "--connections", "1000")
        assert any(said in each for each in found["warnings"])
        inside = model(capsys, "predict", str(path), "--size", "10kB", "--connections", "4")
        assert not any("outside" in each for each in inside["warnings"])
