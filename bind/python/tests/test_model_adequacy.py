"""Tests that a fit reports a model that does not describe the rows, and a table that is inconsistent."""

import warnings
from collections.abc import Callable
from pathlib import Path

import model_data as data
import numpy as np
import pandas as pd
import pytest
from model_data import model, refused, write

from fordway.model import adequacy

SIZES = 2 ** np.arange(0, 24, 2)


def table(times_us: np.ndarray, sizes: np.ndarray = SIZES) -> pd.DataFrame:
    return pd.DataFrame({"obj_size_B": sizes, "lat_avg_us": times_us})


def line(sizes: np.ndarray, seed: int = 1) -> np.ndarray:
    noise = 1 + 0.01 * np.random.default_rng(seed).standard_normal(len(sizes))
    return (100 + sizes / 1_000) * noise


def test_two_protocols_in_one_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = np.tile(SIZES, 2)
    times = np.where(np.arange(len(sizes)) < len(SIZES), line(sizes), 100_000 + line(sizes, 2))
    found = model(capsys, "fit", write(tmp_path / "a.csv", table(times, sizes)), "--model", "linear")
    assert found["reliable"] is False
    assert all(each["doubt"] for each in found["coefficients"])
    assert any("of two kinds, around" in each for each in found["warnings"])
    alone = model(capsys, "fit", write(tmp_path / "b.csv", table(line(SIZES))), "--model", "linear")
    assert alone["reliable"] is True
    assert alone["warnings"] == []


@pytest.mark.parametrize("times", [lambda sizes: 100_000 + line(sizes), lambda sizes: 80 + sizes / 250])
def test_two_protocols_at_sizes_that_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], times: Callable[[np.ndarray], np.ndarray]
) -> None:
    sizes = np.geomspace(1, 1e8, 24).astype(int)
    others = sizes[::2] + 1
    both = table(np.append(line(sizes), times(others)), np.append(sizes, others))
    found = model(capsys, "fit", write(tmp_path / "a.csv", both), "--model", "linear")
    assert found["reliable"] is False
    assert any("rows are off by more than" in each for each in found["warnings"])


def test_one_outlier_does_not_refute_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    times = line(SIZES)
    times[3] *= 5
    found = model(
        capsys, "fit", write(tmp_path / "a.csv", table(times)), "--model", "linear", "--method", "robust"
    )
    assert not any("does not hold" in each for each in found["warnings"])


def repeated(seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    sizes = np.repeat(SIZES, 20)
    return sizes, line(sizes, seed)


@pytest.mark.parametrize("method", ["relative", "robust"])
def test_one_outlier_among_repetitions_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], method: str
) -> None:
    sizes, times = repeated()
    times[7] *= 4
    path = write(tmp_path / "a.csv", table(times, sizes))
    found = model(capsys, "fit", path, "--model", "linear", "--method", method)
    assert found["reliable"] is True
    assert any("1 outlier(s) of 240 rows" in each and "row 8" in each for each in found["warnings"])


@pytest.mark.parametrize("method", ["relative", "robust"])
def test_one_outlier_among_few_repetitions_is_named_and_no_group(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], method: str
) -> None:
    sizes = np.append(np.repeat(4 ** np.arange(0, 9), 4), 1024)
    times = np.append(line(sizes[:-1]), 90_000)
    path = write(tmp_path / "a.csv", table(times, sizes))
    found = model(capsys, "fit", path, "--model", "linear", "--method", method)
    assert not any("two kinds" in each for each in found["warnings"])
    (said,) = (each for each in found["warnings"] if "1 outlier(s) of 37 rows" in each)
    assert "row 37" in said
    assert ("--method robust" in said) == (method == "relative")
    if method == "robust":
        assert found["reliable"] is True
        assert data.value(found, "t0") == pytest.approx(100, rel=0.02)


@pytest.mark.parametrize("factor", [1.3, 1.45, 2.0])
def test_two_protocols_that_differ_by_more_than_their_scatter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], factor: float
) -> None:
    sizes = np.repeat(SIZES, 4)
    times = line(sizes) * np.where(np.arange(len(sizes)) % 4 < 2, 1, factor)
    found = model(capsys, "fit", write(tmp_path / "a.csv", table(times, sizes)), "--model", "linear")
    assert found["reliable"] is False
    assert any(f"differ by a factor of {factor:.1f}" in each for each in found["warnings"])


@pytest.mark.parametrize("repetitions", [4, 5, 10])
@pytest.mark.parametrize("scatter", [0.02, 0.1, 0.3])
def test_noise_is_not_taken_for_two_protocols(repetitions: int, scatter: float) -> None:
    said = 0
    for seed in range(100):
        random = np.random.default_rng(seed)
        noise = np.exp(scatter * random.standard_normal((len(SIZES), repetitions)))
        said += adequacy._two_levels(list(np.sort(100 * noise, axis=1))) is not None
        # A clock with a tick of 1 µs has few values for times of a few µs.
        coarse = np.maximum(np.round(3 * noise), 1)
        said += adequacy._two_levels(list(np.sort(coarse, axis=1))) is not None
    assert said <= 2


def test_a_few_outliers_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes, times = repeated()
    times *= np.where(np.random.default_rng(2).random(len(times)) < 0.08, 2.8, 1)
    path = write(tmp_path / "a.csv", table(times, sizes))
    robust = model(capsys, "fit", path, "--model", "linear", "--method", "robust")
    assert data.value(robust, "t0") == pytest.approx(100, rel=0.02)
    assert robust["reliable"] is True
    assert any("outlier(s) of 240 rows" in each for each in robust["warnings"])


