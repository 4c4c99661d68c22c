"""Corrects the write times of a partition's objects: a diskless broker takes the oldest object for the
beginning of the log and the newest for its end.

Objects older than the first one are written again unchanged. Then the last one is written again, until its
listed time is later than all others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from lithify.base.clock import Clock
from lithify.base.concurrency import all_of
from lithify.base.errors import PreconditionFailed, Refused
from lithify.datasets.kafka.layouts.objects import REQUESTS, base_of, listed_objects
from lithify.store.objects import ObjectMeta, ObjectStore

_AT_ONCE = 64
"""Objects to write between two checks whether writing is still allowed."""
_PAUSES_S = (0.0, 0.01, 1.1, 1.1, 2.1, 2.1)
"""Pauses before the attempts to make the last object the newest. Most stores list whole seconds."""


def put_times_right(
    store: ObjectStore,
    records: str,
    clock: Clock,
    look: Callable[[], None],
    moved: Callable[[int, int], None],
    live_from: int | None = None,
) -> list[ObjectMeta]:
    """Correct the times in the folder `records`, which is not empty. Return its objects as listed afterwards.
    `look` raises if nothing may be written; `moved` receives the bytes read and written.

    While producers write, all objects from the offset `live_from` on are theirs. Then any of those may be the
    newest, unless this call has written it: the same happens without compaction.

    Raises `Refused` if the last object does not become the newest.
    """

    touched = set()

    def touch(key: str) -> None:
        touched.add(key)
        data, meta = store.get_with_meta(key)
        assert meta.etag is not None, key
        with suppress(PreconditionFailed):  # it has been written already; its time is listed again
            store.replace(key, data, meta.etag)
        moved(len(data), len(data))

    def is_right(listed: Sequence[ObjectMeta]) -> bool:
        end = end_of(listed)
        is_theirs = live_from is not None and base_of(end.key) >= live_from and end.key not in touched
        return not _older(listed) and (end == listed[-1] or is_theirs)

    for pause_s in _PAUSES_S:
        if is_right(listed := listed_objects(store, records)):
            return listed
        old = _older(listed)
        for start in range(0, len(old), _AT_ONCE):
            look()
            all_of((partial(touch, meta.key) for meta in old[start : start + _AT_ONCE]), REQUESTS)
        if pause_s:
            clock.sleep_s(pause_s)
            if is_right(listed := listed_objects(store, records)):  # a producer has written
                return listed
        look()
        touch(listed[-1].key)
    raise Refused(
        f"{records}: the last object does not become the newest, by which the broker finds the end of the "
        "log; check that nothing else writes into the folder, and run again"
    )


def end_of(listed: Sequence[ObjectMeta]) -> ObjectMeta:
    """Return the object that the broker takes for the end of the log: the newest, or the first of several."""
    return min(listed, key=lambda meta: (-meta.last_modified_ms, meta.key))


def _older(listed: Sequence[ObjectMeta]) -> list[ObjectMeta]:
    """Return the objects, except the last, that are older than the first."""
    return [meta for meta in listed[1:-1] if meta.last_modified_ms < listed[0].last_modified_ms]
