"""Small HTTP servers in threads of this process, for tests: quick to start, to answer and to stop."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_LOOK_S = 0.01
"""Between two looks whether the server is to stop: the library's half a second is what most tests take."""


class Handler(BaseHTTPRequestHandler):
    """Keeps connections, and logs nothing."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else a body waits until the client has acknowledged the headers

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


class _Server(ThreadingHTTPServer):
    request_queue_size = 128


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """The URL of a server on a free port of the loopback interface."""
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(_LOOK_S,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
