"""Sort orders on columns of every type: outputs are in the order that the specification gives the type."""

from __future__ import annotations

import itertools
import math
import random
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import BucketTransform, HourTransform, IdentityTransform, TruncateTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from tests.datasets.iceberg.running import Steps, compact, dataset_of
from tests.datasets.iceberg.tables import (
    SCHEMA,
    Row,
    append,
    as_arrow,
    check,
    files_of,
    fresh,
    make_rows,
    new_table,
)

VALUES = 60
Maker = Callable[[random.Random], Any]


def _bytes(count: int) -> Maker:
    return lambda rng: bytes(rng.choice((0, 1, 0x7F, 0x80, 0xFF)) for _ in range(count))


def _float(rng: random.Random) -> float:
    return rng.choice((math.nan, math.inf, -math.inf, 0.0, 1.5, -2.5, 1e300, rng.random()))


CASES: list[tuple[PrimitiveType, pa.DataType, Maker]] = [
    (BooleanType(), pa.bool_(), lambda rng: rng.random() < 0.5),
    (IntegerType(), pa.int32(), lambda rng: rng.randrange(-(1 << 31), 1 << 31)),
    (LongType(), pa.int64(), lambda rng: rng.randrange(-(1 << 63), 1 << 63)),
    (FloatType(), pa.float32(), lambda rng: min(_float(rng), 1e30)),
    (DoubleType(), pa.float64(), _float),
    (DateType(), pa.date32(), lambda rng: rng.randrange(-700_000, 2_900_000)),
    (TimeType(), pa.time64("us"), lambda rng: rng.randrange(86_400_000_000)),
    (TimestampType(), pa.timestamp("us"), lambda rng: rng.randrange(-(1 << 55), 1 << 55)),
    (TimestamptzType(), pa.timestamp("us", "UTC"), lambda rng: rng.randrange(-(1 << 55), 1 << 55)),
    (StringType(), pa.string(), lambda rng: "".join(rng.choice("aZé￿😀") for _ in range(3))),
    (UUIDType(), pa.uuid(), lambda rng: uuid.UUID(bytes=_bytes(16)(rng)).bytes),
    (FixedType(3), pa.binary(3), _bytes(3)),
    (BinaryType(), pa.binary(), lambda rng: _bytes(rng.randrange(4))(rng)),
    (DecimalType(9, 2), pa.decimal128(9, 2), lambda rng: Decimal(rng.randrange(-(10**9), 10**9)) / 100),
    (DecimalType(18, 2), pa.decimal128(18, 2), lambda rng: Decimal(rng.randrange(-(10**9), 10**9)) / 100),
    (DecimalType(38, 2), pa.decimal128(38, 2), lambda rng: Decimal(rng.randrange(-(10**9), 10**9)) / 100),
]


def plain(column: pa.ChunkedArray) -> list[Any]:
    """Values that Python orders as the specification does, but for NaN; times as numbers."""
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        column = column.cast(kind.storage_type)
    elif pa.types.is_temporal(kind):
        column = column.cast(pa.int32() if pa.types.is_date(kind) else pa.int64())
    found: list[Any] = column.to_pylist()
    return found


def rank(value: Any, *, is_descending: bool, nulls_last: bool) -> tuple[int, Any]:
    """NaN is greater than all others."""
    if value is None:
        return (2 if nulls_last else -2), 0
    if isinstance(value, float) and math.isnan(value):
        return (-1 if is_descending else 1), 0
    return 0, value


@pytest.mark.parametrize(("kind", "arrow", "make"), CASES, ids=[str(kind) for kind, _, _ in CASES])
@pytest.mark.parametrize(("direction", "nulls"), [("asc", "nulls-first"), ("desc", "nulls-last")])
def test_every_type(
    catalog: Catalog, kind: PrimitiveType, arrow: pa.DataType, make: Maker, direction: str, nulls: str
) -> None:
    schema = Schema(*SCHEMA.fields, NestedField(4, "value", kind))
    order = SortOrder(
        SortField(
            source_id=4,
            transform=IdentityTransform(),
            direction=SortDirection(direction),
            null_order=NullOrder(nulls),
        )
    )
    table = new_table(catalog, schema=schema, order=order, properties={"lithify.time-column": "event_time"})
    rng = random.Random(5)
    before: list[Any] = []
    for _ in range(2):
        values = [make(rng) if rng.random() < 0.9 else None for _ in range(VALUES)]
        column = _array(values, arrow)
        fresh(table).append(as_arrow(make_rows(VALUES)).append_column("value", column))
        before += plain(pa.chunked_array([column]))
    assert compact(dataset_of(table)).committed
    (file,) = files_of(table)
    found = plain(pq.read_table(file.file_path.removeprefix("file://")).column("value"))
    is_descending, nulls_last = direction == "desc", nulls == "nulls-last"
    ranks = [rank(value, is_descending=is_descending, nulls_last=nulls_last) for value in found]
    for one, two in itertools.pairwise(ranks):
        assert (one >= two if is_descending else one <= two) if one[0] == two[0] else one[0] < two[0]
    assert sorted(map(repr, found)) == sorted(map(repr, before))
    assert file.sort_order_id == 1


