"""The world of a simulation: one clock, one store, one source of chance, and what is known of all.

1. Every *process* has a view of the store and of the time of its own (`Process`). Each of its store
   calls first lets time pass, then may fail, lose its answer, take long, put the process to sleep or
   kill it; what that is, the seed draws.
2. Whatever is written goes through `WatchedStore`, which tells the judge who did it. The judge sees
   every state the store ever was in.
3. A dead process makes no further call: its next one raises `Crash`, whatever runs there.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from lithify.base.ids import RandomIds, Ulid
from lithify.datasets.slatedb.format.ledger import SlateCompaction
from lithify.store.objects import FolderListing, ObjectMeta, ObjectStore, ObjectWriter
from lithify.store.wrapped import Call
from lithify.testing.faulty import FaultyStore, StoreFault
from lithify.testing.memory import MemoryStore
from simulator.codecs import REAL_SHARE, Codecs
from simulator.core.fibers import FiberClock, Scheduler
from simulator.core.recording import RecordedWorld
from simulator.model import Model
from simulator.scenario import (
    HOUR_MS,
    LOOSE_KINDS,
    MAX_PAUSE_MS,
    MAX_SKEW_MS,
    SLOW_LATENCY_MS,
    Faults,
    Scenario,
)

ROOT = "db"
COORDINATORS = ("coordinator", "slatedb")
"""Kinds of processes that take epochs: Lithify's coordinators and SlateDB's."""
_MIN_DELAY_MS, _MAX_DELAY_MS = 300, 4_000
_MIN_PAUSE_MS = 5_000


class HasEpoch(Protocol):
    """A coordinator, as far as it is judged by others."""

    @property
    def epoch(self) -> int: ...


class Watcher(Protocol):
    """Is told of all changes of the store: of a write once it is done, of a deletion before."""

    def wrote(self, process: Process, key: str, data: bytes) -> None: ...

    def deletes(self, process: Process, key: str) -> None: ...


@dataclass(slots=True, eq=False)
class RunningTask:
    """One call of an engine, and the process that runs it."""

    compaction: Ulid
    worker_id: str
    process: Process
    future: Future[Any]
    written: list[Ulid] = field(default_factory=list)
    """SSTs written, or about to be."""
    is_over: bool = False
    """Nobody waits for the result any more."""


class World(RecordedWorld):
    """All that the processes of one run share."""

    def __init__(self, seed: int, *, trace: Callable[[str], None] | None = None) -> None:
        super().__init__(trace)
        self.seed = seed
        self.rng = random.Random(f"simulation {seed}")
        self.scenario = Scenario.draw(self.rng)
        self.faults: Faults = self.scenario.faults
        self.scheduler = Scheduler(self.rng)
        self.objects = MemoryStore(FiberClock(self.scheduler), keeps_put_ids=self.rng.random() < 0.7)
        self.codecs = Codecs(real=self.rng.random() < REAL_SHARE)
        self.model = Model(self.scenario)
        self.processes: list[Process] = []
        self.tasks: list[RunningTask] = []
        """All tasks of all engines, wanted by somebody or not."""
        self.uploads: dict[Ulid, Process] = {}
        """L0 SSTs that are written and not published, and by whom."""
        self.is_calm = False
        """Nothing goes wrong any more, and nobody meddles."""
        self.is_quiet = False
        """Nobody puts rows any more."""
        self.keeps_eternal_checkpoints = True
        """Nobody has removed the checkpoints without an end yet."""
        self.refusals = 0
        """How many coordinators in a row refused to start because another may be alive."""
        self.watcher: Watcher | None = None
        self._names: Counter[str] = Counter()
        self.hours = random.Random(f"clocks {seed}")
        self.loose_ms = self.hours.choice((0, 0, HOUR_MS))
        """How far clocks of `LOOSE_KINDS` are off, at most, besides what all are."""

    def process(self, kind: str) -> Process:
        """A new process with a name of its own."""
        self._names[kind] += 1
        process = Process(self, kind, f"{kind}-{self._names[kind]}")
        self.processes = [p for p in self.processes if not p.is_dead]
        self.processes.append(process)
        self.log(process.name, f"starts, its clock is {process.clock.skew_ms:+d} ms off")
        if abs(process.clock.skew_ms) > MAX_SKEW_MS:
            self.count("fault: clock far off")
        return process

    def end(self) -> None:
        for process in self.processes:
            process.kill()

    def calm(self) -> None:
        """From now on nothing goes wrong any more."""
        self.faults = Faults(skew_ms=self.faults.skew_ms)
        self.is_calm = True
        self.loose_ms = 0
        for process in self.processes:
            process.set_clock()
        self.log("world", "from now on nothing goes wrong")


class Process:
    """One process: its view of the store and of the time, and whether it lives."""

    def __init__(self, world: World, kind: str, name: str) -> None:
        skew_ms = world.faults.skew_ms
        self.world = world
        self.kind = kind
        self.name = name
        self.rng = world.rng
        self.clock = FiberClock(world.scheduler, world.rng.randint(-skew_ms, skew_ms))
        self._small_skew_ms = self.clock.skew_ms
        if kind in LOOSE_KINDS:
            self.clock.skew_ms += world.hours.randint(-world.loose_ms, world.loose_ms)
        self.ids = RandomIds(world.rng)
        self.is_dead = False
        self.coordinator: HasEpoch | None = None
        self.disturbed_ms = 0
        """Until when something went wrong last with one of its store calls, or one was slow."""
        self.takes_over = False
        """It was told to close whatever coordinator may be alive."""
        self.worker_ids: set[str] = set()
        """The names by which a worker in this process goes."""
        self.handed_over: dict[Ulid, tuple[SlateCompaction | None, SlateCompaction]] = {}
        """What its worker has just given its coordinator to commit: as the ledger showed it, and with its
        outputs."""
        self.writer_epoch: int | None = None
        self.on_death: Callable[[], None] = lambda: None
        self.on_pause: Callable[[], None] = lambda: None
        """Called when this process falls asleep for long."""
        watched = WatchedStore(world, self)
        self.store: ObjectStore = FaultyStore(watched, lambda _, call: self._decide(call))

    def set_clock(self) -> None:
        """Its clock is as right as most are."""
        self.clock.skew_ms = self._small_skew_ms

    def kill(self) -> None:
        """It dies at its next store call at the latest."""
        self.is_dead = True

    def sleep_ms(self, duration_ms: int) -> None:
        self.world.scheduler.sleep_ms(duration_ms)

    def log(self, text: str) -> None:
        self.world.log(self.name, text)

    def _decide(self, call: Call) -> StoreFault | None:
        """Let time pass, then say what goes wrong with this call."""
        faults, rng, world = self.world.faults, self.rng, self.world
        is_slow = faults.slow_kind == self.kind
        latency_ms = 1 + int(rng.random() * (SLOW_LATENCY_MS if is_slow else faults.max_latency_ms))
        if is_slow:
            self._disturb(world.now_ms + latency_ms)
        self.sleep_ms(latency_ms)
        if faults.disturbances and not self.is_dead:
            self._dawdle(call)
        if self.is_dead:
            return StoreFault.CRASH_BEFORE
        fault = self._fault() if faults.disturbances else None
        if world.is_traced:
            self.log(f"{call.method} {call.key}{f': {fault.value}' if fault else ''}")
        if fault is not None:
            world.count(f"fault: {self.kind} {fault.name.lower()}")
            self._disturb(world.now_ms)
            self.is_dead = fault in (StoreFault.CRASH_BEFORE, StoreFault.CRASH_AFTER)
        return fault

    def _disturb(self, until_ms: int) -> None:
        self.disturbed_ms = max(self.disturbed_ms, until_ms)

    def _dawdle(self, call: Call) -> None:
        """Perhaps take longer than usual."""
        faults, rng, world = self.world.faults, self.rng, self.world
        if rng.random() < faults.pause_per_call:
            pause_ms = rng.randint(_MIN_PAUSE_MS, MAX_PAUSE_MS)
            world.count(f"fault: {self.kind} paused")
            self.log(f"pauses for {pause_ms / 1000:.1f} s before {call.method} {call.key}")
            self._disturb(world.now_ms + pause_ms)
            self.on_pause()
            self.sleep_ms(pause_ms)
        elif rng.random() < faults.delay_per_call:
            world.count("fault: delay")
            delay_ms = rng.randint(_MIN_DELAY_MS, _MAX_DELAY_MS)
            self._disturb(world.now_ms + delay_ms)
            self.sleep_ms(delay_ms)

    def _fault(self) -> StoreFault | None:
        faults, rng = self.world.faults, self.rng
        if rng.random() < faults.crash_per_call:
            return StoreFault.CRASH_AFTER if rng.random() < 0.5 else StoreFault.CRASH_BEFORE
        if rng.random() < faults.failure_per_call:
            return StoreFault.FAIL_BEFORE
        if rng.random() < faults.lost_answer_per_call:
            return StoreFault.FAIL_AFTER
        return None


class WatchedStore:
    """The shared store as one process reaches it; everything written is shown to the judge."""

    def __init__(self, world: World, process: Process) -> None:
        self._inner = world.objects
        self._world = world
        self._process = process

    @property
    def url(self) -> str:
        return self._inner.url

    def get(self, key: str) -> bytes:
        return self._inner.get(key)

    def get_with_meta(self, key: str) -> tuple[bytes, ObjectMeta]:
        return self._inner.get_with_meta(key)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        return self._inner.get_range(key, offset, length)

    def get_range_into(self, key: str, offset: int, target: memoryview) -> None:
        self._inner.get_range_into(key, offset, target)

    def get_buffer(self, key: str, offset: int, length: int) -> memoryview:
        return self._inner.get_buffer(key, offset, length)

    def head(self, key: str) -> ObjectMeta:
        return self._inner.head(key)

    def list(self, prefix: str) -> Iterator[ObjectMeta]:
        return self._inner.list(prefix)

    def stream(self, prefix: str) -> Iterator[ObjectMeta]:
        return self._inner.stream(prefix)

    def folder(self, prefix: str) -> FolderListing:
        return self._inner.folder(prefix)

    def list_staged(self, prefix: str) -> Iterator[ObjectMeta]:
        return self._inner.list_staged(prefix)

    def create(self, key: str, data: bytes, put_id: str | None = None) -> str | None:
        etag = self._inner.create(key, data, put_id)
        self._wrote(key, data)
        return etag

    def put(self, key: str, data: bytes) -> None:
        self._inner.put(key, data)
        self._wrote(key, data)

    def copy(self, source: str, key: str) -> bool:
        raise AssertionError(f"{key}: no process of the simulation copies objects")

    def replace(self, key: str, data: bytes, etag: str) -> str | None:
        new_etag = self._inner.replace(key, data, etag)
        self._wrote(key, data)
        return new_etag

    def delete(self, key: str) -> None:
        if self._world.watcher is not None:
            self._world.watcher.deletes(self._process, key)
        self._inner.delete(key)

    def delete_staged(self, key: str) -> None:
        self._inner.delete_staged(key)

    def open_writer(self, key: str, part_bytes: int | None = None) -> ObjectWriter:
        raise AssertionError(f"{key}: SSTs of the simulation are put whole")

    def _wrote(self, key: str, data: bytes) -> None:
        if self._world.watcher is not None:
            self._world.watcher.wrote(self._process, key, data)
