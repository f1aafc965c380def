"""An S3 server in this process that sends scripted responses."""

from __future__ import annotations

import contextlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Response = tuple[int, dict[str, str], bytes]

FAILED = 500, {}, b"<Error><Code>InternalError</Code><Message>scripted</Message></Error>"


class Server(ThreadingHTTPServer):
    """A server whose clients may disconnect before they receive the response."""

    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Prints nothing."""


@contextlib.contextmanager
def scripted(respond: Callable[[str, str, bytes], Response]) -> Iterator[str]:
    """Yields the address of a server. `respond` returns each response, given the method, the path and the
    body.

    The server runs in a thread of this process, so a call that does not release the GIL never gets a
    response.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            status, headers, content = respond(self.command, self.path, body)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Prints nothing."""

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
