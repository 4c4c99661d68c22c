"""A base of datasets whose ledger, lease and sidecar are Lithify's own, in a folder used only by Lithify."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable

from lithify.base.clock import Clock
from lithify.base.concurrency import both
from lithify.base.ids import Ids
from lithify.coordination.leases import ObjectLease
from lithify.coordination.ledger_documents import LedgerFormat
from lithify.coordination.ledger_files import LedgerFiles
from lithify.coordination.ledger_history import LedgerHistory
from lithify.coordination.observers import DatasetObservers
from lithify.coordination.sidecar import ObjectJournal
from lithify.datasets.kind import DatasetPort, SnapshotT
from lithify.protocol.lease import EpochClaim, EpochHeld, Lease, Permit, judge_lease, without_lease
from lithify.protocol.model import Ledger, OutputT, RangeT, SpecT
from lithify.protocol.presence import CoordinatorStatus
from lithify.store.keys import join
from lithify.store.objects import ObjectStore
from lithify.store.times import StoreTime
from lithify.store.versions import Bond, PendingVersion

FRESH_S = 5.0
"""How long the findings of a coordinator that is about to take the epoch count as current."""


class OwnLedgerDataset(DatasetPort[SnapshotT, SpecT, RangeT, OutputT], ABC):
    """A dataset that only Lithify compacts. Nothing is written if `snapshot` refuses the dataset."""

    def __init__(
        self,
        url: str,
        store: ObjectStore,
        folder: str,
        format: LedgerFormat[SpecT, RangeT, OutputT],
        clock: Clock,
        ids: Ids,
        rng: random.Random,
    ) -> None:
        """`folder` of `store` is used only by Lithify."""
        self._url = url
        self.store = store
        self.own_folder = folder
        self._clock = clock
        self._ids = ids
        self._rng = rng
        self._format = format
        self._bond = Bond()
        """Joins all numbered files that depend on the current ledger: if it was replaced, they raise
        `Replaced`."""
        self._ledger = LedgerFiles(url, store, folder, format, clock, ids, rng, self._bond)
        self._observers = DatasetObservers()
        self._journal = ObjectJournal(store, folder, clock, ids, self._observers)
        self._lease = ObjectLease(store, folder, clock, self._observers)
        self.time_key = join(folder, "now")
        """The object that is written to read the store's time."""
        self._store_time = StoreTime(store, self.time_key, clock)
        self._looked_s = float("-inf")
        """When `epoch` was last read."""

    @property
    def url(self) -> str:
        return self._url

    @property
    def observers(self) -> DatasetObservers:
        return self._observers

    @property
    def journal(self) -> ObjectJournal:
        return self._journal

    @property
    def lease(self) -> ObjectLease:
        return self._lease

    def ledger(self) -> Ledger[SpecT, RangeT, OutputT] | None:
        return self._observers.ledger(self._ledger.read())

    def snapshot(self) -> SnapshotT:
        return self._observers.snapshot(self._read_snapshot())

    @abstractmethod
    def _read_snapshot(self) -> SnapshotT:
        """Return the latest committed state (`snapshot`)."""

    def glance(self) -> tuple[Ledger[SpecT, RangeT, OutputT] | None, SnapshotT]:
        ledger = self._ledger.read()
        return self._observers.both(ledger, self._read_snapshot())

    def update_ledger(
        self,
        change: Callable[[Ledger[SpecT, RangeT, OutputT]], Ledger[SpecT, RangeT, OutputT]],
        first: Ledger[SpecT, RangeT, OutputT] | None = None,
    ) -> Ledger[SpecT, RangeT, OutputT]:
        """Ignore `first`: taking the epoch creates the ledger."""
        return self._observers.ledger(self._ledger.update(change))

    def write_ledger(
        self,
        change: Callable[[Ledger[SpecT, RangeT, OutputT]], Ledger[SpecT, RangeT, OutputT]],
        first: Ledger[SpecT, RangeT, OutputT] | None = None,
    ) -> tuple[Ledger[SpecT, RangeT, OutputT], PendingVersion]:
        ledger, counts = self._ledger.write(change)
        return self._observers.ledger(ledger), counts

    def history(self) -> LedgerHistory:
        return self._ledger.history()

    def encode_spec(self, spec: SpecT) -> str:
        return self._format.encode_spec(spec)

    def decode_spec(self, text: str) -> SpecT:
        return self._format.decode_spec(text)

    # Leadership

    def epoch(self) -> int:
        self._looked_s = self._clock.monotonic_s()
        return both(self._read_snapshot, self._ledger.epoch)[1]

    def check_epoch(self, epoch: int) -> None:
        """Raise `Fenced` if `epoch` is not the newest any more. Call it before publishing outside the
        ledger."""
        self._ledger.files.confirmed()
        self._ledger.check_epoch(epoch)

    def why_held(self, epoch: int, lease: Lease | None) -> EpochHeld | None:
        """Return `None`: the lease alone shows which process is alive."""
        return None

    def take_epoch(self, permit: Permit = lambda taking: None) -> int:
        if self._clock.monotonic_s() - self._looked_s >= FRESH_S:  # waiting for the lease may have taken long
            both(self._read_snapshot, self._ledger.read)
        return self._ledger.take_epoch(permit)

    def has_taken(self, taking: EpochClaim) -> bool:
        return self._ledger.has_taken(taking)

    def may_have_taken(self, taking: EpochClaim) -> bool:
        """Return true: ledger and lease are in one folder."""
        return True

    def confirm(self) -> None:
        self._ledger.files.confirmed()

    def store_ms(self) -> int | None:
        return self._store_time.now_ms()

    def dated_ms(self) -> int:
        """Return the time for written data: the store's, or this machine's if the store cannot be asked."""
        store_ms = self._store_time.now_ms()
        return self._clock.now_ms() if store_ms is None else store_ms

    def coordinator(self) -> CoordinatorStatus:
        ledger, found = self._ledger.read(), self._lease.peek()
        epoch = 0 if ledger is None else ledger.epoch
        if found is None or found.lease is None:
            return without_lease(epoch)
        return judge_lease(epoch, found.lease, found.written_ms, self.store_ms)
