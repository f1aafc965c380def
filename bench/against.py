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

STORE_RUNS = [
    ("3,901 B", ["--size", "3901", "--rounds", "5"]),
    ("1 MiB", ["--size", "1048576", "--objects", "64", "--rounds", "5"]),
    ("3,901 B, 8 threads", ["--size", "3901", "--threads", "8", "--rounds", "5"]),
]
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
    print(f"{name:34} {middle:6.3f} [{least:.3f}, {most:.3f}]  {said}", flush=True)
    return said


def store_ratios(program, options):
    """The speed of the embedded store, as a multiple of plain files, by phase."""
    with tempfile.TemporaryDirectory(dir=SCRATCH) as root:
        command = [program, "--root", root, "--only-phases", *options]
        table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = re.findall(r"^(\w+) +embedded .*?([0-9.]+) \[[0-9.]+, [0-9.]+\]", table, re.MULTILINE)
    found = {phase: float(ratio) for phase, ratio in rows}
    return found


def compare_stores(old, new, pairs):
    said = []
    for name, options in STORE_RUNS:
        ratios = {}
        for _ in range(pairs):
            measured = {}
            for build in random.sample([old, new], 2):
                measured[build] = store_ratios(f"{build}/fordway-bench-store", options)
            for phase, speed in measured[new].items():
                ratios.setdefault(phase, []).append(speed / measured[old][phase])
        if not ratios:
            sys.exit("the table of fordway-bench-store has another form")
        said += [verdict(f"embedded x POSIX, {name}, {phase}", each) for phase, each in ratios.items()]
    return said


def start_gateway(program, root):
    command = [program, "serve", "--listen", "127.0.0.1:0", "--etag", "fast", "--durability", "none", root]
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
        said += compare_stores(old, new, int(pairs))
    if "gateway" in parts:
        said += compare_gateways(old, new, int(pairs), duration)
    sys.exit(1 if "DOES NOT HOLD" in said else 0)


if __name__ == "__main__":
    main()
