"""A store that delays each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from lithify.base.clock import Clock
from lithify.store.objects import ObjectStore
from lithify.store.wrapped import Call, WrappedStore

ResultT = TypeVar("ResultT")


class DelayingStore(WrappedStore):
    """Sleeps on `clock` before each call, for `delay_s` or for the result of `delay_s(call)`."""

    def __init__(self, inner: ObjectStore, clock: Clock, delay_s: float | Callable[[Call], float]) -> None:
        super().__init__(inner)
        self._clock = clock
        self._delay_s = delay_s

    def around(self, call: Call, action: Callable[[], ResultT]) -> ResultT:
        self._clock.sleep_s(self._delay_s(call) if callable(self._delay_s) else self._delay_s)
        return action()
