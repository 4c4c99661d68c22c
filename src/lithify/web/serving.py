"""The dashboard's HTTP server, in a thread of its own: by itself or within a service.

1. `Refused` before anything starts: a library is missing, there is no token although the address is public,
   or the address cannot be listened on.
2. At most `MAX_REQUESTS` requests are answered at once; others get 503. A connection without a request's
   headers within `HEADERS_S` is dropped; beyond `MAX_CONNECTIONS` each new one closes the one silent for
   longest. `/healthz` is answered under any load, without the application.
3. Unlike commands, it waits for stores only briefly: it shows cached values and their age.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from lithify.api import client, wiring
from lithify.api.fleets import Fleet, ShownFleet
from lithify.base.clock import SystemClock
from lithify.base.errors import Refused
from lithify.config.model import Config
from lithify.observe.logs import FIELDS, LOGGER

if TYPE_CHECKING:
    from lithify.web.guard import Guard

DEFAULT_PORT = 8090
MAX_REQUESTS = 300
MAX_CONNECTIONS = 400
"""More than `MAX_REQUESTS`, so that some are always idle."""
HEADERS_S = 10.0
KEEP_ALIVE_S = 15
BACKLOG = 128
HEALTH = "/healthz"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_log = logging.getLogger(LOGGER)


def check(config: Config) -> None:
    """Raise `Refused` if these settings cannot be served."""
    try:
        import jinja2
        import starlette
        import uvicorn
    except ImportError as error:
        raise Refused(
            f"the dashboard needs {error.name}, which is not installed; install lithify[web]"
        ) from None
    del jinja2, starlette, uvicorn
    token, least = config.web.token, _least_token_chars()
    if token and len(token) < least:
        raise Refused(f"web.token is too short to be a secret; use at least {least} random characters")
    if not token and config.web.host not in _LOOPBACK:
        raise Refused(
            f"on {config.web.host} the dashboard would be open to everyone; set web.token "
            "(LITHIFY_WEB__TOKEN), or leave web.host out"
        )


def _least_token_chars() -> int:
    from lithify.web.guard import LEAST_TOKEN_CHARS

    return LEAST_TOKEN_CHARS


class DashboardService(Protocol):
    """A service in this process that reads the datasets already."""

    def watched(self, url: str) -> client.Dataset: ...

    def acted_on(self, url: str) -> client.Dataset: ...


@contextmanager
def served(
    urls: Sequence[str], fleet: str | Fleet | None, config: Config, source: DashboardService | None = None
) -> Iterator[str]:
    """Serve the datasets and the fleet until the end of the block; yield the URL. With a `source`, only that
    reads datasets."""
    check(config)
    import_module("lithify.web.app")  # else the first page would wait for the import
    import_module("lithify.web.rendering").warm_up()
    make = partial(_application, urls, fleet, config, source)
    port = DEFAULT_PORT if config.web.port is None else config.web.port
    with serving(make, config.web.host, port) as where:
        _log.info("the dashboard is served", extra={FIELDS: {"url": where}})
        yield where


@contextmanager
def serving(make: Callable[[], Guard], host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Serve the application, which `make` builds on the serving thread with the first request; yield the
    URL."""
    listening = _listen(host, port)
    name = f"[{host}]" if ":" in host else host
    server = _DashboardServer(make, listening)
    server.start()
    try:
        yield f"http://{name}:{listening.getsockname()[1]}/"
    finally:
        server.stop()


def _application(
    urls: Sequence[str], fleet: str | Fleet | None, config: Config, source: DashboardService | None
) -> Guard:
    from lithify.web.app import application
    from lithify.web.dashboard import Dashboard

    settings = wiring.patient(config)
    of_fleet = ShownFleet(fleet, settings=config) if isinstance(fleet, str) else fleet

    opening, one_at_a_time = of_fleet and ShownFleet(of_fleet.url, settings=config), threading.Lock()

    def open_dataset(url: str) -> client.Dataset:
        if opening is None or url in urls:
            return client.open(url, settings=settings)
        with one_at_a_time:  # `of_fleet` is read by another thread meanwhile
            return opening.open(url)

    if source is not None:
        open_dataset = source.watched
    acted_on = None if source is None else source.acted_on
    dashboard = Dashboard(list(dict.fromkeys(urls)), open_dataset, of_fleet, SystemClock(), acted_on=acted_on)
    return application(dashboard, config.web.token, [config.web.host, *config.web.names.split(",")])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        why = str(error.strerror or error).partition(" (while attempting")[0]  # the rest repeats the address
        raise Refused(
            f"the dashboard cannot listen on {host}:{port}: {why}; "
            "give another port (web.port) or address (web.host)"
        ) from error


class _DashboardServer:
    def __init__(self, make: Any, listening: socket.socket) -> None:
        self._make = make
        self._listening = listening
        self._server: Any = None
        self._is_made = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lithify-web", daemon=True)

    def start(self) -> None:
        """Return when the server was created or has failed."""
        self._thread.start()
        self._is_made.wait()

    def stop(self) -> None:
        """Requests that are being answered get one second."""
        self._server.should_exit = True
        self._thread.join()
        self._listening.close()

    def _run(self) -> None:
        import uvicorn

        try:
            options = uvicorn.Config(
                _Lazy(self._make),
                http=_protocol(),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=1,
                h11_max_incomplete_event_size=32 << 10,
            )
            self._server = uvicorn.Server(options)
        finally:
            self._is_made.set()
        asyncio.run(self._server.serve(sockets=[self._listening]))


class _Lazy:
    """Builds the application on its own loop with the first request, and limits concurrent requests."""

    def __init__(self, make: Any) -> None:
        self._make = make
        self._app: Guard | None = None
        self._requests = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope.get("path") == HEALTH:
            is_read = scope["method"] in ("GET", "HEAD")
            await _answer(send, 200 if is_read else 405, b"ok\n" if is_read else b"")
            return
        if self._requests >= MAX_REQUESTS:
            await _answer(send, 503, b"Too many requests are being answered; retry later.\n")
            return
        self._requests += 1
        try:
            if self._app is None:
                self._app = self._make()
            await self._app(scope, receive, send)
        finally:
            self._requests -= 1


async def _answer(send: Any, status: int, body: bytes) -> None:
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
        *([(b"retry-after", b"1")] if status == 503 else []),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _protocol() -> Any:
    """Return uvicorn's HTTP/1.1 protocol, with silent connections dropped."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Impatient(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait_for_the_next(HEADERS_S)
            if len(self.connections) > MAX_CONNECTIONS:
                others = (other for other in self.connections if isinstance(other, Impatient))
                silent = [other for other in others if other.is_silent]
                min(silent, key=lambda other: other.silent_since_s).transport.abort()  # includes this one

        @property
        def is_silent(self) -> bool:
            """Whether no request is being answered."""
            return self.cycle is None or self.cycle.response_complete

        def on_response_complete(self) -> None:
            self._waiting.cancel()
            self._wait_for_the_next(HEADERS_S + KEEP_ALIVE_S)
            super().on_response_complete()

        def _wait_for_the_next(self, seconds: float) -> None:
            before, self.silent_since_s = self.cycle, self.loop.time()

            def drop() -> None:
                if self.cycle is before:
                    self.transport.close()

            self._waiting = self.loop.call_later(seconds, drop)

        def connection_lost(self, exc: Exception | None) -> None:
            self._waiting.cancel()
            super().connection_lost(exc)

    return Impatient
