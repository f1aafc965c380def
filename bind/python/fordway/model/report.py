"""Formats results as text and as JSON, with the same content."""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fordway import output
from fordway.model import checks, diagnostics, fitting, mathis, terms
from fordway.model.points import SIDES, Points
from fordway.model.study import Candidate, Result
from fordway.model.terms import Constants
from fordway.report.units import size as size_text

NUMBER = re.compile(r"[-+]?[0-9][0-9,.]*(e[-+][0-9]+)?( to .*)?$")
SCHEMA = "fordway.model"
SCHEMA_VERSION = 1


def document(
    command: str, result: Result, points: Points, constants: Constants, tried: Sequence[Candidate]
) -> dict[str, Any]:
    """Returns a result as a JSON document. Unknown values are null."""
    fit, found = result.fit, result.diagnosis
    return clean(
        {
            "schema": SCHEMA,
            "schema_version": SCHEMA_VERSION,
            "command": command,
            "model": result.model.name,
            "equation": result.model.equation,
            "method": fit.method,
            "statistic": points.statistic,
            "rows": len(points),
            "break_bytes": fit.structure if result.model.name == "break" else None,
            "coefficients": _coefficients(result),
            "reliable": found.reliable if fit.method != fitting.GIVEN else None,
            "r2": found.r2,
            "f": found.f,
            "condition_number": found.condition,
            "condition_number_weighted": found.condition_weighted,
            "errors": diagnostics.summary(found.errors_pct),
            "leave_one_out": found.left_out and diagnostics.summary(found.left_out.errors_pct),
            "points": _points(result, points, constants),
            "candidates": [_candidate(each) for each in tried],
            "constants": {
                "clock_mhz": constants.clock_mhz,
                "frequency_mhz": constants.frequency_mhz,
                "memory_bytes_per_us": constants.memory_bytes_per_us,
                "network_bytes_per_us": constants.network_bytes_per_us,
                "rtt_us": constants.path.rtt_us,
                "small_bytes": constants.small_bytes,
            },
            "doubts": list(points.doubts),
            "warnings": [*result.warnings, *points.refused, *points.notes, *points.doubts],
        }
    )


