"""Stored fits (`fordway model fit --json`), to predict times at other sizes or to check other
measurements.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fordway.model.models import MODELS, Model, Structure
from fordway.model.points import DataError
from fordway.model.report import SCHEMA, SCHEMA_VERSION
from fordway.model.terms import Constants, Terms

FIELDS = ("break_bytes", "constants", "points", "leave_one_out", "reliable")
"""Fields of a stored fit that predictions need."""
AT_HAND = {"size", "mhz", "connections"}
"""Properties of a request that are known before it is sent. Counters are not."""


def read_fit(path: Path) -> dict[str, Any]:
    """Returns the fit in `path`. Raises `DataError` if it is not a fit."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as a fit: {error}") from error
    if not isinstance(found, dict) or found.get("schema") != SCHEMA or "coefficients" not in found:
        raise DataError(f"{path} is not a fit: give the output of `fordway model fit --json`")
    if found.get("schema_version") != SCHEMA_VERSION or found.get("model") not in MODELS:
        raise DataError(f"{path} is of a newer version: install a newer fordway to read it")
    missing = [name for name in FIELDS if name not in found]
    if missing or not _are_coefficients(found["coefficients"]):
        what = ", ".join(missing) or "numbers for its coefficients"
        raise DataError(f"{path} lacks {what}: it was changed or truncated; fit again")
    return found


def _are_coefficients(found: Any) -> bool:  # noqa: ANN401 (any value JSON can hold)
    """Returns whether every coefficient has a number."""
    values = [each.get("value") if isinstance(each, dict) else None for each in found]
    return bool(values) and all(isinstance(value, int | float) for value in values)


def coefficients(found: dict[str, Any]) -> tuple[Model, np.ndarray, Structure]:
    """Returns the model of a stored fit, its coefficients and its break."""
    values = np.array([each["value"] for each in found["coefficients"]], dtype=float)
    return MODELS[found["model"]], values, found["break_bytes"]


def constants_of(found: dict[str, Any], constants: Constants) -> Constants:
    """Returns `constants` with the `small_bytes` of the fit, which belongs to its model."""
    return replace(constants, small_bytes=found["constants"]["small_bytes"])


def predict(
    found: dict[str, Any], sizes: list[float], frequency_mhz: float | None, connections: float | None
) -> dict[str, Any]:
    """Returns predicted times at `sizes`. Raises `DataError` for models that need counters."""
    model, values, structure = coefficients(found)
    if connections is not None and not 1 <= connections < float("inf"):
        raise DataError(f"--connections is {connections:g}: it should be 1 or more")
    if not set(model.needs) <= AT_HAND:
        raise DataError(
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
            "predicted_us": float(predicted[at]),
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
        "warnings": [*warnings, *_range(found, sizes), *_doubts(found)],
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
        raise DataError(f"{model.name} needs --connections to predict")
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


def _doubts(found: dict[str, Any]) -> list[str]:
    if found["reliable"] is not False:
        return []
    return ["the coefficients are not reliable (see the fit): predictions hold between measured sizes only"]
