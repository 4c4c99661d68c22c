"""Admission of a fleet coordinator's pending tasks into one queue.

Pending tasks wait in memory; admitted tasks are planned anew, recorded and offered by the coordinator. Each
queue of each coordinator (member) has one such admission, on top of the task manager of
`lithify.planning.admission`, which tracks dependencies, backoffs and running work.

1. *Offer*: each poll of a dataset offers all its pending tasks for this queue. Tasks that are not pending any
more are removed.
2. *Defer*: the most urgent startable task of each dataset is always kept, so the backlog is never longer than
the larger of `longest_backlog` and the number of datasets. While the backlog is longer than
`longest_backlog`, the lowest other tasks are deferred: only their number per dataset is kept.
3. *Recall*: datasets that should be polled now, because their deferred tasks would have a place again: when a
dataset has nothing queued any more, or the backlog is half empty, or a backoff is over.
4. *Admit*: while the member's slots allow (`quotas`, `slots`) and the dataset and its tenant are below their
shares:
- every fourth claim is fair: the dataset that has waited for most claims (`fairness`), its most urgent task;
- else the best priority class; in it the tenant whose turn it is by weight (`weighted`); of that tenant's
claims every fourth goes to its dataset that has waited longest, the others to its first task by priority,
then age. Of claims for which only the reserve is left, every fourth is fair as well.
5. *Back off*: failed tasks back off, longer each time. A dataset that fails again and again, whichever task
is tried, backs off as a whole, so that it does not fill the member's slots with work that cannot succeed.
6. Admitted tasks count as running until `follow` reports otherwise.

Invariants: of N datasets with work, each has a claim after at most `longest_wait_claims(N)` claims that it
could have had (claims of its tenant, if that is at its cap). All offered tasks are queued, running, backing
off or counted as deferred.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from lithify.base.backoff import GrowingPause
from lithify.base.errors import Refused
from lithify.planning.admission import Budget, Capacity, WorkKey
from lithify.planning.fleet.fairness import FairTurns, WeightedTurns
from lithify.planning.fleet.pending_tasks import PendingTask
from lithify.planning.fleet.priorities import PriorityClass, rank
from lithify.planning.fleet.slots import Slots, Usage

DATASET_PAUSE = GrowingPause(first_ms=15_000, max_ms=1_800_000)
"""Applies from the second failure in a row."""
_NO_CAPACITY = Capacity(max_running=1 << 62, max_running_bytes=1 << 62, max_queued=1 << 62)
"""Unlimited: slots and backlog are limited per queue."""


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """The configured limits of a queue."""

    longest_backlog: int = 1_000
    largest_share: float = 1.0
    """The part of the queue's slots that one dataset may use, above 0 and at most 1; each dataset may always
    use one."""

    def __post_init__(self) -> None:
        if self.longest_backlog < 1:
            raise Refused(f"longest_backlog is {self.longest_backlog}; it must be at least 1")
        if not 0 < self.largest_share <= 1:
            raise Refused(f"largest_share is {self.largest_share}; it must be above 0 and at most 1")


@dataclass(frozen=True, slots=True)
class TenantShare:
    """The weight and cap of a tenant."""

    weight: int = 1
    """The tenant's share of claims, relative to other tenants with work in the same priority class."""
    most_running: int | None = None
    """Maximum number of the tenant's tasks that this member may have admitted at the same time
    (`quotas.tenant_cap`)."""


@dataclass(frozen=True, slots=True)
class Active:
    """An active compaction of the ledger."""

    want: PendingTask
    takes_slot: bool = True
    """False if only its commit is left to do: its dependents still wait for it."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one queue of one member."""

    queued: int
    queued_bytes: int
    running: int
    deferred: int
    resting: int
    """Number of tasks that back off after a failure."""
    demand: Mapping[PriorityClass, int]
    """Number of tasks queued, deferred or running, by priority class; per dataset at most its share of the
    slots. Used for quotas."""
    demand_by_tenant: Mapping[str | None, int]
    lowest: tuple[PriorityClass, float] | None
    """Priority class and priority of the last task in the queue."""
    oldest_since_ms: int | None
    youngest_since_ms: int | None


@dataclass(frozen=True, slots=True)
class OfTenant:
    """The figures of one tenant in one queue of one member."""

    queued: int = 0
    queued_bytes: int = 0
    deferred: int = 0
    demand: int = 0
    """As in `Figures`, summed over all priority classes."""
    lowest: float | None = None
    """Rank (`priorities.rank`) of the tenant's last task in the queue."""
    oldest_since_ms: int | None = None
    youngest_since_ms: int | None = None


_NOT_LIMITED = TenantShare()
NO_TENANTS: Mapping[str | None, TenantShare] = MappingProxyType({})


