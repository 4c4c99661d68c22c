"""What a fleet costs, idle and busy: requests by verb and the bill of a day, by real ticks on a manual clock.

`DATABASES` databases, each a copy of one that the official client has made and that rests, are watched by
`COORDINATORS` coordinators and served by `WORKERS` workers. All requests are counted for an hour in the
middle of a silence; a day is 24 such hours. A listing counts once for each 1,000 keys, as S3 does.

Busy is the same while `PER_MINUTE` times a minute one of `HOT` of them has had enough flushes for a
compaction, which is carried out by the real kernel, with tasks that run at once; now and then what came of
these is compacted too. What its writer asks for is not counted; nor are collections of garbage (one for each
hot database in an hour) and records of commits.

    python -m benchmarks.fleet [--scale 0.1]
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import math
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

from rich.console import Console
from rich.table import Table
from simulator.core.waiting import AtOnce
from tests.judge.official import open_db

from benchmarks.costs import DOLLARS_A_READ, DOLLARS_A_WRITE
from lithify.base import concurrency
from lithify.base.events import Committed, Event
from lithify.base.ids import RandomIds
from lithify.config.model import ServiceSettings
from lithify.coordination.leadership import Leadership
from lithify.datasets.slatedb.dataset import SlateDataset
from lithify.datasets.slatedb.format.manifest import encode_manifest
from lithify.datasets.slatedb.model import View
from lithify.fleet.catalog.changes import add_rules, first_catalog
from lithify.fleet.catalog.model import DatasetRule
from lithify.fleet.coordinator import FleetCoordinator, FleetCoordinatorPorts
from lithify.fleet.files import FleetFiles
from lithify.fleet.members import FleetRole, new_member_name
from lithify.fleet.watched_dataset import WatchPorts
from lithify.fleet.worker import FleetWorker, FleetWorkerPorts, NoSource
from lithify.service.coordinator import Coordinator
from lithify.service.slots import WorkerSlots
from lithify.service.worker import Worker, WorkerOptions
from lithify.service.worker_pool import WorkerPool
from lithify.store import urls
from lithify.store.metered import Verb
from lithify.testing.clock import ManualClock
from lithify.testing.counting import CountingStore
from lithify.testing.engine import InlineEngine
from lithify.testing.memory import MemoryStore

NAME = "fleet"
DATABASES, COORDINATORS, WORKERS = 10_000, 4, 100
HOT, PER_MINUTE = 100, 50
"""So often there is enough for a compaction of L0s; with those of runs that makes 60 a minute."""
FLUSHES = 4
MAX_DOLLARS_A_DAY, MAX_BUSY_DOLLARS_A_DAY = 8.0, 20.0
WARM_UP_S = 1_200.0
"""Until workers ask as rarely as they ever do, and everything has been looked at."""
COUNTED_S, BUSY_COUNTED_S = 3_600.0, 1_200.0
PAGE = 1_000
SEED = 1
_PATTERN = "s3://bucket/tenants/*"
_LEAST_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class FleetCost:
    """What a fleet asks for."""

    databases: int
    coordinators: int
    workers: int
    per_minute: dict[str, float]
    """Requests by verb."""
    written_to_databases: int
    """Requests that change anything of what is idle, in the whole time."""
    compactions_per_minute: float = 0.0

    @property
    def dollars_a_day(self) -> float:
        """At S3's prices."""
        reads = self.per_minute.get("GET", 0) + self.per_minute.get("HEAD", 0)
        writes = self.per_minute.get("PUT", 0) + self.per_minute.get("LIST", 0)
        return 24 * 60 * (reads * DOLLARS_A_READ + writes * DOLLARS_A_WRITE)

    def print_table(self, console: Console) -> None:
        """For people."""
        table = Table(
            title=f"{self.databases:,} databases, {self.coordinators} coordinators, {self.workers} workers, "
            f"{self.compactions_per_minute:.0f} compactions a minute"
        )
        for column in (*self.per_minute, "$ a day", "target"):
            table.add_column(column, justify="right")
        most = MAX_BUSY_DOLLARS_A_DAY if self.compactions_per_minute else MAX_DOLLARS_A_DAY
        counts = [f"{count:,.0f} a minute" for count in self.per_minute.values()]
        table.add_row(*counts, f"{self.dollars_a_day:.2f}", f"at most {most:.0f}")
        console.print(table)

    def to_json(self) -> dict[str, object]:
        return {
            "databases": self.databases,
            "coordinators": self.coordinators,
            "workers": self.workers,
            "requests_per_minute": self.per_minute,
            "dollars_a_day": self.dollars_a_day,
            "written_to_databases": self.written_to_databases,
            "compactions_per_minute": self.compactions_per_minute,
        }


