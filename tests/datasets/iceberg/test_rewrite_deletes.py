"""Delete files that are dropped and merged: the same rows for every reader, whatever they apply to and
whatever happens meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.typedef import Record

from lithify.base.errors import Refused
from lithify.base.ids import RandomIds
from lithify.datasets.iceberg.format.publish import MAX_TRIES
from lithify.datasets.iceberg.maintenance.duties import duties
from lithify.datasets.iceberg.maintenance.garbage import GarbageOptions, collect
from lithify.datasets.iceberg.rewriting.head_rewrite import RewriteOutcome
from lithify.datasets.iceberg.rewriting.rewrite_deletes import DeleteRewriter, RewritingDeletes
from tests.datasets.iceberg.running import Steps, a_clock, compact, dataset_of
from tests.datasets.iceberg.tables import (
    DAY,
    PATH_ID,
    START,
    add_file,
    age_files,
    append,
    delete_equal,
    delete_files_of,
    delete_positions,
    files_of,
    fresh,
    make_rows,
    named_paths,
    new_table,
    read,
    read_by_duckdb,
    rewrite_without,
)

BY_DAY = PartitionSpec(PartitionField(1, 1000, DayTransform(), "day"))
BY_PARTITION = {"write.delete.granularity": "partition"}


def run(table: Table, **options: bool) -> RewritingDeletes:
    return DeleteRewriter(dataset_of(table), a_clock()).run(**options)


def rewritten(table: Table) -> RewritingDeletes:
    """Rewrite; every snapshot reads as before, and a second run does nothing."""
    before = {s.snapshot_id: read(table, s.snapshot_id) for s in fresh(table).snapshots()}
    rows = read(table)
    done = run(table)
    assert done.outcome is RewriteOutcome.REWRITTEN
    check(table, rows)
    assert {n: read(table, n) for n in before} == before
    now = fresh(table).metadata_location
    assert run(table).outcome is RewriteOutcome.NOTHING_TO_DO
    assert fresh(table).metadata_location == now
    return done


def check(table: Table, rows: list[Any]) -> None:
    """PyIceberg and DuckDB read these rows; Java does in `test_java`."""
    assert read(table) == rows
    assert read_by_duckdb(table) == rows


def only(file: DataFile) -> str:
    """The data file that a delete file is for."""
    low, high = (bounds[PATH_ID].decode() for bounds in (file.lower_bounds, file.upper_bounds))
    assert low == high
    return low


def paths(files: list[DataFile]) -> list[str]:
    return [file.file_path for file in files]


def table_with(catalog: SqlCatalog, files: int, **options: Any) -> Table:
    """A table of so many data files of five rows each."""
    table = new_table(catalog, **options)
    for _ in range(files):
        append(table, make_rows(5))
    return table


def test_small_ones_for_one_data_file_become_one(catalog: SqlCatalog) -> None:
    table = table_with(catalog, 2)
    first, second = paths(files_of(table))
    for path, row in ((first, 0), (first, 3), (second, 1), (first, 3), (second, 4)):
        delete_positions(table, {path: [row]})
    done = rewritten(table)
    assert (len(done.removed), len(done.added), done.dangling) == (5, 2, 0)
    found = {only(file): file.record_count for file in delete_files_of(table)}
    assert found == {first: 2, second: 2}, "each row once"
    (one, _) = delete_files_of(table)
    content = pq.read_table(one.file_path.removeprefix("file://"))
    assert content.column_names == ["file_path", "pos"]
    assert content["pos"].to_pylist() == sorted(content["pos"].to_pylist())
    assert compact(dataset_of(table)).committed
    assert delete_files_of(table) == []


def test_small_ones_for_several_data_files_become_one(catalog: SqlCatalog) -> None:
    table = table_with(catalog, 3)
    files = paths(files_of(table))
    for row in range(3):
        delete_positions(table, {path: [row] for path in files})
    done = rewritten(table)
    assert (len(done.removed), len(done.added)) == (3, 1)
    (file,) = delete_files_of(table)
    assert file.record_count == 9
    assert [bounds[PATH_ID].decode() for bounds in (file.lower_bounds, file.upper_bounds)] == [
        min(files),
        max(files),
    ]


def test_a_table_that_wants_them_by_partition(catalog: SqlCatalog) -> None:
    table = new_table(catalog, spec=BY_DAY, properties=BY_PARTITION)
    for n in (0, 0, 1, 1):
        append(table, make_rows(5, START + n * DAY))
    for path in paths(files_of(table)):
        delete_positions(table, {path: [2]})
    done = rewritten(table)
    assert (len(done.removed), len(done.added)) == (4, 2)
    days = [file.partition[0] for file in delete_files_of(table)]
    assert len(set(days)) == 2
    assert all("/day=" in path for path in paths(delete_files_of(table)))


def test_what_applies_to_nothing_is_dropped(catalog: SqlCatalog) -> None:
    table = table_with(catalog, 2)
    first, second = files_of(table)
    delete_positions(table, {first.file_path: [0]})
    delete_positions(table, {second.file_path: [0]})
    gone = next(row[1] for row in read(table, fresh(table).snapshots()[0].snapshot_id)[1:])
    rewrite_without(table, gone)  # rewrites the first or the second file by the rows that are left
    assert len(delete_files_of(table)) == 2
    done = rewritten(table)
    assert (len(done.removed), len(done.added), done.dangling) == (1, 0, 1)


def test_between_whose_paths_there_is_nothing(catalog: SqlCatalog) -> None:
    table = table_with(catalog, 3)
    first, second, _ = sorted(files_of(table), key=lambda file: file.file_path)
    delete_positions(table, {first.file_path: [0], second.file_path: [0]})
    with fresh(table).transaction() as transaction, transaction.update_snapshot().overwrite() as removing:
        removing.delete_data_file(first)
        removing.delete_data_file(second)
    assert len(delete_files_of(table)) == 1
    assert rewritten(table).dangling == 1
    assert delete_files_of(table) == []


def test_equality_deletes_that_are_older_than_all_data_are_dropped(catalog: SqlCatalog) -> None:
    table = new_table(catalog)
    rows = append(table, make_rows(3))
    delete_equal(table, [rows[0][1]])
    assert run(table).outcome is RewriteOutcome.NOTHING_TO_DO
    with fresh(table).transaction() as change:
        change.delete("id >= 0")
    rows = append(table, make_rows(3))
    done = run(table)
    assert (done.outcome, done.dangling, delete_files_of(table)) == (RewriteOutcome.REWRITTEN, 1, [])
    check(table, rows)


def test_equality_deletes_of_other_partitions_stay(catalog: SqlCatalog) -> None:
    spec = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "device"))
    table = new_table(catalog, spec=spec)
    rows = append(table, make_rows(3, device="a"))
    for device in ("a", "b"):
        delete_equal(table, [rows[0][1]], partition=Record(device))
    assert run(table).dangling == 1
    assert [file.partition[0] for file in delete_files_of(table)] == ["a"]
    assert read_by_duckdb(table) == rows[1:]


def test_equality_deletes_of_a_spec_whose_fields_were_all_dropped_are_for_all(catalog: SqlCatalog) -> None:
    """Such a spec comes from format version 1, and has no partitions."""
    spec = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "device"))
    table = new_table(catalog, spec=spec, properties={"format-version": "1"})
    rows = append(table, make_rows(3, device="a")) + append(table, make_rows(3, device="a"))
    with fresh(table).update_spec() as change:
        change.remove_field("device")
    with fresh(table).transaction() as upgrade:
        upgrade.upgrade_table_version(2)
    now = fresh(table).spec()
    assert [str(field.transform) for field in now.fields] == ["void"]
    delete_equal(table, [rows[0][1]], spec_id=now.spec_id, partition=Record(None))
    assert run(table).outcome is RewriteOutcome.NOTHING_TO_DO
    assert len(delete_files_of(table)) == 1
    assert compact(dataset_of(table)).committed
    assert delete_files_of(table) == []
    check(table, rows[1:])


def test_a_delete_applies_to_nothing_that_came_later(catalog: SqlCatalog) -> None:
    """Rows of a partition's later files stay, although a merged file is as new as the newest it replaces."""
    table = table_with(catalog, 1)
    (first,) = paths(files_of(table))
    delete_positions(table, {first: [0]}, with_bounds=False)
    append(table, make_rows(5))
    (second,) = set(paths(files_of(table))) - {first}
    delete_positions(table, {first: [1], second: [0]})
    done = rewritten(table)
    assert (len(done.removed), len(done.added)) == (2, 1)
    (file,) = delete_files_of(table)
    assert file.record_count == 3


