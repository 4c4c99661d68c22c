"""The lease of a dataset as an object of its store: `coordinator.json` in Lithify's own folder."""

from __future__ import annotations

from lithify.compaction.lease import FoundLease, Lease, decode_lease, encode_lease
from lithify.errors import ObjectNotFound
from lithify.store.keys import join
from lithify.store.objects import ObjectStore

MAX_LEASE_BYTES = 64 * 1024
"""A larger object is no lease, and is not read."""


class ObjectLease:
    """The lease of the dataset whose own folder is `folder` of `store`."""

    def __init__(self, store: ObjectStore, folder: str) -> None:
        self._store = store
        self.key = join(folder, "coordinator.json")

    def read(self) -> FoundLease | None:
        """The lease as it is; `None` when there is none."""
        try:
            meta = self._store.head(self.key)
            lease = None
            if meta.size <= MAX_LEASE_BYTES:
                data, meta = self._store.get_with_meta(self.key)
                lease = decode_lease(data)
        except ObjectNotFound:
            return None
        return FoundLease(lease, meta.etag, meta.last_modified_ms)

    def write(self, lease: Lease) -> None:
        """Replace the lease."""
        self._store.put(self.key, encode_lease(lease))
