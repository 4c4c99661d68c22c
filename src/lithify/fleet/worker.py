"""The fleet worker: the worker slots of one process, serving one or more queues of a fleet.

Each `tick`:

1. Every `BEAT_EVERY_MS`, read the catalog and write the heartbeat with the free slots
   (`lithify.fleet.members` repeats it from another thread while a round takes longer). Idle workers write
   it less often. A paused queue is not claimed from; a deleted one is not served any more. When all queues
   that the worker was started for are deleted, the worker is over.
2. Continue the running compactions (`lithify.service.worker_pool`).
3. While slots are free, poll the notifications of the queues (`lithify.planning.fleet.polling`). Read the
   offers of the member named by a notification, if it is addressed to this worker
   (`lithify.planning.fleet.notifications`). Read all members' offers after a compaction has ended here, or
   when no notification has arrived for long. A worker that polls less often also lists less often which
   members have offers.
4. Claim offered tasks one after the other, in the order of `lithify.planning.fleet.task_offers`, each in
   the ledger of its dataset: that alone decides. After losing a claim to another worker, back off from the
   task. Compactions of a queue may share a slot (`Queue.per_slot`).
5. Run a compaction with the settings of the catalog it was admitted under, whatever the newest one says. A
   dataset is open at most once: a task admitted with settings other than those in use here waits, or is
   claimed by another worker. So does a task admitted under a catalog that this version cannot read.

All state may be lost: the ledgers record the claims, and these expire when the heartbeats end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from lithify.base.clock import Clock, monotonic_ms
from lithify.base.errors import CorruptObject, LithifyError, Refused, Unsupported
from lithify.base.ids import Ulid
from lithify.fleet.catalog.files import FollowedCatalog, Numbered
from lithify.fleet.catalog.model import Catalog, DatasetRule, Queue, QueueState
from lithify.fleet.files import FleetFiles
from lithify.fleet.members import (
    BEAT_EVERY_MS,
    IDLE_BEAT_EVERY_MS,
    MISSED_BEATS,
    Amounts,
    FleetMember,
    FleetRole,
    Load,
    MemberHeartbeat,
    ReportListener,
    Running,
    unheard,
)
from lithify.fleet.notifications import Ear
from lithify.planning.admission import WorkKey
from lithify.planning.fleet.labels import LabelLimiter
from lithify.planning.fleet.notifications import Ring
from lithify.planning.fleet.pace import SlotPace
from lithify.planning.fleet.polling import PollBackoff
from lithify.planning.fleet.slots import Slots, Usage, left_for, reserved_of
from lithify.planning.fleet.task_offers import ClaimOffer, HintChoice
from lithify.service.worker_pool import WorkerPool

LIST_BOARDS_EVERY_MS = 300_000
BOARD_KNOWN_FOR_MS = 900_000
"""How long a member's offers are polled after they were last seen: a member without offers deletes the file
and writes it again later."""
MAX_OLDER = 8
"""Maximum number of catalogs cached besides the newest."""


@dataclass(frozen=True, slots=True)
class NoSource:
    """A source for a pool that is told each time what to claim."""

    def urls(self) -> Sequence[str]:
        return ()


@dataclass(frozen=True, slots=True)
class FleetWorkerPorts:
    """The dependencies of a fleet worker."""

    files: FleetFiles
    pool: WorkerPool
    """A pool over `NoSource`."""
    clock: Clock
    host: str
    version: str
    says: ReportListener = unheard


@dataclass(slots=True)
class _Served:
    """A queue that this worker serves."""

    queue: Queue
    ear: Ear
    others: Mapping[str, int] = field(default_factory=dict)
    """Slots of the other workers that serve the queue, by name; filled only if the queue reserves slots."""
    boards: dict[str, int] = field(default_factory=dict)
    """Members with offers, and when each was last seen with some."""
    listed_ms: int | None = None
    """When these members were last listed; `None` if they must be listed again."""

    def heard_of(self, rings: Sequence[Ring] | None, now_ms: int) -> None:
        """Add the members that the notifications name."""
        if rings is None:
            self.listed_ms = None
        else:
            self.are_there((ring.board for ring in rings), now_ms)

    def are_there(self, boards: Iterable[str], now_ms: int) -> None:
        """Add these members."""
        self.boards |= dict.fromkeys(boards, now_ms)
        self.boards = {b: ms for b, ms in self.boards.items() if now_ms - ms < BOARD_KNOWN_FOR_MS}


@dataclass(frozen=True, slots=True)
class _Claimed:
    """A compaction that runs here."""

    queue_id: str
    hint: ClaimOffer
    since_ms: int
    """By the monotonic clock."""
    catalog: int
    """The catalog version that it was admitted under."""
    share: Fraction
    """The share of a slot that it takes."""


class FleetWorker:
    """The worker slots of one process, with a unique name."""

    def __init__(self, name: str, ports: FleetWorkerPorts, queues: Sequence[str] = ()) -> None:
        """Serve the queues of these names, or all. Raise `Refused` if a queue does not exist, and
        `DatasetNotFound` if there is no such fleet."""
        self.name = name
        self._ports = ports
        self._files = ports.files
        self._pool = ports.pool
        self._clock = ports.clock
        self._pulse = MemberHeartbeat(name, ports.files.members, ports.clock)
        self._catalog = FollowedCatalog(ports.files.catalog)
        catalog = self._catalog.now.catalog
        self._only = {catalog.queue(name).id for name in queues} if queues else None
        """Ids of queues; a queue recreated under the same name is another queue."""
        self._served: dict[str, _Served] = {}
        self._choice = HintChoice(name)
        self._asking = PollBackoff(monotonic_ms(self._clock))
        self._claimed: dict[tuple[str, Ulid], _Claimed] = {}
        """Running compactions."""
        self._older: dict[int, Catalog] = {}
        """Older catalogs that offered tasks were admitted under."""
        self._rules: dict[str, DatasetRule] = {}
        """Rules in use for the datasets with running compactions, by URL."""
        self._paces: dict[str, SlotPace] = {}
        """The pace of a slot, by queue id."""
        self._named = LabelLimiter()
        self._said: FleetMember | None = None
        """The last heartbeat written."""
        self._said_s = float("-inf")
        self._looked_s = float("-inf")
        """When the catalog was last read."""
        self._asked_s = float("-inf")
        self._follow()

    @property
    def is_over(self) -> bool:
        """Whether all queues that the worker was started for are deleted."""
        return self._only is not None and not self._served

    @property
    def idle_s(self) -> float:
        """How long nothing has run here and nothing was claimed."""
        return 0.0 if self._pool.is_busy else (monotonic_ms(self._clock) - self._asking.idle_since_ms) / 1000

    @property
    def problem(self) -> LithifyError | None:
        """The error in the newest catalog, if an older one is followed because of it."""
        return self._catalog.problem

    def rule_for(self, url: str) -> DatasetRule:
        """Return the rule in use for the compactions of a dataset that run here or are being claimed."""
        return self._rules[url]

    def works_on(self, url: str) -> bool:
        """Return whether a compaction of the dataset runs here or is being claimed."""
        return url in self._rules

    def start(self) -> None:
        """Start the pool and join the fleet. Raise `EngineDown`, before joining, if something that the engine
        needs is evidently missing."""
        self._pool.start()
        self._beat()

    def tick(self) -> bool:
        """Run one round of the algorithm above; return whether anything was claimed, finished or released. A
        `StoreError` means that the fleet's own store failed; running compactions continue with the next
        round."""
        with self._pulse.round():
            return self._round()

    def beat(self) -> None:
        """Repeat the heartbeat if a round takes long (`lithify.fleet.members`). Any thread may call it."""
        self._pulse.beat()

    def _round(self) -> bool:
        changed = self._pool.round()
        now_ms = monotonic_ms(self._clock)
        failures = self._pool.take_failures()
        for url, failed in failures:
            self._choice.failed(WorkKey(url, failed), now_ms)
        held = self._pool.holding()
        ended = self._claimed.keys() - held
        for key in ended.difference(failures):
            one = self._claimed[key]
            pace = self._paces.setdefault(one.queue_id, SlotPace())
            pace.finished(one.hint.bytes, (now_ms - one.since_ms) / 1000)
        if ended:
            held_urls = {url for url, _ in held}
            self._rules = {url: rule for url, rule in self._rules.items() if url in held_urls}
            self._claimed = {key: claimed for key, claimed in self._claimed.items() if key in held}
            self._asking = self._asking.claimed(now_ms)
        self._beat()
        if not self.is_over and self._has_room():
            self._ask()
            changed = self._claim() or changed
        return changed

    def due_in_s(self) -> float:
        """Return the seconds until the next poll is due."""
        pause_s = self._asking.bell_pause_ms(monotonic_ms(self._clock)) / 1000
        return max(0.0, self._asked_s + pause_s - self._clock.monotonic_s())

    def wait(self, timeout_s: float) -> None:
        """Return when a running compaction has ended, or after `timeout_s`."""
        self._pool.wait(timeout_s)

    def close(self) -> None:
        """Release unfinished compactions and leave the fleet."""
        with self._pulse.round():
            self._pool.release()
            self._pulse.leave()

    # Catalog and members

    def _follow(self) -> None:
        """Serve the queues that the catalog has."""
        catalog: Catalog = self._catalog.now.catalog
        queues = [queue for queue in catalog.queues if self._only is None or queue.id in self._only]
        before, self._served = self._served, {}
        for queue in queues:
            served = before.get(queue.id) or _Served(queue, Ear(self._files.bells, queue.id))
            served.queue = queue
            self._served[queue.id] = served

    def _others(self, queue: Queue) -> Mapping[str, int]:
        """Return the slots of the other workers that serve the queue; needed only if the queue reserves
        slots."""
        if not queue.reserved_slots:
            return {}
        alive = [seen.says for seen in self._files.members.listed() if seen.is_alive]
        workers = [says for says in alive if says is not None and says.role is FleetRole.WORKER]
        return {says.name: says.load[queue.id].slots for says in workers if queue.id in says.load}

    def _reserved(self, served: _Served) -> int:
        """Return how many slots of this process are reserved for small or urgent tasks, out of its current
        slots: their number is known once Spark has started."""
        queue = served.queue
        slots = {**served.others, self.name: self._slots_of(queue)}
        return reserved_of(self.name, slots, queue.reserved_slots)

    def _beat(self) -> None:
        now_s, said = self._clock.monotonic_s(), self._said
        silent_ms = (now_s - self._said_s) * 1000
        if (now_s - self._looked_s) * 1000 >= BEAT_EVERY_MS:
            self._catalog.refresh(was_away=said is None or silent_ms > MISSED_BEATS * said.beats_ms)
            self._looked_s = now_s
            self._follow()
            if self._catalog.was_replaced:
                self._older.clear()
                self._take_to_be_admitted_now()
        is_idle = self.idle_s * 1000 >= BEAT_EVERY_MS  # a worker that is busy again reports at once
        beats_ms = IDLE_BEAT_EVERY_MS if is_idle else BEAT_EVERY_MS
        number = self._catalog.now.number
        if (
            said is not None
            and said.catalog == number
            and said.beats_ms <= beats_ms
            and silent_ms < said.beats_ms
        ):
            return
        member = self._member(beats_ms)
        self._ports.says(member, self._catalog.now.catalog)
        self._pulse.say(member)
        if member.needs < number and not self._files.history.allows(member.needs):
            self._take_to_be_admitted_now()
        self._said, self._said_s = member, now_s

    def _take_to_be_admitted_now(self) -> None:
        """Treat running compactions as if they had been admitted under the newest catalog."""
        number = self._catalog.now.number
        self._claimed = {key: replace(one, catalog=number) for key, one in self._claimed.items()}

    def _member(self, beats_ms: int) -> FleetMember:
        """Return the heartbeat to write now."""
        for served in self._served.values():
            served.others = self._others(served.queue)
        special = {tenant.name for tenant in self._catalog.now.catalog.tenants}
        self._named.see(
            (one.hint.tenant for one in self._claimed.values()), special, monotonic_ms(self._clock)
        )
        load = {queue_id: self._load(served) for queue_id, served in self._served.items()}
        at_ms = self._clock.now_ms()
        running = tuple(
            Running(
                url=url,
                compaction=compaction,
                queue_id=one.queue_id,
                since_ms=at_ms - (monotonic_ms(self._clock) - one.since_ms),
                bytes=one.hint.bytes,
                tenant=one.hint.tenant,
                catalog=one.catalog,
            )
            for (url, compaction), one in self._claimed.items()
        )
        return FleetMember(
            name=self.name,
            role=FleetRole.WORKER,
            host=self._ports.host,
            version=self._ports.version,
            catalog=self._catalog.now.number,
            load=load,
            running=running,
            at_ms=at_ms,
            needs=min((self._catalog.now.number, *(one.catalog for one in running))),
            beats_ms=beats_ms,
        )

    def _load(self, served: _Served) -> Load:
        queue = served.queue
        running = Counter(
            self._named.name(one.hint.tenant) for one in self._claimed.values() if one.queue_id == queue.id
        )
        return Load(
            slots=self._slots_of(queue) if queue.state is not QueueState.PAUSED else 0,
            bytes_per_s=self._paces[queue.id].bytes_per_s if queue.id in self._paces else 0,
            tenants={tenant: Amounts(running=count) for tenant, count in running.items()},
        )

    # Claims

    def _slots_of(self, queue: Queue) -> int:
        """Return the total number of slots, in compactions of this queue."""
        return self._pool.slots * queue.per_slot

    def _used(self) -> tuple[Fraction, Fraction]:
        """Return how many slots are used, and how many of them by ordinary work. A claim whose release could
        not be written yet takes a slot as well."""
        ordinary = sum(
            (one.share for one in self._claimed.values() if not one.hint.may_use_reserve), Fraction()
        )
        claimed = sum((one.share for one in self._claimed.values()), Fraction())
        return claimed + max(0, self._pool.held - len(self._claimed)), ordinary

    def _left(self) -> dict[str, int]:
        """Return how many more compactions of each queue fit, by queue id."""
        used, _ = self._used()
        queues = [served.queue for served in self._served.values()]
        return {
            queue.id: left_for(self._pool.slots, used, queue.per_slot)
            for queue in queues
            if queue.state is not QueueState.PAUSED
        }

    def _room(self, left: Mapping[str, int]) -> tuple[dict[str, Slots], Usage, dict[str, int]]:
        """Return the slots by queue id, their usage, and the weights by queue id. Every queue has room for
        one compaction; otherwise queues whose compactions share slots would get all turns."""
        _, used_by_ordinary = self._used()
        ordinary = sum(not one.hint.may_use_reserve for one in self._claimed.values())
        usage = Usage(max(self._pool.held, len(self._claimed)), ordinary)
        slots = {}
        for queue_id, more in left.items():
            served = self._served[queue_id]
            left_open = left_for(
                self._pool.slots, used_by_ordinary, served.queue.per_slot, self._reserved(served)
            )
            slots[queue_id] = Slots(usage.total + max(1, more), usage.ordinary + left_open)
        return slots, usage, {queue_id: served.queue.weight for queue_id, served in self._served.items()}

    def _has_room(self) -> bool:
        return any(self._left().values())

    def _ask(self) -> None:
        now_ms = monotonic_ms(self._clock)
        if self.due_in_s() > 0:
            return
        self._asked_s = self._clock.monotonic_s()
        # Poll all queues: a notification in one must not stop polling the others.
        heard = {queue_id: served.ear.hears() for queue_id, served in self._served.items()}
        is_unsure = any(rings is None for rings in heard.values())
        is_due = self._asking.reads_boards(now_ms, has_rung=is_unsure)
        rung = {
            queue_id: {ring.board for ring in rings or () if ring.wakes(self.name)}
            for queue_id, rings in heard.items()
        }
        boards = {board for of in rung.values() for board in of}
        for queue_id, rings in heard.items():
            self._served[queue_id].heard_of(rings, now_ms)
        if is_unsure or boards:
            self._asking = self._asking.rung()
        if is_due:
            self._choice.see({queue_id: self._all_hints(queue_id) for queue_id in self._served}, now_ms)
        elif boards:
            queues = [queue_id for queue_id, of in rung.items() if of]
            found = {queue_id: self._files.boards.read_of(queue_id, boards) for queue_id in queues}
            self._choice.see(found, now_ms, boards)
        if is_due or boards:
            self._asking = self._asking.missed(now_ms)

    def _all_hints(self, queue_id: str) -> Sequence[ClaimOffer]:
        """Return the offers of all members. Members with offers are listed only now and then, because a
        notification names each new one."""
        served, now_ms = self._served[queue_id], monotonic_ms(self._clock)
        if served.listed_ms is None or now_ms - served.listed_ms >= LIST_BOARDS_EVERY_MS:
            served.are_there(self._files.boards.members(queue_id), now_ms)
            served.listed_ms = now_ms
        return self._files.boards.read_of(queue_id, served.boards)

    def _claim(self) -> bool:
        """Claim until no slot is free or there is nothing to claim."""
        has_claimed = False
        while any((left := self._left()).values()):
            slots, usage, weights = self._room(left)
            now_ms = monotonic_ms(self._clock)
            found = self._choice.next(slots, usage, weights, now_ms)
            if found is None:
                break
            queue_id, hint = found
            if not left[queue_id]:
                break  # its turn, but it needs more than is left of a slot: claim nothing before it
            per_slot = self._served[queue_id].queue.per_slot
            admitted_under = self._catalog_of(hint)
            if admitted_under is None or not self._can_treat(hint.url, admitted_under.catalog):
                self._choice.leave(hint, now_ms)
            elif self._pool.claim(
                hint.url,
                Ulid(hint.compaction),
                is_sharing=per_slot > 1,
                is_untried=not hint.attempts,
            ):
                self._choice.claimed(hint, slots, usage, weights, now_ms)
                share = Fraction(1, per_slot)
                claimed = _Claimed(queue_id, hint, now_ms, admitted_under.number, share)
                self._claimed[hint.url, Ulid(hint.compaction)] = claimed
                self._asking = self._asking.claimed(now_ms)
                has_claimed = True
            else:
                self._choice.lost(hint, now_ms)
        return has_claimed

    def _catalog_of(self, hint: ClaimOffer) -> Numbered | None:
        """Return the catalog that the task was admitted under; the newest one if that is unknown or deleted,
        `None` if this version cannot read it."""
        now = self._catalog.now
        if hint.catalog in (0, now.number):
            return now
        if hint.catalog not in self._older:
            try:
                found = self._files.history.at(hint.catalog)
            except (CorruptObject, Unsupported):
                return None
            except Refused:
                return now
            if len(self._older) >= MAX_OLDER:
                del self._older[min(self._older)]
            self._older[hint.catalog] = found
        return Numbered(hint.catalog, self._older[hint.catalog])

    def _can_treat(self, url: str, catalog: Catalog) -> bool:
        """Return whether the dataset can be opened here with the settings of this catalog; if so, the next
        claim opens it. A dataset that no rule names is not worked on, even if it is offered."""
        rule = catalog.rule_for(url)
        if rule is None:
            return False
        if not self._pool.forget(url) and self._rules[url].settings != rule.settings:
            return False
        self._rules[url] = rule
        return True
