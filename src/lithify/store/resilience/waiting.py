"""Waiting for a store: who is told, and when.

A store is *away* from the first request that failed, or has no answer, until one that gets an answer while
none waits any more. It is told after `FIRST_AFTER_S`, then after pauses that double up to `MAX_PAUSE_S`, and
once when it is over; a hiccup that is over before the first of these is not told at all.

Once a request was given up, others are made once only until the store is back: whoever cleans up after an
error does not wait as long again. For a service, which looks at a store again in each of its rounds, and at
other stores too, they are not made at all: they fail at once, and one thread looks whether the store is back.
A service knows that of a store once, whichever of its datasets has found it out (`StoreOutage`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from lithify.base.clock import Clock
from lithify.base.errors import StoreUnavailable
from lithify.base.events import Event, Observer, StoreBack, WaitingForStore, log_event, waited_for
from lithify.store.resilience.retries import DEFAULT_WAIT_S

FIRST_AFTER_S = 4.0
"""So that a store that hangs is told of within five seconds, as looks at a request are one apart."""
MAX_PAUSE_S = 300.0

_log = logging.getLogger("lithify")


def _never() -> bool:
    return False


def log_waiting(event: Event) -> None:
    """The observer of those who have none: a sentence in the log."""
    match event:
        case WaitingForStore(url=url, since_s=since_s, cause=cause):
            _log.log(event.level, "waiting for %s since %.0f s: %s", _named(url), since_s, cause)
        case StoreBack(url=url, waited_s=waited_s):
            _log.log(event.level, "%s is back, after %.0f s", _named(url), waited_s)
        case _:
            log_event(event)


def _named(url: str) -> str:
    what = waited_for(url)
    return what if what == url else f"{what} {url}"


@dataclass(frozen=True, slots=True)
class WaitPolicy:
    """How a party waits for the stores of a dataset."""

    max_s: float = DEFAULT_WAIT_S
    """How long one request is waited for; may be infinite."""
    dataset: str = ""
    """Its URL, for whoever is told."""
    tell: Observer = log_waiting
    is_ending: Callable[[], bool] = _never
    """Whether nobody wants to wait any more, because the process is to end."""
    comes_back: bool = False
    """Whether this party has others to see to, and looks at the store again and again. What it asks of a
    store that it has given up then fails at once, while something else looks whether the store is back."""
    tasks_max_s: float = DEFAULT_WAIT_S
    """`max_s` of tasks, which have nothing else to do."""
    is_shared: bool = False
    """Whether all that is opened with this, of the same store, is reached through the same connections: of a
    party that has thousands of datasets. To be hashable, then."""


class StoreOutage:
    """Whether a store was given up, and why. Safe to share between threads, by all who reach the store the
    same way."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.is_given_up = False
        self.since_s = 0.0
        """Of the monotonic clock: from when on it was away."""
        self.cause = ""

    def give_up(self, since_s: float, cause: str) -> bool:
        """Whether nobody had before."""
        with self._lock:
            is_first = not self.is_given_up
            if is_first:
                self.since_s, self.cause, self.is_given_up = since_s, cause, True
            return is_first

    def is_back(self) -> None:
        self.is_given_up = False


class Outages:
    """What one party knows of one store's being away. Safe to share between threads."""

    def __init__(self, url: str, waiting: WaitPolicy, clock: Clock, known: StoreOutage | None = None) -> None:
        self._known = known if known is not None and waiting.comes_back else StoreOutage()
        self._url = url
        self._waiting = waiting
        self._clock = clock
        self._lock = threading.Lock()
        self._waiters: set[object] = set()
        self._since_s: float | None = None
        self._next_s = FIRST_AFTER_S
        """Of being away: when it is told next."""
        self._is_told = False

    @property
    def is_given_up(self) -> bool:
        """Whether requests are to be made once only."""
        return self._known.is_given_up or self._waiting.is_ending()

    @property
    def away_s(self) -> float:
        """For how long it has been away; 0 when it is not, as far as is known."""
        since_s = self._since_s
        return 0.0 if since_s is None else self._clock.monotonic_s() - since_s

    def waits(self, waiter: object, since_s: float, cause: str) -> None:
        """A request waits, by the monotonic clock since `since_s`."""
        with self._lock:
            self._waiters.add(waiter)
            self._since_s = since_s if self._since_s is None else min(self._since_s, since_s)
            away_s = self._clock.monotonic_s() - self._since_s
            if away_s < self._next_s:
                return
            self._is_told = True
            self._next_s = away_s + min(max(away_s, FIRST_AFTER_S), MAX_PAUSE_S)
            # Under the lock, so that nobody hears of it after hearing that it is over.
            self._waiting.tell(WaitingForStore(self._waiting.dataset, self._url, away_s, cause))

    def gives_up(self, waiter: object, cause: str) -> bool:
        """A request that waited does not any more; whether somebody has to look for the store's return."""
        with self._lock:
            self._waiters.discard(waiter)
            since_s = self._clock.monotonic_s() if self._since_s is None else self._since_s
            return self._known.give_up(since_s, cause) and self._waiting.comes_back

    def check(self) -> None:
        """`StoreUnavailable` when nothing is to be asked of the store now."""
        if self._known.is_given_up and self._waiting.comes_back:
            away_s, cause = self._clock.monotonic_s() - self._known.since_s, self._known.cause
            raise StoreUnavailable(f"{self._url} is away since {away_s:.0f} s: {cause}", cause)

    def looks_no_more(self, waiter: object) -> None:
        """Who looked for the store's return has ended; others see for themselves."""
        self.leaves(waiter)
        self._known.is_back()

    def leaves(self, waiter: object) -> None:
        """A request that waited was interrupted."""
        with self._lock:
            self._waiters.discard(waiter)

    def answered(self, waiter: object) -> None:
        """A request has its answer."""
        if self._since_s is None and not self._known.is_given_up:
            return
        with self._lock:
            self._waiters.discard(waiter)
            if self._waiting.comes_back:
                self._known.is_back()  # the others that wait find out by themselves
            if self._waiters:
                return
            self._known.is_back()
            if self._since_s is None:
                return
            away_s = self._clock.monotonic_s() - self._since_s
            if self._is_told:
                self._waiting.tell(StoreBack(self._waiting.dataset, self._url, away_s))
            self._since_s, self._next_s = None, FIRST_AFTER_S
            self._is_told = False
