"""Measures one user's GETs, alternately alone and during another user's slow requests.

usage: gateway_neighbours.py FORDWAY URL OBJECTS PID

The script `gateway-neighbours` describes the environment.
"""

import contextlib
import datetime
import fcntl
import hashlib
import hmac
import json
import os
import pathlib
import random
import selectors
import socket
import statistics
import struct
import subprocess
import sys
import time
import urllib.parse

SLOW = int(os.environ.get("SLOW", "1000"))
CLOSED = int(os.environ.get("CLOSED", "5120"))
STREAMS = 256
WINDOW = int(os.environ.get("WINDOW", "0"))
DELETES = int(os.environ.get("DELETES", "8"))
ROUNDS = int(os.environ.get("ROUNDS", "7"))
DURATION_S = float(os.environ.get("DURATION_S", "4"))
RATE = os.environ.get("RATE", "500")
LIMIT = float(os.environ.get("LIMIT", "1.5"))
RSS_LIMIT_MIB = int(os.environ.get("RSS_LIMIT_MIB", "200"))
# The gateway keeps up to 32 MiB of unused memory.
KEPT_MIB = 32
GIVE_BACK_S = 60
LOCKS = os.environ.get("LOCKS", "1") != "0"
TURNS = 100
NOISY, QUIET = ("noisy-key", "noisy-secret"), ("quiet-key", "quiet-secret")


def presigned(method, url, path, keys):
    """Returns the target of a request, with a signature in its query."""
    host = urllib.parse.urlsplit(url).netloc
    moment = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
    scope = f"{moment[:8]}/us-east-1/s3/aws4_request"
    query = urllib.parse.urlencode(
        {
            "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
            "X-Amz-Credential": f"{keys[0]}/{scope}",
            "X-Amz-Date": moment,
            "X-Amz-Expires": "600",
            "X-Amz-SignedHeaders": "host",
        }
    )
    canonical = f"{method}\n{path}\n{query}\nhost:{host}\n\nhost\nUNSIGNED-PAYLOAD"
    text = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{keys[1]}".encode()
    for part in (moment[:8], "us-east-1", "s3", "aws4_request", text):
        key = hmac.digest(key, part.encode(), "sha256")
    return f"{path}?{query}&X-Amz-Signature={key.hex()}"


def ask(url, method, path, length=0, room=None):
    """Returns a connection on which the noisy user has sent the head of a request."""
    host, port = urllib.parse.urlsplit(url).netloc.split(":")
    connection = socket.socket()
    if room:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    connection.connect((host, int(port)))
    target = presigned(method, url, path, NOISY)
    connection.sendall(
        f"{method} {target} HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-length: {length}\r\n\r\n".encode()
    )
    return connection


def frame(kind, flags, stream, payload=b""):
    """Returns an HTTP/2 frame (RFC 9113 section 4.1)."""
    return struct.pack("!I", len(payload))[1:] + struct.pack("!BBI", kind, flags, stream) + payload


def literal(name, value):
    """Returns a header field that is not indexed, without Huffman coding (RFC 7541 section 6.2.2)."""

    def text(value):
        length = len(value)
        if length < 127:
            return bytes([length]) + value
        prefix, length = b"\x7f", length - 127
        while length >= 128:
            prefix, length = prefix + bytes([length % 128 + 128]), length // 128
        return prefix + bytes([length]) + value

    return b"\0" + text(name.encode()) + text(value.encode())


def closed_windows(url, path, count):
    """Returns HTTP/2 connections with `count` GETs of the noisy user, with closed flow-control windows."""
    host = urllib.parse.urlsplit(url).netloc
    fields = {":method": "GET", ":scheme": "http", ":authority": host, ":path": presigned("GET", url, path, NOISY)}
    head = b"".join(literal(*field) for field in fields.items())
    connections = []
    for first in range(0, count, STREAMS):
        connection = socket.create_connection(host.split(":"))
        # SETTINGS_INITIAL_WINDOW_SIZE is the number of bytes that the client accepts of each response.
        begin = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, struct.pack("!HI", 4, WINDOW)) + frame(4, 1, 0)
        streams = range(1, 2 * min(STREAMS, count - first), 2)
        connection.sendall(begin + b"".join(frame(1, 5, stream, head) for stream in streams))
        answered_heads(connection, len(streams))
        connections.append(connection)
    return connections


