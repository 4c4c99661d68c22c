"""What a database still needs: the rules one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lithify.base.ids import RandomIds
from lithify.datasets.slatedb.format.ledger import SlateLedger
from lithify.datasets.slatedb.format.paths import DatabasePaths
from lithify.datasets.slatedb.garbage.retention import (
    Cutoff,
    deletable_notes,
    deletable_ssts,
    deletable_versions,
    deletable_wal,
    detachable,
    expired_checkpoints,
    live_ssts,
    sst_cutoff,
    without_expired_checkpoints,
)
from lithify.datasets.slatedb.model import (
    Checkpoint,
    ExternalDb,
    Manifest,
    SortedRun,
    Sst,
    SstInfo,
    TieredSpec,
    Tree,
    View,
)
from lithify.protocol.model import Compaction, CompactionState, Ledger
from lithify.store.objects import ObjectMeta

IDS = RandomIds()
PATHS = DatabasePaths("db")


def view_at(ms: int) -> View:
    sst = Sst(IDS.ulid(ms), SstInfo(b"a", b"z", 10, 10, 10, 0, 0, 0))
    return View(sst.id, sst)


def tree_at(*l0_ms: int, marker_ms: int | None = None, prefix: bytes = b"") -> Tree:
    marker = None if marker_ms is None else IDS.ulid(marker_ms)
    return Tree(prefix, marker, tuple(view_at(ms) for ms in l0_ms))


def manifest_of(root: Tree, *segments: Tree) -> Manifest:
    return Manifest(True, 1, 1, root, segments=segments)


def ledger_at(*entries: tuple[int, CompactionState]) -> SlateLedger:
    spec = TieredSpec(b"", (), (1,), 1)
    return Ledger(1, tuple(Compaction(IDS.ulid(ms), spec, state) for ms, state in entries))


DONE = ledger_at((5000, CompactionState.COMPLETED))


@pytest.mark.parametrize(
    ("now_ms", "min_age_ms", "ledger", "manifest", "cutoff_ms", "reason"),
    [
        (9000, 0, None, manifest_of(tree_at(7000)), 0, "no compactions file"),
        (9000, 0, Ledger(1), manifest_of(tree_at(7000)), 0, "no entries"),
        (9000, 0, DONE, manifest_of(tree_at()), 0, "has been no L0"),
        (9000, 0, DONE, manifest_of(tree_at(7000)), 5000, "oldest compaction"),
        (
            9000,
            0,
            ledger_at((4000, CompactionState.RUNNING), (5000, CompactionState.COMPLETED)),
            manifest_of(tree_at(7000)),
            4000,
            "oldest compaction",
        ),
        (
            9000,
            0,
            ledger_at((4000, CompactionState.FAILED), (5000, CompactionState.SUBMITTED)),
            manifest_of(tree_at(7000)),
            4000,
            "oldest compaction",
        ),
        (9000, 4500, DONE, manifest_of(tree_at(7000)), 4500, "minimum age"),
        (9000, 10_000, DONE, manifest_of(tree_at(7000)), -1000, "minimum age"),
        (9000, 0, DONE, manifest_of(tree_at(3000, 2000)), 3000, "newest L0"),
        (9000, 0, DONE, manifest_of(tree_at(3000, marker_ms=4000)), 3000, "newest L0"),
        (9000, 0, DONE, manifest_of(tree_at(marker_ms=2500)), 2500, "newest L0"),
        (
            9000,
            0,
            DONE,
            manifest_of(tree_at(), tree_at(1000, prefix=b"a"), tree_at(marker_ms=2000, prefix=b"b")),
            2000,
            "newest L0",
        ),
    ],
)
def test_the_cutoff_is_the_least_of_its_terms(
    now_ms: int, min_age_ms: int, ledger: SlateLedger | None, manifest: Manifest, cutoff_ms: int, reason: str
) -> None:
    cutoff = sst_cutoff(now_ms, min_age_ms, ledger, manifest)
    assert cutoff.ms == cutoff_ms
    assert reason in cutoff.reason


def meta(key: str, modified_ms: int = 0) -> ObjectMeta:
    return ObjectMeta(key, 1, modified_ms, None)


def test_only_dead_ssts_of_this_database_older_than_the_cutoff_go() -> None:
    in_l0, in_run, dead, at_cutoff = view_at(1), view_at(1), IDS.ulid(9), IDS.ulid(10)
    pinning = manifest_of(Tree(b"", None, (), (SortedRun(1, (in_run,)),)))
    live = live_ssts([manifest_of(Tree(b"", None, (in_l0,))), pinning])
    names = [f"{i}.sst" for i in (in_l0.sst.id, in_run.sst.id, dead, at_cutoff)]
    names += [f"{dead}.sst.tmp", f"{dead}", f"sub/{dead}.sst", f"{dead.lower()}.sst", "note.sst", "x"]
    listed = [meta(f"db/compacted/{name}") for name in names]
    found = deletable_ssts(listed, PATHS, live, Cutoff(10, ""))
    assert [m.key for m in found] == [PATHS.sst(dead)]


def test_versions_before_the_latest_that_are_old_and_not_pinned_go() -> None:
    listed = [(n, meta(str(n), modified_ms=n * 100)) for n in (1, 2, 3, 4, 5, 6)]

    def ids(latest: int, pinned: set[int], before_ms: int) -> list[int]:
        return [n for n, _ in deletable_versions(listed, latest, frozenset(pinned), before_ms)]

    assert ids(5, set(), 10_000) == [1, 2, 3, 4]  # 6 came after the latest was read
    assert ids(6, {2, 4}, 10_000) == [1, 3, 5]
    assert ids(6, set(), 300) == [1, 2]
    assert ids(0, set(), 10_000) == []


def test_checkpoints_expire_at_their_second_and_never_with_zero() -> None:
    def checkpoint(expire_time_s: int) -> Checkpoint:
        return Checkpoint(IDS.uuid(), 1, expire_time_s, 0)

    never, past, now, later = map(checkpoint, (0, 4, 5, 6))
    manifest = replace(manifest_of(tree_at()), checkpoints=(never, past, now, later))
    assert expired_checkpoints(manifest, 5000) == (past, now)
    assert expired_checkpoints(manifest, 4999) == (past,)
    assert without_expired_checkpoints(manifest, 5000).checkpoints == (never, later)


def test_the_newest_l0_is_the_newest_whatever_the_order() -> None:
    """In a clone of several databases the L0 SSTs of one follow those of another."""
    assert sst_cutoff(9000, 0, DONE, manifest_of(tree_at(3000, 4000, 2000))).ms == 4000


def test_log_files_that_no_manifest_would_replay_go() -> None:
    listed = [(n, meta(str(n), modified_ms=100)) for n in range(1, 13)]
    latest = replace(manifest_of(tree_at()), replay_after_wal_id=9, wal_id_last_seen=11)
    pinned = [
        replace(latest, replay_after_wal_id=2, wal_id_last_seen=4),
        replace(latest, replay_after_wal_id=6, wal_id_last_seen=6),
    ]
    assert [m.key for m in deletable_wal(listed, latest, pinned, 101)] == ["1", "2", "5", "6", "7", "8"]
    assert deletable_wal(listed, latest, pinned, 100) == ()


def test_a_tie_goes_when_nobody_reads_the_parent_any_more() -> None:
    def tie(checkpoint: bool, *ssts: int) -> ExternalDb:
        final = IDS.uuid() if checkpoint else None
        return ExternalDb("parent", IDS.uuid(), final, tuple(IDS.ulid(ms) for ms in ssts))

    read, unread, read_by_checkpoint, without = tie(True, 1), tie(True), tie(True), tie(False)
    ties = (read, unread, read_by_checkpoint, without)
    latest = replace(manifest_of(tree_at()), external_dbs=ties)
    pinned = replace(latest, external_dbs=(replace(read_by_checkpoint, sst_ids=(IDS.ulid(1),)), unread))
    assert detachable(latest, [pinned]) == (unread,)
    assert detachable(latest, []) == (unread, read_by_checkpoint)


def test_notes_about_finished_and_forgotten_compactions_go() -> None:
    ledger = ledger_at(
        (1, CompactionState.RUNNING),
        (2, CompactionState.SUBMITTED),
        (3, CompactionState.COMPACTED),
        (4, CompactionState.COMPLETED),
    )
    ids = [c.id for c in ledger.compactions]
    forgotten = IDS.ulid(0)
    listed = [meta(f"db/lithify/progress/{i}/0-x.json") for i in (*ids, forgotten)]
    listed += [meta(f"db/lithify/{name}") for name in ("coordinator.json", f"failures/{ids[3]}.json")]
    listed += [meta(f"db/lithify/progress/{ids[3]}/1-y.json", modified_ms=10)]
    gone = [m.key.split("/")[3] for m in deletable_notes(listed, ledger, 10)]
    assert gone == [ids[3], forgotten]
    assert len(deletable_notes(listed, None, 11)) == 6
