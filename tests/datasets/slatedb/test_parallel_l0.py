"""Two compactions of L0 SSTs of one tree at once, as a SlateDB after 0.17 may schedule them: a worker
executes the newer one only if nothing can be lost by it, and keeps the tombstones of what the older one
still reads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lithify.base import events
from lithify.base.clock import SystemClock
from lithify.base.events import Event
from lithify.base.ids import RandomIds, Ulid
from lithify.datasets.slatedb.compaction.validate import parallel_l0, why_unclaimable
from lithify.datasets.slatedb.dataset import SlateDataset
from lithify.datasets.slatedb.format.ledger import SlateCompaction
from lithify.datasets.slatedb.model import Manifest, Spec, TieredSpec
from lithify.protocol.model import AssignedWorker, Compaction, CompactionState, Ledger
from lithify.service.worker import Worker
from lithify.testing.engine import InlineEngine
from tests.compacting import dataset_at
from tests.datasets.slatedb.trees import MB, Mint, manifest_of, tiered
from tests.judge.client import Delete, Put
from tests.judge.official import open_db

OTHER = AssignedWorker("slatedb", 2**50)


def slate_compaction(
    compaction_id: Ulid, spec: Spec, state: CompactionState = CompactionState.SUBMITTED
) -> SlateCompaction:
    return Compaction(compaction_id, spec, state)


class Pair:
    """A database with four L0 SSTs, and a ledger with a compaction of the older two and of the newer two."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with open_db(path, settings={"compactor_options": None}) as database:
            for write in (
                Put(b"deleted", b"old"),
                Put(b"kept", b"1"),
                Delete(b"deleted"),
                Put(b"new", b"2"),
            ):
                database.write_batch([write])
                database.flush()
        self.dataset: SlateDataset = dataset_at(path)
        l0 = [view.id for view in self.dataset.snapshot().root.l0]
        assert len(l0) == 4
        now_ms, ids = SystemClock().now_ms(), RandomIds()
        self.older, self.newer = (
            slate_compaction(ids.ulid(now_ms + n), TieredSpec(b"", tuple(views), (), n))
            for n, views in enumerate((l0[2:], l0[:2]))
        )

    def ledger_with(self, older: SlateCompaction) -> None:
        newer = replace(self.newer, state=CompactionState.SCHEDULED)
        self.dataset.update_ledger(lambda ledger: Ledger(ledger.epoch, (older, newer)), Ledger())

    def state(self, compaction: SlateCompaction) -> SlateCompaction:
        ledger = self.dataset.ledger()
        assert ledger is not None
        found = ledger.get(compaction.id)
        assert found is not None
        return found


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path / "db")


def test_a_newer_compaction_is_executed_while_an_older_one_runs_and_keeps_its_tombstones(pair: Pair) -> None:
    pair.ledger_with(replace(pair.older, state=CompactionState.RUNNING, worker=OTHER))
    worker = Worker(pair.dataset, InlineEngine(), SystemClock(), "lithify")
    while worker.tick() or worker.is_busy:
        pass
    newer = pair.state(pair.newer)
    assert newer.state is CompactionState.COMPACTED

    # The other worker's compaction comes back; both are committed, the older first.
    pair.ledger_with(replace(pair.older, state=CompactionState.SCHEDULED))
    alone = Worker(dataset_at(pair.path), InlineEngine(), SystemClock(), "alone")
    alone.look()
    assert alone.claim_only(pair.older.id)
    while pair.state(pair.older).state is not CompactionState.COMPACTED:
        alone.tick()
    older = pair.state(pair.older)
    epoch = pair.dataset.take_epoch()
    assert set(pair.dataset.commit([older, newer], epoch).values()) == {None}
    with open_db(pair.path, settings={"compactor_options": None}) as database:
        assert dict(database.scan()) == {b"kept": b"1", b"new": b"2"}


@pytest.mark.parametrize("state", [CompactionState.COMPACTED, CompactionState.SUBMITTED])
def test_a_newer_compaction_waits_while_an_older_one_may_still_be_refused(
    pair: Pair, state: CompactionState
) -> None:
    pair.ledger_with(replace(pair.older, state=state))
    told: list[Event] = []
    engine = InlineEngine()
    worker = Worker(pair.dataset, engine, SystemClock(), "lithify", observer=told.append)
    for _ in range(3):
        worker.tick()
    assert pair.state(pair.newer).state is CompactionState.SCHEDULED
    assert engine.submitted == []
    (postponed,) = [event for event in told if isinstance(event, events.ClaimPostponed)]
    assert postponed.compaction == pair.newer.id
    assert f"until compaction {pair.older.id}" in postponed.reason


def why(newer: TieredSpec, *others: tuple[TieredSpec, CompactionState], of: Manifest) -> str | None:
    mint = Mint(1)
    mine = slate_compaction(mint.ulid(), newer, CompactionState.SCHEDULED)
    rest = [slate_compaction(mint.ulid(), spec, state) for spec, state in others]
    parallel = parallel_l0(mine, Ledger(1, (mine, *rest)))
    return why_unclaimable(mine, parallel, of)


def test_every_older_l0_sst_must_be_read_by_a_compaction_in_progress() -> None:
    tree = Mint().tree(6)
    manifest = manifest_of(tree)
    newest = tiered(tree, slice(0, 2), (), 7)
    middle, oldest = tiered(tree, slice(2, 4), (), 6), tiered(tree, slice(4, 6), (), 5)
    running = CompactionState.RUNNING
    assert why(newest, (middle, running), (oldest, running), of=manifest) is None
    assert why(oldest, (newest, CompactionState.COMPACTED), of=manifest) is None, "nothing older is left out"
    missing = why(newest, (middle, running), of=manifest)
    assert missing is not None
    assert "would be lost" in missing
    assert why(newest, (middle, running), (oldest, CompactionState.FAILED), of=manifest) == missing


def test_what_is_left_out_must_be_older_and_go_to_an_older_run() -> None:
    tree = Mint().tree(4, {1: MB})
    manifest, running = manifest_of(tree), CompactionState.RUNNING
    newer, older = tiered(tree, slice(0, 2), (), 9), tiered(tree, slice(2, 4), (), 8)
    assert why(newer, (older, running), of=manifest) is None
    below = why(newer, (replace(older, destination=10), running), of=manifest)
    assert below is not None
    assert "does not make an older run" in below
    views = newer.l0_view_ids + older.l0_view_ids
    odd, even = replace(newer, l0_view_ids=views[::2]), replace(older, l0_view_ids=views[1::2])
    with_run = replace(newer, sorted_runs=(tree.runs[0].id,))
    for spec, other in ((odd, even), (with_run, older)):
        mixed = why(spec, (other, running), of=manifest)
        assert mixed is not None
        assert "newer than some of its sources" in mixed
