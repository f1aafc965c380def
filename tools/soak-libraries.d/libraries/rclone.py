"""rclone: copies of a file in both directions, with the remote `fordway:`."""

import subprocess
import tempfile
from pathlib import Path

from work import Place, run


def of(place: Place, name: str) -> str:
    address = place.of(name)
    return f"fordway:{address.removeprefix('s3://')}" if place.is_s3 else address


def copy(source: str, target: str) -> None:
    subprocess.run(["rclone", "copyto", source, target], check=True)


def write(place: Place, data: bytes) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        copy(file.name, of(place, "file"))


def read(place: Place) -> bytes:
    with tempfile.TemporaryDirectory() as scratch:
        copy(of(place, "file"), f"{scratch}/file")
        return Path(f"{scratch}/file").read_bytes()


run(write, read)