def _array(values: list[Any], arrow: pa.DataType) -> pa.Array:
    if isinstance(arrow, pa.BaseExtensionType):
        return pa.array(values, arrow.storage_type).cast(arrow)
    if pa.types.is_temporal(arrow):
        return pa.array(values, pa.int32() if pa.types.is_date(arrow) else pa.int64()).view(arrow)
    return pa.array(values, arrow)


def test_a_column_of_the_order_that_is_dropped_meanwhile(catalog: Catalog) -> None:
    """The rows are sorted by time, and their file claims no order."""
    schema = Schema(*SCHEMA.fields, NestedField(4, "value", LongType()))
    order = SortOrder(SortField(source_id=4, transform=IdentityTransform()))
    table = new_table(catalog, schema=schema, order=order, properties={"lithify.time-column": "event_time"})
    rows = make_rows(10) + make_rows(10)
    for part in (rows[:10], rows[10:]):
        fresh(table).append(as_arrow(part).append_column("value", pa.array(range(10, 0, -1), pa.int64())))
    steps = Steps(dataset_of(table))
    steps.schedule()
    with fresh(table).update_sort_order() as update:
        update.asc("event_time", IdentityTransform())
    with fresh(table).update_schema() as change:
        change.delete_column("value")
    steps.execute()
    assert steps.commit().committed
    check(table, rows)
    (file,) = files_of(table)
    assert file.sort_order_id is None
    times = pq.read_table(Path(file.file_path.removeprefix("file://"))).column("event_time").to_pylist()
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("fields", "is_followed"),
    [
        ([SortField(source_id=1, transform=HourTransform())], True),
        ([SortField(source_id=3, transform=TruncateTransform(1))], True),
        ([SortField(3, IdentityTransform()), SortField(2, TruncateTransform(10), SortDirection.DESC)], True),
        ([SortField(3, TruncateTransform(1)), SortField(2, IdentityTransform())], False),
        ([SortField(source_id=2, transform=BucketTransform(4))], False),
    ],
    ids=["hour", "truncate", "last", "not last", "bucket"],
)
@pytest.mark.parametrize("axis", ["time", "none"])
def test_transforms(catalog: Catalog, fields: list[SortField], is_followed: bool, axis: str) -> None:
    """One that keeps the order of its column is met by sorting by the column; another refuses nothing."""
    table = new_table(catalog, order=SortOrder(*fields), properties={"lithify.axis": axis})
    rows: list[Row] = []
    for device in "cab":
        rows += append(table, make_rows(30, device=f"{device}{len(rows) % 7}"))
    says = [note for note in dataset_of(table).snapshot().notes if "sort order is not followed" in note]
    assert bool(says) != is_followed
    compact(dataset_of(table))
    (file,) = files_of(table)
    assert file.sort_order_id == (fresh(table).metadata.default_sort_order_id if is_followed else None)
    if is_followed:
        columns = pq.read_table(file.file_path.removeprefix("file://")).to_pylist()
        keys = [
            tuple(_key(field, row[("event_time", "id", "device")[field.source_id - 1]]) for field in fields)
            for row in columns
        ]
        assert keys == sorted(keys)
    check(table, rows)


def _key(field: SortField, value: Any) -> Any:
    """The result of a transform by its definition, negated where it descends."""
    match field.transform:
        case HourTransform():
            value = value.replace(minute=0, second=0, microsecond=0)
        case TruncateTransform() if isinstance(value, str):
            value = value[: field.transform.width]
        case TruncateTransform():
            value -= value % field.transform.width
    return -value if field.direction is SortDirection.DESC else value
