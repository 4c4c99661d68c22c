"""A fleet over folders of texts (`tests.kinds.texts`), in memory, second by second on a manual clock."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar
from unittest import mock

from simulator.core.waiting import AtOnce

from lithify.base import concurrency, events
from lithify.base.clock import Clock
from lithify.base.errors import LithifyError, StoreError
from lithify.base.events import Event
from lithify.base.ids import Ulid
from lithify.config.model import ServiceSettings
from lithify.coordination.leadership import Leadership
from lithify.fleet.catalog import changes
from lithify.fleet.catalog.model import DatasetRule, Queue
from lithify.fleet.coordinator import FleetCoordinator, FleetCoordinatorPorts
from lithify.fleet.members import FleetRole, ReportListener, new_member_name, unheard
from lithify.fleet.watched_dataset import WatchPorts
from lithify.fleet.worker import FleetWorker, FleetWorkerPorts, NoSource
from lithify.protocol.proposal import Plan
from lithify.service.coordinator import Coordinator, CountAttempts
from lithify.service.options import CoordinatorOptions
from lithify.service.slots import WorkerSlots
from lithify.service.worker import Worker, WorkerOptions
from lithify.service.worker_pool import WorkerPool
from lithify.store import urls
from lithify.store.objects import ObjectStore
from lithify.testing import FaultyStore
from lithify.testing.engine import InlineEngine, SubmittedCall, TaskFault
from tests.fleet.worlds import World
from tests.kinds.texts import TextDataset, TextSettings

ALL = "texts:///data/*"


PlayT = TypeVar("PlayT", bound="Play")


def url_of(name: str) -> str:
    return f"texts:///data/{name}"


class WaitingClock:
    """Whoever sleeps by it lets the others go on."""

    def __init__(self, play: Play) -> None:
        self._play = play

    def now_ms(self) -> int:
        return self._play.clock.now_ms()

    def monotonic_s(self) -> float:
        return self._play.clock.monotonic_s()

    def sleep_s(self, duration_s: float) -> None:
        self._play.clock.advance_s(duration_s)
        self._play.while_waiting()


class SkewedClock:
    """Tells another time than the others'."""

    def __init__(self, play: Play, skew_ms: int) -> None:
        self._clock, self._skew_ms = play.clock, skew_ms

    def now_ms(self) -> int:
        return self._clock.now_ms() + self._skew_ms

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s()

    def sleep_s(self, duration_s: float) -> None:
        self._clock.sleep_s(duration_s)


class Claiming(WorkerPool):
    """Counts claims that were won and lost."""

    def __init__(
        self,
        claims: Counter[bool],
        open_worker: Callable[[str, WorkerSlots], Worker],
        room: WorkerSlots,
        clock: Clock,
        observer: Callable[[Event], None],
    ) -> None:
        super().__init__(NoSource(), open_worker, room, clock, observer=observer)
        self._claims = claims

    def claim(
        self, url: str, compaction_id: Ulid, *, is_sharing: bool = False, is_untried: bool = False
    ) -> bool:
        is_won = super().claim(url, compaction_id, is_sharing=is_sharing, is_untried=is_untried)
        self._claims[is_won] += 1
        return is_won


