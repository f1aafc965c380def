"""Fits coefficients by four methods, which differ in the error that they minimize and in their bounds."""

from dataclasses import dataclass

import numpy as np
from scipy import optimize

from fordway.model.models import Concurrent, Model, Structure
from fordway.model.points import MeasurementError
from fordway.model.terms import Terms

METHODS = {
    "ols": "least squares of errors in µs, coefficients of either sign, as in a spreadsheet",
    "bounded": "the same, with no coefficient below 0 and alpha at most 1",
    "relative": "least squares of errors in per cent of the predicted time, bounded: every size has equal "
    "weight",
    "robust": "the same, with Huber's loss: outliers have less weight",
}
RELATIVE = ("relative", "robust")
"""Methods that minimize errors relative to the times."""
GIVEN = "given"
"""Value of `Fit.method` for coefficients that were given and not fitted."""

ROUNDS_MAX = 50
"""Maximum number of iterations of a fit. A fit usually converges in a few iterations."""

REFINED_MAX = 5
"""Maximum number of candidate breaks to fit iteratively. The candidates with the smallest loss in the first
fit are chosen.
"""

WEIGHT_RATIO_MAX = 100
"""Maximum ratio between the weight of a row and the reciprocal of its measured time. Without a limit, a row
whose predicted time is close to 0 would determine the fit.
"""

REDUCED_ROWS_MIN = 200
"""Minimum number of rows of a linear system that is reduced by a QR decomposition before it is solved."""

HUBER = 1.345
"""Number of standard deviations beyond which residuals count linearly. The value gives 95 % efficiency for
normally distributed errors.
"""


@dataclass(frozen=True)
class Fit:
    """A model's coefficients, and the weighted linear system that they solve."""

    model: Model
    method: str
    values: np.ndarray
    structure: Structure
    design: np.ndarray
    weights: np.ndarray
    """Weight of each row's error in µs."""
    times_us: np.ndarray

    @property
    def predicted_us(self) -> np.ndarray:
        """Predicted times of the fitted rows, in µs."""
        return self.design @ self.values

    @property
    def residuals(self) -> np.ndarray:
        """Weighted errors."""
        return (self.times_us - self.predicted_us) * self.weights

    @property
    def loss(self) -> float:
        """A measure of the errors, which compares fits with different breaks.

        With weights that depend on the predicted times, the weighted squares would favour fits that predict
        too much. The measure is then the deviance of a gamma distribution, which has its minimum where the
        fit has its solution (McCullagh and Nelder, Generalized Linear Models, chapter 8).
        """
        if self.method not in RELATIVE:
            return float((self.residuals**2).sum())
        base = relative_weights(self.times_us, self.predicted_us)
        ratio = self.times_us * base
        return float(((self.weights / base) ** 2 * 2 * (ratio - 1 - np.log(ratio))).sum())


def given(model: Model, terms: Terms, values: np.ndarray, structure: Structure) -> Fit:
    """Returns a fit with given coefficients, which were published or fitted to other rows."""
    design = model.design(terms, structure, values)
    return Fit(model, GIVEN, values, structure, design, np.ones(len(terms)), terms.times_us)


def fit(model: Model, terms: Terms, method: str) -> Fit:
    """Returns the best coefficients. Raises `MeasurementError` if the rows are too few for the model."""
    enough(model, terms, len(model.coefficients))
    structures = model.structures(terms)
    if method in RELATIVE and len(structures) > REFINED_MAX:
        structures.sort(key=lambda each: _first(model, terms, method, each).loss)
        structures = structures[:REFINED_MAX]
    fits = [_settled(model, terms, method, structure) for structure in structures]
    return min(fits, key=lambda found: found.loss)


def enough(model: Model, terms: Terms, rows_min: int) -> None:
    """Raises `MeasurementError` if there are fewer than `rows_min` rows."""
    if len(terms) < rows_min:
        raise MeasurementError(
            f"{len(terms)} row(s) cannot determine the {len(model.coefficients)} coefficients of "
            f"{model.name} and their accuracy: {rows_min} are needed; measure more sizes, or choose a "
            "model with fewer coefficients"
        )


