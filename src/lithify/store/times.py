"""What time it is by the store's own clock.

The age of an object is the difference of two times of one clock: the store says when the object was written,
so it has to say what time it is now as well. A process whose own clock is an hour ahead would take what is
being written for old.

Times that other machines go by are of the store's clock too, or of both: what has to live for long enough
ends by the clock that is ahead (`latest_ms`), and what is deleted when its time has come goes by the clock
that is behind (`earliest_ms`).
"""

from __future__ import annotations

from lithify.clock import Clock
from lithify.store.objects import ObjectStore


class StoreClock:
    """The store's clock as one process knows it, from an object that it has written itself."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: tuple[int, int, float] | None = None
        """When the object was written by the store's clock, and when it was sent by those of this process."""

    @property
    def is_known(self) -> bool:
        """Whether the store has told its time."""
        return self._known is not None

    def sent(self) -> tuple[int, float]:
        """The time of a request that is about to be sent, for `saw`."""
        return self._clock.now_ms(), self._clock.monotonic_s()

    def saw(self, written_ms: int, sent: tuple[int, float]) -> None:
        """Note when the store has written what was sent then."""
        self._known = written_ms, *sent

    def latest_ms(self) -> int:
        """The time by this machine's clock or the store's, whichever is ahead."""
        now_ms = self._clock.now_ms()
        if self._known is None:
            return now_ms
        written_ms, sent_ms, _ = self._known
        # A monotonic clock stands still while the machine does.
        return max(now_ms, written_ms + max(self._passed_ms(), now_ms - sent_ms))

    def earliest_ms(self) -> int:
        """The time by this machine's clock or the store's, whichever is behind."""
        now_ms = self._clock.now_ms()
        return now_ms if self._known is None else min(now_ms, self._known[0] + self._passed_ms())

    def _passed_ms(self) -> int:
        assert self._known is not None
        return round((self._clock.monotonic_s() - self._known[2]) * 1000)


def store_now_ms(store: ObjectStore, key: str) -> int:
    """Wall-clock milliseconds by the store's clock, found by replacing the object `key` with an empty one.
    Never later than it is, and up to a second earlier where the store counts in seconds."""
    store.put(key, b"")
    return store.head(key).last_modified_ms
