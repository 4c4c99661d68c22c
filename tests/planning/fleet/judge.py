"""The judge of the world of a fleet: works out anew what should have happened, from what the world did.

Where it cannot know a number that a party reckons with, it takes one that speaks for the party.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from simulator.core.outcome import Violation

from lithify.planning.admission import WorkKey
from lithify.planning.fleet.admission import TenantShare
from lithify.planning.fleet.faults import FaultOrigin
from lithify.planning.fleet.pending_tasks import SMALL_BYTES, PendingTask
from lithify.planning.fleet.priorities import PriorityClass
from lithify.planning.fleet.slots import Slots, Usage
from lithify.planning.fleet.task_offers import ClaimOffer
from tests.planning.fleet import rules

if TYPE_CHECKING:
    from tests.planning.fleet.world import Coordinator, Dataset, Piece, Queue, Worker, World

FAIR_EVERY = 4
SUSPECT_DATASETS = 3
FIRST_REST_MS, MAX_REST_MS = 60_000, 6 * 3_600_000
IDLE_MS = 75_000
"""A bell that is lost, hints lost to others that are claimed by nobody then, and those meant for others."""
MAX_SICK_FAILURES = 40
"""In two hours: after pauses of 1, 4, 16, 64, 256 and then 600 s, up to three at once."""


def most_claims(waiting: int) -> int:
    return FAIR_EVERY * (waiting + 1)


class Judge:
    """Sees what happens, and raises `Violation`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._waiting: dict[tuple[str, str], dict[str, dict[WorkKey, PendingTask]]] = defaultdict(dict)
        """By coordinator and queue, by dataset: what is offered and does not rest."""
        self._offered: dict[tuple[str, str], dict[str, set[WorkKey]]] = defaultdict(dict)
        """The same with what rests."""
        self._passed: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        self._most_waiting: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        """How many waited at most since it does."""
        self._streak: Counter[tuple[str, str]] = Counter()
        self._failures: dict[tuple[str, WorkKey], tuple[int, int]] = {}
        """By coordinator: how often it failed by its own fault, and until when it rests."""
        self._admitter: dict[str, tuple[str, int]] = {}
        self._silence_ms: dict[WorkKey, int] = {}
        self._changed_ms: dict[str, int] = {}
        self._room = (Slots(0, 0), 0, dict[str | None, TenantShare]())
        self._has_deferred = False
        self._failing: dict[tuple[str, str], set[str]] = defaultdict(set)
        """By coordinator and poison worker, datasets that failed."""
        self._sick: Counter[str] = Counter()
        self._first_seen: dict[tuple[str, WorkKey, int], int] = {}
        self._hint_passed: dict[str, Counter[WorkKey]] = defaultdict(Counter)
        self._hint_streak: Counter[tuple[str, str]] = Counter()
        self._seen_by: dict[str, dict[WorkKey, tuple[str, ClaimOffer]]] = defaultdict(dict)
        self._tried: dict[str, set[WorkKey]] = defaultdict(set)
        self._idle_since: dict[tuple[str, WorkKey], int] = {}

    def _fail(self, rule: str, text: str) -> Violation:
        return Violation(rule, f"at {self._world.now_ms} ms: {text}")

    # Looking

    def born(self, dataset: Dataset) -> None:
        now_ms = self._world.now_ms
        self._silence_ms[list(dataset.pieces)[-1]] = now_ms - self._changed_ms.get(dataset.url, 0)
        self._changed_ms[dataset.url] = now_ms

    def seen(self, piece: Piece) -> None:
        now_ms = self._world.now_ms
        silence_ms = self._silence_ms[piece.key]
        allowed_ms = min(max(silence_ms // 10, 5_000), 300_000) + 10_000
        settled = self._world.view_ms + 40_000 < piece.born_ms
        if settled and now_ms - piece.born_ms > allowed_ms:
            raise self._fail(
                rules.SEEN, f"{piece.key} of {piece.born_ms} ms after a silence of {silence_ms} ms"
            )

    def offered(
        self, coordinator: Coordinator, queue: Queue, dataset: Dataset, wants: Iterable[PendingTask]
    ) -> None:
        now_ms = self._world.now_ms
        waiting = self._waiting[coordinator.name, queue.name]
        found = {want.key: want for want in wants}
        self._offered[coordinator.name, queue.name][dataset.url] = set(found)
        keys = found.keys() if self._is_resting(coordinator, queue, dataset.url) else ()
        rest = [key for key in found if self._failures.get((coordinator.name, key), (0, 0))[1] > now_ms]
        found = {key: want for key, want in found.items() if key not in keys and key not in rest}
        if found:
            waiting[dataset.url] = found
        else:
            waiting.pop(dataset.url, None)
            self._passed[coordinator.name, queue.name].pop(dataset.url, None)
        for want in found.values():
            sizes = [q.largest_bytes for q in self._world.queues if q.largest_bytes is not None]
            small = any(want.cost_bytes < size for size in sizes)
            if (queue.name == "small") != small:
                raise self._fail(rules.ROUTED, f"{want.key} of {want.cost_bytes} bytes in {queue.name}")

    def _is_resting(self, coordinator: Coordinator, queue: Queue, url: str) -> bool:
        """Whether the whole dataset rests after failures in a row, as its coordinator knows best."""
        admission = coordinator.queues[queue.name]
        return url in admission._resting and url not in admission._queued

    def forgotten(self, coordinator: Coordinator, url: str) -> None:
        for queue in self._world.queues:
            self._waiting[coordinator.name, queue.name].pop(url, None)
            self._offered[coordinator.name, queue.name].pop(url, None)
            self._passed[coordinator.name, queue.name].pop(url, None)

    # Admission

    def admits(
        self,
        coordinator: Coordinator,
        queue: Queue,
        room: Slots,
        total: int,
        tenants: Mapping[str | None, TenantShare],
    ) -> None:
        self._room = (room, total, dict(tenants))
        waiting = self._waiting[coordinator.name, queue.name]
        figures = coordinator.queues[queue.name].figures()
        if figures.queued > max(queue.limits.longest_backlog, len(waiting)):
            raise self._fail(rules.BACKLOG, f"{figures.queued} in {queue.name} of {coordinator.name}")
        self._has_deferred = figures.deferred > 0
        offered = sum(map(len, self._offered[coordinator.name, queue.name].values()))
        if figures.queued + figures.deferred + figures.resting != offered:
            raise self._fail(rules.COUNTED, f"{figures} where {offered} were offered")

    def admitted(self, coordinator: Coordinator, queue: Queue, want: PendingTask) -> None:
        room, total, tenants = self._room
        running = self._running(coordinator, queue)
        by_dataset = Counter(piece.key.dataset for piece in running)
        by_tenant: Counter[str | None] = Counter(piece.tenant for piece in running)
        ordinary = sum(not _may_use_reserve(piece.band, piece.cost_bytes) for piece in running)
        share = max(1, int(total * queue.limits.largest_share))
        waiting = self._waiting[coordinator.name, queue.name]
        self._check_owner(coordinator, want)
        if self._failures.get((coordinator.name, want.key), (0, 0))[1] > self._world.now_ms:
            raise self._fail(rules.RESTS, f"{want.key} is admitted while it rests")
        if len(running) > total:
            raise self._fail(
                rules.QUOTA, f"{coordinator.name} has {len(running)} in {queue.name}, of {total} slots"
            )
        if by_dataset[want.dataset] >= share:
            raise self._fail(rules.SHARE, f"{want.key} beside {by_dataset[want.dataset]} of {share}")
        cap = self._world.tenants[want.tenant].most_running
        if cap is not None and by_tenant[want.tenant] >= cap:
            raise self._fail(rules.CAP, f"{want.key} beside {by_tenant[want.tenant]} of {cap}")
        is_open = ordinary < room.open
        if not is_open and not _may_use_reserve(want.band, want.cost_bytes):
            raise self._fail(rules.RESERVE, f"{want.key} is admitted beside {ordinary} of {room.open}")
        if is_open:
            able = {
                url: wants
                for url, wants in waiting.items()
                if by_dataset[url] < share and self._has_room(url, by_tenant, tenants)
            }
            self._check_turn(coordinator, queue, want, able)
        waiting.get(want.dataset, {}).pop(want.key, None)
        self._offered[coordinator.name, queue.name].get(want.dataset, set()).discard(want.key)
        if not waiting.get(want.dataset):
            waiting.pop(want.dataset, None)
        self._passed[coordinator.name, queue.name].pop(want.dataset, None)

    def _has_room(
        self, url: str, by_tenant: Counter[str | None], tenants: Mapping[str | None, TenantShare]
    ) -> bool:
        name = self._world.datasets[url].tenant
        most = tenants[name].most_running
        return most is None or by_tenant[name] < most

    def _check_turn(
        self,
        coordinator: Coordinator,
        queue: Queue,
        want: PendingTask,
        able: Mapping[str, Mapping[WorkKey, PendingTask]],
    ) -> None:
        place = coordinator.name, queue.name
        passed = self._passed[place]
        for url in able:
            of_tenant = self._world.datasets[url].tenant
            capped = self._world.tenants[of_tenant].most_running is not None
            if url != want.dataset and (not capped or of_tenant == want.tenant):
                passed[url] += 1
                most = self._most_waiting[place]
                most[url] = max(most[url], len(self._waiting[place])) if passed[url] > 1 else len(able)
                late = self._room[1] if self._has_deferred else 0
                if passed[url] > most_claims(most[url]) + late:
                    raise self._fail(rules.STARVED, f"{url} waits for {passed[url]} claims in {place}")
        if self._has_deferred:
            return  # who knows which
        best = min((one.band for wants in able.values() for one in wants.values()), default=want.band)
        self._streak[place] = self._streak[place] + 1 if want.band > best else 0
        if self._streak[place] > len(self._world.tenants) + 1:
            raise self._fail(rules.BAND, f"{want} while {best.name} waits in {place}")

    def _check_owner(self, coordinator: Coordinator, want: PendingTask) -> None:
        other, at_ms = self._admitter.get(want.dataset, (coordinator.name, 0))
        if other != coordinator.name and at_ms > self._world.view_ms + 5_000:
            raise self._fail(rules.OWNER, f"{want.key} is admitted by {coordinator.name} and {other}")
        self._admitter[want.dataset] = coordinator.name, self._world.now_ms

    def _running(self, coordinator: Coordinator, queue: Queue) -> list[Piece]:
        """What it has admitted and not seen the end of."""
        return [
            piece
            for url in coordinator.watched
            for piece in self._world.datasets[url].pieces.values()
            if piece.queue == queue.name and piece.state.name != "WANTED"
        ]

    # Failures

    def blamed(self, coordinator: Coordinator, piece: Piece, fault: FaultOrigin) -> None:
        worker = self._world.workers.get(piece.worker)
        if worker is not None and worker.is_bad:
            failing = self._failing[coordinator.name, worker.name]
            failing.add(piece.key.dataset)
            if fault is FaultOrigin.WORK and len(failing) >= SUSPECT_DATASETS:
                raise self._fail(rules.BLAME, f"{piece.key} rests for what {worker.name} did")
        if fault is FaultOrigin.WORK:
            count, _ = self._failures.get((coordinator.name, piece.key), (0, 0))
            rest_ms = min(FIRST_REST_MS << count, MAX_REST_MS)
            self._failures[coordinator.name, piece.key] = count + 1, self._world.now_ms + rest_ms

    def failed(self, worker: Worker, piece: Piece) -> None:
        self._tried[worker.name].add(piece.key)
        if worker.is_bad:
            self._sick[worker.name] += 1
            if self._sick[worker.name] > MAX_SICK_FAILURES:
                raise self._fail(rules.SICK, f"{worker.name} has failed {self._sick[worker.name]} times")

    # Claims

    def read(
        self, worker: Worker, boards: Mapping[str, Iterable[ClaimOffer]], members: Collection[str] | None
    ) -> None:
        """All boards, or of these queues those of `members`."""
        kept = {
            key: (queue, hint)
            for key, (queue, hint) in self._seen_by[worker.name].items()
            if members is not None and (queue not in boards or hint.board not in members)
        }
        read = {hint.key: (queue, hint) for queue, hints in boards.items() for hint in hints}
        self._seen_by[worker.name] = {**kept, **read}
        passed = self._hint_passed[worker.name]
        for key in [key for key in passed if key not in self._seen_by[worker.name]]:
            del passed[key]

    def claimed(self, worker: Worker, queue: str, hint: ClaimOffer, usage: Usage) -> None:
        world = self._world
        reserved = self._reserved(worker, queue)
        if not _may_use_reserve(hint.band, hint.bytes) and usage.ordinary >= worker.count - reserved:
            raise self._fail(rules.RESERVE, f"{worker.name} with {reserved} of {worker.count} claims {hint}")
        seen = self._seen_by[worker.name]
        seen.pop(hint.key, None)
        self._hint_passed[worker.name].pop(hint.key, None)
        if usage.ordinary >= worker.count - reserved:
            return
        others = [
            other
            for where, other in seen.values()
            if where == queue
            and other.worker is None
            and not other.idle_workers
            and not other.attempts
            and other.url not in {key.dataset for key in self._tried[worker.name]}
            and self._is_free(other)
        ]
        for other in others:
            self._hint_passed[worker.name][other.key] += 1
            if self._hint_passed[worker.name][other.key] > most_claims(len(seen) + 1):
                raise self._fail(rules.HINT_STARVED, f"{other} is passed over by {worker.name}")
        place = worker.name, queue
        is_worse = any(other.band < hint.band for other in others)
        self._hint_streak[place] = self._hint_streak[place] + 1 if is_worse else 0
        if self._hint_streak[place] > 2:
            raise self._fail(rules.HINT_BAND, f"{worker.name} claims {hint} again instead of better ones")
        world.counts["hints judged"] += bool(others)

    def idles(self, worker: Worker, found: object) -> None:
        """A healthy worker has asked, and found this to claim."""
        now_ms = self._world.now_ms
        free = {} if found is not None or worker.is_bad else self._for(worker)
        for place in [
            place for place in self._idle_since if place[0] == worker.name and place[1] not in free
        ]:
            del self._idle_since[place]
        for key, hint in free.items():
            since_ms = self._idle_since.setdefault((worker.name, key), now_ms)
            if now_ms - since_ms > IDLE_MS:
                raise self._fail(rules.IDLE, f"{worker.name} idles since {since_ms} ms beside {hint}")

    def _for(self, worker: Worker) -> dict[WorkKey, ClaimOffer]:
        """What stands on the boards that it could do."""
        _, usage, _ = worker.room()
        return {
            hint.key: hint
            for queue, members in self._world.boards.items()
            for hints in members.values()
            for hint in hints
            if self._is_free(hint)
            and not self._tried[worker.name]
            and (
                _may_use_reserve(hint.band, hint.bytes)
                or usage.ordinary < worker.count - self._reserved(worker, queue)
            )
        }

    def _is_free(self, hint: ClaimOffer) -> bool:
        piece = self._world.datasets[hint.url].pieces.get(hint.key)
        return piece is not None and piece.state.name == "ADMITTED" and piece.attempts == hint.attempts

    def _reserved(self, worker: Worker, queue: str) -> int:
        """Of its slots: the first ones of all workers by name are the reserve, and one is not."""
        of = next(q for q in self._world.queues if q.name == queue)
        owners = [name for name, count in sorted(self._world.slots_of().items()) for _ in range(count)]
        return owners[: min(of.reserved_slots, len(owners) - 1)].count(worker.name)

    def lost(self, most: int = 100) -> None:
        """A claim was lost. No more than three for ten that succeed are, and so many besides."""
        claimed, lost = self._world.counts["claimed"], self._world.counts["lost"]
        if lost > 0.3 * claimed + most:
            raise self._fail(rules.LOST, f"{lost} lost beside {claimed}")

    # The end

    def ended(self) -> None:
        left = self._world.unfinished()
        if left:
            raise self._fail(rules.DONE, f"{len(left)} are not done, the first of them {left[0]}")
        self.lost(most=20)


def _may_use_reserve(band: int, cost_bytes: int) -> bool:
    return band == PriorityClass.STALL or cost_bytes <= SMALL_BYTES
