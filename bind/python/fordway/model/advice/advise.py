"""The advice: predicted times of each phase on each lane, the recommended lane, and warnings."""

from pathlib import Path
from typing import Any

import numpy as np

from fordway.model.advice import times
from fordway.model.advice.link import NetworkPath, crosses, is_over_network
from fordway.model.advice.machine import Machine
from fordway.model.advice.objects import Objects
from fordway.model.advice.times import Times
from fordway.model.points import MeasurementError
from fordway.model.report import SCHEMA, SCHEMA_VERSION, clean

OUTSIDE_MAX = 0.2
"""Maximum share of a lane's time for objects outside the measured sizes. Above this share, no lane is
recommended.
"""
ROUNDS_DIFFER = 2.0
"""If the times of two rounds with the same work differ by more than this factor, the state of the machine
probably changed.
"""
ROUNDS_MIN = 5


def advise(
    machine: Machine, objects: Objects, link: NetworkPath, phases: list[str] | None, lanes: list[str] | None
) -> dict[str, Any]:
    """Returns the advice as a JSON document. Raises `MeasurementError` for phases or lanes that were not
    measured.
    """
    phases = _chosen("phase", phases, machine.phases)
    lanes = _chosen("lane", lanes, machine.lanes)
    found = {phase: times.of_phase(machine, phase, objects, link) for phase in phases}
    found = {phase: {lane: own[lane] for lane in lanes if lane in own} for phase, own in found.items()}
    whole = times.total(list(found.values()))
    return clean(
        {
            "schema": SCHEMA,
            "schema_version": SCHEMA_VERSION,
            "command": "advise",
            "confidence": times.LEVEL,
            "objects": _objects(objects),
            "machine": _machine(machine),
            "link": {"rtt_us": link.rtt_us, "bandwidth_bytes_per_us": link.bandwidth_bytes_per_us},
            "phases": [{"phase": phase} | _compared(own) for phase, own in found.items()],
            "total": _compared(whole),
            "warnings": _warnings(machine, objects, link, found),
        }
    )


def _chosen(what: str, wanted: list[str] | None, there: list[str]) -> list[str]:
    missing = [name for name in wanted or [] if name not in there]
    if missing:
        raise MeasurementError(
            f"the machine was not measured in the {what} {', '.join(missing)}; it was measured in: "
            f"{', '.join(there)}"
        )
    return [name for name in there if wanted is None or name in wanted]


def _objects(objects: Objects) -> dict[str, Any]:
    return {
        "source": objects.name,
        "objects": objects.count,
        "bytes": objects.bytes,
        "directories": objects.directories,
    }


def _machine(machine: Machine) -> dict[str, Any]:
    first = machine.runs[0]
    systems = first["machine"].get("file_systems") or []
    return {
        "runs": [" ".join(info["command"]) for info in machine.runs],
        "cpu_model": first["machine"].get("cpu_model"),
        "cpus": first["machine"].get("cpus"),
        "file_system": next((each["kind"] for each in systems if each["role"] == "root"), None),
        "threads": machine.threads,
        "durability": first["parameters"].get("durability"),
        "range_bytes_max": machine.range_bytes_max,
    }


def _compared(found: dict[str, Times]) -> dict[str, Any]:
    """Returns the time of each lane, and the recommended lane."""
    return {"lanes": [_lane(lane, own) for lane, own in found.items()], "choice": choose(found)}


def _lane(lane: str, own: Times) -> dict[str, Any]:
    low, high = own.interval() or (None, None)
    nodes = None if own.cost is None else own.cost.form.nodes
    return {
        "lane": lane,
        "seconds": own.seconds,
        "low": low,
        "high": high,
        "left_out_pct": None if own.left_out is None else 100 * own.left_out,
        "outside_share": own.outside,
        "rounds_differ": own.rounds,
        "pieces": None if nodes is None else len(nodes),
    }


def choose(found: dict[str, Times]) -> dict[str, Any]:
    """Returns the lane that is fastest in nearly all draws. Otherwise, returns the lanes between which no
    choice is possible, and the reason.
    """
    if len(found) < 2:
        return {"lane": None, "between": list(found), "why": "there is nothing to choose from"}
    if any(own.interval() is None for own in found.values()):
        why = "one round does not show how much rounds differ; measure more rounds"
        return {"lane": None, "between": list(found), "why": why}
    in_order = sorted(found, key=lambda lane: found[lane].seconds)
    best = in_order[0]
    near = [best, *(lane for lane in in_order[1:] if not _faster(found[best], found[lane]))]
    if len(near) > 1:
        return {"lane": None, "between": near, "why": "their intervals do not distinguish them"}
    unknown = [lane for lane in in_order if found[lane].outside > OUTSIDE_MAX]
    if unknown:
        why = "much of the time is for sizes that were not measured"
        return {"lane": None, "between": in_order, "why": why}
    return {"lane": best, "between": [], "why": None}


