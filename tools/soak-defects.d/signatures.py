"""Cases in which a request's signature omits a part that the signature must cover."""

import hashlib
import hmac

from ground import REGION, Client, check, digest, signing_key

STREAMED = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"


def served(ground):
    ground.bucket("b", 0)
    ground.write(ground.root / "b/k", b"content", 0)
    client = Client(ground.serve(), "root")
    check(client.ask("GET", "/b/k") == (200, b"content"), "a signed GET fails")
    return client


def a_host_that_is_not_signed(ground):
    client = served(ground)
    names = ["x-amz-content-sha256", "x-amz-date"]
    headers = client.headers("GET", "/b/k", {}, {}, digest(b""), names)
    status, _ = client.send("GET", "/b/k", headers)
    check(status == 403, f"the GET is answered {status}")


def signed_headers_that_are_empty(ground):
    client = served(ground)
    headers = client.headers("GET", "/b/k", {}, {}, digest(b""), [])
    status, _ = client.send("GET", "/b/k", headers)
    check(status in (400, 403), f"the GET is answered {status}")


def urls_that_are_valid_for_more_than_seven_days(ground):
    client, week_s = served(ground), 7 * 24 * 3600
    check(client.send("GET", client.presigned("GET", "/b/k", week_s), {})[0] == 200, "a URL for seven days fails")
    status, _ = client.send("GET", client.presigned("GET", "/b/k", week_s + 1), {})
    check(status in (400, 403), f"a GET by a URL for seven days and a second is answered {status}")


def chunk(client, headers, previous, data):
    """Returns a chunk of a streamed body, and its signature."""
    now = headers["x-amz-date"]
    scope = f"{now[:8]}/{REGION}/s3/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256-PAYLOAD", now, scope, previous, digest(b""), digest(data)])
    found = hmac.new(signing_key(client.secret_key, now[:8]), text.encode(), hashlib.sha256).hexdigest()
    return f"{len(data):x};chunk-signature={found}\r\n".encode() + data + b"\r\n", found


def streamed(client, data, cut):
    """Puts data as a signed chunk and an empty last chunk, which `cut` changes. Returns the status."""
    extra = {"x-amz-decoded-content-length": str(len(data)), "content-encoding": "aws-chunked"}
    headers = client.headers("PUT", "/b/streamed", {}, extra, STREAMED)
    first, seen = chunk(client, headers, headers["authorization"].rsplit("=", 1)[1], data)
    last, _ = chunk(client, headers, seen, b"")
    body = first + cut(last)
    return client.send("PUT", "/b/streamed", headers | {"content-length": str(len(body))}, body)[0]


def a_last_chunk_whose_signature_is_cut(ground):
    client = served(ground)
    check(streamed(client, b"x" * 70_000, lambda last: last) == 200, "a streamed PUT fails")
    # The counts cut off more and more: both line breaks, then also a digit, half of the signature, the whole
    # signature, and the whole chunk.
    for count in (4, 5, 36, 68, 86):
        status = streamed(client, b"y" * 70_000, lambda last, kept=-count: last[:kept])
        check(status in (400, 403), f"a PUT without its last {count} bytes is answered {status}")
    check(client.ask("GET", "/b/streamed") == (200, b"x" * 70_000), "the object is what was refused")


CASES = [
    a_host_that_is_not_signed,
    signed_headers_that_are_empty,
    urls_that_are_valid_for_more_than_seven_days,
    a_last_chunk_whose_signature_is_cut,
]
