"""aws-cli: cp of a file in both directions."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from work import Place, run

AWS = Path(sys.executable).parent / "aws"


def copy(source: str, target: str, is_s3: bool) -> None:
    command = [sys.executable, AWS, "s3", "cp", "--only-show-errors"] if is_s3 else ["cp"]
    subprocess.run([*command, source, target], check=True, env=os.environ | {"AWS_PAGER": ""})


def write(place: Place, data: bytes) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        copy(file.name, place.of("file"), place.is_s3)


def read(place: Place) -> bytes:
    with tempfile.TemporaryDirectory() as scratch:
        copy(place.of("file"), f"{scratch}/file", place.is_s3)
        return Path(f"{scratch}/file").read_bytes()


run(write, read)
