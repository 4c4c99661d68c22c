"""A small world in which the rules of a fleet are played: members admit, workers claim, things go wrong.

One virtual clock, one seed. Real are the rules: placement, cadence, routing, quotas, admission, hints,
asking, faults, rest. A toy is everything else: ledgers are values that a claim changes if it comes first,
boards and bells are values that a claim or a look reads after a while. Members and workers come, die and see
each other late, the clocks of members are up to an hour off, bells get lost, some datasets are poison and
some workers fail whatever they try.

The judge (`tests.planning.fleet.judge`) works out for itself what should have happened.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum

from lithify.base.backoff import GrowingPause
from lithify.planning.admission import WorkKey
from lithify.planning.fleet import notifications, quotas, slots
from lithify.planning.fleet import task_offers as hint_rules
from lithify.planning.fleet.admission import Active, QueueAdmission, QueueLimits, TenantShare
from lithify.planning.fleet.cadence import Depth, PollState, depth, is_due
from lithify.planning.fleet.faults import FaultOrigin, Faults
from lithify.planning.fleet.notifications import Ring
from lithify.planning.fleet.pending_tasks import SMALL_BYTES, PendingTask
from lithify.planning.fleet.placement import Placement
from lithify.planning.fleet.polling import PollBackoff
from lithify.planning.fleet.priorities import PriorityClass
from lithify.planning.fleet.quotas import Demand
from lithify.planning.fleet.routing import Routing
from lithify.planning.fleet.slots import Slots, Usage
from lithify.planning.fleet.task_offers import ClaimOffer, HintChoice
from lithify.planning.rest import Rest
from tests.planning.fleet.judge import Judge

BUSY_MS = 240_000
"""How long work arrives."""
END_MS = 7_200_000
"""By then everything healthy has to be done."""
TICK_MS = 1_000
PUBLISH_MS = 5_000
DEATH_SEEN_MS = 35_000
RECLAIMED_MS = 30_000
SMALL_MS, LARGE_MS = 1_000, 20_000
MAX_SKIPS = 20
"""Hints of datasets that rest with a worker, which it skips at a time."""
REST_PAUSE = GrowingPause(1_000, 600_000)


class State(Enum):
    """Of a piece of work, in its ledger."""

    WANTED = 1
    ADMITTED = 2
    RUNNING = 3
    FAILED = 4
    """An attempt came to nothing; its coordinator has not seen that yet."""
    DONE = 5


@dataclass(slots=True)
class Piece:
    """A piece of work."""

    key: WorkKey
    band: PriorityClass
    priority: float
    cost_bytes: int
    tenant: str
    born_ms: int
    state: State = State.WANTED
    queue: str = ""
    worker: str = ""
    attempts: int = 0
    is_seen: bool = False

    @property
    def is_small(self) -> bool:
        return self.cost_bytes <= SMALL_BYTES


@dataclass(slots=True)
class Dataset:
    """A dataset, with the truth about it."""

    url: str
    tenant: str
    is_hot: bool
    is_poison: bool
    band: PriorityClass
    pieces: dict[WorkKey, Piece] = field(default_factory=dict)
    changed_ms: int = 0
    version: int = 0
    born: int = 0


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue of the world."""

    name: str
    largest_bytes: int | None
    limits: QueueLimits
    reserved_slots: int
    weight: int
    is_draining: bool = False


