"""Cases in which a server or a document contains a false statement."""

import contextlib
import os
import re
import resource
import socket
import subprocess
import threading

from ground import check

CONTENT = bytes(range(256)) * 400
MEMORY_MAX_MIB = 500
# A program that allocates memory according to a declared size must not use all of the machine's memory.
ADDRESS_SPACE_MAX = 6 << 30
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}


def head_of(connection):
    """Returns the head of a request without a body; empty if the client has closed the connection."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        more = connection.recv(65536)
        if not more:
            return ""
        head += more
    return head.decode("latin-1")


def server(ground, respond):
    """Starts a server that sends what `respond(method, head)` returns, then closes; returns its address."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    ground.ends.callback(listener.close)

    def answer(connection):
        with connection, contextlib.suppress(OSError):
            head = head_of(connection)
            if head:
                connection.sendall(respond(head.split(" ", 1)[0], head))
                # Read before closing, because closing a socket with unread bytes would reset the connection.
                connection.shutdown(socket.SHUT_WR)
                connection.recv(65536)

    def accept():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=answer, args=[connection], daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return f"127.0.0.1:{listener.getsockname()[1]}"


def response(status, headers, body=b""):
    lines = [f"HTTP/1.1 {status}", *headers, "connection: close", "", ""]
    return "\r\n".join(lines).encode() + body


def honest(method, head):
    """Returns the response of a server that supports only single ranges."""
    found = re.search(r"(?im)^range: *bytes=(\d+)-(\d*)\r?$", head)
    if not found:
        return response("200 OK", [f"content-length: {len(CONTENT)}"], b"" if method == "HEAD" else CONTENT)
    first, last = int(found[1]), min(int(found[2] or len(CONTENT)), len(CONTENT) - 1)
    headers = [f"content-range: bytes {first}-{last}/{len(CONTENT)}", f"content-length: {last + 1 - first}"]
    return response("206 Partial Content", headers, b"" if method == "HEAD" else CONTENT[first : last + 1])


def more_content_than_stated(ground, frame):
    """The head declares 9 bytes, but 20 bytes arrive."""

    def respond(method, head):
        if method == "HEAD":
            return response("200 OK", ["content-length: 9"])
        return frame(b"nine byte, and eleven")

    cat = ground.run("cat", f"http://{server(ground, honest)}/file")
    check((cat.returncode, cat.stdout) == (0, CONTENT), f"cat of an honest server's file fails: {cat.stderr!r}")
    url = f"http://{server(ground, respond)}/file"
    cat, copy = ground.run("cat", url), ground.run("cp", url, ground.scratch / "copy")
    check(cat.returncode != 0, f"cat writes {len(cat.stdout)} bytes, and its exit code is 0")
    check(copy.returncode != 0, "the exit code of cp is 0")


def more_chunks_than_stated(ground):
    def frame(body):
        return response("200 OK", ["transfer-encoding: chunked"], b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))

    more_content_than_stated(ground, frame)


def more_bytes_until_the_close_than_stated(ground):
    more_content_than_stated(ground, lambda body: response("200 OK", [], body))


def peak_mib(ground, *words):
    """Runs the program; returns its exit code, negative for a signal, and its largest resident memory in MiB."""
    command, quiet = [ground.program, *map(str, words)], subprocess.DEVNULL
    environment = {"PATH": os.environ["PATH"], "HOME": str(ground.scratch)}
    child = subprocess.Popen(command, stdout=quiet, stderr=quiet, env=environment)
    ground.ends.callback(ground.end, child)
    resource.prlimit(child.pid, resource.RLIMIT_AS, (ADDRESS_SPACE_MAX, ADDRESS_SPACE_MAX))
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return child.returncode, usage.ru_maxrss / 1024


def metalink(ground, size):
    url = f"http://{server(ground, honest)}/file"
    file = f'<file name="file"><size>{size}</size><url>{url}</url></file>'
    document = f'<?xml version="1.0"?><metalink xmlns="urn:ietf:params:xml:ns:metalink">{file}</metalink>'
    return ground.write(ground.scratch / f"{size}.meta4", document.encode(), 0)


