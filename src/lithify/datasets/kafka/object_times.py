"""Times of a partition's objects, by which a broker without disks finds the ends of the log: it takes the
oldest object for the beginning and the newest for the end.

So whatever is older than the first object is put again as it is, and last of all the last one, until it is
newer than all others by the times that the store lists, which may be whole seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from lithify.clock import Clock
from lithify.datasets.kafka.layouts.objects import REQUESTS, listed_objects
from lithify.errors import PreconditionFailed, Refused
from lithify.store.objects import ObjectMeta, ObjectStore
from lithify.store.together import all_of

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
) -> list[ObjectMeta]:
    """Do so in the folder `records`, which has objects; all of them as they are listed afterwards. `look`
    raises where nothing may be written; `moved` is told of bytes read and written.

    Raises `Refused` when the last object does not become the newest.
    """

    def touch(key: str) -> None:
        data, meta = store.get_with_meta(key)
        assert meta.etag is not None, key
        with suppress(PreconditionFailed):  # an answer was lost, or it is new already: times are listed again
            store.replace(key, data, meta.etag)
        moved(len(data), len(data))

    for pause_s in _PAUSES_S:
        listed = listed_objects(store, records)
        first, last, between = listed[0], listed[-1], listed[1:-1]
        old = [meta for meta in between if meta.last_modified_ms < first.last_modified_ms]
        newest_ms = max((meta.last_modified_ms for meta in listed[:-1]), default=-1)
        if not old and last.last_modified_ms > newest_ms:
            return listed
        for start in range(0, len(old), _AT_ONCE):
            look()
            all_of((partial(touch, meta.key) for meta in old[start : start + _AT_ONCE]), REQUESTS)
        clock.sleep_s(pause_s)
        look()
        touch(last.key)
    raise Refused(
        f"{records}: the last object does not become the newest, by which the broker finds the end of the "
        "log; is somebody else writing into the folder? Run again"
    )
