"""The time of a phase on each lane: the sum of the fitted costs over the objects, and many draws of this sum.

Each draw resamples the machine's rounds and their blocks, and fits the cost to the sample. Each draw then
adds the variation between passes: the state of a round, the scatter of single operations, and the error at
sizes that were not fitted. All lanes use the same sample, because blocks with the same number ran together.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import t as student

from fordway.model.advice import cost
from fordway.model.advice.cost import Cost
from fordway.model.advice.link import NetworkPath, crosses
from fordway.model.advice.machine import LIST, OF_CONTENT, Machine
from fordway.model.advice.objects import Objects

DRAWS = 500
SEED = 1
LEVEL = 0.95
"""Confidence level of all intervals."""
SMALL_BYTES = 1_024


@dataclass(frozen=True)
class Times:
    """The time of a phase, or of all phases, on one lane."""

    seconds: float
    draws: np.ndarray
    """Time of each draw, in seconds."""
    left_out: float | None = None
    """Relative error at sizes that were left out of the fit."""
    outside: float = 0.0
    """Share of the time for sizes outside the measured range."""
    rounds: float = 1.0
    """Ratio of the time of the longest round to the time of the shortest round, for the same work."""
    cost: Cost | None = None
    round_count: int = 2
    """Number of rounds on which the draws are based."""

    def interval(self) -> tuple[float, float] | None:
        """Returns the bounds of the middle `LEVEL` of the draws. Returns `None` if there is only one round,
        because one round does not show how much rounds differ.
        """
        if self.round_count < 2:
            return None
        low, high = np.quantile(self.draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return float(low), float(high)


@dataclass(frozen=True)
class _Rounds:
    """The rounds of one phase over all runs, and the sample of their blocks in each draw."""

    number: np.ndarray
    """Round of each operation."""
    block: np.ndarray
    """Block of each operation."""
    block_draws: np.ndarray
    """Number of times that each draw contains each block."""
    new: np.ndarray
    """Round whose state each draw uses."""
    widen: float
    """Factor that widens the draws, because a few rounds underestimate the variation between rounds."""


def of_phase(machine: Machine, phase: str, objects: Objects, link: NetworkPath) -> dict[str, Times]:
    """Returns the times of `phase` on each lane on which the phase was measured."""
    rows = machine.operations[machine.operations["phase"] == phase]
    rounds = _rounds(rows, phase)
    moved = _moved(objects, phase, machine.range_bytes_max)
    found = {}
    for at, lane in enumerate(machine.lanes):
        own = (rows["lane"] == lane).to_numpy()
        if own.any():
            random = np.random.default_rng([SEED, at, *phase.encode()])
            found[lane] = _of_lane(rows[own], own, rounds, phase, moved, random)
            if link.is_given and machine.link is None and crosses(lane, machine.targets):
                found[lane] = _over(link, found[lane], moved, phase, machine.threads)
    return found


def _rounds(rows: pd.DataFrame, phase: str) -> _Rounds:
    random = np.random.default_rng([SEED, *phase.encode()])
    number = rows.groupby(["run", "round"]).ngroup().to_numpy()
    block = rows.groupby(["run", "block"]).ngroup().to_numpy()
    count = number.max() + 1
    of_block = np.zeros(block.max() + 1, dtype=int)
    of_block[block] = number
    taken = random.multinomial(count, np.full(count, 1 / count), DRAWS)
    block_draws = random.poisson(taken[:, of_block]).astype(float)
    widen = np.sqrt(count / (count - 1)) * student.ppf(0.975, count - 1) / 1.96 if count > 1 else 1.0
    return _Rounds(number, block, block_draws, random.integers(count, size=DRAWS), widen)


def _moved(objects: Objects, phase: str, range_bytes_max: float) -> pd.DataFrame:
    """Returns the operations of a phase and their counts. A listing of the whole tree is one row."""
    rows = objects.rows
    if phase == LIST:
        whole = {"bytes": 0.0, "count": 1.0, "objects": objects.count, "directories": objects.directories}
        return pd.DataFrame([whole], dtype="float64")
    if phase == OF_CONTENT:
        rows = rows[rows["bytes"] > 0]
        rows = rows.assign(bytes=rows["bytes"].clip(upper=range_bytes_max))
    return rows


def _of_lane(
    rows: pd.DataFrame,
    own: np.ndarray,
    rounds: _Rounds,
    phase: str,
    moved: pd.DataFrame,
    random: np.random.Generator,
) -> Times:
    fitted = cost.fit(rows, phase, rounds.block[own])
    work = fitted.form.columns(moved) * moved["count"].to_numpy()[:, None]
    values, draws = fitted.values, _drawn(fitted, rounds)
    if phase == LIST:
        values, draws = _apart(rows, fitted, values, draws, random)
    state = _states(rows, fitted, rounds.number[own])
    total_us = float((work @ values).sum())
    drawn_us = (draws @ work.sum(axis=0)) * state[rounds.new % len(state)]
    drawn_us = drawn_us * _noise(fitted, work @ values, moved, random)
    drawn_us = _wider(drawn_us, total_us, rounds.widen)
    return Times(
        total_us / 1e6,
        drawn_us / 1e6,
        fitted.left_out if phase != LIST else None,
        _outside(fitted, moved, work @ values, phase),
        float(state.max() / state.min()),
        fitted,
        len(np.unique(rounds.number[own])),
    )


def _wider(drawn_us: np.ndarray, total_us: float, widen: float) -> np.ndarray:
    """Increases the distance of the draws from the total. Above the total, `widen` multiplies the difference
    from the total. Below the total, `widen` multiplies the logarithm of the ratio, so that no draw becomes
    negative.
    """
    if total_us <= 0:
        return np.zeros_like(drawn_us)
    share = np.maximum(drawn_us, 0) / total_us
    return total_us * np.where(share > 1, 1 + widen * (share - 1), share**widen)


def _drawn(fitted: Cost, rounds: _Rounds) -> np.ndarray:
    """Returns the coefficients of each draw."""
    found = np.empty((DRAWS, len(fitted.values)))
    for at, times in enumerate(rounds.block_draws[:, fitted.block_of]):
        found[at] = fitted.blocks.weighted(times).solve() if times.any() else fitted.values
    return found


def _apart(
    rows: pd.DataFrame, fitted: Cost, values: np.ndarray, draws: np.ndarray, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Divides the cost of listings between objects and directories if all listings are of the same tree.

    In the estimate, objects and directories each have half of the cost. In the draws, the shares are random.
    """
    counts = rows[list(fitted.form.others)]
    if len(fitted.form.others) < 2 or len(counts.drop_duplicates()) > 1:
        return values, draws
    measured = counts.iloc[0].to_numpy()
    share = random.random(DRAWS)
    shares = np.column_stack([share, 1 - share])
    return 0.5 * (values @ measured) / measured, (draws @ measured)[:, None] * shares / measured


