"""What a fit is worth: errors, R², F, and whether its coefficients can be told from each other."""

from dataclasses import dataclass

import numpy as np

from fordway.model import adequacy
from fordway.model.fitting import GIVEN, Fit, enough, fit
from fordway.model.models import Model
from fordway.model.terms import Terms

CONDITION_MAX = 30
"""Belsley, Kuh and Welsch (1980): above this, near-dependencies of columns harm the coefficients."""

PROPORTION_MAX = 0.5
"""The share of a coefficient's variance that one near-dependency may have."""

MOVED_MAX = 0.5
"""A coefficient that one row moves by more than this share is that row's, and not the others'."""

RELATIVE_ERROR_MAX = 0.25
"""A standard error of more than this share of its coefficient leaves it with hardly one digit."""


MISFIT = "of a model that does not hold here"
"""What is said of a coefficient that has no fault of its own."""


@dataclass(frozen=True)
class Judged:
    """A coefficient, and why it is not reliable (or `None`)."""

    name: str
    unit: str
    meaning: str
    value: float
    standard_error: float | None
    vif: float | None
    doubt: str | None


@dataclass(frozen=True)
class LeftOut:
    """Each row predicted by a fit to the others: the errors in per cent, and how far coefficients moved."""

    errors_pct: np.ndarray
    lows: np.ndarray
    highs: np.ndarray


@dataclass(frozen=True)
class Diagnosis:
    """All that is said of a fit."""

    errors_pct: np.ndarray
    """Eq. 10: (measured - predicted) / measured."""
    r2: float | None
    f: float | None
    condition: float | None
    """Of the columns at unit length, as they are in µs; `None` if a column is all zeros."""
    condition_weighted: float | None
    """The same of the rows as the fit weighs them; this is what counts for its coefficients."""
    coefficients: tuple[Judged, ...]
    left_out: LeftOut | None
    misfits: tuple[str, ...]
    """Why the model does not hold on these rows; empty if nothing speaks against it."""

    @property
    def reliable(self) -> bool:
        """Whether every coefficient can be relied on."""
        return all(each.doubt is None for each in self.coefficients)


def diagnose(found: Fit, terms: Terms) -> Diagnosis:
    """Judges `found`, which was fitted to (or is published and held against) `terms`."""
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
    """Errors in few numbers: median and largest without sign, mean with it, and how many are within 10 %."""
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
    """R² and F of the errors in µs, as a spreadsheet has them, with the mean as the model to beat."""
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
    """The columns at length 1; `None` if one is all zeros."""
    lengths = np.linalg.norm(design, axis=0)
    return None if (lengths == 0).any() else design / lengths


def condition(design: np.ndarray) -> float | None:
    """The condition number of the columns at unit length: 1 is at right angles, infinite is dependent."""
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
    """Variance inflation factors (not centred): how much the other columns raise a coefficient's variance."""
    units = unit_columns(design)
    if units is None or (condition(design) or np.inf) > 1e12:
        return None
    return np.diag(np.linalg.inv(units.T @ units))


def entangled(design: np.ndarray) -> list[int]:
    """Columns that cannot be told apart: those that owe most of their variance to near-dependencies
    (Belsley's variance proportions, summed over all of these).
    """
    units = unit_columns(design)
    if units is None:
        return []
    _, singular, right = np.linalg.svd(units, full_matrices=False)
    shares = (right.T / np.maximum(singular, 1e-300)) ** 2
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
    """What the columns alone say of a coefficient."""
    names = found.model.names
    others = [names[other] for other in group if other != at]
    if at not in group:
        return None
    return f"not told apart from {', '.join(others) if len(others) < len(names) - 1 else 'the others'}"


def _doubt(found: Fit, at: int, error: float | None, left_out: LeftOut) -> str | None:
    """What the fit says of a coefficient."""
    value, low, high = found.values[at], left_out.lows[at], left_out.highs[at]
    if found.method != "ols" and value <= 0:
        return "at its bound, 0: the rows do not show the term"
    if found.method != "ols" and value >= found.model.coefficients[at].high:
        return f"at its bound, {value:g}"
    if error is None:
        return "no rows are left to say how well it is known"
    if value < 0:
        return "below 0, which takes less than no time"
    if error > RELATIVE_ERROR_MAX * abs(value):
        return f"known to ± {100 * error / abs(value):.0f} % only" if value else "0"
    if max(high - value, value - low) > MOVED_MAX * abs(value):
        return f"from {low:.3g} to {high:.3g} as single rows are left out"
    return None


def standard_errors(found: Fit, weighted: np.ndarray) -> np.ndarray:
    """Of the coefficients that are not at a bound, from the weighted residuals; NaN for others."""
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
    variances = found.loss / freedom * np.diag(np.linalg.inv(units.T @ units))
    errors[free] = np.sqrt(variances) / np.linalg.norm(used, axis=0)
    return errors


def leave_one_out(model: Model, terms: Terms, method: str) -> LeftOut:
    """Fits without each row in turn. Raises `DataError` if a row fewer cannot determine the coefficients."""
    enough(model, terms, len(model.coefficients) + 1)
    errors, values = [], []
    for at in range(len(terms)):
        others = np.arange(len(terms)) != at
        found = fit(model, terms.take(others), method)
        alone = terms.take(~others)
        predicted = model.predict(alone, found.values, found.structure)[0]
        errors.append(100 * (alone.times_us[0] - predicted) / alone.times_us[0])
        values.append(found.values)
    return LeftOut(np.array(errors), np.min(values, axis=0), np.max(values, axis=0))
