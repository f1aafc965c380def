"""Measures GETs of one object while other objects are read from memory, read from the disk, or written.

usage: gateway_cold.py FORDWAY URL OBJECTS DURATION

The environment variable CONNECTIONS contains connection counts, separated by commas.
"""

import functools
import json
import os
import subprocess
import sys
import time


def start(fordway, url, *options):
    command = [fordway, "bench", "rest", url, *options, "--sign", "--size", "4KiB", "--warm-up", "0s"]
    command += ["--json", "--no-progress"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process):
    out, err = process.communicate()
    if process.returncode != 0 or json.loads(out)["errors"]:
        sys.exit(f"{' '.join(process.args)}\nfailed:\n{err}{out}")
    return json.loads(out)


def forget():
    """Drops file content, directory entries and inodes from the kernel's caches."""
    subprocess.run(["sync"], check=True)
    with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as file:
        file.write("3")


def others(fordway, url, objects, connections):
    """Reads each of the other objects once, over `connections` connections."""
    return start(
        fordway,
        f"{url}/bucket/d{{number}}/f",
        "--objects",
        objects,
        "--requests",
        objects,
        "--connections",
        connections,
    )


def puts(fordway, url, connections, duration):
    """Writes 500 objects repeatedly."""
    return start(
        fordway,
        f"{url}/bucket/put-{{number}}",
        "--method",
        "PUT",
        "--objects",
        "500",
        "--duration",
        duration,
        "--connections",
        connections,
    )


def one_object(fordway, url, duration, beside=None):
    """Returns the latencies of GETs of one object in memory, and a note on the concurrent load.

    The requests are sent at a fixed rate, so that a stall delays all requests that arrive during it.
    """
    hot_url = f"{url}/bucket/hot"
    finish(start(fordway, hot_url, "--requests", "100"))
    other = beside and beside()
    time.sleep(0.1)
    latency = finish(start(fordway, hot_url, "--duration", duration, "--rate", "2000"))["latency"]
    if other is None:
        return latency, ""
    is_over = other.poll() is not None
    rest = finish(other)
    note = "  (they were done before)" if is_over else ""
    return latency, f"{rest['ops_per_s']:9.0f} {rest['latency']['p99_ns'] / 1e3:9.0f}{note}"


def row(name, measured):
    latency, note = measured
    figures = " ".join(f"{latency[key] / 1e3:9.0f}" for key in ("p50_ns", "p99_ns", "p999_ns", "max_ns"))
    print(f"{name:38} {figures} {note}", flush=True)


def main():
    fordway, url, objects, duration = sys.argv[1:]
    print(f"{'µs':38} {'p50':>9} {'p99':>9} {'p99.9':>9} {'max':>9} {'others/s':>9} {'their p99':>9}")
    row("alone", one_object(fordway, url, duration))
    for connections in os.environ.get("CONNECTIONS", "1,8").split(","):
        for where in ("memory", "disk"):
            finish(others(fordway, url, objects, "8"))
            if where == "disk":
                forget()
            name = f"beside {connections} connections, from {where}"
            beside = functools.partial(others, fordway, url, objects, connections)
            row(name, one_object(fordway, url, duration, beside))
        beside = functools.partial(puts, fordway, url, connections, duration)
        row(f"beside {connections} connections that put", one_object(fordway, url, duration, beside))


if __name__ == "__main__":
    main()
