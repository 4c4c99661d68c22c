"""Random shapes of Iceberg tables, rows for them, and values in a form that is equal for all readers.

Rows are JSON as `tests/judge/IcebergTables.java` takes them: objects by names of columns.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    Transform,
    TruncateTransform,
)
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    UUIDType,
)

Row = dict[str, Any]

BASE = datetime(2025, 1, 1, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NANOS = (TimestampNanoType, TimestamptzNanoType)
TIMES = (TimestampType, TimestamptzType, *NANOS)
TENANTS = ("a", "b", "Zürich/1")
FLOATS = ("NaN", "-Infinity", "Infinity", "-0.0", "0.0", "1.5", "-7.25", "3.75")
PROPERTIES = {
    "lithify.branch": "main",
    "lithify.min-saved-files": "1",
    "lithify.min-new-percent": "0",
    "lithify.max-deleted-percent": "1",
    "commit.manifest.target-size-bytes": "20000",
    "write.distribution-mode": "none",
}
"""Lithify does whatever there is to do. Names that no version of Lithify knows are refused."""


@dataclass(frozen=True)
class Shape:
    """The shape of a new table."""

    version: int
    upgrades: tuple[int, ...]
    """Versions that it gets later."""
    by_sql: bool
    """Whether Lithify and PyIceberg reach it through a catalog in SQLite, otherwise through REST."""
    schema: Schema
    spec: PartitionSpec
    order: SortOrder
    properties: dict[str, str] = field(default_factory=dict)

    @property
    def says(self) -> dict[str, str]:
        """The shape by its aspects, for the coverage."""
        time = self.schema.find_type("at") if "at" in self.schema.column_names else None
        names = [str(f.transform).partition("[")[0] for f in self.spec.fields]
        orders = [str(f.transform).partition("[")[0] for f in self.order.fields]
        return {
            "version": ">".join(map(str, (self.version, *self.upgrades))),
            "catalog": "SQL" if self.by_sql else "REST",
            "time": "none" if time is None else str(time),
            "spec": " ".join(names) or "none",
            "order": " ".join(orders) or "none",
        }


def draw(rng: random.Random) -> Shape:
    """A shape."""
    version = rng.choice((1, 2, 2, 2, 3, 3, 3))
    upgrades = rng.choice(((), (), (2,), (3,), (2, 3))) if version == 1 else ()
    if version == 2 and rng.random() < 0.3:
        upgrades = (3,)
    schema = _schema(rng, version)
    has_time = "at" in schema.column_names
    mode = "copy-on-write" if version == 1 else rng.choice(("merge-on-read", "copy-on-write"))
    properties = {"format-version": str(version), **PROPERTIES}
    properties |= {f"write.{what}.mode": mode for what in ("delete", "update", "merge")}
    if has_time and rng.random() < 0.5:
        properties["lithify.time-column"] = "at"
    properties |= rng.choice(
        ({}, {}, {"write.metadata.metrics.default": "full"}, {"write.metadata.metrics.default": "none"})
    )
    by_sql = rng.random() < 0.5
    return Shape(version, upgrades, by_sql, schema, _spec(rng, schema), _order(rng, schema), properties)


def _schema(rng: random.Random, version: int) -> Schema:
    ids = iter(range(100, 200))
    times: tuple[IcebergType | None, ...] = (TimestamptzType(), TimestampType(), TimestamptzType(), None)
    times += (TimestampNanoType(), TimestamptzNanoType()) if version == 3 else (DateType(),)
    time = rng.choice(times)
    columns: list[tuple[str, IcebergType]] = [("id", LongType()), ("tenant", StringType())]
    if time is not None:
        columns.insert(rng.randrange(3), ("at", time))
    pool: list[tuple[str, Callable[[], IcebergType]]] = [
        ("n", IntegerType),
        ("text", StringType),
        ("x", DoubleType),
        ("f", FloatType),
        ("d", lambda: DecimalType(9, 2)),
        ("big", lambda: DecimalType(30, 4)),
        ("u", UUIDType),
        ("flag", BooleanType),
        ("b", BinaryType),
        ("s", lambda: _struct(ids)),
        ("l", lambda: ListType(next(ids), rng.choice((DoubleType, StringType))(), element_required=False)),
        ("ls", lambda: ListType(next(ids), _struct(ids), element_required=False)),
        ("m", lambda: MapType(next(ids), StringType(), next(ids), IntegerType(), value_required=False)),
    ]
    columns += [(name, make()) for name, make in rng.sample(pool, rng.randint(1, 5))]
    fields = [NestedField(n, name, kind, required=name == "id") for n, (name, kind) in enumerate(columns, 1)]
    return Schema(*fields)


def _struct(ids: Any) -> StructType:
    inner = StructType(NestedField(next(ids), "z", StringType(), required=False))
    return StructType(
        NestedField(next(ids), "a", IntegerType(), required=False),
        NestedField(next(ids), "y", FloatType(), required=False),
        NestedField(next(ids), "t", inner, required=False),
    )


def _spec(rng: random.Random, schema: Schema) -> PartitionSpec:
    choices: list[Sequence[tuple[str, Transform[Any, Any]]]] = [
        (),
        (),
        [("tenant", IdentityTransform())],
        [("id", BucketTransform(2))],
        [("tenant", TruncateTransform(1))],
    ]
    # Java's writers without Spark cannot partition by nanoseconds.
    if "at" in schema.column_names and not isinstance(schema.find_type("at"), NANOS):
        of_day: Transform[Any, Any] = DayTransform()
        choices += [[("at", of_day)], [("at", of_day), ("tenant", IdentityTransform())]]
        if isinstance(schema.find_type("at"), TIMES):
            choices.append([("at", HourTransform())])
    fields = [
        PartitionField(schema.find_field(name).field_id, 1000 + n, transform, f"p{n}")
        for n, (name, transform) in enumerate(rng.choice(choices))
    ]
    return PartitionSpec(*fields) if fields else UNPARTITIONED_PARTITION_SPEC


def _order(rng: random.Random, schema: Schema) -> SortOrder:
    choices: list[Sequence[tuple[str, Transform[Any, Any]]]] = [
        (),
        (),
        [("id", IdentityTransform())],
        [("tenant", IdentityTransform()), ("id", IdentityTransform())],
        [("id", BucketTransform(4))],
        [("tenant", TruncateTransform(1))],
    ]
    if "at" in schema.column_names:
        choices += [[("at", IdentityTransform())], [("at", DayTransform()), ("id", IdentityTransform())]]
    if "x" in schema.column_names:
        choices.append([("x", IdentityTransform())])
    direction = rng.choice((SortDirection.ASC, SortDirection.DESC))
    nulls = rng.choice((NullOrder.NULLS_FIRST, NullOrder.NULLS_LAST))
    fields = [
        SortField(schema.find_field(name).field_id, transform, direction, nulls)
        for name, transform in rng.choice(choices)
    ]
    return SortOrder(*fields) if fields else UNSORTED_SORT_ORDER


# Rows


def row(rng: random.Random, schema: Schema, row_id: int) -> Row:
    """A row. Times are of three days, and rarely null."""
    made = {f.name: value(rng, f.field_type, f.name) for f in schema.fields}
    return {**made, "id": row_id}


def value(rng: random.Random, kind: IcebergType, name: str = "") -> Any:
    """A value of a type; sometimes null."""
    if rng.random() < (0.01 if name == "at" else 0.15):
        return None
    if name == "tenant":
        return rng.choice(TENANTS)
    if isinstance(kind, StructType):
        return {f.name: value(rng, f.field_type) for f in kind.fields}
    if isinstance(kind, ListType):
        return [value(rng, kind.element_type) for _ in range(rng.randrange(3))]
    if isinstance(kind, MapType):
        return [[key, value(rng, kind.value_type)] for key in rng.sample(("k", "l", "ü"), rng.randrange(3))]
    return _SIMPLE[type(kind)](rng, kind)


def _moment(rng: random.Random, kind: IcebergType) -> str:
    at = BASE + timedelta(days=rng.randrange(3), seconds=rng.randrange(86400), microseconds=rng.randrange(3))
    nanos = f"{rng.randrange(1000):03}" if isinstance(kind, NANOS) else ""
    zone = "Z" if isinstance(kind, TimestamptzType | TimestamptzNanoType) else ""
    return f"{at:%Y-%m-%dT%H:%M:%S.%f}{nanos}{zone}"


_SIMPLE: dict[type[IcebergType], Callable[[random.Random, Any], Any]] = {
    BooleanType: lambda rng, _: rng.random() < 0.5,
    IntegerType: lambda rng, _: rng.choice((0, -1, rng.randrange(100), 2**31 - 1)),
    LongType: lambda rng, _: rng.choice((0, rng.randrange(100), -(2**63))),
    FloatType: lambda rng, _: rng.choice(FLOATS),
    DoubleType: lambda rng, _: rng.choice(FLOATS),
    DecimalType: lambda rng, kind: f"{Decimal(rng.randrange(-99999, 99999)).scaleb(-kind.scale):f}",
    StringType: lambda rng, _: rng.choice(("", "x", "Zürich", "日本 1", "a" * 30)),
    UUIDType: lambda rng, _: str(UUID(int=rng.getrandbits(128))),
    BinaryType: lambda rng, _: rng.randbytes(rng.randrange(4)).hex(),
    DateType: lambda rng, _: str((BASE + timedelta(days=rng.randrange(3))).date()),
    **dict.fromkeys(TIMES, _moment),
}


def as_arrow(schema: Schema, rows: Sequence[Row]) -> pa.Table:
    """The rows as PyIceberg takes them. Not for nanoseconds."""
    values = [{f.name: _in_python(f.field_type, row[f.name]) for f in schema.fields} for row in rows]
    return pa.Table.from_pylist(values, schema_to_pyarrow(schema))


def _in_python(kind: IcebergType, given: Any) -> Any:
    if given is None:
        return None
    if isinstance(kind, StructType):
        return {f.name: _in_python(f.field_type, given[f.name]) for f in kind.fields}
    if isinstance(kind, ListType):
        return [_in_python(kind.element_type, item) for item in given]
    if isinstance(kind, MapType):
        return [(key, _in_python(kind.value_type, item)) for key, item in given]
    return _IN_PYTHON.get(type(kind), lambda same: same)(given)


_IN_PYTHON: dict[type[IcebergType], Callable[[Any], Any]] = {
    FloatType: float,
    DoubleType: float,
    DecimalType: Decimal,
    UUIDType: lambda text: UUID(text).bytes,
    BinaryType: bytes.fromhex,
    DateType: date.fromisoformat,
    TimestampType: datetime.fromisoformat,
    TimestamptzType: datetime.fromisoformat,
}


# Values as they are compared


def canonical_rows(fields: Sequence[NestedField], rows: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Rows in a form that can be hashed and is equal for all readers. Values beyond the fields stay."""
    kinds, extra = [f.field_type for f in fields], len(fields)
    return [(*(canonical(k, v) for k, v in zip(kinds, one, strict=False)), *one[extra:]) for one in rows]


