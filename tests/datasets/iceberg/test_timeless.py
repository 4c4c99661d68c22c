"""Tables without a time column, or whose policy wants no order: files are packed by size, partition by
partition. PyIceberg, DuckDB and Java say which rows there are."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DateType, DoubleType, LongType, NestedField, StringType, TimestamptzType

from lithify.base.errors import Refused
from lithify.datasets.iceberg.compaction.request import request
from lithify.datasets.iceberg.documents import LEDGERS
from lithify.datasets.iceberg.model import TimeRange
from lithify.protocol.model import CompactionState, Ledger
from tests.datasets.iceberg.running import Steps, compact, dataset_of
from tests.datasets.iceberg.tables import (
    SCHEMA as TIMED,
)
from tests.datasets.iceberg.tables import (
    _Transaction,
    append,
    check,
    delete_equal,
    delete_positions,
    files_of,
    fresh,
    make_rows,
    new_table,
    read_by_duckdb,
    read_by_java,
    rewrite_without,
)

SCHEMA = Schema(
    NestedField(1, "name", StringType(), required=False),
    NestedField(2, "id", LongType(), required=False),
    NestedField(3, "score", DoubleType(), required=False),
)
ARROW = pa.schema([("name", pa.string()), ("id", pa.int64()), ("score", pa.float64())])
SPECS = {
    "unpartitioned": UNPARTITIONED_PARTITION_SPEC,
    "identity": PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "name")),
    "bucket": PartitionSpec(PartitionField(2, 1000, BucketTransform(4), "id_bucket")),
}
SMALL = {"write.target-file-size-bytes": "40000"}
Row = tuple[str, int, float | None]


def add(table: Table, rows: Sequence[Row]) -> list[Row]:
    """Append rows in a commit of its own: one file for each partition."""
    columns = list(zip(*rows, strict=True))
    with _Transaction(fresh(table)) as transaction:
        transaction.append(
            pa.table([pa.array(c, f.type) for c, f in zip(columns, ARROW, strict=True)], schema=ARROW)
        )
    return list(rows)


def some_rows(count: int, first: int, rng: random.Random) -> list[Row]:
    values = [1.5, -2.0, float("nan"), None, float("inf")]
    return [(f"n{n % 3}", n, rng.choice(values)) for n in range(first, first + count)]


def fill(table: Table, files: int, rows: int = 20) -> list[Row]:
    rng, made = random.Random(7), []
    for n in range(files):
        made += add(table, some_rows(rows, n * rows, rng))
    return made


def same(table: Table, rows: Iterable[Row], *, by_java: bool = False, by_pyiceberg: bool = True) -> None:
    """All readers find exactly these rows; a NaN is equal to itself here."""
    expected = sorted((row[1], repr(row)) for row in rows)

    def found(read: Sequence[tuple[Any, ...]]) -> list[tuple[Any, str]]:
        return sorted((row[1], repr(tuple(row))) for row in read)

    assert found(read_by_duckdb(table)) == expected
    if by_pyiceberg:
        arrow = fresh(table).scan().to_arrow()
        assert found([tuple(row.values()) for row in arrow.to_pylist()]) == expected
    if by_java:
        assert found(read_by_java(table)) == expected


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_the_table_of_a_newcomer(catalog: Catalog, spec: PartitionSpec) -> None:
    table = new_table(catalog, schema=SCHEMA, spec=spec)
    rows = fill(table, 20)
    gone = {file.file_path: [0, 1] for file in files_of(table)[:3]}
    for path, positions in gone.items():
        deleted = pq.read_table(path.removeprefix("file://")).column("id").to_pylist()
        rows = [row for row in rows if row[1] not in [deleted[n] for n in positions]]
        delete_positions(table, {path: positions})
    partitions = len({repr(file.partition) for file in files_of(table)})
    plan = dataset_of(table).propose(dataset_of(table).snapshot(), Ledger())
    assert plan.proposals
    assert plan.refusal == ""
    assert compact(dataset_of(table)).committed
    assert len(files_of(table)) == partitions
    assert not compact(dataset_of(table)).started, "the second time nothing is left to do"
    same(table, rows, by_java=True)


def test_outputs_have_about_the_target_size_and_rows_keep_their_order(catalog: Catalog) -> None:
    table = new_table(catalog, schema=SCHEMA, properties=SMALL)
    rng = random.Random(3)
    rows: list[Row] = []
    for n in range(60):
        rows += add(table, [(rng.randbytes(40).hex(), n * 100 + m, 0.5) for m in range(100)])
    compact(dataset_of(table))
    files = files_of(table)
    sizes = [file.file_size_in_bytes for file in files]
    assert sum(size >= 0.75 * 40000 for size in sizes) >= len(sizes) - 1
    assert max(sizes) <= 1.25 * 40000
    for file in files:
        ids = pq.read_table(file.file_path.removeprefix("file://")).column("id").to_pylist()
        assert ids == list(range(ids[0], ids[0] + len(ids))), "of commits that followed each other"
        assert file.sort_order_id is None
    assert not compact(dataset_of(table)).started
    same(table, rows)


def test_each_task_divides_its_files_into_ranges_of_whole_files(catalog: Catalog) -> None:
    table = new_table(catalog, schema=SCHEMA, properties={"lithify.target-file-size-bytes": "10000"})
    fill(table, 40)
    dataset = dataset_of(table)
    dataset.range_bytes = 1
    steps = Steps(dataset)
    steps.schedule()
    ledger = dataset.ledger()
    assert ledger is not None
    (compaction,) = ledger.active()
    job = dataset.prepare(compaction, dataset.snapshot())
    ranges = [one for work in job.works for one in work.range]
    assert len(ranges) > 3
    inputs = [one.inputs for one in ranges if one.inputs is not None]
    assert [first for first, _ in inputs] == [0, *(end for _, end in inputs[:-1])]
    assert inputs[-1][1] == len(compaction.spec.inputs) == 40
    text = LEDGERS.encode(Ledger(1, (compaction,)))
    assert LEDGERS.decode(text, "ledger") == Ledger(1, (compaction,))
    assert b'"version":3' in text, "an older Lithify says that this is newer"
    for one in ranges:
        assert LEDGERS.ranges.read(LEDGERS.ranges.write((one,))) == (one,)


@pytest.mark.parametrize(
    "wrong",
    [
        {"inputs": (3, 3)},
        {"inputs": (-1, 2)},
        {"inputs": (0, 1), "start_us": 5},
        {"inputs": (0, 1), "with_nulls": False},
    ],
)
def test_ranges_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="cannot be limited"):
        TimeRange(**{"start_us": None, "end_us": None, "with_nulls": True, **wrong})


def test_tasks_run_side_by_side_and_are_committed_apart(catalog: Catalog) -> None:
    table = new_table(
        catalog,
        schema=SCHEMA,
        properties={**SMALL, "lithify.max-task-bytes": "60000", "lithify.small-task-bytes": "1"},
    )
    rows = fill(table, 100)
    steps = Steps(dataset_of(table))
    steps.schedule()
    ledger = steps.dataset.ledger()
    assert ledger is not None
    scheduled = [c for c in ledger.active() if c.state is CompactionState.SCHEDULED]
    assert len(scheduled) > 1
    inputs = [path for c in scheduled for path in c.spec.inputs]
    assert len(set(inputs)) == len(inputs)
    steps.execute()
    victim = scheduled[0].spec.inputs[0]
    dead = pq.read_table(victim.removeprefix("file://")).column("id").to_pylist()[0]
    delete_positions(table, {victim: [0]})
    steps.commit()
    rows = [row for row in rows if row[1] != dead]
    same(table, rows)
    assert victim in {file.file_path for file in files_of(table)}, "its deletes came while it was rewritten"
    assert not set(scheduled[1].spec.inputs) & {file.file_path for file in files_of(table)}
    compact(dataset_of(table))
    assert victim not in {file.file_path for file in files_of(table)}
    same(table, rows)


def _append(table: Table, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [*rows, *append(table, make_rows(3))]


def _delete(table: Table, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    delete_equal(table, [rows[0][1]])
    return rows[1:]


def _rewrite(table: Table, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    rewrite_without(table, rows[0][1])
    return rows[1:]


@pytest.mark.parametrize("meanwhile", [_append, _delete, _rewrite])
def test_changes_of_others_meanwhile(
    catalog: Catalog, meanwhile: Callable[[Table, list[tuple[Any, ...]]], list[tuple[Any, ...]]]
) -> None:
    """The policy wants no order, although there is a time column."""
    table = new_table(catalog, properties={"lithify.axis": "none"})
    rows: list[tuple[Any, ...]] = [row for _ in range(8) for row in append(table, make_rows(5))]
    after: list[tuple[Any, ...]] = []
    Steps(dataset_of(table)).until_committed(lambda: after.extend(meanwhile(table, rows)))
    check(table, after, by_pyiceberg=meanwhile is not _delete)
    compact(dataset_of(table))
    check(table, after, by_pyiceberg=meanwhile is not _delete)


def test_deletes_of_both_kinds_are_applied(catalog: Catalog) -> None:
    table = new_table(catalog, properties={"lithify.axis": "none", "lithify.max-deleted-percent": "10"})
    rows = [row for _ in range(6) for row in append(table, make_rows(10))]
    delete_positions(table, {files_of(table)[2].file_path: [0, 9]})
    delete_equal(table, [rows[0][1], rows[59][1]])
    dead = {rows[0][1], rows[59][1]}
    kept = read_by_duckdb(table)
    assert len(kept) == 56
    compact(dataset_of(table))
    assert len(files_of(table)) == 1
    assert read_by_duckdb(table) == read_by_java(table) == kept
    assert not dead & {row[1] for row in kept}


def test_files_without_rows_are_dropped_and_nothing_is_read_for_it(catalog: Catalog) -> None:
    table = new_table(catalog, schema=SCHEMA)
    rows = fill(table, 1)
    now = fresh(table)
    output = now.io.new_output(f"{now.location()}/data/empty.parquet")
    ids = [f.with_metadata({"PARQUET:field_id": str(n)}) for n, f in enumerate(ARROW, start=1)]
    with output.create() as stream:
        pq.write_table(pa.schema(ids).empty_table(), stream)
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=output.location,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=0,
        file_size_in_bytes=len(output),
    )
    file.spec_id = 0
    with now.transaction() as transaction, transaction.update_snapshot().fast_append() as added:
        added.append_data_file(file)
    assert compact(dataset_of(table)).committed
    assert len(files_of(table)) == 1
    assert not compact(dataset_of(table)).started
    same(table, rows)


def test_damaged_files_and_repeated_paths_stop_nothing_else(catalog: Catalog) -> None:
    table = new_table(catalog, schema=SCHEMA, spec=SPECS["identity"])
    rows = fill(table, 4)
    twice = files_of(table)[0]
    with fresh(table).transaction() as transaction, transaction.update_snapshot().fast_append() as adding:
        adding.append_data_file(twice)
    again = pq.read_table(twice.file_path.removeprefix("file://"))
    rows += [row for row in rows if row[1] in again.column("id").to_pylist()]
    other = next(file for file in files_of(table) if file.partition != twice.partition)
    path = Path(other.file_path.removeprefix("file://"))
    whole = path.read_bytes()
    path.write_bytes(whole[:40])
    state = dataset_of(table).snapshot()
    assert any("listed more than once" in note for note in state.notes)
    compact(dataset_of(table))
    path.write_bytes(whole)
    left = {file.file_path for file in files_of(table)}
    assert {twice.file_path, other.file_path} <= left
    assert (
        len([file for file in files_of(table) if file.partition not in (twice.partition, other.partition)])
        == 1
    )
    same(table, rows)


@pytest.mark.parametrize("columns", ["none", "several"])
def test_time_columns_that_are_missing_or_ambiguous_refuse_nothing(catalog: Catalog, columns: str) -> None:
    times = [NestedField(4, "made", TimestamptzType()), NestedField(5, "seen", DateType())]
    schema = Schema(*SCHEMA.fields, *(times if columns == "several" else ()))
    table = new_table(catalog, schema=schema)
    state = dataset_of(table).snapshot()
    assert state.refused == {}
    assert not state.is_timed
    says = [note for note in state.notes if "several time columns (made, seen)" in note]
    assert bool(says) == (columns == "several")


def test_a_policy_of_time_without_a_time_column_is_refused(catalog: Catalog) -> None:
    table = new_table(catalog, schema=SCHEMA, properties={"lithify.axis": "time"})
    with pytest.raises(Refused, match="no timestamp and no date column"):
        compact(dataset_of(table))


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        ({"lithify.axis": "size"}, "must be one of auto, time, none"),
        ({"lithify.axis": "none", "lithify.time-column": "event_time"}, "remove one of them"),
    ],
)
def test_axes_that_cannot_be(catalog: Catalog, properties: dict[str, str], says: str) -> None:
    with pytest.raises(Refused, match=says):
        compact(dataset_of(new_table(catalog, schema=TIMED, properties=properties)))


def test_rows_are_sorted_within_files_if_the_table_has_a_sort_order(catalog: Catalog) -> None:
    order = SortOrder(SortField(source_id=1, transform=IdentityTransform()))
    table = new_table(catalog, schema=SCHEMA, order=order)
    rows = fill(table, 6)
    compact(dataset_of(table))
    (file,) = files_of(table)
    names = pq.read_table(file.file_path.removeprefix("file://")).column("name").to_pylist()
    assert names == sorted(names)
    assert file.sort_order_id == fresh(table).metadata.default_sort_order_id
    same(table, rows)


def test_deletes_by_bounds_after_it_lose_no_nan(catalog: Catalog) -> None:
    table = new_table(catalog, schema=SCHEMA)
    rows = fill(table, 5)
    compact(dataset_of(table))
    fresh(table).delete("score < 100")
    kept = [row for row in rows if row[2] is None or not row[2] < 100]
    same(table, kept)


def test_a_chunk_of_time_cannot_be_asked_for(catalog: Catalog) -> None:
    table = new_table(catalog, schema=SCHEMA)
    fill(table, 2)
    state = dataset_of(table).snapshot()
    with pytest.raises(Refused, match="not by chunks of time; add --full"):
        request(state, Ledger(), 0, ["2025-01-01"])
    assert len(request(state, Ledger(), 0).proposals) == 1


def test_a_time_column_that_comes_or_goes_between_plan_and_work(catalog: Catalog) -> None:
    """A compaction that was planned on one axis is executed on the other, or refused; no row is lost."""
    for before, after in (("none", "time"), ("time", "none")):
        name = ("db", before)
        table = new_table(catalog, name=name, properties={"lithify.axis": before})
        rows = [row for _ in range(6) for row in append(table, make_rows(7))]
        steps = Steps(dataset_of(table))
        steps.schedule()
        with fresh(table).transaction() as change:
            change.set_properties({"lithify.axis": after})
        steps.execute()
        steps.commit()
        check(table, rows)
        compact(dataset_of(table))
        check(table, rows)


def test_files_that_are_too_large_for_the_buffer_are_streamed(catalog: Catalog) -> None:
    table = new_table(catalog, schema=SCHEMA)
    rows = fill(table, 5, rows=3000)
    dataset = dataset_of(table)
    dataset.buffer_bytes = 50_000
    compact(dataset)
    (file,) = files_of(table)
    ids = pq.read_table(file.file_path.removeprefix("file://")).column("id").to_pylist()
    assert ids == [row[1] for row in rows]
    same(table, rows)


def test_files_that_cannot_be_sorted_in_memory_are_as_few_as_others(catalog: Catalog) -> None:
    order = SortOrder(SortField(source_id=1, transform=IdentityTransform()))
    table = new_table(catalog, schema=SCHEMA, order=order)
    rows = fill(table, 5, rows=3000)
    for _ in range(2):
        dataset = dataset_of(table)
        dataset.buffer_bytes = 50_000
        compact(dataset)
        (file,) = files_of(table)
        assert file.sort_order_id is None, "it is sorted only in parts"
    assert not compact(dataset_of(table)).started
    same(table, rows)
