"""Signs of life: written while bytes move, and only then; who gives none is replaced."""

from __future__ import annotations

import pytest

from lithify.base import events
from lithify.protocol.model import CompactionState
from lithify.testing import Call, CountingStore, Verb
from tests.protocol.rig import TIMEOUT_S, Interposed, Rig, ledger_write

INTERVAL_S = 10.0
BYTES = 100_000


def test_a_range_that_moves_is_never_taken_back_however_long_it_is(rig: Rig) -> None:
    coordinator, worker = rig.coordinator(), rig.worker(heartbeat_bytes=BYTES)
    coordinator.tick()
    worker.tick()
    for beat in range(1, 21):
        rig.move("w", beat * BYTES)
        rig.clock.advance_s(INTERVAL_S)
        worker.tick()
        coordinator.tick()
    assert rig.owner() == "w"
    assert len(rig.seen(events.Heartbeat)) == 20
    assert not rig.seen(events.Reclaimed)
    rig.finish(coordinator, worker)
    rig.check()


@pytest.mark.parametrize("jump_s", [-3600, -40, 40, 3600])
def test_a_clock_that_is_set_anew_costs_no_claim(rig: Rig, jump_s: float) -> None:
    coordinator, worker = rig.coordinator(), rig.worker(heartbeat_bytes=BYTES)
    coordinator.tick()
    worker.tick()
    for beat in range(1, 9):
        rig.move("w", beat * BYTES)
        rig.clock.advance_s(INTERVAL_S)
        if beat == 3:
            rig.clock.jump_s(jump_s)
        worker.tick()
        coordinator.tick()
    assert len(rig.seen(events.Heartbeat)) == 8
    assert not rig.seen(events.Reclaimed)
    rig.finish(coordinator, worker)
    rig.check()


@pytest.mark.parametrize("bytes_moved", [0, BYTES - 1], ids=["hung", "too slow"])
def test_a_range_that_hardly_moves_is_taken_back(rig: Rig, bytes_moved: int) -> None:
    coordinator, worker = rig.coordinator(), rig.worker(heartbeat_bytes=BYTES)
    coordinator.tick()
    worker.tick()
    rig.move("w", 0)
    waited_s = 0.0
    while not rig.seen(events.Reclaimed):
        assert waited_s < 2 * TIMEOUT_S
        if waited_s == INTERVAL_S:
            rig.move("w", bytes_moved)
        worker.tick()
        coordinator.tick()
        rig.clock.advance_s(1)
        waited_s += 1
    assert waited_s == pytest.approx(TIMEOUT_S, abs=2)
    assert (rig.only.state, rig.only.worker) == (CompactionState.SCHEDULED, None)
    (attempt,) = rig.dataset().journal.attempts()[rig.only.id]
    assert attempt.worker == "w"
    assert "no heartbeat" in attempt.reason


def test_another_workers_bytes_keep_nobody_alive(rig: Rig) -> None:
    """The tasks of a worker that was replaced may go on for a while."""
    coordinator, zombie, worker = rig.coordinator(), rig.worker("zombie"), rig.worker("w")
    coordinator.tick()
    zombie.tick()
    rig.pass_silently(coordinator)
    rig.clock.advance_s(1)
    worker.tick()
    assert rig.owner() == "w"
    rig.move("w", 0)
    for beat in range(1, 6):
        rig.move("zombie", beat * BYTES)
        rig.clock.advance_s(INTERVAL_S)
        worker.tick()
        coordinator.tick()
    assert [event.worker for event in rig.seen(events.Reclaimed)] == ["zombie", "w"]


def test_what_it_did_before_keeps_nobody_alive(rig: Rig) -> None:
    """A worker lost a compaction and has claimed it again; tasks of its first claim go on."""
    coordinator, worker = rig.coordinator(), rig.worker("w")
    coordinator.tick()
    worker.tick()
    ranges = len(rig.engines["w"].submitted)
    rig.pass_silently(coordinator)
    rig.clock.advance_s(1)
    worker.tick()  # it sees that it was lost
    worker.tick()
    assert rig.owner() == "w"
    rig.move("w", 0, index=ranges)
    for beat in range(1, 6):
        rig.move("w", beat * BYTES, index=0)
        rig.clock.advance_s(INTERVAL_S)
        worker.tick()
        coordinator.tick()
    assert len(rig.seen(events.Reclaimed)) == 2


def test_heartbeats_and_looks_at_what_has_moved_come_no_more_often_than_told(rig: Rig) -> None:
    store = CountingStore(rig.dataset().store)
    worker = rig.worker(wrap=lambda _: store, heartbeat_bytes=BYTES, heartbeat_min_interval_ms=2_000)
    rig.coordinator().tick()
    worker.tick()
    for moves in (True, False):
        store.reset()
        for half_second in range(60):
            if moves:
                rig.move("w", half_second * BYTES, index=half_second % 3)
            rig.clock.advance_s(0.5)
            worker.tick()
        assert len(rig.seen(events.Heartbeat)) == 30 / INTERVAL_S
        assert store.requests[Verb.LIST] <= 30 / (INTERVAL_S if moves else 2)


