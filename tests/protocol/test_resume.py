"""What a worker leaves behind is taken up where it stopped; what a replaced worker writes is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from lithify.base import events
from lithify.datasets.slatedb.format.ledger import SlateCompaction
from lithify.datasets.slatedb.model import EVERYTHING
from lithify.protocol import transitions
from lithify.protocol.model import CompactionState, Progress, RangeProgress
from lithify.service.coordinator import Coordinator
from lithify.service.worker import Worker
from lithify.testing import CountingStore, Verb
from lithify.testing.engine import InlineEngine, TaskFault
from tests.judge.official import open_db
from tests.protocol.rig import Interposed, Rig, ledger_write

STEPS = 2


def half_done(rig: Rig, coordinator: Coordinator, name: str = "dead") -> Worker:
    """A worker that has recorded two finished ranges."""
    coordinator.tick()
    worker = rig.worker(name)
    worker.tick()
    for _ in range(STEPS):
        rig.engines[name].step()
    rig.clock.advance_s(5)
    worker.tick()
    assert rig.owner() == name
    return worker


def recorded(compaction: SlateCompaction) -> list[int]:
    """Which ranges have outputs in the ledger."""
    assert compaction.progress is not None
    return [index for index, r in enumerate(compaction.progress.ranges) if r.outputs]


def dies(rig: Rig, coordinator: Coordinator, worker: Worker) -> None:
    rig.pass_silently(coordinator)
    rig.clock.advance_s(60)


def stops(rig: Rig, coordinator: Coordinator, worker: Worker) -> None:
    compaction, open_ranges = rig.only, len(rig.only.progress.ranges) - len(recorded(rig.only))  # type: ignore[union-attr]
    worker.release()
    assert rig.seen(events.GivenBack) == [events.GivenBack(worker.url, compaction.id, worker.id, open_ranges)]


Ending = Callable[[Rig, Coordinator, Worker], None]


@pytest.mark.parametrize("ending", [dies, stops])
def test_only_unfinished_ranges_run_again(rig: Rig, ending: Ending) -> None:
    coordinator = rig.coordinator()
    worker = half_done(rig, coordinator)
    done, before = recorded(rig.only), rig.only
    ending(rig, coordinator, worker)
    assert (rig.only.state, rig.only.worker, rig.only.id) == (CompactionState.SCHEDULED, None, before.id)
    assert rig.only.progress == before.progress
    second = rig.worker("second")
    second.tick()
    (resumed,) = rig.seen(events.Resumed)
    ranges = len(rig.engines["dead"].submitted)
    assert (resumed.finished_ranges, resumed.open_ranges) == (STEPS, ranges - STEPS)
    assert before.progress is not None
    left = [r.range for index, r in enumerate(before.progress.ranges) if index not in done]
    assert [call.argument.range for call in rig.engines["second"].submitted] == left
    rig.finish(coordinator, second)
    (committed,) = rig.seen(events.Committed)
    assert committed.compaction == before.id
    assert rig.dataset().journal.compactions() == frozenset(), "no notes on it stay behind"
    rig.check()


def test_a_stop_records_what_has_just_finished(rig: Rig) -> None:
    coordinator, worker = rig.coordinator(), rig.worker("first")
    coordinator.tick()
    worker.tick()
    rig.engines["first"].step()
    worker.release()
    assert len(recorded(rig.only)) == 1
    rig.worker("second").tick()
    assert [event.finished_ranges for event in rig.seen(events.Resumed)] == [1]


def test_the_horizon_stays_what_it_was_when_the_work_began(rig: Rig) -> None:
    """Later flushes raise that of the database. Workers of SlateDB's end by an assertion when it changes."""
    coordinator = rig.coordinator()
    worker = half_done(rig, coordinator)
    worker.release()
    before = rig.only.progress
    with open_db(rig.path) as database:
        database.put(b"later", b"row")
        database.flush()
    assert before is not None
    assert rig.dataset().snapshot().recent_snapshot_min_seq != before.horizon
    second = rig.worker("second")
    second.tick()
    horizons = {call.argument.rules.retention_min_seq for call in rig.engines["second"].submitted}
    assert horizons == {before.horizon}
    rig.engines["second"].step()
    rig.clock.advance_s(5)
    second.tick()
    after = rig.only.progress
    assert after is not None
    assert after != before
    assert after.horizon == before.horizon
    rig.finish(coordinator, second)
    assert len(rig.seen(events.Committed)) == 1


