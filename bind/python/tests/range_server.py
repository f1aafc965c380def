"""A web server for one directory that supports lists of ranges, and records its requests."""

from __future__ import annotations

import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

BOUNDARY = "a-boundary-of-the-test"


class RangeServer:
    """A server on a free port of the loopback address. The server runs during the `with` block."""

    def __init__(self, directory: Path) -> None:
        self.asked: list[tuple[str, str | None]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                server.answer(self, directory)

            def do_HEAD(self) -> None:
                server.answer(self, directory)

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self) -> RangeServer:
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def answer(self, handler: BaseHTTPRequestHandler, directory: Path) -> None:
        path = directory / handler.path.split("?")[0].strip("/")
        listed = handler.headers.get("Range")
        self.asked.append((handler.command, listed))
        if not path.is_file():
            handler.send_response(404)
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        content = path.read_bytes()
        etag = f'"{path.stat().st_mtime_ns:x}"'
        status, headers, body = _body(content, listed)
        handler.send_response(status)
        for name, value in {**headers, "ETag": etag, "Content-Length": str(len(body))}.items():
            handler.send_header(name, value)
        handler.end_headers()
        if handler.command == "GET":
            handler.wfile.write(body)

    @property
    def lists(self) -> list[str]:
        """The requested lists of more than one range."""
        return [listed for _, listed in self.asked if listed and "," in listed]


def _body(content: bytes, listed: str | None) -> tuple[int, dict[str, str], bytes]:
    if listed is None:
        return 200, {}, content
    size = len(content)
    ranges = [(int(first), min(int(last), size - 1)) for first, last in re.findall(r"(\d+)-(\d+)", listed)]
    said = [f"bytes {first}-{last}/{size}" for first, last in ranges]
    if len(ranges) == 1:
        return 206, {"Content-Range": said[0]}, content[ranges[0][0] : ranges[0][1] + 1]
    body = b""
    for (first, last), range_ in zip(ranges, said, strict=True):
        body += f"\r\n--{BOUNDARY}\r\nContent-Range: {range_}\r\n\r\n".encode() + content[first : last + 1]
    body += f"\r\n--{BOUNDARY}--\r\n".encode()
    return 206, {"Content-Type": f"multipart/byteranges; boundary={BOUNDARY}"}, body
