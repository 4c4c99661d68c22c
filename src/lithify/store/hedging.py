"""A request that gets no answer is made again beside itself, and the first answer counts.

1. Every request runs in a thread of its own kind, so that the caller is free: to notice silence, to ask
   again, and to be interrupted. The threads are kept and used again; they end with the process.
2. A request that may be hedged and has no answer when others of this store would have long had theirs
   (`Usual`) is made a second time, and at last a third time.
3. The first answer is the answer. So is the first error with which the store answered. An error on the way
   counts once none is under way any more.
4. What comes later is dropped. So only what changes nothing may be hedged, and no request may write to
   memory that its caller uses.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeVar

from lithify.clock import Clock
from lithify.errors import StoreUnavailable

MAX_ASKED = 3
"""Requests for the same thing at once."""
LOOK_S = 1.0
"""Between two looks at a request that is silent."""
_LEAST_S = 3.0
_TIMES_USUAL = 4.0
_LEAST_BYTES_PER_S = 1 << 20
"""Expected of a store that is not known yet."""
_UNIT_BYTES = 4 << 20
"""Bytes that take about as long as the request itself."""
_WEIGHT = 0.1

_T = TypeVar("_T")


class Usual:
    """How long requests to a store take, by their size: an average that forgets. Safe to share between
    threads, but for a lost update now and then."""

    def __init__(self) -> None:
        self._unit_s: float | None = None

    def note(self, took_s: float, size_bytes: int) -> None:
        """A request has ended well."""
        unit_s = took_s / (1 + size_bytes / _UNIT_BYTES)
        known_s = self._unit_s
        self._unit_s = unit_s if known_s is None else known_s + _WEIGHT * (unit_s - known_s)

    def patience_s(self, size_bytes: int) -> float:
        """After how much silence a request for so much is likely to be lost."""
        if self._unit_s is None:
            return _LEAST_S + size_bytes / _LEAST_BYTES_PER_S
        return max(_LEAST_S, _TIMES_USUAL * self._unit_s * (1 + size_bytes / _UNIT_BYTES))


def hedged(
    call: Callable[[], _T],
    clock: Clock,
    *,
    patience_s: float | None,
    silent: Callable[[float], None],
) -> _T:
    """What `call` gives. Without `patience_s` it is made once. `silent` is told now and then for how many
    seconds there has been no answer."""
    outcomes: SimpleQueue[tuple[_T | None, BaseException | None]] = SimpleQueue()

    def ask() -> None:
        try:
            outcomes.put((call(), None))
        except BaseException as error:  # whatever it is, it is for the caller
            outcomes.put((None, error))

    start_thread(ask)
    asked, failed, started_s = 1, 0, clock.monotonic_s()
    step_s = LOOK_S if patience_s is None else min(LOOK_S, patience_s)
    while True:
        try:
            answer, error = outcomes.get(timeout=step_s)
        except Empty:
            waited_s = clock.monotonic_s() - started_s
            if patience_s is not None and asked < MAX_ASKED and waited_s >= asked * patience_s:
                start_thread(ask)
                asked += 1
            silent(waited_s)
            continue
        if error is None:
            return answer  # type: ignore[return-value]
        failed += 1
        if failed == asked or not isinstance(error, StoreUnavailable):
            raise error


class _Threads:
    """Threads that wait for the next request. They do not keep the process alive."""

    def __init__(self) -> None:
        self._idle: list[SimpleQueue[Callable[[], None]]] = []

    def start(self, work: Callable[[], None]) -> None:
        try:
            mailbox = self._idle.pop()
        except IndexError:
            mailbox = SimpleQueue()
            threading.Thread(target=self._serve, args=(mailbox,), name="lithify-store", daemon=True).start()
        mailbox.put(work)

    def _serve(self, mailbox: SimpleQueue[Callable[[], None]]) -> None:
        while True:
            mailbox.get()()
            self._idle.append(mailbox)

    def forget(self) -> None:
        """In a process that was forked: none of them is there."""
        self._idle = []


_threads = _Threads()
os.register_at_fork(after_in_child=_threads.forget)


def start_thread(work: Callable[[], None]) -> None:
    """Do it beside, in a thread that does not keep the process alive."""
    _threads.start(work)