def test_to_resume_one_index_is_read_and_not_all(rig: Rig) -> None:
    coordinator = rig.coordinator()
    coordinator.tick()
    reads: list[int] = []
    for name in ("first", "second"):
        store = CountingStore(rig.dataset().store)
        worker = rig.worker(name, wrap=lambda _, store=store: store)  # type: ignore[misc]  # bound now
        worker.tick()
        reads.append(store.requests[Verb.GET])
        rig.engines[name].step()
        worker.tick()
        options = {call.argument.options for call in rig.engines[name].submitted}
        assert {o.block_size for o in options} == {1024}
        worker.release()
    assert reads[1] < reads[0]
    rig.finish(coordinator, rig.worker("last"))
    rig.check()


def test_a_worker_may_stop_and_another_too_and_so_on(rig: Rig) -> None:
    """One range in each life; nothing runs twice."""
    coordinator = rig.coordinator()
    coordinator.tick()
    lives = 0
    while not rig.seen(events.Compacted):
        lives += 1
        assert lives < 50
        worker = rig.worker(f"w{lives}")
        worker.tick()
        rig.engines[worker.id].step()
        worker.tick()
        worker.release()
    ran = [event.index for event in rig.seen(events.RangeFinished)]
    assert sorted(ran) == list(range(len(ran)))
    rig.finish(coordinator, rig.worker("last"))
    rig.check()


def test_what_was_not_recorded_runs_again(rig: Rig) -> None:
    coordinator = rig.coordinator()
    coordinator.tick()
    worker = rig.worker("dead")
    worker.tick()
    rig.engines["dead"].run_all()  # all finished, and it dies before it says so
    dies(rig, coordinator, worker)
    second = rig.worker("second")
    rig.finish(coordinator, second)
    assert len(rig.engines["second"].submitted) == len(rig.engines["dead"].submitted)
    assert not rig.seen(events.Resumed)
    rig.check()


def test_without_its_notes_a_finished_range_runs_again_and_yields_nothing_new(rig: Rig) -> None:
    coordinator = rig.coordinator()
    worker = half_done(rig, coordinator)
    outputs = [r.outputs for r in (rig.only.progress or Progress(())).ranges]
    worker.release()
    rig.dataset().journal.clear(rig.only.id)
    second = rig.worker("second")
    second.tick()
    (resumed,) = rig.seen(events.Resumed)
    assert resumed.finished_ranges == 0
    for finished in range(2):
        rig.clock.advance_s(10)
        second.tick()
        assert len(rig.seen(events.Heartbeat)) == 2 + finished
        now = [r.outputs for r in (rig.only.progress or Progress(())).ranges]
        assert all(after[: len(before)] == before for before, after in zip(outputs, now, strict=True))
        rig.engines["second"].step()
    rig.engines["second"].run_all()
    second.tick()
    found = rig.only.outputs
    for kept in (ssts for ssts in outputs if ssts):
        assert set(kept) <= set(found)
    rig.finish(coordinator, second)
    rig.check()


