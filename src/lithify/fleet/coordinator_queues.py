"""A fleet coordinator's view of the queues: pending tasks of its datasets, and admission.

1. Pass the result of each poll of a dataset to the admission of its queue (`follow`,
   `lithify.planning.fleet.admission`). A task admitted to a queue stays in it as long as the queue exists.
2. Admit as much as the queue's workers have slots for, limited to this coordinator's share of all demand
   (`admit`). A paused queue admits nothing; a queue that drains or is deleted owns no tasks, so its pending
   tasks move to the next queue.
3. Report the amounts of each queue to the members (`loads`), by tenant, for a bounded number of tenants
   (`lithify.planning.fleet.labels`).
4. Record the catalog version that each admitted or running task was admitted under: this version is needed
   until the task has ended (`oldest_catalog`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lithify.base.clock import Clock, monotonic_ms
from lithify.fleet.catalog.files import Numbered
from lithify.fleet.catalog.model import Catalog, DatasetRule, Queue, QueueState
from lithify.fleet.demand import Demand
from lithify.fleet.members import Amounts, FleetMember, FleetRole, Load, combined
from lithify.planning.admission import WorkKey
from lithify.planning.fleet.admission import Active, QueueAdmission, QueueLimits
from lithify.planning.fleet.admission import TenantShare as TenantTreatment
from lithify.planning.fleet.labels import LabelLimiter
from lithify.planning.fleet.pace import backlog_ms, mean_pace
from lithify.planning.fleet.pending_tasks import PendingTask
from lithify.planning.fleet.priorities import PriorityClass, rank
from lithify.planning.fleet.routing import Routing
from lithify.planning.fleet.slots import Demand as MemberDemand
from lithify.planning.fleet.slots import quota, tenant_cap
from lithify.planning.fleet.task_offers import ClaimOffer
from lithify.planning.fleet.waits import NO_WAITS, Waits


@dataclass(slots=True)
class _Admitted:
    """A task that was admitted here or was seen running."""

    catalog: int
    """The catalog version at that time."""
    queue_id: str | None = None
    """The queue it was admitted to; `None` if another process admitted it."""


class OwnQueues:
    """The queues as the fleet coordinator of this name uses them."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._admissions: dict[str, QueueAdmission] = {}
        """By queue id."""
        self._admitted: dict[str, dict[WorkKey, _Admitted]] = {}
        """By dataset."""
        self._named = LabelLimiter()
        self._waits: dict[tuple[str, str | None], Waits] = {}
        """Waiting times of claimed tasks, by queue id and tenant."""
        self._paces: dict[str, int] = {}
        """The pace of the workers, or of the last ones if there are none now, by queue id."""

    def heard(self, others: PeerSummary) -> None:
        """Use these reports of the other members from now on."""
        self._paces |= others.paces

    # Results of polls

    def failed(self, key: WorkKey) -> None:
        """Record that the task has failed for good."""
        queue_id = self._queue_id_of(key)
        if queue_id in self._admissions:
            self._admissions[queue_id].failed(key, monotonic_ms(self._clock))

    def follow(
        self,
        demand: Demand,
        rule: DatasetRule,
        admitted: Collection[WorkKey],
        now: Numbered,
        *,
        is_known: bool,
    ) -> None:
        """Record the demand of a dataset, from which claimed work is already deducted, and the admitted part
        of its pending tasks. `is_known`: the dataset could be read, so it has no other active work."""
        routing = Routing(now.catalog.queues)
        for want, waited_ms in demand.take_claimed():
            self._name_tenants([want.tenant], now.catalog)
            place = self.queue_id(want, rule, routing, now.catalog), self._named.name(want.tenant)
            self._waits[place] = self._waits.get(place, NO_WAITS).plus(waited_ms)
        under_way = {one.want.key for one in demand.active} | set(admitted)
        if is_known:  # before routing: the next task of a unit does not stay in the queue of the last one
            self.forget_admitted(demand.url, under_way)
        wants: dict[str, list[PendingTask]] = {}
        active: dict[str, list[Active]] = {}
        for want in demand.wants:
            queue_id = self.queue_id(want, rule, routing, now.catalog)
            if want.key in admitted:
                active.setdefault(queue_id, []).append(Active(want))
            else:
                wants.setdefault(queue_id, []).append(want)
        for one in demand.active:
            active.setdefault(self.queue_id(one.want, rule, routing, now.catalog), []).append(one)
        for key in under_way:  # a task admitted by another process counts from when it is first seen
            self._admitted.setdefault(demand.url, {}).setdefault(key, _Admitted(now.number))
        now_ms = monotonic_ms(self._clock)
        for queue in now.catalog.queues:
            admission = self._admission(queue)
            admission.follow(demand.url, active.get(queue.id, ()))
            admission.offer(demand.url, wants.get(queue.id, ()), now_ms)

    def forget(self, url: str) -> None:
        """Remove the pending tasks of the dataset, for example because its rule has changed."""
        for admission in self._admissions.values():
            admission.forget(url)

    def forget_admitted(self, url: str, but: Collection[WorkKey] = ()) -> None:
        """Record that all tasks of the dataset except `but` have ended."""
        left = {key: one for key, one in self._admitted.pop(url, {}).items() if key in but}
        if left:
            self._admitted[url] = left

    # Admission

    def admit(self, now: Numbered, others: PeerSummary) -> list[PendingTask]:
        """Admit tasks as far as limits allow."""
        found = []
        for queue in now.catalog.queues:
            if queue.state is not QueueState.ACTIVE:
                continue
            admission = self._admission(queue)
            slots = others.slots.get(queue.id, 0)
            figures = admission.figures()
            demands = {**others.demands.get(queue.id, {}), self._name: figures.demand}
            room = quota(self._name, slots, queue.reserved_slots, demands)
            tenants = self._tenants(queue.id, now.catalog, figures.demand_by_tenant, others)
            for want in admission.admit(room, slots, tenants):
                self._admitted.setdefault(want.dataset, {})[want.key] = _Admitted(now.number, queue.id)
                found.append(want)
        for queue_id in [queue_id for queue_id in self._admissions if now.catalog.with_id(queue_id) is None]:
            del self._admissions[queue_id]
        return found

    def recall(self, catalog: Catalog) -> list[str]:
        """Return datasets that should be polled now because a deferred task would fit again."""
        active = [self._admission(queue) for queue in catalog.queues if queue.state is QueueState.ACTIVE]
        return [url for admission in active for url in admission.recall(monotonic_ms(self._clock))]

    def queue_id(
        self, want: PendingTask, rule: DatasetRule, routing: Routing[Queue], catalog: Catalog
    ) -> str:
        """Return the queue of a task; an admitted task stays in its queue as long as the queue exists."""
        queue_id = self._queue_id_of(want.key)
        if queue_id is not None and catalog.with_id(queue_id) is not None:
            return queue_id
        return routing.route(want.cost_bytes, rule.queue).id

    # Versions of the catalog

    def catalog_of(self, key: WorkKey, now: Numbered) -> int:
        """Return the catalog version that the task was admitted under."""
        admitted = self._admitted.get(key.dataset, {}).get(key)
        return now.number if admitted is None else admitted.catalog

    def oldest_catalog(self, now: Numbered) -> int:
        """Return the oldest catalog version that any task was admitted under."""
        return min((now.number, *(one.catalog for of in self._admitted.values() for one in of.values())))

    def catalogs_are_gone(self, now: Numbered) -> None:
        """Treat tasks admitted under old catalog versions as if admitted under this one."""
        for of_dataset in self._admitted.values():
            for one in of_dataset.values():
                one.catalog = now.number

    # Reports

    def loads(
        self, catalog: Catalog, having: Iterable[str | None], hints: Callable[[str], Sequence[ClaimOffer]]
    ) -> dict[str, Load]:
        """Return this coordinator's load of each queue, by queue id, given the tenants that have work.
        `hints` returns the task offers it has published in a queue."""
        self._name_tenants(having, catalog)
        loads = {queue.id: self._load(queue, hints(queue.id)) for queue in catalog.queues}
        self._waits = {p: waits for p, waits in self._waits.items() if self._is_told_of(*p, catalog)}
        return loads

    def _load(self, queue: Queue, hints: Sequence[ClaimOffer]) -> Load:
        now_ms = self._clock.now_ms()
        admission = self._admission(queue)
        figures = admission.figures()
        parts: dict[str | None, list[Amounts]] = {}
        for tenant, of in admission.by_tenant().items():
            parts.setdefault(self._named.name(tenant), []).append(
                Amounts(
                    waiting=of.queued,
                    waiting_bytes=of.queued_bytes,
                    deferred=of.deferred,
                    demand=of.demand,
                    lowest_priority=of.lowest,
                    oldest_ms=_age_ms(of.oldest_since_ms, now_ms),
                    youngest_ms=_age_ms(of.youngest_since_ms, now_ms),
                )
            )
        for hint in hints:
            age_ms = _age_ms(hint.since_ms, now_ms)
            of_hint = Amounts(
                queued=1,
                queued_bytes=hint.bytes,
                lowest_priority=rank(PriorityClass(hint.band), hint.priority),
                oldest_ms=age_ms,
                youngest_ms=age_ms,
            )
            parts.setdefault(self._named.name(hint.tenant), []).append(of_hint)
        for (queue_id, tenant), waits in self._waits.items():
            if queue_id == queue.id:
                parts.setdefault(self._named.name(tenant), []).append(Amounts(waits=waits))
        pace = self._paces.get(queue.id, 0)
        return Load(
            resting=figures.resting,
            demand={band.value: n for band, n in figures.demand.items()},
            tenants={tenant: _with_backlog(combined(of), pace) for tenant, of in parts.items()},
        )

    def _queue_id_of(self, key: WorkKey) -> str | None:
        """Return the queue that the task was admitted to."""
        admitted = self._admitted.get(key.dataset, {}).get(key)
        return None if admitted is None else admitted.queue_id

    def _admission(self, queue: Queue) -> QueueAdmission:
        limits = QueueLimits(queue.longest_backlog, queue.largest_share)
        admission = self._admissions.get(queue.id)
        if admission is None:
            admission = self._admissions[queue.id] = QueueAdmission(limits)
        admission.limits = limits
        return admission

    def _tenants(
        self, queue_id: str, catalog: Catalog, own: Mapping[str | None, int], others: PeerSummary
    ) -> dict[str | None, TenantTreatment]:
        """Return how tenants are treated in a queue; of a cap, this coordinator's share."""
        of_others = others.tenant_demands.get(queue_id, {})
        treated: dict[str | None, TenantTreatment] = {}
        for tenant in catalog.tenants:
            demands = {name: of.get(tenant.name, 0) for name, of in of_others.items()}
            demands[self._name] = own.get(tenant.name, 0)
            cap = tenant.most_running
            part = None if cap is None else tenant_cap(self._name, cap, demands)
            treated[tenant.name] = TenantTreatment(tenant.weight, part)
        return treated

    def _is_told_of(self, queue_id: str, tenant: str | None, catalog: Catalog) -> bool:
        is_named = tenant is None or self._named.name(tenant) is not None
        return is_named and catalog.with_id(queue_id) is not None

    def _name_tenants(self, having: Iterable[str | None], catalog: Catalog) -> None:
        special = {tenant.name for tenant in catalog.tenants}
        self._named.see(having, special, monotonic_ms(self._clock))


def _age_ms(since_ms: int | None, now_ms: int) -> int | None:
    return None if since_ms is None else max(0, now_ms - since_ms)


def _with_backlog(amounts: Amounts, bytes_per_s: int) -> Amounts:
    """Assume that deferred tasks are as large as the others, since their size is unknown."""
    count, size = amounts.queued + amounts.waiting, amounts.queued_bytes + amounts.waiting_bytes
    deferred_bytes = amounts.deferred * (size // count if count else 0)
    total_ms = backlog_ms(count + amounts.deferred, size + deferred_bytes, bytes_per_s)
    return replace(amounts, backlog_ms=total_ms)


@dataclass(frozen=True, slots=True)
class PeerSummary:
    """The reports of the other members."""

    slots: Mapping[str, int] = field(default_factory=dict)
    """Slots of live workers, by queue id."""
    free: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Idle slots of live workers, by queue id and worker."""
    demands: Mapping[str, Mapping[str, MemberDemand]] = field(default_factory=dict)
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
        demands: dict[str, dict[str, MemberDemand]] = {}
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
