"""Compares the programs of two builds in interleaved pairs.

usage: against.py OLD NEW PAIRS DURATION PARTS; OLD and NEW are directories of programs. Ratios are old / new of a cost, or
new / old of a speed: above 1 the new one is faster. The interval is that of the median, by ranks (95 %).
"""

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
UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}

STORE_RUNS = [
    ("3,901 B", ["--only-phases", "--size", "3901", "--rounds", "5"]),
    ("overwrite 3,901 B", ["--size", "3901", "--objects", "10", "--rounds", "5"]),
    ("1 MiB", ["--only-phases", "--size", "1048576", "--objects", "64", "--rounds", "5"]),
    ("3,901 B, 8 threads", ["--only-phases", "--size", "3901", "--threads", "8", "--rounds", "5"]),
]
LIBS3_SHAPES = [("500", "3901"), ("200", "47008"), ("16", "2097152")]
REQUESTS = [
    # name, method, object, options
    ("GET 4 KiB", "GET", "small", ["--size", "4KiB"]),
    ("HEAD", "HEAD", "small", []),
    ("PUT 4 KiB", "PUT", "p{number}", ["--size", "4KiB", "--objects", "16"]),
    ("GET 1 MiB", "GET", "large", ["--size", "1MiB"]),
    ("PUT 1 MiB", "PUT", "q{number}", ["--size", "1MiB", "--objects", "16"]),
]
KEYS = {"AWS_ACCESS_KEY_ID": "AKIAAGAINSTBENCH0000", "AWS_SECRET_ACCESS_KEY": "a-secret-for-this-benchmark-only-0000000"}
SCRATCH = "/dev/shm" if os.path.isdir("/dev/shm") else None


def interval(ratios):
    """The median, and the bounds of its 95 % interval, which are two of the ratios."""
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
    """What a program prints."""
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | (environment or {}))
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nfailed:\n{done.stderr}")
    return done.stdout


def store_speeds(build, options):
    """The speed of the embedded store, as a multiple of plain files, by phase."""
    with tempfile.TemporaryDirectory(dir=SCRATCH) as root:
        printed = table([f"{build}/fordway-bench-store", "--root", root, *options])
    rows = re.findall(r"^(\w+) +embedded .*?([0-9.]+) \[[0-9.]+, [0-9.]+\]", printed, re.MULTILINE)
    rows += re.findall(r"^(overwrite) of .*?: ([0-9.]+) \[", printed, re.MULTILINE)
    return {phase: float(ratio) for phase, ratio in rows}


def long_listing(build, _options):
    """A long listing in one stream and by prefix: readdirs a listing."""
    with tempfile.TemporaryDirectory(dir=SCRATCH) as root:
        options = ["--only-phases", "--size", "1", "--objects", "10", "--rounds", "1", "--list", LISTED]
        printed = table([f"{build}/fordway-bench-store", "--root", root, *options])
    stream = re.search(r"one stream ([0-9.]+) (\w+), pages of 1,000 ([0-9.]+)", printed)
    prefix = re.search(r"by prefix: ([0-9.]+) \[.*\(([0-9.]+) (\w+)\)", printed)
    one, readdir = (float(stream[1]) * UNITS[stream[2]], float(prefix[2]) * UNITS[prefix[3]])
    return {"stream": readdir / one, "pages": readdir / one / float(stream[3]), "prefix": 1 / float(prefix[1])}


def node_speeds(build, _options):
    """The speed of the node lane, as a multiple of bare sockets and calls that do the same."""
    printed = table([f"{build}/fordway-bench-node"], {"ROUNDS": "9"})
    found = {}
    for block in re.split(r"^(?=\S)", printed, flags=re.MULTILINE):
        title, _, rows = block.partition("\n")
        for name, ratio in re.findall(r"^  (node .*?)  +.*?([0-9.]+) x \[", rows, re.MULTILINE):
            many = "clients" in name
            found[f"{name}, {title.split(',')[0]}"] = float(ratio) if many else 1 / float(ratio)
    return found


def libs3_speeds(build, shape):
    """The speed of a C program on the drop-in, as a multiple of its plain calls of POSIX, by phase."""
    with tempfile.TemporaryDirectory(dir=SCRATCH) as root:
        environment = {"LD_LIBRARY_PATH": f"{build}/against-libs3/lib"}
        printed = table([f"{build}/against-libs3/bench", root, *shape, "15"], environment)
    rows = re.findall(r"^ *\d+ B  (\S.*?)  +([0-9.]+) +[0-9.]+ +([0-9.]+) ", printed, re.MULTILINE)
    return {phase: float(posix) / float(ours) for phase, posix, ours in rows}


def compare_tables(old, new, pairs, runs):
    """Runs of `(name, how, options)`; `how` gives the speed of a build by phase."""
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


def start_gateway(program, root):
    command = [program, "serve", "--listen", "127.0.0.1:0", "--etag", "fast", "--durability", "none", "--threads", "1", root]
    gateway = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=os.environ | KEYS)
    ready = gateway.stdout.readline()
    if " at http" not in ready:
        sys.exit(f"{program} serve says {ready!r} in place of its address")
    return gateway, ready.split(" at ")[-1].split()[0]


def cpu_us(client, gateway, url, request, duration):
    """CPU time of the gateway for each request."""
    _, method, key, options = request
    command = [client, "bench", "rest", f"{url}/bucket/{key}", "--method", method, "--connections", "8", "--sign"]
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
            for request in REQUESTS:
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
        said += compare_tables(old, new, int(pairs), [(f"embedded, {name}", store_speeds, options) for name, options in STORE_RUNS])
    if "list" in parts:
        said += compare_tables(old, new, max(int(pairs) // 2, 7), [(f"list of {LISTED}", long_listing, None)])
    if "libs3" in parts:
        shapes = [(f"libs3, {bytes_} B", libs3_speeds, (objects, bytes_)) for objects, bytes_ in LIBS3_SHAPES]
        said += compare_tables(old, new, int(pairs), shapes)
    if "node" in parts:
        said += compare_tables(old, new, int(pairs), [("node", node_speeds, None)])
    if "gateway" in parts:
        said += compare_gateways(old, new, int(pairs), duration)
    sys.exit(1 if "DOES NOT HOLD" in said else 0)


if __name__ == "__main__":
    main()
