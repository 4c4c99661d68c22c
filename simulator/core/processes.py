"""Processes of a world, and what goes wrong with their calls.

1. Every call of a process first lets time pass; then it may fail, lose its answer, be sent twice, take long,
   or put the process to sleep or kill it.
2. A dead process makes no further call: its next one raises `Crash`.
3. Clocks of processes are off, and jump.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from lithify.base.errors import StoreError
from lithify.base.ids import RandomIds
from lithify.store.wrapped import Call, WrappedStore
from lithify.testing.faulty import Crash
from lithify.testing.memory import MemoryStore
from simulator.core.fibers import FiberClock, Killed, Scheduler
from simulator.core.recording import RecordedWorld

ResultT = TypeVar("ResultT")

DELAY_MS = (300, 4_000)
PAUSE_MS = (5_000, 60_000)
_WRITES = ("create ", "put ", "replace ")


@dataclass(frozen=True, slots=True)
class CallFaults:
    """How often something goes wrong with a call."""

    crash_per_call: float = 0.0
    failure_per_call: float = 0.0
    lost_answer_per_call: float = 0.0
    repeated_per_call: float = 0.0
    """The request is sent twice, as clients do when the first answer does not come."""
    delay_per_call: float = 0.0
    delay_per_write: float = 0.0
    pause_per_call: float = 0.0
    """The process sleeps for long, and goes on."""
    max_latency_ms: int = 20
    skew_ms: int = 0
    """How far clocks of processes are off, at most; not the store's."""
    jumps_per_minute: float = 0.0
    """Of the clock of a process, to another time so far off."""


class Watcher(Protocol):
    """Is told of every object once it is written."""

    def wrote(self, process: Any, key: str, data: bytes) -> None: ...


ScenarioT = TypeVar("ScenarioT")
WatcherT = TypeVar("WatcherT", bound=Watcher)


class SharedWorld(RecordedWorld, Generic[ScenarioT, WatcherT]):
    """What all processes of a world share."""

    faults: CallFaults
    """What goes wrong now."""

    def __init__(
        self,
        name: str,
        seed: int,
        draw: Callable[[random.Random], ScenarioT],
        trace: Callable[[str], None] | None,
    ) -> None:
        super().__init__(trace)
        self.seed = seed
        self.rng = random.Random(f"{name} {seed}")
        self.scenario = draw(self.rng)
        self.scheduler = Scheduler(self.rng)
        self.clock = FiberClock(self.scheduler)
        self.ids = RandomIds(self.rng)
        self.objects = MemoryStore(self.clock, keeps_put_ids=self.rng.random() < 0.7)
        self.watcher: WatcherT | None = None
        self.is_calm = False
        """Nothing goes wrong any more, and everybody ends what he has begun."""
        self.is_over = False
        """What still runs ends at its next call."""
        self._names: Counter[str] = Counter()

    def wrote(self, process: FaultyProcess, key: str, data: bytes) -> None:
        if self.watcher is not None:
            self.watcher.wrote(process, key, data)

    def end(self) -> None:
        self.is_over = True

    def named(self, kind: str) -> str:
        """A name for a new process."""
        self._names[kind] += 1
        return f"{kind}-{self._names[kind]}"


