"""The cost of an operation on a lane, fitted to the machine's operations.

The cost is the sum of a constant, the cost of the bytes and the cost of directories, which are all
non-negative. The cost of the bytes is a piecewise linear, non-decreasing function. The number of its segments
is selected by cross-validation, which leaves out the operations of one power of two at a time.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from fordway.model.advice.machine import LIST

OPERATIONS_MIN = 20
"""Minimum number of operations in a segment, and in each power of two that cross-validation leaves out."""
STEPS = (0, 16, 4, 2)
"""Ratios between the starts of successive segments. 0 means a single segment."""
CLEARLY_BETTER = 0.9
"""Maximum ratio of the errors for which a form with more segments is chosen over a form with fewer segments.
"""
RIDGE = 1e-9
"""Ridge parameter, relative to a column's squared length. The ridge divides a cost among columns that the
operations cannot distinguish, and avoids a division by 0.
"""

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
    """The terms of an operation's cost: a constant, the bytes within each segment, and other columns."""

    nodes: tuple[float, ...] | None
    """Starts of the segments. The first start is 0. `None` means that bytes cost nothing."""
    others: tuple[str, ...]
    base: bool = True

    def columns(self, rows: pd.DataFrame) -> np.ndarray:
        """Returns the design matrix, with one column for each term."""
        parts = [np.ones(len(rows))] if self.base else []
        size = rows["bytes"].to_numpy()
        if self.nodes is not None:
            ends = [*self.nodes[1:], np.inf]
            parts += [np.clip(size - low, 0, high - low) for low, high in zip(self.nodes, ends, strict=True)]
        parts += [rows[name].to_numpy() for name in self.others]
        return np.column_stack(parts)


@dataclass(frozen=True)
class Sums:
    """Sums over groups of operations that are sufficient to solve the least-squares problem."""

    squares: np.ndarray
    products: np.ndarray

    def without(self, group: int) -> "Sums":
        """Returns the sum over all groups except `group`."""
        return Sums(
            self.squares.sum(axis=0) - self.squares[group], self.products.sum(axis=0) - self.products[group]
        )

    def weighted(self, times: np.ndarray) -> "Sums":
        """Returns the weighted sum of the groups."""
        return Sums(np.tensordot(times, self.squares, 1), times @ self.products)

    def solve(self) -> np.ndarray:
        """Returns the non-negative coefficients."""
        scale = np.sqrt(np.maximum(np.diag(self.squares), 1e-300))
        square = self.squares / np.outer(scale, scale) + RIDGE * np.eye(len(scale))
        root = np.linalg.cholesky(square)
        return nnls(root.T, np.linalg.solve(root, self.products / scale))[0] / scale


@dataclass(frozen=True)
class Cost:
    """The cost of an operation in one phase on one lane."""

    form: Form
    values: np.ndarray
    """Coefficients of the terms, in µs."""
    blocks: Sums
    block_of: np.ndarray
    """For each entry of `blocks`, the index of this block among the blocks of the phase."""
    left_out: float
    """Root mean square of the relative errors at the sizes that were left out in cross-validation."""
    scatter: float
    """Standard deviation of the relative error of a single operation, estimated from the errors of blocks."""
    bytes_range: tuple[float, float]
    """Smallest and largest measured size."""


def classes(size: pd.Series) -> np.ndarray:
    """Returns the binary exponent of each size."""
    return np.floor(np.log2(np.maximum(size.to_numpy(dtype="float64"), 1))).astype(int)


def fit(rows: pd.DataFrame, phase: str, block_of: np.ndarray) -> Cost:
    """Fits the operations of one lane and phase. `block_of` is the index of each operation's block in the
    phase.
    """
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
    """Returns, for each value, the mean of the values in its group."""
    _, at = np.unique(group, return_inverse=True)
    return (np.bincount(at, values) / np.bincount(at))[at]


def _sums(
    columns: np.ndarray, time_us: np.ndarray, weights: np.ndarray, group: np.ndarray, groups: int
) -> Sums:
    """Returns the sums of each group. Cost: linear in the number of operations, apart from sorting."""
    width = columns.shape[1]
    squares, products = np.zeros((groups, width, width)), np.zeros((groups, width))
    weighted = columns * weights[:, None]
    order = np.argsort(group, kind="stable")
    ends = np.cumsum(np.bincount(group, minlength=groups))
    for at, own in enumerate(np.split(order, ends[:-1])):
        squares[at] = weighted[own].T @ columns[own]
        products[at] = weighted[own].T @ time_us[own]
    return Sums(squares, products)


def _choose(rows: pd.DataFrame, phase: str, of_size: np.ndarray, weights: np.ndarray) -> tuple[Form, float]:
    """Returns the form with the smallest cross-validation error, and that error."""
    best, least = None, np.inf
    for form in _forms(rows, phase):
        error = _left_out(form, rows, of_size, weights)
        if best is None or error < CLEARLY_BETTER * least:
            best, least = form, error
    return best, least


def _forms(rows: pd.DataFrame, phase: str) -> list[Form]:
    """Returns the forms that the operations allow. Forms with fewer terms come first."""
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
    """Returns the starts of segments that contain enough operations."""
    nodes, at = [0.0], 1024.0
    while step and (size >= at).sum() >= OPERATIONS_MIN:
        if ((size >= nodes[-1]) & (size < at)).sum() >= OPERATIONS_MIN:
            nodes.append(at)
        at *= step
    return tuple(nodes)


def _left_out(form: Form, rows: pd.DataFrame, of_size: np.ndarray, weights: np.ndarray) -> float:
    """Returns the root mean square of the relative errors in cross-validation, which leaves out the
    operations of one power of two at a time. Returns 0 if there is only one power of two.
    """
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
    """Returns the standard deviation of a single operation's relative error, estimated from blocks."""
    cost = np.sqrt(np.bincount(group, fitted_us**2))
    off = np.bincount(group, time_us - fitted_us)
    return float(np.sqrt(np.mean((off / np.maximum(cost, 1e-12)) ** 2)))
