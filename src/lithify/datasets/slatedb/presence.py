"""Which coordinator a database has, and whether it is alive, as far as that can be seen.

SlateDB's coordinator at rest writes nothing, so nothing shows whether one is alive. Lithify's keeps a
lease: one that has ended without being given back belongs to a process that was killed or hangs.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from lithify.datasets.coordinating import lease_key
from lithify.datasets.slatedb.dataset import SlateDataset
from lithify.store.leases import Lease, read_lease


class Presence(Enum):
    """What is known of a database's coordinator."""

    NEVER = "none has ever run"
    ALIVE = "Lithify's, alive"
    STOPPED = "Lithify's, stopped"
    LOST = "Lithify's, silent: killed, or hanging"
    SLATEDB = "SlateDB's, if its process is still open"


@dataclass(frozen=True, slots=True)
class CoordinatorStatus:
    """The coordinator of a database."""

    presence: Presence
    epoch: int
    holder: str | None = None
    """The name of Lithify's process."""
    lease_ends_ms: int | None = None
    """When its lease ends, or ended; wall-clock milliseconds."""

    @property
    def is_alive(self) -> bool | None:
        """`None` when that cannot be known."""
        if self.presence is Presence.SLATEDB:
            return None
        return self.presence is Presence.ALIVE


def coordinator_status(dataset: SlateDataset, epoch: int, now_ms: int) -> CoordinatorStatus:
    """The coordinator of `dataset`, whose manifest has the compactor epoch `epoch`."""
    return judge(epoch, read_lease(dataset.store, lease_key(dataset.paths.root)), now_ms)


def judge(epoch: int, lease: Lease | None, now_ms: int) -> CoordinatorStatus:
    """What an epoch and a lease tell (pure)."""
    if lease is None or epoch not in (lease.epoch, lease.base_epoch):
        return CoordinatorStatus(Presence.NEVER if epoch == 0 else Presence.SLATEDB, epoch)
    if lease.is_live(now_ms):
        presence = Presence.ALIVE
    elif lease.expires_at_ms == 0:
        presence = Presence.STOPPED
    else:
        presence = Presence.LOST
    return CoordinatorStatus(presence, epoch, lease.holder, lease.expires_at_ms or None)
