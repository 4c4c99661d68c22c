"""One real database, one manual clock, and coordinators and workers that tick when a test says so.

The database is made by the official client and copied for each test. The ledger and the manifest are the
real ones; ranges run in this process, all at once or one at each `step` of their engine.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from lithify.base.events import Event
from lithify.base.ids import RandomIds, Ulid
from lithify.coordination.leadership import Term
from lithify.coordination.sidecar import MovementReporter
from lithify.datasets.slatedb.dataset import SlateDataset
from lithify.datasets.slatedb.format.ledger import SlateCompaction, SlateLedger, encode_ledger
from lithify.datasets.slatedb.format.paths import COMPACTIONS_SUFFIX
from lithify.protocol.model import CompactionState, Ledger
from lithify.service.coordinator import Coordinator
from lithify.service.options import CoordinatorOptions, WorkerOptions
from lithify.service.slots import WorkerSlots
from lithify.service.worker import Worker
from lithify.store.objects import ObjectStore
from lithify.store.versions import VersionedFiles
from lithify.store.wrapped import Call, WrappedStore
from lithify.testing import ManualClock
from lithify.testing.engine import InlineEngine, SubmittedCall
from tests.compacting import dataset_at
from tests.judge.official import Put, copy_database, open_db

ResultT = TypeVar("ResultT")
EventT = TypeVar("EventT", bound=Event)
Model = Mapping[bytes, bytes]

TIMEOUT_MS = 30_000
TIMEOUT_S = TIMEOUT_MS / 1000
SEGMENTS = b"abcdef"


@dataclass(frozen=True, slots=True)
class Template:
    """A database to copy, and what a scan of it shows."""

    path: Path
    model: Model
    segment_prefix_len: int | None = None


def make_template(path: Path, prefixes: bytes = b"", flushes: int = 4, keys: int = 200) -> Template:
    """Overlapping flushes. With `prefixes`, each of them starts the keys of a segment."""
    segment_prefix_len = 1 if prefixes else None
    heads = [bytes([prefix]) for prefix in prefixes] or [b"k"]
    model: dict[bytes, bytes] = {}
    with open_db(path, segment_prefix_len=segment_prefix_len, block_size=1024) as database:
        for flush in range(flushes):
            for head in heads:
                rows = {
                    head + b"%04d" % n: b"%d-%d " % (flush, n) + b"x" * 40 for n in range(flush % 2, keys, 2)
                }
                model |= rows
                database.write_batch([Put(key, value) for key, value in rows.items()])
            database.flush()
    return Template(path, model, segment_prefix_len)


class Interposed(WrappedStore):
    """Runs an action once, just before the first call that matches."""

    def __init__(
        self, inner: ObjectStore, matches: Callable[[Call], bool], action: Callable[[], Any]
    ) -> None:
        super().__init__(inner)
        self._matches = matches
        self._action: Callable[[], Any] | None = action

    def around(self, call: Call, action: Callable[[], ResultT]) -> ResultT:
        if self._action is not None and self._matches(call):
            pending, self._action = self._action, None
            pending()
        return action()


def ledger_write(call: Call) -> bool:
    """Whether a call publishes a version of the ledger."""
    return call.method == "create" and call.key.endswith(".compactions")


def collect_ledgers(dataset: SlateDataset) -> None:
    """Others publish so much, and a collector deletes so much, that the next number of who sleeps is free
    again."""
    paths = dataset.paths
    files = VersionedFiles(
        dataset.store, paths.compactions_folder, COMPACTIONS_SUFFIX, paths.compactions_boundary
    )
    for _ in range(8):
        latest = files.latest()
        files.publish(latest, latest.data if latest is not None else encode_ledger(Ledger(0)))
    files.advance_boundary(files.ids()[-2])
    for version_id in files.ids()[:-1]:
        dataset.store.delete(files.key(version_id))


def manifest_write(call: Call) -> bool:
    """Whether a call publishes a version of the manifest."""
    return call.method == "create" and call.key.endswith(".manifest")


@dataclass(slots=True)
class Rig:
    """The parts of one test."""

    template: Template
    path: Path
    clock: ManualClock = field(default_factory=lambda: ManualClock(int(time.time() * 1000)))
    events: list[Event] = field(default_factory=list)
    engines: dict[str, InlineEngine] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=lambda: {"max_sst_size": 5000})

    @classmethod
    def of(cls, template: Template, folder: Path, **options: Any) -> Rig:
        rig = cls(template, folder / "db")
        copy_database(template.path, rig.path)
        rig.options |= options
        return rig

    def dataset(self, wrap: Callable[[ObjectStore], ObjectStore] = lambda store: store) -> SlateDataset:
        return dataset_at(self.path, wrap=wrap, clock=self.clock, **self.options)

    def coordinator(
        self,
        *,
        start: bool = True,
        wrap: Callable[[ObjectStore], ObjectStore] = lambda store: store,
        **options: Any,
    ) -> Coordinator:
        made = Coordinator(
            self.dataset(wrap),
            self.clock,
            RandomIds(),
            options=CoordinatorOptions(TIMEOUT_MS),
            observer=self.events.append,
            **options,
        )
        if start:
            made.start(Term(self.dataset().take_epoch()))
            made.take_up()
        return made

    def worker(
        self,
        name: str = "w",
        *,
        stepped: bool = True,
        engine: InlineEngine | None = None,
        executor: Executor | None = None,
        room: WorkerSlots | None = None,
        wrap: Callable[[ObjectStore], ObjectStore] = lambda store: store,
        **options: Any,
    ) -> Worker:
        self.engines[name] = engine if engine is not None else InlineEngine(slots=10, stepped=stepped)
        return Worker(
            self.dataset(wrap),
            self.engines[name],
            self.clock,
            name,
            room=room if room is not None else self.room(name, executor, **options),
            observer=self.events.append,
        )

    def room(self, name: str, executor: Executor | None = None, **options: Any) -> WorkerSlots:
        """The room of a worker."""
        return WorkerSlots(self.engines[name], WorkerOptions(**options), executor)

    # Looking

    @property
    def ledger(self) -> SlateLedger:
        ledger = self.dataset().ledger()
        assert ledger is not None
        return ledger

    @property
    def only(self) -> SlateCompaction:
        """The only compaction there is."""
        (found,) = self.ledger.compactions
        return found

    def states(self) -> list[CompactionState]:
        return [compaction.state for compaction in self.ledger.compactions]

    def owner(self) -> str | None:
        """Who runs the only compaction."""
        worker = self.only.worker
        return worker.id if worker is not None and self.only.state is CompactionState.RUNNING else None

    def seen(self, kind: type[EventT]) -> list[EventT]:
        return [event for event in self.events if isinstance(event, kind)]

    def versions(self) -> int:
        """How many versions of the ledger there have been."""
        return len(self.dataset().ledger_ids())

    # Acting

    def move(self, name: str, bytes_read: int, index: int = 0) -> None:
        """What the task of a range would do after reading so many bytes: say so."""
        dataset = self.dataset()
        call: SubmittedCall = self.engines[name].submitted[index]
        reporting = call.argument.reporting
        assert reporting is not None
        MovementReporter(reporting, dataset.store, self.clock, RandomIds()).report(bytes_read, 0)

    def finish(self, coordinator: Coordinator, worker: Worker, rounds: int = 100) -> None:
        """Turn both until nothing is left to do."""
        for _ in range(rounds):
            tick = coordinator.tick()
            worker.tick()
            self.engines[worker.id].run_all()
            if tick.is_idle and not worker.is_busy:
                return
            self.clock.advance_s(1)
        raise AssertionError(f"not done after {rounds} rounds: {self.states()}")

    def pass_silently(self, coordinator: Coordinator, duration_s: float = TIMEOUT_S + 3) -> None:
        """Time passes under the coordinator's eyes, and nobody else does anything."""
        coordinator.tick()
        for _ in range(3):
            self.clock.advance_s(duration_s / 3)
            coordinator.tick()

    def check(self) -> None:
        """The official client sees every row, and decodes every state file."""
        with open_db(self.path, segment_prefix_len=self.template.segment_prefix_len) as database:
            assert dict(database.scan()) == self.template.model
        shutil.rmtree(self.path)


def compaction_ids(events: list[Any]) -> list[Ulid]:
    return [Ulid(event.compaction) for event in events]


__all__ = [
    "SEGMENTS",
    "TIMEOUT_MS",
    "TIMEOUT_S",
    "Interposed",
    "Rig",
    "Template",
    "collect_ledgers",
    "compaction_ids",
    "ledger_write",
    "make_template",
    "manifest_write",
]
