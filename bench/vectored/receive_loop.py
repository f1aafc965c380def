"""The least that a client of the same answers can do: it receives them into one small piece of warm memory, and
looks at nothing but where they end. 200 ranges a request, as many as fit a head that nginx takes.

usage: receive_loop.py URL RANGES
"""

import json
import resource
import socket
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

PER_REQUEST = 200
MEMORY_BYTES = 256 * 1024


def requests(url, ranges):
    for start in range(0, len(ranges), PER_REQUEST):
        wanted = ",".join(f"{offset}-{offset + size - 1}" for offset, size in ranges[start : start + PER_REQUEST])
        yield f"GET {url.path} HTTP/1.1\r\nHost: {url.netloc}\r\nRange: bytes={wanted}\r\n\r\n".encode()


def receive_head(connection):
    """How many bytes of the body are still to come."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(4096)
    head, _, begun = received.partition(b"\r\n\r\n")
    length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
    return int(length.split(b":")[1]) - len(begun)


def main():
    url = urlsplit(sys.argv[1])
    ranges = [tuple(map(int, line.split())) for line in Path(sys.argv[2]).read_text().splitlines()]
    asked = list(requests(url, ranges))
    memory = memoryview(bytearray(b"\1" * MEMORY_BYTES))
    connection = socket.create_connection((url.hostname, url.port))
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    for request in asked:
        connection.sendall(request)
        left = receive_head(connection)
        while left > 0:
            got = connection.recv_into(memory[: min(left, MEMORY_BYTES)], 0, socket.MSG_WAITALL)
            if got == 0:
                sys.exit("the server closed the connection within an answer")
            left -= got
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    seconds = time.perf_counter() - start
    print(json.dumps({"bytes": sum(size for _, size in ranges), "seconds": seconds, "client_cpu_seconds": cpu}))


if __name__ == "__main__":
    main()
