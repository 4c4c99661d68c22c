"""A crew: the workers of one process, which serve one or more queues of a fleet. One tick, over ports.

Each `tick`:

1. Every `BEAT_EVERY_MS` it looks at the catalog, and says that it lives and how much of its room is free
   (`lithify.fleet.heartbeat`: also while a round takes longer, from beside it); who is idle says so more
   rarely. A queue that is paused is not claimed from; one that was deleted is not served any more. When all
   the queues are gone that it was started for, it is over.
2. The compactions that run here go on (`lithify.service.worker_pool`).
3. While there is room it asks the bells of its queues (`lithify.planning.fleet.polling`). It reads the board
   that was rung for, if the ring is for it (`lithify.planning.fleet.notifications`), and all boards after
   something ended here, or when nothing was heard for long. Who asks more rarely lists more rarely which
   boards there are.
4. Of what the boards hint at it claims one after the other, in the order of
   `lithify.planning.fleet.task_offers`, each in the ledger of its dataset: that alone decides. What others
   were faster with is left alone. A slot is shared by several compactions of a queue that says so
   (`Queue.per_slot`).
5. A compaction is worked on with the settings of the catalog that it was admitted under, whatever the newest
   one says. A dataset is open once: what was admitted with other settings than what runs of it here waits,
   or is somebody else's. So does what was admitted under a catalog that cannot be read here.

What it knows may be lost: what it holds is in the ledgers, and is taken back when its heartbeats end.
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
from lithify.fleet.heartbeat import MemberHeartbeat
from lithify.fleet.members import (
    BEAT_EVERY_MS,
    IDLE_BEAT_EVERY_MS,
    MISSED_BEATS,
    Amounts,
    FleetMember,
    FleetRole,
    Load,
    Running,
    Says,
    unheard,
)
from lithify.fleet.notifications import Ear
from lithify.planning.admission import WorkKey
from lithify.planning.fleet.labels import LabelLimiter
from lithify.planning.fleet.notifications import Ring
from lithify.planning.fleet.pace import SlotPace
from lithify.planning.fleet.polling import PollBackoff
from lithify.planning.fleet.slots import Slots, Usage, left_for, reserved_of
from lithify.planning.fleet.task_offers import Hint, HintChoice
from lithify.service.worker_pool import WorkerPool

LIST_BOARDS_EVERY_MS = 300_000
BOARD_KNOWN_FOR_MS = 900_000
"""So long a board is read that was there: who empties it deletes it, and puts it up again."""
MAX_OLDER = 8
"""Catalogs that are kept besides the newest."""


@dataclass(frozen=True, slots=True)
class NoSource:
    """A pool that is told each time what to claim."""

    def urls(self) -> Sequence[str]:
        return ()


@dataclass(frozen=True, slots=True)
class CrewPorts:
    """What a crew needs."""

    files: FleetFiles
    pool: WorkerPool
    """With `NoSource`."""
    clock: Clock
    host: str
    version: str
    says: Says = unheard


@dataclass(slots=True)
class _Served:
    """A queue that is served here."""

    queue: Queue
    ear: Ear
    others: Mapping[str, int] = field(default_factory=dict)
    """Slots of the other workers that serve it, by name; known only where some are reserved."""
    boards: dict[str, int] = field(default_factory=dict)
    """Members that have one, and when that was told last."""
    listed_ms: int | None = None
    """When that was listed; `None` when it has to be listed anew."""

    def heard_of(self, rings: Sequence[Ring] | None, now_ms: int) -> None:
        """A new board is told of by a ring."""
        if rings is None:
            self.listed_ms = None
        else:
            self.are_there((ring.board for ring in rings), now_ms)

    def are_there(self, boards: Iterable[str], now_ms: int) -> None:
        """Those of these members."""
        self.boards |= dict.fromkeys(boards, now_ms)
        self.boards = {b: ms for b, ms in self.boards.items() if now_ms - ms < BOARD_KNOWN_FOR_MS}


@dataclass(frozen=True, slots=True)
class _Claimed:
    """A compaction that runs here."""

    queue_id: str
    hint: Hint
    since_ms: int
    """By the monotonic clock."""
    catalog: int
    """The version of the catalog that it was admitted under."""
    share: Fraction
    """Of a slot that it takes."""


class FleetWorker:
    """The workers of one process, under a name of its own."""

    def __init__(self, name: str, ports: CrewPorts, queues: Sequence[str] = ()) -> None:
        """For these queues, by name, or for all there are. `Refused` when there is none of that name,
        `DatasetNotFound` when there is no such fleet."""
        self.name = name
        self._ports = ports
        self._files = ports.files
        self._pool = ports.pool
        self._clock = ports.clock
        self._pulse = MemberHeartbeat(name, ports.files.members, ports.clock)
        self._catalog = FollowedCatalog(ports.files.catalog)
        catalog = self._catalog.now.catalog
        self._only = {catalog.queue(name).id for name in queues} if queues else None
        """Ids of queues; a name that is made again is another queue."""
        self._served: dict[str, _Served] = {}
        self._choice = HintChoice(name)
        self._asking = PollBackoff(monotonic_ms(self._clock))
        self._claimed: dict[tuple[str, Ulid], _Claimed] = {}
        """What runs here."""
        self._older: dict[int, Catalog] = {}
        """Catalogs that hints were admitted under."""
        self._rules: dict[str, DatasetRule] = {}
        """How datasets are treated of which something runs here, by URL."""
        self._paces: dict[str, SlotPace] = {}
        """By queue id, how fast what runs here goes."""
        self._named = LabelLimiter()
        self._said: FleetMember | None = None
        """The last thing it said."""
        self._said_s = float("-inf")
        self._looked_s = float("-inf")
        """When it looked at the catalog."""
        self._asked_s = float("-inf")
        self._follow()

    @property
    def is_over(self) -> bool:
        """Whether all the queues are gone that it was to serve."""
        return self._only is not None and not self._served

    @property
    def idle_s(self) -> float:
        """For how long nothing has run and nothing was claimed."""
        return 0.0 if self._pool.is_busy else (monotonic_ms(self._clock) - self._asking.idle_since_ms) / 1000

    @property
    def problem(self) -> LithifyError | None:
        """What is wrong with the newest catalog, if it is not the one that is followed."""
        return self._catalog.problem

    def rule_for(self, url: str) -> DatasetRule:
        """How the dataset at `url` is treated by what runs here of it, or is being claimed."""
        return self._rules[url]

    def works_on(self, url: str) -> bool:
        """Whether something of the dataset at `url` runs here, or is being claimed."""
        return url in self._rules

    def start(self) -> None:
        """Be there for the keepers. `EngineDown`, before that, when what the engine needs is plainly not
        there."""
        self._pool.start()
        self._beat()

    def tick(self) -> bool:
        """One round of the algorithm above; whether anything was claimed, finished or given back. A
        `StoreError` means that the fleet's own store failed; what runs goes on with the next round."""
        with self._pulse.round():
            return self._round()

    def beat(self) -> None:
        """Say again that it lives, if a round takes long (`lithify.fleet.heartbeat`). Any thread may call
        it."""
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
        """Seconds until it has to ask again."""
        pause_s = self._asking.bell_pause_ms(monotonic_ms(self._clock)) / 1000
        return max(0.0, self._asked_s + pause_s - self._clock.monotonic_s())

    def wait(self, timeout_s: float) -> None:
        """Return when something that runs here has an end, or after `timeout_s`."""
        self._pool.wait(timeout_s)

    def close(self) -> None:
        """Give back what is unfinished, and leave."""
        with self._pulse.round():
            self._pool.release()
            self._pulse.leave()

    # Catalog and members

    def _follow(self) -> None:
        """Serve the queues of the catalog."""
        catalog: Catalog = self._catalog.now.catalog
        queues = [queue for queue in catalog.queues if self._only is None or queue.id in self._only]
        before, self._served = self._served, {}
        for queue in queues:
            served = before.get(queue.id) or _Served(queue, Ear(self._files.bells, queue.id))
            served.queue = queue
            self._served[queue.id] = served

    def _others(self, queue: Queue) -> Mapping[str, int]:
        """Only who serves a queue with a reserve has to know who else does."""
        if not queue.reserved_slots:
            return {}
        alive = [seen.says for seen in self._files.members.listed() if seen.is_alive]
        workers = [says for says in alive if says is not None and says.role is FleetRole.WORKER]
        return {says.name: says.load[queue.id].slots for says in workers if queue.id in says.load}

    def _reserved(self, served: _Served) -> int:
        """Slots of this process that are kept for what is small or urgent, of those that it has now: their
        number is known once Spark has started."""
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
        is_idle = self.idle_s * 1000 >= BEAT_EVERY_MS  # who has work again says so at once
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
        """What runs here goes on as if it had been admitted under the newest catalog."""
        number = self._catalog.now.number
        self._claimed = {key: replace(one, catalog=number) for key, one in self._claimed.items()}

    def _member(self, beats_ms: int) -> FleetMember:
        """What is to be said now."""
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
        """All there are here, in compactions of this queue."""
        return self._pool.slots * queue.per_slot

    def _used(self) -> tuple[Fraction, Fraction]:
        """How much is used of the slots, and of that by ordinary work. What is given back and cannot be told
        so yet takes room as well."""
        ordinary = sum(
            (one.share for one in self._claimed.values() if not one.hint.may_use_reserve), Fraction()
        )
        claimed = sum((one.share for one in self._claimed.values()), Fraction())
        return claimed + max(0, self._pool.held - len(self._claimed)), ordinary

    def _left(self) -> dict[str, int]:
        """How many more of each queue have room, by its id."""
        used, _ = self._used()
        queues = [served.queue for served in self._served.values()]
        return {
            queue.id: left_for(self._pool.slots, used, queue.per_slot)
            for queue in queues
            if queue.state is not QueueState.PAUSED
        }

    def _room(self, left: Mapping[str, int]) -> tuple[dict[str, Slots], Usage, dict[str, int]]:
        """By queue id the slots, how many are used, and by queue id its weight. Every queue has room for one:
        else those whose compactions share slots would have all turns."""
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
        # All are asked: who has heard one goes on listening to the others.
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

    def _all_hints(self, queue_id: str) -> Sequence[Hint]:
        """Of all boards. Which there are is listed now and then: a ring names a new one."""
        served, now_ms = self._served[queue_id], monotonic_ms(self._clock)
        if served.listed_ms is None or now_ms - served.listed_ms >= LIST_BOARDS_EVERY_MS:
            served.are_there(self._files.boards.members(queue_id), now_ms)
            served.listed_ms = now_ms
        return self._files.boards.read_of(queue_id, served.boards)

    def _claim(self) -> bool:
        """Claim until there is no room, or nothing to claim."""
        has_claimed = False
        while any((left := self._left()).values()):
            slots, usage, weights = self._room(left)
            now_ms = monotonic_ms(self._clock)
            found = self._choice.next(slots, usage, weights, now_ms)
            if found is None:
                break
            queue_id, hint = found
            if not left[queue_id]:
                break  # it is its turn, and it needs more than is left of a slot: nothing is taken before it
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

    def _catalog_of(self, hint: Hint) -> Numbered | None:
        """The one that it was admitted under; the newest when that is not known or gone, `None` when it
        cannot be read here."""
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
        """Whether the dataset can be open here with the settings of this catalog; then it is with the next
        claim. What no rule names is nobody's to work on, whoever hints at it."""
        rule = catalog.rule_for(url)
        if rule is None:
            return False
        if not self._pool.forget(url) and self._rules[url].settings != rule.settings:
            return False
        self._rules[url] = rule
        return True