def answered_heads(connection, count):
    """Reads until the heads of `count` responses have arrived. Fails if a response is an error."""
    arrived = b""
    while count:
        arrived += connection.recv(1 << 16) or sys.exit("the gateway closed a connection of HTTP/2")
        while len(arrived) >= 9 and len(arrived) >= (end := 9 + int.from_bytes(arrived[:3])):
            if arrived[3] == 1:
                # Index 8 of the static table is `:status: 200`.
                if arrived[9] != 0x88:
                    sys.exit(f"a response of HTTP/2 is not 200: {arrived[9:end]}")
                count -= 1
            elif arrived[3] in (3, 7):
                sys.exit(f"the gateway ended a request of HTTP/2: {arrived[:end]}")
            arrived = arrived[end:]


@contextlib.contextmanager
def every_lock(objects):
    """Locks all bytes of the lock tables, as any user with write access can. Yields the number of tables."""
    tables = list(pathlib.Path(objects).glob("**/locks"))
    with contextlib.ExitStack() as held:
        for table in tables:
            file = held.enter_context(table.open("r+b"))
            whole = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            fcntl.fcntl(file, getattr(fcntl, "F_OFD_SETLK", 37), whole)
        yield len(tables)


def answered(downloads):
    """Waits until all downloads have a response, so that the load consists of slow requests and not of new requests."""
    with selectors.DefaultSelector() as waiting:
        for download in downloads:
            waiting.register(download, selectors.EVENT_READ)
        while waiting.get_map():
            for key, _ in waiting.select():
                waiting.unregister(key.fileobj)


