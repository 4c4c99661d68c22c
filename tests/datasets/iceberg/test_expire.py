"""Expiry of snapshots: P1 to P16 of the properties that a history which is cut off must have, every outcome,
and what becomes of files. P9 (one run at a time) is not asked for: any number of runs may go on at once
(P10)."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyiceberg.table.statistics import PartitionStatisticsFile, StatisticsFile
from pyiceberg.table.update import SetLocationUpdate, SetSnapshotRefUpdate

from lithify.base.errors import CorruptObject, HoldLapsed, LithifyError, ObjectNotFound, Refused, StoreError
from lithify.base.ids import RandomIds
from lithify.coordination.thresholds import ThresholdFiles
from lithify.datasets.iceberg.maintenance.expire import (
    DEFAULT_GRACE_MS,
    ExpireOptions,
    Expirer,
    Expiry,
    ExpiryOutcome,
)
from lithify.datasets.iceberg.maintenance.garbage import GarbageOptions, collect
from lithify.datasets.iceberg.maintenance.history_view import show_expiry
from lithify.datasets.iceberg.maintenance.operations import TableMaintenance
from lithify.datasets.iceberg.maintenance.pending import ABANDONED_MS
from lithify.datasets.iceberg.maintenance.reachable import FileKind
from lithify.datasets.maintenance import HoldRequest
from lithify.store.times import store_now_ms
from lithify.testing import ManualClock
from lithify.views.blocks import Line
from tests.datasets.iceberg.running import Steps, a_clock, compact, dataset_of
from tests.datasets.iceberg.spark_checkpoint import SparkCheckpoint
from tests.datasets.iceberg.tables import (
    DAY,
    NAME,
    START,
    add_file,
    age_files,
    append,
    as_arrow,
    check,
    delete_positions,
    files_of,
    fresh,
    make_rows,
    named_paths,
    new_catalog,
    new_table,
    read,
    rewrite_without,
    set_version,
)
from tests.parts import in_parts

FOR_EVER_MS = 4_000_000_000_000
HOUR_MS = LEASE_MS = 3_600_000
ALL = ExpireOptions(older_than_ms=FOR_EVER_MS, grace_ms=0)
"""Everything but the newest snapshot, and its files at once."""
LATER = ExpireOptions(older_than_ms=FOR_EVER_MS)
"""The same, and its files after the grace period."""


@pytest.fixture
def table(catalog: SqlCatalog) -> Table:
    """A table of six snapshots. Each has data files that the one before it does not have, and the other way
    round."""
    return six_snapshots(new_table(catalog))


def six_snapshots(table: Table) -> Table:
    rows = [append(table, make_rows(3, START + n * DAY))[0] for n in range(3)]
    for row in rows:
        rewrite_without(table, row[1])
    return fresh(table)


def run(table: Table, options: ExpireOptions = ALL) -> Expiry:
    return Expirer(dataset_of(table), a_clock(), RandomIds()).run(options)


def maintenance_of(table: Table) -> TableMaintenance:
    clock = a_clock()
    return TableMaintenance(dataset_of(table, clock=clock), clock, RandomIds())


def ids_of(table: Table) -> list[int]:
    return [snapshot.snapshot_id for snapshot in fresh(table).snapshots()]


def hold(table: Table, snapshot_id: int, name: str | None = None) -> None:
    maintenance_of(table).hold(HoldRequest(version=snapshot_id), LEASE_MS, name, "me")


def contents(table: Table) -> Mapping[int, Any]:
    """What every snapshot reads."""
    return {snapshot_id: read(table, snapshot_id) for snapshot_id in ids_of(table)}


def judge(table: Table, before: Mapping[int, Any]) -> None:
    """All that is left reads as before."""
    assert contents(table) == {snapshot_id: before[snapshot_id] for snapshot_id in ids_of(table)}


def on_disk(table: Table) -> set[str]:
    """Data files and manifests."""
    root = Path(table.location().removeprefix("file://"))
    return {path.as_uri() for path in root.rglob("*") if path.suffix in (".parquet", ".avro")}


def wait(monkeypatch: pytest.MonkeyPatch, ms: int = DEFAULT_GRACE_MS) -> None:
    """Let time pass at the store."""
    monkeypatch.setattr(
        "lithify.datasets.iceberg.maintenance.expire.store_now_ms", lambda *of: store_now_ms(*of) + ms
    )


def watermark_of(table: Table) -> int | None:
    threshold = maintenance_of(table).thresholds.read()
    return None if threshold is None else threshold.position


def meanwhile(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object], times: int = 1) -> None:
    """Let something happen between the look at the table and the commit."""
    commit, left = SqlCatalog.commit_table, [times]

    def commit_after(self: SqlCatalog, table: Table, requirements: Any, updates: Any) -> Any:
        is_expiry = any(update.action == "remove-snapshots" for update in updates)
        if is_expiry and left[0]:
            left[0] -= 1
            action()
        return commit(self, table, requirements, updates)

    monkeypatch.setattr(SqlCatalog, "commit_table", commit_after)


# The properties


def test_p01_what_is_held_can_be_read(table: Table) -> None:
    before, ids = contents(table), ids_of(table)
    for held in (ids[4], ids[2]):
        hold(table, held)
    assert set(run(table).expired) == set(ids[:2])
    judge(table, before)


@in_parts(3)
def test_p01_in_any_order_of_holds_and_expiries(catalog: SqlCatalog, part: int) -> None:
    for seed in range(part, 6, 3):
        rng = random.Random(seed)
        table = six_snapshots(new_table(catalog, name=("db", f"t{seed}")))
        before, held = contents(table), {}
        for step in range(5):
            wanted = rng.choice(list(before))
            try:
                hold(table, wanted, f"h{step}")
                held[f"h{step}"] = wanted
            except Refused:
                pass  # too late, and says so
            if held and rng.random() < 0.3:
                name = rng.choice(list(held))
                maintenance_of(table).release(name)
                del held[name]
            run(table, ExpireOptions(rng.choice([FOR_EVER_MS, None]), rng.randint(1, 5), grace_ms=0))
            assert set(held.values()) <= set(ids_of(table)), seed
            judge(table, before)


def test_p02_the_watermark_never_goes_down(table: Table) -> None:
    found = []
    for keep in (4, 2, 5, 1):
        run(table, ExpireOptions(FOR_EVER_MS, keep, grace_ms=0))
        found.append(watermark_of(table))
    assert found[0] is not None
    assert found == sorted(found, key=lambda ms: ms or 0)
    assert found[1] == found[2]


def test_p03_p04_what_is_left_reads_as_before_and_hangs_together(table: Table) -> None:
    before, ids = contents(table), ids_of(table)
    hold(table, ids[2])
    found = run(table)
    assert (found.outcome, set(found.expired)) == (ExpiryOutcome.EXPIRED, set(ids[:2]))
    judge(table, before)
    parents = {s.snapshot_id: s.parent_snapshot_id for s in fresh(table).snapshots()}
    assert parents == {ids[2]: None, ids[3]: ids[2], ids[4]: ids[3], ids[5]: ids[4]}


def test_p05_the_watermark_is_not_past_what_is_needed_and_the_newest_stays(table: Table) -> None:
    ids = ids_of(table)
    held_ms = fresh(table).snapshots()[3].timestamp_ms
    hold(table, ids[3])
    run(table)
    assert watermark_of(table) == held_ms
    maintenance_of(table).release(maintenance_of(table).holds()[0].name)
    run(table)
    assert ids_of(table) == ids[-1:]


def broken_reader(table: Table, folder: Path) -> None:
    checkpoint = SparkCheckpoint(folder / "broken")
    checkpoint.begin(ids_of(table)[-1])
    maintenance_of(table).add_reader(checkpoint.url, "broken", {})
    (checkpoint.folder / "sources/0/offsets/0").write_text("?")


def reader_that_has_not_begun(table: Table, folder: Path) -> None:
    maintenance_of(table).add_reader((folder / "new").as_uri(), "new", {})


def held_from_the_beginning(table: Table, folder: Path) -> None:
    hold(table, ids_of(table)[0], "all")


def somebody_elses_table(table: Table, folder: Path) -> None:
    with fresh(table).transaction() as transaction:
        transaction.set_properties({"gc.enabled": "false"})


def all_gone(table: Table, folder: Path) -> None:
    run(table)


@pytest.mark.parametrize(
    ("prepare", "outcome", "why"),
    [
        (broken_reader, ExpiryOutcome.MISSING_READER, "reader broken: its checkpoint cannot be read"),
        (reader_that_has_not_begun, ExpiryOutcome.UNPUBLISHED, "reader new: it has not started"),
        (held_from_the_beginning, ExpiryOutcome.HELD, "needed by hold all of me"),
        (somebody_elses_table, ExpiryOutcome.NO_WATERMARK, "gc.enabled"),
        (all_gone, ExpiryOutcome.NOTHING_TO_DO, ""),
    ],
)
def test_p06_whatever_stops_a_run_leaves_the_table_as_it_was(
    table: Table, tmp_path: Path, prepare: Callable[[Table, Path], None], outcome: ExpiryOutcome, why: str
) -> None:
    prepare(table, tmp_path)
    location, files = fresh(table).metadata_location, on_disk(table)
    for dry_run in (True, False):
        found = run(table, ExpireOptions(FOR_EVER_MS, grace_ms=0, dry_run=dry_run))
        assert (found.outcome, found.expired, why in found.why) == (outcome, (), True), found
        assert found.snapshots == len(ids_of(table))
    assert (fresh(table).metadata_location, on_disk(table)) == (location, files)


def test_p06_a_ref_that_changes_again_and_again(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[Any] = []
    meanwhile(monkeypatch, lambda: rows.extend(append(table, make_rows(1))), times=99)
    before = ids_of(table)
    found = run(table)
    assert (found.outcome, found.expired) == (ExpiryOutcome.REF_CHANGED, ())
    assert ids_of(table)[: len(before)] == before
    assert found.pending == (), "what was written down for nothing is forgotten"


def test_p06_a_race_lost_again_and_again(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose() -> None:
        raise CommitFailedException("somebody was faster")

    meanwhile(monkeypatch, lose, times=99)
    location = fresh(table).metadata_location
    found = run(table)
    assert (found.outcome, fresh(table).metadata_location) == (ExpiryOutcome.LOST_RACE, location)


def test_p07_the_watermark_is_published_whatever_comes_of_the_rest(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose() -> None:
        raise CommitFailedException("somebody was faster")

    hold(table, ids_of(table)[2], "h")
    with monkeypatch.context() as patched:
        meanwhile(patched, lose, times=99)
        assert run(table).outcome is ExpiryOutcome.LOST_RACE
    published = maintenance_of(table).thresholds.read()
    assert published is not None
    assert published.position == fresh(table).snapshots()[2].timestamp_ms
    assert published.least is not None
    assert published.least.by == "hold h of me"
    reader_that_has_not_begun(table, tmp_path)
    assert run(table).outcome is ExpiryOutcome.UNPUBLISHED
    assert watermark_of(table) == published.position


def test_p08_a_reader_counts_by_what_it_has_committed(table: Table, tmp_path: Path) -> None:
    ids = ids_of(table)
    checkpoint = SparkCheckpoint(tmp_path / "checkpoint")
    maintenance_of(table).add_reader(checkpoint.url, "r", {"continuous": True})
    assert run(table).outcome is ExpiryOutcome.UNPUBLISHED
    checkpoint.begin(ids[1])
    assert run(table).expired == (ids[0],)
    checkpoint.plan(ids[3])
    assert run(table).outcome is ExpiryOutcome.HELD, "what is planned only does not count"
    checkpoint.commit()
    assert set(run(table).expired) == set(ids[1:3])
    checkpoint.plan(ids[5])
    checkpoint.commit()
    assert set(run(table).expired) == set(ids[3:5])


def test_p08_a_reader_that_may_run_with_available_now_needs_all_since_it_began(
    table: Table, tmp_path: Path
) -> None:
    ids = ids_of(table)
    checkpoint = SparkCheckpoint(tmp_path / "checkpoint")
    checkpoint.begin(ids[1])
    checkpoint.plan(ids[5])
    checkpoint.commit()
    maintenance_of(table).add_reader(checkpoint.url, "r", {})
    assert run(table).expired == (ids[0],)


def test_p10_a_run_inside_another_leaves_what_one_would(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, ids = contents(table), ids_of(table)
    inner: list[Expiry] = []
    meanwhile(monkeypatch, lambda: inner.append(run(table)))
    outer = run(table)
    assert (inner[0].outcome, ids_of(table)) == (ExpiryOutcome.EXPIRED, ids[-1:])
    assert outer.outcome in (ExpiryOutcome.EXPIRED, ExpiryOutcome.NOTHING_TO_DO, ExpiryOutcome.LOST_RACE)
    judge(table, before)
    run(table)
    assert on_disk(table) == named_paths(table)


def test_p11_what_is_gone_is_refused_never_read_wrong(table: Table) -> None:
    ids = ids_of(table)
    placed = maintenance_of(table).hold(HoldRequest(version=ids[0]), LEASE_MS, "h", "me")
    maintenance_of(table).release("h")
    run(table)
    with pytest.raises(Refused, match="no snapshot"):
        hold(table, ids[0])
    with pytest.raises(HoldLapsed):
        maintenance_of(table).renew(placed)


def test_p12_a_commit_that_comes_between_is_there_once(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = list(read(table))
    meanwhile(monkeypatch, lambda: rows.extend(append(table, make_rows(2))))
    assert run(table).outcome is ExpiryOutcome.EXPIRED
    check(table, rows)
    assert len(ids_of(table)) == 1


def test_p14_without_holds_all_but_the_newest_goes(table: Table, tmp_path: Path) -> None:
    broken_reader(table, tmp_path)
    assert run(table).outcome is ExpiryOutcome.MISSING_READER
    maintenance_of(table).drop_reader("broken")
    assert run(table).outcome is ExpiryOutcome.EXPIRED
    assert len(ids_of(table)) == 1
    assert on_disk(table) == named_paths(table)


def test_p14_a_lapsed_hold_keeps_nothing_and_goes(table: Table) -> None:
    maintenance_of(table).hold(HoldRequest(version=ids_of(table)[0]), 10_000, "h", "me")
    assert run(table).outcome is ExpiryOutcome.HELD
    age_files(Path(table.location().removeprefix("file://")) / "_lithify", 11)
    assert run(table).outcome is ExpiryOutcome.EXPIRED
    assert maintenance_of(table)._holds.list() == ()


def test_p15_who_needs_nothing_old_blocks_nothing(table: Table, tmp_path: Path) -> None:
    newest = ids_of(table)[-1]
    for n in range(3):
        hold(table, newest, f"h{n}")
        checkpoint = SparkCheckpoint(tmp_path / f"c{n}")
        checkpoint.begin(newest)
        maintenance_of(table).add_reader(checkpoint.url, f"r{n}", {})
    assert run(table).outcome is ExpiryOutcome.EXPIRED
    assert ids_of(table) == [newest]


def test_p16_a_hold_older_than_the_watermark_is_refused(table: Table) -> None:
    ids = ids_of(table)
    with fresh(table).manage_snapshots() as changes:
        changes.create_tag(ids[1], "kept")
    run(table)
    assert ids_of(table) == [ids[1], ids[-1]]
    with pytest.raises(Refused, match="too late"):
        hold(table, ids[1])
    hold(table, ids[-1])


def test_the_newest_of_main_can_be_held_whatever_was_newer_elsewhere(table: Table) -> None:
    head = ids_of(table)[-1]
    with fresh(table).manage_snapshots() as changes:
        changes.create_branch(head, "audit")
    fresh(table).append(as_arrow(make_rows(2)), branch="audit")
    with fresh(table).manage_snapshots() as changes:
        changes.remove_branch("audit")
    assert run(table).outcome is ExpiryOutcome.EXPIRED
    hold(table, head)


def test_a_hold_that_comes_after_the_watermark_is_refused(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, refused = ids_of(table), []

    def come_late() -> None:
        with pytest.raises(Refused, match="too late"):
            hold(table, ids[2])
        refused.append(True)

    meanwhile(monkeypatch, come_late)
    assert run(table).outcome is ExpiryOutcome.EXPIRED
    assert (refused, ids_of(table)) == ([True], ids[-1:])


def test_a_hold_that_comes_before_the_watermark_is_found(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, publish = ids_of(table), ThresholdFiles.publish

    def publish_late(self: ThresholdFiles, change: Any) -> Any:
        with monkeypatch.context() as patched:
            patched.setattr(ThresholdFiles, "publish", publish)
            hold(table, ids[2])
        return publish(self, change)

    with monkeypatch.context() as patched:
        patched.setattr(ThresholdFiles, "publish", publish_late)
        assert set(run(table).expired) == set(ids[:2])


# Refs


@pytest.mark.parametrize("kind", ["create_tag", "create_branch"])
def test_a_ref_that_is_made_before_the_commit_keeps_its_snapshot_and_files(
    table: Table, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    before, ids = contents(table), ids_of(table)

    def make() -> None:
        with fresh(table).manage_snapshots() as changes:
            getattr(changes, kind)(ids[2], "new")

    meanwhile(monkeypatch, make)
    assert run(table).outcome is ExpiryOutcome.EXPIRED
    assert ids_of(table) == [ids[2], ids[-1]]
    judge(table, before)


def keep_more(table: Table) -> None:
    head = fresh(table).metadata.refs["main"].snapshot_id
    update = {"ref-name": "main", "type": "branch", "snapshot-id": head, "min-snapshots-to-keep": 100}
    fresh(table)._do_commit((SetSnapshotRefUpdate.model_validate(update),), ())


def keep_by_property(table: Table) -> None:
    with fresh(table).transaction() as transaction:
        transaction.set_properties({"history.expire.min-snapshots-to-keep": "100"})


def keep_all(table: Table) -> None:
    with fresh(table).transaction() as transaction:
        transaction.set_properties({"gc.enabled": "false"})


@pytest.mark.parametrize("keep", [keep_more, keep_by_property, keep_all])
def test_rules_that_are_changed_before_the_commit_count(
    table: Table, monkeypatch: pytest.MonkeyPatch, keep: Callable[[Table], None]
) -> None:
    before = ids_of(table)
    meanwhile(monkeypatch, lambda: keep(table))
    assert not run(table).expired
    assert ids_of(table) == before


def test_statistics_that_go_before_the_commit_are_a_conflict(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = ids_of(table)
    statistics_of(table, ids[0])

    def remove() -> None:
        with fresh(table).update_statistics() as update:
            update.remove_statistics(ids[0])

    meanwhile(monkeypatch, remove)
    assert run(table).outcome is ExpiryOutcome.EXPIRED
    assert ids_of(table) == ids[-1:]


def test_files_stay_while_the_table_says_so(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    run(table, ExpireOptions(FOR_EVER_MS))
    before = on_disk(table)
    keep_all(table)
    wait(monkeypatch)
    assert run(table).pending
    assert on_disk(table) == before


def test_a_table_that_is_known_newer_while_it_is_loaded_is_the_same(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = dataset_of(table)
    dataset.lineage.advance(dataset.load())
    load, left = dataset.load, [1]

    def load_slowly() -> Table:
        found = load()
        if left:
            left.pop()
            append(table, make_rows(1))
            dataset.lineage.advance(load())
        return found

    monkeypatch.setattr(dataset, "load", load_slowly)
    assert Expirer(dataset, a_clock(), RandomIds()).run(ALL).outcome is ExpiryOutcome.EXPIRED


def test_pyicebergs_own_expiry_loses_the_tag(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: it asserts nothing."""
    ids = ids_of(table)

    def make() -> None:
        with fresh(table).manage_snapshots() as changes:
            changes.create_tag(ids[2], "new")

    meanwhile(monkeypatch, make)
    fresh(table).maintenance.expire_snapshots().by_ids(ids[:-1]).commit()
    assert ids_of(table) == ids[-1:]


