"""Checks that the JSON of a run matches the schema that the readers require (`docs/reference/run-file.md`).

If the file was written by another program, edited or damaged, the error names the invalid field.
"""

import base64
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

NUMBER_MAX = 1e30
"""Upper limit of all numbers. Real times in ns and sizes in bytes are far below this limit."""


@dataclass(frozen=True)
class Or:
    """The schema of a value that is null or matches the given schema."""

    form: Any


@dataclass(frozen=True)
class Optional:
    """The schema of a field that may be missing, as in runs of older versions."""

    form: Any


@dataclass(frozen=True)
class Each:
    """The schema of an object with any fields, whose values all match the given schema."""

    form: Any


@dataclass(frozen=True)
class Interval:
    """The schema of an interval that contains its value.

    Figures divide by ratios, so the bounds of a ratio must be above 0. Figures also draw the distances from
    the value to both bounds, so the value must not be outside the interval.
    """

    may_be_zero: bool = False

    def holds(self, found: dict[str, float]) -> bool:
        """Returns whether the values of an interval are in order, and none is too low."""
        is_above = found["low"] >= 0 if self.may_be_zero else found["low"] > 0
        return is_above and found["low"] <= found["value"] <= found["high"]

    def __str__(self) -> str:
        return f"an interval with 0 {'<=' if self.may_be_zero else '<'} low <= value <= high"


NUMBER = float
"""An integer or a finite number."""


class Positive:
    """The schema of a number above 0."""


class NotNegative:
    """The schema of a number that is at least 0."""


class Version:
    """The schema of a version: an integer that is at least 1."""


class Time:
    """The schema of a time (RFC 3339)."""


class Histogram:
    """The schema of an HdrHistogram (V2 encoding, base64). Empty text means no histogram."""


TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)")
HISTOGRAM_COOKIE, HISTOGRAM_HEAD_BYTES = 0x1C849303, 40

ASCENDING = ("min_ns", "p50_ns", "p90_ns", "p99_ns", "p999_ns", "max_ns")
QUANTILES = (*ASCENDING, "mean_ns")
QUANTILE_ERROR = 0.01
"""Upper limit of the relative error of a quantile, which is rounded to three digits."""
LATENCY = dict.fromkeys(QUANTILES, NotNegative)
LATENESS = dict.fromkeys(QUANTILES, NUMBER)
INTERVAL = dict.fromkeys(("value", "low", "high", "confidence"), NUMBER)
LOAD = {
    "rate_asked_per_s": Or(Positive),
    "connections": int,
    "streams": int,
    "threads": int,
    "skipped": int,
    "errors": Each(int),
    "retries": Optional(int),
    "first_byte": Or(LATENCY),
    "first_byte_histogram": Optional(Histogram),
    "lateness": Or(LATENESS),
    "header_sent_bytes_per_op": Or(NotNegative),
    "header_received_bytes_per_op": Or(NotNegative),
    "reconnects": int,
    "tcp": Or({"rtt_us": NUMBER}),
    "client": Or(dict),
    "server": Or({"rss_bytes": NUMBER}),
}
TRANSFER = {
    "exchange": str,
    "size_bytes": int,
    "time_ns": Or(Interval(may_be_zero=True)),
    "bytes_per_s": Or(Interval(may_be_zero=True)),
    "client_cpu_ns_per_message": NotNegative,
    "server_cpu_ns_per_message": Or(NotNegative),
    "processors_busy": NotNegative,
}
PARALLEL = {
    "ranks": int,
    "speedup": Or(Interval()),
    "efficiency": Or(Interval()),
    "communication_share": Or(Interval(may_be_zero=True)),
    "late_ns": Or(Interval(may_be_zero=True)),
}
SUMMARY = {
    "lane": str,
    "phase": str,
    "operations": int,
    "errors": int,
    "bytes": NotNegative,
    "ops_per_s": Or(NotNegative),
    "bytes_per_s": Or(NotNegative),
    "latency": Or(LATENCY),
    "histogram": Optional(Histogram),
    "client_cpu_ns_per_op": Or(NotNegative),
    "server_cpu_ns_per_op": Or(NotNegative),
    "ratio": Or({"to": str, "verdict": str, "interval": Or(Interval())}),
    "limit": {"name": str, "evidence": str},
    "load": Or(LOAD),
    "transfer": Optional(Or(TRANSFER)),
    "parallel": Optional(Or(PARALLEL)),
}
MACHINE = {
    "kernel": Or(str),
    "system": Or(str),
    "cpu_model": Or(str),
    "cpus": int,
    "memory_bytes": Or(NotNegative),
    "cpu_governor": Or(str),
    "clock_source": Or(str),
    "is_virtual": Or(bool),
    "load_1min": Or(NotNegative),
    "huge_pages": Or(str),
    "file_systems": [dict.fromkeys(("role", "path", "mount_point", "kind", "options"), str)],
}
PARAMETERS = {
    "tcp_rmem_bytes": Optional(Or(NUMBER)),
    "setups": Optional([{"settings": [Each(str)]}]),
}
RUN = {
    "fordway_version": str,
    "kind": str,
    "started": Time,
    "elapsed_ns": Positive,
    "command": [str],
    "machine": MACHINE,
    "parameters": PARAMETERS,
    "lanes": [{"name": str, "description": str}],
    "phases": [str],
    "summaries": [SUMMARY],
    "warnings": [str],
}
"""Schema of `run.json`, without the fields of `MORE`."""

