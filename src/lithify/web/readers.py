"""Cached parts of datasets and fleets, shared by all viewers: more viewers cause no more reads.

1. A source (a dataset or fleet) has a few *parts*. A part is read when a page shows it and its value is older
   than `age_s`. Viewers that come meanwhile wait for the same read. Without viewers, nothing is read.
2. One thread at a time reads a source, and at most `MOST_AT_ONCE` threads read in all. A page of many sources
   reads each less often, at most `LOOKS_PER_S` reads per second in all; a slow part is read less often, so
   that reading takes at most a `SHARE` of the time.
3. The reading thread also renders, once for all pages and JSON.
4. A part that cannot be read keeps its last value and gets the error; it is retried soon.
5. The least recently shown sources beyond `MAX_KEPT` are closed.

All of this runs on one event loop, so only the sources need locks.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from starlette.concurrency import run_in_threadpool

from lithify.base.clock import Clock
from lithify.base.defects import contained
from lithify.base.errors import LithifyError
from lithify.mirror.dataset_mirror import NotReadYet
from lithify.observe.secrets import concealed

LOOKS_PER_S = 10.0
MOST_AT_ONCE = 8
SHARE = 0.1
AGAIN_S = 3.0
"""How soon a failed read is retried, unless it took long."""
MAX_KEPT = 300
"""More sources than the largest page shows."""


@dataclass(frozen=True, slots=True)
class CachedPart:
    value: Any | None
    """`None` before the first successful read."""
    version: str
    """Changes when the shown content does."""
    at_ms: int
    """The time of the value's facts, in wall-clock milliseconds; 0 if it was never read."""
    error: str = ""
    """Why the last read failed; empty if it succeeded."""
    is_pending: bool = False
    """Whether it failed only because the service in this process has not read the source yet."""


class ReadPart(NamedTuple):
    """A part that was read."""

    value: Any
    version: str
    at_ms: int | None = None
    """The time of its facts; `None` for the time of the read."""


@dataclass(frozen=True, slots=True)
class PagePart:
    """A part that can be read from a source."""

    name: str
    age_s: float
    """The age from which on the value is read again, while a page shows it."""
    read: Callable[[Any], ReadPart]
    """Reads the part from the opened source."""


ReadListener = Callable[[str | None, PagePart, CachedPart], None]
"""Called after each read, with the source's key."""


class PageSource:
    """A dataset or fleet, opened when it is first read."""

    def __init__(
        self,
        open_source: Callable[[], Any],
        close: Callable[[Any], None],
        clock: Clock,
        open_to_act: Callable[[], Any] | None = None,
        on_read: Callable[[PagePart, CachedPart], None] = lambda part, seen: None,
    ) -> None:
        """`open_to_act`, if given, opens the source anew for each action."""
        self._on_read = on_read
        self._open = open_source
        self._open_to_act = open_to_act
        self._close = close
        self._clock = clock
        self._opened: Any = None
        self._is_used = asyncio.Lock()
        self._seen: dict[str, tuple[float, float, CachedPart]] = {}
        """With the monotonic time at the end of the last read, and the read's duration."""
        self._reading: dict[str, asyncio.Task[CachedPart]] = {}

    @property
    def is_busy(self) -> bool:
        return bool(self._reading)

    def known(self, part: PagePart) -> CachedPart | None:
        found = self._seen.get(part.name)
        return None if found is None else found[2]

    def look(self, part: PagePart, slots: asyncio.Semaphore, age_s: float) -> asyncio.Task[CachedPart] | None:
        """Start reading the part, unless its cached value is young enough. Return the read to wait for, if
        any."""
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
            self._on_read(part, seen)
            return seen
        finally:
            del self._reading[part.name]

    def _read_in_thread(self, part: PagePart) -> CachedPart:
        try:
            with contained("reading for the dashboard"):
                if self._opened is None:
                    self._opened = self._open()
                value, version, at_ms = part.read(self._opened)
        except LithifyError as error:
            before = self.known(part)
            why = concealed(str(error))
            old, at_ms = (None, 0) if before is None else (before.value, before.at_ms)
            return CachedPart(old, f"{at_ms} {why}", at_ms, why, isinstance(error, NotReadYet))
        return CachedPart(value, version, self._clock.now_ms() if at_ms is None else at_ms)

    async def do(self, what: Callable[[Any], Any]) -> Any:
        """Run an action on the source and raise its errors; all parts are then out of date."""

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
        if self._opened is not None:
            self._close(self._opened)


class PageReaders:
    """The recently shown sources by key: a dataset's URL, or `None` for the fleet."""

    def __init__(
        self, clock: Clock, on_read: ReadListener = lambda key, part, seen: None, *, most: int = MAX_KEPT
    ) -> None:
        self._clock = clock
        self._on_read = on_read
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
        """Return the source of `key`; a new one is opened on its first read."""
        found = self._sources.pop(key, None)
        if found is None:
            found = PageSource(open_source, close, self._clock, open_to_act, partial(self._on_read, key))
        self._sources[key] = found
        for old in [key for key, source in self._sources.items() if not source.is_busy]:
            if len(self._sources) <= self._most:
                break
            self._sources.pop(old).close()
        return found

    async def look(
        self, wanted: list[tuple[PageSource, PagePart]], patience_s: float
    ) -> list[CachedPart | None]:
        """Refresh the parts that are too old, wait at most `patience_s` seconds, and return the cached
        values; `None` for a part never read. Unfinished reads continue."""
        age_s = len(wanted) / LOOKS_PER_S
        begun = [source.look(part, self._slots, age_s) for source, part in wanted]
        tasks = {task for task in begun if task is not None}
        if tasks and patience_s:
            await asyncio.wait(tasks, timeout=patience_s)
        return [source.known(part) for source, part in wanted]

    def close(self) -> None:
        while self._sources:
            self._sources.popitem()[1].close()
