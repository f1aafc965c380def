"""Measures transfers by several clients, which take turns, from and to one gateway.

usage: transfers.py FORDWAY SCRATCH GATEWAY-PID CLIENT...

The script `transfers` describes the environment and prepares the directories. After each transfer, the number
of files and their total size are checked. A sync with nothing to transfer must change nothing.
"""

import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROUNDS = int(os.environ.get("ROUNDS", "3"))
ONLY = os.environ.get("ONLY", "")
ENDPOINT = os.environ["AWS_ENDPOINT_URL"]
# Time limit of a client, in seconds. A client that exceeds the limit ends the benchmark.
MOST_S = float(os.environ.get("TIME_LIMIT_S", "1800"))
JOBS = os.environ.get("JOBS", "32")

RCLONE = {
    "RCLONE_CONFIG_GW_TYPE": "s3",
    "RCLONE_CONFIG_GW_PROVIDER": "Other",
    "RCLONE_CONFIG_GW_ENDPOINT": ENDPOINT,
    "RCLONE_CONFIG_GW_ENV_AUTH": "true",
    "RCLONE_CONFIG": "/dev/null",
}
# The settings that each client's documentation recommends for large objects and for many small objects. The
# settings are printed with the results.
SETTINGS = {
    "fordway": {"large": [], "small": ["--jobs", JOBS]},
    "s5cmd": {"large": ["--concurrency", "8"], "small": []},
    "rclone": {
        "large": ["--s3-upload-concurrency=8", "--s3-chunk-size=16M", "--s3-disable-checksum"],
        "small": [f"--transfers={JOBS}", f"--checkers={JOBS}", "--fast-list"],
    },
}


def command(client, fordway, row, kind, places):
    """Returns the command of a client for a row of the table."""
    source, target = places
    settings = SETTINGS[client][kind]
    if client == "fordway":
        if row == "list":
            return [fordway, "ls", f"{source}/"]
        return [fordway, "--quiet", *(["cp", "-r"] if row == "copy" else ["sync"]), *settings, source, target]
    if client == "s5cmd":
        base = ["s5cmd", "--endpoint-url", ENDPOINT, "--log", "error", "--numworkers", "256"]
        if row == "list":
            return [*base[:3], "ls", f"{source}/*"]
        verb = "cp" if row == "copy" else "sync"
        source = f"{source}/*" if source.startswith("s3:") else f"{source}/"
        return [*base, verb, *(settings if verb == "cp" else []), source, f"{target}/"]
    remote = [place.replace("s3://", "gw:") for place in (source, target)]
    if row == "list":
        return ["rclone", "lsf", "--fast-list", "--recursive", "--files-only", "--format", "tsp", remote[0]]
    flags = ["--s3-no-check-bucket", *settings]
    flags += ["--update", "--use-server-modtime"] if row == "sync" else ["--ignore-times"]
    return ["rclone", row, *flags, *remote]


