"""Whether a coordinator of a table may be alive, and how a coordinator announces itself.

Only Lithify coordinates a table, so the lease at `lithify/coordinator.json` tells: one that has not ended
belongs to a run that may be alive. It is given until its end; if it is renewed, the run is. Nothing depends
on it but politeness: an older coordinator is fenced by the epoch of the ledger, and no two of them can
publish the same files twice.
"""

from __future__ import annotations

from dataclasses import replace

from lithify.clock import Clock
from lithify.datasets.iceberg.dataset import IcebergDataset
from lithify.errors import CoordinatorAlive
from lithify.ids import Ids
from lithify.store.keys import join
from lithify.store.leases import Lease, read_lease, write_lease

LEASE_MS = 10_000
RENEW_AFTER_MS = 3_000


class TableGuard:
    """Guards one table on behalf of one process."""

    def __init__(self, dataset: IcebergDataset, clock: Clock, ids: Ids) -> None:
        self._dataset = dataset
        self._clock = clock
        self._key = join(dataset.root, "lithify", "coordinator.json")
        self._holder = f"lithify-{ids.ulid(clock.now_ms())}"
        self._held: Lease | None = None

    @property
    def holder(self) -> str:
        """The name this process goes by, in the lease and as a worker."""
        return self._holder

    def enter(self, *, take_over: bool) -> str | None:
        """Announce that this process is about to coordinate. `CoordinatorAlive` when another one is.
        Gives the holder of a lease that ended without being given back."""
        ledger = self._dataset.ledger()
        epoch = ledger.epoch if ledger is not None else 0
        lease = read_lease(self._dataset.store, self._key)
        if lease is not None and not take_over:
            self._wait_for_end(lease)
        self._write(Lease(self._holder, epoch + 1, epoch, self._clock.now_ms() + LEASE_MS))
        return lease.holder if lease is not None and lease.expires_at_ms else None

    def hold(self, epoch: int) -> None:
        """Announce this coordinator; renews the lease when it is time to."""
        now_ms = self._clock.now_ms()
        held = self._held
        if held is None or held.epoch != epoch or now_ms >= held.expires_at_ms - LEASE_MS + RENEW_AFTER_MS:
            self._write(Lease(self._holder, epoch, epoch - 1, now_ms + LEASE_MS))

    def give_back(self) -> None:
        """End the lease, so that the next run need not wait. Nothing is written over another's."""
        held, self._held = self._held, None
        current = read_lease(self._dataset.store, self._key)
        if held is not None and current is not None and current.holder == self._holder:
            write_lease(self._dataset.store, self._key, replace(held, expires_at_ms=0))

    def _wait_for_end(self, lease: Lease) -> None:
        wait_ms = lease.expires_at_ms - self._clock.now_ms()
        if wait_ms <= 0:
            return
        self._clock.sleep_s(min(wait_ms, LEASE_MS) / 1000)
        renewed = read_lease(self._dataset.store, self._key)
        if renewed is not None and renewed.is_live(self._clock.now_ms()):
            raise CoordinatorAlive(
                f"another Lithify run (epoch {renewed.epoch}) is compacting {self._dataset.url} right now; "
                "wait for it, or stop it with --take-over"
            )

    def _write(self, lease: Lease) -> None:
        write_lease(self._dataset.store, self._key, lease)
        self._held = lease