class World:
    """What one seed plays."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.now_ms = 0
        self.counts: Counter[str] = Counter()
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = 0
        self.queues = self._draw_queues()
        self.routing = Routing(self.queues)
        self.tenants: dict[str | None, TenantShare] = {
            name: TenantShare(rng.randint(1, 3), rng.choice([None, None, rng.randint(1, 3)]))
            for name in "abc"[: rng.randint(1, 3)]
        }
        self.datasets = {d.url: d for d in self._draw_datasets()}
        self.workers: dict[str, Worker] = {}
        self.coordinators: dict[str, Coordinator] = {}
        self.alive: tuple[str, ...] = ()
        """Coordinators, as they see each other."""
        self.view_ms = 0
        """Since when."""
        self._shares: dict[tuple[tuple[str, ...], str], list[str]] = {}
        self.boards: dict[str, dict[str, tuple[ClaimOffer, ...]]] = {q.name: {} for q in self.queues}
        self.bells: dict[str, tuple[Ring, ...]] = {q.name: () for q in self.queues}
        self.demands: dict[str, dict[str, Demand]] = {q.name: {} for q in self.queues}
        self.tenant_demands: dict[str, dict[str, dict[str | None, int]]] = {q.name: {} for q in self.queues}
        self.judge = Judge(self)

    def _draw_queues(self) -> tuple[Queue, ...]:
        rng = self.rng

        def limits() -> QueueLimits:
            return QueueLimits(rng.choice([3, 10, 1_000]), rng.choice([0.3, 1.0]))

        rest = Queue("rest", None, limits(), rng.choice([0, 1, 2]), rng.randint(1, 3))
        if rng.random() < 0.5:
            return (rest,)
        return (Queue("small", rng.choice([SMALL_BYTES, 1 << 32]), limits(), 0, rng.randint(1, 3)), rest)

    def _draw_datasets(self) -> list[Dataset]:
        rng = self.rng
        names = [name for name in self.tenants if name is not None]
        hot = rng.randrange(30) if rng.random() < 0.8 else -1
        return [
            Dataset(
                f"db-{n}",
                rng.choice(names),
                is_hot=n == hot,
                is_poison=n != hot and rng.random() < 0.1,
                band=rng.choice([PriorityClass.STALL, PriorityClass.OVER_LIMIT])
                if n == hot
                else rng.choice([*PriorityClass, PriorityClass.NORMAL]),
            )
            for n in range(max(hot + 1, rng.randint(5, 30)))
        ]

    # Time

    def at(self, delay_ms: int, call: Callable[[], None]) -> None:
        self._numbers += 1
        heapq.heappush(self._events, (self.now_ms + delay_ms, self._numbers, call))

    def play(self) -> None:
        rng = self.rng
        for n in range(rng.randint(1, 4)):
            self.join_coordinator(f"coordinator-{n}")
        count = rng.choice([3, 6, 24])
        bad = rng.choice([0, 0, 1, 2]) if count > 3 else 0
        for n in range(count):
            self.join_worker(f"worker-{n:02}", rng.randint(1, 3), is_bad=0 < n <= bad)
        if len(self.coordinators) > 1 and rng.random() < 0.4:
            self.at(rng.randrange(BUSY_MS), lambda: self.kill_coordinator(min(self.alive)))
        if rng.random() < 0.4:
            self.at(rng.randrange(BUSY_MS), lambda: self.join_coordinator("coordinator-new"))
        if rng.random() < 0.4:
            self.at(rng.randrange(BUSY_MS), lambda: self.kill_worker(max(self.workers)))
        for dataset in self.datasets.values():
            self.at(rng.randrange(BUSY_MS // 2), lambda dataset=dataset: self.arrive(dataset))  # type: ignore[misc]
        while self._events and self.now_ms < END_MS and not self._is_done():
            self.now_ms, _, call = heapq.heappop(self._events)
            call()
        self.judge.ended()

    def _is_done(self) -> bool:
        return self.now_ms > BUSY_MS and not any(self.unfinished())

    def unfinished(self) -> list[Piece]:
        """What is healthy and not done."""
        return [p for d in self.datasets.values() if not d.is_poison for p in d.pieces.values()]

    # What happens to datasets

    def arrive(self, dataset: Dataset) -> None:
        if self.now_ms > BUSY_MS:
            return
        for _ in range(40 if dataset.is_hot and not dataset.born else self.rng.choice([1, 1, 3])):
            self.add(dataset)
        self.at(self.rng.randrange(1_000, 150_000), lambda: self.arrive(dataset))

    def add(self, dataset: Dataset) -> None:
        dataset.born += 1
        key = WorkKey(dataset.url, str(dataset.born))
        cost = self.rng.choice([1 << 20] * (8 if dataset.is_hot else 1) + [1 << 30, 1 << 34])
        dataset.pieces[key] = Piece(
            key, dataset.band, round(self.rng.random(), 1), cost, dataset.tenant, self.now_ms
        )
        self.judge.born(dataset)
        self.changed(dataset)

    def changed(self, dataset: Dataset) -> None:
        dataset.version += 1
        dataset.changed_ms = self.now_ms

    def done(self, piece: Piece) -> None:
        dataset = self.datasets[piece.key.dataset]
        piece.state = State.DONE
        self.changed(dataset)
        if dataset.is_hot and self.now_ms < BUSY_MS:
            self.add(dataset)

    # Who takes part

    def join_coordinator(self, name: str) -> None:
        self.coordinators[name] = Coordinator(self, name, self.rng.randrange(-3_600_000, 3_600_000))
        self.alive, self.view_ms = (*self.alive, name), self.now_ms

    def kill_coordinator(self, name: str) -> None:
        self.coordinators.pop(name).is_dead = True
        self.at(DEATH_SEEN_MS, lambda: self.forget_coordinator(name))

    def forget_coordinator(self, name: str) -> None:
        self.alive = tuple(other for other in self.alive if other != name)
        self.view_ms = self.now_ms
        for queue in self.queues:
            self.boards[queue.name].pop(name, None)
            self.demands[queue.name].pop(name, None)
            self.tenant_demands[queue.name].pop(name, None)

    def join_worker(self, name: str, count: int, *, is_bad: bool) -> None:
        self.workers[name] = Worker(self, name, count, is_bad)

    def kill_worker(self, name: str) -> None:
        worker = self.workers.pop(name)
        worker.is_dead = True
        for piece in worker.running.values():
            self.at(RECLAIMED_MS, lambda piece=piece: self.reclaim(piece))  # type: ignore[misc]

    def reclaim(self, piece: Piece) -> None:
        piece.state, piece.attempts = State.ADMITTED, piece.attempts + 1
        self.changed(self.datasets[piece.key.dataset])

    def share(self, name: str) -> list[str]:
        """What a coordinator watches, as long as the same are alive."""
        if (self.alive, name) not in self._shares:
            self._shares[self.alive, name] = Placement(self.alive).share(name, self.datasets)
        return self._shares[self.alive, name]

    def slots_of(self) -> dict[str, int]:
        """Of all live workers; all serve all queues."""
        return {name: worker.count for name, worker in self.workers.items()}


class Coordinator:
    """A member that watches and admits."""

    def __init__(self, world: World, name: str, offset_ms: int) -> None:
        self.world, self.name, self.offset_ms = world, name, offset_ms
        self.is_dead = False
        self.queues = {q.name: QueueAdmission(q.limits) for q in world.queues}
        self.faults = Faults()
        self.watched: dict[str, PollState] = {}
        self.versions: dict[str, int] = {}
        self.recalled: set[str] = set()
        self.hints: dict[WorkKey, ClaimOffer] = {}
        self.published_ms = -PUBLISH_MS
        world.at(world.rng.randrange(TICK_MS), self.tick)

    def tick(self) -> None:
        if self.is_dead:
            return
        world = self.world
        mine = world.share(self.name)
        for url in [url for url in self.watched if url not in mine]:
            del self.watched[url]
            world.judge.forgotten(self, url)
            for admission in self.queues.values():
                admission.forget(url)
        for url in mine:
            watched = self.watched.setdefault(url, PollState(url, world.now_ms))
            if is_due(watched, world.now_ms) or url in self.recalled:
                self.look(world.datasets[url])
        self.recalled = set()
        self.publish()
        for queue in world.queues:
            self.admit(queue)
        self.put_up()
        world.at(TICK_MS, self.tick)

    def look(self, dataset: Dataset) -> None:
        world, now_ms = self.world, self.world.now_ms
        watched = self.watched[dataset.url]
        how = depth(watched, now_ms)
        world.counts[f"looked: {how.name}"] += 1
        if self.versions.get(dataset.url) != dataset.version:
            self.versions[dataset.url] = dataset.version
            watched = replace(watched, changed_ms=now_ms)
        for piece in list(dataset.pieces.values()):
            if not piece.is_seen:
                piece.is_seen = True
                world.judge.seen(piece)
            if piece.state is State.FAILED:
                self.blame(piece)
            elif piece.state is State.DONE:
                self.faults.succeeded(piece.key, piece.worker)
                del dataset.pieces[piece.key]
        pieces = dataset.pieces.values()
        for queue in world.queues:
            active = [
                p for p in pieces if p.state in (State.ADMITTED, State.RUNNING) and p.queue == queue.name
            ]
            wants = [
                p for p in pieces if p.state is State.WANTED and world.routing.route(p.cost_bytes) == queue
            ]
            admission = self.queues[queue.name]
            admission.follow(dataset.url, [Active(self.want(p)) for p in active])
            offered = [self.want(p) for p in wants]
            admission.offer(dataset.url, offered, now_ms)
            world.judge.offered(self, queue, dataset, offered)
        is_running = any(p.state in (State.ADMITTED, State.RUNNING) for p in pieces)
        listed_ms = now_ms if how is Depth.LISTING else watched.listed_ms
        self.watched[dataset.url] = replace(
            watched, looked_ms=now_ms, listed_ms=listed_ms, is_running=is_running
        )

    def blame(self, piece: Piece) -> None:
        fault = self.faults.failed(piece.key, piece.worker)
        self.world.counts[f"blamed: {fault.name}"] += 1
        self.world.judge.blamed(self, piece, fault)
        if fault is FaultOrigin.WORKER:
            piece.state, piece.attempts = State.ADMITTED, piece.attempts + 1
        else:
            piece.state = State.WANTED
            self.queues[piece.queue].failed(piece.key, self.world.now_ms)

    def want(self, piece: Piece) -> PendingTask:
        since_ms = piece.born_ms + self.offset_ms
        return PendingTask(piece.key, piece.band, piece.priority, piece.cost_bytes, since_ms, piece.tenant)

    def publish(self) -> None:
        if self.world.now_ms - self.published_ms < PUBLISH_MS:
            return
        self.published_ms = self.world.now_ms
        for queue, admission in self.queues.items():
            figures = admission.figures()
            self.world.demands[queue][self.name] = figures.demand
            self.world.tenant_demands[queue][self.name] = dict(figures.demand_by_tenant)

    def admit(self, queue: Queue) -> None:
        world, admission = self.world, self.queues[queue.name]
        total = sum(world.slots_of().values())
        figures = admission.figures()
        demands = {**world.demands[queue.name], self.name: figures.demand}
        room = quotas.quota(self.name, total, queue.reserved_slots, demands)
        tenants = {name: self.part(queue, name, tenant) for name, tenant in world.tenants.items()}
        world.judge.admits(self, queue, room, total, tenants)
        for want in admission.admit(room, total, tenants):
            piece = world.datasets[want.dataset].pieces.get(want.key)
            world.judge.admitted(self, queue, want)
            if piece is None or piece.state is not State.WANTED:
                world.counts["planned anew, and there was nothing to do"] += 1
                self.recalled.add(want.dataset)
                continue
            piece.state, piece.queue = State.ADMITTED, queue.name
            world.counts["admitted"] += 1
            self.watched[want.dataset] = replace(self.watched[want.dataset], is_running=True)
        recalled = admission.recall(world.now_ms)
        world.counts["recalled"] += len(recalled)
        self.recalled.update(url for url in recalled if url in self.watched)

    def part(self, queue: Queue, name: str | None, tenant: TenantShare) -> TenantShare:
        if tenant.most_running is None:
            return tenant
        of = {member: demand.get(name, 0) for member, demand in self.world.tenant_demands[queue.name].items()}
        of[self.name] = self.queues[queue.name].figures().demand_by_tenant.get(name, 0)
        return replace(tenant, most_running=quotas.tenant_cap(self.name, tenant.most_running, of))

    def put_up(self) -> None:
        world = self.world
        pieces = [
            piece
            for url in self.watched
            for piece in world.datasets[url].pieces.values()
            if piece.state is State.ADMITTED
        ]
        free = {
            name: worker.count - len(worker.running)
            for name, worker in world.workers.items()
            if not self.faults.is_suspect(name)
        }
        idle = {name: count for name, count in free.items() if count > 0}
        new = [p for p in pieces if p.key not in self.hints or self.hints[p.key].attempts != p.attempts]
        whom = hint_rules.meant_for([p.key for p in new], idle, self.faults.failed_with)
        before, self.hints = self.hints, {}
        for piece in pieces:
            hint = before.get(piece.key)
            if hint is None or hint.attempts != piece.attempts:
                since_ms = world.now_ms + self.offset_ms
                hint = ClaimOffer(
                    piece.key.dataset, piece.key.unit, piece.band, piece.priority, piece.cost_bytes, since_ms,
                    piece.attempts, piece.tenant, whom.get(piece.key), len(idle), board=self.name,
                )  # fmt: skip
            self.hints[piece.key] = hint
        for queue in world.queues:
            board = tuple(self.hints[p.key] for p in pieces if p.queue == queue.name)
            world.boards[queue.name][self.name] = board
            rung = [self.hints[p.key] for p in new if p.queue == queue.name]
            if rung and world.rng.random() < 0.9:
                ring = notifications.ring_of(f"{self.name} {world.now_ms}", self.name, rung)
                world.bells[queue.name] = notifications.added(world.bells[queue.name], ring)


class Worker:
    """A process that claims and executes."""

    def __init__(self, world: World, name: str, count: int, is_bad: bool) -> None:
        self.world, self.name, self.count, self.is_bad = world, name, count, is_bad
        self.is_dead = False
        self.running: dict[WorkKey, Piece] = {}
        self.choice = HintChoice(name)
        self.asking = PollBackoff(world.now_ms)
        self.rest = Rest(REST_PAUSE)
        self.heard: dict[str, set[str]] = {}
        self.is_claiming = False
        world.at(world.rng.randrange(TICK_MS), self.tick)

    def tick(self) -> None:
        if self.is_dead:
            return
        self.ask()
        self.world.at(self.asking.bell_pause_ms(self.world.now_ms), self.tick)

    def ask(self) -> None:
        world = self.world
        if self.is_claiming or len(self.running) >= self.count:
            return
        heard = {
            queue: notifications.unheard(rung, self.heard.get(queue, ()))
            for queue, rung in world.bells.items()
        }
        self.heard = {queue: {ring.id for ring in rung} for queue, rung in world.bells.items()}
        is_unsure = any(rung is None for rung in heard.values())
        is_due = self.asking.reads_boards(world.now_ms, has_rung=is_unsure)
        rung = {
            queue: {ring.board for ring in of or () if ring.wakes(self.name)} for queue, of in heard.items()
        }
        members = {member for of in rung.values() for member in of}
        if is_unsure or members:
            self.asking = self.asking.rung()
        if is_due or members:
            world.counts["read boards" if is_due else "read rung boards"] += 1
            boards = {
                queue: [
                    hint for member, of in by_member.items() if is_due or member in members for hint in of
                ]
                for queue, by_member in world.boards.items()
                if is_due or rung[queue]
            }
            self.choice.see(boards, world.now_ms, None if is_due else members)
            self.asking = self.asking.missed(world.now_ms)
            world.judge.read(self, boards, None if is_due else members)
        self.claim()

    def claim(self) -> None:
        world = self.world
        if self.is_dead or len(self.running) >= self.count:
            return
        slots_now, usage, weights = self.room()
        found = None
        for _ in range(MAX_SKIPS if not self.rest.lasts("the process", world.now_ms) else 0):
            found = self.choice.next(slots_now, usage, weights, world.now_ms)
            if found is None or not self.rest.lasts(found[1].url, world.now_ms):
                break
            self.choice.lost(found[1], world.now_ms)
            found = None
        world.judge.idles(self, found)
        if found is not None:
            self.is_claiming = True
            world.at(world.rng.randrange(200, 400), lambda: self.claimed(*found))

    def room(self) -> tuple[dict[str, Slots], Usage, dict[str, int]]:
        world, usage = self.world, Usage()
        for piece in self.running.values():
            usage = usage.plus(may_use_reserve=piece.is_small or piece.band is PriorityClass.STALL)
        room = {
            q.name: Slots(
                self.count, self.count - slots.reserved_of(self.name, world.slots_of(), q.reserved_slots)
            )
            for q in world.queues
        }
        return room, usage, {q.name: q.weight for q in world.queues}

    def claimed(self, queue: str, hint: ClaimOffer) -> None:
        world = self.world
        self.is_claiming = False
        if self.is_dead:
            return
        piece = world.datasets[hint.url].pieces.get(hint.key)
        if piece is None or piece.state is not State.ADMITTED or piece.queue != queue:
            world.counts["lost"] += 1
            world.judge.lost()
            self.choice.lost(hint, world.now_ms)
        else:
            world.counts["claimed"] += 1
            slots_now, usage, weights = self.room()
            world.judge.claimed(self, queue, hint, usage)
            self.choice.claimed(hint, slots_now, usage, weights, world.now_ms)
            self.asking = self.asking.claimed(world.now_ms)
            piece.state, piece.worker = State.RUNNING, self.name
            self.running[piece.key] = piece
            fails = self.is_bad or world.datasets[hint.url].is_poison
            run_ms = 500 if self.is_bad else SMALL_MS if piece.is_small else LARGE_MS
            world.at(run_ms, lambda: self.ended(piece, fails))
        self.claim()

    def ended(self, piece: Piece, fails: bool) -> None:
        world = self.world
        if self.is_dead:
            return
        del self.running[piece.key]
        self.asking = self.asking.claimed(world.now_ms)
        if fails:
            world.counts["failed"] += 1
            piece.state = State.FAILED
            world.changed(world.datasets[piece.key.dataset])
            self.choice.failed(piece.key, world.now_ms)
            self.rest.failed(piece.key.dataset, world.now_ms)
            world.judge.failed(self, piece)
        else:
            self.rest.succeeded(piece.key.dataset)
            world.done(piece)
        self.ask()