def cpu_s(pid):
    """Returns the CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(words, gateway):
    """Runs a client. Returns wall time, the CPU times of client and gateway, and the number of lines written."""
    environment = {**os.environ, **RCLONE}
    served, start = cpu_s(gateway), time.monotonic()
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        lines = sum(chunk.count(b"\n") for chunk in iter(lambda: process.stdout.read(1 << 20), b""))
        error = process.stderr.read().decode(errors="replace")
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    took = time.monotonic() - start
    if process.returncode != 0:
        sys.exit(f"{' '.join(words)}\nfailed:\n{error[-2000:]}")
    if took > MOST_S:
        sys.exit(f"{' '.join(words)}\ntook {took:.0f} s, and the limit is {MOST_S:.0f}")
    return (took, usage.ru_utime + usage.ru_stime, cpu_s(gateway) - served), lines


def inventory(directory):
    """Returns the number of files below a directory, and the total of their sizes in bytes."""
    count = size = 0
    for at, directories, files in os.walk(directory):
        directories[:] = [name for name in directories if name != ".fordway"]
        count += len(files)
        size += sum(os.stat(os.path.join(at, name)).st_size for name in files)
    return count, size


def empty(directory):
    """Removes everything in a directory, except the private area of a bucket."""
    for entry in os.scandir(directory):
        if entry.name != ".fordway":
            shutil.rmtree(entry.path) if entry.is_dir() else os.unlink(entry.path)


class Bench:
    """The directories of the benchmark, and a method for each row of its table."""

    def __init__(self, fordway, scratch, gateway):
        self.fordway, self.scratch, self.gateway = fordway, Path(scratch), gateway

    def up(self, client, kind):
        """Uploads into an empty bucket."""
        bucket = self.scratch / "objects/up"
        empty(bucket)
        words = command(client, self.fordway, "copy", kind, (str(self.scratch / kind), "s3://up"))
        figures, _ = run(words, self.gateway)
        self.check(client, bucket, kind)
        return figures

    def down(self, client, kind):
        """Downloads into an empty directory."""
        target, bucket = self.scratch / "received", self.scratch / "objects/down"
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        if inventory(bucket) != inventory(self.scratch / kind):
            self.fill(kind)
        words = command(client, self.fordway, "copy", kind, ("s3://down", str(target)))
        figures, _ = run(words, self.gateway)
        self.check(client, target, kind)
        shutil.rmtree(target)
        return figures

    def sync(self, client, kind):
        """Synchronizes a bucket that is up to date."""
        bucket = self.scratch / "objects/down"
        if inventory(bucket) != inventory(self.scratch / kind):
            self.fill(kind)
        before = newest(bucket)
        words = command(client, self.fordway, "sync", kind, (str(self.scratch / kind), "s3://down"))
        figures, _ = run(words, self.gateway)
        if newest(bucket) != before:
            sys.exit(f"{client} transferred something, and there was nothing to do")
        return figures

    def list(self, client, kind):
        """Lists a bucket of many objects."""
        words = command(client, self.fordway, "list", kind, ("s3://list", ""))
        figures, lines = run(words, self.gateway)
        wanted, _ = inventory(self.scratch / "objects/list")
        if lines < wanted:
            sys.exit(f"{client} listed {lines} objects of {wanted}")
        return figures

    def fill(self, kind):
        """Puts the files of a kind into the bucket from which clients download."""
        empty(self.scratch / "objects/up")
        empty(self.scratch / "objects/down")
        run(command("fordway", self.fordway, "copy", kind, (str(self.scratch / kind), "s3://down")), self.gateway)

    def check(self, client, found, kind):
        """Ends the benchmark unless all files of a kind have arrived."""
        wanted, there = inventory(self.scratch / kind), inventory(found)
        if wanted != there:
            sys.exit(f"{client} transferred {there[0]} files with {there[1]} bytes of {wanted[0]} with {wanted[1]}")


def newest(directory):
    """Returns the time of the latest change of any file below a directory."""
    times = (os.stat(os.path.join(at, name)).st_ctime_ns for at, _, files in os.walk(directory) for name in files)
    return max(times, default=0)


def table(name, figures):
    """Prints a row for each client. Returns whether fordway is the fastest by wall time and by its own CPU time."""
    medians = {
        client: [statistics.median(column) for column in zip(*measured, strict=True)] for client, measured in figures.items()
    }
    holds = True
    for client, (wall, cpu, served) in medians.items():
        walls = [row[0] for row in figures[client]]
        print(f"{name:22} {client:8} {wall:8.2f} {min(walls):8.2f} {max(walls):8.2f} {cpu:8.2f} {served:8.2f}")
    for at, what in ((0, "wall time"), (1, "CPU time")):
        others = [median[at] for client, median in medians.items() if client != "fordway"]
        if others:
            ratio = medians["fordway"][at] / min(others)
            holds &= ratio <= 1
            verdict = "holds" if ratio <= 1 else "DOES NOT HOLD"
            print(f"{name:22} {what}, fordway / fastest other: {ratio:.2f} (at most 1): {verdict}")
    return holds


def main():
    fordway, scratch, gateway, *clients = sys.argv[1:]
    bench = Bench(fordway, scratch, int(gateway))
    count, large_bytes = inventory(bench.scratch / "large")
    small, _ = inventory(bench.scratch / "small")
    listed, _ = inventory(bench.scratch / "objects/list")
    rows = [
        (f"up {count} x {large_bytes // max(1, count) >> 20} MiB", bench.up, "large"),
        (f"down {count} x {large_bytes // max(1, count) >> 20} MiB", bench.down, "large"),
        (f"up {small:,} x 4 KiB", bench.up, "small"),
        (f"down {small:,} x 4 KiB", bench.down, "small"),
        (f"sync of {small:,}", bench.sync, "small"),
        (f"ls of {listed:,}", bench.list, "small"),
    ]
    for client in clients:
        print(f"{client}: large {' '.join(SETTINGS[client]['large']) or 'defaults'};", end=" ")
        print(f"small {' '.join(SETTINGS[client]['small']) or 'defaults'}")
    print(f"\n{'':22} {'':8} {'wall s':>8} {'least':>8} {'most':>8} {'CPU s':>8} {'gateway':>8}")
    order, all_hold = random.Random(1), True
    for name, act, kind in rows:
        if ONLY not in name:
            continue
        figures = {client: [] for client in clients}
        for _ in range(ROUNDS):
            for client in order.sample(clients, len(clients)):
                figures[client].append(act(client, kind))
        all_hold &= table(name, figures)
    sys.exit(0 if all_hold else "fordway is not the fastest in every row")


main()