class Play(World):
    """A fleet with datasets, coordinators and workers."""

    def __init__(self, faults: float = 0.0) -> None:
        """Requests of members fail with this probability, half of them after they took effect."""
        super().__init__()
        self.init()
        self.flaky = FaultyStore.seeded(self.store, random.Random(3), faults)
        self.names: list[str] = []
        self.coordinators: list[FleetCoordinator] = []
        self.workers: list[FleetWorker] = []
        self.engines: dict[str, InlineEngine] = {}
        self.broken: dict[str, LithifyError] = {}
        """What opening a dataset ends with, by URL."""
        self.poisoned: set[str] = set()
        """Names of datasets whose tasks fail."""
        self.sick: set[str] = set()
        """Names of workers that fail whatever they try."""
        self.opened: Counter[str] = Counter()
        self.while_waiting: Callable[[], None] = lambda: None
        """What others do in each second in which a coordinator waits for one of them."""
        self.slowly: Callable[[str], None] = lambda what: None
        """What goes on while a coordinator looks for a pattern, or a coordinator or worker opens a URL."""
        self.says: ReportListener = unheard
        self.worked_with: list[tuple[str, dict[str, str]]] = []
        """Datasets that workers have opened, and with which settings of a rule."""
        self.claims: Counter[bool] = Counter()
        """How many were won, and how many lost."""
        self.events: list[Event] = []
        self.collected: list[str] = []
        self.uncollectable: set[str] = set()
        """Datasets whose collection fails, by URL."""
        self.due_in_ms: dict[str, int] = {}
        """When more is due after a collection, by URL."""
        self.collect: Callable[[str], int | None] = lambda url: self.due_in_ms.get(url)
        """Collects the garbage of a dataset, and tells when more is due."""
        self.left: list[str] = []
        """What coordinators watch no more."""
        self.collects: Callable[[DatasetRule], bool] = lambda rule: True
        """Whether garbage of a rule's datasets is collected, as coordinators ask."""
        self.change(lambda catalog: changes.add_rules(catalog, [DatasetRule(ALL)]))

    def change(self, change: changes.CatalogChange) -> None:
        self.process().catalog.update(change)

    def queue(self, name: str, largest_bytes: int) -> str:
        """A new queue; its id."""
        queue = Queue(name, self.ids.ulid(self.clock.now_ms()), largest_bytes)
        self.change(lambda catalog: changes.create_queue(catalog, queue))
        return queue.id

    # Datasets

    def dataset(self, name: str, texts: int = 0, size: int = 10) -> TextDataset:
        """A folder, with so many texts more than before."""
        opened = self._opened(url_of(name))
        if name not in self.names:
            self.names.append(name)
        for _ in range(texts):
            opened.add(b"x" * size)
        return opened

    def find(self, rule: DatasetRule) -> list[str]:
        """What a pattern names."""
        self.slowly(rule.pattern)
        return [url_of(name) for name in self.names]

    def open(self, url: str, rule: DatasetRule) -> Any:
        """As a coordinator or a worker does."""
        self.opened[url] += 1
        self.slowly(url)
        if url in self.broken:
            raise self.broken[url]
        return self._opened(url, self.flaky)

    def _opened(self, url: str, store: ObjectStore | None = None) -> TextDataset:
        root = url.removeprefix("texts:///")
        return TextDataset(
            url, store if store is not None else self.store, root, self.clock, self.ids, TextSettings()
        )

    def texts(self) -> dict[str, int]:
        """How many each has."""
        return {name: len(self.dataset(name).snapshot()) for name in self.names}

    def objects(self, name: str) -> dict[str, str | None]:
        """Everything that lies there, by its key, with its etag."""
        return {meta.key: meta.etag for meta in self.memory.list(f"data/{name}")}

    # Parties

    def coordinator(self, skew_ms: int = 0, store: ObjectStore | None = None) -> FleetCoordinator:
        """One whose clock is so far ahead, with its own way to the store if it has one."""
        clock = SkewedClock(self, skew_ms)
        name = new_member_name(FleetRole.COORDINATOR, self.ids.ulid(self.clock.now_ms()))

        def coordinate(
            dataset: TextDataset, rule: DatasetRule, admit: Callable[[Plan], Plan], counts: CountAttempts
        ) -> Coordinator:
            return Coordinator(
                dataset,
                clock,
                self.ids,
                admit=admit,
                counts=counts,
                options=CoordinatorOptions(),
                observer=self.events.append,
            )

        done: list[tuple[str, int | None]] = []

        def collect(url: str, rule: DatasetRule) -> None:
            self.collected.append(url)
            if url not in self.uncollectable:
                done.append((url, self.collect(url)))

        def take_done() -> list[tuple[str, int | None]]:
            ended = done[:]
            done.clear()
            return ended

        watch = WatchPorts(
            self.open if store is None else lambda url, rule: self._opened(url, store),
            coordinate,  # type: ignore[arg-type]
            lambda dataset: Leadership(dataset, WaitingClock(self), self.ids, name),
            clock,
            ServiceSettings(),
            self.events.append,
        )
        ports = FleetCoordinatorPorts(
            self.process(store if store is not None else self.flaky),
            watch,
            self.find,
            collect,
            clock,
            "host",
            "0.1.0",
            looks_at_once=1,
            collects=lambda rule: self.collects(rule),
            collected=take_done,
            left=self.left.append,
            says=self.says,
        )
        coordinator = FleetCoordinator(name, ports)
        self.coordinators.append(coordinator)
        return coordinator

    def worker(self, *queues: str, slots: int = 2, stepped: bool = False, skew_ms: int = 0) -> FleetWorker:
        clock = SkewedClock(self, skew_ms)
        name = new_member_name(FleetRole.WORKER, self.ids.ulid(self.clock.now_ms()))

        def fault(call: SubmittedCall) -> TaskFault:
            return TaskFault.FAIL_BEFORE if name in self.sick else self._fault(call)

        engine = self.engines[name] = InlineEngine(slots=slots, stepped=stepped, faults=fault)
        room = WorkerSlots(engine, WorkerOptions(max_concurrent_compactions=slots, heartbeat_bytes=0))

        def open_worker(url: str, room: WorkerSlots) -> Worker:
            rule = worker.rule_for(url)
            self.worked_with.append((url, dict(rule.settings)))
            dataset = self.open(url, rule)
            return Worker(dataset, engine, clock, name, room=room, observer=self.events.append)

        pool = Claiming(self.claims, open_worker, room, clock, self.events.append)
        ports = FleetWorkerPorts(self.process(self.flaky), pool, clock, "host", "0.1.0", self.says)
        worker = FleetWorker(name, ports, queues)
        self.workers.append(worker)
        return worker

    def _fault(self, call: SubmittedCall) -> TaskFault:
        is_poisoned = any(f"data/{name}/" in call.argument.target for name in self.poisoned)
        return TaskFault.FAIL_BEFORE if is_poisoned else TaskFault.NONE

    def run(self, seconds: int, each: Callable[[], None] = lambda: None) -> None:
        """Let all parties tick once a second."""
        for _ in range(seconds):
            each()
            parties: list[FleetCoordinator | FleetWorker] = [*self.coordinators, *self.workers]
            for party in parties:
                try:
                    party.tick()
                except StoreError as error:
                    if "injected" not in str(error):
                        raise
            self.clock.advance_s(1)

    def until(self, holds: Callable[[], bool], seconds: int) -> int:
        """Run until it holds; how many seconds that took."""
        for second in range(seconds):
            if holds():
                return second
            self.run(1)
        assert holds(), f"not in {seconds} s"
        return seconds

    def seen(self, kind: type[Event]) -> Counter[str]:
        """How many of these events there were, by dataset."""
        return Counter(event.dataset for event in self.events if isinstance(event, kind))

    def committed(self) -> Counter[str]:
        return self.seen(events.Committed)


def play(faults: float = 0.0) -> AbstractContextManager[Play]:
    """Over folders of texts."""
    return playing(Play(faults))


@contextmanager
def playing(made: PlayT) -> Iterator[PlayT]:
    """With a store that tasks find too, and all in one thread."""
    known = {made.memory.url.removeprefix("memory://"): made.memory}
    with mock.patch.dict(urls._memory_stores, known), mock.patch.object(concurrency, "background", AtOnce()):
        yield made
