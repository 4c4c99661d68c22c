"""Equality deletes, applied by the rewrite of what they touch: every reader finds the same rows before and
after, and the delete files go once they apply to nothing."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntry
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from lithify.base.errors import CorruptObject, LithifyError, Unsupported
from lithify.datasets.iceberg.deletes import equality_deletes, equality_keys
from lithify.datasets.iceberg.deletes.equality_deletes import EqualityDeletes
from lithify.datasets.iceberg.deletes.equality_keys import DeletedKeys
from lithify.datasets.iceberg.deletes.live_rows import LiveRows, RowCount
from lithify.datasets.iceberg.format.listing import ManifestCache, read_listing
from lithify.datasets.iceberg.rewriting.rewrite_deletes import DeleteRewriter
from lithify.engine.spark import SparkEngine
from lithify.protocol.model import Ledger
from tests.datasets.iceberg.running import Steps, a_clock, compact, dataset_of
from tests.datasets.iceberg.tables import (
    ARROW,
    DAY,
    SCHEMA,
    START,
    Row,
    append,
    check,
    data_file,
    delete_equal,
    delete_files_of,
    delete_keys,
    delete_positions,
    files_of,
    fresh,
    make_rows,
    new_table,
    read,
    read_by_duckdb,
    read_by_java,
)

AT_ONCE = {"lithify.min-saved-files": "1", "lithify.min-new-percent": "0"}
BY_DEVICE = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "device"))


def without(rows: list[Row], *ids: int) -> list[Row]:
    return [row for row in rows if row[1] not in ids]


def compacted(table: Table, rows: list[Row]) -> None:
    """The table is compacted, has these rows, and no deletes any more."""
    assert compact(dataset_of(table)).committed
    assert delete_files_of(table) == []
    check(table, rows)


def test_deleted_rows_go_and_so_do_the_deletes(catalog: SqlCatalog) -> None:
    table = new_table(catalog)
    rows = append(table, make_rows(10)) + append(table, make_rows(10))
    delete_equal(table, [rows[0][1], rows[15][1], -1])
    delete_equal(table, [rows[0][1], rows[3][1]])
    compacted(table, without(rows, rows[0][1], rows[15][1], rows[3][1]))


def test_a_delete_applies_to_older_files_only(catalog: SqlCatalog) -> None:
    """Upserts, as Flink writes them: a commit has the new rows and deletes the old ones of the same keys."""
    table = new_table(catalog)
    first = append(table, make_rows(5))
    key = first[2][1]
    keys = pa.table({"id": pa.array([key], pa.int64())})
    for n in range(3):
        newest: Row = (START + n * timedelta(hours=1), key, f"version {n}")
        delete_keys(table, keys, together=[data_file(table, [newest])])
    check(table, [*without(first, key), newest], by_pyiceberg=False)
    compacted(table, [*without(first, key), newest])


def test_what_was_applied_deletes_nothing_that_came_meanwhile(catalog: SqlCatalog) -> None:
    """A row with a deleted key is added and deleted again while the compaction runs."""
    table = new_table(catalog, properties=AT_ONCE)
    rows = append(table, make_rows(10)) + append(table, make_rows(10))
    key = rows[4][1]
    delete_equal(table, [key])
    steps = Steps(dataset_of(table))

    def meanwhile() -> None:
        append(table, [(START, key, "back")])
        delete_equal(table, [key, rows[7][1]])
        append(table, [(START, key, "back again")])

    assert steps.until_committed(meanwhile).committed
    left: list[Row] = [*without(rows, key, rows[7][1]), (START, key, "back again")]
    assert len(delete_files_of(table)) == 1, "the first one is applied"
    check(table, left, by_pyiceberg=False)
    compacted(table, left)


def test_all_rows_of_a_file_and_of_the_table(catalog: SqlCatalog) -> None:
    table = new_table(catalog, properties=AT_ONCE)
    rows = append(table, make_rows(3)) + append(table, make_rows(3))
    delete_equal(table, [row[1] for row in rows[:3]])
    compacted(table, rows[3:])
    append(table, make_rows(2))
    delete_keys(table, pa.table({"device": ["a"]}))
    compacted(table, [])
    assert files_of(table) == []


def test_nulls_several_columns_and_several_kinds_of_keys(catalog: SqlCatalog) -> None:
    table = new_table(catalog)
    append(table, [(START, 1, "a"), (START, 2, "a"), (START, 3, "b"), (None, 4, "c"), (START, 7, "a")])
    times, ids = pa.array([START] * 3, pa.timestamp("us", tz="UTC")), pa.array([5, 6, 2], pa.int64())
    fresh(table).append(pa.table({"event_time": times, "id": ids, "device": [None, "d", "b"]}))
    delete_keys(table, pa.table({"id": [2, 3, 5], "device": ["a", "a", None]}))
    delete_keys(table, pa.table({"event_time": pa.array([None], pa.timestamp("us", tz="UTC"))}))
    delete_keys(table, pa.table({"device": ["d"], "id": [6]}))
    delete_keys(table, pa.table({"device": pa.array([None, "x"], pa.string())}))
    files = {file.file_path: file for file in files_of(table)}
    (first,) = (path for path, file in files.items() if file.record_count == 5)
    delete_positions(fresh(table), {first: [0, 1]}, files=files)
    left: list[Row] = [(START, 2, "b"), (START, 3, "b"), (START, 7, "a")]
    check(table, left, by_pyiceberg=False)
    compacted(table, left)


def test_deletes_of_a_partition_and_deletes_of_all(catalog: SqlCatalog) -> None:
    table = new_table(catalog, spec=BY_DEVICE)
    files = [append(table, make_rows(4, device=device)) for device in "aabb"]
    rows = [row for file in files for row in file]
    for row, device in ((files[0][0], "a"), (files[1][1], "b"), (files[2][2], "b")):
        delete_equal(table, [row[1]], partition=Record(device))
    left = without(rows, files[0][0][1], files[2][2][1])
    assert read_by_java(table) == left  # DuckDB takes deletes of a partition for deletes of all
    with fresh(table).update_spec() as change:
        change.remove_field("device")
    delete_equal(table, [files[1][3][1], files[3][3][1]], spec_id=fresh(table).spec().spec_id)
    left = without(left, files[1][3][1], files[3][3][1])
    assert read_by_java(table) == read_by_java(table, reader="generic") == left
    compacted(table, left)


def test_partitions_of_not_a_number_are_one(catalog: SqlCatalog) -> None:
    """Not-a-number is not equal to itself, but to Iceberg it is one partition; the two zeros are two."""
    schema = Schema(*SCHEMA.fields, NestedField(4, "level", DoubleType(), required=False))
    spec = PartitionSpec(PartitionField(4, 1000, IdentityTransform(), "level"))
    table = new_table(catalog, schema=schema, spec=spec)

    def entry(content: DataFileContent, level: float, number: int) -> ManifestEntry:
        file = DataFile.from_args(
            content=content,
            file_path=f"{level}",
            file_format=FileFormat.PARQUET,
            partition=Record(level),
            record_count=1,
            file_size_in_bytes=1,
            equality_ids=[2],
        )
        file.spec_id = 0
        return ManifestEntry.from_args(sequence_number=number, data_file=file)

    deletes = [entry(DataFileContent.EQUALITY_DELETES, level, 2) for level in (float("nan"), 0.0)]
    data = [entry(DataFileContent.DATA, level, 1) for level in (float("nan"), 0.0, -0.0)]
    index = EqualityDeletes(table.metadata, deletes, lambda: data)
    assert [[delete.path for delete in index.of(one)] for one in data] == [["nan"], ["0.0"], []]


def test_columns_that_were_renamed_added_or_promoted(catalog: SqlCatalog) -> None:
    kinds = {2: IntegerType()}
    schema = Schema(
        *(
            NestedField(
                field.field_id, field.name, kinds.get(field.field_id, field.field_type), required=False
            )
            for field in SCHEMA.fields
        )
    )
    table = new_table(catalog, schema=schema)
    times = pa.array([START] * 4, pa.timestamp("us", tz="UTC"))
    ids = pa.array(range(4), pa.int32())
    fresh(table).append(pa.table({"event_time": times, "id": ids, "device": ["a", "a", "a", "b"]}))
    delete_keys(table, pa.table({"id": pa.array([0], pa.int32())}))
    delete_keys(table, pa.table({"device": ["b"]}))
    with fresh(table).update_schema() as change:
        change.update_column("id", LongType())
        change.rename_column("device", "machine")
        change.add_column("note", StringType())
    more = {"machine": ["a"] * 4, "note": [None, "x", "y", "z"]}
    fresh(table).append(pa.table({"event_time": times, "id": pa.array(range(4, 8), pa.int64()), **more}))
    delete_keys(table, pa.table({"id": pa.array([1, 5], pa.int64()), "machine": ["a", "b"]}))
    delete_keys(
        table, pa.table({"id": pa.array([1, 2, 4, 6, 7], pa.int64()), "note": ["x", None, None, None, "z"]})
    )
    left = [(START, 5, "a", "x"), (START, 6, "a", "y")]
    assert read_by_java(table) == left  # DuckDB fails on a key of an earlier type
    assert compact(dataset_of(table)).committed
    assert delete_files_of(table) == []
    assert (read_by_java(table), read_by_duckdb(table), read(table)) == (left, left, left)


VALUES: dict[str, tuple[IcebergType, pa.DataType, list[Any]]] = {
    "bool": (BooleanType(), pa.bool_(), [True, False, None, False, False]),
    "int": (IntegerType(), pa.int32(), [-(1 << 31), 0, None, 2, 3]),
    "long": (LongType(), pa.int64(), [(1 << 63) - 1, 0, None, (1 << 63) - 2, 3]),
    "decimal": (
        DecimalType(38, 2),
        pa.decimal128(38, 2),
        [Decimal("1.50"), Decimal("1.51"), None, Decimal(-2), Decimal("123456789012345678901234567890.01")],
    ),
    "date": (
        DateType(),
        pa.date32(),
        [date(1, 1, 1), date(9999, 12, 31), None, START.date(), date(1969, 12, 31)],
    ),
    "time": (
        TimeType(),
        pa.time64("us"),
        [time(0), time(0, 0, 0, 1), None, time(23), time(23, 59, 59, 999999)],
    ),
    "timestamp": (
        TimestampType(),
        pa.timestamp("us"),
        [
            datetime(1, 1, 1),
            datetime(9999, 12, 31),
            None,
            datetime(2025, 1, 1),
            datetime(2025, 1, 1, 0, 0, 0, 1),
        ],
    ),
    "timestamptz": (
        TimestamptzType(),
        pa.timestamp("us", tz="UTC"),
        [START, START - timedelta(microseconds=1), None, START + DAY, datetime(1969, 1, 1, tzinfo=UTC)],
    ),
    "string": (StringType(), pa.string(), ["", "n", None, "Zürich 🏔", "v"]),
    "uuid": (UUIDType(), pa.uuid(), [UUID(int=n).bytes if n != 2 else None for n in range(5)]),
    "fixed": (FixedType(3), pa.binary(3), [b"\x00\x00\x00", b"\x00\x00\x01", None, b"\xff\xff\xff", b"abc"]),
    "binary": (BinaryType(), pa.binary(), [b"", b"\x00", None, b"\xff\xfe", b"n"]),
}


def test_every_type_of_key(catalog: SqlCatalog) -> None:
    """Of each column one delete file deletes a value, and another a null and a value of certain rows."""
    fields = [
        NestedField(10 + n, name, kind, required=False)
        for n, (name, (kind, _, _)) in enumerate(VALUES.items())
    ]
    time_column = {"lithify.time-column": "event_time"}
    table = new_table(catalog, schema=Schema(*SCHEMA.fields, *fields), properties=time_column)
    times = pa.array([START] * 5, pa.timestamp("us", tz="UTC"))
    expected: list[int] = []
    for n, name in enumerate(VALUES):
        for first in (100 * n, 100 * n + 10):
            columns = {
                other: pa.array(values if other == name else [None] * 5, kind)
                for other, (_, kind, values) in VALUES.items()
            }
            ids = pa.array(range(first, first + 5), pa.int64())
            fresh(table).append(pa.table({"event_time": times, "id": ids, "device": ["a"] * 5, **columns}))
        expected += [100 * n + 1, 100 * n + 3, *range(100 * n + 11, 100 * n + 15)]
        if name != "bool":  # where two values are one
            expected.append(100 * n + 4)
    for n, (name, (_, kind, values)) in enumerate(VALUES.items()):
        ids = pa.array([100 * n + 2, 100 * n + 4], pa.int64())
        delete_keys(table, pa.table({"id": ids, name: pa.array([None, values[1]], kind)}))
        delete_keys(table, pa.table({name: pa.array([values[0]], kind)}))
    assert [row[1] for row in read_by_java(table, reader="generic")] == sorted(expected)
    assert compact(dataset_of(table)).committed
    assert delete_files_of(table) == []
    assert [row[1] for row in read_by_java(table, reader="generic")] == sorted(expected)


# What is left alone


def _of_floats(table: Table) -> None:
    with fresh(table).update_schema() as change:
        change.add_column("level", DoubleType())
    delete_keys(table, pa.table({"level": [0.0]}))


def _of_a_dropped_column(table: Table) -> None:
    with fresh(table).update_schema() as change:
        change.add_column("note", StringType())
    delete_keys(table, pa.table({"note": ["x"]}))
    with fresh(table).update_schema() as change:
        change.delete_column("note")


def _too_many(table: Table) -> None:
    delete_equal(table, range(8))
    delete_equal(table, range(8))


def _of_another_format(table: Table) -> None:
    delete_keys(table, pa.table({"id": [1]}), file_format=FileFormat.AVRO)


@pytest.mark.parametrize(
    ("delete", "why"),
    [
        (_of_floats, "use level (double), which not all readers compare in the same way"),
        (_of_a_dropped_column, "use a column that was dropped"),
        (_too_many, "have more than 12 rows in total"),
        (_of_another_format, "are in the format AVRO"),
    ],
)
def test_what_cannot_be_applied_is_left_alone(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch, delete: Callable[[Table], None], why: str
) -> None:
    monkeypatch.setattr(equality_deletes, "MAX_ROWS", 12)
    table = new_table(catalog)
    for _ in range(3):
        append(table, make_rows(5))
    delete(table)
    before = {file.file_path for file in files_of(table)}
    for _ in range(2):
        append(table, make_rows(5))  # what is younger is compacted all the same
    done = compact(dataset_of(table))
    plan = done.plan
    says = f"3 file(s) are left alone: they have equality deletes that apply and {why}"
    assert any(says in note for note in plan.notes)
    (left,) = plan.left_alone
    assert says in left
    assert plan.stuck == (plan.left_alone if delete is _too_many else ()), "there will only be more"
    (files,) = done.after.left_alone
    assert (files.files, files.rows, files.is_stuck) == (3, 15, delete is _too_many)
    after = {file.file_path for file in files_of(table)}
    assert before < after
    assert len(after) == 4
    assert len(delete_files_of(table)) in (1, 2)


def _is_larger(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equality_keys, "MAX_HELD_BYTES", 8)


def _has_fewer_rows(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pq.read_table(path).slice(1), path)


def _has_another_column(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    field = pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "99"})
    pq.write_table(pq.read_table(path).cast(pa.schema([field])), path)


def _has_another_type(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    field = pa.field("id", pa.string(), metadata={"PARQUET:field_id": "2"})
    pq.write_table(pq.read_table(path).cast(pa.schema([field])), path)


@pytest.mark.parametrize(
    ("spoil", "error", "says"),
    [
        (_is_larger, Unsupported, "in memory"),
        (_has_fewer_rows, CorruptObject, "has 1 rows, but its manifest states 2"),
        (_has_another_column, CorruptObject, "has no column with the id 2"),
        (_has_another_type, Unsupported, "cannot be applied; such files store id"),
    ],
)
def test_a_delete_file_that_is_not_what_its_manifest_says(
    catalog: SqlCatalog,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[str, pytest.MonkeyPatch], None],
    error: type[LithifyError],
    says: str,
) -> None:
    table = new_table(catalog)
    append(table, make_rows(3))
    spoil(delete_equal(table, [1, 2]).removeprefix("file://"), monkeypatch)
    now = fresh(table)
    listing = read_listing(now, "main", ManifestCache())
    assert listing is not None
    (entry,) = listing.data.values()
    with pytest.raises(error, match=re.escape(says)):
        DeletedKeys(now.io, listing.equality_deletes.of(entry), now.schema(), None)


# What the commit looks at


@pytest.mark.parametrize("is_left", [True, False])
def test_the_commit_counts_apart_from_the_task(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch, is_left: bool
) -> None:
    """A row too many is left, or one too many deleted."""
    table = new_table(catalog)
    rows = append(table, make_rows(10)) + append(table, make_rows(10))
    delete_equal(table, [rows[0][1]])
    monkeypatch.setattr(DeletedKeys, "left", lambda self, batch, number: batch if is_left else batch.slice(1))
    before = fresh(table).metadata_location
    tick = Steps(dataset_of(table)).until_committed(lambda: None)
    assert not tick.committed
    assert f"have {20 if is_left else 18} rows, but the inputs had 19" in tick.refused[0][1]
    assert fresh(table).metadata_location == before


def test_a_delete_that_was_taken_back_is_a_conflict(catalog: SqlCatalog) -> None:
    table = new_table(catalog)
    rows = append(table, make_rows(20)) + append(table, make_rows(20))
    before = fresh(table).current_snapshot()
    assert before is not None
    delete_equal(table, [rows[0][1]])
    steps = Steps(dataset_of(table))
    taken_back = fresh(table).manage_snapshots().rollback_to_snapshot(before.snapshot_id)
    tick = steps.until_committed(taken_back.commit)
    assert not tick.committed
    assert "have 39 rows, but the inputs had 40" in tick.refused[0][1]
    check(table, rows)
    compacted(table, rows)


def test_beyond_so_many_rows_a_count_is_what_is_possible(catalog: SqlCatalog) -> None:
    """The coordinator has other things to do as well."""
    table = new_table(catalog)
    few, many = append(table, make_rows(3)), append(table, make_rows(20))
    delete_positions(table, {file.file_path: [1] for file in files_of(table)})
    delete_equal(table, [few[0][1], many[0][1]])
    now = fresh(table)
    listing = read_listing(now, "main", ManifestCache())
    assert listing is not None
    paths = {entry.data_file.record_count: path for path, entry in listing.data.items()}
    count = LiveRows(max_joined_rows=10).of(now.io, listing, paths.values())
    assert (count[paths[3]], count[paths[20]]) == (RowCount(1, 1), RowCount(0, 19))
    assert [count[paths[20]].allows(rows) for rows in (-1, 0, 19, 20)] == [False, True, True, False]


def twice(batch: pa.RecordBatch) -> pa.RecordBatch:
    (found,) = pa.Table.from_batches([batch, batch]).combine_chunks().to_batches()
    return found


@pytest.mark.parametrize("is_left", [True, False])
def test_what_is_not_counted_is_checked_as_far_as_that_goes(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch, is_left: bool
) -> None:
    monkeypatch.setattr("lithify.datasets.iceberg.compaction.commit.LiveRows", partial(LiveRows, 0))
    table = new_table(catalog)
    rows = append(table, make_rows(10)) + append(table, make_rows(10))
    delete_equal(table, [rows[0][1]])
    if is_left:
        compacted(table, rows[1:])
        return
    monkeypatch.setattr(DeletedKeys, "left", lambda self, batch, number: twice(batch))
    tick = Steps(dataset_of(table)).until_committed(lambda: None)
    assert not tick.committed
    assert "have 40 rows, but the inputs had 0 to 20" in tick.refused[0][1]


def test_on_spark(catalog: SqlCatalog, spark_engine: SparkEngine) -> None:
    """Keys of several columns, with nulls, by names that have changed since, in several partitions."""
    table = new_table(catalog, spec=BY_DEVICE, properties={**AT_ONCE, "lithify.small-task-bytes": "1"})
    rows: list[Row] = []
    for n in range(6):
        for device in ("a", "b"):
            rows += append(table, make_rows(40, START + n // 2 * DAY, DAY, device))
    nameless: Row = (None, 10_000_000, "a")
    rows += append(table, [nameless, (START, 10_000_001, "a")])
    with fresh(table).update_schema() as change:
        change.rename_column("event_time", "at")
    gone = [rows[n][1] for n in range(0, len(rows) - 2, 7)]
    for device in ("a", "b"):
        keys = pa.table({"id": pa.array(gone, pa.int64())})
        delete_keys(table, keys, partition=Record(device))
    keys = pa.table({"at": pa.array([None], ARROW.field(0).type), "id": pa.array([10_000_000], pa.int64())})
    delete_keys(table, keys, partition=Record("a"))
    left = [row for row in without(rows, *gone) if row != nameless]
    back: Row = (START, gone[0], "a")
    with fresh(table).update_schema() as change:
        change.rename_column("at", "event_time")
    left += append(table, [back])
    result = compact(dataset_of(table), engine=spark_engine)
    assert result.committed
    assert not result.failures
    check(table, left, by_pyiceberg=False)
    DeleteRewriter(dataset_of(table), a_clock()).run()
    assert delete_files_of(table) == []
    check(table, left)


# What is planned


def test_how_many_rows_are_deleted_is_estimated(catalog: SqlCatalog) -> None:
    """As if each key were that of one row: 6 keys delete a twentieth of 120 rows."""
    table = new_table(catalog, properties={"lithify.max-deleted-percent": "10"})
    append(table, make_rows(80))
    append(table, make_rows(40, START + 3 * DAY))
    delete_equal(table, range(6))
    dataset = dataset_of(table)
    state = dataset.snapshot()
    assert {(file.rows, file.deletes, file.deleted_rows) for file in state.files} == {(80, 1, 4), (40, 1, 2)}
    assert not dataset.propose(state, Ledger()).proposals
    delete_equal(table, range(9))
    proposals = dataset.propose(dataset.snapshot(), Ledger()).proposals
    assert sum(len(proposal.spec.inputs) for proposal in proposals) == 2
    assert all("rows deleted" in proposal.reason for proposal in proposals)


def test_without_a_limit_for_deleted_rows_deletes_are_no_reason(catalog: SqlCatalog) -> None:
    table = new_table(catalog)
    append(table, make_rows(20))
    delete_equal(table, range(100))
    assert [file.deletes for file in dataset_of(table).snapshot().files] == [0]
    assert not compact(dataset_of(table)).committed


# Random histories


WRITES = ("upsert", "upsert", "upsert", "append", "delete", "position")


class Life:
    """Random things that happen to a table with one row for each key and version."""

    def __init__(self, table: Table, rng: random.Random, devices: str) -> None:
        self.table, self._rng, self._devices = table, rng, devices
        self.rows: list[Row] = []
        self._partitioned = len(devices) > 1

    def step(self) -> None:
        match self._rng.choice((*WRITES, "compact", "compact meanwhile", "rewrite")):
            case "compact":
                compact(dataset_of(self.table))
            case "compact meanwhile":
                Steps(dataset_of(self.table)).until_committed(self.write)
            case "rewrite":
                DeleteRewriter(dataset_of(self.table), a_clock()).run()
            case _:
                self.write()

    def write(self) -> None:
        """One commit of somebody else's."""
        match self._rng.choice(WRITES):
            case "append":
                self.rows += append(self.table, self._make())
            case "upsert":
                self._upsert(self._make())
            case "delete" if self.rows:
                self._upsert([])
            case "position" if files_of(self.table):
                self._delete_by_position()

    def _make(self) -> list[Row]:
        rng, device = self._rng, self._rng.choice(self._devices)
        times = [START + rng.random() * 3 * DAY for _ in range(rng.randint(1, 4))]
        return [(t.replace(microsecond=0), rng.randrange(12), device) for t in times]

    def _upsert(self, rows: list[Row]) -> None:
        """Delete what has these ids (in this partition), or any, and add these rows."""
        rng, device = self._rng, rows[0][2] if rows else self._rng.choice(self._devices)
        ids = [row[1] for row in rows] or [rng.randrange(12)]
        partition = Record(device) if self._partitioned else None
        self.rows = [row for row in self.rows if row[1] not in ids or (partition and row[2] != device)]
        keys = {"id": pa.array(ids, pa.int64())}
        if rng.random() < 0.3:
            keys["device"] = pa.array([device] * len(ids))
        together = [data_file(self.table, rows)] if rows else []
        delete_keys(self.table, pa.table(keys), partition=partition, together=together)
        self.rows += rows

    def _delete_by_position(self) -> None:
        file = self._rng.choice(files_of(self.table))
        with fresh(self.table).io.new_input(file.file_path).open() as stream:
            row = tuple(pq.read_table(stream, columns=["event_time", "id", "device"]).to_pylist()[0].values())
        if self.rows.count(row) == 1:
            delete_positions(fresh(self.table), {file.file_path: [0]}, files={file.file_path: file})
            self.rows.remove(row)


@pytest.mark.parametrize("seed", range(4))
def test_random_histories(catalog: SqlCatalog, seed: int) -> None:
    is_partitioned = bool(seed % 2)
    table = new_table(
        catalog,
        spec=BY_DEVICE if is_partitioned else UNPARTITIONED_PARTITION_SPEC,
        properties={**AT_ONCE, "lithify.max-deleted-percent": "1"},
    )
    life = Life(table, random.Random(seed), "ab" if is_partitioned else "a")
    for _ in range(4):
        for _ in range(8):
            life.step()
        assert sorted(read_by_java(table)) == sorted(life.rows)
        if not is_partitioned:  # DuckDB takes deletes of a partition for deletes of all
            assert sorted(read_by_duckdb(table)) == sorted(life.rows)
    life.rows += append(table, [(START, 100, "a")])
    compact(dataset_of(table))
    DeleteRewriter(dataset_of(table), a_clock()).run()
    assert delete_files_of(table) == []
    assert (
        sorted(read_by_java(table))
        == sorted(read(table))
        == sorted(read_by_duckdb(table))
        == sorted(life.rows)
    )
