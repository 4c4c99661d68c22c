"""When a run refuses to start, since another coordinator may be alive."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from lithify.datasets.coordinating import LEASE_MS, RENEW_AFTER_MS
from lithify.datasets.slatedb.guard import CoordinatorGuard
from lithify.errors import CoordinatorAlive, Fenced
from lithify.ids import RandomIds
from lithify.testing import Call, CountingStore, Crash, Fault, FaultyStore, ManualClock, Verb
from tests.compacting import compact, dataset_at
from tests.judge.official import Admin, CloneSource, compact_officially, open_db


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "db"
    with open_db(path) as database:
        for n in range(5):
            database.put(b"k%d" % n, b"v")
            database.flush()
    return path


def files(path: Path) -> list[str]:
    return sorted(str(p) for p in path.rglob("*"))


def test_an_official_coordinator_that_may_be_alive_is_not_disturbed(path: Path) -> None:
    compact_officially(path)
    with open_db(path) as database:
        for n in range(5):
            database.put(b"more%d" % n, b"v")
            database.flush()
    before = files(path)
    with pytest.raises(CoordinatorAlive, match=r"--take-over.*lithify worker"):
        compact(dataset_at(path))
    assert files(path) == before

    assert compact(dataset_at(path), take_over=True).committed
    assert not compact(dataset_at(path)).started
    with open_db(path) as database:
        assert len(database.scan()) == 10


def test_a_clone_has_its_parents_epoch_but_no_coordinator(path: Path, tmp_path: Path) -> None:
    compact_officially(path)
    ours, official = tmp_path / "ours", tmp_path / "official"
    for clone in (ours, official):
        Admin(clone).clone_from(CloneSource(path))
        assert dataset_at(clone).snapshot().compactor_epoch
    assert compact(dataset_at(ours)).committed
    compact_officially(official)
    with open_db(official) as database:
        database.put(b"more", b"v")
        database.flush()
    with pytest.raises(CoordinatorAlive):
        compact(dataset_at(official))
    with open_db(ours) as database:
        assert len(database.scan()) == 5


def test_a_live_run_is_not_disturbed_and_a_dead_one_is_waited_for(path: Path) -> None:
    clock, ids = ManualClock(), RandomIds()
    first = dataset_at(path, clock=clock)
    guard = CoordinatorGuard(first, clock, ids)
    guard.hold(first.take_epoch())

    second = CoordinatorGuard(dataset_at(path, clock=clock), clock, ids)
    started_ms = clock.now_ms()
    predecessor = second.enter(take_over=False)  # nobody renews the lease
    assert clock.now_ms() - started_ms == LEASE_MS
    assert predecessor == guard.holder
    second.give_back()

    class Renewing(ManualClock):
        def sleep_s(self, duration_s: float) -> None:
            clock.sleep_s(duration_s)
            guard.hold(first.snapshot().compactor_epoch)

        def now_ms(self) -> int:
            return clock.now_ms()

    guard.hold(first.snapshot().compactor_epoch)
    third = CoordinatorGuard(dataset_at(path), Renewing(), ids)
    with pytest.raises(CoordinatorAlive, match="right now"):
        third.enter(take_over=False)
    third.enter(take_over=True)

    third.give_back()
    before_ms = clock.now_ms()
    assert second.enter(take_over=False) is None
    assert clock.now_ms() == before_ms


def test_a_lease_is_renewed_when_it_is_time_and_ended_only_by_its_holder(path: Path) -> None:
    clock, ids = ManualClock(), RandomIds()
    store = CountingStore(dataset_at(path).store)
    first = CoordinatorGuard(dataset_at(path, clock=clock, wrap=lambda _: store), clock, ids)
    first.hold(1)
    store.reset()
    for renewals in range(1, 4):
        clock.advance_s((RENEW_AFTER_MS - 1) / 1000)
        first.hold(1)
        assert store.requests[Verb.PUT] == renewals - 1
        clock.advance_s(0.001)
        first.hold(1)
        assert store.requests[Verb.PUT] == renewals
    second = CoordinatorGuard(dataset_at(path, clock=clock), clock, ids)
    second.hold(2)
    lease = second.read()
    first.give_back()
    assert second.read() == lease
    second.give_back()
    ended = second.read()
    assert ended is not None
    assert not ended.is_live(clock.now_ms())


def test_a_run_that_is_overtaken_stops_before_it_commits(path: Path) -> None:
    from lithify import telemetry

    dataset = dataset_at(path)

    def overtake(event: telemetry.Event) -> None:
        if isinstance(event, telemetry.Compacted):
            dataset_at(path).take_epoch()

    with pytest.raises(Fenced):
        compact(dataset, observer=overtake)
    with open_db(path) as database:
        assert len(database.scan()) == 5
    result = compact(dataset_at(path), take_over=True)
    assert len(result.committed) == 1


@pytest.mark.parametrize("last", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
def test_a_run_that_dies_after_a_lost_answer_is_recognised_by_the_next(path: Path, last: Fault) -> None:
    """Files cannot tell whose write landed: the epoch behind the lost one is tried."""
    faults = iter((Fault.FAIL_AFTER, last))

    def decide(_number: int, call: Call) -> Fault | None:
        is_epoch = call.method == "create" and call.key.endswith(".manifest")
        return next(faults) if is_epoch else None

    clock = ManualClock(int(time.time() * 1000))
    with pytest.raises(Crash):
        compact(dataset_at(path, wrap=lambda store: FaultyStore(store, decide), clock=clock), clock=clock)
    assert dataset_at(path).snapshot().compactor_epoch == (1 if last is Fault.CRASH_BEFORE else 2)
    assert compact(dataset_at(path, clock=clock), clock=clock).committed
