"""Diagnostics of a fit: its errors, R² and F, and whether its coefficients can be distinguished."""

from dataclasses import dataclass

import numpy as np

from fordway.model import adequacy, fitting
from fordway.model.fitting import GIVEN, Fit, enough, fit
from fordway.model.models import Model
from fordway.model.terms import Terms

CONDITION_MAX = 30
"""Condition number above which near-dependencies of columns make coefficients inaccurate (Belsley, Kuh and
Welsch 1980).
"""

PROPORTION_MAX = 0.5
"""Maximum share of a coefficient's variance that may result from near-dependencies."""

MOVED_MAX = 0.5
"""Maximum relative change of a coefficient when one row is left out. A larger change means that a single row
determines the coefficient.
"""

FITS_MAX, FITS_MIN = 100, 10
FITTED_ROWS_MAX = 1_000_000
"""Limits on the number of fits that leave out rows, and on the total number of rows in these fits. With more
rows than fits, each fit leaves out several rows.
"""

RELATIVE_ERROR_MAX = 0.25
"""Maximum relative standard error of a coefficient. With a larger error, not even one digit is certain."""


BANDWIDTH_MAX_BYTES_PER_US = 1e6
"""Maximum plausible bandwidth of one request: 1 TB/s."""

MISFIT = "of a model that does not hold here"
"""The doubt about a coefficient that is doubtful only because the model does not describe the rows."""


@dataclass(frozen=True)
class Judged:
    """A coefficient, and the reason why it is unreliable (or `None`)."""

    name: str
    unit: str
    meaning: str
    value: float
    standard_error: float | None
    vif: float | None
    doubt: str | None


@dataclass(frozen=True)
class LeftOut:
    """Leave-one-out errors of the rows, in per cent, and the range of each coefficient."""

    errors_pct: np.ndarray
    lows: np.ndarray
    highs: np.ndarray


@dataclass(frozen=True)
class Diagnosis:
    """Diagnostics of one fit."""

    errors_pct: np.ndarray
    """Errors of eq. 10: (measured - predicted) / measured."""
    r2: float | None
    f: float | None
    condition: float | None
    """Condition number of the columns in µs, scaled to unit length. `None` if a column is all zeros."""
    condition_weighted: float | None
    """Condition number of the weighted columns, which determines the accuracy of the coefficients."""
    coefficients: tuple[Judged, ...]
    left_out: LeftOut | None
    misfits: tuple[str, ...]
    """Reasons why the model does not describe these rows. Empty if the model describes the rows."""

    @property
    def reliable(self) -> bool:
        """True if every coefficient is reliable."""
        return all(each.doubt is None for each in self.coefficients)


def diagnose(found: Fit, terms: Terms) -> Diagnosis:
    """Returns the diagnostics of `found`. The coefficients of `found` are published, or were fitted to
    `terms`.
    """
    errors_pct = 100 * (found.times_us - found.predicted_us) / found.times_us
    weighted = found.design * found.weights[:, None]
    r2, f = goodness(found)
    left_out = None if found.method == GIVEN else leave_one_out(found.model, terms, found.method)
    misfits = tuple(adequacy.doubts(found, terms))
    return Diagnosis(
        errors_pct,
        r2,
        f,
        condition(found.design),
        condition(weighted),
        tuple(_judged(found, weighted, left_out, misfits)),
        left_out,
        misfits,
    )


def summary(errors_pct: np.ndarray) -> dict[str, float | int]:
    """Returns statistics of the errors.

    The statistics are the median, maximum and mean of the absolute errors, the root mean square, the bias,
    and the number of rows with an error within 10 %.
    """
    sizes = np.abs(errors_pct)
    return {
        "median_pct": float(np.median(sizes)),
        "max_pct": float(sizes.max()),
        "mean_pct": float(sizes.mean()),
        "rms_pct": float(np.sqrt((sizes**2).mean())),
        "bias_pct": float(errors_pct.mean()),
        "within_10_pct": int((sizes <= 10).sum()),
        "rows": len(sizes),
    }


def goodness(found: Fit) -> tuple[float | None, float | None]:
    """Returns R² and F of the errors in µs. The reference model is the mean of the times, as in a
    spreadsheet.
    """
    rows, terms = len(found.times_us), len(found.values)
    residual = float(((found.times_us - found.predicted_us) ** 2).sum())
    total = float(((found.times_us - found.times_us.mean()) ** 2).sum())
    if total == 0:
        return None, None
    freedom = rows - terms
    if freedom <= 0 or terms < 2 or residual == 0:
        return 1 - residual / total, None
    return 1 - residual / total, (total - residual) / (terms - 1) / (residual / freedom)


def unit_columns(design: np.ndarray) -> np.ndarray | None:
    """Returns the columns scaled to unit length, or `None` if a column is all zeros."""
    lengths = np.linalg.norm(design, axis=0)
    return None if (lengths == 0).any() else design / lengths


def condition(design: np.ndarray) -> float | None:
    """Returns the condition number of the columns at unit length: 1 for orthogonal columns, infinite for
    linearly dependent columns.
    """
    units = unit_columns(design)
    if units is None:
        return None
    singular = np.linalg.svd(units, compute_uv=False)
    return (
        float(singular[0] / singular[-1])
        if len(units) >= units.shape[1] and singular[-1] > 0
        else float("inf")
    )


def inflation(design: np.ndarray) -> np.ndarray | None:
    """Returns the variance inflation factors (not centred). Each is the factor by which the other columns
    increase the variance of a coefficient.
    """
    units = unit_columns(design)
    if units is None or (condition(design) or np.inf) > 1e12:
        return None
    return np.diag(np.linalg.inv(units.T @ units))