def besiege(url, objects):
    """Keeps slow requests in flight until standard input ends. Prints a line when all requests have begun."""
    # This reference keeps the connections open until the function ends.
    closed = closed_windows(url, "/noisy/o", CLOSED)
    uploads = [ask(url, "PUT", f"/noisy/u{number}", 100_000) for number in range(SLOW // 2)]
    downloads = [ask(url, "GET", "/noisy/o", room=4096) for _ in range(SLOW - len(uploads))]
    held = every_lock(objects) if LOCKS else contextlib.nullcontext(0)
    with held as tables, selectors.DefaultSelector() as waiting:
        waiting.register(sys.stdin, selectors.EVENT_READ)
        deletes = DELETES if tables else 0
        for number in range(deletes):
            # Create the object, because a DELETE of a missing object acquires no lock.
            pathlib.Path(objects, "noisy", f"d{number}").write_bytes(b"x")
            waiting.register(
                ask(url, "DELETE", f"/noisy/d{number}"), selectors.EVENT_READ, f"/noisy/d{number}"
            )
        answered(downloads)
        time.sleep(0.5)
        print(
            f"{len(uploads)} uploads, {len(downloads)} downloads, {deletes} deletes, {tables} lock tables, "
            f"{CLOSED} closed windows on {len(closed)} connections",
            flush=True,
        )
        next_byte, turn = time.monotonic(), 0
        while True:
            for key, _ in waiting.select(max(0, next_byte - time.monotonic())):
                if key.data is None:
                    return
                # The DELETE ended with 503, because the lock of its key is held. The noisy user sends the
                # DELETE again.
                waiting.unregister(key.fileobj)
                key.fileobj.close()
                waiting.register(ask(url, "DELETE", key.data), selectors.EVENT_READ, key.data)
            if time.monotonic() >= next_byte:
                # Send one byte per second on each upload, spread evenly over the second.
                next_byte, turn = next_byte + 1 / TURNS, (turn + 1) % TURNS
                for upload in uploads[turn::TURNS]:
                    # An upload that the gateway has closed causes no load.
                    with contextlib.suppress(OSError):
                        upload.send(b"x")


@contextlib.contextmanager
def siege(url, objects):
    command = [sys.executable, __file__, "--besiege", url, objects]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        said = process.stdout.readline().strip()
        try:
            yield said
        finally:
            process.stdin.close()
            process.wait(timeout=20)


def gets(fordway, url):
    """Returns the latencies of the quiet user's GETs.

    Latencies count from the intended start, so that a stall delays all requests that are due during the
    stall.
    """
    environment = os.environ | {
        "AWS_ACCESS_KEY_ID": QUIET[0],
        "AWS_SECRET_ACCESS_KEY": QUIET[1],
        "AWS_REGION": "us-east-1",
    }
    command = [
        fordway,
        "bench",
        "rest",
        f"{url}/quiet/o",
        "--sign",
        "--rate",
        RATE,
        "--duration",
        f"{int(DURATION_S * 1000)}ms",
    ]
    command += ["--warm-up", "0s", "--json", "--no-progress"]
    ran = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=DURATION_S + 15, check=False
    )
    if ran.returncode != 0 or json.loads(ran.stdout)["errors"]:
        sys.exit(f"{' '.join(command)}\nfailed:\n{ran.stderr}{ran.stdout}")
    return json.loads(ran.stdout)["latency"]


def interval(ratios):
    """Returns the 95 % bootstrap interval of the median: 2,000 medians of ratios drawn with replacement,
    without the lowest and the highest 2.5 %."""
    drawn = random.Random(1)
    medians = sorted(statistics.median(drawn.choices(ratios, k=len(ratios))) for _ in range(2_000))
    return medians[50], medians[-51]


def make_lock_tables(url):
    """Changes a key, so that the gateway creates the lock table of the key's bucket."""
    for method in ("PUT", "DELETE", "DELETE"):
        with ask(url, method, "/noisy/first") as connection:
            connection.recv(4096)


def resident_mib(pid):
    """Returns the resident memory of a process in MiB."""
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024


def seconds_to_give_back(pid, mib):
    """Returns the seconds until a process has at most `mib` MiB of memory; `None` after GIVE_BACK_S."""
    start = time.monotonic()
    while resident_mib(pid) > mib:
        if time.monotonic() - start > GIVE_BACK_S:
            return None
        time.sleep(0.5)
    return time.monotonic() - start


def main(fordway, url, objects, pid):
    if LOCKS:
        make_lock_tables(url)
    ratios, most_mib = [], 0
    gets(fordway, url)
    before_mib = resident_mib(pid)
    print(f"{'round':>5} {'p99 alone':>12} {'p99 beside':>12} {'ratio':>6} {'RSS':>8}")
    for number in range(ROUNDS):
        alone = gets(fordway, url)["p99_ns"]
        with siege(url, objects) as said:
            beside = gets(fordway, url)["p99_ns"]
            now_mib = resident_mib(pid)
        most_mib = max(most_mib, now_mib)
        ratios.append(beside / alone)
        print(
            f"{number:5} {alone / 1e3:9.0f} us {beside / 1e3:9.0f} us {ratios[-1]:6.2f} {now_mib:4.0f} MiB  {said}", flush=True
        )
    median, (low, high) = statistics.median(ratios), interval(ratios)
    print(
        f"p99 beside {SLOW} slow requests and {CLOSED} closed windows: "
        f"{median:.2f} [{low:.2f}, {high:.2f}] times that alone; allowed: {LIMIT}"
    )
    took_s = seconds_to_give_back(pid, before_mib + KEPT_MIB)
    given_back = "not given back" if took_s is None else f"given back after {took_s:.0f} s"
    print(f"memory: {before_mib:.0f} MiB before, at most {most_mib:.0f} MiB (allowed: {RSS_LIMIT_MIB}), {given_back}")
    if took_s is None or most_mib > RSS_LIMIT_MIB:
        sys.exit("the slow requests of one user take too much memory, or keep it")
    if median > LIMIT:
        sys.exit("the slow requests of one user delay the requests of another")


if __name__ == "__main__":
    if sys.argv[1] == "--besiege":
        besiege(*sys.argv[2:])
    else:
        main(*sys.argv[1:])
