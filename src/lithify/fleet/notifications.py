"""Messages between members of a fleet.

*Notifications*: "read the task offers of this queue". `bells/<queue id>` has the last notifications
(`lithify.planning.fleet.notifications`). A worker polls it with one GET. A sender reads it while its task
offers are being written, and once they are written, replaces it with a version that has one more
notification, on the condition that it has not changed: otherwise notifications would be lost, and their
addressees' tasks would wait in vain. If other senders keep changing it, it is finally written without the
condition. A notification may still be lost, or be sent in vain: a worker that has received none for long
reads the offers anyway.

*Refresh requests*: "poll this dataset now". `wakes/<hash of the URL>` holds the URL, so requesting twice is
the same as requesting once. The coordinator that watches the dataset polls it and deletes the request. No
other coordinator does, except that a request for a dataset that is not watched is deleted when it is old.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b

from lithify.base import concurrency
from lithify.base.documents import DocumentCodec
from lithify.base.errors import CorruptObject, ObjectExists, ObjectNotFound, PreconditionFailed
from lithify.base.ids import Ids
from lithify.fleet.catalog.patterns import normal
from lithify.planning.fleet.notifications import MAX_RINGS, Ring, added, ring_of, unheard
from lithify.planning.fleet.task_offers import ClaimOffer
from lithify.store.keys import join
from lithify.store.objects import ObjectStore

MAX_TRIES = 4


class Bells:
    """The notifications of the fleet in `folder` of `store`."""

    def __init__(self, store: ObjectStore, folder: str, ids: Ids) -> None:
        self._store = store
        self._folder = join(folder, "bells")
        self._ids = ids

    def ring(
        self, queue_id: str, board: str, new: Iterable[ClaimOffer], write: Callable[[], None] = lambda: None
    ) -> None:
        """Notify workers of new task offers of a member, once `write` has written these."""
        key, ring = join(self._folder, queue_id), ring_of(self._ids.uuid().hex, board, new)
        _, (known, etag) = concurrency.both(write, partial(self._read, key))
        for _ in range(MAX_TRIES):
            try:
                data = _RINGS.encode(added(known, ring))
                if etag is None:
                    self._store.create(key, data)
                else:
                    self._store.replace(key, data, etag)
                return
            except (ObjectExists, PreconditionFailed):
                known, etag = self._read(key)
                if ring in known:
                    return  # the write had succeeded; only the response was lost
        self._store.put(key, _RINGS.encode(added(known, ring)))

    def rings(self, queue_id: str) -> tuple[Ring, ...]:
        """Return the last notifications, the newest last; none if there were none or they cannot be read."""
        return self._read(join(self._folder, queue_id))[0]

    def _read(self, key: str) -> tuple[tuple[Ring, ...], str | None]:
        try:
            data, meta = self._store.get_with_meta(key)
        except ObjectNotFound:
            return (), None
        return _decode(data, key), meta.etag


class Ear:
    """A receiver of one queue's notifications."""

    def __init__(self, bells: Bells, queue_id: str) -> None:
        self._bells = bells
        self._queue_id = queue_id
        self._known: frozenset[str] | None = None

    def hears(self) -> tuple[Ring, ...] | None:
        """Return the notifications since the last call; `None` if some may have been missed, as on the first
        call."""
        rings = self._bells.rings(self._queue_id)
        known, self._known = self._known, frozenset(ring.id for ring in rings)
        return None if known is None else unheard(rings, known)


_RINGS = DocumentCodec(tuple[Ring, ...])


def _decode(data: bytes, key: str) -> tuple[Ring, ...]:
    """Treat data that cannot be decoded as absent, since notifications may be lost."""
    try:
        return _RINGS.decode(data, key)[-MAX_RINGS:]
    except CorruptObject:
        return ()


MAX_AGE_MS = 3_600_000
MAX_BYTES = 16_000


@dataclass(frozen=True, slots=True)
class Wake:
    """A request to poll a dataset."""

    url: str
    key: str
    since_ms: int
    """By the store's clock."""


class WakeFiles:
    """The refresh requests of the fleet in `folder` of `store`."""

    def __init__(self, store: ObjectStore, folder: str) -> None:
        self._store = store
        self._folder = join(folder, "wakes")

    def wake(self, url: str) -> None:
        """Request a poll of the dataset."""
        url = normal(url)
        self._store.put(join(self._folder, blake2b(url.encode(), digest_size=16).hexdigest()), url.encode())

    def listed(self) -> tuple[Wake, ...]:
        """Return all requests, with one listing and one GET for each."""
        found = []
        for meta in self._store.list(self._folder):
            if meta.size > MAX_BYTES:
                continue
            try:
                url = self._store.get(meta.key).decode(errors="replace")
            except ObjectNotFound:
                continue
            found.append(Wake(url, meta.key, meta.last_modified_ms))
        return tuple(found)

    def done(self, wake: Wake) -> None:
        """Delete the request: the dataset was polled, or never will be."""
        self._store.delete(wake.key)
