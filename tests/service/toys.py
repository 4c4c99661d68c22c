"""A kind of dataset for tests of the service: its ledger is a value in memory, a compaction is one range that
does nothing or always fails, and each spec says its own priority.

A `Service` runs a pool of workers over several of them, round by round, on a manual clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, cast

from lithify.base.clock import Clock
from lithify.base.errors import EngineError, StoreUnavailable
from lithify.base.events import Event
from lithify.base.ids import RandomIds, Ulid
from lithify.coordination.sidecar import ObjectJournal
from lithify.datasets.kind import DatasetPort
from lithify.engine.ports import Engine
from lithify.protocol.attempts import Journal
from lithify.protocol.model import Compaction, CompactionState, Ledger
from lithify.protocol.proposal import TaskIdentity
from lithify.protocol.transitions import AnyCompaction, AnyLedger
from lithify.protocol.work import RangeJob, RangeOutcome, RangeWork
from lithify.service.slots import WorkerSlots
from lithify.service.worker import Worker, WorkerOptions
from lithify.service.worker_pool import WorkerPool
from lithify.testing import ManualClock, MemoryStore
from lithify.testing.engine import InlineEngine

EventT = TypeVar("EventT", bound=Event)

POISON = "poison"


@dataclass(frozen=True, slots=True)
class ToySpec:
    unit: str
    priority: float = 0.5
    is_poison: bool = False
    is_cut_off: bool = False
    """Its tasks cannot reach the store."""


def toy_task(spec: ToySpec) -> RangeOutcome:
    """What a range of a toy does in a task."""
    if spec.is_poison:
        raise EngineError(f"{POISON} in {spec.unit}")
    if spec.is_cut_off:
        raise StoreUnavailable("get x: connection refused", "connection refused")
    return RangeOutcome((spec.unit,), 1, 1, {}, 0.0, 0)


class ToyDataset:
    """As much of `lithify.datasets.kind.DatasetPort` as a worker asks for."""

    def __init__(self, name: str, clock: Clock) -> None:
        self.url = f"toy:///{name}"
        self._clock = clock
        self._ids = RandomIds()
        self.store = MemoryStore(clock)
        self.journal: Journal = ObjectJournal(self.store, "own", clock, self._ids)
        self.value: AnyLedger = Ledger(1, ())
        self.error: BaseException | None = None
        """What reading the ledger ends with."""
        self.write_errors: list[Exception] = []
        """What the next writes of the ledger end with."""
        self.snapshots = 0
        """How often it was read."""
        self.read_at_s: list[float] = []
        """When the ledger was read."""

    def add(self, *specs: ToySpec) -> list[Ulid]:
        """Scheduled compactions, in this order."""
        ids = sorted(self._ids.ulid(self._clock.now_ms()) for _ in specs)
        new: list[AnyCompaction] = [
            Compaction(i, spec, CompactionState.SCHEDULED) for i, spec in zip(ids, specs, strict=True)
        ]
        self.value = self.value.add(*new)
        return ids

    def states(self) -> Counter[CompactionState]:
        return Counter(c.state for c in self.value.compactions)

    def ledger(self) -> AnyLedger:
        self.read_at_s.append(self._clock.monotonic_s())
        if self.error is not None:
            raise self.error
        return self.value

    def confirm(self) -> None:
        """Nothing takes its place."""

    def snapshot(self) -> str:
        self.snapshots += 1
        return "snapshot"

    def update_ledger(self, change: Callable[[AnyLedger], AnyLedger]) -> AnyLedger:
        changed = change(self.value)
        if self.write_errors:
            raise self.write_errors.pop(0)
        self.value = changed
        return self.value

    def priority(self, spec: ToySpec, snapshot: str) -> float:
        return spec.priority

    def identify(self, spec: ToySpec) -> TaskIdentity:
        return TaskIdentity(spec.unit, spec.unit, frozenset(), frozenset())

    def why_unclaimable(self, compaction: AnyCompaction, ledger: AnyLedger) -> None:
        """Any may be claimed."""

    def output_name(self, output: str) -> str:
        return output

    def prepare(self, compaction: AnyCompaction, snapshot: str, slots: int = 0) -> RangeJob:
        return RangeJob((RangeWork("all", toy_task, compaction.spec, 1),))

    def outcome(self, result: RangeOutcome) -> RangeOutcome:
        return result


def as_dataset(toy: ToyDataset) -> DatasetPort:
    return cast("DatasetPort", toy)


class Service:
    """A pool of workers over toys of these names; one that is `closed` cannot be opened."""

    def __init__(self, *names: str, engine: Engine | None = None, **options: int) -> None:
        self.clock = ManualClock()
        self.engine = engine if engine is not None else InlineEngine(slots=100)
        self.events: list[Event] = []
        self.toys = {f"toy:///{name}": ToyDataset(name, self.clock) for name in names}
        self.named = list(self.toys)
        """What the work source names."""
        self.closed: dict[str, BaseException] = {}
        self.opened_at_s: dict[str, list[float]] = {}
        self.options = WorkerOptions(**{"max_concurrent_compactions": 1, **options})
        self.room = WorkerSlots(self.engine, self.options)
        self.pool = WorkerPool(self, self._open, self.room, self.clock, observer=self.events.append)

    def urls(self) -> list[str]:
        return self.named

    def _open(self, url: str, room: WorkerSlots) -> Worker:
        self.opened_at_s.setdefault(url, []).append(self.clock.monotonic_s())
        if url in self.closed:
            raise self.closed[url]
        dataset = as_dataset(self.toys[url])
        return Worker(dataset, self.engine, self.clock, "w", room=room, observer=self.events.append)

    def toy(self, name: str) -> ToyDataset:
        return self.toys[f"toy:///{name}"]

    def rounds(self, count: int, each: Callable[[], None] = lambda: None) -> None:
        """So many rounds, a second each, with `each` before."""
        for _ in range(count):
            each()
            self.pool.round()
            self.clock.advance_s(1)

    def seen(self, kind: type[EventT]) -> list[EventT]:
        return [event for event in self.events if isinstance(event, kind)]
