"""Servers of one file that fail, each in its own way and at its own port. usage: faulty.py FILE ADDRESS"""

import os
import socket
import sys
import threading
import time

# The port of each is 9000 and its place in this list.
FAULTS = ["500", "dies", "truncates", "corrupt", "slow", "redirects", "hangs", "stops"]
# A server that is in order up to its fault sends 300 Mbit/s.
RATE = 37_500_000
SLOW = 200_000
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
    rate, began, sent = SLOW if fault == "slow" else RATE, time.monotonic(), 0
    while at < end:
        if sent >= AFTER and fault in ("dies", "truncates", "stops"):
            if fault == "stops":
                time.sleep(3600)
            if fault == "dies":
                # A reset.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            return False
        piece = bytearray(os.pread(file.fileno(), min(end - at, 4096 if fault == "slow" else 65536), at))
        if fault == "corrupt":
            piece[0] ^= 0xFF
        connection.sendall(piece)
        at, sent = at + len(piece), sent + len(piece)
        time.sleep(max(0, began + sent / rate - time.monotonic()))
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
    for place, fault in reversed(list(enumerate(FAULTS))):
        listener = socket.create_server((address, 9000 + place), backlog=64)
        threading.Thread(target=listen, args=(listener, path, fault, address), daemon=True).start()
    threading.Event().wait()


if __name__ == "__main__":
    main()
