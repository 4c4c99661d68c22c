"""Refresh requests: "poll this dataset now".

`wakes/<hash of the URL>` holds the URL, so requesting twice is the same as requesting once. The coordinator
that watches the dataset polls it and deletes the request. No other coordinator does, except that a request
for a dataset that is not watched is deleted when it is old.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

from lithify.base.errors import ObjectNotFound
from lithify.fleet.catalog.patterns import normal
from lithify.store.keys import join
from lithify.store.objects import ObjectStore

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