def test_watchers_are_shown_what_has_moved_before_a_heartbeat_is_due(rig: Rig) -> None:
    rig.coordinator().tick()
    worker = rig.worker(heartbeat_bytes=BYTES, watch_interval_ms=2_000)
    worker.tick()
    done = []
    for second in range(1, 10):
        rig.move("w", 500 * second)
        rig.clock.advance_s(1)
        worker.tick()
        done.append(max((event.done_bytes for event in rig.seen(events.Moved)), default=0))
    assert done == [0, 1_000, 1_000, 2_000, 2_000, 3_000, 3_000, 4_000, 4_000]
    assert not rig.seen(events.Heartbeat)
    rig.move("w", BYTES + 8_000)
    rig.clock.advance_s(1)
    worker.tick()
    assert len(rig.seen(events.Heartbeat)) == 1, "which is due all the same"


@pytest.mark.parametrize("jump_s", [0, -3600, 3600])
def test_ranges_that_wait_for_a_slot_are_no_silence_for_a_while(rig: Rig, jump_s: float) -> None:
    """Whatever the wall clock says meanwhile."""
    coordinator = rig.coordinator()
    worker = rig.worker(range_start_timeout_ms=120_000)
    coordinator.tick()
    worker.tick()
    rig.clock.jump_s(jump_s)
    for _ in range(11):
        rig.clock.advance_s(INTERVAL_S)
        worker.tick()
        coordinator.tick()
    assert rig.owner() == "w"
    for _ in range(6):
        rig.clock.advance_s(INTERVAL_S)
        worker.tick()
        coordinator.tick()
    assert len(rig.seen(events.Reclaimed)) == 1


def test_finished_ranges_are_recorded_at_once_but_not_more_often_than_allowed(rig: Rig) -> None:
    coordinator, worker = rig.coordinator(), rig.worker(heartbeat_min_interval_ms=2_000)
    coordinator.tick()
    worker.tick()
    ranges = rig.engines["w"].waiting
    assert ranges >= 3
    rig.clock.advance_s(5)
    for _ in range(2):
        rig.engines["w"].step()
        worker.tick()
    progress = rig.only.progress
    assert progress is not None
    assert sum(bool(r.outputs) for r in progress.ranges) == 1, "the second came within the minimum interval"
    rig.clock.advance_s(2)
    worker.tick()
    progress = rig.only.progress
    assert progress is not None
    assert sum(bool(r.outputs) for r in progress.ranges) == 2
    assert len(rig.seen(events.Heartbeat)) == 2


def test_beside_a_coordinator_nothing_is_recorded_before_the_first_heartbeat_is_due(rig: Rig) -> None:
    coordinator, worker = rig.coordinator(), rig.worker()
    worker.tick(coordinator.tick().seen)
    before = rig.versions()
    for _ in range(2):
        rig.clock.advance_s(INTERVAL_S / 2 - 1)
        rig.engines["w"].step()
        worker.tick(coordinator.tick().seen)
    assert (rig.versions(), rig.only.progress) == (before, None)
    rig.clock.advance_s(2)
    worker.tick(coordinator.tick().seen)
    progress = rig.only.progress
    assert progress is not None
    assert sum(bool(r.outputs) for r in progress.ranges) == 2


def test_what_another_worker_finished_is_no_sign_of_life(rig: Rig) -> None:
    coordinator, first = rig.coordinator(), rig.worker("first")
    coordinator.tick()
    first.tick()
    rig.engines["first"].step()
    first.tick()
    first.release()
    worker = rig.worker("w")
    worker.tick()
    rig.move("w", 0)
    beats = len(rig.seen(events.Heartbeat))
    for _ in range(3):
        rig.clock.advance_s(INTERVAL_S)
        worker.tick()
    assert len(rig.seen(events.Heartbeat)) == beats


def test_one_publication_carries_the_heartbeats_of_all_compactions(segmented: Rig) -> None:
    coordinator, worker = segmented.coordinator(), segmented.worker()
    coordinator.tick()
    worker.tick()
    before = segmented.versions()
    segmented.clock.advance_s(INTERVAL_S)
    worker.tick()
    assert segmented.versions() == before + 1
    assert len(segmented.seen(events.Heartbeat)) == 4


def test_polls_are_no_heartbeats_and_cost_reads_only(rig: Rig) -> None:
    store = CountingStore(rig.dataset().store)
    rig.coordinator().tick()
    held = rig.worker("holder")
    held.tick()
    idle = rig.worker("idle", wrap=lambda _: store)
    idle.tick()
    store.reset()
    for _ in range(5):
        rig.clock.advance_s(5)
        idle.tick()
    assert store.requests[Verb.PUT] == 0
    assert sum(store.requests.values()) <= 5 * 3
    assert rig.owner() == "holder"


@pytest.mark.parametrize("taken_by", [None, "other"], ids=["free", "another's"])
def test_a_heartbeat_that_meets_a_reclaim_drops_the_work(rig: Rig, taken_by: str | None) -> None:
    """The conflict comes while the heartbeat is being published."""
    coordinator = rig.coordinator()
    other = rig.worker("other")

    def take_away() -> None:
        rig.pass_silently(coordinator)
        if taken_by:
            rig.clock.advance_s(1)
            other.tick()

    claimed: list[bool] = []

    def is_heartbeat(call: Call) -> bool:
        return bool(claimed) and ledger_write(call)

    worker = rig.worker("w", wrap=lambda store: Interposed(store, is_heartbeat, take_away))
    coordinator.tick()
    worker.tick()
    coordinator.tick()
    claimed.append(True)
    rig.clock.advance_s(INTERVAL_S)
    worker.tick()
    assert rig.owner() == taken_by
    assert not worker.is_busy
    assert rig.engines["w"].cancelled == [rig.only.id]
    assert [event.worker for event in rig.seen(events.Lost)] == ["w"]