def test_a_range_that_was_only_begun_goes_on_behind_its_last_row(rig: Rig) -> None:
    """As a SlateDB worker records it: some outputs of a range, more to come."""
    coordinator = rig.coordinator()
    coordinator.tick()
    first = rig.worker("first")
    first.tick()
    rig.engines["first"].run_all()
    first.tick()
    whole = rig.only.outputs
    assert len(whole) >= 3

    def rewind(latest: transitions.AnyLedger) -> transitions.AnyLedger:
        """One range, of whose outputs only the first is there."""
        horizon = rig.dataset().snapshot().recent_snapshot_min_seq
        progress = Progress((RangeProgress(EVERYTHING, whole[:1]),), horizon)
        return latest.update(
            rig.only.id,
            lambda c: replace(c, state=CompactionState.SCHEDULED, worker=None, outputs=(), progress=progress),
        )

    rig.dataset().update_ledger(rewind)
    second = rig.worker("second")
    second.tick()
    (resumed,) = rig.seen(events.Resumed)
    assert (resumed.finished_ranges, resumed.open_ranges) == (0, 1)
    rig.engines["second"].run_all()
    second.tick()
    assert rig.only.outputs[0] == whole[0]
    assert len(rig.only.outputs) > 1
    rig.finish(coordinator, second)
    rig.check()


def test_recorded_progress_without_ranges_keeps_its_horizon_and_gets_ranges(rig: Rig) -> None:
    coordinator = rig.coordinator()
    coordinator.tick()
    rig.dataset().update_ledger(
        lambda latest: latest.update(rig.only.id, lambda c: replace(c, progress=Progress((), 5)))
    )
    worker = rig.worker("w")
    worker.tick()
    rig.engines["w"].step()
    rig.clock.advance_s(5)
    worker.tick()
    progress = rig.only.progress
    assert progress is not None
    assert (progress.horizon, len(progress.ranges)) == (5, len(rig.engines["w"].submitted))
    assert {call.argument.rules.retention_min_seq for call in rig.engines["w"].submitted} == {5}
    rig.finish(coordinator, worker)
    rig.check()


Act = Callable[[Rig, Worker], None]


def beats(rig: Rig, zombie: Worker) -> None:
    rig.clock.advance_s(10)
    zombie.tick()


def finishes(rig: Rig, zombie: Worker) -> None:
    rig.engines["zombie"].run_all()
    zombie.tick()


def releases(rig: Rig, zombie: Worker) -> None:
    zombie.release()


@pytest.mark.parametrize("act", [beats, finishes, releases])
@pytest.mark.parametrize("now", ["free", "another's", "finished", "committed"])
def test_a_replaced_worker_changes_nothing(rig: Rig, act: Act, now: str) -> None:
    coordinator = rig.coordinator()
    zombie = half_done(rig, coordinator, "zombie")
    dies(rig, coordinator, zombie)
    second = rig.worker("second")
    if now != "free":
        second.tick()
    if now in ("finished", "committed"):
        rig.engines["second"].run_all()
        second.tick()
    if now == "committed":
        coordinator.tick()
    before = rig.only
    claims = len(rig.seen(events.Claimed))
    act(rig, zombie)
    if now == "free" and len(rig.seen(events.Claimed)) > claims:
        assert rig.owner() == "zombie", "what is free it may claim like anybody"
    else:
        assert rig.only == before
    rig.finish(coordinator, second)
    assert len(rig.seen(events.Committed)) == 1
    rig.check()


@pytest.mark.parametrize("moment", ["finish", "release", "give back"])
def test_a_write_that_meets_the_reclaim_is_refused(rig: Rig, moment: str) -> None:
    """The worker reads that it is the owner; before it writes, it is not any more."""
    coordinator = rig.coordinator()
    second = rig.worker("second")
    armed: list[bool] = []

    def replace_it() -> None:
        rig.pass_silently(coordinator)
        rig.clock.advance_s(60)
        second.tick()

    zombie = rig.worker(
        "zombie",
        engine=InlineEngine(
            stepped=True, faults=lambda _: TaskFault.FAIL_BEFORE if moment == "give back" else TaskFault.NONE
        ),
        wrap=lambda store: Interposed(store, lambda call: bool(armed) and ledger_write(call), replace_it),
    )
    coordinator.tick()
    zombie.tick()
    coordinator.tick()
    rig.engines["zombie"].run_all()
    armed.append(True)
    if moment == "release":
        zombie.release()
    else:
        zombie.tick()
    assert rig.owner() == "second"
    rig.finish(coordinator, second)
    rig.check()
