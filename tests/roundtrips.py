"""Which request waited for which, told without looking at a clock: so no machine is too slow for it.

Every thread has a time of its own, counted in round trips, and a request takes one. What a thread starts
beside itself begins at its time; who waits for the end of something goes on at the later of the two times. So
the time at which a request begins is the number of requests that had to be answered before, one after the
other, and all that begin at the same time can be under way together (Lamport's clocks).

Seen are `lithify.base.concurrency`, thread pools and their futures, and engines that run their calls in the
caller's thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar
from unittest import mock

from lithify.base import concurrency
from lithify.base.concurrency import Background
from lithify.store.metered import VERBS
from lithify.store.objects import ObjectStore
from lithify.store.wrapped import Call, WrappedStore

ResultT = TypeVar("ResultT")


class RoundTrips:
    """The requests of one run, by when they begin."""

    def __init__(self) -> None:
        self._own = threading.local()
        self._lock = threading.Lock()
        self._begun: dict[int, list[str]] = {}

    @property
    def now(self) -> int:
        """The time of the calling thread."""
        return getattr(self._own, "now", 0)

    def reach(self, now: int) -> None:
        """The calling thread knows of something that happened then."""
        self._own.now = max(self.now, now)

    def begins(self, now: int) -> None:
        """The calling thread begins something that was started then."""
        self._own.now = now

    def request(self, what: str) -> None:
        with self._lock:
            self._begun.setdefault(self.now, []).append(what)

    @property
    def all(self) -> list[list[str]]:
        """What was asked for in the first round trip, in the second and so on, sorted."""
        return [sorted(self._begun.get(now, ())) for now in range(max(self._begun, default=-1) + 1)]

    def watching(self, store: ObjectStore) -> ObjectStore:
        """`store`, each request of which takes a round trip."""
        return _WatchedStore(store, self)


class _WatchedStore(WrappedStore):
    def __init__(self, inner: ObjectStore, trips: RoundTrips) -> None:
        super().__init__(inner)
        self._trips = trips

    def around(self, call: Call, action: Callable[[], ResultT]) -> ResultT:
        verb = VERBS.get(call.method)
        # Nobody waits for what a task reports, and whether it does is a matter of time.
        if verb is None or "/lithify/progress/" in call.key:
            return action()
        self._trips.request(f"{verb} {named(call.key)}")
        try:
            return action()
        finally:
            self._trips.reach(self._trips.now + 1)


def named(key: str) -> str:
    """What a key in a database is about: "manifest", "manifest.boundary", "compactions", "lease", "rows"."""
    if key.endswith(".sst"):
        return "rows"
    if key.endswith("coordinator.json"):
        return "lease"
    _, _, inside = key.partition("/db/")
    folder, _, rest = inside.partition("/")
    return rest if folder == "gc" else folder


@contextmanager
def round_trips() -> Iterator[RoundTrips]:
    """Watch which request waits for which, in the stores given to `watching`."""
    trips = RoundTrips()
    honest_beside, honest_submit, honest_result = (
        concurrency.background,
        ThreadPoolExecutor.submit,
        Future.result,
    )

    class Carrying(Background):
        def start(self, action: Callable[[], ResultT]) -> Callable[[], ResultT]:
            started, ended = trips.now, [0]

            def act() -> ResultT:
                trips.begins(started)
                try:
                    return action()
                finally:
                    ended[0] = trips.now

            finish = honest_beside.start(act)

            def result() -> ResultT:
                try:
                    return finish()
                finally:
                    trips.reach(ended[0])

            return result

    def submit(self: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        started, ended = trips.now, [0]

        def act() -> Any:
            trips.begins(started)
            try:
                return function(*args, **kwargs)
            finally:
                ended[0] = trips.now

        future = honest_submit(self, act)
        future.ended = ended  # type: ignore[attr-defined]
        return future

    def result(self: Any, timeout: float | None = None) -> Any:
        try:
            return honest_result(self, timeout)
        finally:
            trips.reach(getattr(self, "ended", [0])[0])

    with (
        mock.patch.object(concurrency, "background", Carrying()),
        mock.patch.object(ThreadPoolExecutor, "submit", submit),
        mock.patch.object(Future, "result", result),
    ):
        yield trips