def test_equal_times_are_fitted_without_a_word_on_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "a.csv", table(np.full(len(SIZES), 100.0)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = model(capsys, "fit", path, "--model", "linear")
    assert data.value(found, "t0") == pytest.approx(100)


def test_a_model_that_is_far_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(3)
    times = np.exp(random.uniform(np.log(100), np.log(100_000), 40))
    sizes = np.arange(1, 41) * 1_000
    path = write(tmp_path / "a.csv", table(times, sizes))
    found = model(capsys, "fit", path, "--model", "linear", "--method", "ols")
    assert found["reliable"] is False
    assert any("half of the rows are off by more than" in each for each in found["warnings"])


def test_repetitions_that_agree_with_each_other_and_not_with_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = np.repeat(SIZES, 4)
    bumpy = line(sizes) * np.where(np.log2(sizes) % 4 == 0, 1.0, 1.4)
    path = write(tmp_path / "a.csv", table(bumpy, sizes))
    found = model(capsys, "fit", path, "--model", "linear")
    assert found["reliable"] is False
    assert any("lack of fit" in each for each in found["warnings"])


def test_times_that_fall_with_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    times = line(SIZES)[::-1]
    path = write(tmp_path / "a.csv", table(times))
    found = model(capsys, "fit", path, "--model", "linear", "--method", "ols")
    assert found["reliable"] is False
    assert any("times fall as sizes grow" in each for each in found["warnings"])


def test_seconds_in_a_column_of_microseconds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "fit", write(tmp_path / "a.csv", table(line(SIZES) / 1e6)), "--model", "linear")
    assert "check its unit" in said


def test_more_than_memory_copies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    times = line(SIZES) / 1e3
    times[-1] = 0.1
    said = refused(capsys, "fit", write(tmp_path / "a.csv", table(times)), "--model", "linear")
    assert "faster than any memory copy" in said


@pytest.mark.parametrize("round_times", [True, False])
def test_swapped_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str], round_times: bool) -> None:
    times = line(SIZES).round() if round_times else line(SIZES)
    swapped = pd.DataFrame({"obj_size_B": times, "lat_avg_us": SIZES})
    assert "swap the two columns" in refused(
        capsys, "fit", write(tmp_path / "a.csv", swapped), "--model", "linear"
    )


def test_two_columns_of_times_that_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = table(line(SIZES))
    rows["latency_mean_us"] = 1.02 * rows["lat_avg_us"]
    assert model(capsys, "fit", write(tmp_path / "a.csv", rows), "--model", "linear")["rows"] == len(SIZES)
    rows["latency_mean_us"] = 2 * rows["lat_avg_us"]
    said = refused(capsys, "fit", write(tmp_path / "b.csv", rows), "--model", "linear")
    assert "lat_avg_us and latency_mean_us differ" in said


def test_a_row_without_counters_costs_that_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = data.by_size().astype({"client_CUC_cycles": float})
    rows.loc[4, "client_CUC_cycles"] = np.nan
    found = model(capsys, "fit", write(tmp_path / "a.csv", rows), "--model", "frequency")
    assert found["rows"] == len(rows) - 1
    assert any("1 row(s) without all counters" in each and "row 5" in each for each in found["warnings"])
    rows.loc[: len(rows) // 2, "client_CUC_cycles"] = np.nan
    said = refused(capsys, "fit", write(tmp_path / "b.csv", rows), "--model", "frequency")
    assert "frequency is unknown" in said


def test_a_wrong_unit_is_not_mended_by_omitting_the_rows_that_prove_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = np.append(SIZES, 2.0**24)
    path = write(tmp_path / "a.csv", table((100 + sizes / 1_100) / 1e3, sizes))
    for words in ([], ["--skip-bad"]):
        said = refused(capsys, "fit", path, "--model", "linear", *words)
        assert "faster than any memory copy" in said
        assert "--skip-bad" not in said
    slow = table(0.2 + SIZES / 2e6)[SIZES < 2e5]
    found = model(capsys, "fit", write(tmp_path / "b.csv", slow), "--model", "linear")
    assert found["reliable"] is False
    assert any("more than 1 TB/s" in (each["doubt"] or "") for each in found["coefficients"])


def test_sizes_with_fractions_are_accepted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = np.array([0.1, 1.5, 16.3, 64, 256, 1000.7])
    rows = pd.DataFrame({"size_KiB": sizes, "lat_avg_us": (100 + sizes).round()})
    found = model(capsys, "fit", write(tmp_path / "a.csv", rows), "--model", "linear")
    assert found["reliable"] is True


@pytest.mark.parametrize("column", ["err_status", "err_non2xx", "errors", "non_2xx"])
def test_every_column_of_failures_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], column: str
) -> None:
    rows = table(line(SIZES)).assign(nreq=1000, **{column: 1000})
    assert "1,000 requests failed" in refused(capsys, "fit", write(tmp_path / "a.csv", rows))


def test_columns_that_are_ignored_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = table(line(SIZES)).assign(note="x")
    found = model(capsys, "fit", write(tmp_path / "a.csv", rows), "--model", "linear")
    assert found["warnings"] == ["a.csv has columns that are ignored: note"]


def test_decimal_commas_in_front_of_a_column_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.csv"
    path.write_text("size_B,lat_avg_us,conns\n64,100,36\n1024,101,32\n16384,116,68\n262144,362,44\n")
    assert "use decimal points" in refused(capsys, "fit", str(path), "--model", "linear")