def _states(rows: pd.DataFrame, fitted: Cost, number: np.ndarray) -> np.ndarray:
    """Returns the ratio of each round's time to its fitted time."""
    expected = np.bincount(number, fitted.form.columns(rows) @ fitted.values)
    there = expected > 0
    return np.bincount(number, rows["time_us"])[there] / expected[there]


def _noise(fitted: Cost, work_us: np.ndarray, moved: pd.DataFrame, random: np.random.Generator) -> np.ndarray:
    """Returns random factors for the scatter of operations and the error at sizes that were not fitted.

    The factors have a log-normal distribution. Their median is 1, so that an interval contains the estimate.
    """
    count = moved["count"].to_numpy()
    each_us = work_us / np.maximum(count, 1)
    scatter_us = fitted.scatter * np.sqrt((count * each_us**2).sum())
    by_class = np.bincount(cost.classes(moved["bytes"]), work_us)
    unseen_us = fitted.left_out * np.sqrt((by_class**2).sum())
    share = np.hypot(scatter_us, unseen_us) / max(work_us.sum(), 1e-12)
    # The relative standard deviation of a log-normal distribution is sqrt(exp(sigma²) - 1). With `share` as
    # sigma, a share of 30 would raise the upper bound of the interval by a factor of 1e25.
    sigma = np.sqrt(np.log1p(share**2))
    return np.exp(sigma * random.standard_normal(DRAWS))


def _outside(fitted: Cost, moved: pd.DataFrame, work_us: np.ndarray, phase: str) -> float:
    if phase == LIST or fitted.form.nodes is None:
        return 0.0
    outside = is_outside(moved["bytes"], *fitted.bytes_range)
    total_us = work_us.sum()
    return float(work_us[outside.to_numpy()].sum() / total_us) if total_us else 0.0


def is_outside(size: pd.Series, low: float, high: float) -> pd.Series:
    """Returns a mask that selects the sizes outside the measured range.

    Smaller sizes count only if the range starts above `SMALL_BYTES`, because a few bytes cost almost nothing.
    """
    return ((size < low) & (low > SMALL_BYTES)) | (size > high)


def _over(link: NetworkPath, times: Times, moved: pd.DataFrame, phase: str, threads: int) -> Times:
    """Returns the times over a network. The additional time is treated as exact."""
    if phase == LIST:
        more_us = link.listing_us(moved["objects"].iloc[0])
    else:
        nothing = moved.assign(bytes=0.0)
        form, values = times.cost.form, times.cost.values
        byte_us = (form.columns(moved) - form.columns(nothing)) @ values
        size, count = moved["bytes"].to_numpy(), moved["count"].to_numpy()
        more_us = link.round_trips_us(float(count.sum()), threads)
        more_us += float(link.transfer_us(size, byte_us, phase) @ count)
        more_us += link.slow_start_us(float(size.max(initial=0)), phase)
    return Times(
        times.seconds + more_us / 1e6,
        times.draws + more_us / 1e6,
        times.left_out,
        times.outside,
        times.rounds,
        times.cost,
        times.round_count,
    )


def total(phases: list[dict[str, Times]]) -> dict[str, Times]:
    """Returns the sum over all phases, for each lane that has all phases."""
    lanes = [lane for lane in phases[0] if all(lane in phase for phase in phases)]
    found = {}
    for lane in lanes:
        parts = [phase[lane] for phase in phases]
        seconds = sum(part.seconds for part in parts)
        outside = sum(part.outside * part.seconds for part in parts) / seconds if seconds else 0.0
        draws = np.sum([part.draws for part in parts], axis=0)
        count = min(part.round_count for part in parts)
        found[lane] = Times(seconds, draws, None, outside, round_count=count)
    return found
