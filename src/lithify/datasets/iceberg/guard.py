"""Whether a coordinator of a table may be alive.

Only Lithify coordinates a table, so its lease tells: one that has not ended belongs to a run that may be
alive. No two of them can publish the same files twice.
"""

from __future__ import annotations

from lithify.clock import Clock
from lithify.datasets.coordinating import CoordinatorLease
from lithify.datasets.iceberg.dataset import IcebergDataset
from lithify.ids import Ids


class TableGuard(CoordinatorLease):
    """Guards one table on behalf of one process."""

    def __init__(self, dataset: IcebergDataset, clock: Clock, ids: Ids) -> None:
        super().__init__(dataset.store, dataset.root, dataset.url, clock, ids)
        self._dataset = dataset

    def enter(self, *, take_over: bool) -> str | None:
        """Announce that this process is about to coordinate. `CoordinatorAlive` when another one is.
        Gives the holder of a lease that ended without being given back."""
        ledger = self._dataset.ledger()
        lease = self.read()
        if lease is not None and not take_over:
            self.wait_for_end(lease)
        return self.take(ledger.epoch if ledger is not None else 0, lease)
