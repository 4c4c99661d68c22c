"""The HTTP endpoint of metrics and health. It has no authentication, so it listens on the loopback address
unless the settings say otherwise.

| path       | answer                                                                                |
|------------|---------------------------------------------------------------------------------------|
| `/healthz` | 200 while the process answers; otherwise a supervisor should restart it               |
| `/readyz`  | 200 if every dataset was polled within `READY_LIMIT_S`; else 503 and the late ones    |
| any other  | the metrics                                                                           |

While a store is away, the process is not ready, but healthy: a restart would not help.

The server is separate from the dashboard's. Silent clients cannot block others: each has a thread for
`REQUEST_S` at most, and beyond `MAX_CONNECTIONS` the oldest connection is closed for each new one.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from socketserver import ThreadingMixIn
from typing import Any, Protocol
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry

from lithify.base.errors import Refused
from lithify.base.printable import printable
from lithify.observe.logs import FIELDS, LOGGER

READY_LIMIT_S = 60.0
"""Many times the interval between polls."""
_MAX_SHOWN = 20
REQUEST_S = 10.0
"""The time a client has to send its request and to read the response."""
MAX_CONNECTIONS = 64
App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
"""A WSGI application."""


class Observed(Protocol):
    """The metrics and the readiness of a process."""

    registry: CollectorRegistry

    def not_looked_at(self, limit_s: float) -> list[str]:
        """Return the datasets that should have been polled in the last `limit_s` seconds, and were not."""


@contextmanager
def served(
    metrics: Observed, host: str, port: int, *, ready_limit_s: float = READY_LIMIT_S
) -> Iterator[None]:
    """Serve `metrics` during the block. Raise `Refused` if the address cannot be used."""
    from prometheus_client import disable_created_metrics, make_wsgi_app

    disable_created_metrics()  # type: ignore[no-untyped-call]  # the package does not type it
    app = with_health(make_wsgi_app(metrics.registry), metrics, ready_limit_s)
    try:
        server = _new_server(host, port, app)
    except OSError as error:
        raise Refused(
            f"the metrics endpoint cannot listen on {host}:{port}: {error.strerror or error}; "
            "give another port (--metrics-port) or address (metrics.host)"
        ) from error
    thread = threading.Thread(target=server.serve_forever, name="lithify-metrics", daemon=True)
    thread.start()
    url = f"http://{host}:{server.server_port}/metrics"
    logging.getLogger(LOGGER).info("metrics are served", extra={FIELDS: {"url": url}})
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def with_health(app: Any, metrics: Observed, ready_limit_s: float = READY_LIMIT_S) -> App:
    """Return the application with the paths for supervisors added."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO")
        if path not in ("/healthz", "/readyz"):
            found: Iterable[bytes] = app(_understood(environ), start_response)
            return found
        late = metrics.not_looked_at(ready_limit_s) if path == "/readyz" else []
        shown = [printable(f"not polled: {url}") for url in late[:_MAX_SHOWN]]
        start_response(
            "503 Service Unavailable" if late else "200 OK", [("Content-Type", "text/plain; charset=utf-8")]
        )
        return ["".join(f"{line}\n" for line in shown or ["ok"]).encode()]

    return answer


def _understood(environ: dict[str, Any]) -> dict[str, Any]:
    """Return the request without an `Accept` header that the application would fail to parse."""
    from prometheus_client.exposition import choose_encoder

    try:
        choose_encoder(environ.get("HTTP_ACCEPT", ""))
    except (ValueError, TypeError, LookupError):
        return {**environ, "HTTP_ACCEPT": ""}
    return environ


class _MetricsServer(ThreadingMixIn, WSGIServer):
    """A server with one thread for each of a limited number of connections."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._connections: dict[socket.socket, None] = {}
        """Open connections, the oldest first."""
        self._lock = threading.Lock()
        super().__init__(*arguments, **named)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._connections[request] = None
            oldest = next(iter(self._connections)) if len(self._connections) > MAX_CONNECTIONS else None
        if oldest is not None:
            with suppress(OSError):  # its thread waits for it, and then closes it
                oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connections.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore that the client went away. Errors of an answer are logged where they happen."""


class _SixServer(_MetricsServer):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_S
    default_request_version = "HTTP/1.0"  # malformed requests get a status too

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log no requests."""


def _new_server(host: str, port: int, app: App) -> WSGIServer:
    kind = _SixServer if ":" in host else _MetricsServer
    return make_server(host, port, app, server_class=kind, handler_class=_Handler)
