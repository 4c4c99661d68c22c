"""The lease of a dataset as an object of its store: `coordinator.json` in Lithify's own folder."""

from __future__ import annotations

from lithify.base.clock import Clock
from lithify.base.errors import ObjectExists, ObjectNotFound, PreconditionFailed, StoreError
from lithify.coordination.observers import DatasetObservers
from lithify.protocol.lease import FoundLease, Lease, decode_lease, encode_lease
from lithify.store.keys import join
from lithify.store.objects import ObjectStore
from lithify.store.times import StoreClock

WRITE_PAUSE_S = 1.0
"""Google's store takes one write of an object per second."""
MAX_LEASE_BYTES = 64 * 1024
"""A larger object is not a lease, and is not read."""


class ObjectLease:
    """The lease of the dataset whose own folder is `folder` of `store`. `observers` are told of `read` and
    `write`."""

    def __init__(
        self, store: ObjectStore, folder: str, clock: Clock, observers: DatasetObservers | None = None
    ) -> None:
        self._store = store
        self._observers = observers if observers is not None else DatasetObservers()
        self._clock = clock
        self._written_s = clock.monotonic_s() - WRITE_PAUSE_S
        self.key = join(folder, "coordinator.json")
        self.times = StoreClock(clock)
        """The store's clock, as far as known from reading leases written here."""
        self._sent: tuple[str, tuple[int, float]] | None = None
        """The etag of the lease that was last written here, and when it was sent."""
        self.found: FoundLease | None = None
        """The lease that was last read here."""

    def read(self) -> FoundLease | None:
        """Return the current lease; `None` if there is none."""
        found = self.peek()
        self._observers.tell(lambda observer: observer.saw_lease(found))
        return found

    def peek(self) -> FoundLease | None:
        """Do the same, without telling observers."""
        try:
            meta = self._store.head(self.key)
            lease = None
            if meta.size <= MAX_LEASE_BYTES:
                data, meta = self._store.get_with_meta(self.key)
                lease = decode_lease(data)
        except ObjectNotFound:
            self.found = None
            return None
        self.found = FoundLease(lease, self._given(meta.etag), meta.last_modified_ms)
        return self.found

    def look(self) -> str | None:
        """Return the etag of the current lease; `None` if there is none."""
        try:
            meta = self._store.head(self.key)
        except ObjectNotFound:
            return None
        etag = self._given(meta.etag)
        if self._sent is not None and etag == self._sent[0]:
            self.times.saw(meta.last_modified_ms, self._sent[1])
        return etag

    def write(self, lease: Lease, etag: str | None) -> str:
        """Overwrite the lease that has this etag, or create it if the etag is `None`. Return the new etag.
        Raise `PreconditionFailed` if another lease is there."""
        data = encode_lease(lease)
        self._wait_for_turn()
        sent = self.times.sent()
        try:
            if etag is None:
                written = self._store.create(self.key, data)
            else:
                written = self._store.replace(self.key, data, etag)
        except (ObjectExists, ObjectNotFound) as error:  # stores differ in the error that they report
            raise PreconditionFailed(str(error)) from error
        new_etag = self._given(written)
        self._sent = new_etag, sent
        self._observers.tell(lambda observer: observer.wrote_lease(lease, new_etag))
        return new_etag

    def _wait_for_turn(self) -> None:
        """Wait until the store takes another write of the lease, if it limits them: a term that ends within
        a second has three."""
        left_s = self._written_s + WRITE_PAUSE_S - self._clock.monotonic_s()
        if left_s > 0 and self._store.url.startswith("gs://"):
            self._clock.sleep_s(left_s)
        self._written_s = self._clock.monotonic_s()

    def _given(self, etag: str | None) -> str:
        if etag is None:
            raise StoreError(f"{self.key}: the store returns no etag, which is needed to overwrite it")
        return etag
