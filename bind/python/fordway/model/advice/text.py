"""Formats advice as text."""

from typing import Any

from fordway import output
from fordway.model.report import table
from fordway.report.units import count, duration, size


def text(found: dict[str, Any]) -> str:
    """Returns an advice document as text."""
    parts = [_what(found), _where(found), "", table(_rows(found)), ""]
    parts += [f"{part['phase']}: {verdict(part['choice'])}." for part in _parts(found)] + [""]
    parts += [output.line(f"warning: {sentence}.") for sentence in found["warnings"]]
    return "\n".join(parts) + "\n"


def _what(found: dict[str, Any]) -> str:
    objects = found["objects"]
    return (
        f"{count(objects['objects'])} objects, {size(objects['bytes'])}, in {count(objects['directories'])} "
        f"directories: {objects['source']}"
    )


def _where(found: dict[str, Any]) -> str:
    machine = found["machine"]
    parts = [
        f"{len(machine['runs'])} run(s) on {machine['file_system'] or 'an unknown file system'}",
        f"{machine['threads']} thread(s)",
        f"durability {machine['durability']}",
    ]
    link = found["link"]
    if link["rtt_us"] is not None:
        parts.append(f"HTTP over a round trip of {duration(1e3 * link['rtt_us'])}")
    if link["bandwidth_bytes_per_us"] is not None:
        parts.append(f"HTTP at {8 * link['bandwidth_bytes_per_us']:,.0f} Mbit/s")
    return f"by {', '.join(parts)}; intervals of {100 * found['confidence']:.0f} %"


def _rows(found: dict[str, Any]) -> list[list[str]]:
    rows = [["phase", "lane", "time", "from", "to", "left out %", "outside %", ""]]
    for part in _parts(found):
        rows += [
            [part["phase"], each["lane"], *_figures(each), _mark(part["choice"], each["lane"])]
            for each in part["lanes"]
        ]
    return rows


def _parts(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [*found["phases"], {"phase": "total"} | found["total"]]


def _figures(each: dict[str, Any]) -> list[str]:
    left_out = each["left_out_pct"]
    seconds = [each[name] for name in ("seconds", "low", "high")]
    times = ["-" if value is None else duration(1e9 * value) for value in seconds]
    return [*times, "-" if left_out is None else f"{left_out:.0f}", f"{100 * each['outside_share']:.0f}"]


def _mark(choice: dict[str, Any], lane: str) -> str:
    if choice["lane"] == lane:
        return "<- choose"
    return "<- or this" if lane in choice["between"] else ""


def verdict(choice: dict[str, Any]) -> str:
    """Returns a short text for the choice."""
    if choice["lane"]:
        return f"choose {choice['lane']}"
    if len(choice["between"]) < 2:
        return choice["why"]
    return f"cannot tell between {', '.join(choice['between'])}: {choice['why']}"
