"""Submitting, cancelling and trying again, judged by coordinators and workers that run meanwhile."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from lithify.base.clock import SystemClock
from lithify.base.errors import Refused, StoreError
from lithify.base.ids import RandomIds, Ulid
from lithify.coordination.leadership import Leadership
from lithify.datasets.slatedb.compaction.request import spec_of
from lithify.datasets.slatedb.dataset import SlateDataset
from lithify.datasets.slatedb.model import Spec, TieredSpec
from lithify.datasets.slatedb.planning.tiered import TieredPolicy
from lithify.protocol.model import CompactionState, Ledger
from lithify.service import control
from lithify.service.coordinator import Coordinator
from lithify.service.worker import Worker
from lithify.testing import Call, FaultyStore, ManualClock, StoreFault
from lithify.testing.engine import InlineEngine
from tests.compacting import dataset_at
from tests.judge.official import Put, compact_officially, compactor_settings, open_db

CLOCK, IDS = SystemClock(), RandomIds()


class Set:
    """A database with a Lithify coordinator that plans nothing by itself, and a worker."""

    def __init__(self, path: Path, flushes: int = 3) -> None:
        with open_db(path) as database:
            for n in range(flushes):
                database.write_batch([Put(b"k%02d" % k, b"%d" % n) for k in range(20)])
                database.flush()
        self.path = path
        self.dataset = quiet(path)
        self.leading = ExitStack()
        self.coordinator = Coordinator(self.dataset, CLOCK, IDS)
        self.coordinator.start(self.leading.enter_context(Leadership(self.dataset, CLOCK, IDS).acquire()))
        self.coordinator.take_up()
        self.engine = InlineEngine(stepped=True)
        self.worker = Worker(quiet(path), self.engine, CLOCK, "w")

    def spec(self, *runs: int, l0: bool = True) -> TieredSpec:
        dataset = self.dataset
        ledger = dataset.ledger() or Ledger()
        return spec_of(dataset.snapshot(), ledger, b"", (), runs, all_l0=l0)

    def submit(self, *specs: Spec) -> tuple[Ulid, ...]:
        return control.submit(quiet(self.path), CLOCK, IDS, specs)

    def outcome(self, compaction_id: Ulid) -> control.CompactionOutcome:
        found = control.outcome(quiet(self.path), compaction_id)
        assert found is not None
        return found

    def finish(self) -> None:
        """Let coordinator and worker do all there is to do."""
        for _ in range(4):
            self.coordinator.tick()
            self.worker.tick()
            self.engine.run_all()


def quiet(path: Path) -> SlateDataset:
    """The database, with a scheduler that never finds anything."""
    return dataset_at(path, policy=TieredPolicy(1000, 1000))


@pytest.fixture
def db(tmp_path: Path) -> Set:
    return Set(tmp_path / "db")


def test_what_is_submitted_is_done(db: Set) -> None:
    (compaction_id,) = db.submit(db.spec())
    assert db.outcome(compaction_id).state is CompactionState.SUBMITTED
    db.finish()
    assert db.outcome(compaction_id).state is CompactionState.COMPLETED
    (tree,) = [quiet(db.path).snapshot().root]
    assert (len(tree.l0), [run.id for run in tree.runs]) == (0, [0])
    # A second one: how the first ended is known although the ledger forgets it, if its id is lower.
    (second,) = db.submit(db.spec(0, l0=False))
    db.finish()
    assert db.outcome(second).state is CompactionState.COMPLETED
    ledger = db.dataset.ledger()
    assert ledger is not None
    assert {c.id for c in ledger.compactions} == {max(compaction_id, second), second}
    assert db.outcome(compaction_id).state is CompactionState.COMPLETED
    with open_db(db.path) as database:
        assert database.scan() == [(b"k%02d" % k, b"2") for k in range(20)]


def test_a_mistake_is_told_and_nothing_is_written(db: Set) -> None:
    (compaction_id,) = db.submit(db.spec())
    l0 = db.spec().l0_view_ids
    before = db.dataset.ledger_ids()
    wrong: list[tuple[Spec, str]] = [
        (db.spec(), f"already a source of compaction {compaction_id}"),
        (TieredSpec(b"", (), (), 9), "cannot be compacted"),
        (TieredSpec(b"x", l0, (), 9), "cannot be compacted"),
        (TieredSpec(b"", (), (7,), 7), "cannot be compacted"),
    ]
    for spec, says in wrong:
        with pytest.raises(Refused, match=says):
            db.submit(spec)
    snapshot, ledger = db.dataset.snapshot(), db.dataset.ledger() or Ledger()
    for segment, views, runs, says in (
        (b"x", (), (), "no segment 78"),
        (b"", (IDS.ulid(1),), (), "not a source"),
        (b"", (), (4,), "4 is not a source"),
    ):
        with pytest.raises(Refused, match=says):
            spec_of(snapshot, ledger, segment, views, runs)
    assert db.dataset.ledger_ids() == before


def test_only_the_newest_l0_without_the_oldest_is_refused(db: Set) -> None:
    """A spec that SlateDB would accept and lose data on."""
    newest = db.spec().l0_view_ids[:1]
    with pytest.raises(Refused, match="would be lost"):
        db.submit(TieredSpec(b"", newest, (), 0))


def test_all_or_none(db: Set) -> None:
    before = db.dataset.ledger_ids()
    with pytest.raises(Refused):
        db.submit(db.spec(), TieredSpec(b"", (), (7,), 7))
    assert db.dataset.ledger_ids() == before


def test_a_cancelled_compaction_stops_and_can_be_tried_again(db: Set) -> None:
    (compaction_id,) = db.submit(db.spec())
    db.coordinator.tick()
    db.worker.tick()
    assert db.outcome(compaction_id).state is CompactionState.RUNNING
    assert db.engine.waiting

    control.cancel(quiet(db.path), CLOCK, [compaction_id])
    assert db.outcome(compaction_id) == control.CompactionOutcome(
        compaction_id, CompactionState.FAILED, control.CANCELLED
    )
    db.worker.tick()
    assert not db.worker.is_busy
    assert not db.engine.waiting
    db.finish()
    assert db.dataset.snapshot().root.runs == ()

    (new_id,) = control.retry(quiet(db.path), CLOCK, IDS, [compaction_id])
    assert new_id != compaction_id
    assert db.dataset.journal.failures() == ()
    db.finish()
    assert db.outcome(new_id).state is CompactionState.COMPLETED
    with open_db(db.path) as database:
        assert len(database.scan()) == 20


def test_waiting_outlasts_an_outage(db: Set, caplog: pytest.LogCaptureFixture) -> None:
    """A store that was never there is another matter: somebody mistook its name."""
    (compaction_id,) = db.submit(db.spec())
    clock, outage_s = ManualClock(), (5, 300)

    def decide(number: int, call: Call) -> StoreFault | None:
        return StoreFault.FAIL_BEFORE if outage_s[0] <= clock.monotonic_s() < outage_s[1] else None

    dataset = dataset_at(db.path, wrap=lambda store: FaultyStore(store, decide))
    looks: list[float] = []

    def look() -> None:
        looks.append(clock.monotonic_s())
        if clock.monotonic_s() >= outage_s[1]:
            db.finish()

    (ended,) = control.wait(dataset, clock, [compaction_id], poll_s=1, on_look=look)
    assert ended.state is CompactionState.COMPLETED
    assert [s for s in looks if s < outage_s[0]]
    assert not [s for s in looks if outage_s[0] <= s < outage_s[1]]
    assert sum("is retried" in record.message for record in caplog.records) == 1
    clock = ManualClock()
    clock.advance_s(10)
    with pytest.raises(StoreError):
        control.wait(dataset, clock, [compaction_id], poll_s=1)


def test_what_was_cancelled_is_not_planned_again_at_once(tmp_path: Path) -> None:
    db = Set(tmp_path / "db", flushes=4)
    eager = Coordinator(dataset_at(db.path), CLOCK, IDS)
    eager.start(db.leading.enter_context(Leadership(db.dataset, CLOCK, IDS).acquire(take_over=True)))
    eager.tick()
    ledger = db.dataset.ledger()
    assert ledger is not None
    (compaction,) = ledger.active()
    control.cancel(quiet(db.path), CLOCK, [compaction.id])
    assert eager.tick().ledger.active() == ()


def test_what_cannot_be_cancelled(db: Set) -> None:
    (compaction_id,) = db.submit(db.spec())
    with pytest.raises(Refused, match="no compaction"):
        control.cancel(db.dataset, CLOCK, [IDS.ulid(5)])
    db.coordinator.tick()
    db.worker.tick()
    db.engine.run_all()
    db.worker.tick()
    assert db.outcome(compaction_id).state is CompactionState.COMPACTED
    with pytest.raises(Refused, match="no longer be cancelled"):
        control.cancel(db.dataset, CLOCK, [compaction_id])
    db.finish()
    with pytest.raises(Refused, match="already completed"):
        control.cancel(db.dataset, CLOCK, [compaction_id])
    with pytest.raises(Refused, match="has not failed"):
        control.retry(db.dataset, CLOCK, IDS, [compaction_id])
    with pytest.raises(Refused, match="is unknown"):
        control.retry(db.dataset, CLOCK, IDS, [IDS.ulid(5)])


def test_slatedbs_coordinator_does_what_is_submitted_and_is_not_asked_to_cancel(tmp_path: Path) -> None:
    path = tmp_path / "db"
    db = Set(path)
    compact_officially(path)
    spec = db.spec(0, l0=False)
    with open_db(path, settings={"compactor_options": compactor_settings(scheduler={})}):
        (compaction_id,) = db.submit(spec)
        with pytest.raises(Refused, match="cannot cancel"):
            control.cancel(quiet(path), CLOCK, [compaction_id])
        for _ in range(600):
            if db.outcome(compaction_id).state.is_terminal:
                break
            CLOCK.sleep_s(0.05)
    assert db.outcome(compaction_id).state is CompactionState.COMPLETED
