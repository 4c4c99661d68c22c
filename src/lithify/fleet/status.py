"""What can be told of a fleet: its members, and what each queue has. Reads, and writes nothing.

Where it says how many wait, it goes by what the keepers have on their boards and say of themselves: seconds
old, and without what a silent keeper would have said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lithify.fleet.catalog import Queue, QueueState
from lithify.fleet.catalog_files import Numbered
from lithify.fleet.files import FleetFiles
from lithify.fleet.members import Load, Member, Role, Seen
from lithify.planning.fleet.hints import Hint


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """A member."""

    seen: Seen
    says: Member | None
    """`None` when it went, or cannot be read."""


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """A queue."""

    queue: Queue
    hints: tuple[Hint, ...]
    """What may be claimed, the most urgent first."""
    workers: int
    """Live ones that serve it."""
    slots: int
    running: int
    waiting: int
    """Wants that are not admitted yet."""
    deferred: int
    """Wants that the backlog had no place for; they are offered again."""

    @property
    def queued_bytes(self) -> int:
        return sum(hint.bytes for hint in self.hints)

    @property
    def is_unserved(self) -> bool:
        """Whether something waits for workers that are not there."""
        return not self.workers and bool(self.hints) and self.queue.state is not QueueState.PAUSED


@dataclass(frozen=True, slots=True)
class FleetStatus:
    """A fleet."""

    url: str
    at_ms: int
    catalog: Numbered
    members: tuple[MemberStatus, ...]
    queues: tuple[QueueStatus, ...]
    wakes: int
    """How many wait to be looked at now."""

    def queue(self, name: str) -> QueueStatus:
        """The queue of that name, which is there."""
        return next(status for status in self.queues if status.queue.name == name)


def fleet_status(files: FleetFiles, now_ms: int) -> FleetStatus:
    """How the fleet is now."""
    catalog = files.catalog.read()
    listed = files.members.listed()
    says = files.members.read(seen.name for seen in listed)
    alive = [says[seen.name] for seen in listed if seen.is_alive and seen.name in says]
    queues = tuple(_queue_status(files, queue, alive) for queue in catalog.catalog.queues)
    members = tuple(MemberStatus(seen, says.get(seen.name)) for seen in listed)
    return FleetStatus(files.url, now_ms, catalog, members, queues, len(files.wakes.listed()))


def _queue_status(files: FleetFiles, queue: Queue, alive: list[Member]) -> QueueStatus:
    workers = [_load(m.load, queue) for m in alive if m.role is Role.WORKER and queue.id in m.load]
    keepers = [_load(m.load, queue) for m in alive if m.role is Role.KEEPER]
    return QueueStatus(
        queue,
        files.boards.read(queue.id),
        workers=len(workers),
        slots=sum(load.slots for load in workers),
        running=sum(load.running for load in workers),
        waiting=sum(load.waiting for load in keepers),
        deferred=sum(load.deferred for load in keepers),
    )


def _load(load: Mapping[str, Load], queue: Queue) -> Load:
    return load.get(queue.id, Load())
