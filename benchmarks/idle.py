"""What coordination costs: requests of an idle database, and claims that many workers fight over. In this
process, on stores that count, with the ticks and the intervals of production.

1. *Idle*: one coordinator with its lease and 1, 10 or 100 workers on a database that needs nothing, for
   `IDLE_MINUTES` of a manual clock. Each process ticks at its own intervals, spread by chance as in
   `lithify.service.loops`. The first minute, in which everybody starts, is not counted.
2. *Claims*: `WORKERS` workers in threads of their own, on a store where each request takes `LATENCY_S`, poll
   for a compaction that appears every `APPEARS_EVERY_S`. A claim is lost when its worker saw the compaction
   free and finds another one's name in the ledger when it publishes.
"""

from __future__ import annotations

import heapq
import itertools
import random
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.judge.official import open_db

from lithify.base import events
from lithify.base.clock import Clock, SystemClock
from lithify.base.errors import LostOwnership
from lithify.base.ids import RandomIds
from lithify.config.model import ServiceSettings
from lithify.coordination.leadership import Leadership, Term
from lithify.datasets.slatedb.dataset import SlateDataset
from lithify.protocol.model import Compaction
from lithify.protocol.transitions import AnyLedger, next_id_ms, schedule, submit
from lithify.service.coordinator import Coordinator
from lithify.service.managed_dataset import JITTER
from lithify.service.worker import Worker, WorkerOptions
from lithify.store.objects import ObjectStore
from lithify.store.urls import open_store
from lithify.testing.clock import ManualClock
from lithify.testing.counting import CountingStore
from lithify.testing.engine import InlineEngine
from lithify.testing.faulty import DelayingStore

SEED = 1
IDLE_WORKERS = (1, 10, 100)
IDLE_MINUTES = 10
WORKERS = 100
LATENCY_S = 0.02
CLAIMS = 10
APPEARS_EVERY_S = 2.0
LOOP = ServiceSettings()


@dataclass(frozen=True, slots=True)
class IdleCost:
    """Requests of one idle database in a minute."""

    workers: int
    requests_per_minute: dict[str, float]

    @property
    def total_per_minute(self) -> float:
        return sum(self.requests_per_minute.values())


@dataclass(frozen=True, slots=True)
class ClaimCost:
    """How often workers were too late."""

    workers: int
    claims: int
    lost: int

    @property
    def lost_per_claim(self) -> float:
        return self.lost / self.claims


def measure_idle() -> list[IdleCost]:
    """The cost of an idle database, by the number of workers."""
    with tempfile.TemporaryDirectory(prefix="idle-") as folder:
        path = _database(Path(folder), flushes=1)
        return [_idle(path, workers) for workers in IDLE_WORKERS]


def measure_claims(workers: int = WORKERS, claims: int = CLAIMS) -> ClaimCost:
    """What many workers lose of so many compactions that appear one after the other."""
    with tempfile.TemporaryDirectory(prefix="claims-") as folder:
        return _claims(_database(Path(folder), flushes=4), workers, claims)


def _database(folder: Path, flushes: int) -> Path:
    path = folder / "db"
    with open_db(path) as database:
        for flush in range(flushes):
            database.put(b"k%d" % flush, b"v")
            database.flush()
    return path


def _idle(path: Path, workers: int) -> IdleCost:
    clock, rng = ManualClock(int(time.time() * 1000)), random.Random(SEED)
    inner, root = open_store(str(path))
    store = CountingStore(inner)

    def dataset() -> SlateDataset:
        return SlateDataset(store, root, clock, RandomIds(rng))

    coordinated = dataset()
    leadership = Leadership(coordinated, clock, RandomIds(rng))
    coordinator = Coordinator(coordinated, clock, RandomIds(rng))

    def coordinate() -> float:
        leadership.renew()
        coordinator.tick()
        return LOOP.poll_interval_s

    def working(worker: Worker) -> Callable[[], float]:
        def work() -> float:
            worker.tick()
            return LOOP.worker.compactions_poll_interval_s

        return work

    actors = [coordinate]
    actors += [working(Worker(dataset(), InlineEngine(), clock, f"w{n}")) for n in range(workers)]
    with leadership.acquire(take_over=True) as term:
        coordinator.start(term)
        turn(actors, clock, rng, 60.0)
        store.reset()
        turn(actors, clock, rng, 60.0 * IDLE_MINUTES)
        counted = {verb.value: count / IDLE_MINUTES for verb, count in store.requests.items()}
    return IdleCost(workers, counted)


