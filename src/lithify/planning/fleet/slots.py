"""Slots: how many compactions may run, and how many slots are reserved for small or urgent ones.

Of `total` slots only `open` may be used by ordinary work. The rest is the *reserve*: for small work and for
writers near a stall (`lithify.planning.fleet.pending_tasks`), which may use the open ones as well. So these
never wait for ordinary work to end.

A queue's reserve is a number of its slots over all workers. Each worker computes its part by itself: the
workers that have served longest hold it, by the order of their names (ULIDs), and one slot of the queue is
always open. So a new worker changes nothing for those before it.

In a queue of very small compactions several *share* a slot: each uses a part of it. A queue's slots are
counted in its own compactions, so the same worker slots are more slots for such a queue than for another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Usage:
    """How many compactions run."""

    total: int = 0
    ordinary: int = 0
    """Those among them that must not use the reserve."""

    def plus(self, *, may_use_reserve: bool) -> Usage:
        """Return the usage with one more compaction."""
        return Usage(self.total + 1, self.ordinary + (not may_use_reserve))


@dataclass(frozen=True, slots=True)
class Slots:
    """How many compactions may run."""

    total: int
    open: int
    """Those among them that ordinary work may use."""

    def allow(self, usage: Usage, *, may_use_reserve: bool) -> bool:
        """Return whether one more compaction may run in addition to `usage`."""
        return usage.total < self.total and (may_use_reserve or usage.ordinary < self.open)


def reserved_of(worker: str, slots: Mapping[str, int], reserved: int) -> int:
    """Return how many of its slots `worker` reserves, given the slots of all workers that serve the queue and
    the queue's reserve."""
    left = max(0, min(reserved, sum(slots.values()) - 1))
    for name in sorted(slots):
        part = min(left, slots[name])
        if name == worker:
            return part
        left -= part
    return 0


def left_for(total: int, used: Fraction, per_slot: int, reserved: int = 0) -> int:
    """Return how many more compactions fit if `per_slot` of them share a slot, `used` of `total` slots are in
    use, and room for `reserved` compactions must stay free."""
    return max(0, int((total - used) * per_slot) - reserved)
