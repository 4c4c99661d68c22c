"""Times that Python's calendar does not have: before year 1 and after 9999, as far as the types reach. In the
time column, in any other, and as values of partitions; rows are rewritten as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.transforms import (
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    YearTransform,
)
from pyiceberg.typedef import Record
from pyiceberg.types import (
    DateType,
    LongType,
    NestedField,
    PrimitiveType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from lithify.datasets.iceberg.plan import plan_table
from lithify.protocol.model import Ledger
from tests.datasets.iceberg.running import compact, dataset_of
from tests.datasets.iceberg.tables import delete_positions, files_of, fresh, new_table

DAY_US = 86_400_000_000
YEAR_10000_US = 253_402_300_800_000_000
YEAR_0_US = -62_167_219_200_000_000
MICROSECONDS = (YEAR_10000_US, YEAR_0_US, (1 << 61) + 5, (1 << 63) - 1, -(1 << 63) + 1, -(1 << 63))
DAYS = (YEAR_10000_US // DAY_US, YEAR_0_US // DAY_US, (1 << 31) - 1, -(1 << 31))

Kind = tuple[PrimitiveType, pa.DataType, pa.DataType, tuple[int, ...]]
TIMESTAMPTZ: Kind = (TimestamptzType(), pa.timestamp("us", "UTC"), pa.int64(), MICROSECONDS)
TIMESTAMP: Kind = (TimestampType(), pa.timestamp("us"), pa.int64(), MICROSECONDS)
DATE: Kind = (DateType(), pa.date32(), pa.int32(), DAYS)
TIME: Kind = (TimeType(), pa.time64("us"), pa.int64(), (0, DAY_US - 1, DAY_US + 7, -1, (1 << 63) - 1))
TIME_KINDS = [TIMESTAMPTZ, TIMESTAMP, DATE]
PROPERTIES = {"lithify.time-column": "t", "lithify.min-saved-files": "1"}


def named(kinds: Sequence[Kind]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("kind", kinds, ids=[str(kind[0]) for kind in kinds])


def add_file(table: Table, columns: dict[str, pa.Array], partition: Record | None = None) -> DataFile:
    """A file as some other program writes it; its manifest entry has no statistics."""
    ids = {name: str(field.field_id) for field in table.schema().fields for name in [field.name]}
    schema = pa.schema(
        [pa.field(name, of.type, True, {"PARQUET:field_id": ids[name]}) for name, of in columns.items()]
    )
    path = Path(table.location().removeprefix("file://")) / "data" / f"{len(files_of(table))}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = pa.table(list(columns.values()), schema=schema)
    pq.write_table(rows, path, store_schema=False)
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path.as_uri(),
        file_format=FileFormat.PARQUET,
        partition=partition if partition is not None else Record(),
        record_count=rows.num_rows,
        file_size_in_bytes=path.stat().st_size,
    )
    file.spec_id = table.spec().spec_id
    with fresh(table).transaction() as transaction:
        adding = _Append(Operation.APPEND, transaction, table.io)
        adding.append_data_file(file)
        adding.commit()
    return file


class _Append(_FastAppendFiles):
    """PyIceberg's append, but for the names of partitions in its summary, which it cannot write."""

    def _summary(self, snapshot_properties: Mapping[str, str] = {}) -> Summary:
        return Summary(operation=Operation.APPEND)


def numbers(values: Sequence[int | None], kind: Kind) -> pa.Array:
    return pa.array(values, kind[2]).view(kind[1])


def stored(table: Table) -> list[tuple[Any, ...]]:
    """Every row, with its times as numbers, as PyIceberg reads them."""
    rows = fresh(table).scan().to_arrow()
    columns = []
    for column in rows.itercolumns():
        whole = column.combine_chunks()
        is_date = pa.types.is_date(whole.type)
        plain = whole.view(pa.int32() if is_date else pa.int64()) if whole.type != pa.int64() else whole
        columns.append(plain.to_pylist())
    return sorted(zip(*columns, strict=True), key=lambda row: int(row[-1]))


@named(TIME_KINDS)
@pytest.mark.parametrize("granularity", ["day", "hour"])
def test_in_the_time_column(catalog: Catalog, kind: Kind, granularity: str) -> None:
    """Together and one by one, with usual times and without."""
    schema = Schema(NestedField(1, "t", kind[0]), NestedField(2, "id", LongType()))
    table = new_table(catalog, schema=schema, properties={**PROPERTIES, "lithify.granularity": granularity})
    values: list[list[int | None]] = [[far] for far in kind[3]]
    values += [[far, 20_000, None] for far in kind[3]] + [[None, *kind[3]], [20_000, 20_001], [20_000]]
    row_id = 0
    for times in values:
        ids = list(range(row_id, row_id + len(times)))
        add_file(table, {"t": numbers(times, kind), "id": pa.array(ids, pa.int64())})
        row_id += len(times)
    before = stored(table)
    assert len(before) == row_id
    result = compact(dataset_of(table))
    assert result.committed
    assert not result.failures
    assert stored(table) == before
    assert len(files_of(table)) < len(values)
    for file in files_of(table):
        if 1 in (file.lower_bounds or {}):
            low, high = (
                int(from_bytes(kind[0], bounds[1])) for bounds in (file.lower_bounds, file.upper_bounds)
            )
            inside = [row[0] for row in _rows_of(file) if row[0] is not None]
            assert (low, high) == (min(inside), max(inside))
    assert not plan_table(dataset_of(table).snapshot(), Ledger(), 1 << 60).tasks, "once is enough"


