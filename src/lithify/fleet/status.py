"""The status of a fleet: its members and the contents of its queues.

Reads only, except for writing the object whose timestamp shows the store's time: all ages are by that
clock, so liveness depends neither on this machine's clock nor on which member wrote last. Numbers of
waiting tasks come from the coordinators' task offers and heartbeats: seconds old, and without those of a
silent coordinator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lithify.fleet.catalog.files import Numbered
from lithify.fleet.catalog.model import DatasetRule, Queue, QueueState
from lithify.fleet.files import FleetFiles
from lithify.fleet.members import (
    Amounts,
    FleetMember,
    FleetRole,
    ListedMember,
    Load,
    OverdueDataset,
    combined,
)
from lithify.planning.fleet.task_offers import ClaimOffer
from lithify.protocol.model import CompactionState
from lithify.protocol.transitions import AnyLedger


@dataclass(frozen=True, slots=True)
class MemberStatus:
    seen: ListedMember
    says: FleetMember | None
    """The heartbeat; `None` if it cannot be read."""


@dataclass(frozen=True, slots=True)
class QueueStatus:
    queue: Queue
    hints: tuple[ClaimOffer, ...]
    """Claimable tasks, the most urgent first."""
    workers: int
    """The number of live workers that serve the queue."""
    slots: int
    resting: int
    """The number of pending tasks that back off after a failure."""
    tenants: Mapping[str | None, Amounts]
    """Amounts of live members, by tenant; `None` has the tenants that are not reported by name. As of the
    last heartbeats, so up to `BEAT_EVERY_MS` older than the offers."""

    @property
    def total(self) -> Amounts:
        """The sum over all tenants."""
        return combined(self.tenants.values())

    @property
    def running(self) -> int:
        return self.total.running

    @property
    def waiting(self) -> int:
        """The number of pending tasks that are not admitted yet."""
        return self.total.waiting

    @property
    def deferred(self) -> int:
        """The number of pending tasks that did not fit into the backlog; they are offered again."""
        return self.total.deferred

    @property
    def queued_bytes(self) -> int:
        return sum(hint.bytes for hint in self.hints)

    @property
    def is_unserved(self) -> bool:
        """Whether tasks wait and no worker serves the queue."""
        has_work = bool(self.hints or self.waiting or self.deferred)
        return not self.workers and has_work and self.queue.state is not QueueState.PAUSED


@dataclass(frozen=True, slots=True)
class FleetStatus:
    url: str
    at_ms: int
    """The time by the store's clock (`is_timed`), or by this machine's if the store could not be asked."""
    catalog: Numbered
    members: tuple[MemberStatus, ...]
    queues: tuple[QueueStatus, ...]
    wakes: int
    """The number of refresh requests."""
    is_timed: bool = True
    """Whether the store has reported its time. If not, a member is known to be silent only if another has
    written since."""
    off_ms: int = 0
    """How far this machine's clock is ahead of the store's."""

    @property
    def overdue(self) -> tuple[OverdueDataset, ...]:
        """Datasets with work that is wanted and not under way, as live coordinators report them."""
        alive = (member.says for member in self.members if member.seen.is_alive)
        found = (one for says in alive if says is not None for one in says.overdue)
        return tuple(sorted(found, key=lambda one: (not one.is_stalling, not one.near_limit, one.url)))

    @property
    def overdue_count(self) -> tuple[int, int]:
        """The number of all such datasets: coordinated elsewhere, and near their limit."""
        alive = [m.says for m in self.members if m.seen.is_alive and m.says is not None]
        return sum(says.elsewhere for says in alive), sum(says.near_limit for says in alive)

    def queue(self, name: str) -> QueueStatus:
        """Return the queue of that name, which exists."""
        return next(status for status in self.queues if status.queue.name == name)


@dataclass(frozen=True, slots=True)
class RunningStatus:
    """A running compaction."""

    url: str
    compaction: str
    worker: str
    queue: str | None = None
    """The name of the queue; `None` if unknown or deleted."""
    running_ms: int | None = None
    """How long it has been running; `None` if unknown."""
    bytes: int | None = None
    """The size of its inputs."""
    tenant: str | None = None


def running(status: FleetStatus) -> tuple[RunningStatus, ...]:
    """Return the running compactions that live workers report, the longest running first."""
    catalog = status.catalog.catalog
    names = {queue.id: queue.name for queue in catalog.queues}
    found = [
        RunningStatus(
            url=one.url,
            compaction=one.compaction,
            worker=member.seen.name,
            queue=names.get(one.queue_id),
            running_ms=max(0, member.says.at_ms - one.since_ms),
            bytes=one.bytes,
            tenant=one.tenant,
        )
        for member in status.members
        if member.seen.is_alive and member.says is not None
        for one in member.says.running
    ]
    return tuple(sorted(found, key=lambda one: (-(one.running_ms or 0), one.url)))


def running_in(url: str, rule: DatasetRule, ledger: AnyLedger | None) -> tuple[RunningStatus, ...]:
    """Return the running compactions according to a dataset's ledger."""
    return tuple(
        RunningStatus(url, c.id, c.worker.id if c.worker is not None else "", tenant=rule.tenant_of(url))
        for c in (ledger.active() if ledger is not None else ())
        if c.state is CompactionState.RUNNING
    )


def fleet_status(files: FleetFiles, now_ms: int) -> FleetStatus:
    """Return the current status of the fleet. `now_ms`: the time by this machine's clock."""
    catalog = files.catalog.read()
    listed = files.members.listed(files.store_time.now_ms)
    store_ms = files.store_time.now_ms() if listed else now_ms
    alive = [seen.says for seen in listed if seen.is_alive and seen.says is not None]
    queues = tuple(_queue_status(files, queue, alive) for queue in catalog.catalog.queues)
    members = tuple(MemberStatus(seen, seen.says) for seen in listed)
    return FleetStatus(
        files.url,
        now_ms if store_ms is None else store_ms,
        catalog,
        members,
        queues,
        len(files.wakes.listed()),
        is_timed=store_ms is not None,
        off_ms=0 if store_ms is None else now_ms - store_ms,
    )


def _queue_status(files: FleetFiles, queue: Queue, alive: list[FleetMember]) -> QueueStatus:
    workers = [_load(m.load, queue) for m in alive if m.role is FleetRole.WORKER and queue.id in m.load]
    coordinators = [_load(m.load, queue) for m in alive if m.role is FleetRole.COORDINATOR]
    parts: dict[str | None, list[Amounts]] = {}
    for load in (*coordinators, *workers):
        for tenant, amounts in load.tenants.items():
            parts.setdefault(tenant, []).append(amounts)
    return QueueStatus(
        queue,
        files.boards.read(queue.id),
        workers=len(workers),
        slots=sum(load.slots for load in workers),
        resting=sum(load.resting for load in coordinators),
        tenants={tenant: combined(of) for tenant, of in sorted(parts.items(), key=_by_name)},
    )


def _by_name(part: tuple[str | None, object]) -> tuple[bool, str]:
    """Sort key: parts without a name last."""
    return part[0] is None, part[0] or ""


def _load(load: Mapping[str, Load], queue: Queue) -> Load:
    return load.get(queue.id, Load())
