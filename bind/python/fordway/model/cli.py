"""The `fordway-model` command."""

import json
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fordway import output
from fordway.model import options

if TYPE_CHECKING:
    from fordway.model.points import Points

NOT_INSTALLED = "the packages that fit models are not installed: pip install 'fordway[model]'"
BAD_INPUT = 2
"""Exit status for unusable measurements or options, and for output that cannot be written."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command in `arguments`. Returns the exit status."""
    chosen = options.parser().parse_args(arguments)
    try:
        from fordway.model.points import MeasurementError
    except ModuleNotFoundError as error:
        return _fail(f"{NOT_INSTALLED} ({error})")
    try:
        return {"fit": _fit, "check": _check, "predict": _predict, "advise": _advise}[chosen.command](chosen)
    except ModuleNotFoundError as error:
        return _fail(f"{NOT_INSTALLED} ({error})")
    except (MeasurementError, output.OutputError) as error:
        return _fail(str(error))


def _fit(chosen: Namespace) -> int:
    from fordway.model import report, study

    points, constants = _read(chosen), options.constants(chosen)
    tried: list[study.Candidate] = []
    if chosen.model == "auto":
        result, tried = study.choose(points, constants, chosen.method)
    else:
        result = study.examine(points, constants, chosen.model, chosen.method)
    return _show(chosen, report.document("fit", result, points, constants, tried))


def _check(chosen: Namespace) -> int:
    from fordway.model import models, points, predict, report, study

    if chosen.model and chosen.fit:
        raise points.MeasurementError("--model and --fit exclude each other: give one of them")
    rows, constants = _read(chosen), options.constants(chosen)
    if chosen.fit:
        stored = predict.read_fit(chosen.fit)
        constants = predict.constants_of(stored, constants)
        rows.doubts.extend(predict.doubts_of(stored))
        result = study.hold(rows, constants, *predict.coefficients(stored))
    elif chosen.model:
        result = study.hold(rows, constants, models.MODELS[chosen.model])
    else:
        return _data(chosen, rows)
    return _show(chosen, report.document("check", result, rows, constants, []))


def _data(chosen: Namespace, rows: "Points") -> int:
    """Prints the measurements, without a model. The exit status indicates failure if counters were
    refused.
    """
    from fordway.model import points, report

    if chosen.plot:
        raise points.MeasurementError("a figure needs a model: add --model or --fit")
    found = report.data_document(rows, options.load(chosen), options.constants(chosen))
    _print(chosen, found, report.data_text(found))
    return _fail("; ".join(rows.refused)) if rows.refused else 0


def _predict(chosen: Namespace) -> int:
    from fordway.model import predict, report

    sizes = [options.quantity(each, "size") for each in chosen.size.split(",")]
    frequency = options.quantity(chosen.frequency, "frequency")
    found = report.clean(predict.predict(predict.read_fit(chosen.fit), sizes, frequency, chosen.connections))
    _print(chosen, found, report.predicted_text(found))
    return 0


def _advise(chosen: Namespace) -> int:
    from fordway.model import plot
    from fordway.model.advice import advise, draw, machine, text

    if chosen.plot:
        plot.check_form(chosen.plot)
    objects, link = options.objects(chosen), options.network(chosen)
    measured = machine.read(chosen.machine)
    found = advise.advise(measured, objects, link, options.names(chosen.phase), options.names(chosen.lane))
    if chosen.tree:
        found["warnings"] += advise.file_system_doubt(found["machine"], chosen.tree)
    shown = text.text(found)
    if chosen.plot:
        plot.write(draw.draw(found), "advice", shown, chosen.plot)
    _print(chosen, found, shown)
    return 0


def _read(chosen: Namespace) -> "Points":
    from fordway.model import checks, plot, readers

    if chosen.plot:
        plot.check_form(chosen.plot)
    doubts = options.take_probe(chosen)
    points = readers.read(chosen.files, options.choice(chosen))
    points.doubts.extend(doubts)
    return checks.checked(points, options.load(chosen), skip_bad=chosen.skip_bad)


def _show(chosen: Namespace, found: dict[str, Any]) -> int:
    from fordway.model import plot, report

    text = report.text(found)
    if chosen.plot:
        plot.save(found, text, chosen.plot)
    _print(chosen, found, text)
    return 0


def _print(chosen: Namespace, found: dict[str, Any], text: str) -> None:
    output.write(json.dumps(found, indent=1, ensure_ascii=False) + "\n" if chosen.json else text)


def _fail(message: str) -> int:
    output.write_error(f"fordway-model: {message}.\n")
    return BAD_INPUT