def _rows_of(file: DataFile) -> list[tuple[Any, ...]]:
    rows = pq.read_table(file.file_path.removeprefix("file://"))
    time = rows.column("t").combine_chunks()
    return list(
        zip(time.view(pa.int32() if pa.types.is_date(time.type) else pa.int64()).to_pylist(), strict=True)
    )


@named([*TIME_KINDS, TIME])
def test_in_any_other_column(catalog: Catalog, kind: Kind) -> None:
    schema = Schema(
        NestedField(1, "t", TimestamptzType()), NestedField(2, "x", kind[0]), NestedField(3, "id", LongType())
    )
    table = new_table(catalog, schema=schema, properties=PROPERTIES)
    for n, far in enumerate(kind[3]):
        columns = {
            "t": numbers([0, 5], TIMESTAMPTZ),
            "x": numbers([far, None], kind),
            "id": pa.array([2 * n, 2 * n + 1], pa.int64()),
        }
        add_file(table, columns)
    before = stored(table)
    assert compact(dataset_of(table)).committed
    (file,) = files_of(table)
    assert stored(table) == before
    assert int.from_bytes(file.lower_bounds[2], "little", signed=True) == min(kind[3])
    assert int.from_bytes(file.upper_bounds[2], "little", signed=True) == max(kind[3])


def test_where_rows_are_filtered_and_deleted_by_pyiceberg(catalog: Catalog) -> None:
    """A file with a delete that reaches over several ranges of time."""
    schema = Schema(NestedField(1, "t", TimestamptzType()), NestedField(2, "id", LongType()))
    table = new_table(catalog, schema=schema, properties=PROPERTIES)
    times = [YEAR_0_US, 0, 3 * DAY_US, YEAR_10000_US, YEAR_10000_US + DAY_US, (1 << 63) - 1]
    for n in range(2):
        ids = pa.array(range(6 * n, 6 * n + 6), pa.int64())
        file = add_file(table, {"t": numbers(times, TIMESTAMPTZ), "id": ids})
    delete_positions(table, {file.file_path: [1, 4]})
    before = stored(table)
    dataset = dataset_of(table)
    dataset.range_bytes = 1
    assert compact(dataset).committed
    assert stored(table) == before


PARTITIONED: list[tuple[Transform[Any, Any], Kind, int]] = [
    (DayTransform(), TIMESTAMPTZ, YEAR_10000_US // DAY_US),
    (HourTransform(), TIMESTAMP, YEAR_10000_US // DAY_US * 24),
    (MonthTransform(), TIMESTAMPTZ, 8030 * 12),
    (YearTransform(), DATE, 8030),
    (DayTransform(), DATE, YEAR_10000_US // DAY_US),
    (IdentityTransform(), TIMESTAMP, YEAR_10000_US),
    (IdentityTransform(), DATE, YEAR_10000_US // DAY_US),
]


@pytest.mark.parametrize("layout", ["plain", "object-storage"])
@pytest.mark.parametrize(
    ("transform", "kind", "value"), PARTITIONED, ids=[f"{t}-{k[0]}" for t, k, _ in PARTITIONED]
)
def test_as_partitions(
    catalog: Catalog, transform: Transform[Any, Any], kind: Kind, value: int, layout: str
) -> None:
    schema = Schema(NestedField(1, "t", kind[0]), NestedField(2, "id", LongType()))
    spec = PartitionSpec(PartitionField(1, 1000, transform, "part"))
    properties = {
        **PROPERTIES,
        "write.object-storage.enabled": str(layout != "plain").lower(),
        "write.summary.partition-limit": "10",
    }
    table = new_table(catalog, schema=schema, spec=spec, properties=properties)
    time = YEAR_10000_US if kind is not DATE else YEAR_10000_US // DAY_US
    for n in range(3):
        columns = {"t": numbers([time], kind), "id": pa.array([n], pa.int64())}
        add_file(table, columns, Record(value))
    before = stored(table)
    result = compact(dataset_of(table))
    assert result.committed
    assert not result.failures
    (file,) = files_of(table)
    assert file.partition[0] == value
    assert stored(table) == before