@dataclass(slots=True)
class _Deferral:
    """The deferred tasks of a dataset."""

    tenant: str | None
    by_band: Counter[PriorityClass]


@dataclass(slots=True)
class _Rest:
    """The tasks of a dataset that back off after failures."""

    count: int
    until_ms: int
    """The end of the first backoff."""


class QueueAdmission:
    """The pending tasks of one member for one queue. Not thread-safe."""

    def __init__(self, limits: QueueLimits) -> None:
        self.limits = limits
        self._budget = Budget(_NO_CAPACITY)
        self._queued: dict[str, dict[WorkKey, PendingTask]] = {}
        """By dataset; no value is empty."""
        self._queued_count = 0
        self._running: dict[str, dict[WorkKey, Active]] = {}
        """By dataset; no value is empty."""
        self._deferred: dict[str, _Deferral] = {}
        """By dataset, ordered by when each was first offered since then."""
        self._resting: dict[str, _Rest] = {}
        self._failing: dict[str, tuple[int, int]] = {}
        """By dataset: the number of failures since the last success, and the time of the last failure."""
        self._share: int | None = None
        """How many tasks of one dataset may run, as of the last admission."""
        self._fair: FairTurns[str] = FairTurns()
        self._tenants: WeightedTurns[str | None] = WeightedTurns()

    # Offers

    def offer(self, dataset: str, wants: Iterable[PendingTask], now_ms: int) -> None:
        """Replace the pending tasks of `dataset` for this queue. `now_ms` is the time of any clock that never
        goes back."""
        all_wants = {want.key: want for want in wants}
        rests_until_ms = self._rests_until_ms(dataset)
        named = {} if now_ms < rests_until_ms else all_wants
        known = self._queued.get(dataset, {})
        for key in [key for key in known if key not in named]:
            self._remove(key)
            self._budget.cancelled(key)
        self._deferred.pop(dataset, None)
        self._resting.pop(dataset, None)
        if all_wants and not named:
            own_ms = min(map(self._budget.rests_until_ms, all_wants))
            self._note_rest(dataset, len(all_wants), max(rests_until_ms, own_ms))
        for key, want in named.items():
            if key not in self._running.get(dataset, ()):
                before = known.get(key, want)
                self._add(replace(want, since_ms=min(want.since_ms, before.since_ms)))
        for drop in self._budget.offer([want.work for want in named.values()], now_ms):
            self._rest(drop.work.key, named, now_ms)
        self._defer()
        if dataset not in self._queued:
            self._fair.forget(dataset)

    def follow(self, dataset: str, active: Iterable[Active]) -> None:
        """Replace the active compactions of `dataset` for this queue by those in its ledger."""
        actives = {one.want.key: one for one in active}
        for key in self._running.get(dataset, ()):
            if key not in actives:
                self._budget.finished(key)
                self._failing.pop(dataset, None)
        for key, one in actives.items():
            self._remove(key)
            self._budget.adopt([replace(one.want.work, takes_capacity=one.takes_slot)])
        self._running.pop(dataset, None)
        if actives:
            self._running[dataset] = actives

    def failed(self, key: WorkKey, now_ms: int) -> None:
        """Record that a compaction failed by its own fault: it backs off, longer each time, and its
        dependents are dropped until they are offered again."""
        self._stop(key)
        dropped = self._budget.failed(key, now_ms)
        for gone in dropped:
            self._remove(gone.work.key)
        self._note_rest(key.dataset, 1 + len(dropped), self._budget.rests_until_ms(key))
        count, _ = self._failing.get(key.dataset, (0, now_ms))
        self._failing[key.dataset] = count + 1, now_ms
        until_ms = self._rests_until_ms(key.dataset)
        if now_ms < until_ms:
            for other in list(self._queued.get(key.dataset, ())):
                self._remove(other)
                self._budget.cancelled(other)
                self._note_rest(key.dataset, 1, until_ms)

    def forget(self, dataset: str) -> None:
        """Forget a dataset that another member watches now, or that does not exist any more."""
        self.offer(dataset, (), 0)
        self.follow(dataset, ())
        self._failing.pop(dataset, None)

    def recall(self, now_ms: int) -> tuple[str, ...]:
        """Return the datasets to poll now and offer again."""
        names = {dataset: None for dataset, rest in self._resting.items() if rest.until_ms <= now_ms}
        longest = self.limits.longest_backlog
        room = longest - self._queued_count if self._queued_count <= longest // 2 else 0
        for dataset, deferral in self._deferred.items():
            if room > 0 or dataset not in self._queued:
                names[dataset] = None
                room -= deferral.by_band.total()
        return tuple(names)

    # Admission

    def admit(
        self, slots: Slots, queue_slots: int, tenants: Mapping[str | None, TenantShare] = NO_TENANTS
    ) -> tuple[PendingTask, ...]:
        """Admit tasks and return them in order. `slots` are the member's, `queue_slots` those of all
        workers."""
        admitted: list[PendingTask] = []
        load = _Load.of(one.want for of in self._running.values() for one in of.values() if one.takes_slot)
        share = self._share = max(1, int(queue_slots * self.limits.largest_share))
        ready = [self._queued[work.key.dataset][work.key] for work in self._budget.ready()]
        while load.usage.total < slots.total:
            able = [want for want in ready if load.leaves_room(want, slots, share, tenants)]
            if not able:
                break
            is_open = load.usage.ordinary < slots.open
            want = self._choose(able, tenants, "open" if is_open else "reserve")
            ready.remove(want)
            self._begin(want)
            load.add(want)
            admitted.append(want)
        return tuple(admitted)

    def _choose(
        self, able: Sequence[PendingTask], tenants: Mapping[str | None, TenantShare], lane: str
    ) -> PendingTask:
        datasets = dict.fromkeys(want.dataset for want in able)
        if self._fair.is_due(lane):
            longest = self._fair.longest(datasets)
            want = min((want for want in able if want.dataset == longest), key=_order)
        else:
            band = min(want.band for want in able)
            offers = {want.tenant: _tenant(tenants, want).weight for want in able if want.band == band}
            tenant = self._tenants.next(offers)
            able = [want for want in able if want.tenant == tenant]
            if self._fair.is_due((lane, tenant)):
                longest = self._fair.longest(dict.fromkeys(want.dataset for want in able))
                able = [want for want in able if want.dataset == longest]
            want = min(able, key=_order)
        self._count(want, datasets, [w.dataset for w in able if w.tenant == want.tenant], lane)
        self._tenants.had(want.tenant, _tenant(tenants, want).weight)
        return want

    def _count(self, want: PendingTask, datasets: Iterable[str], of_tenant: Iterable[str], lane: str) -> None:
        is_longest = self._fair.longest(datasets) == want.dataset
        is_longest_of_tenant = self._fair.longest(of_tenant) == want.dataset
        self._fair.count(lane, is_fair=is_longest)
        self._fair.count((lane, want.tenant), is_fair=is_longest_of_tenant)
        self._fair.had(want.dataset, datasets)

    # Figures

    def figures(self) -> Figures:
        """Return the current figures."""
        queued = [want for of in self._queued.values() for want in of.values()]
        running = [one.want for of in self._running.values() for one in of.values() if one.takes_slot]
        demand, by_tenant = self._demand(running)
        last = max(queued, key=_order, default=None)
        return Figures(
            queued=len(queued),
            queued_bytes=sum(want.cost_bytes for want in queued),
            running=len(running),
            deferred=sum(deferral.by_band.total() for deferral in self._deferred.values()),
            resting=sum(rest.count for rest in self._resting.values()),
            demand=demand,
            demand_by_tenant=by_tenant,
            lowest=None if last is None else (last.band, last.priority),
            oldest_since_ms=min((want.since_ms for want in queued), default=None),
            youngest_since_ms=max((want.since_ms for want in queued), default=None),
        )

    def by_tenant(self) -> dict[str | None, OfTenant]:
        """Return the current figures of each tenant that has any tasks."""
        queued: dict[str | None, list[PendingTask]] = {}
        for want in (want for of in self._queued.values() for want in of.values()):
            queued.setdefault(want.tenant, []).append(want)
        deferred: Counter[str | None] = Counter()
        for deferral in self._deferred.values():
            deferred[deferral.tenant] += deferral.by_band.total()
        _, demand = self._demand(
            one.want for of in self._running.values() for one in of.values() if one.takes_slot
        )
        return {
            tenant: _of_tenant(queued.get(tenant, ()), deferred[tenant], demand[tenant])
            for tenant in {**queued, **deferred, **demand}
        }

    def _demand(self, running: Iterable[PendingTask]) -> tuple[Counter[PriorityClass], Counter[str | None]]:
        """Return the demand by priority class and by tenant; of each dataset the most urgent tasks, up to its
        share."""
        by_dataset: dict[str, Counter[PriorityClass]] = {}
        tenants: dict[str, str | None] = {}
        for want in (*running, *(want for of in self._queued.values() for want in of.values())):
            by_dataset.setdefault(want.dataset, Counter())[want.band] += 1
            tenants[want.dataset] = want.tenant
        for dataset, deferral in self._deferred.items():
            by_dataset.setdefault(dataset, Counter()).update(deferral.by_band)
            tenants[dataset] = deferral.tenant
        demand: Counter[PriorityClass] = Counter()
        by_tenant: Counter[str | None] = Counter()
        for dataset, bands in by_dataset.items():
            left = bands.total() if self._share is None else self._share
            for band in PriorityClass:
                part = min(left, bands[band])
                if part:
                    demand[band] += part
                    by_tenant[tenants[dataset]] += part
                    left -= part
        return demand, by_tenant

    # Helpers

    def _rests_until_ms(self, dataset: str) -> int:
        """Return until when a dataset backs off as a whole."""
        count, last_ms = self._failing.get(dataset, (0, 0))
        return last_ms + DATASET_PAUSE.after_ms(count - 1) if count > 1 else 0

    def _add(self, want: PendingTask) -> None:
        of = self._queued.setdefault(want.dataset, {})
        self._queued_count += want.key not in of
        of[want.key] = want

    def _remove(self, key: WorkKey) -> PendingTask | None:
        of = self._queued.get(key.dataset, {})
        want = of.pop(key, None)
        self._queued_count -= want is not None
        if not of:
            self._queued.pop(key.dataset, None)
        return want

    def _begin(self, want: PendingTask) -> None:
        self._budget.begin(want.key)
        self._remove(want.key)
        self._running.setdefault(want.dataset, {})[want.key] = Active(want)

    def _stop(self, key: WorkKey) -> None:
        self._remove(key)
        of = self._running.get(key.dataset, {})
        of.pop(key, None)
        if not of:
            self._running.pop(key.dataset, None)

    def _rest(self, key: WorkKey, named: Mapping[WorkKey, PendingTask], now_ms: int) -> None:
        """Record that an offered task was refused: it or a predecessor backs off. This ends with the first
        backoff of its dataset, then the dataset is polled again."""
        self._remove(key)
        pauses = [self._budget.rests_until_ms(other) for other in named]
        self._note_rest(key.dataset, 1, min((until for until in pauses if until > now_ms), default=now_ms))

    def _note_rest(self, dataset: str, count: int, until_ms: int) -> None:
        known = self._resting.get(dataset)
        if known is None:
            self._resting[dataset] = _Rest(count, until_ms)
        else:
            known.count, known.until_ms = known.count + count, min(known.until_ms, until_ms)

    def _defer(self) -> None:
        if self._queued_count <= self.limits.longest_backlog:
            return
        kept: dict[str, WorkKey | None] = {}
        for work in reversed(self._budget.queued):
            if self._queued_count <= self.limits.longest_backlog:
                break
            key = work.key
            if key not in self._queued.get(key.dataset, ()):
                continue
            if key.dataset not in kept:
                kept[key.dataset] = self._first(key.dataset)
            if key == kept[key.dataset]:
                continue
            for gone in (key, *(drop.work.key for drop in self._budget.cancelled(key))):
                want = self._remove(gone)
                if want is not None:
                    deferral = self._deferred.setdefault(gone.dataset, _Deferral(want.tenant, Counter()))
                    deferral.by_band[want.band] += 1

    def _first(self, dataset: str) -> WorkKey | None:
        """Return the most urgent pending task of the dataset that has no queued predecessor."""
        of = self._queued[dataset]
        free = [want for want in of.values() if of.keys().isdisjoint(want.after)]
        return min(free, key=_order).key if free else None


