"""Runs the clients one after the other, in a new random order for each round, and appends a line for each run
to a file.

usage: rounds.py DIR RTT_MS WORKLOAD ROUNDS CLIENT...

WORKLOAD is the percentage of the fragments, or `whole` for clients that read the whole file in order. A client named NAME/once
runs only in the first round. FORDWAY_NETLAB_SERVER is the server's address. DIR contains the programs, the
ranges and results.jsonl.
"""

import json
import os
import random
import resource
import subprocess
import sys
import time
from pathlib import Path

PER_CALL = "400"
TIMEOUT_S = 90


def commands(directory, workload):
    """Returns the commands of all clients, by name."""
    server = os.environ["FORDWAY_NETLAB_SERVER"]
    http, xrdhttp = f"http://{server}:8080/file", f"http://{server}:8081/file"
    http2, single, single2, copied = (f"http://{server}:{port}/file" for port in (8082, 8083, 8084, 8085))
    xroot, ranges = f"root://{server}:1094//file", str(directory / f"ranges-{workload}")
    programs = {name: str(directory / name) for name in ("davix", "xrdcl", "least")}
    python = [sys.executable, str(Path(__file__).with_name("python_peers.py"))]
    sequential = ["--sequential", "64KiB", "--discard", "--json"]

    def fordway(url, window, version="1.1"):
        options = ["--ranges", ranges, "--per-call", PER_CALL, "--window", str(window), "--discard", "--json"]
        return [os.environ["FORDWAY"], "read", url, "--http", version, *options]

    return {
        "fordway-sequential": [os.environ["FORDWAY"], "read", http, *sequential],
        "fordway": fordway(http, 1),
        "fordway-windowed": fordway(http, 16),
        "fordway@copied": fordway(copied, 1),
        "fordway-h2": fordway(http2, 1, "2"),
        "fordway-h2-windowed": fordway(http2, 16, "2"),
        "fordway@single": fordway(single, 16),
        "fordway-h2@single": fordway(single2, 16, "2"),
        "fordway-h2-sequential": [os.environ["FORDWAY"], "read", http2, "--http", "2", *sequential],
        "davix": [programs["davix"], http, ranges, PER_CALL],
        "receive": [programs["least"], "receive", server, "8080", "/file", ranges],
        "pread": [programs["least"], "pread", str(directory / "data" / "file"), ranges, PER_CALL],
        "xrdcl": [programs["xrdcl"], xroot, ranges, PER_CALL, "1"],
        "xrdcl-4": [programs["xrdcl"], xroot, ranges, PER_CALL, "4"],
        "obstore": [*python, "obstore", http, ranges, PER_CALL],
        "fsspec": [*python, "fsspec", http, ranges, PER_CALL],
        "fordway@xrdhttp": fordway(xrdhttp, 1),
        "fordway-windowed@xrdhttp": fordway(xrdhttp, 16),
        "davix@xrdhttp": [programs["davix"], xrdhttp, ranges, PER_CALL],
        "curl": ["curl", "--silent", "--fail", "--output", "/dev/null", http],
        "xrdcp": ["xrdcp", "--silent", "--force", xroot, "/dev/null"],
    }


def children_cpu_s():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run(command, file_bytes):
    """Runs a client. Returns the results that the client prints, or its time and CPU time if it prints no
    results, or its error."""
    start, cpu_start = time.perf_counter(), children_cpu_s()
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {TIMEOUT_S} s"}
    seconds, cpu = time.perf_counter() - start, children_cpu_s() - cpu_start
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        return {"error": said[-1] if said else f"exit code {done.returncode}"}
    if not done.stdout.strip():
        return {"bytes": file_bytes, "seconds": seconds, "client_cpu_seconds": cpu}
    result = json.loads(done.stdout)
    return {name: result[name] for name in ("bytes", "seconds", "client_cpu_seconds")}


def main():
    directory, rtt_ms, workload, rounds, *wanted = sys.argv[1:]
    directory = Path(directory)
    known = commands(directory, workload)
    draw = random.Random(float(rtt_ms))
    file_bytes = (directory / "data" / "file").stat().st_size
    failed = set()
    with (directory / "results.jsonl").open("a") as results:
        for number in range(int(rounds)):
            due = [name for name in wanted if number == 0 or not name.endswith("/once")]
            names = [name.removesuffix("/once") for name in due]
            draw.shuffle(names)
            for name in (name for name in names if name not in failed):
                result = run(known[name], file_bytes)
                if "error" in result:
                    failed.add(name)
                line = {"rtt_ms": float(rtt_ms), "workload": workload, "client": name, "round": number}
                print(json.dumps(line | result), file=results, flush=True)
                took = result.get("error") or f"{result['seconds']:.2f} s"
                print(f"  RTT {rtt_ms} ms, {workload}: {name}: {took}", file=sys.stderr)


if __name__ == "__main__":
    main()
