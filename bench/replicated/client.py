"""Times downloads and reads with replicas in the client's network, and compares the times with bounds.

usage: client.py DIR RESULTS
"""

import hashlib
import json
import os
import random
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(__file__))
from faulty import FAULTS  # noqa: E402

HOST = os.environ["FORDWAY_NETLAB_SERVER"]
FORDWAY = os.environ["FORDWAY"]
MIB, ROUNDS = int(os.environ["MIB"]), int(os.environ["ROUNDS"])
GOOD = f"http://{HOST}:8081/file"
# Time to detect a slow replica, as docs/reference/web-files.md states.
DETECTION_S = 4.0
# Maximum time that a hanging replica costs: the time limit of 30 s without progress, plus 2 s.
HANGING_S = 32.0


class Bench:
    def __init__(self, directory):
        self.directory = directory
        with open(f"{directory}/data/file", "rb") as file:
            self.content = file.read()
        chance = random.Random(1)
        places = [chance.randrange(len(self.content) - 40_000) for _ in range(2_000)]
        # Sort the ranges, because analyses read in the order of the file.
        self.ranges = [(at, chance.randrange(1, 40_000)) for at in sorted(places)]
        with open(f"{directory}/ranges", "w", encoding="ascii") as file:
            file.writelines(f"{at} {length}\n" for at, length in self.ranges)
        wanted = b"".join(self.content[at : at + length] for at, length in self.ranges)
        self.digests = {"download": digest(self.content), "vectored": digest(wanted)}
        self.failures = []

    def metalink(self, name, urls):
        path = f"{self.directory}/{name}.meta4"
        replicas = [word for url in urls for word in ("--replica", url)]
        command = [FORDWAY, "-q", "metalink", "make", f"{self.directory}/data/file", "--out", path, *replicas]
        subprocess.run(command, check=True)
        return path

    def run(self, what, metalink, *options):
        """Runs a command. Returns the duration in s, and whether the bytes and the exit code are right."""
        out = f"{self.directory}/out"
        if os.path.exists(out):
            os.remove(out)
        # The program caches descriptions of files in this directory, but not the content of files.
        environment = {**os.environ, "XDG_CACHE_HOME": f"{self.directory}/cache"}
        command = {
            "download": ["cp", "--metalink", metalink, out],
            "vectored": ["read", "--metalink", metalink, "--ranges", f"{self.directory}/ranges", "--output", out],
        }[what]
        started = time.monotonic()
        ended = subprocess.run([FORDWAY, "-q", *command, *options], env=environment, check=False)
        took = time.monotonic() - started
        is_right = ended.returncode == 0 and os.path.exists(out)
        if is_right:
            with open(out, "rb") as file:
                is_right = digest(file.read()) == self.digests[what]
        return took, is_right

    def hold(self, name, is_kept):
        if not is_kept:
            self.failures.append(name)
        return "" if is_kept else "  BROKEN"


def digest(content):
    return hashlib.sha256(content).hexdigest()


def faults(bench):
    """Prints the table of faults. Returns one row for each fault."""
    rows = []
    undisturbed = {}
    for what in ("download", "vectored"):
        path = bench.metalink("good", [GOOD, f"http://{HOST}:8082/file"])
        undisturbed[what], is_right = bench.run(what, path)
        bench.hold(f"{what}, undisturbed", is_right)
    print(f"{'first of two replicas':<24}" + "".join(f"{what:>12} {'bound':>8} " for what in undisturbed))
    print(f"{'sound':<24}" + "".join(f"{took:>10.2f} s {'':>8} " for took in undisturbed.values()))
    for fault in ["refuses", *FAULTS]:
        port = 7 if fault == "refuses" else 9000 + FAULTS.index(fault)
        path = bench.metalink(fault, [f"http://{HOST}:{port}/file", GOOD])
        line, row = f"{fault:<24}", {"fault": fault}
        for what, base in undisturbed.items():
            took, is_right = bench.run(what, path)
            bound = base + max(2.0, 0.1 * base)
            if fault in ("hangs", "stops"):
                bound = base + HANGING_S
            if fault == "slow":
                bound = 1.1 * base + DETECTION_S
            broken = bench.hold(f"{fault}, {what}: {took:.2f} s, right: {is_right}", is_right and took <= bound)
            line += f"{took:>10.2f} s {bound:>8.2f}{broken} "
            row[what] = {"seconds": took, "bound_seconds": bound, "undisturbed_seconds": base, "right": is_right}
        print(line, flush=True)
        rows.append(row)
    return rows


def streams(bench):
    """Measures the gain from several streams. Returns the results."""
    places = {number: f"http://{HOST}:{8080 + number}/file" for number in (1, 2, 3, 4)}
    cases = {
        "one replica, one stream": ([1], 1),
        "two replicas, two streams": ([1, 2], 2),
        "three replicas, three streams": ([1, 2, 3], 3),
        "two and one of 10 Mbit/s, three streams": ([1, 2, 4], 3),
    }
    taken = {name: [] for name in cases}
    for _ in range(ROUNDS):
        for name, (numbers, count) in cases.items():
            path = bench.metalink("streams", [places[number] for number in numbers])
            took, is_right = bench.run("download", path, "--streams", str(count))
            bench.hold(f"{name}: wrong bytes", is_right)
            taken[name].append(took)
    medians = {name: statistics.median(times) for name, times in taken.items()}
    one, two, three, mixed = medians.values()
    for name, took in medians.items():
        print(f"{name:<42}{took:>8.2f} s {MIB * 8.388608 / took:>8.0f} Mbit/s")
    gain, loss = one / three, mixed / two - 1
    broken = bench.hold(f"three replicas: {gain:.2f} times one", gain >= 2.4)
    print(f"three replicas are {gain:.2f} times one (at least 2.4){broken}")
    broken = bench.hold(f"a slow third costs {100 * loss:.0f} %", loss <= 0.15)
    print(f"a slow third costs {100 * loss:.1f} % (at most 15){broken}")
    return {"seconds": taken, "three_to_one": gain, "cost_of_slow_third": loss}


def main():
    directory, results = sys.argv[1:]
    bench = Bench(directory)
    print(f"{MIB} MiB at 300 Mbit/s a replica, 10 ms; vectored: 2,000 ranges of up to 40 kB")
    found = {"mib": MIB, "faults": faults(bench), "streams": streams(bench)}
    with open(results, "w", encoding="ascii") as file:
        json.dump({**found, "broken": bench.failures}, file, indent=1)
    for failure in bench.failures:
        print(f"BROKEN: {failure}")
    sys.exit(1 if bench.failures else 0)


if __name__ == "__main__":
    main()
