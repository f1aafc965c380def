"""What an operation costs on a lane, fitted to the machine's operations: a base, what its bytes cost, and
what directories cost, none of them below 0.

The cost of bytes is a chain of straight pieces that never falls. How many pieces there are is decided by
leaving out the operations of each power of two in turn.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from fordway.model.advice.machine import LIST

OPERATIONS_MIN = 20
"""A piece, or a power of two that is left out, has at least so many operations."""
STEPS = (0, 16, 4, 2)
"""Pieces are so many times as long as the one before; with 0 there is one."""
CLEARLY_BETTER = 0.9
"""More pieces must bring the error of what was left out below this share."""
RIDGE = 1e-9
"""Of a squared column's length: what no operation tells apart is then shared, and not a division by 0."""

DIRECTORY_COSTS = {
    "put": ["directories", "made_directories"],
    "head": ["directories"],
    "get": ["directories"],
    "range": ["directories"],
    "delete": ["directories", "emptied_directories"],
    LIST: ["objects", "directories"],
}


@dataclass(frozen=True)
class Form:
    """Of what the cost of an operation is the sum: 1, bytes between nodes, and columns of its own."""

    nodes: tuple[float, ...] | None
    """Where pieces begin, the first at 0; `None` where bytes cost nothing."""
    others: tuple[str, ...]
    base: bool = True

    def columns(self, rows: pd.DataFrame) -> np.ndarray:
        """A column for each term."""
        parts = [np.ones(len(rows))] if self.base else []
        size = rows["bytes"].to_numpy()
        if self.nodes is not None:
            ends = [*self.nodes[1:], np.inf]
            parts += [np.clip(size - low, 0, high - low) for low, high in zip(self.nodes, ends, strict=True)]
        parts += [rows[name].to_numpy() for name in self.others]
        return np.column_stack(parts)


@dataclass(frozen=True)
class Sums:
    """Sums over groups of operations, all that least squares needs of them."""

    squares: np.ndarray
    products: np.ndarray

    def without(self, group: int) -> "Sums":
        """All groups but one, as one."""
        return Sums(
            self.squares.sum(axis=0) - self.squares[group], self.products.sum(axis=0) - self.products[group]
        )

    def weighted(self, times: np.ndarray) -> "Sums":
        """Each group so many times, as one."""
        return Sums(np.tensordot(times, self.squares, 1), times @ self.products)

    def solve(self) -> np.ndarray:
        """The coefficients, none below 0."""
        scale = np.sqrt(np.maximum(np.diag(self.squares), 1e-300))
        square = self.squares / np.outer(scale, scale) + RIDGE * np.eye(len(scale))
        root = np.linalg.cholesky(square)
        return nnls(root.T, np.linalg.solve(root, self.products / scale))[0] / scale


@dataclass(frozen=True)
class Cost:
    """The cost of an operation of one phase on one lane."""

    form: Form
    values: np.ndarray
    """In µs of each term."""
    blocks: Sums
    block_of: np.ndarray
    """The place of each of `blocks` among the blocks of the phase."""
    left_out: float
    """The root mean square of the errors of sizes that were left out, as a share."""
    scatter: float
    """How far a single operation is off, as a share of its cost: such that sums over blocks are as far off as
    they were.
    """
    bytes_range: tuple[float, float]
    """The smallest and the largest size that was measured."""


def classes(size: pd.Series) -> np.ndarray:
    """The power of two that each size is in."""
    return np.floor(np.log2(np.maximum(size.to_numpy(dtype="float64"), 1))).astype(int)


def fit(rows: pd.DataFrame, phase: str, block_of: np.ndarray) -> Cost:
    """Fits the operations of one lane and phase; `block_of` counts each one's block in the phase."""
    of_size = classes(rows["bytes"])
    time_us = rows["time_us"].to_numpy()
    weights = 1 / _means(of_size, time_us) ** 2
    form, left_out = _choose(rows, phase, of_size, weights)
    columns = form.columns(rows)
    names, group = np.unique(block_of, return_inverse=True)
    blocks = _sums(columns, time_us, weights, group, len(names))
    values = blocks.weighted(np.ones(len(names))).solve()
    scatter = _scatter(time_us, columns @ values, group)
    sizes = (float(rows["bytes"].min()), float(rows["bytes"].max()))
    return Cost(form, values, blocks, names, left_out, scatter, sizes)


def _means(group: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The mean of each value's group."""
    _, at = np.unique(group, return_inverse=True)
    return (np.bincount(at, values) / np.bincount(at))[at]


def _sums(
    columns: np.ndarray, time_us: np.ndarray, weights: np.ndarray, group: np.ndarray, groups: int
) -> Sums:
    width = columns.shape[1]
    squares, products = np.zeros((groups, width, width)), np.zeros((groups, width))
    weighted = columns * weights[:, None]
    for at in range(groups):
        own = group == at
        squares[at] = weighted[own].T @ columns[own]
        products[at] = weighted[own].T @ time_us[own]
    return Sums(squares, products)


def _choose(rows: pd.DataFrame, phase: str, of_size: np.ndarray, weights: np.ndarray) -> tuple[Form, float]:
    """The form with the least error of what was left out, and that error."""
    best, least = None, np.inf
    for form in _forms(rows, phase):
        error = _left_out(form, rows, of_size, weights)
        if best is None or error < CLEARLY_BETTER * least:
            best, least = form, error
    return best, least


def _forms(rows: pd.DataFrame, phase: str) -> list[Form]:
    """The forms that the operations allow, those of fewer terms first."""
    others = tuple(
        name for name in DIRECTORY_COSTS[phase] if rows[name].notna().all() and (rows[name] > 0).any()
    )
    if phase == LIST:
        return [Form(None, others, base=not others)]
    forms = [Form(None, others)]
    for step in STEPS:
        nodes = _nodes(rows["bytes"].to_numpy(), step)
        if (rows["bytes"] > 0).any() and all(form.nodes != nodes for form in forms):
            forms.append(Form(nodes, others))
    return forms


def _nodes(size: np.ndarray, step: int) -> tuple[float, ...]:
    """Where pieces begin, such that each holds enough operations."""
    nodes, at = [0.0], 1024.0
    while step and (size >= at).sum() >= OPERATIONS_MIN:
        if ((size >= nodes[-1]) & (size < at)).sum() >= OPERATIONS_MIN:
            nodes.append(at)
        at *= step
    return tuple(nodes)


def _left_out(form: Form, rows: pd.DataFrame, of_size: np.ndarray, weights: np.ndarray) -> float:
    """The root mean square error of each power of two that is left out, as a share; 0 if there is one."""
    names, group = np.unique(of_size, return_inverse=True)
    columns, time_us = form.columns(rows), rows["time_us"].to_numpy()
    sums = _sums(columns, time_us, weights, group, len(names))
    errors = []
    for at in np.flatnonzero(np.bincount(group) >= OPERATIONS_MIN):
        own = group == at
        if not own.all():
            errors.append((columns[own] @ sums.without(at).solve()).mean() / time_us[own].mean() - 1)
    return float(np.sqrt(np.mean(np.square(errors)))) if errors else 0.0


def _scatter(time_us: np.ndarray, fitted_us: np.ndarray, group: np.ndarray) -> float:
    """The standard deviation of one operation's error as a share of its cost, as blocks have it."""
    cost = np.sqrt(np.bincount(group, fitted_us**2))
    off = np.bincount(group, time_us - fitted_us)
    return float(np.sqrt(np.mean((off / np.maximum(cost, 1e-12)) ** 2)))
