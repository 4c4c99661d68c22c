"""Notifications of idle workers: of a hundred, a new task offer reaches the one it is meant for, and a few
others.

If every idle worker read all boards at each notification, a hundred of them would cost more than all the rest
of a fleet. So a notification (`Ring`) names the board with new offers, and the workers they are for:

1. It notifies the workers that the new offers name.
2. It notifies about `BACKUPS` others, which differ each time: if a named worker is gone, one of them finds
the offer again when its delay is over (`task_offers.delay_ms`).
3. If an offer is for no particular worker, because none was idle when it was published, it notifies all
workers: those that are idle by now are few.
4. The last `MAX_RINGS` notifications are kept, so a worker that polls every second misses none. A worker that
finds no notification it knows may have missed some, and reads all boards.

Notifications may be lost; then the boards are read a little later (`polling`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from lithify.base.documents import Count, Name
from lithify.planning.fleet.placement import fraction
from lithify.planning.fleet.task_offers import ClaimOffer

MAX_RINGS = 8
BACKUPS = 3


@dataclass(frozen=True, slots=True)
class Ring:
    """A notification that a member has published new task offers."""

    id: str
    """Unique."""
    board: Name
    """The member whose board it is."""
    workers: tuple[str, ...] = ()
    """The workers that the new offers are for."""
    is_open: bool = False
    """Whether one of them is for no particular worker."""
    idle_workers: Count = 0
    """How many workers had a free slot."""

    def wakes(self, worker: str) -> bool:
        """Return whether `worker` should read the board now."""
        if self.is_open or worker in self.workers:
            return True
        return fraction(worker, self.id) * self.idle_workers < BACKUPS


def ring_of(ring_id: str, board: str, new: Iterable[ClaimOffer]) -> Ring:
    """Return the notification of these new task offers."""
    hints = tuple(new)
    workers = dict.fromkeys(hint.worker for hint in hints if hint.worker is not None)
    return Ring(
        ring_id,
        board,
        tuple(workers),
        any(hint.worker is None for hint in hints),
        max((hint.idle_workers for hint in hints), default=0),
    )


def added(before: Sequence[Ring], ring: Ring) -> tuple[Ring, ...]:
    """Return the kept notifications after adding one."""
    return (*before, ring)[-MAX_RINGS:]


def unheard(rings: Sequence[Ring], known: Collection[str]) -> tuple[Ring, ...] | None:
    """Return the notifications that are new to a worker that knows the ids of all earlier ones; `None` if it
    may have missed others."""
    new = tuple(ring for ring in rings if ring.id not in known)
    has_lost_thread = len(new) == len(rings) and (bool(known) or len(rings) >= MAX_RINGS)
    return None if has_lost_thread else new
