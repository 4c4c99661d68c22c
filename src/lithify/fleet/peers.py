"""Slots and demands by queue, summed up from the heartbeats of a fleet's live members."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from lithify.fleet.members import FleetMember, FleetRole
from lithify.planning.fleet.pace import mean_pace
from lithify.planning.fleet.priorities import PriorityClass
from lithify.planning.fleet.quotas import Demand


@dataclass(frozen=True, slots=True)
class PeerSummary:
    """The reports of the other members."""

    slots: Mapping[str, int] = field(default_factory=dict)
    """Slots of live workers, by queue id."""
    free: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Idle slots of live workers, by queue id and worker."""
    demands: Mapping[str, Mapping[str, Demand]] = field(default_factory=dict)
    """Demands of live coordinators, by queue id and coordinator."""
    tenant_demands: Mapping[str, Mapping[str, Mapping[str | None, int]]] = field(default_factory=dict)
    """Demands of live coordinators, by queue id, coordinator and tenant."""
    paces: Mapping[str, int] = field(default_factory=dict)
    """The pace of live workers that know theirs, by queue id, in bytes per second and slot."""

    @classmethod
    def of(cls, members: Iterable[FleetMember]) -> PeerSummary:
        """Sum up the reports of these members."""
        slots: Counter[str] = Counter()
        free: dict[str, dict[str, int]] = {}
        demands: dict[str, dict[str, Demand]] = {}
        tenant_demands: dict[str, dict[str, dict[str | None, int]]] = {}
        paces: dict[str, list[int]] = {}
        for member in members:
            for queue_id, load in member.load.items():
                if member.role is FleetRole.WORKER:
                    slots[queue_id] += load.slots
                    free.setdefault(queue_id, {})[member.name] = load.slots - load.total.running
                    paces.setdefault(queue_id, []).append(load.bytes_per_s)
                else:
                    demand = {band: load.demand.get(band, 0) for band in PriorityClass}
                    demands.setdefault(queue_id, {})[member.name] = demand
                    by_tenant = {tenant: amounts.demand for tenant, amounts in load.tenants.items()}
                    tenant_demands.setdefault(queue_id, {})[member.name] = by_tenant
        known = {queue_id: pace for queue_id, of in paces.items() if (pace := mean_pace(of))}
        return cls(slots, free, demands, tenant_demands, known)
