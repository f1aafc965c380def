"""Code that the scripts of soak-libraries share.

A script writes data to a place, reads the data back, and prints one line of JSON: the SHA-256 of the data that it read,
the number of bytes, and the times in seconds of writing and reading. It fails if it reads other data than it wrote.
A place is a directory, or `s3://BUCKET/PREFIX`.
"""

import hashlib
import json
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

WARM_UP_BYTES = 64 * 1024


@dataclass(frozen=True)
class Place:
    """Where a script writes."""

    url: str

    @property
    def is_s3(self) -> bool:
        """Whether the place is in S3."""
        return self.url.startswith("s3://")

    @property
    def bucket(self) -> str:
        """The bucket; only in S3."""
        return self.url.removeprefix("s3://").partition("/")[0]

    @property
    def prefix(self) -> str:
        """The path below the bucket, without a slash at its end; only in S3."""
        return self.url.removeprefix("s3://").partition("/")[2]

    def of(self, name: str) -> str:
        """Returns the address of an object or file."""
        return f"{self.url}/{name}"


def settings() -> dict[str, str]:
    """Returns endpoint, region and keys, for libraries that take no endpoint from the environment."""
    return {
        "endpoint": os.environ["AWS_ENDPOINT_URL"],
        "region": os.environ["AWS_REGION"],
        "key": os.environ["AWS_ACCESS_KEY_ID"],
        "secret": os.environ["AWS_SECRET_ACCESS_KEY"],
    }


def random_bytes(count: int) -> bytes:
    """Returns the same bytes in each run."""
    return random.Random(7).randbytes(count)


def run(write: Callable[[Place, bytes], object], read: Callable[[Place], bytes], part: float = 1) -> None:
    """Writes and reads data, and prints the result. Arguments of the script: a place, and a size in MiB.

    Slow formats use only `part` of the size. First writes and reads a little elsewhere, so that the times do not
    contain the imports of modules and the start of connections.
    """
    place, data = Place(sys.argv[1]), random_bytes(int(float(sys.argv[2]) * part * 2**20) // 8 * 8)
    little = Place(f"{place.url}-little")
    if not little.is_s3:
        os.mkdir(little.url)
    write(little, data[:WARM_UP_BYTES])
    read(little)
    begun = time.perf_counter()
    write(place, data)
    written = time.perf_counter()
    found = read(place)
    ended = time.perf_counter()
    if found != data:
        sys.exit(f"{len(found)} bytes were read that are not the {len(data)} bytes written")
    sha256 = hashlib.sha256(found).hexdigest()
    result = {"sha256": sha256, "bytes": len(data), "write_s": written - begun, "read_s": ended - written}
    print(json.dumps(result))
