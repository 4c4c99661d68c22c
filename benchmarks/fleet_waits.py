"""How long a fleet lets wait, on a slow store: real coordinators and workers in threads, by the real clock.

1. *Claims*: `WORKERS` idle workers with a slot each and `COORDINATORS` coordinators; every request takes
   `LATENCY_S`. Work arrives at one of `HOT` datasets after the other, which is said to the fleet. From when
   a coordinator first sees it to the claim, and how many claims are lost for each that is won.
2. *Cold start*: one coordinator that knows nothing, until it has seen all datasets; a request takes
   `START_LATENCY_S`.
3. *Take-over*: of two coordinators that watch all of them one dies. From when the other takes it for dead,
   until it has seen all that was the dead one's.

Datasets are folders of texts (`tests.kinds.texts`), so that what is measured is the fleet.

    python -m benchmarks.fleet_waits [--scale 0.1]
"""

from __future__ import annotations

import argparse
import random
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any
from unittest import mock

from rich.console import Console
from rich.table import Table
from tests.fleet.playing import Claiming, url_of
from tests.kinds.texts import TextDataset, TextSettings

from lithify.base.clock import SystemClock
from lithify.base.events import Claimed, Event
from lithify.base.ids import RandomIds
from lithify.config.model import ServiceSettings
from lithify.coordination.leadership import Leadership
from lithify.fleet.catalog.changes import add_rules, first_catalog
from lithify.fleet.catalog.model import DatasetRule
from lithify.fleet.coordinator import FleetCoordinator, FleetCoordinatorPorts
from lithify.fleet.files import FleetFiles
from lithify.fleet.members import FleetRole, new_member_name
from lithify.fleet.watched_dataset import WatchPorts
from lithify.fleet.worker import FleetWorker, FleetWorkerPorts
from lithify.service.coordinator import Coordinator
from lithify.service.slots import WorkerSlots
from lithify.service.worker import Worker, WorkerOptions
from lithify.store import urls
from lithify.store.objects import ObjectStore
from lithify.testing import DelayingStore, MemoryStore
from lithify.testing.engine import InlineEngine

WORKERS, COORDINATORS, HOT, ARRIVALS = 100, 2, 40, 120
ARRIVE_EVERY_S = 0.5
LATENCY_S, START_LATENCY_S = 0.06, 0.03
DATASETS = 2_500
MAX_P50_S, MAX_P95_S, MAX_LOST, MAX_START_S, MAX_TAKE_OVER_S = 1.0, 2.0, 0.3, 60.0, 5.0
LIMIT_S = 300.0
QUEUE = "Q0"
ARRIVING = 4
"""Texts, to the one that there is at rest: something to do."""


@dataclass(frozen=True, slots=True)
class Waits:
    """What was measured; times in seconds."""

    workers: int
    datasets: int
    claims: int
    p50_s: float
    p95_s: float
    lost_per_claim: float
    cold_start_s: float
    take_over_s: float

    def print_table(self, console: Console) -> None:
        """For people."""
        table = Table(
            "what", "measured", "at most", title=f"{self.workers} workers, {self.datasets:,} datasets"
        )
        for what, value, most in (
            ("from seen to claimed, half", self.p50_s, MAX_P50_S),
            ("from seen to claimed, 95 of 100", self.p95_s, MAX_P95_S),
            ("a cold start", self.cold_start_s, MAX_START_S),
            ("a take-over", self.take_over_s, MAX_TAKE_OVER_S),
        ):
            table.add_row(what, f"{value:.1f} s", f"{most:g} s")
        table.add_row("lost claims for each that was won", f"{self.lost_per_claim:.2f}", f"{MAX_LOST}")
        console.print(table)

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def measure(scale: float = 1.0) -> Waits:
    """All three, with this part of the datasets, workers and arrivals."""
    workers, arrivals = max(2, round(WORKERS * scale)), max(4, round(ARRIVALS * scale))
    datasets = max(4, round(DATASETS * scale))
    waits_s, claims = _claims(workers, arrivals, max(2, round(HOT * scale)))
    cold_start_s = cold_start(datasets)
    take_over_s = _take_over(datasets)
    lost, p50_s = claims[False] / claims[True], statistics.median(waits_s)
    return Waits(workers, datasets, len(waits_s), p50_s, p95(waits_s), lost, cold_start_s, take_over_s)