LEDGER = {
    "entries": [
        {
            "path": str,
            "size_bytes": int,
            "parts": [{"times": NUMBER, "ns": INTERVAL}],
            **dict.fromkeys(("sum_ns", "measured_ns", "residual_ns", "residual_share"), INTERVAL),
        }
    ]
}
"""Schema of `ledger.json`."""

RUN_KINDS = (
    *("compare", "rest", "ior", "mdtest", "mdworkbench", "io500", "vector", "ledger", "transport"),
    *("pingpong", "speedup"),
)
"""The kinds of run that exist."""

VERDICTS = ("measured", "doubtful", "refused")
CONDITIONS = {
    "verdict": str,
    "is_forced": Optional(bool),
    "doubts": [{"observed": str, "remedy": str, "cells": [{"lane": str, "phase": str}]}],
    "figures": Each(Or(NUMBER)),
}
MORE = {
    "schema_version": Version,
    "conditions": Optional(Or(CONDITIONS)),
    "scores": Optional([{"lane": str, "scores": Or(Each(Or(NUMBER))), "stamp": Or(str)}]),
}
"""Schema of the fields of `run.json` that older versions do not write."""

NAMES = {
    str: "text",
    int: "a whole number",
    float: "a number",
    Positive: "a number above 0",
    NotNegative: "a number from 0",
    Version: "a whole number from 1",
    Time: "a time (RFC 3339)",
    Histogram: "an HdrHistogram",
    bool: "true or false",
    dict: "an object",
}


def problem(value: Any, form: Any, name: str = "") -> str | None:  # noqa: ANN401 (any value JSON can hold)
    """Returns the first difference from the schema `form` as a clause, or `None` if there is no difference.
    Fields that are not in the schema are ignored.
    """
    return next(_problems(value, form, name), None)


def _problems(value: Any, form: Any, name: str) -> Iterator[str]:  # noqa: ANN401
    if isinstance(form, Or):
        if value is not None:
            yield from _problems(value, form.form, name)
    elif isinstance(form, list):
        if not isinstance(value, list):
            yield f"{name} is not a list"
            return
        for at, each in enumerate(value):
            yield from _problems(each, form[0], f"{name}[{at}]")
    elif isinstance(form, Interval):
        found = problem(value, INTERVAL, name)
        if found or not form.holds(value):
            yield found or f"{name} is not {form}"
    elif isinstance(form, Each | dict):
        yield from _problems_of_fields(value, form, name)
    elif not _is(value, form):
        yield f"{name} is not {NAMES[form]}"


def _problems_of_fields(value: Any, form: Each | dict[str, Any], name: str) -> Iterator[str]:  # noqa: ANN401
    if not isinstance(value, dict):
        yield f"{name or 'it'} is not an object"
        return
    forms = dict.fromkeys(value, form.form) if isinstance(form, Each) else form
    for field, own in forms.items():
        path = f"{name}.{field}" if name else field
        if field in value:
            yield from _problems(value[field], own.form if isinstance(own, Optional) else own, path)
        elif not isinstance(own, Optional):
            yield f"{path} is missing"


def unknown_kind(kind: str) -> str | None:
    """Returns an error message if the kind of run is unknown, or `None` if the kind is known."""
    return None if kind in RUN_KINDS else f"kind is {kind!r}, not one of {', '.join(RUN_KINDS)}"


