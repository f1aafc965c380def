"""The rate of a set-up relative to the reference, by size, with its interval."""

import numpy as np
import pandas as pd

from fordway.report.layers.classes import MESSAGES_MIN, Classes
from fordway.report.runfile import Run

RESAMPLES = 400
"""Number of bootstrap samples. More samples change the ends of a band by less than the width of a line."""

NEAR = 0.1
"""Maximum relative difference between a requested size and the size of a message that counts as near."""


def against_reference(run: Run, phase: str, lane: str, seed: int = 1) -> pd.DataFrame:
    """Returns the rate of `lane` relative to the reference (1 means equally fast), by size class.

    The result has a row for each class with enough messages on both lanes. The columns are `size_bytes`, the
    ratio of the medians (`ratio`), and its 95 % bootstrap interval (`low`, `high`).
    """
    rows = run.operations[run.operations["phase"] == phase]
    if rows.empty:
        return pd.DataFrame(columns=["size_bytes", "ratio", "low", "high"])
    classes = Classes.of(rows["bytes"].to_numpy())
    mine, theirs = (_by_class(rows[rows["lane"] == name], classes) for name in (lane, run.reference))
    random = np.random.default_rng(seed)
    found = []
    for number in sorted(mine.keys() & theirs.keys()):
        sizes, times = mine[number]
        reference = theirs[number][1]
        if min(len(times), len(reference)) < MESSAGES_MIN:
            continue
        low, high = interval(reference, times, random)
        ratio = float(np.median(reference) / np.median(times))
        found.append({"size_bytes": float(np.median(sizes)), "ratio": ratio, "low": low, "high": high})
    return pd.DataFrame(found, columns=["size_bytes", "ratio", "low", "high"])


def near(run: Run, phase: str, lane: str, size_bytes: float) -> float | None:
    """Returns the relative rate of messages near one size, or `None` if no message is near this size."""
    rows = run.operations
    wanted = (rows["phase"] == phase) & rows["bytes"].between(
        size_bytes * (1 - NEAR), size_bytes * (1 + NEAR)
    )
    medians = rows[wanted].groupby("lane", observed=True)["duration_ns"].median()
    if lane not in medians.index or run.reference not in medians.index:
        return None
    return float(medians[run.reference] / medians[lane])


def interval(reference: np.ndarray, times: np.ndarray, random: np.random.Generator) -> tuple[float, float]:
    """Returns the 95 % interval of the ratio of two medians, computed by resampling both samples (Efron
    and Tibshirani 1993).
    """
    ratios = _medians(reference, random) / _medians(times, random)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(low), float(high)


def _medians(values: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return np.median(values[random.integers(len(values), size=(RESAMPLES, len(values)))], axis=1)


def _by_class(rows: pd.DataFrame, classes: Classes) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Returns the sizes and times of each class."""
    numbers = classes.number(rows["bytes"].to_numpy())
    sizes, times = rows["bytes"].to_numpy(dtype=float), rows["duration_ns"].to_numpy(dtype=float)
    return {
        int(number): (sizes[numbers == number], times[numbers == number]) for number in np.unique(numbers)
    }
