"""Processes of a simulation as fibers over one virtual clock.

1. A fiber is ordinary synchronous code in a greenlet. It runs until it sleeps; sleeping puts it into a
   queue ordered by virtual time and hands control back.
2. The scheduler takes the fiber with the earliest time, moves the clock there and lets it go on. Fibers
   of the same time go on in an order drawn from the seed.
3. Nothing else moves the clock, and only one fiber runs at a time, so a run is a function of the seed.

A fiber that would be the next one anyway goes on without a switch.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from contextlib import suppress

import greenlet

EPOCH_MS = 1_700_000_000_000
"""Virtual time starts here; some day in 2023."""


class Killed(BaseException):
    """Ends a fiber that is still asleep when the simulation is over."""


class Scheduler:
    """The queue of fibers and the clock."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._queue: list[tuple[int, float, int, greenlet.greenlet]] = []
        self._hub = greenlet.getcurrent()
        self._count = 0
        self._until_ms = EPOCH_MS
        self.now_ms = EPOCH_MS

    @property
    def is_in_fiber(self) -> bool:
        """Whether a fiber asks, which may sleep."""
        return greenlet.getcurrent() is not self._hub

    def spawn(self, body: Callable[[], None], delay_ms: int = 0) -> None:
        """Start a fiber after a delay. What it raises ends the simulation."""
        self._enqueue(self.now_ms + delay_ms, greenlet.greenlet(body, self._hub))

    def sleep_ms(self, duration_ms: int) -> None:
        """Let virtual time pass for the calling fiber, and others run meanwhile."""
        at_ms = self.now_ms + max(0, duration_ms)
        if at_ms < self._until_ms and (not self._queue or at_ms < self._queue[0][0]):
            self.now_ms = at_ms
            return
        self._enqueue(at_ms, greenlet.getcurrent())
        self._hub.switch()

    def run_until(self, end_ms: int) -> None:
        """Run everything that happens before `end_ms`; the clock stands there afterwards."""
        self._until_ms = end_ms
        while self._queue and self._queue[0][0] < end_ms:
            self.now_ms, _, _, fiber = heapq.heappop(self._queue)
            fiber.switch()
        self.now_ms = max(self.now_ms, end_ms)

    def close(self) -> None:
        """End all fibers, wherever they are. What they say to that does not matter any more."""
        while self._queue:
            _, _, _, fiber = heapq.heappop(self._queue)
            with suppress(BaseException):
                fiber.throw(Killed)

    def _enqueue(self, at_ms: int, fiber: greenlet.greenlet) -> None:
        self._count += 1
        heapq.heappush(self._queue, (at_ms, self._rng.random(), self._count, fiber))


class FiberClock:
    """The clock as one process sees it: `skew_ms` off, and sleeping lets the others run."""

    def __init__(self, scheduler: Scheduler, skew_ms: int = 0) -> None:
        self._scheduler = scheduler
        self.skew_ms = skew_ms

    def now_ms(self) -> int:
        return self._scheduler.now_ms + self.skew_ms

    def monotonic_s(self) -> float:
        return (self._scheduler.now_ms - EPOCH_MS) / 1000

    def sleep_s(self, duration_s: float) -> None:
        self._scheduler.sleep_ms(round(duration_s * 1000))