def canonical(kind: IcebergType, found: Any) -> Any:
    """NaN equals NaN, and the zeros differ."""
    if found is None:
        return None
    if isinstance(kind, StructType):
        return tuple(canonical(f.field_type, found.get(f.name)) for f in kind.fields)
    if isinstance(kind, ListType):
        return tuple(canonical(kind.element_type, item) for item in found)
    if isinstance(kind, MapType):
        pairs = found.items() if isinstance(found, Mapping) else found
        return tuple(
            sorted((canonical(kind.key_type, key), canonical(kind.value_type, item)) for key, item in pairs)
        )
    if isinstance(kind, TIMES):
        return _instant(kind, found)
    return _CANONICAL.get(type(kind), lambda same: same)(found)


def _instant(kind: IcebergType, found: Any) -> Any:
    """Microseconds since 1970, or nanoseconds."""
    if not isinstance(found, datetime):
        return found
    # Java's reader of Spark, and DuckDB, know a zone where there is none, and the other way round.
    at = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    micros = (at - EPOCH) // timedelta(microseconds=1)
    return micros * 1000 if isinstance(kind, NANOS) else micros


_CANONICAL: dict[type[IcebergType], Callable[[Any], Any]] = {
    FloatType: lambda found: repr(float(found)),
    DoubleType: lambda found: repr(float(found)),
    UUIDType: lambda found: str(UUID(bytes=found)) if isinstance(found, bytes) else str(found),
    BinaryType: bytes,
    DateType: lambda found: found.toordinal(),
}


def rows_of_arrow(table: pa.Table) -> list[tuple[Any, ...]]:
    """Rows of Python values; nanoseconds, which Python's own times do not have, as numbers."""
    for n, column in enumerate(table.schema):
        if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
            table = table.set_column(n, column.name, table.column(n).cast(pa.int64()))
    columns = [column.to_pylist() for column in table.columns]
    return list(zip(*columns, strict=True)) if columns else []
