"""Who gets what: claims, alone and racing, on a store that works and one that does not."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from lithify.base import events
from lithify.base.clock import SystemClock
from lithify.base.errors import Fenced, LithifyError, StoreError
from lithify.base.ids import RandomIds, Ulid
from lithify.config.model import ServiceSettings
from lithify.coordination.leadership import Term
from lithify.protocol import transitions
from lithify.protocol.model import CompactionState
from lithify.protocol.proposal import Plan
from lithify.service.coordinator import Coordinator
from lithify.service.loops import run_workers
from lithify.service.slots import WorkerSlots
from lithify.service.worker import Worker, WorkerOptions
from lithify.store.objects import ObjectStore
from lithify.testing import Call, FaultyStore, StoreFault
from lithify.testing.engine import InlineEngine
from tests.pools import every, pool_of
from tests.protocol.rig import Interposed, Rig, collect_ledgers, ledger_write


@pytest.mark.parametrize(("most", "expected"), [(1, 1), (3, 3), (10, 4)])
def test_a_worker_claims_up_to_its_limit_oldest_first(segmented: Rig, most: int, expected: int) -> None:
    segmented.coordinator().tick()
    scheduled = [c.id for c in segmented.ledger.compactions if c.state is CompactionState.SCHEDULED]
    worker = segmented.worker(max_concurrent_compactions=most)
    worker.tick()
    claimed = [str(event.compaction) for event in segmented.seen(events.Claimed)]
    assert claimed == scheduled[:expected]
    for compaction in segmented.ledger.compactions:
        if compaction.id in claimed:
            assert compaction.state is CompactionState.RUNNING
            assert compaction.worker is not None
            assert (compaction.worker.id, compaction.worker.last_heartbeat_ms) == (
                "w",
                segmented.clock.now_ms(),
            )


def test_what_exceeds_the_slots_is_left_to_others_for_a_while(segmented: Rig) -> None:
    segmented.coordinator().tick()
    delay_ms = 3_000
    busy, idle = (
        segmented.worker(name, engine=InlineEngine(1, stepped=True), spare_claim_delay_ms=delay_ms)
        for name in ("busy", "idle")
    )

    def claimed() -> Counter[str]:
        return Counter(event.worker for event in segmented.seen(events.Claimed))

    busy.tick()
    assert claimed() == {"busy": 1}, "four are free, and it has one slot"
    idle.tick()
    assert claimed() == {"busy": 1, "idle": 1}
    segmented.clock.advance_s((delay_ms - 1) / 1000)
    busy.tick()
    assert claimed() == {"busy": 1, "idle": 1}
    segmented.clock.advance_s(0.001)
    busy.tick()
    assert claimed() == {"busy": 3, "idle": 1}, "nobody took them, so they run beside the first"


def test_compactions_of_other_datasets_count_towards_the_limit(segmented: Rig) -> None:
    segmented.coordinator().tick()
    room = WorkerSlots(InlineEngine(10), WorkerOptions(max_concurrent_compactions=4))
    worker = segmented.worker(room=room)
    others = [Ulid(RandomIds().ulid(n)) for n in range(4)]
    for other in others:
        room.take("memory:///another", other)
    worker.tick()
    assert worker.held == 0
    room.leave("memory:///another", others[0])
    worker.tick()
    assert worker.held == 1


def test_several_compactions_run_at_once_on_one_engine(segmented: Rig) -> None:
    coordinator, worker = segmented.coordinator(), segmented.worker()
    coordinator.tick()
    worker.tick()
    assert len({call.job for call in segmented.engines["w"].submitted}) == 4
    segmented.finish(coordinator, worker)
    assert len(segmented.seen(events.Committed)) == 6
    segmented.check()


def test_a_worker_with_room_takes_more_while_it_works(segmented: Rig) -> None:
    segmented.coordinator().tick()
    worker = segmented.worker(max_concurrent_compactions=2)
    worker.tick()
    engine = segmented.engines["w"]
    for _ in range(100):
        if segmented.seen(events.Compacted):
            break
        engine.step()
        worker.tick()
    assert len(segmented.seen(events.Claimed)) == 3, "in the tick in which one was finished"
    assert segmented.states().count(CompactionState.RUNNING) == 2


@pytest.mark.parametrize("claims_first", [True, False], ids=["before the read", "between read and write"])
def test_of_two_claims_one_succeeds(rig: Rig, claims_first: bool) -> None:
    rig.coordinator().tick()
    fast = rig.worker("fast")
    if claims_first:
        slow = rig.worker("slow")
        fast.tick()
    else:
        slow = rig.worker("slow", wrap=lambda store: Interposed(store, ledger_write, fast.tick))
    slow.tick()
    assert rig.owner() == "fast"
    assert not slow.is_busy
    assert [event.worker for event in rig.seen(events.Claimed)] == ["fast"]


def test_a_claim_that_meets_another_change_is_tried_again(segmented: Rig) -> None:
    segmented.coordinator().tick()
    other = segmented.worker("other", max_concurrent_compactions=1)
    worker = segmented.worker("w", wrap=lambda store: Interposed(store, ledger_write, other.tick))
    worker.tick()
    owners = Counter(c.worker.id for c in segmented.ledger.compactions if c.worker is not None)
    assert owners == {"other": 1, "w": 3}


@pytest.mark.parametrize("fault", [StoreFault.FAIL_BEFORE, StoreFault.FAIL_AFTER])
def test_a_claim_whose_write_fails_is_no_loss(rig: Rig, fault: StoreFault) -> None:
    """Whether or not the write took effect, the worker ends up with the compaction and runs it once."""
    faults = 4

    def decide(_: int, call: Call) -> StoreFault | None:
        nonlocal faults
        if not faults or not call.key.endswith(".compactions"):
            return None
        faults -= 1
        return fault

    coordinator = rig.coordinator()
    coordinator.tick()
    worker = rig.worker(wrap=lambda store: FaultyStore(store, decide))
    for _ in range(10):
        try:
            worker.tick()
        except StoreError:
            continue
    assert rig.owner() == "w"
    rig.finish(coordinator, worker)
    assert len(rig.seen(events.Committed)) == 1
    submitted = rig.engines["w"].submitted
    assert len({(call.job, call.argument.range) for call in submitted}) == len(submitted)
    rig.check()


def test_a_claim_whose_answer_was_lost_is_taken_up(rig: Rig) -> None:
    """The ledger says that the worker runs it, and the worker does not know."""
    coordinator = rig.coordinator()
    coordinator.tick()
    worker = rig.worker()
    dataset = rig.dataset()
    compaction_id = rig.only.id
    dataset.update_ledger(lambda latest: transitions.claim(latest, compaction_id, "w", rig.clock.now_ms()))
    worker.tick()
    assert worker.is_busy
    rig.finish(coordinator, worker)
    rig.check()


class Held(Executor):
    """Runs nothing before it is told to."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._waiting.append((future, lambda: function(*args, **kwargs)))
        return future

    def run(self) -> None:
        for future, function in self._waiting:
            try:
                future.set_result(function())
            except LithifyError as error:
                future.set_exception(error)
        self._waiting.clear()


