"""Tests the models on the measurements that were published with the paper. FORDWAY_REST_OVERHEAD names the
directory of these measurements.
"""

import os
from pathlib import Path

import numpy as np
import pytest
from model_data import model, refused, value

from fordway.model import checks, readers

DIRECTORY = os.environ.get("FORDWAY_REST_OVERHEAD")
pytestmark = pytest.mark.skipif(
    DIRECTORY is None,
    reason="FORDWAY_REST_OVERHEAD does not name the directory of the published measurements",
)
LINK = ["--network-bandwidth", "5900MB/s", "--rtt", "60us"]


def published(name: str) -> str:
    """Returns the path of a published file."""
    return str(Path(DIRECTORY or "") / name)


def test_eq_11_on_rest(capsys: pytest.CaptureFixture[str]) -> None:
    table = published("rest_tcpoib_mistral.csv")
    found = model(capsys, "check", table, "--model", "eq11", "--memory-bandwidth", "17444MB/s", *LINK)
    assert found["errors"]["median_pct"] == pytest.approx(3.9, abs=0.1)
    assert found["errors"]["max_pct"] == pytest.approx(46.2, abs=0.2)
    assert (found["errors"]["within_10_pct"], found["rows"]) == (19, 28)
    errors = {each["size_bytes"]: each["error_pct"] for each in found["points"]}
    assert errors[65_536] == pytest.approx(42.6, abs=0.1)
    assert found["condition_number"] == pytest.approx(326, abs=5)
    assert any("condition number is 326" in each for each in found["warnings"])


def test_the_papers_factors_do_not_come_back(capsys: pytest.CaptureFixture[str]) -> None:
    table = published("rest_tcpoib_mistral.csv")
    words = ["--model", "eq9", "--method", "ols", "--memory-bandwidth", "17444MB/s", *LINK]
    found = model(capsys, "fit", table, *words)
    assert found["reliable"] is False
    assert value(found, "alpha") < 0
    assert value(found, "beta1") > 10


def test_the_frequency_model_on_rest(capsys: pytest.CaptureFixture[str]) -> None:
    found = model(capsys, "fit", published("rest_tcpoib_mistral.csv"))
    assert found["model"] == "frequency"
    assert found["reliable"] is True
    assert value(found, "t0") == pytest.approx(82.1, abs=0.3)
    assert value(found, "k") == pytest.approx(1.273, abs=0.01)
    assert value(found, "k2") == pytest.approx(0.634, abs=0.01)
    assert found["errors"]["median_pct"] == pytest.approx(2.17, abs=0.05)
    assert found["errors"]["max_pct"] == pytest.approx(10.9, abs=0.1)
    assert found["leave_one_out"]["median_pct"] == pytest.approx(2.4, abs=0.06)
    assert found["leave_one_out"]["max_pct"] == pytest.approx(12.2, abs=0.1)


def test_eq_12_on_mpi(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", "eq12", "--clock", "2490MHz", "--memory-bandwidth", "11436MB/s", *LINK]
    found = model(capsys, "check", published("mpi_tcpoib_mistral.csv"), *words)
    assert found["errors"]["median_pct"] == pytest.approx(4.7, abs=0.1)
    assert found["errors"]["max_pct"] == pytest.approx(42.3, abs=0.2)


def test_factors_that_can_be_identified(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", "eq9", "--clock", "2490MHz", "--memory-bandwidth", "17444MB/s", *LINK]
    found = model(capsys, "fit", published("synthetic_identifiable.csv"), *words)
    assert [each["value"] for each in found["coefficients"]] == pytest.approx(
        [0.8, 1, 6, 1, 2, 1.5], rel=0.03
    )
    assert found["reliable"] is True


def test_h2loads_server_counters_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    table = published("h2load_h1_mistral.csv")
    assert "the server's counters cover 3.39 s of a run of 60.00 s" in refused(capsys, "check", table)
    words = ["--model", "eq11", "--memory-bandwidth", "17444MB/s", *LINK]
    assert "so they are not used" in refused(capsys, "check", table, *words)
    assert model(capsys, "fit", table)["model"] == "frequency"


def test_wrk2_at_1000_kb_is_saturated(capsys: pytest.CaptureFixture[str]) -> None:
    path = published("wrk2_1000KB.csv")
    assert "saturated" in refused(capsys, "check", path)
    rows = readers.read([Path(path)], readers.Choice()).rows
    expected = np.array([checks.saturated_mean_us(row, 2_000) for _, row in rows.iterrows()])
    assert np.abs(expected / rows["time_us"].to_numpy() - 1).max() < 0.015


def test_wrk2_at_10_kb_is_saturated_from_400_connections(capsys: pytest.CaptureFixture[str]) -> None:
    found = model(capsys, "check", published("wrk2_10KB.csv"), "--skip-bad")
    assert [each["connections"] for each in found["points"]] == [24, 50, 100]


def test_raw_outputs(capsys: pytest.CaptureFixture[str]) -> None:
    [wrk] = model(capsys, "check", published("raw_wrk_1024.txt"))["points"]
    assert (wrk["size_bytes"], wrk["time_us"]) == (1_024, 82.65)
    assert wrk["client_cycles"] == pytest.approx(4_218_339_982 / 423_718)
    assert wrk["frequency_mhz"] == pytest.approx(1_204.6, abs=0.1)
    [wrk2] = model(capsys, "check", published("raw_wrk2_50c_10KB.txt"))["points"]
    assert (wrk2["size_bytes"], wrk2["time_us"], wrk2["connections"]) == (10_240, 3_900, 50)


def test_head_bytes_of_small_answers(capsys: pytest.CaptureFixture[str]) -> None:
    found = model(capsys, "check", published("rest_tcpoib_mistral.csv"))
    heads = [each["head_bytes"] for each in found["points"] if each["size_bytes"] <= 2_048]
    assert min(heads) == pytest.approx(232.9, abs=0.2)
    assert max(heads) == pytest.approx(236.1, abs=0.2)
