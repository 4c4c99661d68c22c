"""Values of format version 3: defaults of columns that a file lacks, nanoseconds, and types that are never
stored or never rewritten."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    GeographyType,
    GeometryType,
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
    UnknownType,
)

from lithify.datasets.iceberg.compaction.support_checks import Refusals
from lithify.datasets.iceberg.format.columns import stored_schema
from lithify.datasets.iceberg.format.footers import read_footer
from lithify.datasets.iceberg.format.time_column import NO_TIME, bound_us, times_us
from lithify.datasets.iceberg.io.prefetch import DataPath, PrefetchExtent
from lithify.datasets.iceberg.model import NewFile, TimeRange
from lithify.planning.timeline.model import Interval
from tests.datasets.iceberg.java_table import data_file, source
from tests.datasets.iceberg.tables import SCHEMA, new_table
from tests.datasets.iceberg.test_row_ids import IO, rewritten, stored, task_of


def metadata_of(catalog: Catalog, schema: Schema) -> TableMetadata:
    """The metadata of a table with this schema, which PyIceberg creates only for older versions."""
    table = new_table(catalog)
    return table.metadata.model_copy(
        update={"schemas": [schema.model_copy(update={"schema_id": 0})], "current_schema_id": 0}
    )


def a_file(path: Path, table: pa.Table) -> DataFile:
    pq.write_table(table, path, version="2.6")
    return data_file(str(path), table.num_rows, path.stat().st_size)


def with_id(name: str, kind: pa.DataType, field_id: int) -> pa.Field:
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(field_id)})


def rows_of(outputs: list[NewFile]) -> list[dict[str, Any]]:
    return [row for output in outputs for row in stored(output.path).to_pylist()]


# Defaults

DEFAULTS: dict[str, tuple[str, Any, Any]] = {
    "boolean": ("boolean", True, True),
    "int": ("int", -5, -5),
    "long": ("long", 1 << 40, 1 << 40),
    "float": ("float", 1.5, 1.5),
    "double": ("double", -2.5, -2.5),
    "decimal": ("decimal(9,2)", "14.20", Decimal("14.20")),
    "date": ("date", "2024-01-02", date(2024, 1, 2)),
    "time": ("time", "10:00:00.000001", time(10, 0, 0, 1)),
    "timestamp": ("timestamp", "2024-01-02T03:04:05.000006", datetime(2024, 1, 2, 3, 4, 5, 6)),
    "timestamptz": (
        "timestamptz",
        "2024-01-02T03:04:05.000006+00:00",
        datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
    ),
    "timestamp_ns": ("timestamp_ns", "1969-12-31T23:59:59.999999999", -1),
    "timestamptz_ns": ("timestamptz_ns", "2024-01-02T03:04:05.000006007+00:00", 1_704_164_645_000_006_007),
    "string": ("string", "ä", "ä"),
    "uuid": (
        "uuid",
        "f79c3e09-677c-4bbd-a479-3f349cb785e7",
        UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7").bytes,
    ),
    "fixed": ("fixed[2]", "0a0b", b"\x0a\x0b"),
    "binary": ("binary", "0a0b", b"\x0a\x0b"),
}


def parsed(fields: list[dict[str, Any]]) -> list[NestedField]:
    """Fields as metadata have them."""
    text = json.dumps({"type": "struct", "schema-id": 0, "fields": fields})
    return list(Schema.model_validate_json(text).fields)


@pytest.mark.parametrize(("name", "repeating"), [*((name, ()) for name in DEFAULTS), ("string", (5,))])
def test_the_default_of_a_column_that_a_file_lacks_is_written_out(
    catalog: Catalog, tmp_path: Path, name: str, repeating: tuple[int, ...]
) -> None:
    """At the top and inside a struct; another file has values, null among them. A write default is none."""
    kind, default, value = DEFAULTS[name]
    added = {"name": "added", "type": kind, "required": False, "initial-default": default}
    parts = [{**added, "id": 8}, {"id": 7, "name": "x", "type": "long", "required": False}]
    fields = parsed(
        [
            {**added, "id": 5},
            {"id": 6, "name": "s", "type": {"type": "struct", "fields": parts}, "required": False},
            {"id": 9, "name": "later", "type": kind, "required": False, "write-default": default},
            {**added, "id": 10, "name": "must", "required": True},
        ]
    )
    metadata = metadata_of(catalog, Schema(*SCHEMA.fields, *fields))
    old = pa.schema([with_id("id", pa.int64(), 2), with_id("s", pa.struct([with_id("x", pa.int64(), 7)]), 6)])
    file = a_file(tmp_path / "old.parquet", pa.table([[1, 2], [{"x": 3}, None]], schema=old))
    plain = schema_to_pyarrow(fields[0].field_type)
    new = pa.schema([with_id("id", pa.int64(), 2), with_id("added", plain, 5), with_id("must", plain, 10)])
    values = [pa.array([3]), pa.nulls(1, plain), pa.array([value], plain)]
    other = a_file(tmp_path / "new.parquet", pa.table(values, schema=new))
    task = task_of(metadata, [source(0, file, None), source(1, other, None)], repeating=repeating)
    rows = {row["id"]: row for row in rows_of(rewritten(task))}
    plainly = {n: (bytes_of(row["added"]), bytes_of(row["must"])) for n, row in rows.items()}
    assert plainly == {1: (value, value), 2: (value, value), 3: (None, value)}
    assert bytes_of(rows[1]["s"]["added"]) == value
    assert (rows[1]["s"]["x"], rows[2]["s"], rows[3]["s"]) == (3, None, None)
    assert all(row["later"] is None for row in rows.values())


def bytes_of(value: Any) -> Any:
    if hasattr(value, "nanosecond"):  # of pandas
        return value.value
    return value.bytes if isinstance(value, UUID) else value


@pytest.mark.parametrize("kind", ["timestamp_ns", "timestamptz_ns"])
@given(nanos=st.integers(-(1 << 63), (1 << 63) - 1))
def test_defaults_of_nanoseconds_are_read_as_they_are_written(kind: str, nanos: int) -> None:
    field = {"id": 5, "name": "n", "type": kind, "required": False}
    zone = "+00:00" if "tz" in kind else ""
    seconds, fraction = divmod(nanos, 1_000_000_000)
    text = f"{datetime(1970, 1, 1) + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%S}.{fraction:09d}{zone}"
    (found,) = parsed([{**field, "initial-default": text}])
    assert found.initial_default == nanos
    assert json.loads(found.model_dump_json())["initial-default"] == text
    for wrong in ("2024", "x", f"{text}+01:00", "2024-01-02T03:04:05.0000000001"):
        with pytest.raises(ValueError, match="is no timestamp in"):
            parsed([{**field, "initial-default": wrong}])


@pytest.mark.parametrize("value", [7, None])
def test_the_partition_has_the_value_before_the_default(
    catalog: Catalog, tmp_path: Path, value: int | None
) -> None:
    (added,) = parsed([{"id": 5, "name": "n", "type": "int", "required": False, "initial-default": 3}])
    spec = PartitionSpec(PartitionField(5, 1000, IdentityTransform(), "n"), spec_id=0)
    metadata = metadata_of(catalog, Schema(*SCHEMA.fields, added)).model_copy(
        update={"partition_specs": [spec]}
    )
    file = a_file(tmp_path / "x.parquet", pa.table([[1]], schema=pa.schema([with_id("id", pa.int64(), 2)])))
    file[3] = Record(value)
    assert file.partition == Record(value)
    assert [row["n"] for row in rows_of(rewritten(task_of(metadata, [source(0, file, None)])))] == [value]


def test_a_time_that_a_file_lacks_is_the_default(tmp_path: Path) -> None:
    (column,) = parsed(
        [{"id": 1, "name": "t", "type": "date", "required": False, "initial-default": "1970-01-03"}]
    )
    schema = Schema(column, NestedField(2, "id", LongType()))
    file = a_file(tmp_path / "x.parquet", pa.table([[1]], schema=pa.schema([with_id("id", pa.int64(), 2)])))
    footer = read_footer(IO, DataPath.of(file, PrefetchExtent.FOOTER), schema, 1, None)
    two_days = 2 * 86_400_000_000
    assert footer.times == Interval(two_days, two_days + 1)


# Nanoseconds

NANOS = [-1, None, 1_735_689_600_000_000_999, np.iinfo(np.int64).min, 0, np.iinfo(np.int64).max]


@pytest.mark.parametrize(("kind", "zone"), [(TimestampNanoType(), None), (TimestamptzNanoType(), "UTC")])
def test_nanoseconds_are_kept_and_sorted_by(
    catalog: Catalog, tmp_path: Path, kind: IcebergType, zone: str | None
) -> None:
    schema = Schema(NestedField(1, "event_time", kind), NestedField(2, "id", LongType()))
    metadata = metadata_of(catalog, schema)
    stored_as = pa.schema([with_id("event_time", pa.timestamp("ns", zone), 1), with_id("id", pa.int64(), 2)])
    times = pa.array(NANOS, pa.int64()).cast(stored_as.field(0).type)
    file = a_file(tmp_path / "x.parquet", pa.table([times, list(range(6))], schema=stored_as))
    (output,) = rewritten(task_of(metadata, [source(0, file, None)]))
    table = pq.ParquetFile(output.path.removeprefix("file://")).read()
    assert table.schema.field("event_time").type == stored_as.field(0).type
    assert table["event_time"].cast(pa.int64()).to_pylist() == sorted(
        NANOS, key=lambda n: (n is not None, n or 0)
    )
    bounds = [int.from_bytes(b[1], "little", signed=True) for b in (output.lower_bounds, output.upper_bounds)]
    assert bounds == [np.iinfo(np.int64).min, np.iinfo(np.int64).max]
    half = TimeRange(0, 1_735_689_600_000_000)
    cut = task_of(metadata, [replace(source(0, file, None), is_inside=False)], range=half)
    assert [row["id"] for row in rows_of(rewritten(cut))] == [4]


def test_nanoseconds_are_times_rounded_down() -> None:
    found = times_us(pa.array(NANOS, pa.int64()).cast(pa.timestamp("ns")))
    least, most = (int(n) // 1000 for n in (np.iinfo(np.int64).min, np.iinfo(np.int64).max))
    assert found.tolist() == [-1, NO_TIME, 1_735_689_600_000_000, least, 0, most]
    bounds = [(-1).to_bytes(8, "little", signed=True), (1999).to_bytes(8, "little"), b"\1\0\0\0", None]
    assert [bound_us(TimestampNanoType(), bound) for bound in bounds] == [-1, 1, None, None]
    assert bound_us(TimestampType(), bounds[1]) == 1999


# Types that are never stored, or never rewritten


def test_columns_of_the_type_unknown_are_never_stored(catalog: Catalog, tmp_path: Path) -> None:
    inside = StructType(NestedField(7, "x", LongType()), NestedField(8, "u", UnknownType()))
    fields = (
        NestedField(5, "nothing", UnknownType()),
        NestedField(6, "s", inside),
        NestedField(9, "l", ListType(10, inside_of(11), element_required=False)),
    )
    metadata = metadata_of(catalog, Schema(*SCHEMA.fields, *fields))
    old = pa.schema([with_id("id", pa.int64(), 2), with_id("s", pa.struct([with_id("x", pa.int64(), 7)]), 6)])
    file = a_file(tmp_path / "x.parquet", pa.table([[1], [{"x": 3}]], schema=old))
    (output,) = rewritten(task_of(metadata, [source(0, file, 5)]))
    found = stored(output.path)
    assert found.column_names == [
        *(f.name for f in SCHEMA.fields),
        "s",
        "l",
        "_row_id",
        "_last_updated_sequence_number",
    ]
    assert found["s"].to_pylist() == [{"x": 3}]
    assert 5 not in output.value_counts
    assert stored_schema(SCHEMA) is SCHEMA


def inside_of(first: int) -> StructType:
    return StructType(NestedField(first, "y", StringType()), NestedField(first + 1, "v", UnknownType()))


OPAQUE = {
    "geometry": (GeometryType(), "have values of the type geometry"),
    "geography": (GeographyType(), "have values of the type geography"),
    "inside": (StructType(NestedField(9, "g", GeometryType())), "have values of the type geometry"),
    "list": (ListType(9, UnknownType(), element_required=False), "of the type unknown"),
    "map": (MapType(9, IntegerType(), 10, UnknownType(), value_required=False), "of the type unknown"),
    "struct": (StructType(NestedField(9, "g", UnknownType())), "of the type unknown"),
}


@pytest.mark.parametrize("what", OPAQUE)
def test_files_of_other_types_are_left_alone_with_a_reason(catalog: Catalog, what: str) -> None:
    kind, reason = OPAQUE[what]
    metadata = metadata_of(catalog, Schema(*SCHEMA.fields, NestedField(5, "g", kind)))
    why = Refusals(metadata, {}).why_left_alone(data_file("x", 1, 1), None, ())
    assert why is not None
    assert reason in why
