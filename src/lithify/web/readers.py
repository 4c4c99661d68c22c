"""What is read of datasets and fleets, for all who look: watching costs no more for more of them.

1. What there is to read of a dataset has a few *parts*. A part is read when somebody looks at it and what is
   known is older than its age; who comes meanwhile waits for that one, and all get the same value. When
   nobody looks, nothing is read.
2. A dataset is read by one thread at a time, and so many at once over all datasets. Where many are looked at
   together, each is read less often, so that there are at most `LOOKS_PER_S` in all; and so is what takes
   long, so that it takes no more than a `SHARE` of the time.
3. Reading also renders: what pages and JSON show of a part is made once, in the thread that has read it.
4. What cannot be read keeps what was known last, and says why it is old; it is tried again soon.
5. Of so many datasets something is kept; those that were looked at longest ago are forgotten.

It all runs on one event loop, so nothing is locked but a dataset.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.concurrency import run_in_threadpool

from lithify.base.clock import Clock
from lithify.base.defects import contained
from lithify.base.errors import LithifyError
from lithify.observe.secrets import concealed

LOOKS_PER_S = 10.0
MOST_AT_ONCE = 8
SHARE = 0.1
AGAIN_S = 3.0
"""How soon what could not be read is tried again, if that did not take long."""
MAX_KEPT = 300
"""Somewhat more than what is on the largest page."""


@dataclass(frozen=True, slots=True)
class CachedPart:
    """What is known of one part."""

    value: Any | None
    """`None` before it could be read once."""
    version: str
    """Differs when what it shows does."""
    at_ms: int
    """When the value was read; wall-clock milliseconds, 0 for never."""
    error: str = ""
    """Why it could not be read last; empty when it could."""


@dataclass(frozen=True, slots=True)
class PagePart:
    """Something that can be read of what is at a URL."""

    name: str
    age_s: float
    """How old it may be while somebody looks."""
    read: Callable[[Any], tuple[Any, str]]
    """Read it of what was opened: what it shows, and its version."""


class PageSource:
    """What is at one URL: opened when it is read first."""

    def __init__(
        self,
        open_source: Callable[[], Any],
        close: Callable[[Any], None],
        clock: Clock,
        open_to_act: Callable[[], Any] | None = None,
    ) -> None:
        """For actions it is opened each time with `open_to_act`, if there is that."""
        self._open = open_source
        self._open_to_act = open_to_act
        self._close = close
        self._clock = clock
        self._opened: Any = None
        self._is_used = asyncio.Lock()
        self._seen: dict[str, tuple[float, float, CachedPart]] = {}
        """With the monotonic time at the end of the last try, and how long that took."""
        self._reading: dict[str, asyncio.Task[CachedPart]] = {}

    @property
    def is_busy(self) -> bool:
        return bool(self._reading)

    def known(self, part: PagePart) -> CachedPart | None:
        """What is known of it, without reading."""
        found = self._seen.get(part.name)
        return None if found is None else found[2]

    def look(self, part: PagePart, slots: asyncio.Semaphore, age_s: float) -> asyncio.Task[CachedPart] | None:
        """See to it that it is read, unless what is known is young enough: then there is nothing to wait
        for."""
        reading = self._reading.get(part.name)
        if reading is not None:
            return reading
        if (found := self._seen.get(part.name)) is not None:
            read_s, took_s, seen = found
            young_s = min(part.age_s, AGAIN_S) if seen.error else part.age_s
            if self._clock.monotonic_s() - read_s < max(age_s, young_s, took_s / SHARE):
                return None
        task = asyncio.create_task(self._read(part, slots))
        self._reading[part.name] = task
        return task

    async def _read(self, part: PagePart, slots: asyncio.Semaphore) -> CachedPart:
        try:
            async with self._is_used, slots:
                began_s = self._clock.monotonic_s()
                seen = await run_in_threadpool(self._read_in_thread, part)
            ended_s = self._clock.monotonic_s()
            self._seen[part.name] = (ended_s, ended_s - began_s, seen)
            return seen
        finally:
            del self._reading[part.name]

    def _read_in_thread(self, part: PagePart) -> CachedPart:
        try:
            with contained("reading for the dashboard"):
                if self._opened is None:
                    self._opened = self._open()
                value, version = part.read(self._opened)
        except LithifyError as error:
            before = self.known(part)
            why = concealed(str(error))
            old, at_ms = (None, 0) if before is None else (before.value, before.at_ms)
            return CachedPart(old, f"{at_ms} {why}", at_ms, why)
        return CachedPart(value, version, self._clock.now_ms())

    async def do(self, what: Callable[[Any], Any]) -> Any:
        """Do something with it, and read it anew when somebody looks next. Raises what that raises."""

        def run() -> Any:
            with contained("an action of the dashboard"):
                if self._open_to_act is not None:
                    opened = self._open_to_act()
                    try:
                        return what(opened)
                    finally:
                        self._close(opened)
                if self._opened is None:
                    self._opened = self._open()
                return what(self._opened)

        async with self._is_used:
            try:
                return await run_in_threadpool(run)
            finally:
                self._seen = {name: (-math.inf, 0.0, seen) for name, (_, _, seen) in self._seen.items()}

    def close(self) -> None:
        """Nothing is read of it any more."""
        if self._opened is not None:
            self._close(self._opened)


class PageReaders:
    """The sources that are looked at now, by key: a dataset's is its URL, and there may be one without."""

    def __init__(self, clock: Clock, *, most: int = MAX_KEPT) -> None:
        self._clock = clock
        self._most = most
        self._sources: OrderedDict[str | None, PageSource] = OrderedDict()
        self._slots = asyncio.Semaphore(MOST_AT_ONCE)

    def source(
        self,
        key: str | None,
        open_source: Callable[[], Any],
        close: Callable[[Any], None] = lambda opened: None,
        open_to_act: Callable[[], Any] | None = None,
    ) -> PageSource:
        """The one of that key; when there is none, it is opened so when it is first read."""
        found = self._sources.pop(key, None)
        if found is None:
            found = PageSource(open_source, close, self._clock, open_to_act)
        self._sources[key] = found
        for old in [key for key, source in self._sources.items() if not source.is_busy]:
            if len(self._sources) <= self._most:
                break
            self._sources.pop(old).close()
        return found

    async def look(
        self, wanted: list[tuple[PageSource, PagePart]], patience_s: float
    ) -> list[CachedPart | None]:
        """What is known of each, new enough where that could be had in so many seconds; `None` where nothing
        is. What was not done in time goes on."""
        age_s = len(wanted) / LOOKS_PER_S
        begun = [source.look(part, self._slots, age_s) for source, part in wanted]
        tasks = {task for task in begun if task is not None}
        if tasks:
            await asyncio.wait(tasks, timeout=patience_s)
        return [source.known(part) for source, part in wanted]

    def close(self) -> None:
        """Nothing is read any more."""
        while self._sources:
            self._sources.popitem()[1].close()
