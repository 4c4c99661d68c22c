"""Server-sent events for open pages: "your content has changed, load it again".

1. Every `INTERVAL_S` a stream reads its page's parts from the cache that all pages share, so it costs no
   requests of its own. It sends an event only if the version differs.
2. At most `MAX_STREAMS` are open; for further ones the page stays as it is until it is reloaded. A stream
   ends after `LIFE_S`, and its page opens another.
3. The guard drops a client that accepts nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from lithify.web.dashboard import Dashboard, PageRequest

INTERVAL_S = 2.0
ALIVE_S = 15.0
"""The longest silence of a stream: sending detects clients that have disconnected."""
LIFE_S = 600.0
MAX_STREAMS = 64


class Streams:
    def __init__(
        self, dashboard: Dashboard, *, most: int = MAX_STREAMS, interval_s: float = INTERVAL_S
    ) -> None:
        self._dashboard = dashboard
        self._most = most
        self._interval_s = interval_s
        self.open = 0

    def answer(self, address: str, wanted: PageRequest, seen: str) -> Response:
        """Return a stream for the page at `address` that shows version `seen`; 503 if too many are open."""
        if self.open >= self._most:
            message = f"{self._most} pages are already kept up to date; reload this one\n"
            return PlainTextResponse(message, 503, {"retry-after": "30"})
        self.open += 1
        return _Counted(self, self._events(address, wanted, seen))

    async def _events(self, address: str, wanted: PageRequest | None, seen: str) -> AsyncIterator[str]:
        clock = self._dashboard.clock
        began_s = sent_s = clock.monotonic_s()
        yield "retry: 5000\n\n"
        while wanted is not None and clock.monotonic_s() - began_s < LIFE_S:
            version = self._dashboard.version(wanted, await self._dashboard.look(wanted))
            if version != seen:
                yield f"event: changed\ndata: {version}\n\n"
                seen, sent_s = version, clock.monotonic_s()
            elif clock.monotonic_s() - sent_s > ALIVE_S:
                yield ": alive\n\n"
                sent_s = clock.monotonic_s()
            await asyncio.sleep(self._interval_s)
            wanted = await self._dashboard.wanted_at(address)


class _Counted(StreamingResponse):
    """A stream that is counted until it ends, in whatever way."""

    def __init__(self, streams: Streams, events: AsyncIterator[str]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"x-accel-buffering": "no"})
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams.open -= 1
