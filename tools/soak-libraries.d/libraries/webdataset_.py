"""webdataset: tar files that are written through s3fs and read through aws-cli, as its documentation recommends."""

import sys
from pathlib import Path

import fsspec
import webdataset
from work import Place, run

PIECE, SHARDS = 1 << 16, 4
AWS = f"{sys.executable} {Path(sys.executable).parent / 'aws'}"


def write(place: Place, data: bytes) -> None:
    each = -(-len(data) // SHARDS // PIECE) * PIECE
    for shard in range(SHARDS):
        with (
            fsspec.open(place.of(f"{shard}.tar"), "wb") as file,
            webdataset.TarWriter(file) as writer,
        ):
            for at in range(shard * each, min((shard + 1) * each, len(data)), PIECE):
                piece = data[at : min(at + PIECE, (shard + 1) * each)]
                writer.write({"__key__": f"{at:09}", "bin": piece})


def read(place: Place) -> bytes:
    source = f"pipe:{AWS} s3 cp {place.url}/{{0..{SHARDS - 1}}}.tar -" if place.is_s3 else f"{place.url}/{{0..{SHARDS - 1}}}.tar"
    samples = webdataset.WebDataset(source, shardshuffle=False)
    return b"".join(sample["bin"] for sample in sorted(samples, key=lambda sample: sample["__key__"]))


run(write, read)
