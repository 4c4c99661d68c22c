"""How many may run, and how many of these are kept for what is small or urgent.

Of `total` slots only `open` may be used by ordinary work. The rest is the *reserve*: for small work and for
writers near a stall (`lithify.planning.fleet.pending_tasks`), which may use the open ones as well. So
ordinary work never makes these wait for its end.

A queue's reserve is a number of its slots over all workers. Each worker works out its part by itself: the
workers that have served longest hold it, by the order of their names (ULIDs), and one slot of the queue is
always open. So a worker that comes changes nothing for those before it.

Of a queue whose compactions are very small several *share* a slot: each takes a part of it. A queue's slots
are counted in its own compactions, so the same room is more slots for such a queue than for another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Usage:
    """How many run."""

    total: int = 0
    ordinary: int = 0
    """Of these, those that must not use the reserve."""

    def plus(self, *, may_use_reserve: bool) -> Usage:
        """With one more."""
        return Usage(self.total + 1, self.ordinary + (not may_use_reserve))


@dataclass(frozen=True, slots=True)
class Slots:
    """How many may run."""

    total: int
    open: int
    """Of these, those for ordinary work."""

    def allow(self, usage: Usage, *, may_use_reserve: bool) -> bool:
        """Whether one more may run beside what does."""
        return usage.total < self.total and (may_use_reserve or usage.ordinary < self.open)


def reserved_of(worker: str, slots: Mapping[str, int], reserved: int) -> int:
    """How many of its slots `worker` reserves, when all who serve the queue have these and the queue
    reserves so many."""
    left = max(0, min(reserved, sum(slots.values()) - 1))
    for name in sorted(slots):
        part = min(left, slots[name])
        if name == worker:
            return part
        left -= part
    return 0


def left_for(total: int, used: Fraction, per_slot: int, reserved: int = 0) -> int:
    """How many more compactions have room of which `per_slot` share a slot, when of `total` slots these are
    used, and room for so many of them is not to be taken."""
    return max(0, int((total - used) * per_slot) - reserved)
