"""Compares the programs of two builds in interleaved pairs.

usage: against.py OLD NEW PAIRS DURATION PARTS

OLD and NEW are directories of programs. A ratio is old / new for a cost, and new / old for a speed, so the
new build is faster if the ratio is above 1. The 95 % interval of the median is computed from ranks.

A library is measured in one process that loads both builds and alternates every millisecond (turns.c). The
process calls the drop-in for libs3, whose interface is the same in all builds. All other operations are
measured in separate runs of each build.
"""

import contextlib
import json
import math
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

LEAST = 0.97
WIDEST = 0.05

LISTED = os.environ.get("LIST", "1000000")
# Measure only the rows whose names contain this string.
ROWS = os.environ.get("ROWS", "")
UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}

STORE = ["--only-phases", "--size", "3901", "--rounds", "5"]
# Fields: name, threads, objects per thread, bytes per object, rounds per process.
TURNS = {
    "embedded": [
        ("3,901 B", 1, 500, 3901, 4),
        ("47,008 B", 1, 200, 47008, 5),
        ("1 MiB", 1, 32, 1 << 20, 6),
        ("2 MiB", 1, 16, 2 << 20, 6),
        ("3,901 B, 8 threads", 8, 128, 3901, 4),
    ],
    "node": [
        ("4 KiB", 1, 300, 4096, 4),
        ("1 MiB", 1, 32, 1 << 20, 6),
        ("16 MiB", 1, 4, 16 << 20, 4),
        ("4 KiB, 8 threads", 8, 64, 4096, 4),
    ],
}
REQUESTS = [
    # Fields: name, method, object, options.
    ("GET 4 KiB", "GET", "small", ["--size", "4KiB"]),
    ("HEAD", "HEAD", "small", []),
    ("PUT 4 KiB", "PUT", "p{number}", ["--size", "4KiB", "--objects", "16"]),
    ("GET 1 MiB", "GET", "large", ["--size", "1MiB"]),
    ("PUT 1 MiB", "PUT", "q{number}", ["--size", "1MiB", "--objects", "16"]),
]
KEYS = {"AWS_ACCESS_KEY_ID": "AKIAAGAINSTBENCH0000", "AWS_SECRET_ACCESS_KEY": "a-secret-for-this-benchmark-only-0000000"}
TURN_PROGRAM = str(Path(__file__).parent.parent / "target/turns")
SCRATCH = "/dev/shm" if os.path.isdir("/dev/shm") else None


def interval(ratios):
    """Returns the median of the ratios, and the bounds of its 95 % interval, which are two of the ratios."""
    ranked, count = sorted(ratios), len(ratios)
    below = 0.0
    rank = 0
    while below + math.comb(count, rank) / 2**count <= 0.025:
        below += math.comb(count, rank) / 2**count
        rank += 1
    rank = max(rank - 1, 0)
    middle = (ranked[(count - 1) // 2] + ranked[count // 2]) / 2
    return middle, ranked[rank], ranked[count - 1 - rank]


def verdict(name, ratios):
    middle, least, most = interval(ratios)
    if most - least > WIDEST:
        said = "says nothing: wider than 0.05"
    else:
        said = "holds" if least >= LEAST else "DOES NOT HOLD"
    print(f"{name:52} {middle:6.3f} [{least:.3f}, {most:.3f}]  {said}", flush=True)
    return said


def table(command, environment=None):
    """Returns the output of a program. Exits if the program fails."""
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | (environment or {}))
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nfailed:\n{done.stderr}")
    return done.stdout


def store_speeds(build, options):
    """Returns the speed of the embedded store relative to plain files, by phase: the ratio of the median times of a call.

    The ratio that the program prints has only two digits, which is too imprecise for this comparison.
    """
    with tempfile.TemporaryDirectory(dir=SCRATCH) as root:
        printed = table([f"{build}/fordway-bench-store", "--root", root, *options])
    rows = re.findall(r"^(\w+) +(posix|embedded) .*?([0-9.]+) (ns|µs|ms) +[0-9.]+ (?:ns|µs|ms) ", printed, re.MULTILINE)
    median_s = {(phase, lane): float(time) * UNITS[unit] for phase, lane, time, unit in rows}
    phases = [phase for phase, lane in median_s if lane == "embedded"]
    return {phase: median_s[phase, "posix"] / median_s[phase, "embedded"] for phase in phases}


def long_listing(build, _options):
    """Returns the speed of a long listing relative to readdir, in one stream, in pages and by prefix."""
    with tempfile.TemporaryDirectory(dir=SCRATCH) as root:
        options = ["--only-phases", "--size", "1", "--objects", "10", "--rounds", "1", "--list", LISTED]
        printed = table([f"{build}/fordway-bench-store", "--root", root, *options])
    stream = re.search(r"one stream ([0-9.]+) (\w+), pages of 1,000 ([0-9.]+)", printed)
    prefix = re.search(r"by prefix: ([0-9.]+) \[.*\(([0-9.]+) (\w+)\)", printed)
    one, readdir = (float(stream[1]) * UNITS[stream[2]], float(prefix[2]) * UNITS[prefix[3]])
    return {"stream": readdir / one, "pages": readdir / one / float(stream[3]), "prefix": 1 / float(prefix[1])}


def compare_tables(old, new, pairs, runs):
    """Compares the builds for each `(name, speeds_of, options)` in `runs`. `speeds_of` returns the speeds of
    a build by phase."""
    said = []
    for name, speeds_of, options in runs:
        ratios = {}
        for _ in range(pairs):
            measured = {build: speeds_of(build, options) for build in random.sample([old, new], 2)}
            for phase, speed in measured[new].items():
                if phase in measured[old]:
                    ratios.setdefault(phase, []).append(speed / measured[old][phase])
        if not ratios:
            sys.exit(f"{name}: the two builds print no row in common")
        said += [verdict(f"{name}, {phase}", each) for phase, each in ratios.items()]
    return said


def placed(processor, is_placed=True):
    """Returns the words to put before a command to pin the command to one processor.

    Gateway and client each have their own processor. The kernel's choice of processors affects times more
    than the build does, and differs from start to start.
    """
    return ["taskset", "--cpu-list", str(processor)] if is_placed and os.cpu_count() > 1 else []


def turns(lane, builds, hosts, shape):
    """Loads both builds in one process. Returns the relative speed of the second build, by phase."""
    (first, second), (_, threads, objects, bytes_, rounds) = builds, shape
    sides = [word for build in (first, second) for word in (hosts[build], f"{build}/against-libs3/lib/libs3.so.4")]
    numbers = map(str, [threads, objects, bytes_, rounds])
    printed = table([*placed(0, lane == "node"), TURN_PROGRAM, *sides, *numbers])
    return {phase: float(ratio) for phase, ratio in re.findall(r"^(\w+) ([0-9.]+)$", printed, re.MULTILINE)}


def compare_by_turns(lane, old, new, starts):
    """Compares the builds in fresh processes and, on the node lane, with fresh gateways.

    The memory that a process gets changes the times of the process by a few percent.
    """
    said = []
    for shape in (each for each in TURNS[lane] if ROWS in each[0]):
        ratios = {}
        for _ in range(starts):
            builds = random.sample([old, new], 2)
            with tempfile.TemporaryDirectory(dir=SCRATCH) as root, hosts_of(lane, builds, root) as hosts:
                for phase, ratio in turns(lane, builds, hosts, shape).items():
                    ratios.setdefault(phase, []).append(ratio if builds[0] == old else 1 / ratio)
        said += [verdict(f"{lane}, {shape[0]}, {phase}", each) for phase, each in ratios.items()]
    return said


@contextlib.contextmanager
def hosts_of(lane, builds, root):
    """Yields a mapping from each build to a separate directory or, on the node lane, to the endpoint of a
    gateway on such a directory."""
    with contextlib.ExitStack() as gateways:
        hosts = {}
        for number, build in enumerate(builds):
            hosts[build] = f"{root}/{number}"
            Path(hosts[build], "bucket").mkdir(parents=True)
            if lane == "node":
                hosts[build] = gateways.enter_context(node_gateway(f"{build}/fordway", hosts[build]))
        yield hosts


@contextlib.contextmanager
def node_gateway(program, root):
    socket = f"{root}.sock"
    command = [*placed(1), program, "node", "--durability", "none", "--socket", socket, root]
    gateway = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        gateway.stdout.readline()
        yield f"unix://{socket}"
    finally:
        gateway.terminate()
        gateway.wait()


def start_gateway(program, root):
    command = [*placed(1), program, "serve", "--listen", "127.0.0.1:0", "--etag", "fast", "--durability", "none"]
    command += ["--threads", "1", root]
    gateway = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=os.environ | KEYS)
    ready = gateway.stdout.readline()
    if " at http" not in ready:
        sys.exit(f"{program} serve prints {ready!r} instead of its address")
    return gateway, ready.split(" at ")[-1].split()[0]


