"""A request that gets no answer is made again beside itself, and the first answer counts.

1. Every request runs in a thread of its own kind, so that the caller is free: to notice silence, to ask
   again, and to be interrupted. The threads are kept and used again; they end with the process.
2. A request that may be hedged, and of which nothing has come when others of this store would have long had
   their answers (`Usual`), is made a second time, and at last a third time.
3. That is for what hangs, not for what is slow. A store that has answered anything meanwhile may be busy; of
   such a one a request hangs that was overtaken, by `OVERTAKERS` for as much that began later and have their
   answers. A store on whose way all requests are slow gets `MAX_HEDGES` more of them at the most (`Traffic`).
   A request whose answer has begun is not hedged any more; the client cuts it off when it is silent.
4. The first answer is the answer. So is the first error with which the store answered. An error on the way
   counts once none is under way any more.
5. What comes later is dropped. So only what changes nothing may be hedged, and no request may write to
   memory that its caller uses.
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
"""Requests for the same thing at once."""
MAX_HEDGES = 2
"""Requests to one store at once that are made beside others."""
OVERTAKERS = 3
"""One may have come another way, and two by chance."""
LOOK_S = 1.0
"""Between two looks at a request that is silent."""
_LEAST_S = 3.0
_TIMES_USUAL = 4.0
_LEAST_BYTES_PER_S = 1 << 20
"""Expected of a store that is not known yet."""
_UNIT_BYTES = 4 << 20
"""Bytes that take about as long as the request itself."""
_WEIGHT = 0.1
_REMEMBERED = 32
"""Answers by which it is told who was overtaken."""

_T = TypeVar("_T")


class Usual:
    """How long requests to a store take: an average that forgets, of those for ranges by their size, and one
    of all others. Safe to share between threads, but for a lost update now and then."""

    def __init__(self) -> None:
        self._unit_s: dict[bool, float] = {}
        """By whether they are for ranges."""

    def note(self, took_s: float, size_bytes: int) -> None:
        """A request has ended well."""
        unit_s = took_s / (1 + size_bytes / _UNIT_BYTES)
        known_s = self._unit_s.get(size_bytes > 0, unit_s)
        self._unit_s[size_bytes > 0] = known_s + _WEIGHT * (unit_s - known_s)

    def note_unfinished(self, waited_s: float, size_bytes: int) -> None:
        """A request takes longer than that."""
        known_s = self._unit_s.get(size_bytes > 0)
        if known_s is None or waited_s > known_s * (1 + size_bytes / _UNIT_BYTES):
            self.note(waited_s, size_bytes)

    def patience_s(self, size_bytes: int) -> float:
        """After how much silence a request for so much is likely to be lost."""
        known_s = self._unit_s.get(size_bytes > 0)
        if known_s is None:
            return least_patience_s(size_bytes)
        return max(_LEAST_S, _TIMES_USUAL * known_s * (1 + size_bytes / _UNIT_BYTES))


def least_patience_s(size_bytes: int) -> float:
    """For how long a store that nobody knows may be silent about so much."""
    return _LEAST_S + size_bytes / _LEAST_BYTES_PER_S


class Traffic:
    """The requests to one store that are under way in this process. Safe to share between threads."""

    def __init__(self, clock: Clock) -> None:
        self.usual = Usual()
        self.alive_s = float("-inf")
        """When anything came from the store for the last time, by the monotonic clock."""
        self._clock = clock
        self._lock = threading.Lock()
        self._hedges = 0
        self._answered: deque[tuple[float, int]] = deque(maxlen=_REMEMBERED)
        """When the requests began that were answered last, and how many bytes they were for."""

    def got_on(self) -> None:
        """Something has come from the store."""
        self.alive_s = self._clock.monotonic_s()

    def note_answer(self, began_s: float, size_bytes: int) -> None:
        """The answer of a request for so much has begun."""
        with self._lock:
            self._answered.append((began_s, size_bytes))

    def begin_hedge(self, began_s: float, size_bytes: int, patience_s: float) -> bool:
        """Whether a request that has been silent for `patience_s` since it began may be made once more. Then
        `end_hedge` follows."""
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
"""Tells that a part of the answer is there."""


def followed(
    call: Callable[[GotOn], _T],
    clock: Clock,
    traffic: Traffic,
    *,
    size_bytes: int = 0,
    patience_s: float | None,
    silent: Callable[[float], None],
) -> _T:
    """What `call` gives. Without `patience_s` it is made once. `silent` is told now and then for how many
    seconds nothing has come; what it raises ends the wait, while the request may go on."""
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
        except BaseException as error:  # whatever it is, it is for the caller
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
