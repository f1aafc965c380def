"""usage: python_store.py ROUNDS

The measurement of bench/python-store.
"""

import fcntl
import gc
import math
import os
import random
import shutil
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import obstore
from obstore.store import LocalStore

import fordway

CALLS, THREADS = 500, 8
# Python 3.11 does not name this command.
F_OFD_SETLK = 37
BODY, LARGE = os.urandom(3901), os.urandom(1 << 20)
Calls = dict[str, Callable[[str], object]]


def plain_files(root: str) -> Calls:
    """Returns the calls of a program that uses system calls directly. Like a store, it never shows a partial file."""

    def put(key: str) -> None:
        path = f"{root}/{key}"
        file = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        os.write(file, BODY)
        os.close(file)
        os.rename(f"{path}.new", path)

    def get(key: str) -> bytes:
        file = os.open(f"{root}/{key}", os.O_RDONLY)
        content = os.read(file, os.fstat(file).st_size)
        os.close(file)
        return content

    return {
        "put": put,
        "get": get,
        "head": lambda key: os.stat(f"{root}/{key}"),
        "delete": lambda key: os.unlink(f"{root}/{key}"),
    }


def locked_files(root: str) -> Calls:
    """Returns plain deletes under a lock of the name, which the store needs: without the lock, a conditional put that
    runs at the same time could restore a deleted object. The lock costs two `fcntl` calls."""
    table = os.open(f"{root}/locks", os.O_RDWR | os.O_CREAT, 0o666)
    lock, unlock = (struct.pack("hhqqi", kind, os.SEEK_SET, 1, 1, 0) for kind in (fcntl.F_WRLCK, fcntl.F_UNLCK))
    plain = plain_files(root)

    def delete(key: str) -> None:
        fcntl.fcntl(table, F_OFD_SETLK, lock)
        os.unlink(f"{root}/{key}")
        fcntl.fcntl(table, F_OFD_SETLK, unlock)

    return {"put": plain["put"], "delete": delete}


def fordway_store(root: str) -> Calls:
    """Returns the calls of this project's store. Like the other libraries here, it does not wait for stable storage."""
    store = fordway.open(f"file://{root}?durability=none")
    store.create_bucket("bucket")
    return {
        "put": lambda key: store.put("bucket", key, BODY),
        "get": lambda key: store.get("bucket", key),
        "get with description": lambda key: store.get_with_info("bucket", key),
        "head": lambda key: store.head("bucket", key),
        "delete": lambda key: store.delete("bucket", key),
    }


def obstore_local(root: str) -> Calls:
    """Returns the calls of obstore on a directory."""
    store = LocalStore(root)
    return {
        "put": lambda key: obstore.put(store, key, BODY),
        "get": lambda key: obstore.get(store, key).bytes(),
        "head": lambda key: obstore.head(store, key),
        "delete": lambda key: obstore.delete(store, key),
    }


def fsspec_local(root: str) -> Calls:
    """Returns the calls of fsspec's local file system."""
    files = fsspec.filesystem("file")
    return {
        "put": lambda key: files.pipe_file(f"{root}/{key}", BODY),
        "get": lambda key: files.cat_file(f"{root}/{key}"),
        "head": lambda key: files.info(f"{root}/{key}"),
        "delete": lambda key: files.rm_file(f"{root}/{key}"),
    }


LIBRARIES = {
    "plain": plain_files,
    "locked": locked_files,
    "fordway": fordway_store,
    "obstore": obstore_local,
    "fsspec": fsspec_local,
}
COLUMN = 11


def cpu_us(call: Callable[[str], object], keys: Iterable[str]) -> float:
    """Returns the CPU time per call of all threads of this process, in microseconds."""
    before = time.process_time()
    for key in keys:
        call(key)
    return (time.process_time() - before) / CALLS * 1e6


def round_of(libraries: dict[str, Calls], number: int) -> dict[tuple[str, str], float]:
    """Returns the CPU time of each operation of each library; the libraries are in random order."""
    keys, found = [f"r{number}-{each}" for each in range(CALLS)], {}
    for operation in ("put", "get", "get with description", "head", "delete"):
        able = [name for name, calls in libraries.items() if operation in calls]
        for name in random.sample(able, len(able)):
            found[name, operation] = cpu_us(libraries[name][operation], keys)
    return found


