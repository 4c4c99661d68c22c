"""A store with injected faults, and the enumeration of all calls at which a process can die.

A fault happens to one call: before it reaches the store, or after it has taken effect (the answer is lost). A
fault is a `StoreError`, or a `Crash`, which simulates the death of the process. `Crash` is not an
`Exception`, so ordinary error handlers do not stop it. After it every further call of the same store crashes
too, so a `finally` in a dying process has no effect.

Calls are numbered from 1 in the order in which they begin.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar, cast

from lithify.base.clock import Clock
from lithify.base.errors import StoreError
from lithify.store.objects import ObjectStore
from lithify.store.wrapped import Call, WrappedStore

ResultT = TypeVar("ResultT")


class Crash(BaseException):
    """The process dies here."""


class StoreFault(Enum):
    """A fault of one call."""

    FAIL_BEFORE = "fails; nothing happened"
    FAIL_AFTER = "fails; but it took effect"
    TRUNCATE = "reads only the first half of the object"
    CRASH_BEFORE = "the process dies; nothing happened"
    CRASH_AFTER = "the process dies; but it took effect"


class FaultyStore(WrappedStore):
    """Calls `decide(number, call)` before each call, which returns the call's fault or `None`.

    `calls` has all calls so far.
    """

    def __init__(self, inner: ObjectStore, decide: Callable[[int, Call], StoreFault | None]) -> None:
        super().__init__(inner)
        self.calls: list[Call] = []
        self._decide = decide
        self._dead = False
        self._lock = threading.Lock()

    @classmethod
    def scripted(cls, inner: ObjectStore, faults: Mapping[int, StoreFault]) -> FaultyStore:
        """Return a store with faults by the number of the call."""
        return cls(inner, lambda number, _: faults.get(number))

    @classmethod
    def seeded(
        cls,
        inner: ObjectStore,
        rng: random.Random,
        probability: float,
        faults: tuple[StoreFault, ...] = (StoreFault.FAIL_BEFORE, StoreFault.FAIL_AFTER),
    ) -> FaultyStore:
        """Return a store where each call has one of `faults` with this probability."""
        return cls(inner, lambda *_: rng.choice(faults) if rng.random() < probability else None)

    @classmethod
    def crash_at(cls, inner: ObjectStore, number: int, *, after: bool = False) -> FaultyStore:
        """Return a store where the process dies in one call, before or after it takes effect."""
        return cls.scripted(inner, {number: StoreFault.CRASH_AFTER if after else StoreFault.CRASH_BEFORE})

    def around(self, call: Call, action: Callable[[], ResultT]) -> ResultT:
        with self._lock:
            if self._dead:
                raise Crash(f"{call.method} {call.key}: the process is dead")
            self.calls.append(call)
            number = len(self.calls)
            fault = self._decide(number, call)
            self._dead = fault in (StoreFault.CRASH_BEFORE, StoreFault.CRASH_AFTER)
        if fault is None:
            return action()
        where = f"{call.method} {call.key} (call {number})"
        match fault:
            case StoreFault.CRASH_BEFORE:
                raise Crash(where)
            case StoreFault.FAIL_BEFORE:
                raise StoreError(f"{where}: injected failure")
            case StoreFault.TRUNCATE:
                return _truncated(action(), call, where)
        with suppress(StoreError):  # a refusal is an answer too, and is lost
            action()
        if fault is StoreFault.CRASH_AFTER:
            raise Crash(where)
        raise StoreError(f"{where}: injected failure, the answer is lost")


@dataclass(frozen=True, slots=True)
class CrashSite:
    """The call at which a run died."""

    number: int
    call: Call
    after: bool
    """Whether the call had taken effect."""


def crash_at_every_call(
    make_store: Callable[[], ObjectStore], run: Callable[[ObjectStore], object]
) -> Iterator[tuple[CrashSite, ObjectStore]]:
    """Kill `run` at each of its calls in turn, before and after it takes effect, each time on a new store.

    Yield each crash site and the store as it was left, for the caller to check. `run` must make the same
    calls each time.
    """
    rehearsal = FaultyStore.scripted(make_store(), {})
    run(rehearsal)
    for number, call in enumerate(rehearsal.calls, start=1):
        for after in (False, True):
            inner = make_store()
            faulty = FaultyStore.crash_at(inner, number, after=after)
            try:
                run(faulty)
            except Crash:
                yield CrashSite(number, call, after), inner
            else:
                raise AssertionError(f"call {number} ({call.method} {call.key}) did not come: {run} varies")


def _truncated(result: ResultT, call: Call, where: str) -> ResultT:
    """Return the result of a store that serves only half the object."""
    if isinstance(result, bytes) and call.method == "get":
        return cast(ResultT, result[: len(result) // 2])
    if isinstance(result, tuple):
        data, meta = result
        return cast(ResultT, (data[: len(data) // 2], meta))
    raise StoreError(f"{where}: injected failure, the object is too short")


class DelayingStore(WrappedStore):
    """Sleeps on `clock` before each call, for `delay_s` or for the result of `delay_s(call)`."""

    def __init__(self, inner: ObjectStore, clock: Clock, delay_s: float | Callable[[Call], float]) -> None:
        super().__init__(inner)
        self._clock = clock
        self._delay_s = delay_s

    def around(self, call: Call, action: Callable[[], ResultT]) -> ResultT:
        self._clock.sleep_s(self._delay_s(call) if callable(self._delay_s) else self._delay_s)
        return action()