def turn(
    actors: list[Callable[[], float]], clock: ManualClock, rng: random.Random, duration_s: float
) -> None:
    """Let each actor act when it is due."""
    end_s = clock.monotonic_s() + duration_s
    order = itertools.count()
    due = [(clock.monotonic_s() + rng.uniform(0, 5), next(order), actor) for actor in actors]
    heapq.heapify(due)
    while due[0][0] < end_s:
        at_s, _, actor = heapq.heappop(due)
        clock.advance_s(max(0.0, at_s - clock.monotonic_s()))
        wait_s = actor() * (1 + rng.uniform(0, JITTER))
        heapq.heappush(due, (clock.monotonic_s() + wait_s, next(order), actor))
    clock.advance_s(max(0.0, end_s - clock.monotonic_s()))


class _CountingDataset(SlateDataset):
    """Counts claims that came too late. Nothing else that a worker writes here can lose ownership."""

    def __init__(self, store: ObjectStore, root: str, clock: Clock) -> None:
        super().__init__(store, root, clock, RandomIds())
        self.lost = 0

    def update_ledger(
        self, change: Callable[[AnyLedger], AnyLedger], first: AnyLedger | None = None
    ) -> AnyLedger:
        try:
            return super().update_ledger(change, first)
        except LostOwnership:
            self.lost += 1
            raise


def _claims(path: Path, workers: int, claims: int) -> ClaimCost:
    clock, stop = SystemClock(), threading.Event()
    inner, root = open_store(str(path))
    store = DelayingStore(inner, clock, LATENCY_S)
    dataset = SlateDataset(inner, root, clock, RandomIds())
    coordinator = Coordinator(dataset, clock, RandomIds())
    coordinator.start(Term(dataset.take_epoch()))
    (proposal,) = dataset.propose(dataset.snapshot(), coordinator.take_up()).proposals
    claimed: list[events.Event] = []

    def observe(event: events.Event) -> None:
        if isinstance(event, events.Claimed):
            claimed.append(event)

    datasets = [_CountingDataset(store, root, clock) for _ in range(workers)]

    def work(number: int) -> None:
        rng = random.Random(number)
        worker = Worker(
            datasets[number],
            InlineEngine(stepped=True),
            clock,
            f"w{number}",
            options=WorkerOptions(heartbeat_interval_ms=3_600_000),
            observer=observe,
        )
        wait_s = rng.uniform(0, LOOP.worker.compactions_poll_interval_s)
        while not stop.wait(wait_s):
            worker.tick()
            wait_s = LOOP.worker.compactions_poll_interval_s * (1 + rng.uniform(0, JITTER))

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(workers)]
    for thread in threads:
        thread.start()
    for _ in range(claims):
        time.sleep(APPEARS_EVERY_S)

        def appear(ledger: AnyLedger) -> AnyLedger:
            new: Compaction[object, object, object] = Compaction(
                RandomIds().ulid(next_id_ms(ledger, clock.now_ms())), proposal.spec
            )
            return schedule(submit(ledger, new), new.id)

        dataset.update_ledger(appear)
    time.sleep(APPEARS_EVERY_S)
    stop.set()
    for thread in threads:
        thread.join()
    return ClaimCost(workers, len(claimed), sum(d.lost for d in datasets))
