"""Measures the servers that a file lists, in turn. Compares the gateway's medians with limits.

usage: gateway_cpu.py FORDWAY SERVERS DURATION ROUNDS

Each line of SERVERS is NAME URL PID signed|plain BUCKET-DIRECTORY. ONLY selects operations, separated by commas (default: all).
COUNT (20000) is the number of objects that a block creates or deletes, if the operation creates or deletes each object once.
"""

import hashlib
import json
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

COUNT = int(os.environ.get("COUNT", "20000"))
ONCE = ["--requests", str(COUNT), "--objects", str(COUNT)]

OPERATIONS = [
    # Fields: name, method, object, options.
    ("GET 4 KiB", "GET", "f00007", ["--size", "4KiB"]),
    ("GET 4 KiB presigned", "GET", "f00007", ["--size", "4KiB"]),
    ("GET 4 KiB TLS", "GET", "f00007", ["--size", "4KiB"]),
    ("GET 4 KiB of 64 MiB", "GET", "64m", ["--range", "1048576-1052671", "--size", "4KiB"]),
    ("HEAD", "HEAD", "f00007", []),
    ("GET 1 MiB", "GET", "m{number}", ["--size", "1MiB", "--objects", "16"]),
    ("GET 64 MiB", "GET", "64m", ["--size", "64MiB"]),
    ("PUT 4 KiB", "PUT", "p{number}", ["--size", "4KiB", "--objects", "16"]),
    ("PUT 4 KiB new", "PUT", "n{number}", ["--size", "4KiB", *ONCE]),
    ("PUT 1 MiB", "PUT", "q{number}", ["--size", "1MiB", "--objects", "16"]),
    ("DELETE", "DELETE", "n{number}", ONCE),
]

# Fields: the operation, and its maximum CPU time relative to nginx, with one worker and with two.
BESIDE_NGINX = [
    ("GET 4 KiB", 1.1),
    ("GET 4 KiB of 64 MiB", 1.1),
    ("HEAD", 1.1),
    ("GET 64 MiB", 1.0),
    ("PUT 4 KiB", 1.4),
    ("PUT 4 KiB new", 1.3),
    ("DELETE", 1.5),
]
# Fields: the operation, the server, the maximum ratio of the cost, and the operation and server to compare
# with.
GOALS = [(name, "fordway", most, name, nginx) for name, most in BESIDE_NGINX for nginx in ("nginx-1", "nginx-2")]
GOALS += [("GET 4 KiB presigned", "fordway", 1.3, "GET 4 KiB", nginx) for nginx in ("nginx-1", "nginx-2")]
GOALS += [("GET 4 KiB TLS", "fordway-tls", 1.2, "GET 4 KiB TLS", "nginx-tls")]
GOALS += [(name, "fordway", 0.25, name, "versitygw") for name in ("GET 4 KiB", "HEAD", "PUT 4 KiB", "PUT 4 KiB new", "DELETE")]
GOALS += [
    ("PUT 1 MiB", "fordway", 1.3, "PUT 1 MiB", "loop"),
    ("PUT 1 MiB", "fordway-md5", 1.15, "PUT 1 MiB", "loop + MD5"),
    ("PUT 1 MiB", "fordway-md5", 1.0, "PUT 1 MiB", "versitygw"),
]


def takes(server, name, method):
    """Returns whether an operation is measured on a server."""
    if "TLS" in name or server.endswith("-tls"):
        return "TLS" in name and server.endswith("-tls")
    if name == "GET 4 KiB presigned":
        return server in ("fordway", "versitygw")
    if server == "loop":
        return name.startswith("PUT") and "new" not in name
    return method == "PUT" or server != "fordway-md5"


def stock(directory, name):
    """Creates the objects that a block deletes, or removes the objects that a block creates."""
    for file in Path(directory).glob("n*"):
        file.unlink()
    if name == "DELETE":
        for number in range(COUNT):
            Path(directory, f"n{number}").write_bytes(b"content")


