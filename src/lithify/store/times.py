"""What time it is by the store's own clock.

The age of an object is the difference of two times of one clock: the store says when the object was written,
so it has to say what time it is now as well. A process whose own clock is an hour ahead would take what is
being written for old.
"""

from __future__ import annotations

from lithify.store.objects import ObjectStore

MAX_BEHIND_MS = 999
"""So much later than `store_now_ms` says it may be: some stores count in whole seconds."""


def store_now_ms(store: ObjectStore, key: str) -> int:
    """Wall-clock milliseconds by the store's clock, found by replacing the object `key` with an empty one.
    Never later than it is, and up to a second earlier where the store counts in seconds."""
    store.put(key, b"")
    return store.head(key).last_modified_ms