def _faster(one: Times, other: Times) -> bool:
    """Returns whether `one` is faster than `other` in at least 97.5 % of the draws."""
    return bool(np.mean(one.draws < other.draws) >= (1 + times.LEVEL) / 2)


def _warnings(
    machine: Machine, objects: Objects, link: NetworkPath, found: dict[str, dict[str, Times]]
) -> list[str]:
    said = [
        *objects.notes,
        *machine.doubts,
        *machine.notes,
        *_outside(machine, objects, found),
        *_states(machine, found),
    ]
    said += _networks(machine, link, list(dict.fromkeys(lane for own in found.values() for lane in own)))
    load = [info["machine"].get("load_1min") or 0 for info in machine.runs]
    if max(load) > 0.5 * (machine.runs[0]["machine"].get("cpus") or 1):
        said.append(
            f"the machine was busy when it was measured (load {max(load):g}), so the times include other work"
        )
    cold = "" if machine.is_cold else "of cold caches (everything was read soon after it was written), "
    said.append(
        f"unknown: the effect {cold}of other work at the same time, and of any file system other than the "
        "measured one"
    )
    return said


def _networks(machine: Machine, link: NetworkPath, lanes: list[str]) -> list[str]:
    """Returns warnings about the networks that the times of the HTTP lanes include."""
    targets = machine.targets
    said = [
        f"the lane {lane} was measured over the network to {targets[lane]}: its times include that network, "
        "and --rtt and --bandwidth do not change them"
        for lane in lanes
        if is_over_network(lane, targets)
    ]
    if machine.link is not None and any(crosses(lane, targets) for lane in lanes):
        said.append(
            f"lanes of HTTP were measured over an emulated link ({machine.link}): --rtt and --bandwidth "
            "do not change them"
        )
    elif not link.is_given and any(crosses(lane, targets) for lane in lanes):
        said.append("lanes of HTTP are over loopback, as measured: give --rtt and --bandwidth of the network")
    return said


def _outside(machine: Machine, objects: Objects, found: dict[str, dict[str, Times]]) -> list[str]:
    worst = max((own.outside for lanes in found.values() for own in lanes.values()), default=0.0)
    measured = machine.operations.loc[machine.operations["phase"] != "list", "bytes"]
    size = objects.rows["bytes"]
    outside = objects.rows.loc[times.is_outside(size, measured.min(), measured.max()), "count"].sum()
    if not outside:
        return []
    return [
        f"{outside:,.0f} object(s) are outside the measured {measured.min():,.0f} to {measured.max():,.0f} "
        f"B, up to {100 * worst:.0f} % of a lane's time: the intervals do not hold for them. Measure a tree "
        "with such sizes"
    ]


def _states(machine: Machine, found: dict[str, dict[str, Times]]) -> list[str]:
    said = []
    differ = {lane: own.rounds for lanes in found.values() for lane, own in lanes.items()}
    for lanes in found.values():
        for lane, own in lanes.items():
            differ[lane] = max(differ[lane], own.rounds)
    named = [f"{lane} ({factor:.1f} times)" for lane, factor in differ.items() if factor > ROUNDS_DIFFER]
    if named:
        said.append(
            f"rounds of the same work differ: {', '.join(named)}. The machine was in several states, such as "
            "client and server on one core or on two; the intervals include this. Measure more rounds, or "
            "pin both (taskset)"
        )
    rounds = machine.operations.groupby(["run", "round"]).ngroups
    if rounds < ROUNDS_MIN:
        said.append(
            f"{rounds} round(s) are too few to show how much rounds differ: measure at least {ROUNDS_MIN}"
        )
    return said


def file_system_doubt(machine: dict[str, Any], tree: Path) -> list[str]:
    """Returns a warning if `tree` and the measured lanes are on different kinds of file system."""
    own, measured = _kind_of(tree.resolve()), machine["file_system"]
    if own is None or measured is None or own == measured:
        return []
    return [f"{tree} is on {own}, but the lanes were measured on {measured}: the times apply to {measured}"]


def _kind_of(path: Path) -> str | None:
    """Returns the kind of the file system at `path`, or `None` if the system does not report it."""
    try:
        lines = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    mounts = [(Path(words[1]), words[2]) for words in map(str.split, lines) if len(words) > 2]
    holding = [
        (len(mount.parts), at, kind) for at, (mount, kind) in enumerate(mounts) if path.is_relative_to(mount)
    ]
    return max(holding)[2] if holding else None
