"""Serve the page during training: to this machine only, and kept up to date."""

import hashlib
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import BoundedSemaphore, Lock
from typing import Any
from urllib.parse import parse_qs, urlsplit

from sortnet.lab.report import contents, page

HOST = "127.0.0.1"
CONNECTIONS = 32
"""Connections served at a time; a page has one."""
PATIENCE = 10.0
"""Seconds that a connection may be idle."""
BUSY = b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"
GONE = (ConnectionError, TimeoutError)
"""Errors of a connection whose other end was closed or is silent."""


class Server(ThreadingHTTPServer):
    """Serves the page at ``/`` and its data at ``/data.json``.

    Arguments:
        directories: Directories of the runs.
        port: Port on 127.0.0.1; 0 selects a free one.
    """

    daemon_threads = True
    request_queue_size = CONNECTIONS

    def __init__(self, directories: Sequence[Path], port: int) -> None:
        self.directories, self.lock = directories, Lock()
        self.free = BoundedSemaphore(CONNECTIONS)
        try:
            super().__init__((HOST, port), Handler)
        except OSError as error:
            raise OSError(f"port {port} of {HOST} cannot be used: {error.strerror}") from None

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{HOST}:{self.server_address[1]}/"

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Serve a connection in its own thread unless there are too many."""
        if self.free.acquire(blocking=False):
            super().process_request(request, client_address)
            return
        with suppress(OSError):
            request.settimeout(0)
            request.sendall(BUSY)
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Serve a connection to its end."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.free.release()

    def handle_error(
        self,
        request: socket.socket | tuple[bytes, socket.socket],
        client_address: Any,  # noqa: ANN401
    ) -> None:
        """Ignore a lost connection; report every other error."""
        if not isinstance(sys.exception(), GONE):
            super().handle_error(request, client_address)

    def stamp(self) -> str:
        """Return a value that changes whenever the page's contents do."""
        found = contents.find_all(self.directories)
        stamps = [(str(directory), contents.stamp(directory)) for directory in found]
        for name in contents.BESIDE:
            beside = [directory / name for directory in self.directories]
            stamps += [(str(p), ((p.stat().st_mtime_ns, 0),)) for p in beside if p.is_file()]
        return hashlib.sha256(repr(stamps).encode()).hexdigest()[:16]

    def answer(self, path: str, since: str) -> tuple[HTTPStatus, str, str]:
        """Return status, content type and text for a path.

        Arguments:
            path: ``/`` or ``/data.json``.
            since: The stamp of the page's contents; nothing is sent if it has not changed.
        """
        if path not in ("/", "/data.json"):
            return HTTPStatus.NOT_FOUND, "text/plain", "there is only / and /data.json"
        with self.lock:  # only one thread at a time reads the files
            try:
                stamp = self.stamp()
                if path == "/data.json" and since == stamp:
                    return HTTPStatus.NO_CONTENT, "text/plain", ""
                content = contents.gather(self.directories) | {"stamp": stamp}
            except (ValueError, OSError) as error:  # the runs may have been removed
                return HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", str(error)
        if path == "/":
            return HTTPStatus.OK, "text/html", page.render(content, page.TITLE, live=True)
        data = page.embedded(content | {"title": page.TITLE, "live": True})
        return HTTPStatus.OK, "application/json", data


class Handler(BaseHTTPRequestHandler):
    """Answers requests that are addressed to this machine."""

    server: Server
    timeout = PATIENCE

    def do_GET(self) -> None:
        """Send the page or its data."""
        port = self.server.server_address[1]
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
            # a host name of another site that resolves here would let that site read the answer
            self._send(HTTPStatus.FORBIDDEN, "text/plain", f"ask for {self.server.url}")
            return
        target = urlsplit(self.path)
        since = parse_qs(target.query).get("since", [""])[0]
        self._send(*self.server.answer(target.path, since))

    def _send(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode(errors="replace")
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        with suppress(*GONE):  # the page was closed before the answer was sent
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


def serve(
    directories: Sequence[Path], port: int = 0, ready: Callable[[str], None] = print
) -> None:
    """Serve the page until Ctrl-C.

    Arguments:
        directories: Directories of the runs.
        port: Port on 127.0.0.1; 0 selects a free one.
        ready: Called with the page's address once it can be opened.

    Raises:
        ValueError: There is no run.
        OSError: The port is in use.
    """
    contents.find_all(directories)
    with Server(directories, port) as server:
        ready(server.url)
        try:
            server.serve_forever(poll_interval=0.1)
        except KeyboardInterrupt:
            return
