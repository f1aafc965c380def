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
    "relative": "least squares of errors in per cent of the measured time, bounded: every size has equal "
    "weight",
    "robust": "the same, with Huber's loss: outliers have less weight",
}
GIVEN = "given"
"""Value of `Fit.method` for coefficients that were given and not fitted."""

ROUNDS_MAX = 50
"""Maximum number of iterations of a fit. A fit usually converges in a few iterations."""

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
    def loss(self) -> float:
        """Weighted sum of squared errors."""
        return float((((self.times_us - self.predicted_us) * self.weights) ** 2).sum())


def given(model: Model, terms: Terms, values: np.ndarray, structure: Structure) -> Fit:
    """Returns a fit with given coefficients, which were published or fitted to other rows."""
    design = model.design(terms, structure, values)
    return Fit(model, GIVEN, values, structure, design, np.ones(len(terms)), terms.times_us)


def fit(model: Model, terms: Terms, method: str) -> Fit:
    """Returns the best coefficients. Raises `MeasurementError` if the rows are too few for the model."""
    enough(model, terms, len(model.coefficients))
    fits = [_settled(model, terms, method, structure) for structure in model.structures(terms)]
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
    times = terms.times_us
    weights = 1 / times if method in ("relative", "robust") else np.ones(len(times))
    values = solve(
        design * weights[:, None], times * weights, [each.high for each in model.coefficients], method
    )
    if method == "robust":
        values, weights = _robust(design, times, weights, values, model)
    return Fit(model, method, values, structure, design, weights, times)


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


def _robust(
    design: np.ndarray, times: np.ndarray, weights: np.ndarray, values: np.ndarray, model: Model
) -> tuple[np.ndarray, np.ndarray]:
    """Returns coefficients and weights by Huber's method (1964), in which larger residuals have smaller
    weights.
    """
    found = weights
    for _ in range(ROUNDS_MAX):
        residuals = np.abs(times - design @ values) * weights
        spread = max(np.median(residuals) / 0.6745, 1e-9)
        found = weights * np.sqrt(np.minimum(1, HUBER * spread / np.maximum(residuals, 1e-12)))
        last = values
        highs = [each.high for each in model.coefficients]
        values = solve(design * found[:, None], times * found, highs, "robust")
        if np.allclose(values, last, rtol=1e-9, atol=0):
            break
    return values, found
