"""A server in a thread of this process.

It uses uvloop if that is installed. The thread shares the interpreter with all others, so measurements need a
separate process (`S3Process`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from lithify.testing.s3.connection import Connection
from lithify.testing.s3.log import LoggedRequest
from lithify.testing.s3.quirks import Quirk
from lithify.testing.s3.requests import Operation
from lithify.testing.s3.site import Site
from lithify.testing.s3.weather import Weather

_BACKLOG = 1024
ResultT = TypeVar("ResultT")


class S3Server:
    """An S3 server in memory, which runs within its `with` block. `seed` determines the weather's chance.
    With `whole_seconds` it lists times as AWS does, without milliseconds.

    Raises `OSError` if `port` of `host` is taken; port 0 takes a free one.
    """

    def __init__(
        self,
        weather: Weather | None = None,
        *,
        seed: int = 0,
        host: str = "127.0.0.1",
        port: int = 0,
        whole_seconds: bool = False,
    ) -> None:
        weather = weather if weather is not None else Weather()
        self._site = Site(weather, seed, whole_seconds=whole_seconds)
        self._host, self._port = host, port
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="s3", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            listening = asyncio.run_coroutine_threadsafe(
                listen(self._site, self._host, self._port), self._loop
            )
            self._listener = listening.result()
        except OSError:
            self._stop()
            raise
        self._port = self._listener.port
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._listener.close)
        self._stop()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self._port}"

    @property
    def weather(self) -> Weather:
        """The weather for requests from now on. Can be set."""
        return self._site.weather

    @weather.setter
    def weather(self, weather: Weather) -> None:
        self._run(lambda: setattr(self._site, "weather", weather))

    @property
    def not_allowed(self) -> frozenset[Operation]:
        """Operations answered by 405 from now on. Can be set."""
        return self._site.operations.not_allowed

    @not_allowed.setter
    def not_allowed(self, operations: frozenset[Operation]) -> None:
        self._run(lambda: setattr(self._site.operations, "not_allowed", operations))

    @property
    def quirks(self) -> frozenset[Quirk]:
        """Deviations from S3 from now on. Can be set."""
        return self._site.operations.quirks

    @quirks.setter
    def quirks(self, quirks: Collection[Quirk]) -> None:
        self._run(lambda: setattr(self._site.operations, "quirks", frozenset(quirks)))

    @property
    def log(self) -> list[LoggedRequest]:
        """All requests that have ended, in the order of their ends."""
        return self._run(self._site.log.copy)

    def forget(self) -> None:
        self._run(self._site.log.clear)

    def create_bucket(self, bucket: str) -> None:
        self._run(lambda: self._site.buckets.create(bucket))

    def load(self, folder: Path, bucket: str, prefix: str = "") -> int:
        """Create objects from all files under `folder`, which must not change. Return their number."""
        return self._run(lambda: self._site.load(folder, bucket, prefix))

    def delete(self, bucket: str, prefix: str = "") -> int:
        """Delete all objects and uploads under `prefix`. Return the number of objects."""
        return self._run(lambda: self._site.delete(bucket, prefix))

    def age(self, bucket: str, seconds: float) -> None:
        """Move the modification times of everything in `bucket` back by `seconds`."""
        self._run(lambda: self._site.age(bucket, seconds))

    def _run(self, action: Callable[[], ResultT]) -> ResultT:
        """Run `action` in the server's thread, and return its result."""
        done: Future[ResultT] = Future()

        def act() -> None:
            try:
                done.set_result(action())
            except BaseException as error:
                done.set_exception(error)

        self._loop.call_soon_threadsafe(act)
        return done.result()


class Listener:
    """An open port and its connections."""

    def __init__(self, server: asyncio.Server, connections: set[Connection]) -> None:
        self.port: int = server.sockets[0].getsockname()[1]
        self._server, self._connections = server, connections

    def close(self) -> None:
        """Close the port and reset all connections."""
        self._server.close()
        for connection in list(self._connections):
            connection.reset()


async def listen(site: Site, host: str, port: int) -> Listener:
    """Serve `site`. Raise `OSError` if the port is taken."""
    connections: set[Connection] = set()
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(site, connections), host, port, backlog=_BACKLOG
    )
    return Listener(server, connections)


def new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
