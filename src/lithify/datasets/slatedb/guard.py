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
"""

from __future__ import annotations

from lithify.clock import Clock
from lithify.datasets.coordinating import CoordinatorLease
from lithify.datasets.slatedb.dataset import SlateDataset
from lithify.errors import CoordinatorAlive
from lithify.ids import Ids


class CoordinatorGuard(CoordinatorLease):
    """Guards one database on behalf of one process."""

    def __init__(self, dataset: SlateDataset, clock: Clock, ids: Ids) -> None:
        super().__init__(dataset.store, dataset.paths.root, dataset.url, clock, ids)
        self._dataset = dataset

    def enter(self, *, take_over: bool) -> str | None:
        """Announce the next epoch as this process's. `CoordinatorAlive`, before anything is written,
        when another coordinator may be at work and is not to be replaced. Gives the holder of a lease
        that ended without being given back."""
        snapshot = self._dataset.snapshot()
        epoch = snapshot.compactor_epoch
        is_untouched = epoch == 0 or (bool(snapshot.external_dbs) and self._dataset.ledger() is None)
        lease = self.read()
        is_ours = lease is not None and epoch in (lease.epoch, lease.base_epoch)
        if not take_over and not is_untouched and not is_ours:
            url = self._dataset.url
            raise CoordinatorAlive(
                f"a SlateDB coordinator has run on {url} (epoch {epoch}) and may still be running. "
                "If the process that holds the database was opened without compactor_options, or is closed, "
                f"run again with --take-over; if it may be alive, help it instead: lithify worker {url}"
            )
        if not take_over and lease is not None and is_ours:
            self.wait_for_end(lease)
        return self.take(epoch, lease)
