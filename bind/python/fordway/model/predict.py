"""Uses stored fits (`fordway model fit --json`) to predict times at other sizes or to check other
measurements.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fordway.model.checks import CLOCK_MHZ
from fordway.model.models import MODELS, Model, Structure
from fordway.model.points import MeasurementError
from fordway.model.report import SCHEMA, SCHEMA_VERSION
from fordway.model.terms import Constants, Terms
from fordway.report import runfile, shape

FIT = {
    "model": str,
    "coefficients": [{"value": shape.NUMBER}],
    "break_bytes": shape.Or(shape.NUMBER),
    "constants": {"small_bytes": shape.NUMBER},
    "points": [{"size_bytes": shape.NUMBER, "frequency_mhz": shape.Or(shape.NUMBER)}],
    "leave_one_out": shape.Or(
        {"median_pct": shape.NUMBER, "max_pct": shape.NUMBER, "within_10_pct": int, "rows": int}
    ),
    "reliable": shape.Or(bool),
    "doubts": shape.Optional([str]),
}
"""The expected structure of a stored fit."""
AT_HAND = {"size", "mhz", "connections"}
"""Properties of a request that are known before it is sent. Counters are known only after the request."""


def read_fit(path: Path) -> dict[str, Any]:
    """Returns the fit in `path`. Raises `MeasurementError` if the file does not contain a fit."""
    try:
        found = runfile.read_json(path)
    except (FileNotFoundError, runfile.RunFileError) as error:
        raise MeasurementError(f"{path} cannot be read as a fit: {error}") from error
    if not isinstance(found, dict) or found.get("schema") != SCHEMA or "coefficients" not in found:
        raise MeasurementError(f"{path} is not a fit: give the output of `fordway model fit --json`")
    if found.get("schema_version") != SCHEMA_VERSION or str(found.get("model")) not in MODELS:
        raise MeasurementError(f"{path} is of a newer version: install a newer fordway to read it")
    problem = shape.problem(found, FIT)
    if not problem and not found["points"]:
        problem = "points is empty"
    if not problem and found["model"] == "break" and found["break_bytes"] is None:
        problem = "break_bytes is not a number"
    if not problem and len(found["coefficients"]) != len(MODELS[found["model"]].coefficients):
        problem = f"{found['model']} has {len(MODELS[found['model']].coefficients)} coefficients"
    if problem:
        raise MeasurementError(
            f"{path} is not a valid fit: {problem}; the file was changed or truncated. "
            "Run `fordway model fit` again"
        )
    return found


def coefficients(found: dict[str, Any]) -> tuple[Model, np.ndarray, Structure]:
    """Returns the model of a stored fit, its coefficients and its break."""
    values = np.array([each["value"] for each in found["coefficients"]], dtype=float)
    return MODELS[found["model"]], values, found["break_bytes"]


def constants_of(found: dict[str, Any], constants: Constants) -> Constants:
    """Returns `constants` with the `small_bytes` of the fit, because this value is part of the fitted
    model.
    """
    return replace(constants, small_bytes=found["constants"]["small_bytes"])


def predict(
    found: dict[str, Any], sizes: list[float], frequency_mhz: float | None, connections: float | None
) -> dict[str, Any]:
    """Returns predicted times at `sizes`. Raises `MeasurementError` for models that need counters."""
    model, values, structure = coefficients(found)
    if connections is not None and not 1 <= connections < float("inf"):
        raise MeasurementError(f"--connections is {connections:g}: it should be 1 or more")
    low, high = CLOCK_MHZ
    if frequency_mhz is not None and not low <= frequency_mhz <= high:
        raise MeasurementError(
            f"--frequency is {frequency_mhz:,.0f} MHz, which no processor has: check its unit"
        )
    if not set(model.needs) <= AT_HAND:
        raise MeasurementError(
            f"{model.name} needs counters of the predicted run: compare it with measurements by "
            "`fordway model check FILES --fit FIT.json`, or fit a model of sizes"
        )
    terms, warnings = _terms(found, model, sizes, frequency_mhz, connections)
    columns = terms.columns
    predicted = model.predict(terms, values, structure)
    listed = [
        {
            "size_bytes": size,
            "frequency_mhz": float(columns["mhz"][at]) if "mhz" in model.needs else None,
            "connections": connections,
            "predicted_us": float(predicted[at]) if predicted[at] > 0 else None,
        }
        for at, size in enumerate(sizes)
    ]
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "command": "predict",
        "model": model.name,
        "equation": model.equation,
        "predictions": listed,
        "leave_one_out": found["leave_one_out"],
        "warnings": [
            *warnings,
            *_impossible(sizes, predicted),
            *_range(found, sizes),
            *_load(found, model, connections),
            *_doubts(found),
        ],
    }


def _terms(
    found: dict[str, Any],
    model: Model,
    sizes: list[float],
    frequency_mhz: float | None,
    connections: float | None,
) -> tuple[Terms, list[str]]:
    warnings = []
    if "connections" in model.needs and connections is None:
        raise MeasurementError(f"{model.name} needs --connections to predict")
    mhz = np.full(len(sizes), np.nan if frequency_mhz is None else frequency_mhz)
    if "mhz" in model.needs and frequency_mhz is None:
        mhz = _measured_mhz(found, sizes)
        warnings.append(
            "the frequencies come from nearby measured sizes; if the processor clocks differently, "
            "give --frequency"
        )
    columns = pd.DataFrame(
        {
            "size": sizes,
            "small": np.minimum(sizes, found["constants"]["small_bytes"]),
            "one": 1.0,
            "time_us": np.nan,
            "connections": np.nan if connections is None else connections,
            "mhz": mhz,
        }
    )
    return Terms(columns, {}), warnings


def _measured_mhz(found: dict[str, Any], sizes: list[float]) -> np.ndarray:
    """Returns the frequency at each of `sizes`, interpolated between measured sizes on a logarithmic
    scale.
    """
    rows = sorted((each["size_bytes"], each["frequency_mhz"]) for each in found["points"])
    at, mhz = zip(*rows, strict=True)
    return np.interp(np.log(np.maximum(sizes, 1)), np.log(np.maximum(at, 1)), mhz)


def _range(found: dict[str, Any], sizes: list[float]) -> list[str]:
    measured = [each["size_bytes"] for each in found["points"]]
    outside = [size for size in sizes if not min(measured) <= size <= max(measured)]
    if not outside:
        return []
    listed = ", ".join(f"{size:,.0f}" for size in outside)
    return [
        f"{listed} B are outside the measured {min(measured):,.0f} to {max(measured):,.0f} B: the error of "
        "the model there is unknown"
    ]


def _load(found: dict[str, Any], model: Model, connections: float | None) -> list[str]:
    """Returns a sentence if the number of connections was not measured, or does not affect the prediction."""
    if connections is None:
        return []
    measured = [each["connections"] for each in found["points"] if each.get("connections") is not None]
    if "connections" not in model.needs:
        return [f"{model.name} has no term for connections: --connections does not affect the prediction"]
    if measured and not min(measured) <= connections <= max(measured):
        return [
            f"{connections:,.0f} connections are outside the measured {min(measured):,.0f} to "
            f"{max(measured):,.0f}: the error of the model there is unknown"
        ]
    return []


def _impossible(sizes: list[float], predicted: np.ndarray) -> list[str]:
    """Returns a sentence if the model predicts times of 0 or less, which is possible with a negative
    coefficient.
    """
    listed = ", ".join(f"{size:,.0f}" for size, time_us in zip(sizes, predicted, strict=True) if time_us <= 0)
    return [f"no time is predicted for {listed} B, because the model gives one below 0"] if listed else []


def doubts_of(found: dict[str, Any]) -> list[str]:
    """Returns the reasons to doubt the measurements to which a stored fit was fitted."""
    return [f"the fit is of measurements in doubt: {each}" for each in found.get("doubts", [])]


def _doubts(found: dict[str, Any]) -> list[str]:
    said = doubts_of(found)
    if found["reliable"] is False:
        said.append(
            "the coefficients are not reliable (see the fit): predictions hold between measured sizes only"
        )
    return said
