"""Creates the file and the fragments of the benchmark, which are the same on every machine.

usage: workload.py DIR

Creates DIR/file (700 MB), and DIR/ranges-PERCENT for 10, 50 and 100 %, with `offset length` on each line.
"""

import random
import sys
from pathlib import Path

FILE_BYTES = 700_000_000
FRAGMENTS = 12_000
FRAGMENT_BYTES = (2_000, 60_000)
SEED = 291
PERCENTS = (10, 50, 100)
BLOCK_BYTES = 1 << 20


def fragments(draw):
    """Returns sorted fragments that do not overlap, like the baskets of a few columns in a file."""
    lengths = [draw.randint(*FRAGMENT_BYTES) for _ in range(FRAGMENTS)]
    gap = FILE_BYTES - sum(lengths)
    cuts = sorted(draw.randint(0, gap) for _ in lengths)
    ranges, before = [], 0
    for cut, length in zip(cuts, lengths, strict=True):
        ranges.append((cut + before, length))
        before += length
    return ranges


def write_file(path, draw):
    with path.open("wb") as file:
        for start in range(0, FILE_BYTES, BLOCK_BYTES):
            file.write(draw.randbytes(min(BLOCK_BYTES, FILE_BYTES - start)))


def main():
    directory = Path(sys.argv[1])
    ranges = fragments(random.Random(SEED))
    for percent in PERCENTS:
        chosen = random.Random(percent).sample(ranges, len(ranges) * percent // 100)
        lines = [f"{offset} {length}\n" for offset, length in sorted(chosen)]
        (directory / f"ranges-{percent}").write_text("".join(lines))
    write_file(directory / "file", random.Random(SEED + 1))


if __name__ == "__main__":
    main()
