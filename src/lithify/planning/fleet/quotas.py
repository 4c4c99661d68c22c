"""How many of a queue's slots each member may fill: in proportion to what it has that is most urgent.

Several members admit into the same queue without speaking to each other. Each says from time to time how
much it has, by band, running or waiting (its *demand*), and works out everybody's part from that:

1. Band by band, the most urgent first: while the demand of a band fits what is left of the slots, all of it
   has a slot. The first band that does not fit shares what is left in proportion to demand (largest
   remainder; of equal ones the first by name).
2. Each member with demand may run `AHEAD` more than its part: so a slot that becomes free finds a hint
   already. While the queue has no slots at all, nobody may run any: what nobody would take is better planned
   later.
3. Of the slots that are not reserved, the parts are worked out in the same way: those are for ordinary work.

Invariants: the parts (without what is ahead) are never more than the slots. All who know the same demands
agree.
"""

from __future__ import annotations

from collections.abc import Mapping

from lithify.planning.fleet.priorities import PriorityClass
from lithify.planning.fleet.slots import Slots

AHEAD = 1

Demand = Mapping[PriorityClass, int]
"""How many wait or run, by band; 0 where it says nothing."""


def apportioned(seats: int, demands: Mapping[str, int]) -> dict[str, int]:
    """`seats` in proportion to `demands`, and none has more than it demands."""
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
    """Everybody's part of so many slots."""
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
    """What `member` may have admitted at the same time, running or on its board, into a queue with so many
    slots."""
    if slots <= 0 or not sum(demands.get(member, {}).values()):
        return Slots(0, 0)
    open_slots = max(1, slots - max(0, reserved))
    total = parts(slots, demands)[member] + AHEAD
    return Slots(total, min(total, parts(open_slots, demands)[member] + AHEAD))


def tenant_cap(member: str, cap: int, demands: Mapping[str, int]) -> int:
    """How much of a tenant's cap is `member`'s, when the tenant has these demands at all of them. At least
    1: a cap below the number of members is exceeded rather than that the work of one waits for ever."""
    return max(1, apportioned(cap, demands).get(member, 0))
