"""Tests by simulation that standard errors of fits are as large as the errors of the coefficients."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fordway.model import diagnostics, fitting
from fordway.model.models import MODELS
from fordway.model.terms import Terms

TRUTH = np.array([100.0, 1e-3])
SIZES = 2.0 ** np.arange(6, 25)
TABLES = 60


def lognormal(random: np.random.Generator, rows: int) -> np.ndarray:
    """Returns factors with the mean 1 and a scatter of 25 %."""
    return np.exp(0.25 * random.standard_normal(rows) - 0.25**2 / 2)


def long_tails(random: np.random.Generator, rows: int) -> np.ndarray:
    """Returns factors that scatter symmetrically around 1, some of them widely."""
    return np.maximum(1 + 0.02 * random.standard_t(3, rows), 0.1)


def fits(draw: Callable, method: str, repetitions: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the errors of the coefficients and their standard errors, for each of `TABLES` tables."""
    sizes = np.repeat(SIZES, repetitions)
    off, errors = [], []
    for seed in range(TABLES):
        times = (TRUTH[0] + TRUTH[1] * sizes) * draw(np.random.default_rng(seed), len(sizes))
        terms = Terms(pd.DataFrame({"size": sizes, "one": 1.0, "time_us": times}), {})
        found = fitting.fit(MODELS["linear"], terms, method)
        off.append(found.values - TRUTH)
        errors.append(diagnostics.standard_errors(found, found.design * found.weights[:, None]))
    return np.array(off), np.array(errors)


@pytest.mark.parametrize(
    ("draw", "method", "repetitions"),
    [
        (lognormal, "relative", 20),
        (lognormal, "relative", 2),
        (long_tails, "robust", 20),
        (long_tails, "relative", 20),
    ],
)
def test_intervals_contain_the_true_coefficients(draw: Callable, method: str, repetitions: int) -> None:
    off, errors = fits(draw, method, repetitions)
    reach = stats.t.ppf(0.975, len(SIZES) * repetitions - len(TRUTH))
    assert (np.abs(off) <= reach * errors).mean() >= 0.9


def test_scatter_does_not_bias_the_coefficients() -> None:
    off, _ = fits(lognormal, "relative", 20)
    assert abs(off[:, 0].mean()) < 1
    assert abs(off[:, 1].mean()) < 1e-5