def _settled(model: Model, terms: Terms, method: str, structure: Structure) -> Fit:
    """Fits repeatedly until the branches of the model are consistent with the coefficients. Returns the fit
    with the smallest loss.
    """
    found = _linear(model, terms, method, structure, model.design(terms, structure))
    if not isinstance(model, Concurrent):
        return found
    best = None
    for _ in range(ROUNDS_MAX):
        design = model.design(terms, structure, found.values)
        own = Fit(model, method, found.values, structure, design, found.weights, found.times_us)
        if best is None or own.loss < best.loss:
            best = own
        if np.array_equal(design, found.design):
            break
        found = _linear(model, terms, method, structure, design)
    return best


def _linear(model: Model, terms: Terms, method: str, structure: Structure, design: np.ndarray) -> Fit:
    """Fits the linear system `design`.

    The weights of relative errors are the reciprocals of the predicted times. With the reciprocals of the
    measured times, rows whose times are too short by chance would have more weight than rows whose times are
    too long. The predicted times would then be too short.
    """
    found = _weighted(model, method, structure, design, terms.times_us, _first_weights(method, terms))
    if method not in RELATIVE:
        return found
    for _ in range(ROUNDS_MAX):
        last = found
        weights = relative_weights(last.times_us, last.predicted_us)
        if method == "robust":
            weights = _without_outliers(weights, last)
        found = _weighted(model, method, structure, design, last.times_us, weights)
        if np.allclose(found.values, last.values, rtol=1e-8, atol=0):
            break
    return found


def _first(model: Model, terms: Terms, method: str, structure: Structure) -> Fit:
    """Returns the first fit, whose weights come from the measured times and are not iterated."""
    design = model.design(terms, structure)
    return _weighted(model, method, structure, design, terms.times_us, _first_weights(method, terms))


def _first_weights(method: str, terms: Terms) -> np.ndarray:
    return 1 / terms.times_us if method in RELATIVE else np.ones(len(terms))


def relative_weights(times_us: np.ndarray, predicted_us: np.ndarray) -> np.ndarray:
    """Returns the weights that make errors in µs relative to the predicted times."""
    return 1 / np.maximum(predicted_us, times_us / WEIGHT_RATIO_MAX)


def robust_shares(found: Fit) -> np.ndarray:
    """Returns the share of each row's error that a robust fit counts: 1, or less for outliers."""
    return (found.weights / relative_weights(found.times_us, found.predicted_us)) ** 2


def _weighted(
    model: Model,
    method: str,
    structure: Structure,
    design: np.ndarray,
    times_us: np.ndarray,
    weights: np.ndarray,
) -> Fit:
    highs = [each.high for each in model.coefficients]
    values = solve(design * weights[:, None], times_us * weights, highs, method)
    return Fit(model, method, values, structure, design, weights, times_us)


def solve(design: np.ndarray, times: np.ndarray, highs: list[float], method: str) -> np.ndarray:
    """Returns the coefficients of one weighted system. Scales the columns, because they differ by orders of
    magnitude.
    """
    scales = np.linalg.norm(design, axis=0)
    scales[scales == 0] = 1
    if len(design) > REDUCED_ROWS_MIN:
        # The triangular factor of a QR decomposition has the same solutions, and only as many rows as
        # columns.
        triangle = np.linalg.qr(np.column_stack([design / scales, times]), mode="r")
        design, times = triangle[:, :-1] * scales, triangle[:, -1]
    if method == "ols":
        return np.linalg.lstsq(design / scales, times, rcond=None)[0] / scales
    bounds = (np.zeros(len(scales)), np.array(highs) * scales)
    return optimize.lsq_linear(design / scales, times, bounds, method="bvls", tol=1e-13).x / scales


def _without_outliers(weights: np.ndarray, found: Fit) -> np.ndarray:
    """Returns the weights by Huber's method (1964), in which larger residuals have smaller weights."""
    residuals = np.abs(found.times_us - found.predicted_us) * weights
    spread = max(np.median(residuals) / 0.6745, 1e-9)
    return weights * np.sqrt(np.minimum(1, HUBER * spread / np.maximum(residuals, 1e-12)))