def test_compactions_under_way_keep_their_deletes(catalog: SqlCatalog) -> None:
    table = table_with(catalog, 3, properties={"lithify.min-saved-files": "1"})
    for row in range(2):
        delete_positions(table, {path: [row] for path in paths(files_of(table))})
    rows, outcomes = read(table), []

    def rewrite() -> None:
        outcomes.append(run(table).outcome)

    assert Steps(dataset_of(table)).until_committed(rewrite).committed
    assert outcomes == [RewriteOutcome.NOTHING_TO_DO]
    check(table, rows)


def test_the_summary_counts_what_changed(catalog: SqlCatalog) -> None:
    table = table_with(catalog, 1)
    for row in (0, 0, 3):
        delete_positions(table, {files_of(table)[0].file_path: [row]})
    done = rewritten(table)
    snapshot = fresh(table).current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary.operation.value == "replace"
    found = snapshot.summary.additional_properties
    counts = {name: found[name] for name in found if "delete" in name}
    assert counts["added-delete-files"] == "1"
    assert counts["removed-delete-files"] == "3"
    assert counts["added-position-deletes"] == "2"
    assert counts["removed-position-deletes"] == "3"
    assert counts["total-delete-files"] == "1"
    assert found["total-records"] == "5"
    assert done.added[0].record_count == 2


