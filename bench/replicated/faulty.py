"""Servers that serve one file, with and without faults.

usage: faulty.py FILE ADDRESS

The ports 8081 to 8083 serve 300 Mbit/s per connection, and 8084 serves 10 Mbit/s. Each port from 9000 on has a different fault.
nginx is not used, because its limit_rate sends the data of a whole second at once for each request.
"""

import os
import socket
import sys
import threading
import time

# The port of a fault is 9000 plus its index.
FAULTS = ["500", "dies", "truncates", "corrupt", "slow", "redirects", "hangs", "stops"]
# The rate, in bytes per second, of servers without a fault, and of the other servers before their fault.
RATE = 37_500_000
RATES = {"slow": 200_000, "10 Mbit/s": 1_250_000}
# The number of bytes of a response after which the server resets the connection, closes it, or sends nothing
# more.
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
    """Responds to a request. Returns whether the connection can serve another request."""
    method, size = head[0].split(" ")[0], os.fstat(file.fileno()).st_size
    if fault == "hangs":
        time.sleep(3600)
    if fault in ("500", "redirects"):
        status = "500 No" if fault == "500" else f"302 There\r\nLocation: http://{address}:1/file"
        connection.sendall(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode())
        return True
    asked = [line.split("=", 1)[1] for line in head if line.lower().startswith("range: bytes=")]
    # Send only the first range of a request for several ranges. Clients must accept such a response.
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
                # Make `close` send a reset.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            return False
        # Send as much as the rate allows in 5 ms, and make up for late wake-ups.
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
            # Make up for at most 0.1 s of delay, so that a client that reads late gets no burst.
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
        # Clients may close a connection early.
        pass


def main():
    path, address = sys.argv[1:]
    sound = {8081: "", 8082: "", 8083: "", 8084: "10 Mbit/s"}
    ports = {**sound, **{9000 + place: fault for place, fault in enumerate(FAULTS)}}
    # Open the lowest port last, because other programs wait only until that port accepts connections.
    listeners = {port: socket.create_server((address, port), backlog=64) for port in sorted(ports, reverse=True)}
    for port, listener in listeners.items():
        # Each listener is a separate process, so that listeners do not wait for
        # each other.
        if os.fork() == 0:
            listen(listener, path, ports[port], address)
    threading.Event().wait()


if __name__ == "__main__":
    main()
