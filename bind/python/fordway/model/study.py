"""Evaluates models on measurements: fits a model, checks a published model, or selects one of several
models.
"""

from dataclasses import dataclass

import numpy as np

from fordway.model import adequacy, diagnostics, fitting, mathis, terms
from fordway.model.diagnostics import Diagnosis
from fordway.model.fitting import Fit
from fordway.model.models import FITTED, MODELS, Model, Structure
from fordway.model.points import MeasurementError, Points
from fordway.model.terms import Constants, Terms

ERROR_MIN_PCT = 0.1
"""Leave-one-out errors below this limit count as equal to the limit, because measurements cannot distinguish
models with smaller errors.
"""

CLEARLY_BETTER = 0.9
"""Maximum ratio of the errors for which a model with more coefficients is chosen over a model with fewer
coefficients.
"""


@dataclass(frozen=True)
class Result:
    """The fit of a model to measurements, and its diagnosis."""

    fit: Fit
    terms: Terms
    diagnosis: Diagnosis
    warnings: list[str]

    @property
    def model(self) -> Model:
        """The fitted or checked model."""
        return self.fit.model


@dataclass(frozen=True)
class Candidate:
    """A model that `auto` tried, with its result or the reason why it could not be fitted."""

    name: str
    result: Result | None
    why_not: str | None


def examine(points: Points, constants: Constants, name: str, method: str) -> Result:
    """Fits the model `name` to `points`. Raises `MeasurementError` if the rows are insufficient."""
    model, found = MODELS[name], _terms(points, constants, MODELS[name])
    fitting.enough(model, found, len(model.coefficients) + 1)
    _different(model, found)
    return _result(fitting.fit(model, found, method), found, points, constants)


def hold(
    points: Points,
    constants: Constants,
    model: Model,
    values: np.ndarray | None = None,
    structure: Structure = None,
) -> Result:
    """Compares the model with `points`. The model's coefficients are `values`, or the published coefficients.

    Raises `MeasurementError` if the rows lack a column that the model needs.
    """
    found = _terms(points, constants, model)
    values = np.array(model.published) if values is None else values
    return _result(fitting.given(model, found, values, structure), found, points, constants)


def _terms(points: Points, constants: Constants, model: Model) -> Terms:
    found = terms.derive(points, constants)
    missing = found.why_not(model.needs)
    if missing:
        raise MeasurementError(f"{model.name} cannot be used: {'; '.join(missing)}")
    return found


def _result(fit: Fit, found: Terms, points: Points, constants: Constants) -> Result:
    diagnosis = diagnostics.diagnose(fit, found)
    return Result(fit, found, diagnosis, [*_doubts(fit, diagnosis, found), *bound_doubts(points, constants)])


def _different(model: Model, found: Terms) -> None:
    """Raises `MeasurementError` if there are fewer distinct rows than coefficients, such as a single size
    for a line.
    """
    different = len(found.columns[list(model.needs)].drop_duplicates())
    if different < len(model.coefficients):
        raise MeasurementError(
            f"only {different} of the {len(found)} rows differ in the terms of {model.name}, which has "
            f"{len(model.coefficients)} coefficients: measure more sizes, or choose a model with fewer"
        )


def bound_doubts(points: Points, constants: Constants) -> list[str]:
    """Returns a sentence if rows with known rtt, loss and segment size exceed the bound of eq. 4."""
    return mathis.exceeded(points, mathis.bounds(points, constants.path))


def _doubts(fit: Fit, diagnosis: Diagnosis, found: Terms) -> list[str]:
    said = [f"the model does not hold: {why}" for why in diagnosis.misfits]
    said += [] if fit.method == fitting.GIVEN else adequacy.outliers(fit, found)
    group = diagnostics.entangled(fit.design * fit.weights[:, None])
    if group:
        names = ", ".join(fit.model.names[at] for at in group)
        said.append(
            f"not identifiable: the condition number is {_condition(diagnosis, fit)} (above "
            f"{diagnostics.CONDITION_MAX}), and these rows do not distinguish {names}"
        )
    if fit.method == fitting.GIVEN:
        if group:
            said.append("many other factors fit equally well, so agreement here does not confirm these")
        return said
    if not diagnosis.reliable:
        own = [each for at, each in enumerate(diagnosis.coefficients) if each.doubt and at not in group]
        others = [each for each in own if each.doubt != diagnostics.MISFIT]
        why = [f"{each.name} is {each.doubt}" for each in others]
        said.append(
            f"the coefficients are not reliable{': ' * bool(why)}{'; '.join(why)}. Use the fit "
            "only to interpolate between these sizes, and do not interpret the coefficients"
        )
    return said


def _condition(diagnosis: Diagnosis, fit: Fit) -> str:
    own, plain = diagnosis.condition_weighted, diagnosis.condition
    if fit.method in ("relative", "robust") and own is not None and plain is not None:
        return f"{own:,.0f} as the fit weighs rows, {plain:,.0f} in µs"
    return "infinite" if plain is None or np.isinf(plain) else f"{plain:,.0f}"


def choose(points: Points, constants: Constants, method: str) -> tuple[Result, list[Candidate]]:
    """Returns the model with the smallest leave-one-out error, and all candidates.

    A model with more coefficients must be clearly better (`CLEARLY_BETTER`). Raises `MeasurementError` if no
    model can be fitted.
    """
    tried = [_try(points, constants, name, method) for name in FITTED]
    fitted = [candidate.result for candidate in tried if candidate.result is not None]
    if not fitted:
        reasons = "; ".join(f"{each.name}: {each.why_not}" for each in tried)
        raise MeasurementError(f"no model can be fitted: {reasons}")
    best = fitted[0]
    for result in sorted(fitted, key=lambda result: len(result.fit.values)):
        if left_out_pct(result) < CLEARLY_BETTER * left_out_pct(best):
            best = result
    return best, tried


def _try(points: Points, constants: Constants, name: str, method: str) -> Candidate:
    try:
        return Candidate(name, examine(points, constants, name, method), None)
    except MeasurementError as error:
        return Candidate(name, None, str(error).removeprefix(f"{name} cannot be used: "))


def left_out_pct(result: Result) -> float:
    """Returns the mean absolute leave-one-out error, in per cent.

    The error is not a mean of squares, because a single row next to a break would dominate such a mean.
    """
    left_out = result.diagnosis.left_out
    mean_pct = float("inf") if left_out is None else diagnostics.summary(left_out.errors_pct)["mean_pct"]
    return max(mean_pct, ERROR_MIN_PCT)
