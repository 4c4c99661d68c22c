"""Which coordinator a database has, and whether it is alive, as far as that can be seen (pure).

SlateDB's coordinator at rest writes nothing, so nothing shows whether one is alive. Lithify's keeps a
lease: an epoch that no lease names was taken by SlateDB's.
"""

from __future__ import annotations

from lithify.compaction.presence import CoordinatorStatus, Presence
from lithify.datasets.coordinating import judge_lease
from lithify.store.leases import Lease


def judge(epoch: int, lease: Lease | None, now_ms: int) -> CoordinatorStatus:
    """What the compactor epoch of the manifest and a lease tell."""
    if lease is None or epoch not in (lease.epoch, lease.base_epoch):
        return CoordinatorStatus(Presence.NEVER if epoch == 0 else Presence.SLATEDB, epoch)
    return judge_lease(epoch, lease, now_ms)
