"""Synthetic runs of `fordway compare` for the tests of advice. The cost of every operation is known."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
from sample_run import BLOCK_TYPES, OBJECT_TYPES, OPERATION_TYPES, PHASES, run_info, write_arrow

BLOCK = 64
RANGE_BYTES_MAX = 65_536


@dataclass(frozen=True)
class Lane:
    """The costs of operations on a lane, in µs."""

    base_us: float = 10.0
    byte_us: float = 0.0005
    directory_us: float = 0.5
    made_us: float = 5.0
    emptied_us: float = 3.0
    listed_us: float = 2.0
    listed_directory_us: float = 4.0
    noise: float = 0.0
    """Relative standard deviation of the times of single operations."""
    state: float = 0.0
    """Relative standard deviation of the times of whole rounds."""

    def cost_us(self, phase: str, objects: pd.DataFrame) -> np.ndarray:
        """Returns the cost of an operation on each of `objects`."""
        moved = {
            "put": objects["bytes"],
            "get": objects["bytes"],
            "range": objects["bytes"].clip(upper=RANGE_BYTES_MAX),
        }.get(phase, 0 * objects["bytes"])
        extra = self.made_us * objects["made_directories"] if phase == "put" else 0
        extra = self.emptied_us * objects["emptied_directories"] if phase == "delete" else extra
        cost = self.base_us + self.byte_us * moved + self.directory_us * objects["directories"] + extra
        return cost.to_numpy()

    def listing_us(self, objects: pd.DataFrame) -> float:
        """Returns the cost of a listing of all `objects`."""
        return self.listed_us * len(objects) + self.listed_directory_us * objects["made_directories"].sum()

    def pass_us(self, phase: str, objects: pd.DataFrame, random: np.random.Generator) -> float:
        """Returns the time of one pass, including all random deviations."""
        if phase == "list":
            each = np.array([self.listing_us(objects)])
        else:
            each = self.cost_us(phase, _taken(phase, objects))
        state, noise = self.factors(len(each), random)
        return float((each * state * noise).sum())

    def factors(self, count: int, random: np.random.Generator) -> tuple[float, np.ndarray]:
        """Returns random factors for a round and for each of its operations."""
        return float(np.exp(self.state * random.standard_normal())), np.exp(
            self.noise * random.standard_normal(count) - self.noise**2 / 2
        )


@dataclass
class Tree:
    """Objects in directories."""

    count: int = 800
    mean_log_bytes: float = 9.0
    per_directory: int = 5
    seed: int = 1
    objects: pd.DataFrame = field(init=False)

    def __post_init__(self) -> None:
        random = np.random.default_rng(self.seed)
        first = np.arange(self.count) % self.per_directory == 0
        self.objects = pd.DataFrame(
            {
                "bytes": np.floor(np.exp(random.normal(self.mean_log_bytes, 1.8, self.count))),
                "directories": random.integers(1, 6, self.count),
                "made_directories": first.astype(int),
                "emptied_directories": first[::-1].astype(int),
            }
        )

    def write(self, root: Path) -> Path:
        """Writes the same objects as files, with `per_directory` files in each directory."""
        for at, size in enumerate(self.objects["bytes"].astype(int)):
            path = root / f"d{at // self.per_directory}" / f"f{at}"
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                file.truncate(size)
        return root

    def histogram(self, path: Path) -> str:
        """Writes the sizes to a CSV file, and returns its path as an argument of a command."""
        counts = self.objects.groupby("bytes").size().rename("count").reset_index()
        counts.astype(int).rename(columns={"bytes": "size_B"}).to_csv(path, index=False)
        return str(path)


def _taken(phase: str, objects: pd.DataFrame) -> pd.DataFrame:
    return objects[objects["bytes"] > 0] if phase == "range" else objects


def write_machine(
    directory: Path,
    lanes: Mapping[str, Lane],
    tree: Tree | None = None,
    *,
    rounds: int = 5,
    seed: int = 1,
    change: Callable[[dict], object] | None = None,
) -> Path:
    """Writes a run of `lanes` on `tree`. `change` may modify the content of `run.json`."""
    tree = tree or Tree()
    random = np.random.default_rng(seed)
    parts, objects = [], []
    for number in range(rounds):
        shuffled = tree.objects.sample(frac=1, random_state=seed + number).reset_index(drop=True)
        objects.append(shuffled.assign(round=number))
        for at, phase in enumerate(PHASES):
            first = (number * len(PHASES) + at) * len(shuffled)
            parts += [
                _round(name, lane, phase, shuffled, number, first, random) for name, lane in lanes.items()
            ]
    operations = pd.concat(parts)
    grouped = operations.groupby(["lane", "phase", "round", "block"], sort=False)
    blocks = grouped.agg(operations=("ok", "sum"), bytes=("bytes", "sum"), elapsed_ns=("duration_ns", "sum"))
    blocks = blocks.reset_index().assign(client_cpu_ns=1, server_cpu_ns=np.nan)
    directory.mkdir(parents=True)
    write_arrow(directory / "operations.arrow", operations, OPERATION_TYPES)
    write_arrow(directory / "blocks.arrow", blocks, BLOCK_TYPES)
    write_arrow(directory / "objects.arrow", pd.concat(objects), OBJECT_TYPES)
    info = run_info(dict.fromkeys(lanes, "made up"), [])
    info["parameters"] |= {"range_bytes_max": RANGE_BYTES_MAX, "rounds": rounds}
    info["machine"]["load_1min"] = 0.1
    if change:
        change(info)
    (directory / "run.json").write_text(json.dumps(info), encoding="utf-8")
    return directory


def _round(
    name: str,
    lane: Lane,
    phase: str,
    objects: pd.DataFrame,
    number: int,
    first: int,
    random: np.random.Generator,
) -> pd.DataFrame:
    if phase == "list":
        cost, moved = np.full(3, lane.listing_us(objects)), np.zeros(3)
        block = first + np.arange(3)
    else:
        objects = _taken(phase, objects)
        cost, moved = lane.cost_us(phase, objects), objects["bytes"].to_numpy()
        moved = np.minimum(moved, RANGE_BYTES_MAX) if phase == "range" else moved
        moved = moved if phase in ("put", "get", "range") else 0 * moved
        block = first + np.arange(len(cost)) // BLOCK
    state, noise = lane.factors(len(cost), random)
    duration_ns = cost * state * noise * 1e3
    return pd.DataFrame(
        {
            "lane": name,
            "phase": phase,
            "round": number,
            "block": block,
            "thread": 0,
            "start_ns": np.floor(np.cumsum(duration_ns) - duration_ns),
            "duration_ns": np.round(duration_ns),
            "bytes": moved,
            "ok": True,
            "intended_ns": None,
            "first_byte_ns": None,
        }
    )
