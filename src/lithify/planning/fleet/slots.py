"""Slots: how many compactions may run, how many slots are reserved for small or urgent ones, and how many
each member may fill.

Of `total` slots only `open` may be used by ordinary work. The rest is the *reserve*: for small work and for
writers near a stall (`lithify.planning.fleet.pending_tasks`), which may use the open ones as well. So these
never wait for ordinary work to end.

A queue's reserve is a number of its slots over all workers. Each worker computes its part by itself: the
workers that have served longest hold it, by the order of their names (ULIDs), and one slot of the queue is
always open. So a new worker changes nothing for those before it.

In a queue of very small compactions several *share* a slot: each uses a part of it. A queue's slots are
counted in its own compactions, so the same worker slots are more slots for such a queue than for another.

*Quotas*: each member may fill a part of a queue's slots, in proportion to its most urgent work. Several
members admit into the same queue without communicating directly. Each publishes from time to time how much
work it has, by priority class, running or waiting (its *demand*), and computes all members' parts from that:

1. Class by class, the most urgent first: while the demand of a class fits the remaining slots, all of it has
a slot. The first class that does not fit shares the remaining slots in proportion to demand (largest
remainder; among equals the first by name).
2. Each member with demand may run `AHEAD` more than its part, so that a slot that becomes free finds a task
offer already. While the queue has no slots at all, no member may run any: work that no worker would claim is
better planned later.
3. The parts of the slots that are not reserved are computed in the same way: those are for ordinary work.

Invariants: the sum of the parts (without `AHEAD`) never exceeds the slots. All members that know the same
demands agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from lithify.planning.fleet.priorities import PriorityClass


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


AHEAD = 1

Demand = Mapping[PriorityClass, int]
"""How many tasks wait or run, by priority class; 0 for missing keys."""


def apportioned(seats: int, demands: Mapping[str, int]) -> dict[str, int]:
    """Return `seats` divided in proportion to `demands`; no share exceeds its demand."""
    demands = {name: max(0, demand) for name, demand in demands.items()}
    total = sum(demands.values())
    if total <= seats:
        return demands
    parts = {name: seats * demand // total for name, demand in demands.items()}
    by_remainder = sorted(demands, key=lambda name: (-(seats * demands[name] % total), name))
    for name in by_remainder[: seats - sum(parts.values())]:
        parts[name] += 1
    return parts


def parts(slots: int, demands: Mapping[str, Demand]) -> dict[str, int]:
    """Return each member's part of the slots."""
    found = dict.fromkeys(demands, 0)
    left = max(0, slots)
    for band in PriorityClass:
        for name, part in apportioned(
            left, {name: demand.get(band, 0) for name, demand in demands.items()}
        ).items():
            found[name] += part
        left = max(0, slots) - sum(found.values())
    return found


def quota(member: str, slots: int, reserved: int, demands: Mapping[str, Demand]) -> Slots:
    """Return how many tasks `member` may have admitted at the same time, running or on its board, into a
    queue with `slots` slots."""
    if slots <= 0 or not sum(demands.get(member, {}).values()):
        return Slots(0, 0)
    open_slots = max(1, slots - max(0, reserved))
    total = parts(slots, demands)[member] + AHEAD
    return Slots(total, min(total, parts(open_slots, demands)[member] + AHEAD))


def tenant_cap(member: str, cap: int, demands: Mapping[str, int]) -> int:
    """Return the part of a tenant's cap that `member` may use, given the tenant's demands at all members. At
    least 1: a cap below the number of members is exceeded, so that no member's work waits for ever."""
    return max(1, apportioned(cap, demands).get(member, 0))