def clean(value: Any) -> Any:  # noqa: ANN401 (any value JSON can hold)
    """Converts a value to types that JSON supports. NaN and infinity become null, and NumPy numbers become
    Python numbers.
    """
    if isinstance(value, dict):
        return {name: clean(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(each) for each in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _coefficients(result: Result) -> list[dict[str, Any]]:
    left_out = result.diagnosis.left_out
    return [
        {
            "name": each.name,
            "value": each.value,
            "unit": each.unit,
            "meaning": each.meaning,
            "standard_error": each.standard_error,
            "vif": each.vif,
            "left_out_low": None if left_out is None else left_out.lows[at],
            "left_out_high": None if left_out is None else left_out.highs[at],
            "doubt": each.doubt,
        }
        for at, each in enumerate(result.diagnosis.coefficients)
    ]


def _points(result: Result, points: Points, constants: Constants) -> list[dict[str, Any]]:
    columns, left_out = result.terms.columns, result.diagnosis.left_out
    return _rows(
        {
            "source": columns["source"],
            "size_bytes": columns["size"],
            "connections": columns["connections"],
            "frequency_mhz": columns["mhz"],
            "time_us": columns["time_us"],
            "predicted_us": result.fit.predicted_us,
            "error_pct": result.diagnosis.errors_pct,
            "left_out_error_pct": [None] * len(columns) if left_out is None else left_out.errors_pct,
            "mathis_bytes_per_us": mathis.bounds(points, constants.path),
        }
    )


def _rows(columns: dict[str, Iterable[Any]]) -> list[dict[str, Any]]:
    """Returns columns of equal length as rows."""
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _candidate(each: Candidate) -> dict[str, Any]:
    if each.result is None:
        return {"model": each.name, "leave_one_out": None, "reliable": None, "why_not": each.why_not}
    left_out = diagnostics.summary(each.result.diagnosis.left_out.errors_pct)
    return {
        "model": each.name,
        "leave_one_out": left_out,
        "reliable": each.result.diagnosis.reliable,
        "why_not": None,
    }


def text(found: dict[str, Any]) -> str:
    """Returns the document of a result as text."""
    parts = [
        f"{found['model']}: {found['equation'].removeprefix(found['model'].replace('eq', 'eq. ') + ': ')}",
        _how(found),
        "",
        table(_coefficient_rows(found)),
        "",
        _quality(found),
        "",
        table(_point_rows(found)),
    ]
    if found["candidates"]:
        parts += ["", table(_candidate_rows(found["candidates"]))]
    parts += ["", *(output.line(f"warning: {sentence}.") for sentence in found["warnings"])]
    return "\n".join(parts).rstrip("\n") + "\n"


def _how(found: dict[str, Any]) -> str:
    if found["method"] == fitting.GIVEN:
        return f"given coefficients, compared with {found['rows']} rows of {found['statistic']} times"
    where = f"; breaks after {size_text(found['break_bytes'])}" if found["break_bytes"] is not None else ""
    method = found["method"]
    rows = f"{found['rows']} rows of {found['statistic']} times"
    return f"fitted to {rows}, {method}: {fitting.METHODS[method]}{where}"


def _coefficient_rows(found: dict[str, Any]) -> list[list[str]]:
    rows = [["coefficient", "value", "± std. error", "unit", "left out", "VIF", "reliable"]]
    for each in found["coefficients"]:
        low, high = each["left_out_low"], each["left_out_high"]
        rows.append(
            [
                each["name"],
                number(each["value"]),
                number(each["standard_error"]),
                each["unit"] + (f" ({1 / each['value']:,.0f} MB/s)" if _is_inverse(each) else ""),
                "-" if low is None else f"{number(low)} to {number(high)}",
                number(each["vif"]),
                _verdict(found, each),
            ]
        )
    return rows


def _is_inverse(each: dict[str, Any]) -> bool:
    return each["unit"] == "µs/B" and each["value"] > 0


def _verdict(found: dict[str, Any], each: dict[str, Any]) -> str:
    if each["doubt"]:
        return f"no: {each['doubt']}"
    return "as given" if found["method"] == fitting.GIVEN else "yes"


def _quality(found: dict[str, Any]) -> str:
    conditions = number(found["condition_number"])
    if found["method"] in ("relative", "robust"):
        conditions += f" in µs, {number(found['condition_number_weighted'])} as the fit weighs rows"
    r2 = "-" if found["r2"] is None else f"{found['r2']:.6f}"
    lines = [f"R² {r2}, F {number(found['f'])}, condition number {conditions}"]
    lines.append(f"errors: {_errors(found['errors'])}")
    if found["leave_one_out"]:
        lines.append(f"leave-one-out: {_errors(found['leave_one_out'])}")
    return "\n".join(lines)


def _errors(errors: dict[str, Any]) -> str:
    return (
        f"median {errors['median_pct']:.1f} %, max {errors['max_pct']:.1f} %, {errors['within_10_pct']} of "
        f"{errors['rows']} within 10 %"
    )


def _point_rows(found: dict[str, Any]) -> list[list[str]]:
    several = len({each["connections"] for each in found["points"]}) > 1
    head = [
        "size B",
        *(["connections"] if several else []),
        "measured µs",
        "model µs",
        "error %",
        "left out %",
    ]
    rows = [head]
    for each in found["points"]:
        left_out = each["left_out_error_pct"]
        rows.append(
            [
                f"{each['size_bytes']:,.0f}",
                *([number(each["connections"])] if several else []),
                number(each["time_us"]),
                number(each["predicted_us"]),
                f"{each['error_pct']:+.1f}",
                "-" if left_out is None else f"{left_out:+.1f}",
            ]
        )
    return rows


def _candidate_rows(candidates: list[dict[str, Any]]) -> list[list[str]]:
    rows = [["model", "left out: mean %", "median %", "max %", "reliable"]]
    for each in candidates:
        errors = each["leave_one_out"]
        if errors is None:
            rows.append([each["model"], "-", "-", "-", f"not fitted: {each['why_not']}"])
            continue
        figures = [f"{errors[name]:.1f}" for name in ("mean_pct", "median_pct", "max_pct")]
        rows.append([each["model"], *figures, "yes" if each["reliable"] else "no"])
    return rows


def data_document(points: Points, load: checks.LoadProperties, constants: Constants) -> dict[str, Any]:
    """Returns the measurements as a JSON document, without a model. The document contains derived quantities,
    and the reasons for missing terms.
    """
    rows, found = points.rows, terms.derive(points, constants)
    bounds = mathis.bounds(points, constants.path)
    columns = {
        "source": rows["source"],
        "size_bytes": rows["size_bytes"],
        "time_us": rows["time_us"],
        "connections": rows["connections"],
        "rate_per_s": rows["rate_per_s"],
        "under_way": rows["rate_per_s"] * rows["time_us"] / 1e6,
        "head_bytes": rows["read_bytes"] / rows["requests"] - rows["size_bytes"],
        "frequency_mhz": found.columns["mhz"],
        "mathis_bytes_per_us": bounds,
        **{f"{side}_cycles": rows[f"{side}_cycles"] for side in SIDES},
        **{f"{side}_evicted_bytes": rows[f"{side}_evicted_bytes"] for side in SIDES},
    }
    return clean(
        {
            "schema": SCHEMA,
            "schema_version": SCHEMA_VERSION,
            "command": "check",
            "statistic": points.statistic,
            "rows": len(points),
            "asked_rate_per_s": load.asked_rate_per_s,
            "points": _rows(columns),
            "missing": found.missing,
            "warnings": [
                *mathis.exceeded(points, bounds),
                *points.refused,
                *points.notes,
                *points.doubts,
            ],
        }
    )


DATA_COLUMNS = {
    "size B": "size_bytes",
    "time µs": "time_us",
    "connections": "connections",
    "requests/s": "rate_per_s",
    "under way": "under_way",
    "head B": "head_bytes",
    "client MHz": "frequency_mhz",
    "eq. 4 MB/s": "mathis_bytes_per_us",
    "server cycles": "server_cycles",
    "client cycles": "client_cycles",
    "server evicted B": "server_evicted_bytes",
    "client evicted B": "client_evicted_bytes",
}


def data_text(found: dict[str, Any]) -> str:
    """Returns the document of the measurements as text, without columns that were not measured."""
    used = {
        head: name
        for head, name in DATA_COLUMNS.items()
        if any(each[name] is not None for each in found["points"])
    }
    rows = [list(used)]
    rows += [[number(each[name]) for name in used.values()] for each in found["points"]]
    parts = [table(rows), ""]
    parts += [f"no {name}: {why}." for name, why in found["missing"].items()]
    parts += [output.line(f"warning: {sentence}.") for sentence in found["warnings"]]
    return "\n".join(parts).rstrip("\n") + "\n"


def predicted_text(found: dict[str, Any]) -> str:
    """Returns the document of predictions as text."""
    rows = [["size B", "connections", "frequency MHz", "predicted µs"]]
    for each in found["predictions"]:
        names = ("connections", "frequency_mhz", "predicted_us")
        rows.append([f"{each['size_bytes']:,.0f}", *(number(each[name]) for name in names)])
    parts = [found["equation"], "", table(rows), ""]
    if found["leave_one_out"]:
        parts.append(f"errors of rows left out of the fit: {_errors(found['leave_one_out'])}")
    parts += [output.line(f"warning: {sentence}.") for sentence in found["warnings"]]
    return "\n".join(parts) + "\n"


def number(value: float | None) -> str:
    """Returns a number as text, with at least four significant digits; `-` if it is unknown."""
    if value is None or math.isnan(value):
        return "-"
    if value == 0 or 0.01 <= abs(value) < 1e3:
        return f"{value:.4g}"
    return f"{value:,.0f}" if 1e3 <= abs(value) < 1e12 else f"{value:.3e}"


def table(rows: list[list[str]]) -> str:
    """Returns rows as aligned text. Numbers are right-aligned, and words are left-aligned."""
    rows = [[output.line(cell) for cell in row] for row in rows]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    numbers = [any(NUMBER.match(row[at]) for row in rows[1:]) for at in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if is_number else cell.ljust(width)
            for cell, width, is_number in zip(row, widths, numbers, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
