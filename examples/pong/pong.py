"""Answers GET /pong/N with N bytes, at the port that is the first argument."""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CONTENT = bytes(range(256)) * 4096


class Pong(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_GET(self) -> None:
        """Answers one request."""
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
        """Says nothing."""


if __name__ == "__main__":
    ThreadingHTTPServer(("", int(sys.argv[1])), Pong).serve_forever()
