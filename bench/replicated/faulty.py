"""Servers of one file: sound ones at 300 Mbit/s a connection at the ports 8081 to 8083 and at 10 Mbit/s at 8084, and from 9000 on
those that fail, each in its own way. nginx's limit_rate lets a second's worth of each request pass at once, so it is not
used here. usage: faulty.py FILE ADDRESS"""

import os
import socket
import sys
import threading
import time

# The port of each is 9000 and its place in this list.
FAULTS = ["500", "dies", "truncates", "corrupt", "slow", "redirects", "hangs", "stops"]
# Bytes a second of a server that is in order, if only up to its fault.
RATE = 37_500_000
RATES = {"slow": 200_000, "10 Mbit/s": 1_250_000}
# Where it dies, ends or stops, in bytes of each answer.
AFTER = 2_000_000


def serve(connection, path, fault, address):
    with connection, open(path, "rb") as file:
        reader = connection.makefile("rb")
        while head := read_head(reader):
            if not answer(connection, file, head, fault, address):
                return


def read_head(reader):
    lines = []
    while (line := reader.readline()) not in (b"\r\n", b""):
        lines.append(line.decode("latin-1").strip())
    return lines


def answer(connection, file, head, fault, address):
    """Answers a request; whether there may be another."""
    method, size = head[0].split(" ")[0], os.fstat(file.fileno()).st_size
    if fault == "hangs":
        time.sleep(3600)
    if fault in ("500", "redirects"):
        status = "500 No" if fault == "500" else f"302 There\r\nLocation: http://{address}:1/file"
        connection.sendall(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode())
        return True
    asked = [line.split("=", 1)[1] for line in head if line.lower().startswith("range: bytes=")]
    # Of a list of ranges the first is sent, which clients understand.
    first, last = (asked[0].split(",")[0] if asked else f"0-{size - 1}").split("-")
    first, last = int(first), min(int(last or size - 1), size - 1)
    status = f"206 Some\r\nContent-Range: bytes {first}-{last}/{size}" if asked else "200 All"
    stated = f'HTTP/1.1 {status}\r\nETag: "one"\r\nContent-Length: {last + 1 - first}\r\n\r\n'
    connection.sendall(stated.encode())
    return method == "HEAD" or send(connection, file, first, last + 1, fault)


def send(connection, file, at, end, fault):
    rate, began, sent = RATES.get(fault, RATE), time.monotonic(), 0
    while at < end:
        if sent >= AFTER and fault in ("dies", "truncates", "stops"):
            if fault == "stops":
                time.sleep(3600)
            if fault == "dies":
                # A reset.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            return False
        # As much as the rate allows in 5 ms; what a late wake-up lost is made up for.
        count = min(end - at, rate // 200)
        piece = bytearray(os.pread(file.fileno(), count, at))
        if fault == "corrupt":
            piece[0] ^= 0xFF
        connection.sendall(piece)
        at, sent = at + len(piece), sent + len(piece)
        late = time.monotonic() - began - sent / rate
        if late < 0:
            time.sleep(-late)
        elif late > 0.1:
            # A client that did not take it has lost its time: there is no burst afterwards.
            began += late - 0.1
    return True


def listen(listener, path, fault, address):
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=serve_quietly, args=(connection, path, fault, address), daemon=True).start()


def serve_quietly(*arguments):
    try:
        serve(*arguments)
    except OSError:
        # Clients leave when they have had enough of it.
        pass


def main():
    path, address = sys.argv[1:]
    sound = {8081: "", 8082: "", 8083: "", 8084: "10 Mbit/s"}
    ports = {**sound, **{9000 + place: fault for place, fault in enumerate(FAULTS)}}
    # The last that listens is the one that is waited for.
    listeners = {port: socket.create_server((address, port), backlog=64) for port in sorted(ports, reverse=True)}
    for port, listener in listeners.items():
        # A process each, so that they do not wait for one another.
        if os.fork() == 0:
            listen(listener, path, ports[port], address)
    threading.Event().wait()


if __name__ == "__main__":
    main()