def test_a_worker_shows_life_while_it_finds_out_what_to_run(rig: Rig) -> None:
    held = Held()
    coordinator, worker = rig.coordinator(), rig.worker(executor=held)
    coordinator.tick()
    worker.tick()
    for _ in range(10):
        rig.clock.advance_s(10)
        worker.tick()
        coordinator.tick()
    assert rig.owner() == "w"
    assert not rig.seen(events.Prepared)
    held.run()
    rig.finish(coordinator, worker)
    assert len(rig.seen(events.Prepared)) == 1
    rig.check()


@pytest.mark.parametrize("executor", [None, Held()], ids=["in the tick", "beside it"])
def test_what_cannot_be_prepared_is_given_back(rig: Rig, executor: Held | None) -> None:
    def no_index(number: int, call: Call) -> StoreFault | None:
        return StoreFault.FAIL_BEFORE if call.method.startswith("get_range") and broken else None

    broken = True
    coordinator = rig.coordinator()
    coordinator.tick()
    worker = rig.worker(executor=executor, wrap=lambda store: FaultyStore(store, no_index))
    worker.tick()
    if executor is not None:
        executor.run()
    worker.tick()
    assert rig.owner() is None
    assert len(rig.seen(events.AttemptFailed)) == 1
    broken = False
    rig.clock.advance_s(60)
    worker.tick()
    if executor is not None:
        executor.run()
    rig.finish(coordinator, worker)
    rig.check()


WORKERS = 8


def test_many_workers_at_once_run_each_compaction_once(segmented: Rig) -> None:
    segmented.coordinator().tick()
    stop = threading.Event()
    workers = [
        Worker(segmented.dataset(), InlineEngine(), SystemClock(), f"w{n}", observer=segmented.events.append)
        for n in range(WORKERS)
    ]
    options = every(0.02)
    threads = [
        threading.Thread(target=run_workers, args=(pool_of(worker), stop, random.Random(n), options))
        for n, worker in enumerate(workers)
    ]
    for thread in threads:
        thread.start()
    coordinator = segmented.coordinator()
    for _ in range(500):
        if coordinator.tick().is_idle:
            break
        stop.wait(0.02)
    stop.set()
    for thread in threads:
        thread.join(120)
    claimed = Counter(event.compaction for event in segmented.seen(events.Claimed))
    committed = Counter(event.compaction for event in segmented.seen(events.Committed))
    assert set(committed.values()) == {1}
    assert len(committed) == 6
    assert claimed == committed
    assert not segmented.seen(events.Lost)
    segmented.check()