def test_a_dry_run_writes_nothing(catalog: SqlCatalog) -> None:
    table = table_with(catalog, 1)
    for row in range(3):
        delete_positions(table, {files_of(table)[0].file_path: [row]})
    root = Path(table.location().removeprefix("file://"))
    before = sorted(root.rglob("*"))
    done = run(table, dry_run=True)
    assert (done.outcome, len(done.removed), done.would_add) == (RewriteOutcome.REWRITTEN, 3, 1)
    assert sorted(root.rglob("*")) == before


# Meanwhile


def meanwhile(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object], times: int = 1) -> None:
    """Let something happen between the look at the table and the commit of a rewrite."""
    commit, left = SqlCatalog.commit_table, [times]

    def commit_after(self: SqlCatalog, table: Table, requirements: Any, updates: Any) -> Any:
        operations = [u.snapshot.summary.operation.value for u in updates if u.action == "add-snapshot"]
        if left[0] and "replace" in operations:
            left[0] -= 1
            action()
        return commit(self, table, requirements, updates)

    monkeypatch.setattr(SqlCatalog, "commit_table", commit_after)


def on_disk(table: Table) -> set[str]:
    root = Path(table.location().removeprefix("file://"))
    return {path.as_uri() for path in root.rglob("*") if path.suffix in (".parquet", ".avro")}


