"""Serves N bytes for GET /pong/N. The first argument is the port."""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CONTENT = bytes(range(256)) * 4096


class Pong(BaseHTTPRequestHandler):
    """A connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_GET(self) -> None:
        """Responds to one request."""
        last = self.path.rsplit("/", 1)[-1]
        if not last.isdigit():
            self.send_error(400)
            return
        left = int(last)
        self.send_response(200)
        self.send_header("Content-Length", str(left))
        self.end_headers()
        while left > 0:
            left -= self.wfile.write(CONTENT[:left])
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        """Suppresses the access log."""


if __name__ == "__main__":
    ThreadingHTTPServer(("", int(sys.argv[1])), Pong).serve_forever()