def entangled(design: np.ndarray) -> list[int]:
    """Returns the columns that cannot be distinguished.

    Near-dependencies cause most of the variance of these columns' coefficients (sum of Belsley's variance
    proportions).
    """
    units = unit_columns(design)
    if units is None:
        return []
    _, singular, right = np.linalg.svd(units, full_matrices=False)
    # The limit is far below any numerical accuracy, but its square is still greater than 0.
    shares = (right.T / np.maximum(singular, 1e-100)) ** 2
    shares /= shares.sum(axis=1, keepdims=True)
    weak = singular[0] > CONDITION_MAX * singular
    return [int(column) for column in np.flatnonzero(shares[:, weak].sum(axis=1) > PROPORTION_MAX)]


def _judged(
    found: Fit, weighted: np.ndarray, left_out: LeftOut | None, misfits: tuple[str, ...]
) -> list[Judged]:
    errors, vifs = standard_errors(found, weighted) if left_out else None, inflation(weighted)
    group = entangled(weighted)
    judged = []
    for at, each in enumerate(found.model.coefficients):
        error = None if errors is None or np.isnan(errors[at]) else float(errors[at])
        doubt = _tangled(found, at, group) or (left_out and _doubt(found, at, error, left_out))
        if left_out and misfits and not doubt:
            doubt = MISFIT
        vif = None if vifs is None else float(vifs[at])
        judged.append(Judged(each.name, each.unit, each.meaning, float(found.values[at]), error, vif, doubt))
    return judged


def _tangled(found: Fit, at: int, group: list[int]) -> str | None:
    """Returns the doubt about a coefficient that follows from the columns alone, or `None`."""
    names = found.model.names
    others = [names[other] for other in group if other != at]
    if at not in group:
        return None
    return f"not distinguishable from {', '.join(others) if len(others) < len(names) - 1 else 'the others'}"


def _doubt(found: Fit, at: int, error: float | None, left_out: LeftOut) -> str | None:
    """Returns the doubt about a coefficient that follows from the fit, or `None`."""
    value, low, high = found.values[at], left_out.lows[at], left_out.highs[at]
    if found.method != "ols" and value <= 0:
        return "at its bound, 0: the rows show no effect of the term"
    if found.method != "ols" and value >= found.model.coefficients[at].high:
        return f"at its bound, {value:g}"
    if error is None:
        return "of unknown accuracy: there are too few rows"
    if value < 0:
        return "below 0, a negative time"
    if found.model.coefficients[at].unit == "µs/B" and value < 1 / BANDWIDTH_MAX_BYTES_PER_US:
        return "more than 1 TB/s for one request: check the units of sizes and times"
    if error > RELATIVE_ERROR_MAX * abs(value):
        return f"known only to ± {100 * error / abs(value):.0f} %" if value else "0"
    if max(high - value, value - low) > MOVED_MAX * abs(value):
        return f"from {low:.3g} to {high:.3g} if one row is left out"
    return None


def standard_errors(found: Fit, weighted: np.ndarray) -> np.ndarray:
    """Returns the standard errors computed from the weighted residuals. A coefficient at a bound has the
    standard error NaN.
    """
    residuals, scale = found.residuals, 1.0
    if found.method == "robust":
        weighted, residuals, scale = _huber(found)
    errors = np.full(len(found.values), np.nan)
    highs = np.array([each.high for each in found.model.coefficients])
    free = (
        np.ones(len(errors), dtype=bool)
        if found.method == "ols"
        else (found.values > 0) & (found.values < highs)
    )
    used = weighted[:, free]
    freedom, units = len(weighted) - int(free.sum()), unit_columns(used)
    if freedom <= 0 or units is None or not free.any() or (condition(used) or np.inf) > 1e12:
        return errors
    variances = scale**2 * float((residuals**2).sum()) / freedom * np.diag(np.linalg.inv(units.T @ units))
    errors[free] = np.sqrt(variances) / np.linalg.norm(used, axis=0)
    return errors


def _huber(found: Fit) -> tuple[np.ndarray, np.ndarray, float]:
    """Returns the columns, the residuals and the factor of the standard errors of a robust fit.

    Residuals are limited, and rows beyond the limit do not determine the coefficients (Huber and Ronchetti,
    Robust Statistics, section 7.6).
    """
    base = fitting.relative_weights(found.times_us, found.predicted_us)
    shares = fitting.robust_shares(found)
    inside = max(float((shares > 1 - 1e-6).mean()), 1 / len(shares))
    scale = (1 + found.design.shape[1] / len(shares) * (1 - inside) / inside) / inside
    residuals = (found.times_us - found.predicted_us) * base * shares
    return found.design * base[:, None], residuals, scale


def leave_one_out(model: Model, terms: Terms, method: str) -> LeftOut:
    """Fits repeatedly, each time without one row, or without a group of rows if there are many rows. Raises
    `MeasurementError` if the remaining rows cannot determine the coefficients.
    """
    enough(model, terms, len(model.coefficients) + 1)
    rows = len(terms)
    fits = min(rows, max(FITS_MIN, min(FITS_MAX, FITTED_ROWS_MAX // rows)))
    errors, values = np.empty(rows), []
    for at in range(fits):
        # Leave out every `fits`-th row, so that rows of neighbouring sizes are left out in different fits.
        alone = np.arange(rows) % fits == at
        found = fit(model, terms.take(~alone), method)
        own = terms.take(alone)
        predicted = model.predict(own, found.values, found.structure)
        errors[alone] = 100 * (own.times_us - predicted) / own.times_us
        values.append(found.values)
    return LeftOut(errors, np.min(values, axis=0), np.max(values, axis=0))
