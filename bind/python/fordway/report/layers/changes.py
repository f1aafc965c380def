"""Detects sizes at which the time of a message jumps, without knowledge of the TCP receive window.

The logarithm of the time is fitted by a smooth function of the size. A jump adds a column that is 1 for sizes
from the jump upwards, and 0 for smaller sizes. Cumulative sums yield the reduction of the sum of squares for
all sizes at once. The size with the largest reduction is the candidate. The candidate is accepted if
residuals in random order rarely achieve the same reduction, and if the jump is at least `JUMP_MIN`. An
accepted jump becomes part of the function, and the search continues.
"""

from dataclasses import dataclass

import numpy as np

MESSAGES_MIN = 60
"""Minimum number of messages for the detection of jumps."""

CHANGES_MAX = 4
SHUFFLES = 399
"""Number of random orders. If no order reduces the sum of squares as much as the jump, the probability of a
chance result is at most 1 in 400.
"""

CHANCE_MAX = 0.005
JUMP_MIN = 0.1
"""Minimum jump that is reported: 10 %."""

SIDE_MIN = 12
"""Minimum number of messages on either side of a jump."""

SIDE_SHARE = 0.02
"""Minimum share of all messages on either side of a jump."""

SIZES_MIN = 5
"""Minimum number of different sizes on either side of a jump. With fewer sizes, the difference between two
neighbouring sizes looks like a jump.
"""

KNOTS = 4
BOOTSTRAPS = 100
WINSOR = 3.5
"""The limit to which residuals are clipped, in robust standard deviations, so that rare stalls do not
dominate the fit.
"""


@dataclass(frozen=True)
class Change:
    """A message size at which the message time jumps."""

    size_bytes: float
    """Size at which times jump."""
    low_bytes: float
    """Lower bound of the size's 95 % bootstrap interval. `high_bytes` is the upper bound."""
    high_bytes: float
    jump: float
    """Ratio of the time after the jump to the time before it."""
    chance: float
    """Maximum probability that residuals in random order reduce the sum of squares at least as much as the
    jump.
    """


def can_search(sizes: np.ndarray) -> bool:
    """Returns whether messages of `sizes` are enough to detect jumps."""
    return len(sizes) >= MESSAGES_MIN and len(_starts(np.sort(sizes))) > 0


def find(sizes: np.ndarray, times: np.ndarray, seed: int = 1) -> list[Change]:
    """Returns the jumps of `times` over `sizes`, in order of size. There are none if the messages are not
    enough to detect jumps (`can_search`).
    """
    order = np.argsort(sizes, kind="stable")
    size, time = sizes[order].astype(float), np.log(np.maximum(times[order].astype(float), 1))
    if not can_search(size):
        return []
    random = np.random.default_rng(seed)
    starts = _starts(size)
    found: list[int] = []
    chances: list[float] = []
    while len(found) < CHANGES_MAX and len(starts):
        curve = _curve(size, found)
        residual = _apart(_winsorised(_apart(time, curve)), curve)
        gains = _gains(curve, residual, starts, found)
        chance = _chance(curve, residual, starts, found, float(gains.max()), random)
        at = int(starts[np.argmax(gains)])
        if chance > CHANCE_MAX or abs(_jump(size, time, [*found, at])[-1]) < np.log1p(JUMP_MIN):
            break
        found.append(at)
        chances.append(chance)
    jumps = _jump(size, time, found)
    changes = [
        _change(size, time, (at, jump, chance), [other for other in found if other != at], random)
        for at, jump, chance in zip(found, jumps, chances, strict=True)
    ]
    return sorted(changes, key=lambda change: change.size_bytes)


def _starts(size: np.ndarray) -> np.ndarray:
    """Returns the indices at which a new size starts, if both sides have enough messages and sizes."""
    starts = np.flatnonzero(np.diff(size)) + 1
    side = max(SIDE_MIN, int(SIDE_SHARE * len(size)))
    starts = starts[SIZES_MIN - 1 : len(starts) - SIZES_MIN + 1]
    return starts[(starts >= side) & (starts <= len(size) - side)]


def _apart(values: np.ndarray, curve: np.ndarray) -> np.ndarray:
    """Returns the residuals of `values` after a fit of the curve."""
    return values - curve @ (curve.T @ values)


