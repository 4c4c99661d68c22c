"""Reports about unavailable stores, and shared knowledge of outages.

A store is *away* from the first request that failed, or has no answer, until a request is answered while none
waits any more. This is reported after `FIRST_AFTER_S`, then after pauses that double up to `MAX_PAUSE_S`, and
once at the end; an outage that ends before the first report is not reported.

After a request was given up, other requests are tried only once until the store is back, so that cleaning up
after an error does not wait as long again. In a service, which polls this store and others in each round,
they are not sent at all: they fail at once, and one thread probes whether the store is back. All datasets of
a service share this knowledge of a store (`StoreOutage`).
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass

from lithify.base.clock import Clock
from lithify.base.errors import StoreUnavailable
from lithify.base.events import Event, Observer, StoreBack, WaitingForStore, log_event, waited_for
from lithify.store.resilience.retries import DEFAULT_WAIT_S

FIRST_AFTER_S = 4.0
"""A hanging store is reported within five seconds, as requests are checked once a second."""
MAX_PAUSE_S = 300.0

_log = logging.getLogger("lithify")


def _never() -> bool:
    return False


def log_waiting(event: Event) -> None:
    """Log an event as a sentence; the default observer."""
    match event:
        case WaitingForStore(url=url, since_s=since_s, cause=cause):
            limit = event.limit
            _log.log(event.level, "waiting for %s for %.0f s%s: %s", _named(url), since_s, limit, cause)
        case StoreBack(url=url, waited_s=waited_s):
            _log.log(event.level, "%s is available again, after %.0f s", _named(url), waited_s)
        case _:
            log_event(event)


def _named(url: str) -> str:
    what = waited_for(url)
    return what if what == url else f"{what} {url}"


@dataclass(frozen=True, slots=True)
class WaitPolicy:
    """How a process waits for the stores of a dataset."""

    max_s: float = DEFAULT_WAIT_S
    """How long to wait for one request; may be infinite."""
    dataset: str = ""
    """The dataset's URL, for reports."""
    tell: Observer = log_waiting
    is_ending: Callable[[], bool] = _never
    """Returns whether to stop waiting because the process is stopping."""
    comes_back: bool = False
    """Whether the process has other work and polls the store repeatedly. Requests to a store that was given
    up then fail at once, while a thread probes whether the store is back."""
    tasks_max_s: float = DEFAULT_WAIT_S
    """`max_s` for tasks, which have no other work."""
    unanswered_max_s: float = math.inf
    """`max_s` until the store has answered for the first time: it is probably named wrongly."""
    is_shared: bool = False
    """Whether everything opened with this policy in one store shares connections: for processes with
    thousands of datasets. The policy must be hashable then."""


class StoreOutage:
    """Whether a store was given up, and why. Safe to share between threads; shared by all clients that reach
    the store the same way."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.is_given_up = False
        self.since_s = 0.0
        """When the outage began, by the monotonic clock."""
        self.cause = ""

    def give_up(self, since_s: float, cause: str) -> bool:
        """Give the store up. Return whether it was not given up before."""
        with self._lock:
            is_first = not self.is_given_up
            if is_first:
                self.since_s, self.cause, self.is_given_up = since_s, cause, True
            return is_first

    def is_back(self) -> None:
        self.is_given_up = False


class Outages:
    """The state of one store's outages for one client. Safe to share between threads."""

    def __init__(self, url: str, waiting: WaitPolicy, clock: Clock, known: StoreOutage | None = None) -> None:
        self._known = known if known is not None and waiting.comes_back else StoreOutage()
        self._url = url
        self._waiting = waiting
        self._clock = clock
        self._lock = threading.Lock()
        self._waiters: set[object] = set()
        self.limit_s = waiting.max_s
        """When requests give up, for reports."""
        self._since_s: float | None = None
        self._next_s = FIRST_AFTER_S
        """Duration of the outage at the next report."""
        self._is_told = False

    @property
    def is_given_up(self) -> bool:
        """Return whether to try requests only once."""
        return self._known.is_given_up or self._waiting.is_ending()

    @property
    def away_s(self) -> float:
        """Return how long the store has been away; 0 if it is not known to be."""
        since_s = self._since_s
        return 0.0 if since_s is None else self._clock.monotonic_s() - since_s

    def waits(self, waiter: object, since_s: float, cause: str) -> None:
        """Record that a request has waited since `since_s` (monotonic clock)."""
        with self._lock:
            self._waiters.add(waiter)
            self._since_s = since_s if self._since_s is None else min(self._since_s, since_s)
            away_s = self._clock.monotonic_s() - self._since_s
            if away_s < self._next_s:
                return
            self._is_told = True
            self._next_s = away_s + min(max(away_s, FIRST_AFTER_S), MAX_PAUSE_S)
            # Under the lock, so that it is never reported after the outage's end.
            limit_s = None if self._waiting.comes_back or math.isinf(self.limit_s) else self.limit_s
            self._waiting.tell(WaitingForStore(self._waiting.dataset, self._url, away_s, cause, limit_s))

    def gives_up(self, waiter: object, cause: str) -> bool:
        """Record that a waiting request has given up. Return whether the caller must start probing for the
        store's return."""
        with self._lock:
            self._waiters.discard(waiter)
            since_s = self._clock.monotonic_s() if self._since_s is None else self._since_s
            return self._known.give_up(since_s, cause) and self._waiting.comes_back

    def check(self) -> None:
        """Raise `StoreUnavailable` if no request may be sent to the store now."""
        if self._known.is_given_up and self._waiting.comes_back:
            away_s, cause = self._clock.monotonic_s() - self._known.since_s, self._known.cause
            raise StoreUnavailable(f"{self._url} has been unavailable for {away_s:.0f} s: {cause}", cause)

    def looks_no_more(self, waiter: object) -> None:
        """Record that probing for the store's return has ended; requests are sent again."""
        self.leaves(waiter)
        self._known.is_back()

    def leaves(self, waiter: object) -> None:
        """Record that a waiting request was interrupted."""
        with self._lock:
            self._waiters.discard(waiter)

    def answered(self, waiter: object) -> None:
        """Record that a request was answered."""
        if self._since_s is None and not self._known.is_given_up:
            return
        with self._lock:
            self._waiters.discard(waiter)
            if self._waiting.comes_back:
                self._known.is_back()  # other waiting requests notice by themselves
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
