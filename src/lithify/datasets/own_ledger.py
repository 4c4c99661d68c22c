"""What datasets share whose ledger, lease and sidecar are Lithify's own, in a folder of Lithify's alone."""

from __future__ import annotations

import random
from abc import ABC
from collections.abc import Callable

from lithify.base.clock import Clock
from lithify.base.concurrency import both
from lithify.base.ids import Ids
from lithify.coordination.leases import ObjectLease
from lithify.coordination.ledger_documents import LedgerFormat
from lithify.coordination.ledger_files import LedgerFiles
from lithify.coordination.ledger_history import LedgerHistory
from lithify.coordination.sidecar import ObjectJournal
from lithify.datasets.kind import DatasetPort, SnapshotT
from lithify.protocol.lease import EpochClaim, Lease, Permit, judge_lease, without_lease
from lithify.protocol.model import Ledger, OutputT, RangeT, SpecT
from lithify.protocol.presence import CoordinatorStatus
from lithify.store.keys import join
from lithify.store.objects import ObjectStore
from lithify.store.times import StoreTime
from lithify.store.versions import Bond, PendingVersion

FRESH_S = 5.0
"""So long what a coordinator has found before it takes the epoch counts as just found."""


class OwnLedgerDataset(DatasetPort[SnapshotT, SpecT, RangeT, OutputT], ABC):
    """A dataset that only Lithify compacts. Nothing is written to one whose `snapshot` is refused."""

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
        """`folder` of `store` is Lithify's alone."""
        self._url = url
        self.store = store
        self.own_folder = folder
        self._clock = clock
        self._ids = ids
        self._rng = rng
        self._format = format
        self._bond = Bond()
        """Of all that is only of use with the ledger that is there."""
        self._ledger = LedgerFiles(url, store, folder, format, clock, ids, rng, self._bond)
        self._journal = ObjectJournal(store, folder, clock, ids)
        self._lease = ObjectLease(store, folder, clock)
        self.time_key = join(folder, "now")
        """An object for asking the store what time it is."""
        self._store_time = StoreTime(store, self.time_key, clock)
        self._looked_s = float("-inf")
        """When `epoch` was read last."""

    @property
    def url(self) -> str:
        return self._url

    @property
    def journal(self) -> ObjectJournal:
        return self._journal

    @property
    def lease(self) -> ObjectLease:
        return self._lease

    def ledger(self) -> Ledger[SpecT, RangeT, OutputT] | None:
        return self._ledger.read()

    def update_ledger(
        self,
        change: Callable[[Ledger[SpecT, RangeT, OutputT]], Ledger[SpecT, RangeT, OutputT]],
        first: Ledger[SpecT, RangeT, OutputT] | None = None,
    ) -> Ledger[SpecT, RangeT, OutputT]:
        """`first` is not needed: who takes the epoch makes the ledger."""
        return self._ledger.update(change)

    def write_ledger(
        self,
        change: Callable[[Ledger[SpecT, RangeT, OutputT]], Ledger[SpecT, RangeT, OutputT]],
        first: Ledger[SpecT, RangeT, OutputT] | None = None,
    ) -> tuple[Ledger[SpecT, RangeT, OutputT], PendingVersion]:
        return self._ledger.write(change)

    def history(self) -> LedgerHistory:
        return self._ledger.history()

    def encode_spec(self, spec: SpecT) -> str:
        return self._format.encode_spec(spec)

    def decode_spec(self, text: str) -> SpecT:
        return self._format.decode_spec(text)

    # Leadership

    def epoch(self) -> int:
        self._looked_s = self._clock.monotonic_s()
        return both(self.snapshot, self._ledger.epoch)[1]

    def check_epoch(self, epoch: int) -> None:
        """`Fenced` when `epoch` is not the newest any more. For who is about to publish somewhere else than
        in the ledger."""
        self._ledger.files.confirmed()
        self._ledger.check_epoch(epoch)

    def why_held(self, epoch: int, lease: Lease | None) -> str | None:
        """Its lease alone tells who is alive."""
        return None

    def take_epoch(self, permit: Permit = lambda taking: None) -> int:
        if self._clock.monotonic_s() - self._looked_s >= FRESH_S:  # watching the lease may have taken long
            both(self.snapshot, self.ledger)
        return self._ledger.take_epoch(permit)

    def has_taken(self, taking: EpochClaim) -> bool:
        return self._ledger.has_taken(taking)

    def may_have_taken(self, taking: EpochClaim) -> bool:
        """Its ledger and its lease lie in one folder."""
        return True

    def confirm(self) -> None:
        self._ledger.files.confirmed()

    def store_ms(self) -> int | None:
        return self._store_time.now_ms()

    def dated_ms(self) -> int:
        """The time for what is written: by the store's clock, by this machine's where the store cannot be
        asked."""
        store_ms = self._store_time.now_ms()
        return self._clock.now_ms() if store_ms is None else store_ms

    def coordinator(self) -> CoordinatorStatus:
        ledger, found = self.ledger(), self._lease.read()
        epoch = 0 if ledger is None else ledger.epoch
        if found is None or found.lease is None:
            return without_lease(epoch)
        return judge_lease(epoch, found.lease, found.written_ms, self.store_ms)
