"""How far a range is, told by the loop that merges it, and what that is good for on real Spark."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from lithify.base import events
from lithify.base.clock import SystemClock
from lithify.base.errors import LithifyError
from lithify.base.events import Event
from lithify.base.ids import RandomIds
from lithify.coordination.leadership import Term
from lithify.coordination.sidecar import REPORT_INTERVAL_S, ObjectJournal
from lithify.datasets.slatedb.compaction.execute import run_merge
from lithify.datasets.slatedb.dataset import SlateDataset
from lithify.engine.spark import SparkEngine
from lithify.protocol.attempts import Movement
from lithify.service.coordinator import Coordinator
from lithify.service.loops import run_workers
from lithify.service.options import CoordinatorOptions, WorkerOptions
from lithify.service.worker import Worker
from lithify.store.objects import ObjectStore
from lithify.store.wrapped import Call
from lithify.testing import CountingStore, WrappedStore
from tests.compacting import dataset_at
from tests.datasets.slatedb.merging import LAST_RUN, Bench, put
from tests.judge.official import Put, open_db
from tests.pools import every, pool_of
from tests.protocol import slow_filters

ResultT = TypeVar("ResultT")
FILTERED = replace(LAST_RUN, compaction_filter="tests.protocol.slow_filters:observed")
ROWS = 3000
QUICK = every(0.1)
TIMEOUT_MS = 5_000
LIMIT_S = 140.0


@pytest.fixture
def bench() -> Iterator[Bench]:
    yield Bench().add([put(b"k%05d" % n, n + 1, b"v" * 1000) for n in range(ROWS)])
    slow_filters.on_row.clear()


def journal_of(bench: Bench) -> ObjectJournal:
    return ObjectJournal(bench.store, "db/lithify", bench.clock, bench.ids)


COMPACTION = RandomIds(random.Random(9)).ulid(1)


def test_a_long_range_reports_while_it_moves_and_leaves_nothing_behind(bench: Bench) -> None:
    journal = journal_of(bench)
    seen: list[Movement] = []

    def row() -> None:
        bench.clock.advance_s(0.05)
        time.sleep(0.0005)  # for whoever writes the report
        seen.extend(m for m in journal.movements(COMPACTION).values() if m not in seen)

    slow_filters.on_row.append(row)
    task = replace(bench.task(FILTERED), reporting=journal.reporting(COMPACTION, 3, "w", 77))
    result = run_merge(task, bench.store, bench.ids, bench.clock)
    assert result.rows.rows_out == ROWS
    assert (seen[0].index, seen[0].worker, seen[0].claimed_at_ms) == (3, "w", 77)
    assert len(seen) > 25, "output in memory counts, so that windows need not run empty"
    totals = [m.bytes_read + m.bytes_written for m in seen]
    assert totals == sorted(set(totals))
    # Whoever writes one late writes the next one in time: only together they say how often that is.
    assert len(seen) - 2 <= (seen[-1].at_ms - seen[0].at_ms) / (REPORT_INTERVAL_S * 1000)
    assert journal.movements(COMPACTION) == {}


def test_a_range_that_hangs_has_reported_that_it_began(bench: Bench) -> None:
    """Else it would pass for one that waits for its turn."""
    journal = journal_of(bench)
    begun = threading.Event()

    def hang() -> None:
        deadline_s = time.monotonic() + 20
        while not begun.is_set() and time.monotonic() < deadline_s:
            if [(m.bytes_read, m.bytes_written) for m in journal.movements(COMPACTION).values()] == [(0, 0)]:
                begun.set()
            time.sleep(0.01)

    slow_filters.on_row.append(hang)
    task = replace(bench.task(FILTERED), reporting=journal.reporting(COMPACTION, 0, "w", 0))
    run_merge(task, bench.store, bench.ids, bench.clock)
    assert begun.is_set()


class HangingPuts(WrappedStore):
    """Writes small objects when `go_on` is set."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.go_on = threading.Event()
        self.under_way = threading.Event()

    def around(self, call: Call, action: Callable[[], ResultT]) -> ResultT:
        if call.method == "put":
            self.under_way.set()
            assert self.go_on.wait(60)
        return action()


def test_the_merge_waits_for_no_report(bench: Bench) -> None:
    store = HangingPuts(bench.store)

    def row() -> None:
        bench.clock.advance_s(0.05)

    slow_filters.on_row.append(row)
    task = replace(bench.task(FILTERED), reporting=journal_of(bench).reporting(COMPACTION, 0, "w", 0))
    result = run_merge(task, store, bench.ids, bench.clock)
    assert store.under_way.is_set()
    assert not store.go_on.is_set(), "the report has not been written yet"
    assert result.rows.rows_out == ROWS
    store.go_on.set()


