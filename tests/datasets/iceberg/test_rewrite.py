"""What rewritten files look like: sizes, order, partitions, ids, statistics; in bounded memory."""

from __future__ import annotations

import random
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.types import (
    DateType,
    DoubleType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from lithify.base.events import Event, RangeFinished
from lithify.datasets.iceberg.compaction import task as task_module
from lithify.datasets.iceberg.format.listing import ManifestCache, read_listing
from lithify.datasets.iceberg.model import TimeRange
from lithify.datasets.iceberg.plan import plan_table
from lithify.engine.spark import SparkEngine
from lithify.protocol.model import Ledger
from tests.datasets.iceberg.running import Steps, compact, dataset_of
from tests.datasets.iceberg.tables import (
    DAY,
    SCHEMA,
    START,
    Row,
    append,
    as_arrow,
    by_id,
    check,
    delete_files_of,
    delete_positions,
    files_of,
    fresh,
    make_rows,
    new_table,
    read_by_duckdb,
    read_by_java,
)

BIG = 40_000
KIB = 1024


def stored(path: str) -> pa.Table:
    """A data file as Parquet has it."""
    return pq.ParquetFile(path.removeprefix("file://")).read()


def noise(count: int, start: datetime, span: timedelta, seed: int) -> list[Row]:
    """Rows that hardly compress, in no order of time."""
    rng = random.Random(seed)
    rows = make_rows(count, start, span)
    rng.shuffle(rows)
    return [(time, row_id, f"{rng.getrandbits(128):032x}") for time, row_id, _ in rows]


def is_stable(table: Table) -> bool:
    """Whether the planner, without a memory, finds nothing to do."""
    state = dataset_of(table).snapshot()
    return not plan_table(state, Ledger(), 1 << 60).tasks


@pytest.mark.parametrize("target_kib", [150, 400, 5000])
def test_files_are_even_within_the_target_and_stay_as_they_are(catalog: Catalog, target_kib: int) -> None:
    properties = {"write.target-file-size-bytes": str(target_kib * KIB)}
    table = new_table(catalog, properties=properties)
    rows: list[Row] = []
    for n in range(6):
        rows += append(table, noise(6000, START + n * timedelta(hours=8), timedelta(hours=9), n))
    compact(dataset_of(table))
    assert is_stable(table)
    sizes = [file.file_size_in_bytes for file in files_of(table)]
    assert max(sizes) <= 1.1 * target_kib * KIB
    days = {file.file_path: _days(file) for file in files_of(table)}
    assert all(first == last for first, last in days.values())
    if target_kib < 1000:
        full_day = [s for p, s in zip(days, sizes, strict=True) if days[p][0] == date(2025, 1, 2)]
        assert len(full_day) > 1
        assert min(full_day) > 0.8 * max(full_day)
    check(table, rows)


def _days(file: DataFile) -> tuple[date, date]:
    return _day(file.lower_bounds[1]), _day(file.upper_bounds[1])


def _day(bound: bytes) -> date:
    return date.fromordinal(date(1970, 1, 1).toordinal() + int.from_bytes(bound, "little") // 86_400_000_000)


def test_files_are_sorted_by_time_where_the_table_has_no_order(catalog: Catalog) -> None:
    table = new_table(catalog)
    rows = append(table, noise(500, START, DAY, 1)) + append(table, noise(500, START, DAY, 2))
    compact(dataset_of(table))
    (file,) = files_of(table)
    times = stored(file.file_path)["event_time"]
    assert times.equals(pc.take(times, pc.sort_indices(times)))
    assert file.sort_order_id is None
    check(table, rows)


@pytest.mark.parametrize("direction", list(SortDirection))
@pytest.mark.parametrize("nulls", list(NullOrder))
def test_files_are_sorted_by_the_order_of_the_table(
    catalog: Catalog, direction: SortDirection, nulls: NullOrder
) -> None:
    schema = Schema(*SCHEMA.fields, NestedField(4, "value", DoubleType()))
    order = SortOrder(
        SortField(source_id=4, transform=IdentityTransform(), direction=direction, null_order=nulls),
        SortField(source_id=2, transform=IdentityTransform()),
    )
    table = new_table(catalog, schema=schema, order=order, properties={"lithify.time-column": "event_time"})
    values = [2.5, None, float("nan"), -1.0, 2.5, float("inf"), None, float("nan")]
    for _ in range(2):
        fresh(table).append(as_arrow(make_rows(8)).append_column("value", pa.array(values)))
    compact(dataset_of(table))
    (file,) = files_of(table)
    assert file.sort_order_id == 1
    found = stored(file.file_path)["value"].to_pylist()
    ranked = sorted(values * 2, key=_iceberg_rank, reverse=direction == SortDirection.DESC)
    numbers = [value for value in ranked if value is not None]
    expected = [*numbers, *[None] * 4] if nulls == NullOrder.NULLS_LAST else [*[None] * 4, *numbers]
    assert str(found) == str(expected)


def _iceberg_rank(value: float | None) -> tuple[bool, float]:
    if value is None:
        return False, 0.0
    return (True, 0.0) if value != value else (False, value)


SPECS = {
    "by day": PartitionSpec(PartitionField(1, 1000, DayTransform(), "day")),
    "by device": PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "device")),
    "by bucket and day": PartitionSpec(
        PartitionField(2, 1000, BucketTransform(2), "bucket"), PartitionField(1, 1001, DayTransform(), "day")
    ),
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("granularity", ["hour", "month"])
def test_rows_stay_in_their_partition(catalog: Catalog, spec: PartitionSpec, granularity: str) -> None:
    table = new_table(catalog, spec=spec, properties={"lithify.granularity": granularity})
    rows: list[Row] = []
    for n in range(3):
        for device in ("a", "b/c", "ü d"):
            rows += append(table, make_rows(6, START + n * timedelta(hours=1), 2 * DAY, device))
    by_partition = {str(file.partition) for file in files_of(table)}
    before = len(files_of(table))
    deleted = files_of(table)[0]
    delete_positions(table, {deleted.file_path: [0]})
    kept = fresh(table).scan().to_arrow().to_pylist()
    rows = [tuple(row.values()) for row in kept]
    compact(dataset_of(table))
    assert is_stable(table)
    assert {str(file.partition) for file in files_of(table)} == by_partition
    if granularity == "month":
        assert len(files_of(table)) == len(by_partition) < before
        assert not delete_files_of(table)
    check(table, rows)
    found = fresh(table).scan("device = 'b/c'").to_arrow()
    assert found.num_rows == len([row for row in rows if row[2] == "b/c"])


def test_files_of_older_specs_are_compacted_among_themselves(catalog: Catalog) -> None:
    table = new_table(catalog)
    rows = append(table, make_rows(10)) + append(table, make_rows(10))
    with fresh(table).update_spec() as update:
        update.add_field("event_time", DayTransform(), "day")
    for _ in range(2):
        rows += append(table, make_rows(10))
    compact(dataset_of(table))
    assert sorted(file.spec_id for file in files_of(table)) == [0, 1]
    check(table, rows)


def test_rows_without_a_time_are_kept(catalog: Catalog) -> None:
    table = new_table(catalog)
    rows = append(table, [(None, 10_000_001, "x"), *make_rows(10)])
    rows += append(table, [*make_rows(10, START + DAY), (None, 10_000_002, "y")])
    for n in range(3):  # and two files with nothing but such rows
        rows += append(table, [(None, 10_000_010 + n, "z")])
    compact(dataset_of(table))
    assert is_stable(table)
    check(table, rows)
    assert len(files_of(table)) == 3


def test_dates_as_times(catalog: Catalog) -> None:
    schema = Schema(NestedField(1, "day", DateType()), NestedField(2, "id", LongType()))
    table = new_table(catalog, schema=schema, properties={"lithify.granularity": "week"})
    days = [date(2025, 1, 1) + timedelta(days=n) for n in range(20)]
    for n in range(4):
        data = pa.table({"day": days[n::4], "id": pa.array(range(n, 20, 4), pa.int64())})
        fresh(table).append(data)
    compact(dataset_of(table))
    rows = [(day, n) for n, day in enumerate(days)]
    assert read_by_java(table) == read_by_duckdb(table) == rows
    assert len(files_of(table)) == 4  # the first week begins on a Wednesday
    assert is_stable(table)


def test_columns_that_changed_are_written_as_the_table_has_them_now(catalog: Catalog) -> None:
    nested = StructType(
        NestedField(6, "x-y", LongType()), NestedField(7, "tags", ListType(8, StringType(), False))
    )
    schema = Schema(
        NestedField(1, "event_time", TimestamptzType(), required=True),
        NestedField(2, "id", IntegerType()),
        NestedField(3, "no longer", StringType()),
        NestedField(4, "1st choice", StringType()),
        NestedField(5, "more", nested),
    )
    table = new_table(catalog, schema=schema)

    def data(n: int) -> pa.Table:
        values: dict[str, Any] = {
            "event_time": START + timedelta(hours=n),
            "id": n,
            "no longer": "gone",
            "1st choice": f"v{n}",
            "choice": f"v{n}",
            "more": {"x-y": n, "tags": ["a", None]},
            "added": n * 1.5,
        }
        target = fresh(table).schema().as_arrow()
        names = [field.name for field in target]
        return pa.Table.from_pylist([{name: values[name] for name in names}], schema=target)

    for n in range(2):
        fresh(table).append(data(n))
    with fresh(table).update_schema() as update:
        update.delete_column("no longer")
        update.rename_column("1st choice", "choice")
        update.update_column("id", LongType())
        update.add_column("added", DoubleType())
    for n in range(2, 4):
        fresh(table).append(data(n))
    before, before_by_java = fresh(table).scan().to_arrow().to_pylist(), read_by_java(table)
    compact(dataset_of(table))
    (file,) = files_of(table)
    after = fresh(table).scan().to_arrow().to_pylist()
    key = lambda row: row["id"]  # noqa: E731
    assert sorted(after, key=key) == sorted(before, key=key)
    assert read_by_java(table) == before_by_java
    assert [row[1] for row in read_by_duckdb(table)] == [0, 1, 2, 3]
    ids = [int(f.metadata[b"PARQUET:field_id"]) for f in stored(file.file_path).schema]
    assert ids == [1, 2, 4, 5, 9]
    assert file.null_value_counts[9] == 2
    assert file.value_counts[1] == 4


def test_files_without_field_ids_get_them(catalog: Catalog) -> None:
    table = new_table(catalog)
    rows = append(table, make_rows(5))
    more = make_rows(5)
    folder = Path(table.location().removeprefix("file://")) / "data"
    pq.write_table(as_arrow(more), folder / "foreign.parquet")
    fresh(table).add_files([f"{table.location()}/data/foreign.parquet"])
    compact(dataset_of(table))
    (file,) = files_of(table)
    assert b"PARQUET:field_id" in stored(file.file_path).schema.field("id").metadata
    check(table, [*rows, *more])


def test_sequence_numbers_are_those_of_the_planned_snapshot(catalog: Catalog) -> None:
    table = new_table(catalog)
    for _ in range(3):
        append(table, make_rows(5))
    steps = Steps(dataset_of(table))
    steps.schedule()
    steps.execute()
    append(table, make_rows(5))
    steps.commit()
    listing = read_listing(fresh(table), "main", ManifestCache())
    assert listing is not None
    numbers = {(e.sequence_number, e.file_sequence_number) for e in listing.data.values()}
    assert numbers == {(3, 5), (4, 4)}


@pytest.mark.parametrize("by_id_order", [False, True])
def test_a_small_buffer_gives_the_same_rows(
    catalog: Catalog, by_id_order: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows go through the disk, more than once."""
    by_id_field = SortOrder(SortField(source_id=2, transform=IdentityTransform()))
    order = by_id_field if by_id_order else UNSORTED_SORT_ORDER
    properties = {"write.target-file-size-bytes": str(300 * KIB)}
    table = new_table(catalog, properties=properties, order=order)
    rows: list[Row] = []
    for n in range(4):
        rows += append(table, noise(8000, START, 2 * DAY, n))
    spilled: list[int] = []
    steps = Steps(dataset_of(table))
    steps.dataset.buffer_bytes = 256 * KIB
    steps.schedule()
    observe = steps.dataset.outcome

    def outcome(result: task_module.TaskResult) -> Any:
        spilled.append(result.spilled_bytes)
        return observe(result)

    monkeypatch.setattr(steps.dataset, "outcome", outcome)
    steps.execute()
    assert steps.commit().committed
    assert sum(spilled) > 2000 * KIB
    for file in files_of(table):
        column = stored(file.file_path)["id" if by_id_order else "event_time"]
        assert column.equals(pc.take(column, pc.sort_indices(column)))
    check(table, rows)


def test_many_ranges_give_every_row_once(catalog: Catalog) -> None:
    """Files that reach over several ranges are read by each, and each takes its own rows of them. Days are
    ranges of their own, and a day of several files is cut."""
    table = new_table(catalog, properties={"write.target-file-size-bytes": str(40 * KIB)})
    rows: list[Row] = []
    for n in range(3):
        rows += append(table, [*noise(4000, START + n * DAY / 2, 2 * DAY, n), (None, 20_000_000 + n, "x")])
    # The last row of a file is the only one in the first instant of a day.
    rows += append(table, [(START + DAY / 2, 20_000_010, "y"), (START + DAY, 20_000_011, "y")])
    first = max(files_of(table), key=lambda file: file.record_count).file_path
    gone = {row["id"] for row in stored(first).slice(100, 50).to_pylist()}
    delete_positions(table, {first: range(100, 150)})
    rows = [row for row in rows if row[1] not in gone]
    events: list[Event] = []
    dataset = dataset_of(table)
    dataset.range_bytes = 1
    result = compact(dataset, observer=events.append)
    assert result.committed
    assert not result.refused
    assert sum(isinstance(event, RangeFinished) for event in events) > 6
    check(table, rows)
    assert is_stable(table)


def test_late_rows_join_their_day(catalog: Catalog) -> None:
    """A compacted table, and then a file that reaches back over three days."""
    table = new_table(catalog)
    rows: list[Row] = []
    for n in range(4):
        rows += append(table, make_rows(50, START + n * DAY))
    compact(dataset_of(table))
    rows += append(table, make_rows(20, START + DAY / 2, 3 * DAY))
    compact(dataset_of(table))
    assert is_stable(table)
    assert len(files_of(table)) == 4
    check(table, rows)


def test_on_spark(catalog: Catalog, spark_engine: SparkEngine) -> None:
    table = new_table(catalog, properties={"lithify.small-task-bytes": "1"})
    rows: list[Row] = []
    for n in range(8):
        rows += append(table, noise(500, START + n * DAY / 4, DAY / 2, n))
    path = files_of(table)[0].file_path
    gone = {row[1] for row in stored(path).slice(3, 2).to_pylist() for row in [list(row.values())]}
    delete_positions(table, {path: [3, 4]})
    rows = [row for row in rows if row[1] not in gone]
    result = compact(dataset_of(table), engine=spark_engine)
    assert result.committed
    assert not result.failures
    assert len(files_of(table)) == 3
    check(table, rows)


def test_ranges_cannot_be_out_of_order() -> None:
    with pytest.raises(ValueError, match="not ascending"):
        TimeRange(5, 3)
    with pytest.raises(ValueError, match="not ascending"):
        TimeRange(0, 10, (10,))


def test_rows_outside_the_bounds_of_their_file_are_not_lost(catalog: Catalog) -> None:
    """Somebody wrote wrong bounds into a manifest: the compaction is refused, and the rows stay."""
    table = new_table(catalog, properties={"lithify.granularity": "hour"})
    rows = append(table, make_rows(10)) + append(table, make_rows(10))
    (first, _) = files_of(table)
    steps = Steps(dataset_of(table))
    for entry in steps.dataset.snapshot().source.data.values():
        if entry.data_file.file_path == first.file_path:
            start_us = int.from_bytes(entry.data_file.lower_bounds[1], "little")
            entry.data_file.upper_bounds[1] = (start_us + 4_000_000_000).to_bytes(8, "little")
    steps.dataset._drawn = None
    steps.dataset.range_bytes = 1
    steps.schedule()
    steps.execute()
    tick = steps.commit()
    assert not tick.committed
    assert "rows, but the inputs had" in tick.refused[0][1]
    check(table, by_id(rows))