def presigned(fordway, url, key):
    """Returns the URL with a signature in its query."""
    endpoint, bucket = url.rsplit("/", 1)
    command = [fordway, "--endpoint", endpoint, "presign", f"s3://{bucket}/{key}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def measure(fordway, server, operation, duration):
    """Runs one block of load. Returns CPU time of server and client per request, p50 and p99, all in µs."""
    _, url, pid, signed, directory = server
    name, method, key, options = operation
    if "--requests" in options:
        stock(directory, name)
    else:
        options = [*options, "--duration", duration]
    is_presigned = "presigned" in name
    url = presigned(fordway, url, key) if is_presigned else f"{url}/{key}"
    command = [fordway, "bench", "rest", url, "--method", method, "--connections", "8"]
    command += ["--warm-up", "0s", "--server-pid", pid, "--json", "--no-progress"]
    command += options + (["--sign"] if signed == "signed" and not is_presigned else [])
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nfailed:\n{done.stderr}")
    result = json.loads(done.stdout)
    if result["errors"]:
        sys.exit(f"{' '.join(command)}\nhad {result['errors']} errors: {result['load']['errors']}")
    latency = result["latency"]
    cpu = [result[f"{side}_cpu_ns_per_op"] for side in ("server", "client")]
    return [ns / 1e3 for ns in (*cpu, latency["p50_ns"], latency["p99_ns"])]


def busy_share(seconds):
    """Returns the share of the machine's CPU time that is used in the next `seconds` seconds."""

    def ticks():
        with open("/proc/stat", encoding="ascii") as file:
            counts = [int(count) for count in file.readline().split()[1:]]
        return sum(counts), counts[3] + counts[4]

    all_before, idle_before = ticks()
    time.sleep(seconds)
    all_after, idle_after = ticks()
    return 1 - (idle_after - idle_before) / max(1, all_after - all_before)


def settle():
    """Waits until the machine is idle after the previous measurement, for at most 2 s."""
    for _ in range(10):
        if busy_share(0.2) < 0.05:
            return


def md5_of_one(_):
    data = bytes(1 << 20)
    start = time.process_time_ns()
    for _ in range(50):
        hashlib.md5(data)
    return (time.process_time_ns() - start) / 50e3


def md5_us():
    """Returns the CPU time of an MD5 of 1 MiB, in µs, with every core busy as in the other measurements."""
    cores = os.cpu_count()
    with multiprocessing.Pool(cores) as pool:
        return statistics.median(pool.map(md5_of_one, range(4 * cores), chunksize=4))


def main():
    fordway, servers_file, duration, rounds = sys.argv[1:]
    with open(servers_file, encoding="utf-8") as file:
        servers = [line.split() for line in file]
    found = {}
    both = {}
    md5 = []
    order = random.Random(1)
    print("8 connections, durability none; medians, and the least and most of the rounds\n")
    print(f"{'':20} {'':12} {'CPU µs':>9} {'least':>9} {'most':>9} {'client':>9} {'p50 µs':>9} {'p99 µs':>9}")
    only = os.environ.get("ONLY")
    for operation in OPERATIONS:
        name, method = operation[:2]
        if only and name not in only.split(","):
            continue
        able = [server for server in servers if takes(server[0], name, method)]
        blocks = {server[0]: [] for server in able}
        for _ in range(int(rounds)):
            if method == "PUT":
                md5.append(md5_us())
            for server in order.sample(able, len(able)):
                settle()
                blocks[server[0]].append(measure(fordway, server, operation, duration))
        for server, measured in blocks.items():
            cpu, client, p50, p99 = (statistics.median(column) for column in zip(*measured, strict=True))
            costs = [block[0] for block in measured]
            found[name, server] = (cpu, p99)
            both[name, server] = cpu + client
            columns = (cpu, min(costs), max(costs), client)
            print(f"{name:20} {server:12} {' '.join(f'{us:9.1f}' for us in columns)} {p50:9.0f} {p99:9.0f}")
    print()
    if ("PUT 1 MiB", "loop") in found:
        one_md5 = statistics.median(md5)
        found["PUT 1 MiB", "loop + MD5"] = (found["PUT 1 MiB", "loop"][0] + one_md5, 0)
        print(f"MD5 of 1 MiB: {one_md5:.0f} µs\n")
    for name, server, at_most, other_name, other in GOALS:
        if (other_name, other) not in found or (name, server) not in found:
            print(f"{name}, {server} / {other}: not measured")
            continue
        ratio = found[name, server][0] / found[other_name, other][0]
        verdict = "holds" if ratio <= at_most else "DOES NOT HOLD"
        print(f"{name}, {server} / {other_name}, {other}: {ratio:.2f} (at most {at_most}): {verdict}")
    # On loopback, a segment is received in the process that sent it, or in the process whose acknowledgement
    # released it. The sum of both sides does not depend on which process receives the segment.
    if ("GET 64 MiB", "nginx-1") in both:
        ratio = both["GET 64 MiB", "fordway"] / both["GET 64 MiB", "nginx-1"]
        print(f"GET 64 MiB, server and client together, fordway / nginx-1: {ratio:.2f}")
    if ("GET 4 KiB", "fordway") not in found:
        return
    ratio = found["GET 4 KiB", "fordway"][1] / found["GET 4 KiB", "nginx-1"][1]
    print(f"GET 4 KiB, p99, fordway / nginx-1: {ratio:.2f} (at most 2): {'holds' if ratio <= 2 else 'DOES NOT HOLD'}")


main()
