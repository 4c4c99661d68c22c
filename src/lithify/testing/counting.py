"""A store that counts requests in the units that object stores bill."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from lithify.store.metered import VERBS, Verb
from lithify.store.objects import ObjectStore
from lithify.store.wrapped import Call, WrappedStore

ResultT = TypeVar("ResultT")


class CountingStore(WrappedStore):
    """Counts requests by verb, including failed ones, and the bytes of objects read and written.

    A streamed upload counts as one PUT, on commit. A listing counts once, however long.
    """

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.requests: Counter[Verb] = Counter()
        self.bytes_read = 0
        self.bytes_written = 0
        self._lock = threading.Lock()

    def around(self, call: Call, action: Callable[[], ResultT]) -> ResultT:
        verb = VERBS.get(call.method)
        if verb is not None:
            with self._lock:
                self.requests[verb] += 1
        result = action()
        with self._lock:
            self.bytes_read += call.bytes_asked + _bytes_in(result)
            self.bytes_written += call.bytes_sent
        return result

    def reset(self) -> None:
        with self._lock:
            self.requests.clear()
            self.bytes_read = self.bytes_written = 0


def _bytes_in(result: object) -> int:
    if isinstance(result, bytes):
        return len(result)
    if isinstance(result, tuple):
        return len(result[0])
    return 0
