"""What a keeper has to do with the queues of its fleet: what its datasets want of each, and what may start.

1. What each look at a dataset has found goes to the admission of its queue (`follow`,
   `lithify.planning.fleet.admission`). What was admitted to a queue stays there, as long as there is one.
2. A queue admits as much as its workers have slots for, by this keeper's part of what is wanted by all
   (`admit`). A queue that is paused admits nothing; one that drains or is gone is nobody's, so its wants go
   to the next.
3. The members are told what there is of each (`loads`), by tenant, for a bounded number of tenants
   (`lithify.planning.fleet.labels`).
4. Of what is admitted or under way is known under which version of the catalog it was: that one is needed
   until it has ended (`oldest_catalog`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from lithify.base.clock import Clock, monotonic_ms
from lithify.fleet.catalog.files import Numbered
from lithify.fleet.catalog.model import Catalog, DatasetRule, Queue, QueueState
from lithify.fleet.demand import Demand
from lithify.fleet.members import Amounts, Load, combined
from lithify.fleet.peers import PeerSummary
from lithify.planning.admission import WorkKey
from lithify.planning.fleet.admission import Active, QueueAdmission, QueueLimits
from lithify.planning.fleet.admission import TenantShare as TenantTreatment
from lithify.planning.fleet.labels import LabelLimiter
from lithify.planning.fleet.pace import backlog_ms
from lithify.planning.fleet.pending_tasks import PendingTask
from lithify.planning.fleet.priorities import PriorityClass, rank
from lithify.planning.fleet.quotas import quota, tenant_cap
from lithify.planning.fleet.routing import Route, Routing
from lithify.planning.fleet.task_offers import Hint
from lithify.planning.fleet.waits import NO_WAITS, Waits


@dataclass(slots=True)
class _Admitted:
    """What was admitted here, or was seen to be under way."""

    catalog: int
    """The version under which that was."""
    queue_id: str | None = None
    """Where it went; `None` where somebody else admitted it."""


class OwnQueues:
    """Of the keeper of this name."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._admissions: dict[str, QueueAdmission] = {}
        """By queue id."""
        self._admitted: dict[str, dict[WorkKey, _Admitted]] = {}
        """By dataset."""
        self._named = LabelLimiter()
        self._waits: dict[tuple[str, str | None], Waits] = {}
        """By queue id and tenant: how long what was claimed had waited."""
        self._paces: dict[str, int] = {}
        """By queue id, how fast its workers are, or were when there were some."""

    def heard(self, others: PeerSummary) -> None:
        """This is what the other members say now."""
        self._paces |= others.paces

    # What looks have found

    def failed(self, key: WorkKey) -> None:
        """It was given up for good."""
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
        """A dataset has this demand, of which what was claimed is taken; of what it wants, so much was
        admitted. `is_known`: it could be looked at, so nothing else of it is under way."""
        routing = Routing(now.catalog.queues)
        for want, waited_ms in demand.take_claimed():
            self._name_tenants([want.tenant], now.catalog)
            place = self.queue_id(want, rule, routing, now.catalog), self._named.name(want.tenant)
            self._waits[place] = self._waits.get(place, NO_WAITS).plus(waited_ms)
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
        under_way = {one.want.key for one in demand.active} | set(admitted)
        if is_known:
            self.forget_admitted(demand.url, under_way)
        for key in under_way:  # what somebody else admitted counts from when it is seen
            self._admitted.setdefault(demand.url, {}).setdefault(key, _Admitted(now.number))
        now_ms = monotonic_ms(self._clock)
        for queue in now.catalog.queues:
            admission = self._admission(queue)
            admission.follow(demand.url, active.get(queue.id, ()))
            admission.offer(demand.url, wants.get(queue.id, ()), now_ms)

    def forget(self, url: str) -> None:
        """The dataset has no wants any more, here or under the rule that it had."""
        for admission in self._admissions.values():
            admission.forget(url)

    def forget_admitted(self, url: str, but: Collection[WorkKey] = ()) -> None:
        """Of this dataset nothing else is admitted or under way any more."""
        left = {key: one for key, one in self._admitted.pop(url, {}).items() if key in but}
        if left:
            self._admitted[url] = left

    # What may start

    def admit(self, now: Numbered, others: PeerSummary) -> list[PendingTask]:
        """What there is room for."""
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
        """Datasets that should be looked at now, since something of theirs would have a place again."""
        active = [self._admission(queue) for queue in catalog.queues if queue.state is QueueState.ACTIVE]
        return [url for admission in active for url in admission.recall(monotonic_ms(self._clock))]

    def queue_id(
        self, want: PendingTask, rule: DatasetRule, routing: Routing[Queue], catalog: Catalog
    ) -> str:
        """What was admitted to a queue stays there, as long as there is one."""
        queue_id = self._queue_id_of(want.key)
        if queue_id is not None and catalog.with_id(queue_id) is not None:
            return queue_id
        routes = (Route(rule.queue),) if rule.queue is not None else ()
        return routing.route(want.cost_bytes, routes, unit=want.key.unit).id

    # Versions of the catalog

    def catalog_of(self, key: WorkKey, now: Numbered) -> int:
        """The version under which it was admitted."""
        admitted = self._admitted.get(key.dataset, {}).get(key)
        return now.number if admitted is None else admitted.catalog

    def oldest_catalog(self, now: Numbered) -> int:
        """The oldest version that anything was admitted under."""
        return min((now.number, *(one.catalog for of in self._admitted.values() for one in of.values())))

    def catalogs_are_gone(self, now: Numbered) -> None:
        """What was admitted under old versions goes on under this one."""
        for of_dataset in self._admitted.values():
            for one in of_dataset.values():
                one.catalog = now.number

    # What is told

    def loads(
        self, catalog: Catalog, having: Iterable[str | None], hints: Callable[[str], Sequence[Hint]]
    ) -> dict[str, Load]:
        """What this keeper has to do with each queue, by id, when these tenants have something to do. `hints`
        gives what it has on the board of a queue."""
        self._name_tenants(having, catalog)
        loads = {queue.id: self._load(queue, hints(queue.id)) for queue in catalog.queues}
        self._waits = {p: waits for p, waits in self._waits.items() if self._is_told_of(*p, catalog)}
        return loads

    def _load(self, queue: Queue, hints: Sequence[Hint]) -> Load:
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
                    lowest=of.lowest,
                    oldest_ms=_age_ms(of.oldest_since_ms, now_ms),
                    youngest_ms=_age_ms(of.youngest_since_ms, now_ms),
                )
            )
        for hint in hints:
            age_ms = _age_ms(hint.since_ms, now_ms)
            of_hint = Amounts(
                queued=1,
                queued_bytes=hint.bytes,
                lowest=rank(PriorityClass(hint.band), hint.priority),
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
        """Where it was admitted to."""
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
        """How tenants are treated in a queue: of a cap, this keeper's part."""
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
    """What is deferred is as large as the rest, as far as anybody knows."""
    count, size = amounts.queued + amounts.waiting, amounts.queued_bytes + amounts.waiting_bytes
    deferred_bytes = amounts.deferred * (size // count if count else 0)
    total_ms = backlog_ms(count + amounts.deferred, size + deferred_bytes, bytes_per_s)
    return replace(amounts, backlog_ms=total_ms)
