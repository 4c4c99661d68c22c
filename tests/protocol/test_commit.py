"""Commits: in batches, validated again, by one coordinator only, once each, whatever happens in between."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lithify.base import events
from lithify.base.errors import Fenced, StoreError
from lithify.config.model import ServiceSettings
from lithify.protocol import transitions
from lithify.protocol.model import CompactionState
from lithify.service.coordinator import Coordinator
from lithify.service.worker import Worker
from lithify.store.objects import ObjectStore
from lithify.testing import Call, CountingStore, Crash, FaultyStore, StoreFault, Verb
from tests.judge.official import Admin, Database, Put, open_db
from tests.protocol.rig import (
    TIMEOUT_S,
    Interposed,
    Model,
    Rig,
    Template,
    collect_ledgers,
    ledger_write,
    manifest_write,
)


def compacted(rig: Rig, coordinator: Coordinator, worker: Worker) -> None:
    """All that is scheduled is Compacted, and nothing committed."""
    worker.tick()
    rig.engines[worker.id].run_all()
    worker.tick()
    assert CompactionState.COMPACTED in rig.states()


def test_all_that_is_ready_is_committed_at_once(segmented: Rig) -> None:
    coordinator, worker = segmented.coordinator(), segmented.worker()
    coordinator.tick()
    compacted(segmented, coordinator, worker)
    dataset = segmented.dataset()
    manifests, ledgers = len(dataset.manifest_ids()), segmented.versions()
    tick = coordinator.tick()
    assert len(tick.committed) == 4
    assert len(dataset.manifest_ids()) == manifests + 1, "the outputs of all, and a checkpoint"
    # One version calls them Completed, the next has what is scheduled now.
    assert segmented.versions() == ledgers + 2
    finished = [c for c in segmented.ledger.compactions if c.state.is_terminal]
    assert [c.state for c in finished] == [CompactionState.COMPLETED] * 4, (
        "some version has to say how each ended"
    )
    segmented.finish(coordinator, worker)
    segmented.check()


def test_a_minute_of_an_idle_coordinator_and_its_worker_costs_thirty_reads(rig: Rig) -> None:
    store = CountingStore(rig.dataset().store)
    coordinator, worker = rig.coordinator(wrap=lambda _: store), rig.worker()
    beside = rig.worker("beside", wrap=lambda _: store)
    rig.finish(coordinator, worker)
    store.requests.clear()
    for _ in range(round(60 / ServiceSettings().poll_interval_s)):
        rig.clock.advance_s(ServiceSettings().poll_interval_s)
        tick = coordinator.tick()
        assert tick.is_idle
        assert not beside.tick(tick.seen)
    assert set(store.requests) <= {Verb.GET, Verb.HEAD}
    assert store.requests.total() <= 30


def die_at(matches: Callable[[Call], bool], number: int, after: bool) -> Callable[[ObjectStore], ObjectStore]:
    """A store that kills its process at the n-th matching call, before or after it takes effect."""

    def wrap(store: ObjectStore) -> ObjectStore:
        seen = 0

        def decide(_: int, call: Call) -> StoreFault | None:
            nonlocal seen
            seen += matches(call)
            hit = matches(call) and seen == number
            return (StoreFault.CRASH_AFTER if after else StoreFault.CRASH_BEFORE) if hit else None

        return FaultyStore(store, decide)

    return wrap


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    ("matches", "number"),
    [(manifest_write, 1), (ledger_write, 1)],
    ids=["manifest", "ledger"],
)
def test_a_coordinator_that_dies_in_a_commit_leaves_it_to_the_next(
    rig: Rig, matches: Callable[[Call], bool], number: int, after: bool
) -> None:
    armed: list[bool] = []
    first = rig.coordinator(wrap=die_at(lambda call: bool(armed) and matches(call), number, after))
    worker = rig.worker()
    first.tick()
    compacted(rig, first, worker)
    armed.append(True)
    with pytest.raises(Crash):
        first.tick()
    compaction_id = rig.ledger.compactions[-1].id
    second = rig.coordinator()
    rig.finish(second, worker)
    assert rig.only.id == compaction_id
    assert rig.only.state is CompactionState.COMPLETED
    (tree,) = Admin(rig.path).trees()
    assert (len(tree.l0), len(tree.runs)) == (0, 1)
    rig.check()


def beside(
    rig: Rig, armed_by: Callable[[ObjectStore], ObjectStore] = lambda s: s
) -> tuple[Coordinator, Worker]:
    """A coordinator, and a worker beside it that has finished what was claimed for it."""
    worker = rig.worker()
    coordinator = rig.coordinator(companion=worker, wrap=armed_by)
    worker.tick(coordinator.tick().seen)
    rig.engines[worker.id].run_all()
    assert rig.owner() == worker.id
    return coordinator, worker


def test_what_the_worker_beside_a_coordinator_has_just_finished_is_committed_at_once(rig: Rig) -> None:
    coordinator, worker = beside(rig)
    versions, compaction_id = rig.versions(), rig.only.id
    tick = coordinator.tick()
    assert tick.committed == (compaction_id,)
    assert rig.versions() == versions + 1
    assert (rig.only.id, rig.only.state) == (compaction_id, CompactionState.COMPLETED)
    assert rig.only.outputs
    assert not worker.is_busy
    assert not rig.dataset().journal.attempts()
    assert [type(event) for event in rig.events[-2:]] == [events.Compacted, events.Committed]
    rig.check()


def test_what_took_long_is_compacted_before_it_is_committed(rig: Rig) -> None:
    coordinator, worker = beside(rig)
    rig.clock.advance_s(10)
    assert not coordinator.tick().committed
    worker.tick()
    assert rig.only.state is CompactionState.COMPACTED
    rig.finish(coordinator, worker)
    rig.check()


def test_what_was_cancelled_before_it_could_be_committed_is_not(rig: Rig) -> None:
    coordinator, worker = beside(rig)
    cancel(rig)
    tick = coordinator.tick()
    assert not tick.committed
    assert not rig.dataset().snapshot().root.runs
    worker.tick(tick.seen)
    assert len(rig.seen(events.Lost)) == 1


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("matches", [manifest_write, ledger_write], ids=["manifest", "ledger"])
def test_who_dies_in_committing_at_once_loses_no_rows(
    rig: Rig, matches: Callable[[Call], bool], after: bool
) -> None:
    armed: list[bool] = []
    first, _ = beside(rig, die_at(lambda call: bool(armed) and matches(call), 1, after))
    armed.append(True)
    with pytest.raises(Crash):
        first.tick()
    is_in = after or matches is ledger_write
    assert len(rig.dataset().snapshot().root.runs) == is_in
    assert rig.only.state is (
        CompactionState.COMPLETED if after and matches is ledger_write else CompactionState.RUNNING
    )
    second, worker = rig.coordinator(), rig.worker("next")
    rig.pass_silently(second)
    rig.finish(second, worker)
    (tree,) = Admin(rig.path).trees()
    assert (len(tree.l0), len(tree.runs)) == (0, 1)
    assert bool(rig.engines["next"].submitted) is not is_in, "what is in is not done again"
    rig.check()


def test_a_commit_at_once_whose_ledger_could_not_be_written_is_completed_by_the_next_tick(rig: Rig) -> None:
    armed: list[bool] = []

    def decide(_: int, call: Call) -> StoreFault | None:
        return StoreFault.FAIL_BEFORE if armed and ledger_write(call) else None

    coordinator, worker = beside(rig, lambda store: FaultyStore(store, decide))
    armed.append(True)
    with pytest.raises(StoreError):
        coordinator.tick()
    armed.clear()
    manifests = rig.dataset().manifest_ids()
    coordinator.tick()
    assert rig.only.state is CompactionState.COMPLETED
    assert rig.dataset().manifest_ids() == manifests
    assert not worker.is_busy
    rig.check()


def test_a_commit_at_once_whose_ledger_does_not_count_is_completed_by_the_next_tick(rig: Rig) -> None:
    armed: list[bool] = []

    def asleep(store: ObjectStore) -> ObjectStore:
        return Interposed(
            store, lambda call: bool(armed) and ledger_write(call), lambda: collect_ledgers(rig.dataset())
        )

    coordinator, worker = beside(rig, asleep)
    armed.append(True)
    assert len(coordinator.tick().committed) == 1
    assert not worker.is_busy
    assert rig.states() == [CompactionState.RUNNING]
    manifests = rig.dataset().manifest_ids()
    coordinator.settle()
    assert rig.states() == [CompactionState.COMPLETED]
    assert rig.dataset().manifest_ids() == manifests
    rig.check()


def test_a_worker_that_ends_does_not_give_back_what_it_has_finished(rig: Rig) -> None:
    coordinator, worker = beside(rig)
    worker.finished(rig.ledger)
    worker.release()
    assert rig.states() == [CompactionState.COMPACTED]
    coordinator.tick()
    assert rig.states() == [CompactionState.COMPLETED]
    rig.check()


def delete_everything(database: Database) -> Model:
    for key in (b"a", b"b", b"c", b"d"):
        database.delete(key)
        database.flush()
    return {}


def write_apart(database: Database) -> Model:
    model = {b"%d" % n: b"v" for n in range(4)}
    for key, value in model.items():
        database.put(key, value)
        database.flush()
    return model


@pytest.mark.parametrize(
    ("write", "is_moved"), [(delete_everything, False), (write_apart, True)], ids=["no outputs", "a move"]
)
def test_what_only_the_manifest_calls_committed_is_completed_by_the_next_coordinator(
    tmp_path: Path, write: Callable[[Database], Model], is_moved: bool
) -> None:
    path = tmp_path / "template"
    with open_db(path) as database:
        model = write(database)
    rig = Rig.of(Template(path, model), tmp_path, enable_trivial_move=is_moved)
    armed: list[bool] = []
    first = rig.coordinator(wrap=die_at(lambda call: bool(armed) and ledger_write(call), 1, after=False))
    worker = rig.worker()
    first.tick()
    if not is_moved:
        compacted(rig, first, worker)
    armed.append(True)
    with pytest.raises(Crash):
        first.tick()
    (run,) = rig.dataset().snapshot().root.runs
    assert len(run.views) == len(model)
    second = rig.coordinator()
    rig.finish(second, worker)
    assert rig.only.state is CompactionState.COMPLETED
    assert len(rig.seen(events.Committed)) == 1
    assert not rig.seen(events.CompactionRefused)
    rig.check()


def test_a_restart_leaves_running_and_compacted_work_alone(segmented: Rig) -> None:
    """Its worker goes on, and never notices."""
    worker = segmented.worker(max_concurrent_compactions=2)
    segmented.coordinator().tick()
    worker.tick()
    engine = segmented.engines["w"]
    while not segmented.seen(events.Compacted):
        engine.step()
        worker.tick()
    before = {c.id: c for c in segmented.ledger.compactions}
    coordinator = segmented.coordinator()
    for compaction in segmented.ledger.compactions:
        was = before[compaction.id]
        if was.state in (CompactionState.RUNNING, CompactionState.COMPACTED):
            assert compaction == was
        else:
            assert compaction.state is CompactionState.SUBMITTED
    segmented.finish(coordinator, worker)
    assert len(segmented.seen(events.Committed)) == 6
    assert not segmented.seen(events.Lost)
    segmented.check()


def test_a_restart_gives_silent_workers_the_whole_timeout_again(rig: Rig) -> None:
    rig.coordinator().tick()
    rig.worker("dead").tick()
    rig.clock.advance_s(10 * TIMEOUT_S)
    coordinator = rig.coordinator()
    rig.pass_silently(coordinator, TIMEOUT_S - 1)
    assert rig.owner() == "dead"
    rig.clock.advance_s(2)
    coordinator.tick()
    assert rig.owner() is None


def test_a_restart_keeps_the_progress_of_what_nobody_runs(rig: Rig) -> None:
    rig.coordinator().tick()
    worker = rig.worker("first")
    worker.tick()
    rig.engines["first"].step()
    worker.tick()
    worker.release()
    kept = rig.only.progress
    assert kept is not None
    coordinator = rig.coordinator()
    assert (rig.only.state, rig.only.progress) == (CompactionState.SUBMITTED, kept)
    coordinator.tick()
    assert (rig.only.state, rig.only.progress) == (CompactionState.SCHEDULED, kept)
    rig.finish(coordinator, rig.worker("second"))
    assert [event.finished_ranges for event in rig.seen(events.Resumed)] == [1]
    rig.check()


def scheduling(rig: Rig, old: Coordinator) -> None:
    pass


def reclaiming(rig: Rig, old: Coordinator) -> None:
    old.tick()
    rig.worker("dead").tick()
    rig.pass_silently(old, TIMEOUT_S)
    rig.clock.advance_s(1)


def committing(rig: Rig, old: Coordinator) -> None:
    old.tick()
    compacted(rig, old, rig.worker())


@pytest.mark.parametrize("work", [scheduling, reclaiming, committing])
@pytest.mark.parametrize(
    "when", ["before its tick", "before its first write", "before its first write of the ledger"]
)
def test_a_fenced_coordinator_changes_nothing(
    rig: Rig, work: Callable[[Rig, Coordinator], None], when: str
) -> None:
    taken_over: list[Coordinator] = []
    published: list[list[int]] = []
    armed: list[bool] = []

    def take_over() -> None:
        taken_over.append(rig.coordinator())
        published.append(rig.dataset().ledger_ids() + rig.dataset().manifest_ids())

    def is_write(call: Call) -> bool:
        is_ours = ledger_write(call) or (manifest_write(call) and "ledger" not in when)
        return bool(armed) and is_ours

    old = rig.coordinator(wrap=lambda store: Interposed(store, is_write, take_over))
    work(rig, old)
    if when == "before its tick":
        take_over()
    else:
        armed.append(True)
    with pytest.raises(Fenced):
        old.tick()
    dataset, epoch = rig.dataset(), taken_over[0].epoch
    assert published == [dataset.ledger_ids() + dataset.manifest_ids()]
    assert rig.ledger.epoch == dataset.snapshot().compactor_epoch == epoch
    before = (rig.ledger, dataset.snapshot())
    with pytest.raises(Fenced):
        old.tick()
    assert (rig.ledger, dataset.snapshot()) == before
    rig.finish(taken_over[0], rig.worker("next"))
    rig.check()


def test_a_fenced_coordinator_gives_nothing_up(rig: Rig) -> None:
    armed: list[bool] = []
    old = rig.coordinator(
        wrap=lambda store: Interposed(store, lambda call: bool(armed) and ledger_write(call), rig.coordinator)
    )
    old.tick()
    armed.append(True)
    with pytest.raises(Fenced):
        old.fail(rig.only.id, "somebody said so")
    assert rig.only.state is CompactionState.SUBMITTED


def test_a_reclaim_that_meets_a_heartbeat_takes_nothing_back(rig: Rig) -> None:
    """The sign of life comes while the coordinator is publishing that there is none."""
    armed: list[bool] = []
    worker = rig.worker()

    def beat() -> None:
        worker.tick()

    coordinator = rig.coordinator(
        wrap=lambda store: Interposed(store, lambda call: bool(armed) and ledger_write(call), beat)
    )
    coordinator.tick()
    worker.tick()
    rig.pass_silently(coordinator, TIMEOUT_S)
    rig.clock.advance_s(1)
    armed.append(True)
    coordinator.tick()
    assert rig.owner() == "w"
    assert not rig.seen(events.Reclaimed)
    assert rig.dataset().journal.attempts() == {}
    rig.finish(coordinator, worker)
    rig.check()


def test_what_the_writer_publishes_during_a_commit_stays(rig: Rig) -> None:
    """A new L0 SST and a checkpoint, between the coordinator's read of the manifest and its write."""
    model = dict(rig.template.model)
    armed: list[bool] = []
    names: list[str] = []

    def publish() -> None:
        with open_db(rig.path) as database:
            database.write_batch([Put(b"new", b"row")])
            database.flush()
        names.append(Admin(rig.path).create_checkpoint(name="kept"))
        model[b"new"] = b"row"

    coordinator = rig.coordinator(
        wrap=lambda store: Interposed(store, lambda call: bool(armed) and manifest_write(call), publish)
    )
    coordinator.tick()
    compacted(rig, coordinator, rig.worker())
    armed.append(True)
    coordinator.tick()
    (tree,) = Admin(rig.path).trees()
    assert (len(tree.l0), len(tree.runs)) == (1, 1)
    assert names[0] in [checkpoint.id for checkpoint in Admin(rig.path).list_checkpoints()]
    with open_db(rig.path) as database:
        assert dict(database.scan()) == model