def measure(
    scale: float = 1.0,
    workers: int = WORKERS,
    coordinators: int = COORDINATORS,
    counted_s: float | None = None,
    hot: int = 0,
    per_minute: float = PER_MINUTE,
    warm_up_s: float = WARM_UP_S,
) -> FleetCost:
    """The cost of a fleet with this part of the databases; idle, or with so many of them hot."""
    count = max(1, round(DATABASES * scale))
    if counted_s is None:
        counted_s = BUSY_COUNTED_S if hot else COUNTED_S
    with tempfile.TemporaryDirectory(prefix="fleet-") as folder:
        world = _World(_template(Path(folder)), count, hot)
    stores = {world.hot.url.removeprefix("memory://"): world.hot}
    with mock.patch.object(concurrency, "background", AtOnce()), mock.patch.dict(urls._memory_stores, stores):
        actors = [world.coordinator() for _ in range(coordinators)] + [world.worker() for _ in range(workers)]
        actors += [world.writer(60 / per_minute)] if hot else []
        world.turn(actors, warm_up_s)
        world.reset()
        world.turn(actors, counted_s)
    requests = world.requests()
    # Every coordinator lists the folders of the pattern every five minutes; a page more for each 1,000.
    requests["LIST"] += (math.ceil(count / PAGE) - 1) * world.listings
    minutes = counted_s / 60
    asked = {verb: n / minutes for verb, n in sorted(requests.items())}
    return FleetCost(count, coordinators, workers, asked, world.written, world.committed / minutes)


def measure_both(scale: float) -> tuple[FleetCost, FleetCost]:
    """Idle and busy."""
    return measure(scale), measure(scale, hot=max(1, round(HOT * scale)))


def _template(folder: Path) -> dict[str, bytes]:
    """The objects of a database at rest."""
    path = folder / "db"
    with open_db(path) as database:
        database.put(b"k", b"v")
        database.flush()
    files = (found for found in path.rglob("*") if found.is_file())
    return {str(found.relative_to(path)): found.read_bytes() for found in files}