def disorder(summaries: list[dict[str, Any]]) -> str | None:
    """Returns the first pair of quantiles in `summaries` that is in the wrong order, or `None`."""
    for at, summary in enumerate(summaries):
        load = summary.get("load") or {}
        for name, found in (
            ("latency", summary["latency"]),
            ("load.first_byte", load.get("first_byte")),
            ("load.lateness", load.get("lateness")),
        ):
            wrong = found and _disorder_of(found)
            if wrong:
                return f"summaries[{at}].{name}.{wrong}"
    return None


def inconsistency(info: dict[str, Any]) -> str | None:
    """Returns the first summary of a run that contradicts another field, or `None`."""
    lanes, seen = {lane["name"] for lane in info["lanes"]}, set()
    for at, summary in enumerate(info["summaries"]):
        cell = summary["phase"], summary["lane"]
        if cell in seen:
            return f"summaries[{at}] is a second summary of {cell[0]} on {cell[1]}"
        seen.add(cell)
        if summary["ratio"] and (wrong := _wrong_ratio(summary["ratio"], lanes)):
            return f"summaries[{at}].ratio.{wrong}"
    return None


def _wrong_ratio(ratio: dict[str, Any], lanes: set[str]) -> str | None:
    """Returns the contradiction within a ratio, or `None`."""
    if ratio["to"] not in lanes:
        return f"to is {ratio['to']!r}, which is not a lane of the run"
    interval, verdict = ratio["interval"], "cannot-tell"
    if interval:
        if not 0 < interval["confidence"] < 1:
            return f"interval.confidence is {interval['confidence']}, not between 0 and 1"
        if interval.get("samples", 1) == 0:
            return "interval.samples is 0"
        verdict = "faster" if interval["low"] > 1 else "slower" if interval["high"] < 1 else verdict
    if ratio["verdict"] != verdict:
        return f"verdict is {ratio['verdict']!r}, but the interval means {verdict!r}"
    return None


def _disorder_of(quantiles: dict[str, float]) -> str | None:
    for low, high in (*pairwise(ASCENDING), ("min_ns", "mean_ns"), ("mean_ns", "max_ns")):
        if quantiles[low] > quantiles[high] + QUANTILE_ERROR * abs(quantiles[high]) + 1:
            return f"{low} is {quantiles[low]}, above {high}, which is {quantiles[high]}"
    return None


def contradiction(conditions: dict[str, Any]) -> str | None:
    """Returns the contradiction between the verdict on the conditions and its reasons, or `None`."""
    verdict, is_forced = conditions["verdict"], conditions.get("is_forced", False)
    if verdict not in VERDICTS:
        return f"conditions.verdict is {verdict!r}, not one of {', '.join(VERDICTS)}"
    if verdict == "measured" and conditions["doubts"]:
        return "conditions.verdict is 'measured', but conditions.doubts is not empty"
    if verdict != "refused" and is_forced:
        return f"conditions.verdict is {verdict!r}, but conditions.is_forced is true"
    return None


def _is(value: Any, form: type) -> bool:  # noqa: ANN401
    if form is float:
        # The comparison with the limit also rejects NaN and infinity.
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= NUMBER_MAX
    if form is Positive:
        return _is(value, NUMBER) and value > 0
    if form is NotNegative:
        return _is(value, NUMBER) and value >= 0
    if form is Version:
        return _is(value, int) and value >= 1
    if form is Time:
        return isinstance(value, str) and _is_time(value)
    if form is Histogram:
        return isinstance(value, str) and (value == "" or _is_histogram(value))
    if form is int:
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= NUMBER_MAX
    return isinstance(value, form)


def _is_time(text: str) -> bool:
    found = TIME.fullmatch(text)
    try:
        return found is not None and bool(datetime.fromisoformat(found[1]))
    except ValueError:
        return False


def _is_histogram(text: str) -> bool:
    try:
        content = base64.b64decode(text, validate=True)
    except ValueError:
        return False
    cookie, length = int.from_bytes(content[:4]), int.from_bytes(content[4:8])
    # Readers ignore the second-lowest hexadecimal digit of the cookie, which is the size of a word.
    return cookie & ~0xF0 == HISTOGRAM_COOKIE and len(content) == HISTOGRAM_HEAD_BYTES + length