def _curve(size: np.ndarray, steps: list[int], kinks: list[int] | None = None) -> np.ndarray:
    """Returns an orthonormal basis of smooth functions of the size, with the known jumps.

    The slope may change at a jump, because a constant delay is a decreasing share of the times above that
    size.
    """
    log = np.log1p(size)
    log = (log - log.min()) / max(float(np.ptp(log)), 1e-9)
    columns = [np.ones_like(size), log, log**2, log**3, size / size.max()]
    knots = np.quantile(log, np.linspace(0, 1, KNOTS + 2)[1:-1])
    columns += [np.maximum(log - knot, 0) ** 3 for knot in knots]
    columns += [_step(len(size), at) for at in steps]
    for at in steps if kinks is None else kinks:
        columns += [np.maximum(log - log[at], 0), np.maximum(log - log[at], 0) ** 2]
    basis, triangle = np.linalg.qr(np.column_stack(columns))
    return basis[:, np.abs(np.diag(triangle)) > 1e-8 * np.abs(triangle).max()]


def _step(length: int, at: int) -> np.ndarray:
    return (np.arange(length) >= at).astype(float)


def _winsorised(residual: np.ndarray) -> np.ndarray:
    middle = np.median(residual)
    spread = 1.4826 * float(np.median(np.abs(residual - middle))) or float(np.std(residual)) or 1.0
    return np.clip(residual - middle, -WINSOR * spread, WINSOR * spread)


def _gains(curve: np.ndarray, residual: np.ndarray, starts: np.ndarray, known: list[int]) -> np.ndarray:
    """Returns the reduction of the sum of squares by a jump at each of `starts`."""
    tail = np.cumsum(residual[::-1])[::-1][starts]
    within = np.cumsum(curve[::-1], axis=0)[::-1][starts]
    left = (len(residual) - starts) - np.sum(within**2, axis=1)
    gains = np.where(left > 0.5, tail**2 / np.maximum(left, 0.5), 0.0)
    for at in known:
        gains[np.abs(starts - at) < SIDE_MIN] = 0
    return gains


def _chance(
    curve: np.ndarray,
    residual: np.ndarray,
    starts: np.ndarray,
    known: list[int],
    gain: float,
    random: np.random.Generator,
) -> float:
    """Returns the probability that residuals in random order reduce the sum of squares by `gain`."""
    better = 0
    for _ in range(SHUFFLES):
        shuffled = _apart(random.permutation(residual), curve)
        better += float(_gains(curve, shuffled, starts, known).max()) >= gain
    return (better + 1) / (SHUFFLES + 1)


def _jump(size: np.ndarray, time: np.ndarray, steps: list[int]) -> np.ndarray:
    """Returns the height of each jump, as a logarithm. The fitted slope may change at each jump."""
    if not steps:
        return np.empty(0)
    curve = _curve(size, [], kinks=steps)
    jumps = np.column_stack([_step(len(size), at) for at in steps])
    apart, residual = _apart(jumps, curve), _apart(time, curve)
    heights = np.linalg.lstsq(apart, residual, rcond=None)[0]
    # Fit again with clipped residuals, to remove the effect of rare stalls.
    rest = _winsorised(residual - apart @ heights)
    return heights + np.linalg.lstsq(apart, rest, rcond=None)[0]


def _change(
    size: np.ndarray,
    time: np.ndarray,
    which: tuple[int, float, float],
    others: list[int],
    random: np.random.Generator,
) -> Change:
    """Returns a jump with its size and the interval of this size, which is computed from resampled
    messages.
    """
    at, jump, chance = which
    curve = _curve(size, [*others, at])
    residual = _winsorised(_apart(time, curve)) + jump * _step(len(size), at)
    near = slice(max(0, at - 20 * SIDE_MIN), min(len(size), at + 20 * SIDE_MIN))
    places = [_place(size[near], residual[near], random) for _ in range(BOOTSTRAPS)]
    low, high = np.quantile(places, [0.025, 0.975])
    place = float(np.sqrt(size[at - 1] * size[at]))
    return Change(place, min(float(low), place), max(float(high), place), float(np.exp(jump)), chance)


def _place(size: np.ndarray, residual: np.ndarray, random: np.random.Generator) -> float:
    chosen = np.sort(random.integers(len(size), size=len(size)))
    size, residual = size[chosen], residual[chosen]
    counts = np.arange(1, len(size))
    sums = np.cumsum(residual)
    # Fit one mean on each side. The residual is smallest where the sum of squares between the groups is
    # largest.
    gains = sums[:-1] ** 2 / counts + (sums[-1] - sums[:-1]) ** 2 / (len(size) - counts)
    gains[np.diff(size) == 0] = -np.inf
    at = int(np.argmax(gains))
    return float(np.sqrt(size[at] * size[at + 1]))