class _World:
    """A fleet and its databases. Those that are idle have a store each, so that listings look at nothing
    else; the hot ones have one in which tasks find them."""

    def __init__(self, template: dict[str, bytes], count: int, hot: int) -> None:
        self.clock = ManualClock(int(time.time() * 1000) + 24 * 3_600_000)  # a day after the last write
        self.rng = random.Random(SEED)
        self.ids = RandomIds(self.rng)
        self.listings = 0
        self._fleet = CountingStore(MemoryStore(self.clock))
        self.hot = CountingStore(MemoryStore(self.clock))
        self.committed = 0
        self._places: dict[str, tuple[CountingStore, str]] = {}
        for number in range(count):
            store = self.hot if number < hot else CountingStore(MemoryStore(self.clock))
            root = f"db-{number}"
            for key, data in template.items():
                store.inner.put(f"{root}/{key}", data)
            self._places[f"s3://bucket/tenants/{number:05}"] = store, root
        self._hot_roots = itertools.cycle([f"db-{number}" for number in range(hot)])
        self._written_before = 0
        catalog = add_rules(first_catalog(self.ids.ulid(self.clock.now_ms())), [DatasetRule(_PATTERN)])
        self._files().catalog.create(catalog)

    def _files(self) -> FleetFiles:
        return FleetFiles("memory://fleet", self._fleet, "fleet", self.clock, self.ids, self.rng)

    def reset(self) -> None:
        self._written_before = self.written
        self.listings = self.committed = 0
        for store in self._stores():
            store.reset()

    @property
    def written(self) -> int:
        """Requests so far that have changed idle databases."""
        idle = (store for store, _ in self._places.values() if store is not self.hot)
        return self._written_before + sum(store.requests[Verb.PUT] for store in idle)

    def _stores(self) -> list[CountingStore]:
        idle = [store for store, _ in self._places.values() if store is not self.hot]
        return [self._fleet, self.hot, *idle]

    def requests(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for store in self._stores():
            found.update({verb.value: count for verb, count in store.requests.items()})
        found["LIST"] += self.listings
        return found

    def _open(self, url: str, rule: DatasetRule) -> SlateDataset:
        store, root = self._places[url]
        return SlateDataset(store, root, self.clock, RandomIds(self.rng), rng=self.rng)

    def _find(self, rule: DatasetRule) -> list[str]:
        self.listings += 1
        return list(self._places)

    def _observe(self, event: Event) -> None:
        self.committed += isinstance(event, Committed)

    def writer(self, every_s: float) -> Callable[[], float]:
        """One hot database after the other has enough flushes for a compaction."""

        def tick() -> float:
            self._flush(
                SlateDataset(self.hot.inner, next(self._hot_roots), self.clock, self.ids, rng=self.rng)
            )
            return every_s

        return tick

    def _flush(self, dataset: SlateDataset) -> None:
        """As many as a compaction takes: the newest SST that there is, again."""
        store, paths = self.hot.inner, dataset.paths
        number, manifest = dataset.latest_manifest()
        known = next(manifest.root.views())
        data, l0 = store.get(paths.sst(known.sst.id)), manifest.root.l0
        for _ in range(FLUSHES):
            sst_id = self.ids.ulid(self.clock.now_ms())
            store.put(paths.sst(sst_id), data)
            l0 = (View(self.ids.ulid(self.clock.now_ms()), replace(known.sst, id=sst_id)), *l0)
        changed = replace(manifest, root=replace(manifest.root, l0=l0))
        store.create(f"{paths.manifest_folder}/{number + 1:020}.manifest", encode_manifest(changed))

    def coordinator(self) -> Callable[[], float]:
        name = new_member_name(FleetRole.COORDINATOR, self.ids.ulid(self.clock.now_ms()))
        watch = WatchPorts(
            self._open,
            lambda dataset, rule, admit, counts: Coordinator(
                dataset, self.clock, self.ids, admit=admit, counts=counts, observer=self._observe
            ),
            lambda dataset: Leadership(dataset, self.clock, self.ids, name),
            self.clock,
            ServiceSettings(),
        )
        ports = FleetCoordinatorPorts(
            self._files(), watch, self._find, lambda url, rule: None, self.clock, "host", "0", looks_at_once=1
        )
        return FleetCoordinator(name, ports).tick

    def worker(self) -> Callable[[], float]:
        name = new_member_name(FleetRole.WORKER, self.ids.ulid(self.clock.now_ms()))
        engine = InlineEngine()
        room = WorkerSlots(engine, WorkerOptions())

        def open_worker(url: str, room: WorkerSlots) -> Worker:
            return Worker(self._open(url, DatasetRule(url)), engine, self.clock, name, room=room)

        pool = WorkerPool(NoSource(), open_worker, room, self.clock)
        worker = FleetWorker(name, FleetWorkerPorts(self._files(), pool, self.clock, "host", "0"))
        worker.start()

        def tick() -> float:
            worker.tick()
            return worker.due_in_s()

        return tick

    def turn(self, actors: list[Callable[[], float]], duration_s: float) -> None:
        """Let each act when it is due."""
        clock, end_s, order = self.clock, self.clock.monotonic_s() + duration_s, itertools.count()
        due = [(clock.monotonic_s() + self.rng.uniform(0, 5), next(order), actor) for actor in actors]
        heapq.heapify(due)
        while due[0][0] < end_s:
            at_s, _, actor = heapq.heappop(due)
            clock.advance_s(max(0.0, at_s - clock.monotonic_s()))
            wait_s = max(_LEAST_PAUSE_S, actor())
            heapq.heappush(due, (clock.monotonic_s() + wait_s, next(order), actor))
        clock.advance_s(max(0.0, end_s - clock.monotonic_s()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0)
    for cost in measure_both(parser.parse_args().scale):
        cost.print_table(Console())
