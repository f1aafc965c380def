"""Runs the program of `contexts` with the two libraries alternately, and compares the libraries."""

import os
import statistics
import subprocess
import sys

WAYS = ("runall", "fdsets")
LIBRARIES = {"ours": os.environ["OURS"], "libs3": os.environ["THEIRS"]}
BATCHES = 5
LIMITS = {"time": 1.2, "runonce": 2.0}


def run(program: str, library: str, key: str, way: str) -> list[tuple[float, float]]:
    """Returns two times in ms for each batch: the batch, and its longest S3_runonce_request_context call."""
    host = os.environ["FORDWAY_NETLAB_SERVER"] + ":8081"
    command = [program, host, "bucket", key, os.environ["REQUESTS"], str(BATCHES), way]
    environment = os.environ | {"LD_LIBRARY_PATH": LIBRARIES[library]}
    said = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True, timeout=120)
    numbers = [[float(word) / 1e3 for word in line.split()] for line in said.stdout.splitlines()]
    return [(took, longest) for took, longest in numbers]


def main() -> None:
    program, rounds = sys.argv[1], int(os.environ["ROUNDS"])
    took: dict[tuple[str, str, str, str], list[float]] = {}
    for number in range(rounds):
        for key in ("4KiB", "1MiB"):
            for way in WAYS:
                for library in sorted(LIBRARIES, reverse=number % 2 == 1):
                    first, *others = run(program, library, key, way)
                    pick = {"new": [first], "open": others}
                    for connections, batches in pick.items():
                        place = took.setdefault((key, way, connections, library), [])
                        place.append(statistics.median(batch[0] for batch in batches))
                    if way == "fdsets":
                        longest = max(batch[1] for batch in (first, *others))
                        took.setdefault((key, "longest runonce", "all", library), []).append(longest)
    sys.exit(report(took))


def report(took: dict[tuple[str, str, str, str], list[float]]) -> int:
    """Prints medians over the rounds. Returns the number of exceeded limits."""
    broken = 0
    print(f"{'GETs of':8} {'by':16} {'connections':12} {'ours ms':>9} {'libs3 ms':>9} {'ratio':>6}")
    for key, way, connections, library in took:
        if library != "ours":
            continue
        ours = statistics.median(took[key, way, connections, "ours"])
        theirs = statistics.median(took[key, way, connections, "libs3"])
        limit = LIMITS["runonce" if way == "longest runonce" else "time"]
        broken += ours / theirs > limit
        note = f"  over {limit}" if ours / theirs > limit else ""
        print(f"{key:8} {way:16} {connections:12} {ours:9.1f} {theirs:9.1f} {ours / theirs:6.2f}{note}")
    return broken


if __name__ == "__main__":
    main()
