"""What time it is by the store's own clock.

The age of an object is the difference of two times of one clock: the store says when the object was written,
so it has to say what time it is now as well. A process whose own clock is an hour ahead would take what is
being written for old.

Times that other machines go by are of the store's clock too, or of both: an object that has to live for long
enough ends by the clock that is ahead (`latest_ms`).
"""

from __future__ import annotations

from lithify.base.clock import Clock
from lithify.base.errors import StoreError, UnfitStore
from lithify.store.objects import ObjectStore

MAX_BEHIND_MS = 999
"""So much later than `store_now_ms` says it may be: some stores count in whole seconds."""
ASK_EVERY_S = 60.0
MAX_DRIFT_MS = 1_000
"""Between the two clocks of a machine, wall and monotonic: beyond it one of them was set, or stood still."""


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
        written_ms, sent_ms, sent_s = self._known
        passed_ms = round((self._clock.monotonic_s() - sent_s) * 1000)
        # A monotonic clock stands still while the machine does.
        return max(now_ms, written_ms + max(passed_ms, now_ms - sent_ms))


def store_now_ms(store: ObjectStore, key: str) -> int:
    """Wall-clock milliseconds by the store's clock, found by replacing the object `key` with an empty one.
    Never later than it is, and up to a second earlier where the store counts in seconds."""
    store.put(key, b"")
    return store.head(key).last_modified_ms


class StoreTime:
    """The time by the clock of a store, for a caller that needs it again and again: the store is asked once
    in `ASK_EVERY_S`, and this process's monotonic clock counts on from the answer."""

    def __init__(self, store: ObjectStore, key: str, clock: Clock) -> None:
        self._store = store
        self._key = key
        self._clock = clock
        self._asked: tuple[int, float, int] | None = None
        """The store's answer, and what this machine's monotonic and wall clocks showed then."""

    def now_ms(self) -> int | None:
        """Return wall-clock milliseconds by the store's clock; `None` where the store cannot be asked, for
        example because this process may only read, or nothing may be written to it."""
        found = self._counted_on()
        if found is None:
            try:
                found = store_now_ms(self._store, self._key)
            except (StoreError, UnfitStore):
                return None
            self._asked = found, self._clock.monotonic_s(), self._clock.now_ms()
        return found

    def _counted_on(self) -> int | None:
        if self._asked is None:
            return None
        answer_ms, monotonic_s, wall_ms = self._asked
        passed_s = self._clock.monotonic_s() - monotonic_s
        passed_ms = round(passed_s * 1000)
        drift_ms = self._clock.now_ms() - wall_ms - passed_ms
        if passed_s >= ASK_EVERY_S or abs(drift_ms) > MAX_DRIFT_MS:
            return None
        return answer_ms + passed_ms
