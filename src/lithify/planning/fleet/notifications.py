"""Whom a bell wakes: of a hundred idle workers those that a new hint is for, and a few besides.

If every idle worker read all boards at each ring, a hundred of them would cost more than all the rest of a
fleet. So a *ring* says which board has something new, and for whom it is:

1. It wakes the workers that the new hints name.
2. It wakes about `BACKUPS` others, who differ from ring to ring: should one that was named be gone, one of
   them finds the hint again when its time has come (`hints.delay_ms`).
3. Where a hint is for nobody, because nobody was idle when it was put up, it wakes everybody: those who are
   idle by now are few.
4. The bell has the last `MAX_RINGS` rings, so who asks every second misses none. Who finds none that it knows
   may have missed some, and looks at all boards.

Rings may be lost; then the boards are read a little later (`asking`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from lithify.planning.fleet.placement import fraction
from lithify.planning.fleet.task_offers import Hint

MAX_RINGS = 8
BACKUPS = 3


@dataclass(frozen=True, slots=True)
class Ring:
    """A member has put up something new."""

    id: str
    """Another one each time."""
    board: str
    """The member whose board it is."""
    workers: tuple[str, ...] = ()
    """Whom the new hints are for."""
    is_open: bool = False
    """Whether one of them is for nobody."""
    idle_workers: int = 0
    """How many had a free slot."""

    def wakes(self, worker: str) -> bool:
        """Whether `worker` is to look at the board now."""
        if self.is_open or worker in self.workers:
            return True
        return fraction(worker, self.id) * self.idle_workers < BACKUPS


def ring_of(ring_id: str, board: str, new: Iterable[Hint]) -> Ring:
    """The ring for these new hints."""
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
    """What the bell has after a ring."""
    return (*before, ring)[-MAX_RINGS:]


def unheard(rings: Sequence[Ring], known: Collection[str]) -> tuple[Ring, ...] | None:
    """Those that are new to who knows the ids of all before; `None` when there may have been others."""
    new = tuple(ring for ring in rings if ring.id not in known)
    has_lost_thread = len(new) == len(rings) and (bool(known) or len(rings) >= MAX_RINGS)
    return None if has_lost_thread else new
