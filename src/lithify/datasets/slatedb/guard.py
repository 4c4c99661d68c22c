"""Whether a coordinator of a SlateDB database may be alive, and how Lithify announces its own.

Starting a coordinator raises the compactor epoch, and a SlateDB process that has a coordinator inside
is closed by that. A coordinator at rest writes nothing, so looking cannot show that there is none. What
can be known:

1. Epoch 0: none has ever run. Nor has one on a clone without a compactions file: the epoch of a clone is
   its parent's, and the first thing a coordinator does with the next is to make that file.
2. The newest epoch is one Lithify took, by the lease it keeps at `lithify/coordinator.json`: every
   older coordinator is fenced already, and the lease tells whether that Lithify run is alive. One that
   looks alive is given until its lease ends; if it renews it, it is.
3. Any other epoch belongs to a coordinator that may be alive: refuse, unless told to take over.

The lease is written before the epoch is taken and names both the epoch found free and the next one, so
that a run that dies in between is recognised too.
"""

from __future__ import annotations

from dataclasses import replace

from lithify.clock import Clock
from lithify.datasets.slatedb.dataset import SlateDataset
from lithify.datasets.slatedb.paths import DatabasePaths
from lithify.errors import CoordinatorAlive
from lithify.ids import Ids
from lithify.store.keys import join
from lithify.store.leases import Lease, read_lease, write_lease

LEASE_MS = 10_000
RENEW_AFTER_MS = 3_000


def lease_key(paths: DatabasePaths) -> str:
    """The object in which Lithify's coordinator shows that it is alive."""
    return join(paths.root, "lithify", "coordinator.json")


class CoordinatorGuard:
    """Guards one database on behalf of one process."""

    def __init__(self, dataset: SlateDataset, clock: Clock, ids: Ids) -> None:
        self._dataset = dataset
        self._clock = clock
        self._key = lease_key(dataset.paths)
        self._holder = f"lithify-{ids.ulid(clock.now_ms())}"
        self._held: Lease | None = None

    @property
    def holder(self) -> str:
        """The name this process goes by, in the lease and as a worker."""
        return self._holder

    def enter(self, *, take_over: bool) -> str | None:
        """Announce the next epoch as this process's. `CoordinatorAlive`, before anything is written,
        when another coordinator may be at work and is not to be replaced. Gives the holder of a lease
        that ended without being given back."""
        snapshot = self._dataset.snapshot()
        epoch = snapshot.compactor_epoch
        is_untouched = epoch == 0 or (bool(snapshot.external_dbs) and self._dataset.ledger() is None)
        lease = read_lease(self._dataset.store, self._key)
        is_ours = lease is not None and epoch in (lease.epoch, lease.base_epoch)
        if not take_over and not is_untouched and not is_ours:
            url = self._dataset.url
            raise CoordinatorAlive(
                f"a SlateDB coordinator has run on {url} (epoch {epoch}) and may still be running. "
                "If the process that holds the database was opened without compactor_options, or is closed, "
                f"run again with --take-over; if it may be alive, help it instead: lithify worker {url}"
            )
        if not take_over and lease is not None and is_ours:
            self._wait_for_end(lease)
        self._write(Lease(self._holder, epoch + 1, epoch, self._clock.now_ms() + LEASE_MS))
        return lease.holder if lease is not None and lease.expires_at_ms else None

    def hold(self, epoch: int) -> None:
        """Announce this coordinator; renews the lease when it is time to."""
        now_ms = self._clock.now_ms()
        held = self._held
        renew_at_ms = held.expires_at_ms - LEASE_MS + RENEW_AFTER_MS if held is not None else now_ms
        if held is None or held.epoch != epoch or now_ms >= renew_at_ms:
            self._write(Lease(self._holder, epoch, epoch - 1, now_ms + LEASE_MS))

    def give_back(self) -> None:
        """End the lease, so that the next run need not wait. Its epoch stays, as the mark that the
        newest epoch was Lithify's. Nothing is written over another run's lease."""
        held, self._held = self._held, None
        current = read_lease(self._dataset.store, self._key)
        if held is not None and current is not None and current.holder == self._holder:
            write_lease(self._dataset.store, self._key, replace(held, expires_at_ms=0))

    def _wait_for_end(self, lease: Lease) -> None:
        """Wait until the lease has ended; `CoordinatorAlive` when its holder renews it."""
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
