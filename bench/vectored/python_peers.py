"""Reads the fragments with a Python package, PER_CALL fragments with each call.

usage: python_peers.py obstore|fsspec URL RANGES PER_CALL
"""

import json
import sys
import time
from pathlib import Path


def obstore_reader(url):
    import obstore

    base, name = url.rsplit("/", 1)
    store = obstore.store.HTTPStore.from_url(base, client_options={"allow_http": True})

    def read(starts, ends):
        return sum(len(part) for part in obstore.get_ranges(store, name, starts=starts, ends=ends))

    return read


def fsspec_reader(url):
    import fsspec

    files = fsspec.filesystem("http")

    def read(starts, ends):
        return sum(len(part) for part in files.cat_ranges([url] * len(starts), starts, ends))

    return read


READERS = {"obstore": obstore_reader, "fsspec": fsspec_reader}


def main():
    package, url, ranges, per_call = sys.argv[1:]
    lines = Path(ranges).read_text().splitlines()
    fragments = [tuple(map(int, line.split())) for line in lines]
    read = READERS[package](url)
    start, cpu_start = time.perf_counter(), time.process_time()
    wanted, got = 0, 0
    for first in range(0, len(fragments), int(per_call)):
        call = fragments[first : first + int(per_call)]
        wanted += sum(length for _, length in call)
        got += read([offset for offset, _ in call], [offset + length for offset, length in call])
    if got != wanted:
        sys.exit(f"{package} read {got} bytes, {wanted} were asked for")
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu_start
    print(json.dumps({"bytes": got, "seconds": seconds, "client_cpu_seconds": cpu}))


if __name__ == "__main__":
    main()
