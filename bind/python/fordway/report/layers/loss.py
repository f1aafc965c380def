"""The rate of a set-up relative to the reference, by size, with its interval.

Messages of one round share the state of the machine and the network, so rounds are resampled, not messages.
Both set-ups use the same rounds, because they took turns in each round. The rows of published tables have no
rounds, and are resampled one by one.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from fordway.report.layers.classes import MESSAGES_MIN, Classes
from fordway.report.runfile import Run

RESAMPLES = 400
"""Number of bootstrap samples. More samples change the ends of a band by less than the width of a line."""

T_97_5 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""The 97.5 % quantiles of Student's t distribution with 1 to 10 degrees of freedom."""

NORMAL_97_5 = 1.96

NEAR = 0.1
"""Maximum relative difference between a requested size and the size of a message that counts as near."""


def against_reference(run: Run, phase: str, lane: str, seed: int = 1) -> pd.DataFrame:
    """Returns the rate of `lane` relative to the reference (1 means equally fast), by size class.

    The result has a row for each class with enough messages on both lanes. The columns are `size_bytes`, the
    ratio of the medians (`ratio`), and its 95 % bootstrap interval (`low`, `high`). The interval is NaN if
    only one round has messages of the class.
    """
    rows = run.operations[run.operations["phase"] == phase]
    if rows.empty:
        return pd.DataFrame(columns=["size_bytes", "ratio", "low", "high"])
    classes = Classes.of(rows["bytes"].to_numpy())
    mine, theirs = (_by_class(rows[rows["lane"] == name], classes) for name in (lane, run.reference))
    random = np.random.default_rng(seed)
    taken = _taken(rows, random)
    found = []
    for number in sorted(mine.keys() & theirs.keys()):
        own, reference = mine[number], theirs[number]
        if min(len(own.times), len(reference.times)) < MESSAGES_MIN:
            continue
        if taken is None:
            low, high = interval(reference.times, own.times, random)
        else:
            low, high = _interval_of_rounds(reference, own, taken)
        ratio = float(np.median(reference.times) / np.median(own.times))
        found.append({"size_bytes": float(np.median(own.sizes)), "ratio": ratio, "low": low, "high": high})
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
    and Tibshirani 1993). The values of a sample must be independent.
    """
    ratios = _medians(reference, random) / _medians(times, random)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(low), float(high)


def _medians(values: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return np.median(values[random.integers(len(values), size=(RESAMPLES, len(values)))], axis=1)


@dataclass(frozen=True)
class _Messages:
    """The messages of one size class on one lane."""

    sizes: np.ndarray
    times: np.ndarray
    rounds: np.ndarray
    """Round of each message. All 0 if there are no rounds."""


def _taken(rows: pd.DataFrame, random: np.random.Generator) -> np.ndarray | None:
    """Returns, for each sample, how often it contains each round; `None` if the rows have no rounds."""
    if "round" not in rows:
        return None
    count = int(rows["round"].max()) + 1
    return random.multinomial(count, np.full(count, 1 / count), RESAMPLES)


def _interval_of_rounds(reference: _Messages, own: _Messages, taken: np.ndarray) -> tuple[float, float]:
    """Returns the 95 % interval of the ratio of two medians over the samples of rounds.

    A few rounds underestimate the variation between rounds, so the interval of the ratio's logarithm is
    widened as Student's t distribution is wider than the normal distribution.
    """
    count = min(len(np.unique(reference.rounds)), len(np.unique(own.rounds)))
    if count < 2:
        return np.nan, np.nan
    of_samples = np.log(_medians_of(reference, taken)) - np.log(_medians_of(own, taken))
    middle = np.log(np.median(reference.times) / np.median(own.times))
    widen = np.sqrt(count / (count - 1)) * _student(count - 1) / NORMAL_97_5
    low, high = middle + widen * (np.nanquantile(of_samples, [0.025, 0.975]) - middle)
    return float(np.exp(low)), float(np.exp(high))


def _student(freedom: int) -> float:
    """Returns the 97.5 % quantile of Student's t distribution, with an error below 0.003."""
    if freedom <= len(T_97_5):
        return T_97_5[freedom - 1]
    return NORMAL_97_5 + 2.37 / freedom + 2.8 / freedom**2


def _medians_of(messages: _Messages, taken: np.ndarray) -> np.ndarray:
    """Returns the median time of each sample. The median is NaN if no sampled round has messages."""
    order = np.argsort(messages.times)
    times = messages.times[order]
    sums = np.cumsum(taken[:, messages.rounds[order]], axis=1)
    half = sums[:, -1:] / 2
    last = len(times) - 1
    lower = np.minimum((sums < half).sum(axis=1), last)
    upper = np.minimum((sums <= half).sum(axis=1), last)
    return np.where(half[:, 0] > 0, (times[lower] + times[upper]) / 2, np.nan)


def _by_class(rows: pd.DataFrame, classes: Classes) -> dict[int, _Messages]:
    """Returns the messages of each class."""
    numbers = classes.number(rows["bytes"].to_numpy())
    sizes, times = rows["bytes"].to_numpy(dtype=float), rows["duration_ns"].to_numpy(dtype=float)
    rounds = rows["round"].to_numpy(dtype=int) if "round" in rows else np.zeros(len(rows), dtype=int)
    return {
        int(number): _Messages(*(values[numbers == number] for values in (sizes, times, rounds)))
        for number in np.unique(numbers)
    }