def large_round(get: Callable[[], bytes], read: Callable[[], bytes]) -> float:
    """Returns how many times as fast `get` is as `read`."""
    times = dict.fromkeys((get, read), 0.0)
    for _ in range(8):
        for call in random.sample((get, read), 2):
            before = time.perf_counter()
            for _ in range(50):
                call()
            times[call] += time.perf_counter() - before
    return times[read] / times[get]


def thread_round(get: Callable[[str], object], pool: ThreadPoolExecutor) -> float:
    """Returns how many times as many gets per second eight threads make as one thread."""

    def gets(count: int) -> None:
        for _ in range(count):
            get("same")

    before = time.perf_counter()
    gets(8 * CALLS)
    alone_s = time.perf_counter() - before
    before = time.perf_counter()
    list(pool.map(gets, [CALLS] * THREADS))
    return alone_s / (time.perf_counter() - before)


def interval(values: list[float]) -> tuple[float, float, float]:
    """Returns the median, and the bounds of its 95 % interval (by order statistics)."""
    ordered, count = sorted(values), len(values)
    below, rank = 0.0, 0
    while below + math.comb(count, rank) / 2**count <= 0.025:
        below += math.comb(count, rank) / 2**count
        rank += 1
    skipped = max(rank - 1, 0)
    return statistics.median(ordered), ordered[skipped], ordered[count - 1 - skipped]


def shown(name: str, values: list[float], bound: float, is_least: bool) -> bool:
    """Prints a ratio with its bound. Returns whether the ratio misses the bound by more than its interval."""
    median, low, high = interval(values)
    is_missed = high < bound if is_least else low > bound
    sign = ">=" if is_least else "<="
    print(f"{name:44}{median:6.2f} [{low:.2f}, {high:.2f}]  bound {sign} {bound}{'  MISSED' * is_missed}")
    return is_missed


def main() -> None:
    """Measures in turn, and prints the tables."""
    rounds = int(sys.argv[1])
    shared_memory = "/dev/shm"
    root = Path(tempfile.mkdtemp(dir=shared_memory if os.path.isdir(shared_memory) else None))
    try:
        libraries = {}
        for name, library in LIBRARIES.items():
            (root / name).mkdir()
            libraries[name] = library(str(root / name))
        gc.disable()
        round_of(libraries, -1)
        runs = [round_of(libraries, number) for number in range(rounds)]
        print(f"{'CPU time, us per call':24}" + "".join(f"{name:>{COLUMN}}" for name in libraries))
        for operation in ("put", "get", "get with description", "head", "delete"):
            times = (statistics.median(run.get((name, operation), float("nan")) for run in runs) for name in libraries)
            print(f"{operation:24}" + "".join(f"{each:{COLUMN}.1f}" for each in times).replace("nan", "  -"))
        print()
        missed = [
            shown(f"{operation}: {of} / {to}", [run[of, operation] / run[to, operation] for run in runs], bound, least)
            for operation in ("put", "get", "head", "delete")
            for of, to, bound, least in (("fordway", "plain", 1.15, False), ("obstore", "fordway", 2.5, True))
        ]
        locked = [run["fordway", "delete"] / run["locked", "delete"] for run in runs]
        missed.append(shown("delete: fordway / plain under a lock", locked, 1.15, False))
        described = [run["fordway", "get with description"] / run["fordway", "get"] for run in runs]
        missed.append(shown("get with description / get", described, 1.1, False))
        missed += large_and_threads(str(root), rounds)
    finally:
        shutil.rmtree(root)
    sys.exit(any(missed))


def large_and_threads(root: str, rounds: int) -> list[bool]:
    """Measures large gets, and gets by several threads. Returns which ratios miss their bounds."""
    store = fordway.open(f"file://{root}/fordway?durability=none")
    store.put("bucket", "large", LARGE)
    store.put("bucket", "same", BODY)

    def read() -> bytes:
        file = os.open(f"{root}/fordway/bucket/large", os.O_RDONLY)
        content = os.read(file, os.fstat(file).st_size)
        os.close(file)
        return content

    large = [large_round(lambda: store.get("bucket", "large"), read) for _ in range(rounds)]
    with ThreadPoolExecutor(THREADS) as pool:
        threads = [thread_round(lambda key: store.get("bucket", key), pool) for _ in range(rounds)]
    return [
        shown("speed of a get of 1 MiB / os.read", large, 0.9, True),
        shown("gets per second of 8 threads / of one", threads, 1.0, True),
    ]


if __name__ == "__main__":
    main()