class FaultyProcess:
    """One process: its view of the store and of time, and whether it lives."""

    def __init__(
        self,
        world: SharedWorld[Any, Any],
        objects: MemoryStore,
        kind: str,
        skew_ms: int,
        *,
        has_jumping_clock: bool = True,
    ) -> None:
        self._world = world
        self.kind = kind
        self.name = world.named(kind)
        self.rng = world.rng
        self.clock = FiberClock(world.scheduler, world.rng.randint(-skew_ms, skew_ms))
        self.ids = RandomIds(world.rng)
        self.is_dead = False
        self.store = ProcessStore(objects, self)
        self._has_jumping_clock = has_jumping_clock
        self._jumps_ms = world.now_ms
        self._paused_until_ms = 0

    def sleep_ms(self, duration_ms: int) -> None:
        self._world.scheduler.sleep_ms(duration_ms)

    def log(self, text: str) -> None:
        self._world.log(self.name, text)

    def count(self, what: str) -> None:
        self._world.count(what)

    @property
    def now_ms(self) -> int:
        """By the right clock."""
        return self._world.now_ms

    def wrote(self, key: str, data: bytes) -> None:
        self._world.wrote(self, key, data)

    def call(self, what: str, action: Callable[[], ResultT]) -> ResultT:
        """A call of the store, or of what is as reliable."""
        faults = self.begin(what)
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
            self.crash(what, action)
        self.count(f"fault: {fault}")
        self.log(f"{what}: {fault}")
        if fault == "fails":
            raise StoreError(f"{what}: injected failure")
        with suppress(StoreError):  # a refusal is an answer too
            action()
        if fault == "sent twice":
            return action()
        raise StoreError(f"{what}: injected failure, the answer is lost")

    def begin(self, what: str) -> CallFaults:
        """Let the time pass that a call takes; what may go wrong with it. Raises when the process, or the
        world, ends meanwhile."""
        world, rng, faults = self._world, self.rng, self._world.faults
        if world.is_over:
            raise world.violation or Killed
        self.sleep_ms(rng.randint(1, faults.max_latency_ms))
        share = rng.random()
        if share < faults.pause_per_call:
            world.count("fault: paused")
            pause_ms = rng.randint(*PAUSE_MS)
            self.log(f"pauses for {pause_ms / 1000:.1f} s before {what}")
            self._paused_until_ms = max(self._paused_until_ms, self.now_ms + pause_ms)
        elif share < faults.pause_per_call + _delays(what, faults):
            world.count("fault: slow")
            self.sleep_ms(rng.randint(*DELAY_MS))
        # All that goes on in a process stands still with it.
        while self._paused_until_ms > self.now_ms:
            self.sleep_ms(self._paused_until_ms - self.now_ms)
        if world.is_over:
            raise world.violation or Killed
        if faults.jumps_per_minute and self._has_jumping_clock:
            self._perhaps_jump(faults)
        if self.is_dead:
            raise Crash(what)
        if world.is_traced:
            self.log(what)
        return faults

    def _perhaps_jump(self, faults: CallFaults) -> None:
        passed_ms, self._jumps_ms = self.now_ms - self._jumps_ms, self.now_ms
        if self.rng.random() < faults.jumps_per_minute * passed_ms / 60_000:
            self.clock.skew_ms = self.rng.randint(-faults.skew_ms, faults.skew_ms)
            self.count("fault: clock jumps")
            self.log(f"its clock jumps and is {self.clock.skew_ms:+d} ms off now")

    def crash(self, what: str, action: Callable[[], object]) -> NoReturn:
        """Die, before or after something took effect."""
        self.is_dead = True
        is_after = self.rng.random() < 0.5
        self.count(f"fault: killed {'after' if is_after else 'before'} a call")
        self.log(f"is killed {'after' if is_after else 'before'} {what}")
        if is_after:
            try:
                action()
            except Exception as error:  # a refusal, which nobody hears of
                self.log(f"{what}: {error}")
        raise Crash(what)


def _delays(what: str, faults: CallFaults) -> float:
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
    """The store as one process reaches it; everything written is told."""

    def __init__(self, inner: MemoryStore, process: FaultyProcess) -> None:
        super().__init__(inner)
        self._process = process

    def around(self, call: Call, action: Callable[[], ResultT]) -> ResultT:
        return self._process.call(f"{call.method} {call.key}", action)

    def create(self, key: str, data: bytes, put_id: str | None = None) -> str | None:
        return self.around(Call("create", key), lambda: self._create(key, data, put_id))

    def put(self, key: str, data: bytes) -> None:
        self.around(Call("put", key), lambda: self._put(key, data))

    def replace(self, key: str, data: bytes, etag: str) -> str | None:
        return self.around(Call("replace", key), lambda: self._replace(key, data, etag))

    def _create(self, key: str, data: bytes, put_id: str | None) -> str | None:
        etag = self.inner.create(key, data, put_id)
        self._process.wrote(key, data)
        return etag

    def _put(self, key: str, data: bytes) -> None:
        self.inner.put(key, data)
        self._process.wrote(key, data)

    def _replace(self, key: str, data: bytes, etag: str) -> str | None:
        written = self.inner.replace(key, data, etag)
        self._process.wrote(key, data)
        return written
