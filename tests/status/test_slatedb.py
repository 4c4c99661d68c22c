"""What a database itself tells: its backlog, its coordinator, and the history of its ledger."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from lithify.base.ids import RandomIds, Ulid, ulid_ms
from lithify.datasets.slatedb.dataset import SlateDataset
from lithify.datasets.slatedb.format.ledger import SlateLedger, SlateProgress
from lithify.datasets.slatedb.format.manifest import encode_manifest
from lithify.datasets.slatedb.model import KeyRange, TieredSpec, Tree, View
from lithify.datasets.slatedb.planning.backlog import backlog
from lithify.protocol import transitions
from lithify.protocol.lease import LEASE_MS, VALID_MS, EpochClaim, Lease
from lithify.protocol.model import AssignedWorker, CompactionState, Progress, RangeProgress
from lithify.protocol.presence import Presence
from lithify.service.status import status
from lithify.store.metered import Verb
from lithify.store.wrapped import ReadOnlyStore
from lithify.testing import CountingStore, ManualClock
from lithify.testing.memory import MemoryStore
from tests.compacting import dataset_at
from tests.datasets.slatedb.trees import EMPTY, MB, Mint
from tests.judge.official import open_db
from tests.ledgers import take_epoch

NOW_MS = 1_700_000_000_000
LEASE = Lease("lithify-1", taken=7)
ASKED = replace(LEASE, challenger="lithify-2")
ANNOUNCED = Lease("lithify-1", taken=6, taking=EpochClaim(7, 2, "00" * 16))


@pytest.mark.parametrize(
    ("epoch", "lease", "later_ms", "presence", "is_alive"),
    [
        (0, None, 0, Presence.NEVER, False),
        (7, LEASE, VALID_MS - 1, Presence.ALIVE, True),
        (7, ASKED, LEASE_MS - 1, Presence.ALIVE, True),
        (7, ASKED, LEASE_MS, Presence.LOST, False),
        (7, replace(LEASE, is_ended=True), 0, Presence.STOPPED, False),
        (7, LEASE, VALID_MS, Presence.LOST, False),
        (8, LEASE, 0, Presence.FOREIGN, None),
        (6, LEASE, 0, Presence.FOREIGN, None),
        (1, None, 0, Presence.FOREIGN, None),
        (6, ANNOUNCED, 0, Presence.ALIVE, True),
        (7, ANNOUNCED, 0, Presence.FOREIGN, None),
        (0, ANNOUNCED, 0, Presence.NEVER, False),
    ],
)
def test_which_coordinator(
    epoch: int, lease: Lease | None, later_ms: int, presence: Presence, is_alive: bool | None
) -> None:
    clock = ManualClock(NOW_MS)
    store = MemoryStore(clock)
    store.create(f"db/manifest/{1:020}.manifest", encode_manifest(replace(EMPTY, compactor_epoch=epoch)))
    dataset = SlateDataset(store, "db", clock, RandomIds())
    if lease is not None:
        dataset.lease.write(lease, None)
    clock.advance_s(later_ms / 1000)
    found = dataset.coordinator()
    assert found.presence is presence
    assert found.is_alive is is_alive


@pytest.mark.parametrize("off_s", [-3600, 0, 3600])
@pytest.mark.parametrize(
    ("later_ms", "presence"), [(VALID_MS - 1, Presence.ALIVE), (VALID_MS, Presence.LOST)]
)
def test_the_readers_clock_plays_no_part_in_who_is_alive(
    off_s: int, later_ms: int, presence: Presence
) -> None:
    """Only the store's clock does."""
    clock, readers = ManualClock(NOW_MS), ManualClock(NOW_MS + off_s * 1000)
    store = MemoryStore(clock)
    store.create(f"db/manifest/{1:020}.manifest", encode_manifest(replace(EMPTY, compactor_epoch=7)))
    SlateDataset(store, "db", clock, RandomIds()).lease.write(LEASE, None)
    clock.advance_s(later_ms / 1000)
    assert SlateDataset(store, "db", readers, RandomIds()).coordinator().presence is presence


def test_a_reader_that_may_not_write_is_told_that_it_cannot_be_seen() -> None:
    clock = ManualClock(NOW_MS)
    store = MemoryStore(clock)
    store.create(f"db/manifest/{1:020}.manifest", encode_manifest(replace(EMPTY, compactor_epoch=7)))
    SlateDataset(store, "db", clock, RandomIds()).lease.write(LEASE, None)
    found = SlateDataset(ReadOnlyStore(store), "db", clock, RandomIds()).coordinator()
    assert (found.presence, found.is_alive) == (Presence.UNCLEAR, None)


def test_nothing_is_written_to_ask_the_time_where_nobody_may_be_alive() -> None:
    clock = ManualClock(NOW_MS)
    memory = MemoryStore(clock)
    memory.create(f"db/manifest/{1:020}.manifest", encode_manifest(replace(EMPTY, compactor_epoch=7)))
    store = CountingStore(memory)
    SlateDataset(store, "db", clock, RandomIds()).coordinator()
    SlateDataset(store, "db", clock, RandomIds()).lease.write(replace(LEASE, is_ended=True), None)
    store.reset()
    found = status(SlateDataset(store, "db", clock, RandomIds()), clock, 30_000)
    assert found.coordinator.presence is Presence.STOPPED
    assert not store.requests[Verb.PUT]