def test_a_short_range_reports_nothing(bench: Bench) -> None:
    store = CountingStore(bench.store)
    task = replace(bench.task(), reporting=journal_of(bench).reporting(COMPACTION, 0, "w", 0))
    run_merge(bench.task(), store, bench.ids, bench.clock)
    silent = store.requests.copy()
    store.reset()
    run_merge(task, store, bench.ids, bench.clock)
    assert store.requests == silent


def test_a_range_that_fails_reports_no_more(bench: Bench) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    slow_filters.on_row.append(fail)
    journal = journal_of(bench)
    task = replace(bench.task(FILTERED), reporting=journal.reporting(COMPACTION, 0, "w", 0))
    with pytest.raises(LithifyError):
        run_merge(task, bench.store, bench.ids, bench.clock)
    assert journal.movements(COMPACTION) == {}


# On Spark


def make_database(path: Path, first_value: bytes = b"") -> dict[bytes, bytes]:
    model: dict[bytes, bytes] = {}
    with open_db(path) as database:
        for flush in range(4):
            rows = {b"k%05d" % n: (b"%d-%d " % (flush, n)) + b"x" * 900 for n in range(flush, ROWS, 4)}
            if not flush:
                rows[b"k00000"] = first_value + b" first"
            database.write_batch([Put(key, value) for key, value in rows.items()])
            database.flush()
            model |= rows
    return model


class Service:
    """A coordinator that the test ticks, and a worker on Spark in a thread of its own."""

    def __init__(
        self, path: Path, compaction_filter: str, engine: SparkEngine, timeout_ms: int = TIMEOUT_MS
    ) -> None:
        self.events: list[Event] = []
        self._filter = compaction_filter
        self._path = path
        self._engine = engine
        self.coordinator = Coordinator(
            self._dataset(),
            SystemClock(),
            RandomIds(),
            options=CoordinatorOptions(timeout_ms),
            observer=self.events.append,
        )
        self.coordinator.start(Term(self._dataset().take_epoch()))

    def _dataset(self) -> SlateDataset:
        return dataset_at(self._path, compaction_filter=f"tests.protocol.slow_filters:{self._filter}")

    @contextmanager
    def working(self) -> Iterator[None]:
        stop = threading.Event()
        options = WorkerOptions(heartbeat_interval_ms=500, heartbeat_min_interval_ms=200)
        worker = Worker(
            self._dataset(), self._engine, SystemClock(), "w", options=options, observer=self.events.append
        )
        thread = threading.Thread(target=run_workers, args=(pool_of(worker), stop, random.Random(1), QUICK))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(LIMIT_S)

    def until(self, kind: type[Event]) -> None:
        deadline_s = time.monotonic() + LIMIT_S
        while not self.seen(kind):
            assert time.monotonic() < deadline_s, f"no {kind.__name__}"
            self.coordinator.tick()
            time.sleep(0.05)

    def seen(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]


def warm(engine: SparkEngine) -> None:
    """Spark runs, so that starting it takes nobody's time."""
    engine.submit("start", abs, -1).result()


def test_on_spark_a_range_longer_than_the_timeout_is_never_taken_back(
    tmp_path: Path, spark_engine: SparkEngine
) -> None:
    """A machine that stands still for longer than the timeout says nothing: then once more, all slower."""
    warm(spark_engine)
    service = run_slow_range(tmp_path / "db", spark_engine, "slow", 1)
    if service.seen(events.Reclaimed):
        service = run_slow_range(tmp_path / "slower", spark_engine, "slower", slow_filters.SLOWER)
    assert not service.seen(events.Reclaimed)
    assert len(service.seen(events.RangeFinished)) == 1
    assert len(service.seen(events.Heartbeat)) >= 2


def run_slow_range(path: Path, engine: SparkEngine, compaction_filter: str, slower: int) -> Service:
    """Compact by one range that takes more than two timeouts; all of it so many times slower."""
    model = make_database(path)
    service = Service(path, compaction_filter, engine, TIMEOUT_MS * slower)
    started_s = time.monotonic()
    with service.working():
        service.until(events.Committed)
    took_s = time.monotonic() - started_s
    assert took_s > ROWS * slow_filters.SLOW_ROW_S * slower > 2 * TIMEOUT_MS * slower / 1000
    with open_db(path) as database:
        assert dict(database.scan()) == model
    return service


def test_on_spark_a_hung_range_is_taken_back_and_done_by_the_next_attempt(
    tmp_path: Path, spark_engine: SparkEngine
) -> None:
    warm(spark_engine)
    hold = tmp_path / "hold"
    hold.touch()
    model = make_database(tmp_path / "db", str(hold).encode())
    service = Service(tmp_path / "db", "hanging", spark_engine)
    with service.working():
        service.until(events.Reclaimed)
        hold.unlink()
        service.until(events.Committed)
    assert service.seen(events.Lost), "the worker noticed, and stopped the task"
    with open_db(tmp_path / "db") as database:
        assert dict(database.scan()) == model
