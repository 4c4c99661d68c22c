"""What the processes of one run share, and how each of them reaches the store, the catalog and the files.

1. Every call of a process first lets time pass; then it may fail, lose its answer, be sent twice, take long,
   or put the process to sleep or kill it.
2. A commit whose answer is lost may have taken effect, or do so later.
3. A dead process makes no further call: its next one raises `Crash`.
4. The store's clock is right. Those of processes are off, and jump.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NoReturn, Protocol, TypeVar

from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableUpdate

from lithify.datasets.iceberg.catalogs import TableUrl
from lithify.datasets.iceberg.dataset import IcebergDataset
from lithify.errors import StoreError
from lithify.ids import RandomIds
from lithify.store.wrapped import Call, WrappedStore
from lithify.testing.faulty import Crash
from lithify.testing.memory import MemoryStore
from lithify.testing.simulation.core.fibers import FiberClock, Killed, Scheduler
from lithify.testing.simulation.core.recording import RecordedWorld
from lithify.testing.simulation.history.lake import IDENTIFIER, ROOT, CatalogView, FilesView, Lake, catalog_of
from lithify.testing.simulation.history.scenario import (
    DELAY_MS,
    MAX_LATE_MS,
    PAUSE_MS,
    Faults,
    Scenario,
)

ResultT = TypeVar("ResultT")

_WRITES = ("create ", "put ", "replace ")


class Watcher(Protocol):
    """Is told of all changes: of a write and a commit once it is done, of a deletion before."""

    def wrote(self, process: Process, key: str, data: bytes) -> None: ...

    def deletes(self, process: Process, path: str) -> None: ...

    def committed(
        self,
        process: Process,
        began_ms: int,
        before: TableMetadata,
        after: TableMetadata,
        updates: tuple[TableUpdate, ...],
    ) -> None:
        """`began_ms`: when the run began that asked for it; when it was asked where no run did."""


class World(RecordedWorld):
    """All that the processes of one run share."""

    def __init__(self, seed: int, *, trace: Callable[[str], None] | None = None) -> None:
        super().__init__(trace)
        self.seed = seed
        self.rng = random.Random(f"history {seed}")
        self.scenario = Scenario.draw(self.rng)
        self.faults = self.scenario.faults
        self.scheduler = Scheduler(self.rng)
        self.objects = MemoryStore(FiberClock(self.scheduler), keeps_put_ids=self.rng.random() < 0.7)
        self.lake = Lake(RandomIds(self.rng))
        self.is_calm = False
        """Nothing goes wrong any more, and everybody ends what he has begun."""
        self.is_over = False
        """What still runs ends at its next call."""
        self.watcher: Watcher | None = None
        self._names: Counter[str] = Counter()

    def process(self, kind: str) -> Process:
        """A new process with a name of its own."""
        self._names[kind] += 1
        return Process(self, kind, f"{kind}-{self._names[kind]}")

    def calm(self) -> None:
        """From now on nothing goes wrong any more."""
        self.faults = Faults(skew_ms=self.faults.skew_ms)
        self.is_calm = True
        self.log("world", "from now on nothing goes wrong, and everybody ends what is begun")

    def end(self) -> None:
        self.is_over = True


class Process:
    """One process: its view of store, catalog, files and time, and whether it lives."""

    def __init__(self, world: World, kind: str, name: str) -> None:
        skew_ms = world.scenario.writer_skew_ms if kind == "writer" else world.faults.skew_ms
        self.world = world
        self.kind = kind
        self.name = name
        self.rng = world.rng
        self.clock = FiberClock(world.scheduler, world.rng.randint(-skew_ms, skew_ms))
        self.ids = RandomIds(world.rng)
        self.is_dead = False
        self.run_began_ms: int | None = None
        """When the run of expiry began that is under way."""
        self.store = ProcessStore(world.objects, self)
        self.files = FilesView(world.lake.files, self)
        self.catalog: CatalogView = catalog_of(world.lake, self, is_exact=world.scenario.is_exact)
        self._jumps_ms = world.now_ms
        if world.is_traced:
            self.log(f"starts, its clock is {self.clock.skew_ms:+d} ms off")

    def dataset(self) -> IcebergDataset:
        """The table as this process opens it."""
        return IcebergDataset(
            self.catalog,
            TableUrl("lake", IDENTIFIER),
            self.clock,
            self.ids,
            rng=self.rng,
            open_place=lambda table: (self.store, ROOT),
        )

    def sleep_ms(self, duration_ms: int) -> None:
        self.world.scheduler.sleep_ms(duration_ms)

    def log(self, text: str) -> None:
        self.world.log(self.name, text)

    def count(self, what: str) -> None:
        self.world.count(what)

    @property
    def now_ms(self) -> int:
        return self.world.now_ms

    @property
    def began_ms(self) -> int:
        return self.world.now_ms if self.run_began_ms is None else self.run_began_ms

    def deletes(self, path: str) -> None:
        if self.world.watcher is not None:
            self.world.watcher.deletes(self, path)

    def has_committed(
        self, began_ms: int, before: TableMetadata, after: TableMetadata, updates: tuple[TableUpdate, ...]
    ) -> None:
        if self.world.watcher is not None:
            self.world.watcher.committed(self, began_ms, before, after, updates)

    def call(self, what: str, action: Callable[[], ResultT]) -> ResultT:
        """A call of the store or of the files."""
        faults = self._begins(what)
        fault = _drawn(
            self.rng.random(),
            {
                "killed": faults.crash_per_call,
                "fails": faults.failure_per_call,
                "answer lost": faults.lost_answer_per_call,
                "sent twice": faults.repeated_per_call,
            },
        )
        if fault is None:
            return action()
        if fault == "killed":
            self._crash(what, action)
        self.count(f"fault: {fault}")
        self.log(f"{what}: {fault}")
        if fault == "fails":
            raise StoreError(f"{what}: injected failure")
        with suppress(StoreError):  # a refusal is an answer too
            action()
        if fault == "sent twice":
            return action()
        raise StoreError(f"{what}: injected failure, the answer is lost")

    def commit(self, what: str, action: Callable[[], ResultT]) -> ResultT:
        """A commit, which is sent once."""
        world, rng, faults = self.world, self.rng, self._begins(what)
        if rng.random() >= faults.trouble_per_commit:
            return action()
        fault = rng.choice(("crash", "fails", "answer lost", "late"))
        if fault == "crash":
            self._crash(what, action)
        world.count(f"fault: commit {fault}")
        self.log(f"{what}: {fault}")
        if fault == "answer lost":
            action()
        elif fault == "late":
            world.scheduler.spawn(lambda: self._late(what, action), rng.randint(1, MAX_LATE_MS))
        raise CommitStateUnknownException(f"{what}: no answer")

    def _late(self, what: str, action: Callable[[], object]) -> None:
        if not self.world.is_over:
            self.log(f"{what}: comes late")
            try:
                action()
            except Exception as error:
                self.log(f"{what}: {error}")

    def _begins(self, what: str) -> Faults:
        world, rng, faults = self.world, self.rng, self.world.faults
        if world.is_over:
            raise world.violation or Killed
        self.sleep_ms(rng.randint(1, faults.max_latency_ms))
        share = rng.random()
        if share < faults.pause_per_call:
            world.count("fault: paused")
            pause_ms = rng.randint(*PAUSE_MS)
            self.log(f"pauses for {pause_ms / 1000:.1f} s before {what}")
            self.sleep_ms(pause_ms)
        elif share < faults.pause_per_call + _delays(what, faults):
            world.count("fault: slow")
            self.sleep_ms(rng.randint(*DELAY_MS))
        if world.is_over:
            raise world.violation or Killed
        if faults.jumps_per_minute and self.kind != "writer":
            self._perhaps_jump(faults)
        if self.is_dead:
            raise Crash(what)
        if world.is_traced:
            self.log(what)
        return faults

    def _perhaps_jump(self, faults: Faults) -> None:
        passed_ms, self._jumps_ms = self.world.now_ms - self._jumps_ms, self.world.now_ms
        if self.rng.random() < faults.jumps_per_minute * passed_ms / 60_000:
            self.clock.skew_ms = self.rng.randint(-faults.skew_ms, faults.skew_ms)
            self.world.count("fault: clock jumps")
            self.log(f"its clock jumps and is {self.clock.skew_ms:+d} ms off now")

    def _crash(self, what: str, action: Callable[[], object]) -> NoReturn:
        self.is_dead = True
        is_after = self.rng.random() < 0.5
        self.world.count(f"fault: killed {'after' if is_after else 'before'} a call")
        self.log(f"is killed {'after' if is_after else 'before'} {what}")
        if is_after:
            try:
                action()
            except Exception as error:  # a refusal, which nobody hears of
                self.log(f"{what}: {error}")
        raise Crash(what)


def _delays(what: str, faults: Faults) -> float:
    """Writes may be slower than what is read."""
    return faults.delay_per_write if what.startswith(_WRITES) else faults.delay_per_call


def _drawn(share: float, probabilities: Mapping[str, float]) -> str | None:
    """What a number from 0 to 1 stands for."""
    for what, probability in probabilities.items():
        if share < probability:
            return what
        share -= probability
    return None


class ProcessStore(WrappedStore):
    """The store as one process reaches it; everything written is shown to the judge."""

    def __init__(self, inner: MemoryStore, process: Process) -> None:
        super().__init__(inner)
        self._process = process

    def around(self, call: Call, action: Callable[[], ResultT]) -> ResultT:
        return self._process.call(f"{call.method} {call.key}", action)

    def create(self, key: str, data: bytes, put_id: str | None = None) -> str | None:
        return self.around(Call("create", key), lambda: self._create(key, data, put_id))

    def put(self, key: str, data: bytes) -> None:
        self.around(Call("put", key), lambda: self._put(key, data))

    def _create(self, key: str, data: bytes, put_id: str | None) -> str | None:
        etag = self.inner.create(key, data, put_id)
        self._wrote(key, data)
        return etag

    def _put(self, key: str, data: bytes) -> None:
        self.inner.put(key, data)
        self._wrote(key, data)

    def _wrote(self, key: str, data: bytes) -> None:
        if self._process.world.watcher is not None:
            self._process.world.watcher.wrote(self._process, key, data)
