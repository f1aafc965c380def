"""Compares advice with measurements. `bench/advise` passes a scratch directory and a result
directory."""

import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

FORDWAY = os.environ["FORDWAY"]
ROOT, PIN = os.environ["ROOT"], os.environ["PIN"]
TREE1 = os.environ.get("TREE1", "/usr/share/doc")
TREES = os.environ.get("TREES", "/usr/include /usr/lib/python3 /usr/lib/x86_64-linux-gnu").split()
FILES, MIB = int(os.environ.get("FILES", "1000")), int(os.environ.get("MIB", "128"))
REPEATS, ROUNDS = int(os.environ.get("REPEATS", "4")), "2"
LANES = os.environ.get("LANES", "posix embedded node http http2 https").split()
LIMIT = float(os.environ.get("LIMIT", "20"))
STUDENT = {1: 12.7, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}
"""Quantiles of Student's t distribution for 95 %, by degrees of freedom."""


def main() -> int:
    scratch, out = (Path(word) for word in sys.argv[1:])
    name = os.environ.get("NAME", "advise")
    first = sample(Path(TREE1), scratch / "trees")
    found, wrong = [], []
    for tree in map(Path, TREES):
        if not tree.is_dir():
            print(f"{tree} is not on this machine: left out")
            continue
        copy = sample(tree, scratch / "trees")
        machine, second = [], []
        # Alternate between the trees, because the speed of the machine changes within minutes.
        for at in range(REPEATS):
            machine.append(compare(first, out / f"{name}-{tree.name}-{at}-machine.run", at))
            second.append(compare(copy, out / f"{name}-{tree.name}-{at}.run", at))
        advice = advised(machine, copy)
        held = hold(advice, measured(second))
        show(tree, advice, held)
        wrong += [f"{tree}: {each}" for each in doubts(advice, held)]
        found.append({"tree": str(tree), "advice": advice, "held": held})
    (out / f"{name}.json").write_text(json.dumps(found, indent=1))
    cells = [row for each in found for row in each["held"] if row["phase"] != "total"]
    inside = sum(row["low"] <= row["measured"] <= row["high"] for row in cells)
    print(f"{inside} of {len(cells)} measured times of phases are in their intervals")
    for each in wrong:
        print(f"failed: {each}")
    return bool(wrong) or not found


def sample(tree: Path, into: Path) -> Path:
    """Copies up to FILES files and MIB MiB of the tree, always the same files. Returns the copy."""
    files = sorted(path for path in tree.rglob("*") if path.is_file() and not path.is_symlink())
    random.Random(1).shuffle(files)
    copy, room = into / tree.name, MIB << 20
    for path in files[:FILES]:
        size = path.stat().st_size
        if size <= room:
            room -= size
            to = copy / path.relative_to(tree)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, to)
    return copy


def compare(tree: Path, run: Path, seed: int) -> Path:
    pin = ["taskset", "--cpu-list", PIN] if PIN else []
    lanes = [word for lane in LANES for word in ("--lane", lane)]
    how = f"--rounds {ROUNDS} --seed {seed} --quiet --no-report".split()
    words = [*pin, FORDWAY, "compare", str(tree), *lanes, *how, "--root", ROOT, "--out", str(run)]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return run


def advised(machine: list[Path], tree: Path) -> dict:
    words = ["fordway-model", "advise", "--machine", *map(str, machine), "--tree", str(tree), "--json"]
    return json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout)


def measured(runs: list[Path]) -> dict[tuple[str, str], list[float]]:
    """Returns the seconds of each round, by phase and lane; for listings, the mean of the round's listings."""
    import pandas as pd

    parts = [pd.read_feather(run / "blocks.arrow").assign(run=at) for at, run in enumerate(runs)]
    rows = pd.concat(parts)
    times = rows.groupby(["phase", "lane", "run", "round"], sort=False)["elapsed_ns"]
    passes: dict[tuple[str, str], list[float]] = {}
    for (phase, lane, *_), own in times:
        seconds = (own.mean() if phase == "list" else own.sum()) / 1e9
        passes.setdefault((phase, lane), []).append(seconds)
    for lane in rows["lane"].unique():
        parts = [each for (_, of), each in passes.items() if of == lane]
        passes["total", lane] = [sum(each) for each in zip(*parts, strict=True)]
    return passes


def hold(advice: dict, passes: dict[tuple[str, str], list[float]]) -> list[dict]:
    """Returns each prediction, the mean of the measured times, and half the width of the mean's interval."""
    rows = []
    for part in [*advice["phases"], {"phase": "total"} | advice["total"]]:
        for each in part["lanes"]:
            own = passes[part["phase"], each["lane"]]
            mean = statistics.mean(own)
            half = STUDENT.get(len(own) - 1, 2) * statistics.stdev(own) / math.sqrt(len(own))
            figures = {name: each[name] for name in ("lane", "seconds", "low", "high")}
            error = 100 * (each["seconds"] / mean - 1)
            rows.append(
                {"phase": part["phase"]} | figures | {"measured": mean, "half": half, "error_pct": error}
            )
    return rows


def doubts(advice: dict, held: list[dict]) -> list[str]:
    """Returns a message for each predicted total with an error above LIMIT, and for advice that is wrong.

    Advice is wrong if the chosen lane is measurably slower than the fastest lane, or if the fastest lane is
    not among the lanes between which the advice does not decide.
    """
    rows = {row["lane"]: row for row in held if row["phase"] == "total"}
    said = [
        f"{lane} was predicted {row['error_pct']:+.0f} % off"
        for lane, row in rows.items()
        if abs(row["error_pct"]) > LIMIT
    ]
    fastest = min(rows.values(), key=lambda row: row["measured"])
    choice = advice["total"]["choice"]
    if choice["lane"] not in (None, fastest["lane"]) and not overlap(rows[choice["lane"]], fastest):
        said.append(f"it chose {choice['lane']}, and {fastest['lane']} was faster")
    if choice["lane"] is None and fastest["lane"] not in choice["between"]:
        said.append(f"it was between {', '.join(choice['between'])}, and {fastest['lane']} was faster")
    return said


def overlap(one: dict, other: dict) -> bool:
    return abs(one["measured"] - other["measured"]) <= one["half"] + other["half"]


def show(tree: Path, advice: dict, held: list[dict]) -> None:
    objects = advice["objects"]
    print(
        f"{tree}: {objects['objects']} objects, {objects['bytes'] / 2**20:.1f} MiB, {objects['directories']} directories"
    )
    print(f"{'phase':8}{'lane':10}{'predicted ms':>13}{'interval':>20}{'measured ms':>18}{'error %':>9}")
    for row in held:
        interval = f"{1e3 * row['low']:.1f} to {1e3 * row['high']:.1f}"
        was = f"{1e3 * row['measured']:.1f} ± {1e3 * row['half']:.1f}"
        print(
            f"{row['phase']:8}{row['lane']:10}{1e3 * row['seconds']:13.1f}{interval:>20}{was:>18}{row['error_pct']:+9.0f}"
        )
    choice = advice["total"]["choice"]
    said = (
        f"choose {choice['lane']}"
        if choice["lane"]
        else f"cannot tell between {', '.join(choice['between'])}"
    )
    totals = sorted((row for row in held if row["phase"] == "total"), key=lambda row: row["measured"])
    same = [row["lane"] for row in totals if overlap(row, totals[0])]
    print(f"advice: {said}; measured fastest: {', or '.join(same)}\n")


if __name__ == "__main__":
    sys.exit(main())
