"""The time by the store's own clock.

The age of an object is the difference of two times of one clock. The store reports when the object was
written, so its clock must give the current time too: a process whose clock is an hour ahead would consider
new objects old.

Times shared with other machines are also by the store's clock, or by both: an object with a minimum lifetime
expires by the clock that is ahead (`latest_ms`).
"""

from __future__ import annotations

from lithify.base.clock import Clock
from lithify.base.errors import StoreError, UnfitStore
from lithify.store.objects import ObjectStore

MAX_BEHIND_MS = 999
"""Maximum by which `store_now_ms` is behind: some stores count in whole seconds."""
ASK_EVERY_S = 60.0
MAX_DRIFT_MS = 1_000
"""Maximum drift between a machine's wall and monotonic clocks: beyond it one was set, or stood still."""


class StoreClock:
    """The store's clock, derived from an object that this process has written."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: tuple[int, int, float] | None = None
        """When the object was written (store's clock), and when it was sent (this process's clocks)."""

    @property
    def is_known(self) -> bool:
        return self._known is not None

    def sent(self) -> tuple[int, float]:
        """Return the time of a request that is about to be sent, for `saw`."""
        return self._clock.now_ms(), self._clock.monotonic_s()

    def saw(self, written_ms: int, sent: tuple[int, float]) -> None:
        """Record when the store has written the object that was sent at `sent`."""
        self._known = written_ms, *sent

    def latest_ms(self) -> int:
        """Return the time by this machine's clock or the store's, whichever is ahead."""
        now_ms = self._clock.now_ms()
        if self._known is None:
            return now_ms
        written_ms, sent_ms, sent_s = self._known
        passed_ms = round((self._clock.monotonic_s() - sent_s) * 1000)
        # A monotonic clock stands still while the machine is suspended.
        return max(now_ms, written_ms + max(passed_ms, now_ms - sent_ms))


def store_now_ms(store: ObjectStore, key: str) -> int:
    """Return wall-clock milliseconds by the store's clock, by replacing the object `key` with an empty one.
    Never too late, and up to a second early if the store counts in seconds."""
    store.put(key, b"")
    return store.head(key).last_modified_ms


class StoreTime:
    """The time by a store's clock, for repeated use: it is read once in `ASK_EVERY_S` and extrapolated by
    this process's monotonic clock."""

    def __init__(self, store: ObjectStore, key: str, clock: Clock) -> None:
        self._store = store
        self._key = key
        self._clock = clock
        self._asked: tuple[int, float, int] | None = None
        """The store's answer, and the times of this machine's monotonic and wall clocks then."""

    def now_ms(self) -> int | None:
        """Return wall-clock milliseconds by the store's clock; `None` if it cannot be read, for example
        because writing is not allowed."""
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