def test_a_tag_that_is_too_old_goes_with_its_snapshot(table: Table) -> None:
    ids = ids_of(table)
    with fresh(table).manage_snapshots() as changes:
        changes.create_tag(ids[1], "old", max_ref_age_ms=1)
    found = run(table)
    assert (found.refs, ids_of(table)) == (("old",), ids[-1:])
    assert set(fresh(table).metadata.refs) == {"main"}


# Our own compactions


def test_an_active_compaction_keeps_what_it_was_planned_on(catalog: SqlCatalog) -> None:
    table = new_table(catalog, properties={"lithify.min-saved-files": "1"})
    rows = [row for n in range(4) for row in append(table, make_rows(3, START + n * DAY / 8))]
    steps = Steps(dataset_of(table))
    steps.schedule()
    steps.execute()
    planned = ids_of(table)[-1]
    rows += append(table, make_rows(3, START + 3 * DAY))
    assert planned not in run(table).expired
    steps.commit()
    assert any("lithify-" in file.file_path for file in files_of(table)), "it was committed"
    run(table)
    check(table, rows)
    assert len(ids_of(table)) == 1


# Files


def test_files_go_only_after_their_grace_period(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    before = on_disk(table)
    found = run(table, ExpireOptions(FOR_EVER_MS))
    assert (found.outcome, sum(found.deleted.values())) == (ExpiryOutcome.EXPIRED, 0)
    assert on_disk(table) == before
    (entry,) = found.pending
    assert entry.files == len(before - named_paths(table))
    assert entry.since_ms is not None
    again = run(table, ExpireOptions(FOR_EVER_MS))
    assert (again.outcome, again.pending, on_disk(table)) == (ExpiryOutcome.NOTHING_TO_DO, (entry,), before)
    sooner = run(table)
    assert (sooner.pending, on_disk(table)) == ((entry,), before), "nor when a later run has a shorter one"
    wait(monkeypatch)
    later = run(table)
    assert (later.pending, sum(later.deleted.values())) == ((), entry.files)
    assert on_disk(table) == named_paths(table)
    assert DEFAULT_GRACE_MS > 0


def test_a_file_that_may_not_be_deleted_holds_up_no_other(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again with each run, as long as that takes."""
    run(table, ExpireOptions(FOR_EVER_MS))
    io = type(fresh(table).io)
    held, delete = max(on_disk(table) - named_paths(table)), io.delete
    wait(monkeypatch)

    def hold(io: FileIO, location: Any) -> None:
        if str(location).rpartition("/")[2] == held.rpartition("/")[2]:
            raise PermissionError(f"{location} is held")
        delete(io, location)

    with monkeypatch.context() as context:
        context.setattr(io, "delete", hold)
        for _ in range(2):
            with pytest.raises(StoreError, match="is held"):
                run(table)
            assert on_disk(table) == {*named_paths(table), held}
    assert run(table).pending == ()
    assert on_disk(table) == named_paths(table)


def test_what_was_deleted_is_counted_by_kind(catalog: SqlCatalog) -> None:
    table = new_table(catalog)
    append(table, make_rows(4))
    delete_positions(table, {files_of(table)[0].file_path: [1]})
    statistics_of(table, ids_of(table)[0])
    append(table, make_rows(2))
    fresh(table).overwrite(fresh(table).scan().to_arrow())
    before = contents(table)
    found = run(table)
    assert found.deleted[FileKind.DATA] >= 2
    assert found.deleted[FileKind.MANIFEST_LIST] == len(found.expired)
    assert found.deleted[FileKind.STATISTICS] == 2
    assert found.deleted_bytes > 0
    assert not fresh(table).metadata.statistics
    assert not fresh(table).metadata.partition_statistics
    judge(table, before)
    left = on_disk(table) - named_paths(table)
    assert left <= set(), left


def statistics_of(table: Table, snapshot_id: int) -> None:
    """Statistics files for a snapshot."""
    root = Path(table.location().removeprefix("file://"))
    paths = [root / "metadata" / f"{name}.stats" for name in ("table", "partition")]
    for path in paths:
        path.write_bytes(b"stats")
    common = {"snapshot-id": snapshot_id, "file-size-in-bytes": 5}
    with fresh(table).update_statistics() as update:
        update.set_statistics(
            StatisticsFile.model_validate(
                {
                    **common,
                    "statistics-path": paths[0].as_uri(),
                    "file-footer-size-in-bytes": 1,
                    "blob-metadata": [],
                }
            )
        )
    now = fresh(table)
    partition = PartitionStatisticsFile.model_validate({**common, "statistics-path": paths[1].as_uri()})
    from pyiceberg.table.update import SetPartitionStatisticsUpdate

    fields = {"partition-statistics": partition}
    now._do_commit((SetPartitionStatisticsUpdate.model_validate(fields),), ())


def test_a_file_that_came_back_stays(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody registers a file again that an expiry had written down."""
    old = files_of(table)
    gone = {file.file_path for file in old}
    rows = read(table)
    fresh(table).delete("id >= 0")
    found = run(table, ExpireOptions(FOR_EVER_MS))
    assert found.outcome is ExpiryOutcome.EXPIRED
    with fresh(table).transaction() as transaction, transaction.update_snapshot().fast_append() as added:
        for file in old:
            added.append_data_file(file)
    wait(monkeypatch)
    assert run(table).deleted
    assert gone <= on_disk(table)
    assert read(table) == rows


def test_a_path_that_is_read_as_another_one_is_kept(catalog: SqlCatalog) -> None:
    """PyIceberg cuts `other.parquet#1` off at the `#`, when it reads and when it deletes."""
    table = new_table(catalog)
    append(table, make_rows(2))
    base = files_of(table)[0].file_path
    good = base.rsplit("/", 1)[0] + "/other.parquet"
    shutil.copy(base.removeprefix("file://"), good.removeprefix("file://"))
    add_file(fresh(table), f"{good}#1", 2)
    fresh(table).overwrite(as_arrow(make_rows(1)))
    add_file(fresh(table), good, 2)
    rows = read(table)
    found = run(table)
    assert found.outcome is ExpiryOutcome.EXPIRED
    assert read(table) == rows


def test_one_folder_of_two_names(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    table = new_table(new_catalog(tmp_path / "link"))
    append(table, make_rows(2))
    path = files_of(table)[0].file_path
    fresh(table).overwrite(as_arrow(make_rows(1)))
    add_file(fresh(table), path.replace("/link/", "/real/"), 2)
    rows = read(table)
    assert run(table).outcome is ExpiryOutcome.EXPIRED
    assert read(table) == rows


def test_files_elsewhere_stay_for_other_tables(catalog: SqlCatalog, tmp_path: Path) -> None:
    shared = {"write.data.path": f"file://{tmp_path}/shared"}
    one, two = (six_snapshots(new_table(catalog, properties=shared, name=("db", n))) for n in ("one", "two"))
    # The second has a file of the first too.
    borrowed = files_of(one)[0]
    with fresh(two).transaction() as transaction, transaction.update_snapshot().fast_append() as added:
        added.append_data_file(borrowed)
    before, files = contents(two), set((tmp_path / "shared").rglob("*.parquet"))
    fresh(one).delete("id >= 0")
    found = run(one)
    assert found.outcome is ExpiryOutcome.EXPIRED
    assert any("outside the table's location" in note for note in found.notes)
    assert set((tmp_path / "shared").rglob("*.parquet")) == files
    judge(two, before)


def test_a_table_in_two_catalogs_is_left_alone(table: Table, tmp_path: Path) -> None:
    second = new_catalog(tmp_path / "second").register_table(NAME, fresh(table).metadata_location)
    assert compact(dataset_of(fresh(table))) is not None
    append(second, make_rows(2))
    append(table, make_rows(2))
    run(table, ExpireOptions(FOR_EVER_MS))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(Refused, match="second catalog"):
        run(second)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_table_that_was_moved_without_its_holds_is_left_alone(table: Table) -> None:
    hold(table, ids_of(table)[0])
    old = Path(table.location().removeprefix("file://"))
    table._do_commit((SetLocationUpdate(location=f"{table.location()}_2"),), ())
    files = on_disk(table)
    with pytest.raises(Refused, match="the table was moved"):
        run(fresh(table))
    assert (len(ids_of(table)), on_disk(table)) == (6, files)
    new = Path(f"{old}_2")
    new.mkdir(exist_ok=True)
    shutil.move(old / "_lithify", new / "_lithify")
    assert run(fresh(table)).outcome is ExpiryOutcome.HELD


def test_the_garbage_collector_waits_with_expiry(
    catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compacted file is Lithify's own; its age does not say since when nothing names it."""
    table = new_table(catalog, properties={"lithify.min-saved-files": "1"})
    rows = [row for n in range(2) for row in append(table, make_rows(3, START + n * DAY / 8))]
    assert compact(dataset_of(table)).committed
    rows += append(table, make_rows(3, START + DAY / 2))
    assert compact(dataset_of(table)).committed
    run(table, ExpireOptions(FOR_EVER_MS))
    waiting = on_disk(table) - named_paths(table)
    assert any("lithify-" in path for path in waiting)
    age_files(tmp_path)
    collect(dataset_of(table), a_clock(), GarbageOptions(dry_run=False))
    assert waiting <= on_disk(table)
    wait(monkeypatch)
    run(table)
    assert on_disk(table) == named_paths(table)
    check(table, rows)


# What is refused, what is lost


def test_a_table_of_another_format_is_refused(catalog: SqlCatalog) -> None:
    table = new_table(catalog)
    append(table, make_rows(2))
    set_version(table, 4)
    with pytest.raises(Refused, match="format version 4 is newer than this version of Lithify"):
        run(table)


@pytest.mark.parametrize("is_made", [True, False])
def test_a_lost_answer_of_the_catalog(table: Table, monkeypatch: pytest.MonkeyPatch, is_made: bool) -> None:
    before, ids, commit = contents(table), ids_of(table), SqlCatalog.commit_table

    def commit_and_lose(self: SqlCatalog, table: Table, requirements: Any, updates: Any) -> Any:
        if is_made:
            commit(self, table, requirements, updates)
        raise CommitStateUnknownException("lost")

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", commit_and_lose)
        if is_made:
            assert run(table).outcome is ExpiryOutcome.EXPIRED
        else:
            with pytest.raises(LithifyError):
                run(table)
    run(table)
    assert ids_of(table) == ids[-1:]
    judge(table, before)
    assert on_disk(table) == named_paths(table)


def test_files_wait_for_the_last_snapshot_that_named_them(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though a run that never committed wrote them down before somebody went back to an old snapshot."""

    def die() -> None:
        raise CommitStateUnknownException("never sent")

    ids = ids_of(table)
    with monkeypatch.context() as patched:
        meanwhile(patched, die)
        with pytest.raises(LithifyError):
            run(table)
    with fresh(table).manage_snapshots() as changes:
        changes.rollback_to_snapshot(ids[2])
    rows = append(table, make_rows(1))
    options = ExpireOptions(FOR_EVER_MS)
    assert run(table, options).outcome is ExpiryOutcome.EXPIRED
    named = named_paths(table)
    wait(monkeypatch, DEFAULT_GRACE_MS + 1_000)
    for row in read(table)[: -len(rows)]:
        rewrite_without(table, row[1])
    assert run(table, options).outcome is ExpiryOutcome.EXPIRED
    assert not {path for path in named if path.endswith(".parquet")} <= named_paths(table)
    assert named <= on_disk(table)
    wait(monkeypatch, 2 * DEFAULT_GRACE_MS + 2_000)
    run(table, options)
    assert on_disk(table) == named_paths(table)


def test_paths_without_an_entry_are_swept_after_a_day(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though nothing waits."""
    dataset = dataset_of(table)
    key = f"{dataset.own_folder}/pending-files/01ARZ3NDEKTSV4RRFFQ69G5FAV.json"
    dataset.store.put(key, b"[]")
    options = ExpireOptions(retain_last=99)
    run(table, options)
    assert dataset.store.get(key) == b"[]"
    wait(monkeypatch, ABANDONED_MS + 1_000)
    run(table, options)
    with pytest.raises(ObjectNotFound):
        dataset.store.get(key)


def test_very_many_files_are_written_down_in_parts(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lithify.datasets.iceberg.maintenance.pending.PART_FILES", 4)
    dataset = dataset_of(table)

    def parts() -> list[str]:
        return [meta.key for meta in dataset.store.list(f"{dataset.own_folder}/pending-files")]

    (entry,) = run(table, LATER).pending
    assert entry.files > 8
    assert len(parts()) == -(-entry.files // 4)
    wait(monkeypatch)
    assert sum(run(table, LATER).deleted.values()) == entry.files
    assert parts() == []
    assert on_disk(table) == named_paths(table)


def test_a_part_that_is_damaged_stops_the_deletion(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what nobody knows nothing goes, and what was expired stays so."""
    monkeypatch.setattr("lithify.datasets.iceberg.maintenance.pending.PART_FILES", 4)
    dataset, (entry,) = dataset_of(table), run(table, LATER).pending
    before = on_disk(table)
    dataset.store.put(f"{dataset.own_folder}/pending-files/{entry.id}-00000.json", b"[{}]")
    wait(monkeypatch)
    with pytest.raises(CorruptObject, match="list of files"):
        run(table, LATER)
    assert on_disk(table) == before


def test_what_never_was_committed_is_forgotten_after_a_day(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die() -> None:
        raise CommitStateUnknownException("never sent")

    with monkeypatch.context() as patched:
        meanwhile(patched, die)
        with pytest.raises(LithifyError):
            run(table)
    keep = ExpireOptions(0, grace_ms=0)
    (entry,) = run(table, keep).pending
    monkeypatch.setattr(
        "lithify.datasets.iceberg.maintenance.expire.store_now_ms", lambda *_: entry.written_ms + ABANDONED_MS
    )
    assert run(table, keep).pending == ()
    assert len(ids_of(table)) == 6


def test_a_dry_run_says_the_same_and_writes_nothing(table: Table, tmp_path: Path) -> None:
    hold(table, ids_of(table)[2])
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    found = run(table, ExpireOptions(FOR_EVER_MS, grace_ms=0, dry_run=True))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    done = run(table)
    assert (found.outcome, found.expired, found.kept) == (done.outcome, done.expired, done.kept)
    assert found.would_delete == (sum(done.deleted.values()), done.deleted_bytes)


def test_the_clock_of_the_store_counts(table: Table) -> None:
    """A machine whose clock is a year ahead expires nothing that is young."""
    clock = ManualClock(a_clock().now_ms() + 365 * 86_400_000)
    expirer = Expirer(dataset_of(table, clock=clock), clock, RandomIds())
    assert expirer.run().outcome is ExpiryOutcome.NOTHING_TO_DO


# What is said


@pytest.mark.parametrize(
    ("behind_ms", "outcome"),
    [(0, ExpiryOutcome.EXPIRED), (999, ExpiryOutcome.EXPIRED), (HOUR_MS, ExpiryOutcome.NOTHING_TO_DO)],
)
def test_an_expiry_just_after_a_commit(
    table: Table, monkeypatch: pytest.MonkeyPatch, behind_ms: int, outcome: ExpiryOutcome
) -> None:
    """The store counts in whole seconds, or its clock is behind that of the machine that committed."""
    now_ms = fresh(table).snapshots()[-2].timestamp_ms + 1
    monkeypatch.setattr(
        "lithify.datasets.iceberg.maintenance.expire.store_now_ms", lambda *of: now_ms - behind_ms
    )
    found = run(table, LATER)
    assert found.outcome is outcome
    if outcome is ExpiryOutcome.NOTHING_TO_DO:
        assert found.why == "newer than the store's clock, or than the newest snapshot of main"
        assert found.kept == 5 - len(found.expired)
    lines = show_expiry("iceberg://test/db.events", found, 0).blocks
    text = " ".join(line.text for line in lines if isinstance(line, Line))
    assert "needed by" not in text
    assert ("newer than the store's clock" in text) is (outcome is ExpiryOutcome.NOTHING_TO_DO)


def test_the_bytes_of_all_that_was_deleted_are_known(table: Table) -> None:
    sizes = {path: Path(path.removeprefix("file://")).stat().st_size for path in on_disk(table)}
    found = run(table)
    gone = sizes.keys() - on_disk(table)
    assert found.deleted[FileKind.MANIFEST_LIST] == 5
    assert found.deleted_bytes == sum(sizes[path] for path in gone)
    assert len(gone) == sum(found.deleted.values())