def sizes_in_metalinks(ground):
    code, _ = peak_mib(ground, "cp", "--metalink", metalink(ground, len(CONTENT)), ground.scratch / "right")
    check(code == 0, f"a right Metalink is not read: {code}")
    for name, size in {"2^63 - 1": 2**63 - 1, "1 PiB": 1 << 50}.items():
        for words in (["cp"], ["cat"]):
            to = [ground.scratch / "copy"] if words == ["cp"] else []
            code, mib = peak_mib(ground, *words, "--metalink", metalink(ground, size), *to)
            check(code > 0, f"{words[0]} of a size of {name} ends with {code}")
            check(mib < MEMORY_MAX_MIB, f"{words[0]} of a size of {name} takes {mib:.0f} MiB of memory")


def parts_that_are_a_byte_short(ground):
    """Each of several parts ends a byte early: the CR of the delimiter takes the place of the last byte."""
    wanted = [(100, 50), (40_000, 70), (90_000, 30)]

    def respond(method, head):
        found = re.search(r"(?im)^range: *bytes=([\d,\- ]+)\r?$", head)
        ranges = [tuple(map(int, each.split("-"))) for each in found[1].split(",")] if found and "," in found[1] else []
        if method != "GET" or len(ranges) < 2:
            return honest(method, head)
        part = "\r\n--edge\r\ncontent-range: bytes {}-{}/{}\r\n\r\n"
        body = b"".join(part.format(first, last, len(CONTENT)).encode() + CONTENT[first:last] for first, last in ranges)
        body += b"\r\n--edge--\r\n"
        kind = "content-type: multipart/byteranges; boundary=edge"
        return response("206 Partial Content", [kind, f"content-length: {len(body)}"], body)

    ranges = ground.write(ground.scratch / "ranges", "".join(f"{at} {size}\n" for at, size in wanted).encode(), 0)
    expected = b"".join(CONTENT[at : at + size] for at, size in wanted)
    for name, answer in {"an honest server": honest, "a server of short parts": respond}.items():
        read = ground.run("read", f"http://{server(ground, answer)}/file", "--ranges", ranges)
        is_right = read.returncode == 0 and read.stdout == expected
        is_refused = answer is respond and read.returncode != 0
        check(
            is_right or is_refused,
            f"from {name}: exit code {read.returncode}, {len(read.stdout)} bytes, not the right ones",
        )


def page(key, token):
    """Returns a page of a listing with one key. `token` leads to the next page, if there is one."""
    written = f"<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
    written += '<ETag>"e"</ETag><Size>1</Size></Contents>'
    more = f"<NextContinuationToken>{token}</NextContinuationToken>" if token else ""
    state = f"<Name>b</Name><IsTruncated>{str(bool(token)).lower()}</IsTruncated>{more}"
    body = f'<?xml version="1.0"?><ListBucketResult>{state}{written}</ListBucketResult>'.encode()
    return response("200 OK", ["content-type: application/xml", f"content-length: {len(body)}"], body)


def a_continuation_token_that_repeats(ground):
    def two_pages(method, head):
        return page("second", None) if "continuation-token=next" in head else page("first", "next")

    def listing(respond):
        endpoint = f"http://{server(ground, respond)}"
        return ground.run("--endpoint", endpoint, "ls", "s3://b/", timeout_s=10, settings=KEYS)

    honest = listing(two_pages)
    check(honest.returncode == 0 and b"second" in honest.stdout, f"ls of two pages fails: {honest.stderr!r}")
    lie = listing(lambda method, head: page("k", "again"))
    check(lie.returncode > 0, f"ls ends with {lie.returncode}")


def what_a_failed_copy_leaves(ground):
    half = response("200 OK", [f"content-length: {len(CONTENT)}"], CONTENT[:50_000])

    def cut(method, head):
        return honest(method, head) if method == "HEAD" else half

    to = ground.scratch / "to"
    to.mkdir()
    copy = ground.run("cp", f"http://{server(ground, honest)}/file", ground.scratch / "right")
    check(copy.returncode == 0, f"cp of an honest server's file fails: {copy.stderr!r}")
    copy = ground.run("cp", f"http://{server(ground, cut)}/file", to / "copy", timeout_s=120)
    check(copy.returncode > 0, f"cp of a file that is cut off ends with {copy.returncode}")
    check(not os.listdir(to), f"it leaves {os.listdir(to)}")


CASES = [
    more_chunks_than_stated,
    more_bytes_until_the_close_than_stated,
    sizes_in_metalinks,
    parts_that_are_a_byte_short,
    a_continuation_token_that_repeats,
    what_a_failed_copy_leaves,
]
