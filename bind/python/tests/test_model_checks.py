"""Tests that impossible values are refused with a message and exit status 2, and never fitted."""

from collections.abc import Callable
from pathlib import Path

import model_data as data
import numpy as np
import pandas as pd
import pytest
from model_data import model, refused, write

from fordway.model import checks, points


def damaged(**cells: float) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Changes cells of the fifth row."""

    def change(rows: pd.DataFrame) -> pd.DataFrame:
        rows = rows.astype(dict.fromkeys(cells, float))
        for column, value in cells.items():
            rows.loc[4, column] = value
        return rows

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (damaged(lat_avg_us=np.nan), "the time is missing"),
        (damaged(obj_size_B=np.nan), "the size is missing"),
        (damaged(lat_avg_us=np.inf), "the time is missing or not a number"),
        (damaged(lat_avg_us=0), "longer than nothing"),
        (damaged(lat_avg_us=-3), "longer than nothing"),
        (damaged(obj_size_B=-1), "below zero"),
        (damaged(nreq=0), "no request was answered"),
        (damaged(err_timeout=7), "7 requests timed out"),
        (damaged(client_CUC_cycles=0), "was not counted"),
        (damaged(server_LLOD_lines=-5), "was not counted"),
        (damaged(client_CUC_cycles=1e14), "which no processor has"),
        (damaged(client_clock_GHz=2_500), "which no processor has"),
        (damaged(client_CUC_cycles=1e14, client_REF_cycles=1.2e14), "cannot have worked"),
        (damaged(bytes_read=1e12), "were read for each request"),
        (damaged(rps=2_000_000), "saturated"),
    ],
)
def test_a_row_that_cannot_be_true(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Callable, said: str
) -> None:
    table = write(tmp_path / "a.csv", change(data.by_size()))
    sentence = refused(capsys, "fit", table, "--model", "frequency")
    assert said in sentence
    assert "row 5" in sentence
    assert "--skip-bad" in sentence
    found = model(capsys, "fit", table, "--model", "frequency", "--skip-bad")
    assert found["rows"] == len(data.SIZES) - 1
    assert any("1 row(s) left out" in each for each in found["warnings"])


def test_more_than_the_link_carries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = write(tmp_path / "a.csv", data.by_size())
    assert "more than the link's 125 MB/s" in refused(capsys, "fit", table, "--network-bandwidth", "1Gbit/s")


@pytest.mark.parametrize("side", ["client", "server"])
def test_counters_that_did_not_cover_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], side: str
) -> None:
    rows = data.by_size()
    rows[f"{side}_likwid_runtime_s"] = 0.05 * rows["dur_us_txt"] / 1e6
    table = write(tmp_path / "a.csv", rows)
    said = refused(capsys, "check", table)
    assert f"the {side}'s counters cover" in said
    assert f"the {side}'s counters cover" in refused(
        capsys, "check", table, "--model", "eq11", *data.CONSTANTS
    )
    found = model(capsys, "fit", table)
    assert found["model"].startswith("frequency" if side == "server" else ("linear", "break"))
    assert any(f"the {side}'s counters cover" in each for each in found["warnings"])


@pytest.mark.parametrize("lacking", ["client_CUC_cycles", "client_REF_cycles", "client_clock_GHz"])
def test_counters_that_are_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str], lacking: str) -> None:
    table = write(tmp_path / "a.csv", data.by_size().drop(columns=lacking))
    assert "frequency is unknown" in refused(capsys, "fit", table, "--model", "frequency")
    holes = data.by_size()
    holes.loc[: len(holes) // 2, lacking] = np.nan
    assert "frequency is unknown" in refused(
        capsys, "fit", write(tmp_path / "b.csv", holes), "--model", "frequency"
    )


@pytest.mark.parametrize(("rows", "name"), [(1, "linear"), (2, "linear"), (3, "frequency"), (6, "eq9")])
def test_fewer_points_than_it_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: int, name: str
) -> None:
    table = write(tmp_path / "a.csv", data.by_size()[:rows])
    said = refused(capsys, "fit", table, "--model", name, *data.CONSTANTS)
    assert f"{rows} row(s) cannot determine" in said


def test_one_size_does_not_make_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = pd.DataFrame({"obj_size_B": [1_000] * 8, "lat_avg_us": np.arange(100, 108)})
    assert "only 1 of the 8 rows differ" in refused(
        capsys, "fit", write(tmp_path / "a.csv", rows), "--model", "linear"
    )


def test_saturation_is_told_by_littles_law_and_by_the_rate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rate = np.array([100.0, 400.0, 1_500.0])
    mean_us = 1e6 * (1 - rate / 2_000) * (60 + 10) / 2
    rows = pd.DataFrame(
        {"obj_size_B": 1e6, "lat_avg_us": mean_us, "conns": 24, "rps": rate, "nreq": 60 * rate}
    )
    table = write(tmp_path / "a.csv", rows)
    said = refused(capsys, "check", table)
    assert said.count("saturated") == 3
    assert "3,325 under way on 24 connections" in said
    assert "33.2 s" in refused(capsys, "check", table, "--asked-rate", "2000/s")
    expected = [
        checks.saturated_mean_us(row, 2_000)
        for _, row in points.from_records(_as_points(rows)).rows.iterrows()
    ]
    assert expected == pytest.approx(list(mean_us))
    calm = rows.assign(lat_avg_us=1_000)
    assert "of the 2,000 requested requests/s" in refused(
        capsys, "check", write(tmp_path / "b.csv", calm), "--asked-rate", "2000/s"
    )
    assert model(capsys, "check", write(tmp_path / "b.csv", calm))["rows"] == 3


def _as_points(rows: pd.DataFrame) -> list[dict]:
    return [
        {"size_bytes": row["obj_size_B"], "rate_per_s": row["rps"], "requests": row["nreq"]}
        for _, row in rows.iterrows()
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--clock", "2490"], "not a frequency"),
        (["--clock", "2490GHz"], "which no processor has"),
        (["--memory-bandwidth", "17444"], "not a bandwidth"),
        (["--rtt", "0us"], "above 0"),
        (["--loss", "3"], "share of packets"),
        (["--plot", "fit.pdf"], "FILE.svg or FILE.html"),
    ],
)
def test_options_that_cannot_be_true(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert said in refused(capsys, "fit", write(tmp_path / "a.csv", data.by_size()), *words)


def test_a_file_that_is_no_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "fit.json"
    path.write_text("{}")
    assert "is not a fit" in refused(capsys, "predict", str(path), "--size", "1KiB")
    assert "cannot be read" in refused(capsys, "predict", str(tmp_path / "none"), "--size", "1KiB")


def test_rows_marked_as_not_valid_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = data.by_size().assign(counters_valid=True)
    rows.loc[27, ["counters_valid", "lat_avg_us"]] = [False, np.nan]
    found = model(capsys, "fit", write(tmp_path / "a.csv", rows), "--model", "linear")
    assert found["rows"] == 27
    assert any("invalid: left out" in each for each in found["warnings"])


def test_times_in_a_unit_too_small_are_doubted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = data.by_size()[:16].rename(columns={"lat_avg_us": "lat_avg_ns"})
    found = model(capsys, "fit", write(tmp_path / "a.csv", rows), "--model", "linear")
    assert any("not in their stated unit" in each for each in found["warnings"])
    right = model(capsys, "fit", write(tmp_path / "b.csv", data.by_size()), "--model", "linear")
    assert not any("not in their stated unit" in each for each in right["warnings"])


def test_the_same_file_counts_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = write(tmp_path / "a.csv", data.by_size())
    copied = write(tmp_path / "b.csv", data.by_size())
    for other in (table, copied):
        assert "the same measurements" in refused(capsys, "fit", table, other, "--model", "linear")
    other = write(tmp_path / "c.csv", data.by_size(seed=2))
    assert model(capsys, "fit", table, other, "--model", "linear")["rows"] == 2 * len(data.SIZES)


def test_copied_rows_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = data.by_size()
    table = write(tmp_path / "a.csv", pd.concat([rows] * 3))
    found = model(capsys, "fit", table, "--model", "linear")
    assert any("exactly the values of another row" in each for each in found["warnings"])
    once = model(capsys, "fit", write(tmp_path / "b.csv", rows), "--model", "linear")
    assert not any("exactly the values" in each for each in once["warnings"])