def cancel(rig: Rig) -> None:
    """As a person does it: by a change of the ledger."""
    compaction_id = rig.ledger.compactions[-1].id
    rig.dataset().update_ledger(lambda latest: transitions.fail(latest, compaction_id))


@pytest.mark.parametrize(
    "state",
    [
        CompactionState.SUBMITTED,
        CompactionState.SCHEDULED,
        CompactionState.RUNNING,
        CompactionState.COMPACTED,
    ],
)
def test_what_is_cancelled_stays_failed(rig: Rig, state: CompactionState) -> None:
    coordinator, worker = rig.coordinator(), rig.worker()
    coordinator.tick()
    if state is CompactionState.SUBMITTED:
        rig.coordinator()
    elif state is CompactionState.RUNNING:
        worker.tick()
    elif state is CompactionState.COMPACTED:
        compacted(rig, coordinator, worker)
    compaction = rig.only
    assert compaction.state is state
    cancel(rig)
    rig.engines["w"].run_all()
    rig.clock.advance_s(10)
    worker.tick()
    assert (rig.only.id, rig.only.state) == (compaction.id, CompactionState.FAILED)
    assert not worker.is_busy
    latest = rig.coordinator()
    latest.tick()
    assert not rig.seen(events.Committed)
    new = [c for c in rig.ledger.compactions if c.id != compaction.id]
    assert [c.state for c in new] == [CompactionState.SCHEDULED], "the planner proposes it anew"
    rig.finish(latest, worker)
    rig.check()


def test_a_cancel_that_comes_too_late_changes_nothing_that_matters(rig: Rig) -> None:
    """The manifest has the outputs already; the ledger goes on saying Failed."""
    armed: list[bool] = []
    coordinator = rig.coordinator(
        wrap=lambda store: Interposed(
            store, lambda call: bool(armed) and ledger_write(call), lambda: cancel(rig)
        )
    )
    worker = rig.worker()
    coordinator.tick()
    compacted(rig, coordinator, worker)
    armed.append(True)
    coordinator.tick()
    assert rig.only.state is CompactionState.FAILED
    (tree,) = Admin(rig.path).trees()
    assert (len(tree.l0), len(tree.runs)) == (0, 1)
    rig.finish(coordinator, worker)
    rig.check()
