"""Events for pages that are open: "what you show has changed, ask again".

1. A stream looks every `INTERVAL_S` at what its page shows, as the page itself does, so it costs no request
   of the store that another one has not cost. Only when the version differs it says so, and nothing more.
2. There are `MAX_STREAMS` at a time; who comes after is refused, and its page stays as it is until it is
   reloaded. A stream ends after `LIFE_S`, and its page begins another.
3. Who takes nothing is dropped by the guard, since sending takes longer than it waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from lithify.web.dashboard import Dashboard, PageRequest, version_of

INTERVAL_S = 2.0
ALIVE_S = 15.0
"""How often something is sent at least: who has gone is found out by that."""
LIFE_S = 600.0
MAX_STREAMS = 64


class Streams:
    """All that are open."""

    def __init__(
        self, dashboard: Dashboard, *, most: int = MAX_STREAMS, interval_s: float = INTERVAL_S
    ) -> None:
        self._dashboard = dashboard
        self._most = most
        self._interval_s = interval_s
        self.open = 0

    def answer(self, address: str, wanted: PageRequest, seen: str) -> Response:
        """A stream for the page at `address`, which shows the version `seen`."""
        if self.open >= self._most:
            message = f"{self._most} pages are kept up to date already; reload this one\n"
            return PlainTextResponse(message, 503, {"retry-after": "30"})
        self.open += 1
        return _Counted(self, self._events(address, wanted, seen))

    async def _events(self, address: str, wanted: PageRequest | None, seen: str) -> AsyncIterator[str]:
        clock = self._dashboard.clock
        began_s = sent_s = clock.monotonic_s()
        yield "retry: 5000\n\n"
        while wanted is not None and clock.monotonic_s() - began_s < LIFE_S:
            version = version_of(await self._dashboard.look(wanted))
            if version != seen:
                yield f"event: changed\ndata: {version}\n\n"
                seen, sent_s = version, clock.monotonic_s()
            elif clock.monotonic_s() - sent_s > ALIVE_S:
                yield ": alive\n\n"
                sent_s = clock.monotonic_s()
            await asyncio.sleep(self._interval_s)
            wanted = await self._dashboard.wanted_at(address)


class _Counted(StreamingResponse):
    """A stream that counts for as long as it is open, however it ends."""

    def __init__(self, streams: Streams, events: AsyncIterator[str]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"x-accel-buffering": "no"})
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams.open -= 1
