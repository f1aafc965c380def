"""Measures GETs of one user alone and beside the slow requests of another, in turn.

usage: gateway_neighbours.py FORDWAY URL OBJECTS; the environment is described in gateway-neighbours.
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
DELETES = int(os.environ.get("DELETES", "8"))
ROUNDS = int(os.environ.get("ROUNDS", "7"))
DURATION_S = float(os.environ.get("DURATION_S", "4"))
RATE = os.environ.get("RATE", "500")
LIMIT = float(os.environ.get("LIMIT", "2"))
LOCKS = os.environ.get("LOCKS", "1") != "0"
TURNS = 100
NOISY, QUIET = ("noisy-key", "noisy-secret"), ("quiet-key", "quiet-secret")


def presigned(method, url, path, keys):
    """The target of a request that carries its own signature."""
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
    """A connection on which the noisy user has sent the head of a request."""
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


@contextlib.contextmanager
def every_lock(objects):
    """Holds all bytes of the noisy bucket's lock table, as anyone can who may write to it."""
    tables = list(pathlib.Path(objects).glob("**/locks"))
    with contextlib.ExitStack() as held:
        for table in tables:
            file = held.enter_context(table.open("r+b"))
            whole = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            fcntl.fcntl(file, getattr(fcntl, "F_OFD_SETLK", 37), whole)
        yield len(tables)


def answered(downloads):
    """Waits until all requests are under way: what is measured is what slow ones cost, and not a thousand new ones."""
    with selectors.DefaultSelector() as waiting:
        for download in downloads:
            waiting.register(download, selectors.EVENT_READ)
        while waiting.get_map():
            for key, _ in waiting.select():
                waiting.unregister(key.fileobj)


def besiege(url, objects):
    """Has the slow requests under way until standard input ends; says on standard output when all of them are."""
    uploads = [ask(url, "PUT", f"/noisy/u{number}", 100_000) for number in range(SLOW // 2)]
    downloads = [ask(url, "GET", "/noisy/o", room=4096) for _ in range(SLOW - len(uploads))]
    held = every_lock(objects) if LOCKS else contextlib.nullcontext(0)
    with held as tables, selectors.DefaultSelector() as waiting:
        waiting.register(sys.stdin, selectors.EVENT_READ)
        deletes = DELETES if tables else 0
        for number in range(deletes):
            # Of what is not there, nothing is locked.
            pathlib.Path(objects, "noisy", f"d{number}").write_bytes(b"x")
            waiting.register(
                ask(url, "DELETE", f"/noisy/d{number}"), selectors.EVENT_READ, f"/noisy/d{number}"
            )
        answered(downloads)
        time.sleep(0.5)
        print(
            f"{len(uploads)} uploads, {len(downloads)} downloads, {deletes} deletes, {tables} lock tables",
            flush=True,
        )
        next_byte, turn = time.monotonic(), 0
        while True:
            for key, _ in waiting.select(max(0, next_byte - time.monotonic())):
                if key.data is None:
                    return
                # It was answered, with 503 as we hope: the user asks again.
                waiting.unregister(key.fileobj)
                key.fileobj.close()
                waiting.register(ask(url, "DELETE", key.data), selectors.EVENT_READ, key.data)
            if time.monotonic() >= next_byte:
                # One byte a second for each upload, spread evenly over the second.
                next_byte, turn = next_byte + 1 / TURNS, (turn + 1) % TURNS
                for upload in uploads[turn::TURNS]:
                    # One that was given up is none that could disturb.
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
    """Latencies of the quiet user's GETs; from the intended start, so that a stall counts for all who come in it."""
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
    """The middle 95 % of the medians of ratios drawn with replacement."""
    drawn = random.Random(1)
    medians = sorted(statistics.median(drawn.choices(ratios, k=len(ratios))) for _ in range(2_000))
    return medians[50], medians[-51]


def make_lock_tables(url):
    """A conditional change of a key makes its bucket's."""
    for method in ("PUT", "DELETE", "DELETE"):
        with ask(url, method, "/noisy/first") as connection:
            connection.recv(4096)


def main(fordway, url, objects):
    if LOCKS:
        make_lock_tables(url)
    ratios = []
    print(f"{'round':>5} {'p99 alone':>12} {'p99 beside':>12} {'ratio':>6}")
    for number in range(ROUNDS):
        alone = gets(fordway, url)["p99_ns"]
        with siege(url, objects) as said:
            beside = gets(fordway, url)["p99_ns"]
        ratios.append(beside / alone)
        print(
            f"{number:5} {alone / 1e3:9.0f} us {beside / 1e3:9.0f} us {ratios[-1]:6.2f}  {said}", flush=True
        )
    median, (low, high) = statistics.median(ratios), interval(ratios)
    print(
        f"p99 beside {SLOW} slow requests: {median:.2f} [{low:.2f}, {high:.2f}] times that alone; allowed: {LIMIT}"
    )
    if median > LIMIT:
        sys.exit("the slow requests of one user are felt by another")


if __name__ == "__main__":
    if sys.argv[1] == "--besiege":
        besiege(*sys.argv[2:])
    else:
        main(*sys.argv[1:])