@pytest.mark.parametrize("what", ["deletes", "data", "compaction"])
def test_what_happens_meanwhile(catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    table = table_with(catalog, 2, properties={"lithify.min-saved-files": "1"})
    files = cycle(paths(files_of(table)))
    for row in range(4):
        delete_positions(table, {next(files): [row]})
    doing: dict[str, Callable[[], object]] = {
        "deletes": lambda: delete_positions(table, {next(files): [4]}),
        "data": lambda: append(table, make_rows(2)),
        "compaction": lambda: compact(dataset_of(table)),
    }
    expected: list[Any] = []

    def act() -> None:
        doing[what]()
        expected[:] = read(table)

    meanwhile(monkeypatch, act)
    outcome = run(table).outcome
    assert outcome is (RewriteOutcome.NOTHING_TO_DO if what == "compaction" else RewriteOutcome.REWRITTEN)
    check(table, expected)
    assert on_disk(table) == named_paths(table)


def test_others_all_the_time(catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_with(catalog, 1)
    for row in range(3):
        delete_positions(table, {files_of(table)[0].file_path: [row]})

    def fail(*_: object) -> None:
        raise CommitFailedException("somebody was faster")

    monkeypatch.setattr(SqlCatalog, "commit_table", fail)
    done = run(table)
    assert done.outcome is RewriteOutcome.LOST_RACE
    assert str(MAX_TRIES) in done.why
    assert on_disk(table) == named_paths(table)


def test_garbage_of_a_killed_run_is_collected(catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_with(catalog, 1)
    for row in range(3):
        delete_positions(table, {files_of(table)[0].file_path: [row]})

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", die)
        with pytest.raises(KeyboardInterrupt):
            run(table)
    left = on_disk(table) - named_paths(table)
    assert any(path.endswith(".parquet") for path in left)
    age_files(Path(table.location().removeprefix("file://")))
    collect(dataset_of(table), a_clock(), GarbageOptions(dry_run=False))
    assert on_disk(table) == named_paths(table)
    rewritten(table)
    age_files(Path(table.location().removeprefix("file://")))
    collect(dataset_of(table), a_clock(), GarbageOptions(dry_run=False))
    assert on_disk(table) == named_paths(table), "what is committed is no garbage"


def test_a_property_without_meaning_is_refused(catalog: SqlCatalog) -> None:
    table = table_with(catalog, 1, properties={"write.delete.granularity": "row"})
    with pytest.raises(Refused, match="granularity is 'row'"):
        run(table)


def test_a_coordinator_does_it_where_the_table_says_so(catalog: SqlCatalog) -> None:
    table = table_with(catalog, 1)

    def tick() -> int:
        delete_positions(table, {files_of(table)[0].file_path: [1]})
        clock = a_clock()
        duties(dataset_of(table, clock=clock), clock, RandomIds(), {}).tick()
        return len(delete_files_of(table))

    assert [tick() for _ in range(3)] == [1, 2, 3]
    with fresh(table).transaction() as change:
        change.set_properties({"lithify.rewrite-position-delete-files": "1"})
    assert [tick() for _ in range(2)] == [4, 1], "not before there are five"


# What is left alone


def test_files_with_the_deleted_rows_in_them_stay(catalog: SqlCatalog) -> None:
    table = table_with(catalog, 1)
    for row in range(2):
        delete_positions(table, {files_of(table)[0].file_path: [row]})
    path = delete_files_of(table)[0].file_path.removeprefix("file://")
    content = pq.read_table(path)
    pq.write_table(content.append_column("row", content["pos"]), path)
    before = fresh(table).metadata_location
    done = run(table)
    assert done.outcome is RewriteOutcome.NOTHING_TO_DO
    assert any("columns other than a path and a position" in note for note in done.notes)
    assert fresh(table).metadata_location == before
    assert on_disk(table) == named_paths(table)


def test_deletes_of_a_data_file_that_is_listed_twice_stay(catalog: SqlCatalog) -> None:
    table = table_with(catalog, 1)
    (path,) = paths(files_of(table))
    for row in range(2):
        delete_positions(table, {path: [row]})
    add_file(table, path, 5)
    done = run(table)
    assert done.outcome is RewriteOutcome.NOTHING_TO_DO
    assert any("listed more than once" in note for note in done.notes)
    assert len(delete_files_of(table)) == 2
