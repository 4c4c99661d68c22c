"""Rules of admission and of claims, judged where the real coordinators and workers decide.

`JudgedQueues` and `JudgedChoice` are the ones of production. What they are offered, and what they choose, is
shown to rules that work out anew what should have come of it. Where a rule cannot know a number that a party
reckons with, it takes one that speaks for the party.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from lithify.base.clock import Clock, monotonic_ms
from lithify.fleet.catalog.files import Numbered
from lithify.fleet.catalog.model import Catalog, DatasetRule, Queue, QueueState
from lithify.fleet.coordinator_queues import OwnQueues, PeerSummary
from lithify.fleet.demand import Demand
from lithify.planning.admission import WorkKey
from lithify.planning.fleet.admission import (
    NO_TENANTS,
    Active,
    QueueAdmission,
    QueueLimits,
    TenantShare,
)
from lithify.planning.fleet.pending_tasks import PendingTask
from lithify.planning.fleet.slots import Slots, Usage
from lithify.planning.fleet.task_offers import ClaimOffer, HintChoice
from simulator.core.outcome import Violation
from simulator.fleet import rules
from simulator.fleet.scenario import SMALL_QUEUE, SMALL_QUEUE_BYTES

Fail = Callable[[str, str], Violation]
"""The violation of a rule, and what has happened."""

FAIR_EVERY = 4
FIRST_REST_MS, MAX_REST_MS = 60_000, 6 * 3_600_000
MAX_LOST = 8
"""So many claims may be lost beside three for ten that succeed."""


def most_claims(waiting: int) -> int:
    """How many claims may pass over one of so many that wait."""
    return FAIR_EVERY * (waiting + 1)


class JudgedQueues(OwnQueues):
    """The queues of one coordinator. `owns`: raises where another one watches the dataset as well."""

    def __init__(self, name: str, clock: Clock, fail: Fail, owns: Callable[[str], None]) -> None:
        super().__init__(name, clock)
        self._fail = fail
        self._owns = owns
        self.catalog: Catalog | None = None

    def follow(
        self,
        demand: Demand,
        rule: DatasetRule,
        admitted: Collection[WorkKey],
        now: Numbered,
        *,
        is_known: bool,
    ) -> None:
        self.catalog = now.catalog
        super().follow(demand, rule, admitted, now, is_known=is_known)

    def admit(self, now: Numbered, others: PeerSummary) -> list[PendingTask]:
        self.catalog = now.catalog
        found = super().admit(now, others)
        for want in found:
            self._owns(want.dataset)
        return found

    def _admission(self, queue: Queue) -> QueueAdmission:
        if queue.id not in self._admissions:
            limits = QueueLimits(queue.longest_backlog, queue.largest_share)
            self._admissions[queue.id] = _JudgedAdmission(limits, self, queue.id, self._fail)
        return super()._admission(queue)


class _JudgedAdmission(QueueAdmission):
    """The pending tasks of one coordinator for one queue."""

    def __init__(self, limits: QueueLimits, queues: JudgedQueues, queue_id: str, fail: Fail) -> None:
        super().__init__(limits)
        self._queues = queues
        self._id = queue_id
        self._fail = fail
        self._offered: dict[str, set[WorkKey]] = {}
        """By dataset."""
        self._waiting: dict[str, dict[WorkKey, PendingTask]] = {}
        """Those that do not rest; no value is empty."""
        self._active: dict[str, dict[WorkKey, PendingTask]] = {}
        """Those that take a slot."""
        self._rests: dict[WorkKey, tuple[int, int]] = {}
        """How often each has failed in a row, and until when it rests."""
        self._passed: Counter[str] = Counter()
        self._most_waiting: Counter[str] = Counter()
        """How many datasets waited at most since each does."""
        self._streak = 0
        """How many in a row were admitted while a better class waited."""
        self._in_streak: set[str | None] = set()
        """The tenants whose work waited meanwhile."""

    # What it is shown

    def offer(self, dataset: str, wants: Iterable[PendingTask], now_ms: int) -> None:
        offered = {want.key: want for want in wants}
        super().offer(dataset, offered.values(), now_ms)
        self._offered[dataset] = set(offered)
        is_at_rest = dataset in self._resting and dataset not in self._queued
        waiting = {
            key: want
            for key, want in offered.items()
            if not is_at_rest and self._rests.get(key, (0, 0))[1] <= now_ms
        }
        self._waiting[dataset] = waiting
        if not waiting:
            self._has_none(dataset)
        self._check_routed(waiting.values())

    def follow(self, dataset: str, active: Iterable[Active]) -> None:
        active, before = tuple(active), set(self._running.get(dataset, ()))
        super().follow(dataset, active)
        for key in before - {one.want.key for one in active}:
            self._rests.pop(key, None)
        self._active[dataset] = {one.want.key: one.want for one in active if one.takes_slot}

    def failed(self, key: WorkKey, now_ms: int) -> None:
        super().failed(key, now_ms)
        self._active.get(key.dataset, {}).pop(key, None)
        count, _ = self._rests.get(key, (0, 0))
        self._rests[key] = count + 1, now_ms + min(FIRST_REST_MS << count, MAX_REST_MS)

    def admit(
        self, slots: Slots, queue_slots: int, tenants: Mapping[str | None, TenantShare] = NO_TENANTS
    ) -> tuple[PendingTask, ...]:
        figures = self.figures()
        if figures.queued > max(self.limits.longest_backlog, len(self._waiting)):
            raise self._fail(rules.BACKLOG, f"{figures.queued} wait in {self._queue.name}")
        offered = sum(map(len, self._offered.values()))
        if figures.queued + figures.deferred + figures.resting != offered:
            raise self._fail(rules.COUNTED, f"{figures} where {offered} were offered")
        admitted = super().admit(slots, queue_slots, tenants)
        for want in admitted:
            self._check(want, slots, queue_slots, tenants, has_deferred=figures.deferred > 0)
            self._active.setdefault(want.dataset, {})[want.key] = want
            self._offered[want.dataset].discard(want.key)
            self._passed.pop(want.dataset, None)
            waiting = self._waiting.get(want.dataset, {})
            waiting.pop(want.key, None)
            if not waiting:
                self._has_none(want.dataset)
        return admitted

    def _has_none(self, dataset: str) -> None:
        self._waiting.pop(dataset, None)
        self._passed.pop(dataset, None)

    # What does not hold

    @property
    def _queue(self) -> Queue:
        assert self._queues.catalog is not None, "nothing is offered before"
        queue = self._queues.catalog.with_id(self._id)
        assert queue is not None, "what is gone admits nothing"
        return queue

    def _check_routed(self, wants: Iterable[PendingTask]) -> None:
        catalog = self._queues.catalog
        small = None if catalog is None else catalog.find(SMALL_QUEUE)
        takes_small = small is not None and small.state is not QueueState.DRAINING
        for want in wants:
            is_small = takes_small and want.cost_bytes < SMALL_QUEUE_BYTES
            if (self._queue.name == SMALL_QUEUE) != is_small:
                raise self._fail(rules.ROUTED, f"{want} waits in {self._queue.name}")

    def _check(
        self,
        want: PendingTask,
        slots: Slots,
        queue_slots: int,
        tenants: Mapping[str | None, TenantShare],
        *,
        has_deferred: bool,
    ) -> None:
        queue, running = self._queue, [one for of in self._active.values() for one in of.values()]
        by_dataset = Counter(one.dataset for one in running)
        by_tenant = Counter(one.tenant for one in running)
        ordinary = sum(not one.may_use_reserve for one in running)
        share = max(1, int(queue_slots * queue.largest_share))
        what = f"{want} is admitted to {queue.name}"
        if self._rests.get(want.key, (0, 0))[1] > monotonic_ms(self._queues._clock):
            raise self._fail(rules.RESTS, f"{what} while it rests")
        if len(running) > queue_slots:
            raise self._fail(rules.QUOTA, f"{what} beside {len(running)}; it has {queue_slots} slots")
        if by_dataset[want.dataset] >= share:
            raise self._fail(rules.SHARE, f"{what} beside {by_dataset[want.dataset]} of {share}")
        cap = self._cap(want.tenant)
        if cap is not None and by_tenant[want.tenant] >= cap:
            raise self._fail(rules.CAP, f"{what} beside {by_tenant[want.tenant]} of {cap}")
        if not want.may_use_reserve and ordinary > max(1, queue_slots - queue.reserved_slots):
            raise self._fail(rules.RESERVE, f"{what} beside {ordinary} of {queue_slots}")
        if ordinary < slots.open:
            able = {
                dataset: list(wants.values())
                for dataset, wants in self._waiting.items()
                if by_dataset[dataset] < share and _has_room(wants.values(), by_tenant, tenants)
            }
            self._check_turn(want, able, late=queue_slots if has_deferred else 0)
            if not has_deferred:  # else the one to come first may be among those
                self._check_band(want, able)

    def _check_turn(self, want: PendingTask, able: Mapping[str, Sequence[PendingTask]], late: int) -> None:
        """`late`: so many may be admitted until a dataset is called back of which all was deferred."""
        for dataset, wants in able.items():
            tenant = wants[0].tenant
            if dataset == want.dataset or (self._cap(tenant) is not None and tenant != want.tenant):
                continue
            self._passed[dataset] += 1
            is_first = self._passed[dataset] == 1
            before = 0 if is_first else self._most_waiting[dataset]
            self._most_waiting[dataset] = max(before, len(able) if is_first else len(self._waiting))
            if self._passed[dataset] > most_claims(self._most_waiting[dataset]) + late:
                raise self._fail(rules.TURNS, f"{dataset} waits for {self._passed[dataset]} claims")

    def _check_band(self, want: PendingTask, able: Mapping[str, Sequence[PendingTask]]) -> None:
        best = min((one.band for wants in able.values() for one in wants), default=want.band)
        if want.band <= best:
            self._streak, self._in_streak = 0, set()
            return
        self._streak += 1
        self._in_streak |= {one.tenant for wants in able.values() for one in wants}
        if self._streak > len(self._in_streak) + 1:  # one fair claim of all, and one of each tenant
            raise self._fail(rules.BAND, f"{want} is admitted while {best.name} waits")

    def _cap(self, tenant: str | None) -> int | None:
        catalog = self._queues.catalog
        listed = () if catalog is None else catalog.tenants
        return next((one.most_running for one in listed if one.name == tenant), None)


def _has_room(
    wants: Iterable[PendingTask],
    by_tenant: Mapping[str | None, int],
    tenants: Mapping[str | None, TenantShare],
) -> bool:
    tenant = next(iter(wants)).tenant
    most = tenants.get(tenant, TenantShare()).most_running
    return most is None or by_tenant.get(tenant, 0) < most


class JudgedChoice(HintChoice):
    """The choice of one worker. `reserved`: how many of its slots it keeps of a queue, `None` if that is not
    known. `may_lose`: whether nothing but another claim is to blame if it cannot claim something of this
    dataset. `tally`: the claims of all workers."""

    def __init__(
        self,
        worker: str,
        slots: int,
        fail: Fail,
        reserved: Callable[[str], int | None],
        may_lose: Callable[[str], bool],
        tally: Counter[str],
    ) -> None:
        super().__init__(worker)
        self._slots = slots
        self._fail = fail
        self._reserved = reserved
        self._may_lose = may_lose
        self._tally = tally

    def claimed(
        self,
        hint: ClaimOffer,
        slots: Mapping[str, Slots],
        usage: Usage,
        weights: Mapping[str, int],
        now_ms: int,
    ) -> None:
        self._tally["claimed"] += self._is_counted(hint)
        reserved = self._reserved(self._seen[hint.key].queue) if hint.key in self._seen else None
        if reserved is not None and not hint.may_use_reserve and usage.ordinary >= self._slots - reserved:
            raise self._fail(rules.RESERVE, f"{hint} is claimed beside {usage}, of {self._slots}, {reserved}")
        super().claimed(hint, slots, usage, weights, now_ms)

    def lost(self, hint: ClaimOffer, now_ms: int) -> None:
        tally = self._tally
        tally["lost"] += self._is_counted(hint)
        if tally["lost"] > 0.3 * tally["claimed"] + MAX_LOST:
            raise self._fail(rules.LOST, f"{tally['lost']} claims are lost beside {tally['claimed']}")
        super().lost(hint, now_ms)

    def _is_counted(self, hint: ClaimOffer) -> bool:
        """An offer made while no worker was idle is for all at once, so all but one may lose it."""
        return hint.idle_workers > 0 and self._may_lose(hint.url)
