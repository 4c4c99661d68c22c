"""Whether a coordinator of a SlateDB database may be alive, and how Lithify announces its own.

Starting a coordinator raises the compactor epoch, and a SlateDB process that has a coordinator inside
is closed by that. A coordinator at rest writes nothing, so looking cannot show that there is none. What
can be known:

1. Epoch 0: none has ever run.
2. The newest epoch is one Lithify took, by the lease it keeps at `lithify/coordinator.json`: every
   older coordinator is fenced already, and the lease tells whether that Lithify run is alive. One that
   looks alive is given until its lease ends; if it renews it, it is.
3. Any other epoch belongs to a coordinator that may be alive: refuse, unless told to take over.
"""

from __future__ import annotations

from lithify.clock import Clock
from lithify.datasets.slatedb.dataset import SlateDataset
from lithify.errors import CoordinatorAlive
from lithify.ids import Ids
from lithify.store.keys import join
from lithify.store.leases import Lease, read_lease, write_lease

LEASE_MS = 10_000
RENEW_AFTER_MS = 3_000


class CoordinatorGuard:
    """Guards one database on behalf of one process."""

    def __init__(self, dataset: SlateDataset, clock: Clock, ids: Ids) -> None:
        self._dataset = dataset
        self._clock = clock
        self._key = join(dataset.paths.root, "lithify", "coordinator.json")
        self._holder = ids.ulid(clock.now_ms())
        self._held: Lease | None = None

    def check(self, *, take_over: bool) -> None:
        """`CoordinatorAlive` when another coordinator may be at work and is not to be replaced."""
        epoch = self._dataset.snapshot().compactor_epoch
        if epoch == 0 or take_over:
            return
        lease = read_lease(self._dataset.store, self._key)
        if lease is None or lease.epoch != epoch:
            url = self._dataset.url
            raise CoordinatorAlive(
                f"a SlateDB coordinator has run on {url} (epoch {epoch}) and may still be running. "
                "If the process that holds the database was opened without compactor_options, or is closed, "
                f"run again with --take-over; if it may be alive, help it instead: lithify worker {url}"
            )
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

    def hold(self, epoch: int) -> None:
        """Announce this coordinator; renews the lease when it is time to."""
        now_ms = self._clock.now_ms()
        held = self._held
        if (
            held is not None
            and held.epoch == epoch
            and held.expires_at_ms - now_ms > LEASE_MS - RENEW_AFTER_MS
        ):
            return
        self._held = Lease(self._holder, epoch, now_ms + LEASE_MS)
        write_lease(self._dataset.store, self._key, self._held)

    def give_back(self) -> None:
        """End the lease, so that the next run need not wait. Its epoch stays, as the mark that the
        newest epoch was Lithify's. Nothing is written over another run's lease."""
        if self._held is None:
            return
        current = read_lease(self._dataset.store, self._key)
        if current is not None and current.holder == self._holder:
            write_lease(self._dataset.store, self._key, Lease(self._holder, self._held.epoch, 0))
        self._held = None
