"""A path that a snapshot lists more than once: readers give its rows as often, and compacting changes nothing
about that. PyIceberg and DuckDB say what rows there are."""

from __future__ import annotations

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record

from lithify.base.ids import RandomIds
from lithify.datasets.iceberg.model import ChunkSpec, IcebergCompaction, Lane, NewFile, SpecPart
from lithify.planning.timeline.model import DeletesStatus
from lithify.protocol.model import Compaction, CompactionState, Ledger
from tests.datasets.iceberg.running import Steps, compact, dataset_of
from tests.datasets.iceberg.tables import (
    DAY,
    START,
    Row,
    add_delete_file,
    append,
    by_id,
    check,
    delete_files_of,
    delete_positions,
    files_of,
    fresh,
    make_rows,
    new_table,
    read,
)


def list_again(table: Table, *files: DataFile) -> None:
    """One more manifest that names these files, as registering them without a check writes it."""
    with fresh(table).transaction() as transaction, transaction.update_snapshot().fast_append() as adding:
        for file in files:
            adding.append_data_file(file)


def file_of(table: Table, rows: list[Row]) -> DataFile:
    """The only file that was added for these rows."""
    before = {file.file_path for file in files_of(table)}
    append(table, rows)
    return next(file for file in files_of(table) if file.file_path not in before)


def test_a_file_that_was_registered_twice_is_left_alone(catalog: Catalog) -> None:
    table = new_table(catalog)
    twice = make_rows(2)
    again = file_of(table, twice)

    with fresh(table).transaction() as transaction:
        transaction.add_files([again.file_path], check_duplicate_files=False)
    rows = [*twice, *twice, *append(table, make_rows(2)), *append(table, make_rows(2))]
    check(table, rows)

    state = dataset_of(table).snapshot()
    (note,) = state.notes
    assert note.startswith("1 file(s) are left alone: they are listed more than once")
    totals = dataset_of(table).timeline(state, Ledger()).totals
    assert sum(amount.rows for amount in totals.values()) == 8
    assert totals[DeletesStatus.SKIPPED].size_bytes == 2 * again.file_size_in_bytes

    assert compact(dataset_of(table)).committed
    check(table, rows)
    assert len(files_of(table)) == 3


@pytest.mark.parametrize("manifests", [1, 2])
def test_a_path_within_one_manifest_or_across_several(catalog: Catalog, manifests: int) -> None:
    table = new_table(catalog)
    twice = make_rows(4)
    file = file_of(table, twice)
    for _ in range(manifests):
        list_again(table, *[file] * (2 // manifests))
    rows = 3 * twice + append(table, make_rows(4)) + append(table, make_rows(4))
    check(table, rows)
    assert compact(dataset_of(table)).committed
    check(table, rows)


def test_a_path_of_two_partitions(catalog: Catalog) -> None:
    spec = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "device"))
    table = new_table(catalog, spec=spec)
    rows = append(table, make_rows(4, device="a")) + append(table, make_rows(4, device="a"))
    rows += append(table, make_rows(4, device="b")) + append(table, make_rows(4, device="b"))
    file = next(file for file in files_of(table) if file.partition[0] == "a")
    elsewhere = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=file.file_path,
        file_format=file.file_format,
        partition=Record("b"),
        record_count=file.record_count,
        file_size_in_bytes=file.file_size_in_bytes,
        lower_bounds=file.lower_bounds,
        upper_bounds=file.upper_bounds,
        null_value_counts=file.null_value_counts,
    )
    elsewhere.spec_id = 0
    list_again(table, elsewhere)
    before = fresh(table).scan().to_arrow().num_rows
    assert before == 20
    assert compact(dataset_of(table)).committed
    assert fresh(table).scan().to_arrow().num_rows == before


def test_a_path_that_is_listed_again_before_the_commit_is_a_conflict(catalog: Catalog) -> None:
    table = new_table(catalog)
    once = make_rows(4)
    file = file_of(table, once)
    rows = once + append(table, make_rows(4))
    steps = Steps(dataset_of(table))
    tick = steps.until_committed(lambda: list_again(table, file))
    assert not tick.committed
    assert "is listed more than once" in tick.refused[0][1]
    check(table, rows + once)


def test_the_count_of_rows_sees_every_listing_of_an_input(catalog: Catalog) -> None:
    """Whoever makes the compaction: it is not committed."""
    table = new_table(catalog)
    twice = make_rows(4)
    file = file_of(table, twice)
    list_again(table, file)
    dataset = dataset_of(table)
    epoch = dataset.take_epoch()
    state = dataset.snapshot()
    assert state.snapshot_id is not None
    spec = ChunkSpec("t", state.snapshot_id, (), (SpecPart(Lane(0, ""), (), (file.file_path,)),), 0)
    output = NewFile(f"{file.file_path}.new", 100, 4, None)
    compaction: IcebergCompaction = Compaction(
        RandomIds().ulid(1), spec, CompactionState.COMPACTED, (output,)
    )
    refusal = dataset.commit([compaction], epoch)[compaction.id]
    assert refusal is not None
    assert "listed more than once" in refusal
    check(table, 2 * twice)


def test_paths_that_differ_in_spelling_are_different_files(catalog: Catalog) -> None:
    """As every reader takes them."""
    table = new_table(catalog)
    twice = make_rows(4)
    file = file_of(table, twice)
    for spelling in ("file:/", "file:////"):
        other = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=file.file_path.replace("file:///", spelling),
            file_format=file.file_format,
            partition=Record(),
            record_count=file.record_count,
            file_size_in_bytes=file.file_size_in_bytes,
            lower_bounds=file.lower_bounds,
            upper_bounds=file.upper_bounds,
        )
        other.spec_id = 0
        list_again(table, other)
    assert len(files_of(table)) == 3
    before = sorted(fresh(table).scan().to_arrow()["id"].to_pylist())
    assert len(before) == 12
    compact(dataset_of(table))
    assert sorted(fresh(table).scan().to_arrow()["id"].to_pylist()) == before


def test_a_delete_file_that_is_listed_twice_stays_while_it_hides_rows(catalog: Catalog) -> None:
    """Its older listing applies to nothing any more; its newer one does. (DuckDB
    applies both, whatever their age.)"""
    table = new_table(catalog)
    later = make_rows(10, START + 5 * DAY)
    file = file_of(table, later)
    path = delete_positions(table, {file.file_path: [3]}, with_bounds=False)
    with fresh(table).transaction() as transaction, transaction.update_snapshot().overwrite() as removing:
        removing.delete_data_file(file)
    list_again(table, file)
    rows = later + append(table, make_rows(10)) + append(table, make_rows(10))
    assert read(table) == by_id(rows)
    (listed,) = delete_files_of(table)
    add_delete_file(fresh(table), listed)
    rows = [row for row in rows if row != later[3]]
    assert read(table) == by_id(rows)
    assert compact(dataset_of(table)).committed
    assert read(table) == by_id(rows)
    assert [found.file_path for found in delete_files_of(table)] == [path, path]