def flushed(count: int, every_ms: int, compacted: int = 0) -> Tree:
    """A tree whose writer flushed `count` L0 SSTs, one each `every_ms`; the oldest `compacted` are gone."""
    mint, ids = Mint(), RandomIds()
    views = [View(ids.ulid(NOW_MS + n * every_ms), mint.sst()) for n in range(count)]
    kept = tuple(reversed(views[compacted:]))
    return Tree(l0=kept, last_compacted_l0=views[compacted - 1].id if compacted else None)


@pytest.mark.parametrize(
    ("tree", "later_ms", "rate", "stall_ms"),
    [
        (Tree(), 0, None, None),
        (flushed(1, 1000), 0, None, None),
        (flushed(5, 1000), 0, 1.0, 3000),
        (flushed(5, 1000), 4000, 0.5, 6000),
        (flushed(5, 1000, compacted=4), 0, 1.0, 7000),
        (flushed(8, 1000), 0, 1.0, 0),
        (flushed(12, 1000), 0, 1.0, 0),
    ],
)
def test_when_the_writer_stalls(tree: Tree, later_ms: int, rate: float | None, stall_ms: int | None) -> None:
    newest = max((ulid_ms(v.id) for v in tree.l0), default=NOW_MS)
    (found,) = backlog(replace(EMPTY, root=tree), newest + later_ms, 8)
    assert found["l0_ssts"] == len(tree.l0)
    assert found["l0_bytes"] == MB * len(tree.l0)
    assert found["flushes_per_s"] == (pytest.approx(rate) if rate is not None else None)
    assert found.stall_ms == stall_ms


def test_segments_have_a_backlog_each() -> None:
    mint = Mint()
    manifest = replace(
        EMPTY, segments=(mint.tree(3, prefix=b"a"), mint.tree(1, {0: 5 * MB}, prefix=b"b"), Tree(b"c"))
    )
    found = backlog(manifest, NOW_MS, 8)
    assert [(p.unit, p["l0_ssts"], p["runs"], p["size_bytes"]) for p in found] == [
        ("segment 61", 3, 0, 3 * MB),
        ("segment 62", 1, 1, 6 * MB),
    ]


def _beat(
    compaction_id: Ulid, at_ms: int, ledger: SlateLedger, progress: SlateProgress | None = None
) -> SlateLedger:
    return transitions.heartbeat(ledger, compaction_id, "second", at_ms, progress)


@pytest.mark.parametrize("heartbeats", [0, 1, 2, 3, 7, 20])
def test_since_when(tmp_path: Path, heartbeats: int) -> None:
    """The answer does not depend on how many versions were published since."""
    path = tmp_path / "db"
    with open_db(path) as database:
        database.put(b"k", b"v")
    dataset = dataset_at(path)
    take_epoch(dataset)
    mint = Mint()
    made = [mint.compaction(TieredSpec(b"", (mint.ulid(),), (), n)) for n in range(2)]
    wanted, other = (c.id for c in made)
    dataset.update_ledger(lambda ledger: transitions.submit(ledger, *made))
    dataset.update_ledger(lambda ledger: transitions.schedule(transitions.schedule(ledger, wanted), other))
    dataset.update_ledger(lambda ledger: transitions.claim(ledger, wanted, "first", 1))
    dataset.update_ledger(lambda ledger: transitions.release(ledger, wanted, "first"))
    dataset.update_ledger(lambda ledger: transitions.claim(ledger, wanted, "second", 2))
    claimed = dataset.ledger_ids()[-1]
    for n in range(heartbeats):
        dataset.update_ledger(partial(_beat, wanted, 3 + n))
    ledger = dataset.ledger()
    assert ledger is not None
    history = dataset.history()
    compaction = ledger.get(wanted)
    assert compaction is not None
    arrival = history.arrival(compaction)
    assert arrival is not None
    key = f"{dataset.paths.compactions_folder}/{claimed:020d}.compactions"
    assert arrival.at_ms == dataset.store.head(key).last_modified_ms
    assert arrival.compaction.worker is not None
    assert arrival.compaction.worker.last_heartbeat_ms == 2

    # Progress is found where it was recorded first, by this worker.
    assert history.first_progress(compaction) is None
    progress: SlateProgress = Progress((RangeProgress(KeyRange()),), 5)
    for at_ms in (100, 101, 102):
        dataset.update_ledger(partial(_beat, wanted, at_ms, progress=progress))
    ledger = dataset.ledger()
    assert ledger is not None
    moved = ledger.get(wanted)
    assert moved is not None
    first = dataset.history().first_progress(moved)
    assert first is not None
    assert first.compaction.worker == AssignedWorker("second", 100)

    # Without the version in which it was claimed, nobody knows.
    for version_id in range(1, claimed + 1):
        dataset.store.delete(f"{dataset.paths.compactions_folder}/{version_id:020d}.compactions")
    assert dataset.history().arrival(moved) is None

    # What is gone from the latest version is still found, as long as older ones are there.
    dataset.update_ledger(
        lambda ledger: transitions.trim(transitions.fail(transitions.fail(ledger, wanted), other))
    )
    latest = dataset.ledger()
    assert latest is not None
    assert latest.get(min(wanted, other)) is None
    entry = dataset.history().last_entry(wanted)
    assert entry is not None
    assert entry.state in (CompactionState.RUNNING, CompactionState.FAILED)
