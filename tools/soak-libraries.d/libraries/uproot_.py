"""uproot: a ROOT file that is uploaded, and read branch by branch. If SOAK_ROOT_FILES names a directory with ROOT files
(of go-hep/hep, for instance), these are read both ways, and must give the same arrays.
"""

import os
import tempfile
from pathlib import Path

import fsspec
import numpy
import uproot
from work import Place, run

NAMES = ("small-flat-tree.root", "small-evnt-tree-fullsplit.root", "ntuple.root")


def own_files() -> list[Path]:
    directory = os.environ.get("SOAK_ROOT_FILES")
    return [path for name in NAMES for path in Path(directory).rglob(name)] if directory else []


def write(place: Place, data: bytes) -> None:
    files, path = fsspec.url_to_fs(place.url)
    with tempfile.TemporaryDirectory() as scratch:
        with uproot.recreate(f"{scratch}/tree.root", compression=uproot.ZLIB(1)) as file:
            file["tree"] = {"value": numpy.frombuffer(data, "int64")}
        files.put_file(f"{scratch}/tree.root", f"{path}/tree.root")
    for own in own_files():
        files.put_file(str(own), f"{path}/{own.name}")


def arrays(address: object) -> list[object]:
    with uproot.open(address) as file:
        trees = [file[name] for name, kind in file.classnames().items() if kind in ("TTree", "TNtuple")]
        return [tree.arrays().to_list() for tree in trees]


def read(place: Place) -> bytes:
    for own in own_files():
        found = arrays(place.of(own.name))
        assert found and found == arrays(own), own.name
    with uproot.open(place.of("tree.root")) as file:
        return file["tree"]["value"].array(library="np").tobytes()


run(write, read)
