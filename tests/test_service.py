"""Coordinators and workers as processes run them, beside the official client while it writes."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lithify.base.clock import SystemClock
from lithify.base.errors import Fenced
from lithify.base.ids import RandomIds
from lithify.coordination.leadership import Leadership, Term
from lithify.datasets.slatedb.format.ledger import SlateCompaction
from lithify.protocol.lease import LOOK_AFTER_MS
from lithify.protocol.model import CompactionState
from lithify.service.coordinator import Coordinator, TickResult
from lithify.service.loops import run_coordinator, run_workers
from lithify.service.worker import Worker
from lithify.store.objects import ObjectStore
from lithify.store.wrapped import Call
from lithify.testing.clock import ManualClock
from lithify.testing.engine import InlineEngine
from lithify.testing.faulty import FaultyStore, StoreFault
from tests.compacting import dataset_at
from tests.engine.waiting import wait_until
from tests.judge.official import Admin, Database, Put, compactor_settings, open_db
from tests.pools import every, pool_of

QUICK = every(0.05)
TIMEOUT_S = 140.0
BATCHES = 12


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "db"


@contextmanager
def running(loop: Callable[[threading.Event], None]) -> Iterator[threading.Event]:
    """The loop in a thread; stopped and joined at the end. Its error is the test's error."""
    stop = threading.Event()
    errors: list[BaseException] = []

    def target() -> None:
        try:
            loop(stop)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=target)
    thread.start()
    try:
        yield stop
    finally:
        stop.set()
        thread.join(TIMEOUT_S)
    assert not thread.is_alive()
    if errors:
        raise errors[0]


def worker_on(path: Path, name: str = "w") -> Worker:
    return Worker(dataset_at(path), InlineEngine(), SystemClock(), name)


def coordinator_on(path: Path) -> Coordinator:
    return Coordinator(dataset_at(path), SystemClock(), RandomIds())


def leadership_on(path: Path) -> Leadership:
    return Leadership(dataset_at(path), SystemClock(), RandomIds())


def write_and_wait(database: Database, path: Path) -> dict[bytes, bytes]:
    """Write overlapping batches, and wait until compaction has left no more than a few L0 SSTs."""
    model: dict[bytes, bytes] = {}
    for batch in range(BATCHES):
        rows = {b"k%04d" % n: b"%d-%d" % (batch, n) for n in range(batch, 500, 3)}
        model |= rows
        database.write_batch([Put(key, value) for key, value in rows.items()])
        database.flush()
    deadline_s = time.monotonic() + TIMEOUT_S
    while len(Admin(path).trees()[0].l0) >= 4:
        assert time.monotonic() < deadline_s, "compaction does not keep up"
        time.sleep(0.05)
    return model


def check(path: Path, model: dict[bytes, bytes]) -> None:
    with open_db(path) as database:
        assert dict(database.scan()) == model
    assert Admin(path).trees()[0].runs


def ledger_of(path: Path) -> tuple[SlateCompaction, ...]:
    ledger = dataset_at(path).ledger()
    return ledger.compactions if ledger is not None else ()


@pytest.mark.parametrize("embedded", [False, True], ids=["coordinator alone", "coordinator and worker"])
def test_workers_help_an_official_coordinator(path: Path, embedded: bool) -> None:
    settings = compactor_settings(scheduler={})
    if not embedded:
        settings["worker"] = None
    with open_db(path, settings={"compactor_options": settings}) as database:
        workers = [worker_on(path, f"w{n}") for n in range(2)]
        with running(lambda stop: run_workers(pool_of(*workers), stop, random.Random(1), QUICK)):
            model = write_and_wait(database, path)
    check(path, model)


def coordinate(path: Path, stop: threading.Event, worker: Worker | None = None) -> None:
    run_coordinator(coordinator_on(path), leadership_on(path), stop, random.Random(1), QUICK, worker=worker)


def test_a_coordinator_with_an_embedded_worker_keeps_up_with_a_writer(path: Path) -> None:
    with (
        open_db(path) as database,
        running(lambda stop: coordinate(path, stop, worker_on(path))),
    ):
        model = write_and_wait(database, path)
    check(path, model)


def test_a_coordinator_and_workers_apart(path: Path) -> None:
    with (
        open_db(path) as database,
        running(lambda stop: coordinate(path, stop)),
        running(lambda stop: run_workers(pool_of(worker_on(path)), stop, random.Random(2), QUICK)),
    ):
        model = write_and_wait(database, path)
    check(path, model)


