"""The dashboard as a server, until it is stopped: by itself, or beside a service, in a thread of its own.

1. What cannot be is refused before anything is begun: no libraries, no token where others can reach it, an
   address that nothing can listen on.
2. At most `MAX_REQUESTS` requests are answered at once; more are told to come again (503). Connections that
   ask for nothing keep no place from others: one that has not said within `HEADERS_S` what it wants is
   dropped, and beyond `MAX_CONNECTIONS` the one that has been silent for longest, for each new one.
   `/healthz` is answered however many others there are, and before anything else is made.
3. It waits for stores for a moment only, whatever commands do: it shows what it knew and says that it is old.
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
"""More than requests, so that there are always some that ask for nothing."""
HEADERS_S = 10.0
KEEP_ALIVE_S = 15
BACKLOG = 128
HEALTH = "/healthz"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_log = logging.getLogger(LOGGER)


def check(config: Config) -> None:
    """`Refused` when it cannot be served as the settings say."""
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
        raise Refused(f"web.token is too short to be a secret; take at least {least} characters at random")
    if not token and config.web.host not in _LOOPBACK:
        raise Refused(
            f"on {config.web.host} anybody could look; set web.token (LITHIFY_WEB__TOKEN), "
            "or leave web.host out"
        )


def _least_token_chars() -> int:
    from lithify.web.guard import LEAST_TOKEN_CHARS

    return LEAST_TOKEN_CHARS


class DashboardService(Protocol):
    """A service in this process, which reads datasets anyway."""

    def watched(self, url: str) -> client.Dataset:
        """One of them, to look at."""
        ...

    def acted_on(self, url: str) -> client.Dataset:
        """One of them, to do something with."""
        ...


@contextmanager
def served(
    urls: Sequence[str], fleet: str | Fleet | None, config: Config, source: DashboardService | None = None
) -> Iterator[str]:
    """Serve them until the end of the block; where. With a `source`, no dataset is read but by that."""
    check(config)
    import_module("lithify.web.app")  # else the first page would wait for that
    make = partial(_application, urls, fleet, config, source)
    port = DEFAULT_PORT if config.web.port is None else config.web.port
    with serving(make, config.web.host, port) as where:
        _log.info("the dashboard is served", extra={FIELDS: {"url": where}})
        yield where


@contextmanager
def serving(make: Callable[[], Guard], host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Serve what is made with the first request, on the thread that serves it; where."""
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
        with one_at_a_time:  # the other one is read meanwhile
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
        why = str(error.strerror or error).partition(" (while attempting")[0]  # which says it again
        raise Refused(
            f"the dashboard cannot listen on {host}:{port}: {why}; "
            "give another port (web.port) or address (web.host)"
        ) from error


class _DashboardServer:
    """One in a thread of its own, with its event loop."""

    def __init__(self, make: Any, listening: socket.socket) -> None:
        self._make = make
        self._listening = listening
        self._server: Any = None
        self._is_made = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lithify-web", daemon=True)

    def start(self) -> None:
        """Returns when it is known whether it can be."""
        self._thread.start()
        self._is_made.wait()

    def stop(self) -> None:
        """Who is served just now is given a second."""
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
    """Makes the application on the loop that it runs on, with the first request; so many requests at once."""

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
            await _answer(send, 503, b"So many requests are being answered; come again.\n")
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
    """HTTP/1.1 as uvicorn speaks it, but for those who connect and say nothing."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Impatient(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait_for_the_next(HEADERS_S)
            if len(self.connections) > MAX_CONNECTIONS:
                others = (other for other in self.connections if isinstance(other, Impatient))
                silent = [other for other in others if other.is_silent]
                min(silent, key=lambda other: other.silent_since_s).transport.abort()  # this one at least

        @property
        def is_silent(self) -> bool:
            """Whether it asks for nothing, or has not said yet for what."""
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