def cpu_us(client, gateway, url, request, duration):
    """Returns the CPU time of the gateway per request, in µs."""
    _, method, key, options = request
    command = [*placed(0), client, "bench", "rest", f"{url}/bucket/{key}", "--method", method, "--connections", "8", "--sign"]
    command += ["--duration", duration, "--warm-up", "0s", "--server-pid", str(gateway.pid), "--json", "--no-progress"]
    done = subprocess.run(command + options, capture_output=True, text=True, env=os.environ | KEYS | {"AWS_REGION": "us-east-1"})
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nfailed:\n{done.stderr}")
    result = json.loads(done.stdout)
    if result["errors"]:
        sys.exit(f"{' '.join(command)}\nhad {result['errors']} errors")
    return result["server_cpu_ns_per_op"] / 1e3


def compare_gateways(old, new, pairs, duration):
    said, client = [], f"{new}/fordway"
    with tempfile.TemporaryDirectory(dir=SCRATCH) as root:
        bucket = Path(root, "bucket")
        bucket.mkdir()
        Path(bucket, "small").write_bytes(os.urandom(4 << 10))
        Path(bucket, "large").write_bytes(os.urandom(1 << 20))
        gateways = {build: start_gateway(f"{build}/fordway", root) for build in (old, new)}
        try:
            for request in (each for each in REQUESTS if ROWS in each[0]):
                ratios = []
                for _ in range(pairs):
                    cost = {}
                    for build in random.sample([old, new], 2):
                        cost[build] = cpu_us(client, *gateways[build], request, duration)
                    ratios.append(cost[old] / cost[new])
                said.append(verdict(f"gateway CPU, {request[0]}", ratios))
        finally:
            for gateway, _ in gateways.values():
                gateway.terminate()
                gateway.wait()
    return said


def main():
    old, new, pairs, duration, parts = sys.argv[1:]
    print(f"{pairs} pairs; above 1 the new build is faster; {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}\n")
    said = []
    if "store" in parts:
        said += compare_tables(old, new, int(pairs), [("store", store_speeds, STORE)])
    if "list" in parts:
        said += compare_tables(old, new, max(int(pairs) // 2, 7), [(f"list of {LISTED}", long_listing, None)])
    for lane in TURNS:
        if lane in parts:
            said += compare_by_turns(lane, old, new, int(pairs))
    if "gateway" in parts:
        said += compare_gateways(old, new, int(pairs), duration)
    sys.exit(1 if "DOES NOT HOLD" in said else 0)


if __name__ == "__main__":
    main()
