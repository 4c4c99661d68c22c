"""Manifests that are rewritten: the same entries with the same numbers, in few manifests that follow each
other; whatever happens meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus, ManifestFile, write_manifest_list
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform, IdentityTransform

from lithify.base.errors import CorruptObject, Refused, StoreError
from lithify.base.ids import RandomIds
from lithify.datasets.iceberg.format.manifest_plan import RewriteReason
from lithify.datasets.iceberg.format.publish import MAX_TRIES
from lithify.datasets.iceberg.maintenance.duties import duties
from lithify.datasets.iceberg.maintenance.garbage import GarbageKind, GarbageOptions, collect
from lithify.datasets.iceberg.rewriting.head_rewrite import RewriteOutcome
from lithify.datasets.iceberg.rewriting.manifest_merge import ManifestMerge
from lithify.datasets.iceberg.rewriting.rewrite_manifests import ManifestRewriter, RewritingManifests
from tests.datasets.iceberg.avro import header_of
from tests.datasets.iceberg.running import Steps, a_clock, compact, dataset_of
from tests.datasets.iceberg.tables import (
    DAY,
    START,
    age_files,
    append,
    append_with_deletes,
    as_arrow,
    check,
    delete_equal,
    delete_positions,
    files_of,
    fresh,
    make_rows,
    new_table,
    read,
    rewrite_without,
)

BY_DAY = PartitionSpec(PartitionField(1, 1000, DayTransform(), "day"))
BY_DEVICE_AND_DAY = PartitionSpec(
    PartitionField(3, 1000, IdentityTransform(), "device"), PartitionField(1, 1001, DayTransform(), "day")
)
TARGET = "commit.manifest.target-size-bytes"


def run(table: Table, **options: bool) -> RewritingManifests:
    return ManifestRewriter(dataset_of(table), a_clock()).run(**options)


def manifests_of(table: Table) -> list[ManifestFile]:
    now = fresh(table)
    snapshot = now.current_snapshot()
    assert snapshot is not None
    return snapshot.manifests(now.io)


def entries_of(table: Table, manifest: ManifestFile) -> list[ManifestEntry]:
    return manifest.fetch_manifest_entry(table.io, discard_deleted=False)


def numbers_of(table: Table) -> Counter[tuple[Any, ...]]:
    """All live entries of the newest snapshot with what must stay as it is."""
    return Counter(
        (
            entry.snapshot_id,
            entry.sequence_number,
            entry.file_sequence_number,
            entry.data_file.spec_id,
            repr([dict(v) if isinstance(v, Mapping) else v for v in entry.data_file._data]),
        )
        for manifest in manifests_of(table)
        for entry in entries_of(table, manifest)
        if entry.status != ManifestEntryStatus.DELETED
    )


def contents(table: Table) -> Mapping[int, Any]:
    """What every snapshot reads."""
    return {s.snapshot_id: read(table, s.snapshot_id) for s in fresh(table).snapshots()}


def rewritten(table: Table) -> RewritingManifests:
    """Rewrite, and judge what came of it."""
    before, numbers, parent = contents(table), numbers_of(table), fresh(table).current_snapshot()
    done = run(table)
    assert done.outcome is RewriteOutcome.REWRITTEN
    after = contents(table)
    assert {n: after[n] for n in before} == before
    assert numbers_of(table) == numbers
    snapshot = fresh(table).current_snapshot()
    assert snapshot is not None
    assert parent is not None
    assert after[snapshot.snapshot_id] == before[parent.snapshot_id]
    assert snapshot.parent_snapshot_id == parent.snapshot_id
    assert run(table).outcome is RewriteOutcome.NOTHING_TO_DO, "a second run"
    assert fresh(table).current_snapshot() == snapshot
    return done


def test_small_manifests_become_one(catalog: SqlCatalog) -> None:
    table = new_table(catalog, spec=BY_DAY)
    rows = [row for n in (2, 0, 1, 2) for row in append(table, make_rows(3, START + n * DAY))]
    done = rewritten(table)
    (manifest,) = manifests_of(table)
    assert (done.rewritten, done.added, done.entries, done.manifests) == (4, 1, 4, 1)
    assert done.plan.reasons == {RewriteReason.SMALL: 4}
    assert {entry.status for entry in entries_of(table, manifest)} == {ManifestEntryStatus.EXISTING}
    days = [entry.data_file.partition[0] for entry in entries_of(table, manifest)]
    assert days == sorted(days)
    check(table, rows)


def test_the_summary_is_as_java_writes_it(catalog: SqlCatalog) -> None:
    table = new_table(catalog)
    for _ in range(3):
        append(table, make_rows(2))
    before = fresh(table).current_snapshot()
    rewritten(table)
    snapshot = fresh(table).current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert before is not None
    assert before.summary is not None
    assert snapshot.summary.operation.value == "replace"
    found = snapshot.summary.additional_properties
    totals = {k: v for k, v in before.summary.additional_properties.items() if k.startswith("total-")}
    assert totals["total-records"] == "6"
    assert found == {
        "manifests-created": "1",
        "manifests-kept": "0",
        "manifests-replaced": "3",
        "entries-processed": "3",
        "changed-partition-count": "0",
        **totals,
    }


def test_a_query_for_one_day_opens_few(catalog: SqlCatalog) -> None:
    """Every commit has all days, so every manifest is of all days."""
    table = new_table(catalog, spec=BY_DEVICE_AND_DAY, properties={TARGET: "8000"})
    for n in range(6):
        append(table, [row for day in range(20) for row in make_rows(1, START + day * DAY, device=f"d{n}")])
    done = rewritten(table)
    assert done.plan.reasons == {RewriteReason.OVERLAPPING: 6}
    manifests = manifests_of(table)
    assert len(manifests) > 2
    summaries = [m.partitions[1] for m in manifests if m.partitions]
    bounds = sorted((s.lower_bound or b"", s.upper_bound or b"") for s in summaries)
    assert all(one[1] <= other[0] for one, other in pairwise(bounds))
    day = round((START + 7 * DAY).timestamp() / 86400).to_bytes(4, "little")
    assert sum(low <= day <= high for low, high in bounds) <= 2


def test_manifests_of_deleted_entries_alone_are_left_out(catalog: SqlCatalog) -> None:
    table = new_table(catalog, spec=BY_DAY)
    rows = append(table, make_rows(4))
    rewrite_without(table, rows[0][1])
    assert len(manifests_of(table)) == 2
    done = rewritten(table)
    assert (done.rewritten, done.added, done.plan.reasons) == (1, 0, {RewriteReason.EMPTY: 1})
    (manifest,) = manifests_of(table)
    assert {e.status for e in entries_of(table, manifest)} == {ManifestEntryStatus.ADDED}
    check(table, rows[1:])


def test_delete_manifests_are_apart(catalog: SqlCatalog) -> None:
    table = new_table(catalog)
    rows = append(table, make_rows(5)) + append(table, make_rows(5))
    for file in files_of(table):
        delete_positions(table, {file.file_path: [1]})
    gone = {row[1] for row in rows} - {row[1] for row in read(table)}
    rows = [row for row in rows if row[1] not in gone]
    done = rewritten(table)
    assert (done.rewritten, done.added) == (4, 2)
    assert sorted(m.content.value for m in manifests_of(table)) == [0, 1]
    check(table, rows)
    assert compact(dataset_of(table)).committed
    check(table, rows)


def test_equality_deletes_keep_their_numbers(catalog: SqlCatalog) -> None:
    table = new_table(catalog)
    rows = append(table, make_rows(5))
    delete_equal(table, [rows[0][1]])
    again = append(table, [rows[0]])  # after the delete, so it stays
    delete_equal(table, [rows[1][1]])
    numbers = numbers_of(table)
    check(table, rows[2:] + again, by_pyiceberg=False)
    assert run(table).outcome is RewriteOutcome.REWRITTEN
    assert numbers_of(table) == numbers
    assert len(manifests_of(table)) == 2
    check(table, rows[2:] + again, by_pyiceberg=False)


def test_each_spec_has_manifests_of_its_own(catalog: SqlCatalog) -> None:
    table = new_table(catalog)
    rows = [row for _ in range(3) for row in append(table, make_rows(2))]
    with fresh(table).update_spec() as change:
        change.add_field("event_time", DayTransform(), "day")
    rows += [row for n in range(3) for row in append(table, make_rows(2, START + n * DAY))]
    with fresh(table).update_spec() as change:
        change.remove_field("day")
        change.add_field("device", IdentityTransform(), "device")
    rows += [row for n in range(3) for row in append(table, make_rows(2, device=f"d{n}"))]
    done = rewritten(table)
    assert (done.rewritten, done.added) == (9, 3)
    assert len({m.partition_spec_id for m in manifests_of(table)}) == 3
    check(table, rows)


def test_a_column_that_a_spec_was_made_from_may_be_gone(catalog: SqlCatalog) -> None:
    table = new_table(catalog, spec=PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "device")))
    for n in range(3):
        append(table, make_rows(2, device=f"d{n}"))
    with fresh(table).update_spec() as change:
        change.remove_field("device")
    with fresh(table).update_schema(allow_incompatible_changes=True) as change:
        change.delete_column("device")
    numbers = numbers_of(table)
    assert run(table).outcome is RewriteOutcome.REWRITTEN
    assert numbers_of(table) == numbers
    (manifest,) = manifests_of(table)
    assert '"device"' in header_of(manifest.manifest_path)["schema"]


def test_null_partitions_come_first(catalog: SqlCatalog) -> None:
    table = new_table(catalog, spec=BY_DAY)
    rows = [(None, 1_000_000 + n, "a") for n in range(2)]
    append(table, make_rows(2, START + DAY))
    append(table, rows)
    append(table, make_rows(2))
    rewritten(table)
    (manifest,) = manifests_of(table)
    days = [entry.data_file.partition[0] for entry in entries_of(table, manifest)]
    assert days[0] is None
    assert manifest.partitions is not None
    assert manifest.partitions[0].contains_null
    check(table, read(table))


def test_entries_are_written_in_blocks(catalog: SqlCatalog) -> None:
    table = new_table(catalog)
    for _ in range(8):
        append(table, make_rows(1))
    before = sum(m.manifest_length for m in manifests_of(table))
    rewritten(table)
    (manifest,) = manifests_of(table)
    assert manifest.manifest_length < before / 4
    assert manifest.manifest_length == Path(manifest.manifest_path.removeprefix("file://")).stat().st_size


def test_what_does_not_fit_the_buffer_is_sorted_all_the_same(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lithify.datasets.iceberg.rewriting.entry_sorter.BUFFER_BYTES", 3000)
    monkeypatch.setattr("lithify.datasets.iceberg.rewriting.manifest_merge.BUFFER_BYTES", 3000)
    table = new_table(catalog, spec=BY_DAY)
    for n in (5, 3, 8, 1, 9, 2, 7, 0, 6, 4):
        append(table, make_rows(1, START + n * DAY))
    rewritten(table)
    (manifest,) = manifests_of(table)
    days = [entry.data_file.partition[0] for entry in entries_of(table, manifest)]
    assert days == sorted(days)


def test_a_dry_run_writes_nothing(catalog: SqlCatalog) -> None:
    table = new_table(catalog)
    for _ in range(3):
        append(table, make_rows(2))
    root = Path(table.location().removeprefix("file://"))
    before = sorted(root.rglob("*"))
    done = run(table, dry_run=True)
    assert (done.outcome, done.rewritten, done.added) == (RewriteOutcome.REWRITTEN, 3, 1)
    assert sorted(root.rglob("*")) == before


def test_an_empty_table_has_nothing_to_do(catalog: SqlCatalog) -> None:
    assert run(new_table(catalog)).outcome is RewriteOutcome.NOTHING_TO_DO


# Meanwhile


def meanwhile(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object], times: int = 1) -> None:
    """Let something happen between the look at the table and the commit of a rewrite."""
    commit, left = SqlCatalog.commit_table, [times]

    def commit_after(self: SqlCatalog, table: Table, requirements: Any, updates: Any) -> Any:
        summaries = [update.snapshot.summary for update in updates if update.action == "add-snapshot"]
        if left[0] and any("manifests-created" in s.additional_properties for s in summaries):
            left[0] -= 1
            action()
        return commit(self, table, requirements, updates)

    monkeypatch.setattr(SqlCatalog, "commit_table", commit_after)


def lithify_files(table: Table) -> set[str]:
    """Manifests and manifest lists of Lithify's beside the table."""
    root = Path(table.location().removeprefix("file://"))
    return {path.as_uri() for path in root.rglob("metadata/lithify-*.avro")}