class Recorded(threading.Event):
    """Notes how long each wait is, does not wait, and ends the loop after so many."""

    def __init__(self, waits: int) -> None:
        super().__init__()
        self.waits_s: list[float] = []
        self._left = waits

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits_s.append(timeout)
        self._left -= 1
        if not self._left:
            self.set()
        return self.is_set()


def test_polls_are_spread_by_up_to_a_tenth(rig: Rig) -> None:
    rig.coordinator(start=True)
    stop = Recorded(100)
    run_workers(pool_of(rig.worker()), stop, random.Random(1), ServiceSettings())
    assert all(5.0 <= wait_s <= 5.5 for wait_s in stop.waits_s)
    assert max(stop.waits_s) - min(stop.waits_s) > 0.3
    assert len(set(stop.waits_s)) > 90


def test_what_is_scheduled_is_claimed_for_the_worker_beside_the_coordinator_in_the_same_version(
    rig: Rig,
) -> None:
    worker = rig.worker()
    coordinator = rig.coordinator(companion=worker)
    versions = rig.versions()
    tick = coordinator.tick()
    assert rig.owner() == worker.id
    assert rig.versions() == versions + 1
    assert worker.tick(tick.seen)
    assert worker.is_busy
    assert rig.versions() == versions + 1
    assert len(rig.seen(events.Claimed)) == 1
    rig.finish(coordinator, worker)
    rig.check()


def test_what_was_claimed_for_a_worker_that_ends_before_it_looks_is_given_back(rig: Rig) -> None:
    worker = rig.worker()
    rig.coordinator(companion=worker).tick()
    assert rig.owner() == worker.id
    worker.release()
    assert rig.owner() is None
    assert rig.only.state is CompactionState.SCHEDULED


def test_a_worker_without_idle_slots_is_given_nothing(segmented: Rig) -> None:
    worker = segmented.worker(max_concurrent_compactions=1)
    segmented.coordinator(companion=worker).tick()
    owners = [c.worker.id for c in segmented.ledger.compactions if c.worker is not None]
    assert owners == [worker.id]


# The first tick


def starting(rig: Rig, predecessor: str | None = None, **options: Any) -> Coordinator:
    """One that has taken its epoch, and not looked at the ledger yet."""
    coordinator = rig.coordinator(start=False, **options)
    coordinator.start(Term(rig.dataset().take_epoch(), predecessor))
    return coordinator


def test_the_first_version_of_a_ledger_has_what_is_scheduled(rig: Rig) -> None:
    worker = rig.worker()
    coordinator = starting(rig, companion=worker)
    assert rig.versions() == 0
    tick = coordinator.tick()
    assert rig.versions() == 1
    assert rig.ledger.epoch == 1
    assert rig.owner() == worker.id
    worker.tick(tick.seen)
    rig.finish(coordinator, worker)
    rig.check()


def test_a_coordinator_that_has_nothing_to_do_makes_a_ledger_all_the_same(rig: Rig) -> None:
    coordinator = starting(rig, plan=lambda snapshot, ledger: Plan(()))
    coordinator.tick()
    assert (rig.versions(), rig.ledger.epoch) == (1, 1)
    coordinator.tick()
    assert rig.versions() == 1


def test_what_an_older_coordinator_adds_before_the_ledger_is_taken_up_is_taken_up_with_it(rig: Rig) -> None:
    beside = rig.worker("beside")
    older = rig.coordinator(companion=beside)
    worker = rig.worker()
    newer = starting(
        rig, beside.id, companion=worker, wrap=lambda store: Interposed(store, ledger_write, older.tick)
    )
    tick = newer.tick()
    assert rig.ledger.epoch == 2
    assert rig.states() == [CompactionState.SCHEDULED], (
        "what the older one claimed for a dead worker is taken back"
    )
    (attempts,) = rig.dataset().journal.attempts().values()
    assert [attempt.worker for attempt in attempts] == [beside.id]
    with pytest.raises(Fenced):
        older.tick()
    worker.tick(tick.seen)
    rig.finish(newer, worker)
    rig.check()


@pytest.mark.parametrize("is_first", [True, False])
def test_a_claim_that_does_not_count_is_noticed_by_the_next_tick(rig: Rig, is_first: bool) -> None:
    """This process slept while what it was about to write was written by others, and collected."""
    worker, armed = rig.worker(), list[bool]()

    def wrap(store: ObjectStore) -> ObjectStore:
        return Interposed(
            store, lambda call: bool(armed) and ledger_write(call), lambda: collect_ledgers(rig.dataset())
        )

    rig.coordinator()
    coordinator = starting(rig, companion=worker, wrap=wrap)
    if not is_first:
        coordinator.take_up()
    armed.append(True)
    worker.tick(coordinator.tick().seen)
    assert worker.is_busy
    assert rig.states() == []
    tick = coordinator.tick()
    assert rig.owner() == worker.id
    assert rig.ledger.epoch == coordinator.epoch
    worker.tick(tick.seen)
    assert len(rig.seen(events.Lost)) == 1
    rig.finish(coordinator, worker)
    rig.check()
