"""Request hedging: a request without an answer is sent again concurrently, and the first answer counts.

1. Every request runs in a separate thread, so that the caller can notice silence, hedge, and be interrupted.
   The threads are reused; they end with the process.
2. A hedgeable request that is silent for much longer than usual for this store (`Usual`) is sent a second
   time, and later a third time.
3. This is for hanging requests, not for slow ones. A store that has answered anything meanwhile may be busy;
   then a request hangs only if it was overtaken: `OVERTAKERS` requests of at least its size began later and
   have their answers. If all requests to a store are slow, it gets at most `MAX_HEDGES` more (`Traffic`).
   A request whose answer has begun is not hedged any more; the client aborts it when it is silent.
4. The first answer counts, and so does the first error that the store answered with. A connection error
   counts only when no other try is under way.
5. Later answers are dropped. So only reads may be hedged, and no request may write to memory that its caller
   uses.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeVar

from lithify.base.clock import Clock
from lithify.base.concurrency import start_thread
from lithify.base.errors import StoreUnavailable

MAX_ASKED = 3
"""Maximum number of concurrent tries of one request."""
MAX_HEDGES = 2
"""Maximum number of concurrent hedges to one store."""
OVERTAKERS = 3
"""One may have taken another route, and two may be chance."""
LOOK_S = 1.0
"""Time between two checks of a silent request."""
_LEAST_S = 3.0
_TIMES_USUAL = 4.0
_LEAST_BYTES_PER_S = 1 << 20
"""Assumed speed of a store without measurements."""
_UNIT_BYTES = 4 << 20
"""Bytes whose transfer takes about as long as the request itself."""
_WEIGHT = 0.1
_REMEMBERED = 32
"""Number of answers kept to detect overtaken requests."""

_T = TypeVar("_T")


class Usual:
    """The usual duration of requests to a store: a moving average for ranges, relative to their size, and one
    for all others. Safe to share between threads, except for an occasional lost update."""

    def __init__(self) -> None:
        self._unit_s: dict[bool, float] = {}
        """Key: whether the requests are for ranges."""

    def note(self, took_s: float, size_bytes: int) -> None:
        """Record the duration of a successful request."""
        unit_s = took_s / (1 + size_bytes / _UNIT_BYTES)
        known_s = self._unit_s.get(size_bytes > 0, unit_s)
        self._unit_s[size_bytes > 0] = known_s + _WEIGHT * (unit_s - known_s)

    def note_unfinished(self, waited_s: float, size_bytes: int) -> None:
        """Record that a request takes longer than `waited_s`."""
        known_s = self._unit_s.get(size_bytes > 0)
        if known_s is None or waited_s > known_s * (1 + size_bytes / _UNIT_BYTES):
            self.note(waited_s, size_bytes)

    def patience_s(self, size_bytes: int) -> float:
        """Return after how much silence a request of this size is probably lost."""
        known_s = self._unit_s.get(size_bytes > 0)
        if known_s is None:
            return least_patience_s(size_bytes)
        return max(_LEAST_S, _TIMES_USUAL * known_s * (1 + size_bytes / _UNIT_BYTES))


def least_patience_s(size_bytes: int) -> float:
    """Return how long a store without measurements may be silent about a request of this size."""
    return _LEAST_S + size_bytes / _LEAST_BYTES_PER_S


class Traffic:
    """This process's current requests to one store. Safe to share between threads."""

    def __init__(self, clock: Clock) -> None:
        self.usual = Usual()
        self.alive_s = float("-inf")
        """When the store last sent anything, by the monotonic clock."""
        self._clock = clock
        self._lock = threading.Lock()
        self._hedges = 0
        self._answered: deque[tuple[float, int]] = deque(maxlen=_REMEMBERED)
        """Start time and size of the requests answered last."""

    def got_on(self) -> None:
        """Record that the store has sent something."""
        self.alive_s = self._clock.monotonic_s()

    def note_answer(self, began_s: float, size_bytes: int) -> None:
        """Record that the answer to a request of this size has begun."""
        with self._lock:
            self._answered.append((began_s, size_bytes))

    def begin_hedge(self, began_s: float, size_bytes: int, patience_s: float) -> bool:
        """Return whether a request that has been silent for `patience_s` since it began may be hedged. If so,
        the caller must call `end_hedge` afterwards."""
        with self._lock:
            is_silent = self._clock.monotonic_s() - self.alive_s >= patience_s
            if self._hedges >= MAX_HEDGES or not (is_silent or self._is_overtaken(began_s, size_bytes)):
                return False
            self._hedges += 1
            return True

    def _is_overtaken(self, began_s: float, size_bytes: int) -> bool:
        overtakers = sum(began > began_s and size >= size_bytes for began, size in self._answered)
        return overtakers >= OVERTAKERS

    def end_hedge(self) -> None:
        with self._lock:
            self._hedges -= 1


GotOn = Callable[[], None]
"""Reports that a part of the answer has arrived."""


def followed(
    call: Callable[[GotOn], _T],
    clock: Clock,
    traffic: Traffic,
    *,
    size_bytes: int = 0,
    patience_s: float | None,
    silent: Callable[[float], None],
) -> _T:
    """Return the result of `call`; without `patience_s` it is not hedged. `silent` is called regularly with
    the seconds since anything arrived; an error that it raises ends the wait, while the request may
    continue."""
    outcomes: SimpleQueue[tuple[_T | None, BaseException | None]] = SimpleQueue()
    started_s = last_s = clock.monotonic_s()
    has_begun = False

    def got_on() -> None:
        nonlocal last_s, has_begun
        traffic.got_on()
        last_s = traffic.alive_s
        if not has_begun:
            has_begun = True
            traffic.note_answer(started_s, size_bytes)
            if patience_s is not None:
                traffic.usual.note(last_s - started_s, size_bytes)

    def ask() -> None:
        try:
            outcomes.put((call(got_on), None))
        except BaseException as error:  # raised again in the caller's thread
            outcomes.put((None, error))

    def hedge() -> None:
        try:
            ask()
        finally:
            traffic.end_hedge()

    start_thread(ask)
    asked, failed, is_noted = 1, 0, False
    step_s = LOOK_S if patience_s is None else min(LOOK_S, patience_s)
    while True:
        try:
            answer, error = outcomes.get(timeout=step_s)
        except Empty:
            now_s = clock.monotonic_s()
            waited_s = now_s - started_s
            if patience_s is not None and not has_begun and waited_s >= asked * patience_s:
                if not is_noted:
                    traffic.usual.note_unfinished(waited_s, size_bytes)
                    is_noted = True
                if asked < MAX_ASKED and traffic.begin_hedge(started_s, size_bytes, patience_s):
                    start_thread(hedge)
                    asked += 1
            silent(now_s - last_s)
            continue
        if error is None:
            got_on()
            return answer  # type: ignore[return-value]
        failed += 1
        if failed == asked or not isinstance(error, StoreUnavailable):
            raise error
