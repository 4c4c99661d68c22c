"""Times of a partition's objects, by which a broker without disks finds the ends of the log: it takes the
oldest object for the beginning and the newest for the end.

So whatever is older than the first object is put again as it is, and last of all the last one, until it is
newer than all others by the times that the store lists, which may be whole seconds.
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
"""Objects that are put before it is looked again whether they may be."""
_PAUSES_S = (0.0, 0.01, 1.1, 1.1, 2.1, 2.1)
"""Before each attempt to make the last object the newest. Most stores list whole seconds."""


def put_times_right(
    store: ObjectStore,
    records: str,
    clock: Clock,
    look: Callable[[], None],
    moved: Callable[[int, int], None],
    live_from: int | None = None,
) -> list[ObjectMeta]:
    """Do so in the folder `records`, which has objects; all of them as they are listed afterwards. `look`
    raises where nothing may be written; `moved` is told of bytes read and written.

    While producers go on, all objects from the offset `live_from` on are theirs. Then it is as well if one of
    those is the newest that was not put here: so it is when nobody compacts.

    Raises `Refused` when the last object does not become the newest.
    """

    touched = set()

    def touch(key: str) -> None:
        touched.add(key)
        data, meta = store.get_with_meta(key)
        assert meta.etag is not None, key
        with suppress(PreconditionFailed):  # an answer was lost, or it is new already: times are listed again
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
            if is_right(listed := listed_objects(store, records)):  # a producer has moved on
                return listed
        look()
        touch(listed[-1].key)
    raise Refused(
        f"{records}: the last object does not become the newest, by which the broker finds the end of the "
        "log; is somebody else writing into the folder? Run again"
    )


def end_of(listed: Sequence[ObjectMeta]) -> ObjectMeta:
    """The object that the broker takes for the end of the log: the newest, of several the first."""
    return min(listed, key=lambda meta: (-meta.last_modified_ms, meta.key))


def _older(listed: Sequence[ObjectMeta]) -> list[ObjectMeta]:
    """What between the first and the last object is older than the first."""
    return [meta for meta in listed[1:-1] if meta.last_modified_ms < listed[0].last_modified_ms]
