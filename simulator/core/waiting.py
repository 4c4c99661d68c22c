"""Waiting that lets virtual time pass."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Any, TypeVar

from lithify.base.concurrency import Background
from simulator.core.fibers import EPOCH_MS, Scheduler

ResultT = TypeVar("ResultT")


class StopAt(threading.Event):
    """A stop signal that comes at one moment of virtual time, or never."""

    def __init__(self, scheduler: Scheduler, at_ms: int | None = None) -> None:
        super().__init__()
        self._scheduler = scheduler
        self._at_ms = at_ms

    def is_set(self) -> bool:
        return self._at_ms is not None and self._scheduler.now_ms >= self._at_ms

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self._scheduler.sleep_ms(round(timeout * 1000))
        return self.is_set()


def wait_for_futures(scheduler: Scheduler, least_ms: int = 0) -> Callable[..., None]:
    """In place of `concurrent.futures.wait`. Each time takes at least `least_ms`, so that who waits for
    what has
    ended, again and again, does not stop the clock."""

    def wait(pending: Collection[Future[Any]], timeout: float, return_when: str) -> None:
        is_over = any(future.done() for future in pending)
        scheduler.sleep_ms(least_ms if is_over else round(timeout * 1000))

    return wait


class AtOnce(Background):
    """What is to be done beside the caller is done at once, in the calling fiber."""

    def start(self, action: Callable[[], ResultT]) -> Callable[[], ResultT]:
        try:
            found = action()
        except Exception as error:
            failure = error

            def fail() -> ResultT:
                raise failure

            return fail
        return lambda: found


class AnyTime(Background):
    """What is to be done beside the caller is done before it goes on, or when somebody waits for it, and so
    perhaps never: chance decides. In the calling fiber."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def start(self, action: Callable[[], ResultT]) -> Callable[[], ResultT]:
        return AtOnce().start(action) if self._rng.random() < 0.5 else action


class InFibers(Background):
    """What is to be done beside the caller goes on in a fiber of its own; where no fiber calls, at once."""

    _LOOK_MS = 5

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def start(self, action: Callable[[], ResultT]) -> Callable[[], ResultT]:
        if not self._scheduler.is_in_fiber:
            return AtOnce().start(action)
        ended: list[Callable[[], ResultT]] = []
        self._scheduler.spawn(lambda: ended.append(_outcome(action)))

        def result() -> ResultT:
            while not ended:
                self._scheduler.sleep_ms(self._LOOK_MS)
            return ended[0]()

        return result


def _outcome(action: Callable[[], ResultT]) -> Callable[[], ResultT]:
    """Gives or raises what the action did."""
    try:
        found = action()
    except BaseException as error:  # it is whose who waits for it
        failure = error

        def fail() -> ResultT:
            raise failure

        return fail
    return lambda: found


def told_at(now_ms: int, who: str, text: str) -> str:
    """A line of the trace."""
    return f"{(now_ms - EPOCH_MS) / 1000:8.3f} s  {who:<15} {text}"
