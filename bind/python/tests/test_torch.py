"""Loads objects as data sets of PyTorch. PyTorch is large, so it is not among the packages of the tests. If
the system's Python has it (Debian: python3-torch), the test runs there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from gateways import KEYS, endpoint

import fordway

SYSTEM_PYTHON = "/usr/bin/python3"
PROGRAM = r"""
import pickle, sys
from torch.utils.data import DataLoader
from fordway.errors import InvalidArgumentError, NotFoundError
from fordway.torch import ObjectDataset, ObjectIterableDataset

def number(key, content):
    assert content == b"content of " + key.encode()
    return int(key.rpartition("/")[2])

where = sys.argv[1]
for workers in (0, 3):
    data = ObjectDataset("data", "train/", endpoint=where, transform=number)
    assert len(data) == 250 and data[7] == 7
    loader = DataLoader(data, batch_size=16, shuffle=True, num_workers=workers, collate_fn=list)
    batches = list(loader)
    assert sorted(sum(batches, [])) == list(range(250)) != sum(batches, [])
    parts = []
    for rank in range(2):
        asked = {"endpoint": where, "transform": number, "part": (rank, 2), "batch": 10}
        stream = pickle.loads(pickle.dumps(ObjectIterableDataset("data", "train/", **asked)))
        parts.append(list(DataLoader(stream, batch_size=None, num_workers=workers)))
    assert all(len(part) > 90 for part in parts), [len(part) for part in parts]
    assert sorted(sum(parts, [])) == list(range(250))
assert list(ObjectIterableDataset("data", "train/00", endpoint=where, transform=number)) == list(range(10))
assert ObjectDataset("data", keys=["train/003"], endpoint=where)[0] == ("train/003", b"content of train/003")
for wrong in ({"part": (2, 2)}, {"part": (-1, 2)}, {"batch": 0}):
    try:
        ObjectIterableDataset("data", endpoint=where, **wrong)
        raise SystemExit(f"{wrong} was accepted")
    except InvalidArgumentError:
        pass
first = ObjectIterableDataset("data", "train/", endpoint=where, transform=number, part=(0, 2))
second = ObjectIterableDataset("data", "train/", endpoint=where, transform=number, part=(1, 2))
seen = list(first)
first.store.put("data", "train/-1", b"content of train/-1")
assert sorted(set(seen + list(second)) - {-1}) == list(range(250)), "a new object moved others"
missing = ObjectDataset("data", keys=["train/003", "train/none"], endpoint=where)
for access in (lambda: missing[1], lambda: missing.__getitems__([0, 1])):
    try:
        access()
        raise SystemExit("an object that does not exist was read")
    except NotFoundError:
        pass
print("passed")
"""


@pytest.mark.parametrize("lane", ["embedded", "node", "http"])
def test_data_loaders_read_each_object_once(
    lane: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (
        not Path(SYSTEM_PYTHON).exists()
        or subprocess.run([SYSTEM_PYTHON, "-c", "import torch"]).returncode != 0
    ):
        pytest.skip("there is no PyTorch in the system's Python (Debian: python3-torch)")
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    with endpoint(lane, tmp_path) as where:
        store = fordway.open(where)
        store.create_bucket("data")
        store.put_many("data", [(f"train/{n:03}", f"content of train/{n:03}".encode()) for n in range(250)])
        store.put("data", "other", b"is not below the prefix")
        store.put("data", "train/", b"")
        packages = str(Path(fordway.__file__).parent.parent)
        done = subprocess.run(
            [SYSTEM_PYTHON, "-c", PROGRAM, where],
            env=os.environ | {"PYTHONPATH": packages},
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert (done.returncode, done.stdout) == (0, "passed\n"), done.stderr


STUB = """
class Dataset: pass
class IterableDataset: pass
def get_worker_info(): return None
"""
MARKERS = """
import sys
from fordway.torch import ObjectDataset, ObjectIterableDataset
for kind in (ObjectDataset, ObjectIterableDataset):
    data = kind("data", "train/", endpoint=sys.argv[1])
    print(*(key for key, _ in data))
"""


def test_markers_of_directories_are_not_items(tmp_path: Path) -> None:
    """Consoles and other programs create empty objects such as `train/`. Needs no PyTorch."""
    stub = tmp_path / "stub/torch/utils"
    stub.mkdir(parents=True)
    (stub / "data.py").write_text(STUB)
    (tmp_path / "root").mkdir()
    store = fordway.open(tmp_path / "root")
    store.create_bucket("data")
    for key, content in {"train/": b"", "train/a/": b"", "train/a/1": b"", "train/b/": b"content"}.items():
        store.put("data", key, content)
    packages = os.pathsep.join([str(tmp_path / "stub"), str(Path(fordway.__file__).parent.parent)])
    done = subprocess.run(
        [sys.executable, "-c", MARKERS, str(tmp_path / "root")],
        env=os.environ | {"PYTHONPATH": packages},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "train/a/1 train/b/\n" * 2