def p95(values: list[float]) -> float:
    """What 95 of 100 of them are at most."""
    return sorted(values)[max(0, -(-len(values) * 95 // 100) - 1)]


def _claims(workers: int, arrivals: int, hot: int) -> tuple[list[float], Counter[bool]]:
    world = _World(hot, LATENCY_S)
    since_ms: dict[str, int] = {}
    """Of hints, by compaction."""
    with world.known(), world.running() as run:
        for _ in range(workers):
            run(world.worker())
        for _ in range(COORDINATORS):
            run(world.coordinator().tick)
        _until(lambda: len(world.files.members.listed()) == workers + COORDINATORS)
        time.sleep(12)  # all have said who they are, and heard it of the others
        world.claims.clear()
        due_s = time.monotonic()
        for number in range(arrivals):
            world.arrive(number % hot)
            due_s += ARRIVE_EVERY_S
            while (left_s := due_s - time.monotonic()) > 0:
                time.sleep(min(left_s, 0.02))
                since_ms |= {h.compaction: h.since_ms for h in world.files.boards.read(QUEUE)}

        def is_over() -> bool:
            since_ms.update({h.compaction: h.since_ms for h in world.files.boards.read(QUEUE)})
            return world.is_at_rest()

        _until(is_over)
    found = [(at_ms - since_ms[c]) / 1000 for c, at_ms in world.claimed_ms.items() if c in since_ms]
    return found, world.claims


def cold_start(datasets: int) -> float:
    """Seconds until one coordinator has seen all of them."""
    world = _World(datasets, START_LATENCY_S)
    with world.known():
        started_s, coordinator = time.monotonic(), world.coordinator()
        while len(coordinator.watched) < datasets or not all(
            w.is_known for w in coordinator.watched.values()
        ):
            coordinator.tick()
            if time.monotonic() - started_s > LIMIT_S:
                raise RuntimeError(f"a cold start takes more than {LIMIT_S:g} s")
        return time.monotonic() - started_s


def _take_over(datasets: int) -> float:
    world = _World(datasets, START_LATENCY_S)
    with world.known(), world.running() as run, world.running() as run_first:
        first, second = world.coordinator(), world.coordinator()
        end_first = run_first(first.tick)
        run(second.tick)
        _until(lambda: len(first.watched) + len(second.watched) == datasets and len(first.watched) > 0)
        _until(lambda: all(w.is_known for k in (first, second) for w in tuple(k.watched.values())))
        time.sleep(70)  # what both know is written to their memories
        own = len(second.watched)
        end_first.set()
        _until(lambda: len(second.watched) > own)
        started_s = time.monotonic()
        _until(
            lambda: (
                len(second.watched) == datasets and all(w.is_known for w in tuple(second.watched.values()))
            )
        )
        return time.monotonic() - started_s


def _until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not holds():
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"not so after {LIMIT_S:g} s")
        time.sleep(0.02)


class _World:
    """A fleet, its datasets, and who serves it."""

    def __init__(self, datasets: int, latency_s: float) -> None:
        self.claims: Counter[bool] = Counter()
        self.claimed_ms: dict[str, int] = {}
        self._clock = SystemClock()
        self._ids = RandomIds()
        self._memory = MemoryStore()
        self._slow = DelayingStore(self._memory, self._clock, latency_s)
        self._names = [f"d{number:05}" for number in range(datasets)]
        self.files = self._files_in(self._memory)
        rule = DatasetRule("texts:///data/*")
        self.files.catalog.create(add_rules(first_catalog(QUEUE), [rule]))
        for name in self._names:
            self._dataset(url_of(name), self._memory).add(b"x")

    @contextmanager
    def known(self) -> Iterator[None]:
        """Tasks find the store."""
        stores = {self._memory.url.removeprefix("memory://"): self._slow}
        with mock.patch.dict(urls._memory_stores, stores):
            yield

    @contextmanager
    def running(self) -> Iterator[Callable[[Callable[[], float]], threading.Event]]:
        """Starts a party in a thread of its own, which ends with the block or when the event is set."""
        stops: list[threading.Event] = []
        threads: list[threading.Thread] = []

        def run(tick: Callable[[], float]) -> threading.Event:
            stop = threading.Event()

            def loop() -> None:
                while not stop.is_set():
                    stop.wait(max(0.05, tick()))

            thread = threading.Thread(target=loop, daemon=True)
            stops.append(stop)
            threads.append(thread)
            thread.start()
            return stop

        try:
            yield run
        finally:
            for stop in stops:
                stop.set()
            for thread in threads:
                thread.join()

    def arrive(self, number: int) -> None:
        """Something to do at this dataset, which is said."""
        url = url_of(self._names[number])
        for _ in range(ARRIVING):
            self._dataset(url, self._memory).add(b"x")
        self.files.wakes.wake(url)

    def is_at_rest(self) -> bool:
        return all(len(self._dataset(url_of(name), self._memory).snapshot()) == 1 for name in self._names)

    def coordinator(self) -> FleetCoordinator:
        name = self._name(FleetRole.COORDINATOR)

        def coordinator(dataset: Any, rule: DatasetRule, admit: Any, counts: Any) -> Any:
            return Coordinator(dataset, self._clock, self._ids, admit=admit, counts=counts)

        watch = WatchPorts(
            lambda url, rule: self._dataset(url, self._slow),
            coordinator,
            lambda dataset: Leadership(dataset, self._clock, self._ids, name),
            self._clock,
            ServiceSettings(),
        )
        return FleetCoordinator(
            name,
            FleetCoordinatorPorts(
                self._files_in(self._slow),
                watch,
                lambda rule: [url_of(known) for known in self._names],
                lambda url, rule: None,
                self._clock,
                "host",
                "0",
            ),
        )

    def worker(self) -> Callable[[], float]:
        name, engine = self._name(FleetRole.WORKER), InlineEngine(slots=1)
        room = WorkerSlots(engine, WorkerOptions(max_concurrent_compactions=1))

        def observe(event: Event) -> None:
            if isinstance(event, Claimed):
                self.claimed_ms[event.compaction] = self._clock.now_ms()

        def open_worker(url: str, room: WorkerSlots) -> Worker:
            dataset = self._dataset(url, self._slow)
            return Worker(dataset, engine, self._clock, name, room=room, observer=observe)

        pool = Claiming(self.claims, open_worker, room, self._clock, observe)
        worker = FleetWorker(
            name, FleetWorkerPorts(self._files_in(self._slow), pool, self._clock, "host", "0")
        )
        worker.start()

        def tick() -> float:
            return 0.0 if worker.tick() else worker.due_in_s()

        return tick

    def _name(self, role: FleetRole) -> str:
        return new_member_name(role, self._ids.ulid(self._clock.now_ms()))

    def _files_in(self, store: ObjectStore) -> FleetFiles:
        return FleetFiles("memory://fleet", store, "fleet", self._clock, self._ids, random.Random())

    def _dataset(self, url: str, store: ObjectStore) -> TextDataset:
        root = url.removeprefix("texts:///")
        return TextDataset(url, store, root, self._clock, self._ids, TextSettings())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0)
    measure(parser.parse_args().scale).print_table(Console())