def small_manifests(catalog: SqlCatalog, count: int = 3, **options: Any) -> Table:
    table = new_table(catalog, spec=BY_DAY, **options)
    for n in range(count):
        append(table, make_rows(2, START + n * DAY))
    return table


def named(table: Table) -> set[str]:
    """What of Lithify's manifests the newest snapshot names."""
    snapshot = fresh(table).current_snapshot()
    assert snapshot is not None
    return {
        path
        for path in (snapshot.manifest_list, *(m.manifest_path for m in manifests_of(table)))
        if "/lithify-" in path
    }


def test_what_is_appended_meanwhile_is_kept(catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new manifests still hold: only the list is written again."""
    table = small_manifests(catalog)
    meanwhile(monkeypatch, lambda: append(table, make_rows(2)), times=2)
    done = run(table)
    assert (done.outcome, done.rewritten, done.added, done.manifests) == (RewriteOutcome.REWRITTEN, 3, 1, 3)
    assert len(read(table)) == 10
    assert lithify_files(table) == named(table)


def test_what_is_compacted_meanwhile_is_planned_anew(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = small_manifests(catalog, properties={"lithify.min-saved-files": "1"})
    append(table, make_rows(2))
    rows = read(table)
    meanwhile(monkeypatch, lambda: compact(dataset_of(table)))
    assert run(table).outcome is RewriteOutcome.REWRITTEN
    assert read(table) == rows
    assert run(table).outcome is RewriteOutcome.NOTHING_TO_DO
    lists = {snapshot.manifest_list for snapshot in fresh(table).snapshots()}
    manifests = {m.manifest_path for s in fresh(table).snapshots() for m in s.manifests(table.io)}
    assert lithify_files(table) <= lists | manifests


def test_a_compaction_goes_through_after_a_rewrite(catalog: SqlCatalog) -> None:
    table = small_manifests(catalog, properties={"lithify.min-saved-files": "1"})
    append(table, make_rows(2))
    rows = append_with_deletes(table, make_rows(3), [1]) and read(table)

    def rewrite() -> None:
        rewritten(table)

    done = Steps(dataset_of(table)).until_committed(rewrite)
    assert done.committed
    assert len(files_of(table)) == 3
    assert read(table) == rows


def test_others_all_the_time(catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    table = small_manifests(catalog, 2)

    def fail(*_: object) -> None:
        raise CommitFailedException("somebody was faster")

    monkeypatch.setattr(SqlCatalog, "commit_table", fail)
    done = run(table)
    assert done.outcome is RewriteOutcome.LOST_RACE
    assert str(MAX_TRIES) in done.why
    assert lithify_files(table) == set()


@pytest.mark.parametrize("lands", [True, False])
def test_an_answer_that_is_lost(catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch, lands: bool) -> None:
    table = small_manifests(catalog, 2)
    commit = SqlCatalog.commit_table

    def lose(*arguments: Any) -> None:
        if lands:
            commit(*arguments)
        raise CommitStateUnknownException("no answer")

    monkeypatch.setattr(SqlCatalog, "commit_table", lose)
    if lands:
        assert run(table).outcome is RewriteOutcome.REWRITTEN
        assert lithify_files(table) == named(table)
    else:
        with pytest.raises(StoreError):
            run(table)
        assert lithify_files(table), "it may still land"


def test_garbage_of_a_killed_run_is_collected(catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    table = small_manifests(catalog)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", die)
        with pytest.raises(KeyboardInterrupt):
            run(table)
    assert len(lithify_files(table)) == 2
    age_files(Path(table.location().removeprefix("file://")))
    done = collect(dataset_of(table), a_clock(), GarbageOptions(dry_run=False))
    assert done.count(GarbageKind.MANIFEST) == 2
    assert lithify_files(table) == set()
    rewritten(table)


def test_what_was_written_too_long_ago_is_not_committed(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could be collected as garbage in the same moment."""
    table, clock = small_manifests(catalog), a_clock()
    calls: list[set[str]] = []

    def slow() -> None:
        calls.append(lithify_files(table))
        append(table, make_rows(2))
        clock.advance_s(301)

    meanwhile(monkeypatch, slow)
    assert ManifestRewriter(dataset_of(table, clock=clock), clock).run().rewritten == 4
    assert lithify_files(table) == named(table)
    assert calls[0].isdisjoint(named(table))


def test_new_manifests_have_the_number_of_the_snapshot_that_came_of_it(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that of a list which lost the race."""
    table = small_manifests(catalog)
    meanwhile(monkeypatch, lambda: append(table, make_rows(2)), times=2)
    assert run(table).outcome is RewriteOutcome.REWRITTEN
    snapshot = fresh(table).current_snapshot()
    assert snapshot is not None
    (own,) = [m for m in manifests_of(table) if m.added_snapshot_id == snapshot.snapshot_id]
    assert own.sequence_number == snapshot.sequence_number


def test_a_table_that_is_upgraded_meanwhile(catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Manifests of version 1 have no sequence numbers, without which nobody reads them in version 2."""
    table = small_manifests(catalog, properties={"format-version": "1"})

    def upgrade() -> None:
        append(table, make_rows(2))
        with fresh(table).transaction() as change:
            change.upgrade_table_version(2)

    meanwhile(monkeypatch, upgrade)
    assert run(table).outcome is RewriteOutcome.REWRITTEN
    assert fresh(table).format_version == 2
    entries = [entry for manifest in manifests_of(table) for entry in entries_of(table, manifest)]
    numbers = [(entry.sequence_number, entry.file_sequence_number) for entry in entries]
    assert numbers == [(0, 0)] * 4
    assert len(read(table)) == 8
    assert lithify_files(table) == named(table)


@pytest.mark.parametrize("times", [1, 2])
def test_uploads_that_take_too_long_are_not_committed(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """What collects garbage may have taken the first of them."""
    table, clock = small_manifests(catalog), a_clock()
    upload, left = ManifestMerge.upload, [times]

    def slow(self: ManifestMerge) -> None:
        upload(self)
        if left[0]:
            left[0] -= 1
            clock.advance_s(301)

    monkeypatch.setattr(ManifestMerge, "upload", slow)
    before = fresh(table).metadata_location
    if times == 1:
        assert ManifestRewriter(dataset_of(table, clock=clock), clock).run().rewritten == 3
        assert lithify_files(table) == named(table)
    else:
        with pytest.raises(StoreError, match="took so long"):
            ManifestRewriter(dataset_of(table, clock=clock), clock).run()
        assert fresh(table).metadata_location == before
        assert lithify_files(table) == set()


def test_what_landed_and_expired_before_anybody_looked(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog asks again for itself, and answers that somebody was faster. Others built upon it."""
    table = small_manifests(catalog)
    commit = SqlCatalog.commit_table

    def repeat(self: SqlCatalog, table: Table, requirements: Any, updates: Any) -> Any:
        monkeypatch.setattr(SqlCatalog, "commit_table", commit)
        commit(self, table, requirements, updates)
        own = fresh(table).current_snapshot()
        assert own is not None
        append(table, make_rows(2))
        fresh(table).maintenance.expire_snapshots().by_id(own.snapshot_id).commit()
        raise CommitFailedException("somebody was faster")

    monkeypatch.setattr(SqlCatalog, "commit_table", repeat)
    assert run(table).outcome is RewriteOutcome.REWRITTEN
    assert len(read(table)) == 8


def test_a_commit_to_another_branch_meanwhile(catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the sequence number, and not the head."""
    table = small_manifests(catalog, properties={"lithify.branch": "main"})
    head = fresh(table).current_snapshot()
    assert head is not None
    fresh(table).manage_snapshots().create_branch(head.snapshot_id, "audit").commit()
    meanwhile(monkeypatch, lambda: fresh(table).append(as_arrow(make_rows(1)), branch="audit"))
    done = run(table)
    assert (done.outcome, done.rewritten, done.added) == (RewriteOutcome.REWRITTEN, 3, 1)
    assert len(read(table)) == 6
    assert lithify_files(table) == named(table)


@pytest.mark.parametrize("back", [0, 1])
def test_a_branch_that_is_moved_back_meanwhile(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch, back: int
) -> None:
    """To the head that was seen, or before it: what was moved away from does not come back."""
    table = small_manifests(catalog)
    ids = [snapshot.snapshot_id for snapshot in fresh(table).snapshots()]

    def move() -> None:
        append(table, make_rows(2))
        fresh(table).manage_snapshots().set_current_snapshot(ids[-1 - back]).commit()

    meanwhile(monkeypatch, move)
    done = run(table)
    assert (done.outcome, done.rewritten, done.added) == (RewriteOutcome.REWRITTEN, 3 - back, 1)
    assert len(read(table)) == 2 * (3 - back)
    assert lithify_files(table) == named(table)


def test_a_table_all_of_whose_rows_are_deleted(catalog: SqlCatalog) -> None:
    table = new_table(catalog)
    append(table, make_rows(2))
    fresh(table).delete("id >= 0")
    done = rewritten(table)
    assert (done.rewritten, done.added, done.manifests) == (1, 0, 0)
    check(table, [])
    check(table, append(table, make_rows(2)))


# What is refused and left alone


def test_a_damaged_manifest_changes_nothing(catalog: SqlCatalog) -> None:
    table = small_manifests(catalog)
    before = fresh(table).metadata_location
    path = Path(manifests_of(table)[1].manifest_path.removeprefix("file://"))
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(CorruptObject, match="does not decode"):
        run(table)
    assert fresh(table).metadata_location == before
    assert lithify_files(table) == set()


@pytest.mark.parametrize("swapped", [{0: 1}, {1: 0}, {1: 2}])
def test_a_list_that_gives_a_manifest_another_spec_changes_nothing(
    catalog: SqlCatalog, swapped: Mapping[int, int]
) -> None:
    """Partition values would be lost, or be taken for others."""
    table = new_table(catalog)
    append(table, make_rows(2))
    with fresh(table).update_spec() as change:
        change.add_field("device", IdentityTransform(), "device")
    append(table, make_rows(2))
    with fresh(table).update_spec() as change:
        change.remove_field("device")
        change.add_field("event_time", DayTransform(), "day")
    append(table, make_rows(2))
    snapshot, manifests = fresh(table).current_snapshot(), manifests_of(table)
    assert snapshot is not None
    changed = [ManifestFile(*manifest._data) for manifest in manifests for _ in range(2)]
    for n, manifest in enumerate(changed):
        manifest[0] = f"{manifest.manifest_path}{n % 2 or ''}"
        manifest[2] = swapped.get(manifest.partition_spec_id, manifest.partition_spec_id)
    for manifest in manifests:
        path = Path(manifest.manifest_path.removeprefix("file://"))
        path.with_name(f"{path.name}1").write_bytes(path.read_bytes())
    output = table.io.new_output(snapshot.manifest_list)
    number = snapshot.sequence_number
    table.io.delete(snapshot.manifest_list)
    with write_manifest_list(2, output, snapshot.snapshot_id, None, number, "deflate") as manifest_list:
        manifest_list.add_manifests(changed)
    with pytest.raises(CorruptObject, match="does not decode"):
        run(table)
    assert lithify_files(table) == set()


def test_properties_without_meaning_are_refused(catalog: SqlCatalog) -> None:
    table = small_manifests(catalog, properties={TARGET: "8 MB"})
    with pytest.raises(Refused, match=r"target-size-bytes is '8 MB'"):
        run(table)
    assert lithify_files(table) == set()


def test_encrypted_tables_are_refused(catalog: SqlCatalog) -> None:
    table = small_manifests(catalog, properties={"encryption.key-id": "k"})
    with pytest.raises(Refused, match="encrypted"):
        run(table)


# The duty


def tick(table: Table) -> None:
    clock = a_clock()
    duties(dataset_of(table, clock=clock), clock, RandomIds(), {}).tick()


def test_a_coordinator_rewrites_only_where_the_table_says_so(catalog: SqlCatalog) -> None:
    table = small_manifests(catalog, properties={"commit.manifest.min-count-to-merge": "3"})
    tick(table)
    assert len(manifests_of(table)) == 3
    with fresh(table).transaction() as change:
        change.set_properties({"lithify.rewrite-manifests": "1"})
    tick(table)
    assert len(manifests_of(table)) == 1


def test_a_coordinator_waits_until_it_is_worth_it(catalog: SqlCatalog) -> None:
    few = {"lithify.rewrite-manifests": "1", "commit.manifest.min-count-to-merge": "4"}
    table = small_manifests(catalog, properties=few)
    tick(table)
    assert len(manifests_of(table)) == 3
    append(table, make_rows(1))
    tick(table)
    assert len(manifests_of(table)) == 1


def test_a_coordinator_does_not_wait_where_many_overlap(catalog: SqlCatalog) -> None:
    table = new_table(catalog, spec=BY_DAY, properties={"lithify.rewrite-manifests": "1"})
    for _ in range(10):
        append(table, make_rows(2, span=2 * DAY))
    tick(table)
    assert len(manifests_of(table)) == 1
