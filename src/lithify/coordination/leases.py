"""The lease of a dataset as an object of its store: `coordinator.json` in Lithify's own folder."""

from __future__ import annotations

from lithify.compaction.lease import FoundLease, Lease, decode_lease, encode_lease
from lithify.errors import ObjectExists, ObjectNotFound, PreconditionFailed, StoreError
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
        return FoundLease(lease, self._given(meta.etag), meta.last_modified_ms)

    def look(self) -> str | None:
        """The etag of the lease as it is; `None` when there is none."""
        try:
            return self._given(self._store.head(self.key).etag)
        except ObjectNotFound:
            return None

    def write(self, lease: Lease, etag: str | None) -> str:
        """Write the lease over the one that has this etag, or where there is none; the new etag.
        `PreconditionFailed` when another is there."""
        data = encode_lease(lease)
        try:
            if etag is None:
                written = self._store.create(self.key, data)
            else:
                written = self._store.replace(self.key, data, etag)
        except (ObjectExists, ObjectNotFound) as error:  # stores differ in how they say it
            raise PreconditionFailed(str(error)) from error
        return self._given(written)

    def _given(self, etag: str | None) -> str:
        if etag is None:
            raise StoreError(f"{self.key}: the store gives no etag to overwrite it by")
        return etag