def test_a_stopped_worker_gives_back_what_it_holds(path: Path) -> None:
    with open_db(path) as database:
        for n in range(4):
            database.put(b"k%d" % n, b"v")
            database.flush()
    coordinator = coordinator_on(path)
    coordinator.start(Term(dataset_at(path).take_epoch()))
    coordinator.tick()
    worker = Worker(dataset_at(path), InlineEngine(stepped=True), SystemClock(), "w")
    with running(lambda stop: run_workers(pool_of(worker), stop, random.Random(1), QUICK)):
        deadline_s = time.monotonic() + TIMEOUT_S
        while not any(c.worker for c in ledger_of(path)):
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
    assert [(c.state, c.worker) for c in ledger_of(path)] == [(CompactionState.SCHEDULED, None)]


class CountingCoordinator(Coordinator):
    """Counts its rounds."""

    rounds = 0

    def tick(self, *, is_known: bool = False) -> TickResult:
        result = super().tick(is_known=is_known)
        self.rounds += 1
        return result


class Unreachable:
    """The store of one process, which fails while `is_on`."""

    def __init__(self) -> None:
        self.is_on = False
        self.failures = 0

    def decide(self, _number: int, _call: Call) -> StoreFault | None:
        self.failures += self.is_on
        return StoreFault.FAIL_BEFORE if self.is_on else None

    def around(self, store: ObjectStore) -> ObjectStore:
        return FaultyStore(store, self.decide)


def test_an_unreachable_store_ends_no_coordinator_and_no_worker(path: Path) -> None:
    lost = Unreachable()
    dataset, clock = dataset_at(path, wrap=lost.around), SystemClock()
    coordinator = CountingCoordinator(dataset, clock, RandomIds())
    lease_clock = ManualClock(clock.now_ms())
    leadership = Leadership(dataset, lease_clock, RandomIds())
    worker = Worker(dataset, InlineEngine(), clock, "w")
    with open_db(path) as database:
        database.put(b"k", b"v")
        database.flush()
        with (
            running(lambda stop: run_coordinator(coordinator, leadership, stop, random.Random(1), QUICK)),
            running(lambda stop: run_workers(pool_of(worker), stop, random.Random(1), QUICK)),
        ):
            wait_until(lambda: coordinator.rounds)  # one that cannot start may end
            lost.is_on = True
            lease_clock.advance_s(LOOK_AFTER_MS / 1000)
            wait_until(lambda: lost.failures > 10)
            lost.is_on = False
            model = write_and_wait(database, path)
    check(path, {b"k": b"v", **model})


def test_a_store_that_fails_at_the_end_lets_go_of_all_that_can_be_let_go(tmp_path: Path) -> None:
    lost = Unreachable()
    paths = [tmp_path / "unreachable", tmp_path / "reachable"]
    for path in paths:
        with open_db(path) as database:
            for n in range(4):
                database.put(b"k%d" % n, b"v")
                database.flush()
        coordinator = coordinator_on(path)
        coordinator.start(Term(dataset_at(path).take_epoch()))
        coordinator.tick()
    datasets = [dataset_at(paths[0], wrap=lost.around), dataset_at(paths[1])]
    workers = [Worker(d, InlineEngine(stepped=True), SystemClock(), "w") for d in datasets]
    with running(lambda stop: run_workers(pool_of(*workers), stop, random.Random(1), QUICK)):
        wait_until(lambda: all(any(c.worker for c in ledger_of(path)) for path in paths))
        lost.is_on = True
    assert [c.state for c in ledger_of(paths[0])] == [CompactionState.RUNNING]
    assert [c.state for c in ledger_of(paths[1])] == [CompactionState.SCHEDULED]


def test_a_coordinator_that_is_overtaken_ends(path: Path) -> None:
    with open_db(path) as database:
        database.put(b"k", b"v")
    first = coordinator_on(path)

    class Overtaken(threading.Event):
        """Lets another coordinator start while the loop waits for the first time."""

        def wait(self, timeout: float | None = None) -> bool:
            other = coordinator_on(path)
            other.start(Term(dataset_at(path).take_epoch()))
            other.take_up()
            return super().wait(0)

    with pytest.raises(Fenced):
        run_coordinator(first, leadership_on(path), Overtaken(), random.Random(1), QUICK)