@dataclass(slots=True)
class _Load:
    """Running work."""

    usage: Usage
    by_dataset: Counter[str]
    by_tenant: Counter[str | None]

    @classmethod
    def of(cls, wants: Iterable[PendingTask]) -> _Load:
        load = cls(Usage(), Counter(), Counter())
        for want in wants:
            load.add(want)
        return load

    def add(self, want: PendingTask) -> None:
        self.usage = self.usage.plus(may_use_reserve=want.may_use_reserve)
        self.by_dataset[want.dataset] += 1
        self.by_tenant[want.tenant] += 1

    def leaves_room(
        self, want: PendingTask, slots: Slots, share: int, tenants: Mapping[str | None, TenantShare]
    ) -> bool:
        most = _tenant(tenants, want).most_running
        return (
            slots.allow(self.usage, may_use_reserve=want.may_use_reserve)
            and self.by_dataset[want.dataset] < share
            and (most is None or self.by_tenant[want.tenant] < most)
        )


def _of_tenant(queued: Sequence[PendingTask], deferred: int, demand: int) -> OfTenant:
    return OfTenant(
        queued=len(queued),
        queued_bytes=sum(want.cost_bytes for want in queued),
        deferred=deferred,
        demand=demand,
        lowest=min((rank(want.band, want.priority) for want in queued), default=None),
        oldest_since_ms=min((want.since_ms for want in queued), default=None),
        youngest_since_ms=max((want.since_ms for want in queued), default=None),
    )


def _tenant(tenants: Mapping[str | None, TenantShare], want: PendingTask) -> TenantShare:
    return tenants.get(want.tenant, _NOT_LIMITED)


def _order(want: PendingTask) -> tuple[int, float, int, str, str]:
    return want.order
