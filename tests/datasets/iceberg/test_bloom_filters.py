"""Bloom filters of outputs, as the table's properties ask for them, read by Java Iceberg and DuckDB."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import date, datetime, time
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, LongType, NestedField, StringType, StructType

from lithify.base.errors import Refused
from lithify.datasets.iceberg.format.bloom_filters import bloom_filters
from tests.datasets.iceberg.running import compact, dataset_of
from tests.datasets.iceberg.tables import append, fresh, make_rows, new_table
from tests.datasets.iceberg.test_output_metrics import VALUES, compacted, table_of
from tests.judge.iceberg_java import IcebergJava

BLOOM = "write.parquet.bloom-filter-"
ENABLED = f"{BLOOM}enabled.column."
FLAT = {
    name: column
    for name, column in VALUES.items()
    if name not in ("a_boolean", "a_struct", "a_list", "a_map", "nothing")
}
ABSENT: dict[str, Any] = {
    "an_int": 77,
    "a_long": 77,
    "a_small_decimal": "7.70",
    "a_decimal": "77",
    "a_large_decimal": "7.7000000000",
    "a_date": "2001-01-01",
    "a_time": "11:11:11",
    "a_timestamp": "2001-01-01T00:00:00",
    "a_timestamptz": "2001-01-01T00:00:00+00:00",
    "a_string": "absent",
    "a_binary": "abcd",
    "a_fixed": "ab" * 20,
    "a_uuid": "00112233-4455-6677-8899-aabbccddeeff",
}


def path_of(location: str) -> str:
    return location.removeprefix("file://")


def is_equal(name: str, value: Any) -> Mapping[str, Any]:
    return {"type": "eq", "term": name, "value": value}


def as_json(name: str, value: Any) -> Any:
    """A value as Iceberg writes it in JSON."""
    if name == "a_uuid":
        return str(UUID(bytes=value))
    if name == "a_large_decimal":
        return f"{value:.10f}"
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    return value if isinstance(value, int | str) else str(value)


def test_filters_of_every_type_find_what_is_there(catalog: Catalog, java: IcebergJava) -> None:
    table = table_of(catalog, FLAT, {f"{ENABLED}{name}": "TRUE" for name in FLAT})
    file = compacted(table)
    location = fresh(table).metadata_location
    for name, (_, values) in FLAT.items():
        for value in values:
            if value is not None:
                where = is_equal(name, as_json(name, value))
                assert java.allowed_by_blooms(location, file.file_path, where) == [True], (name, value)
        absent = is_equal(name, ABSENT[name])
        assert java.allowed_by_blooms(location, file.file_path, absent) == [False], name


def blooms(path: str) -> dict[str, int]:
    """Bytes of the filters of the first row group, by column."""
    group = pq.ParquetFile(path_of(path)).metadata.row_group(0)
    columns = (group.column(n) for n in range(group.num_columns))
    return {
        column.path_in_schema: column.bloom_filter_length
        for column in columns
        if column.bloom_filter_length is not None
    }


def test_nested_and_renamed_columns(catalog: Catalog, java: IcebergJava) -> None:
    """Names are the table's; files may have others. Names of no column ask for nothing, as in Java."""
    columns = {name: VALUES[name] for name in ("a_struct", "a_list", "a_map")}
    columns["a b"] = (StringType(), ["1", "2", "3", "4"])
    wanted = ("a_struct.t.s", "a_list.element", "a_map.key", "a_map.value", "a b", "a_struct", "none")
    table = table_of(catalog, columns, {f"{ENABLED}{name}": "true" for name in wanted})
    file = compacted(table)
    expected = {"a_struct.t.s", "a_list.list.element", "a_map.key_value.key", "a_map.key_value.value"}
    assert blooms(file.file_path).keys() == {*expected, "a_x20b"}
    location = fresh(table).metadata_location
    found = [
        java.allowed_by_blooms(location, file.file_path, is_equal("a_struct.t.s", text))
        for text in ("y" * 30, "absent")
    ]
    assert found == [[True], [False]]


def test_sizes_are_those_of_the_rows_within_the_limit(catalog: Catalog) -> None:
    """Java's filters have the greatest size always; ours have at most that."""
    sizes = {}
    for limit, rate in (
        ("1048576", "0.01"),
        ("1048576", "0.5"),
        ("5000", "0.01"),
        ("5000", "1e-300"),
        ("1", "0.01"),
        ("1", "1e-300"),
    ):
        catalog.drop_table("db.events") if catalog.table_exists("db.events") else None
        table = new_table(
            catalog,
            properties={
                f"{ENABLED}id": "true",
                f"{BLOOM}max-bytes": limit,
                f"{BLOOM}fpp.column.id": rate,
            },
        )
        for _ in range(2):
            append(table, make_rows(4000))
        file = compacted(table)
        sizes[limit, rate] = blooms(file.file_path)["id"]
    header = 64
    assert 8192 < sizes["1048576", "0.01"] <= 16384 + header
    assert sizes["1048576", "0.5"] < sizes["1048576", "0.01"] / 3
    assert 2048 < sizes["5000", "0.01"] <= 4096 + header
    assert sizes["5000", "1e-300"] == sizes["5000", "0.01"]
    assert sizes["1", "0.01"] == sizes["1", "1e-300"] <= 32 + header


def test_filters_begin_with_a_bounded_size_whatever_their_number() -> None:
    """Arrow's formula for the bits of a filter."""
    schema = Schema(*(NestedField(n, f"c{n}", LongType()) for n in range(1, 1501)))
    most = {f"{BLOOM}max-bytes": str((1 << 31) - 1)}
    for count in (1, 2, 1500):
        asked = {f"{ENABLED}c{n}": "true" for n in range(1, count + 1)}
        filters = bloom_filters({**most, **asked}, schema)
        assert len(filters) == count
        bits = sum(-8 * one["ndv"] / math.log(1 - one["fpp"] ** 0.125) for one in filters.values())
        assert (128 << 23) / 4 < bits <= 128 << 23


def test_duckdb_skips_row_groups_by_them(catalog: Catalog) -> None:
    table = new_table(catalog, properties={f"{ENABLED}device": "true", f"{ENABLED}id": "true"})
    rows = append(table, make_rows(50)) + append(table, make_rows(50, device="another"))
    file = compacted(table)
    probe = "SELECT bool_or(bloom_filter_excludes) FROM parquet_bloom_probe(?, ?, ?)"
    for name, value, is_excluded in (
        ("device", rows[0][2], False),
        ("device", "another", False),
        ("device", "absent", True),
        ("id", rows[7][1], False),
        ("id", -5, True),
    ):
        found = duckdb.execute(probe, [path_of(file.file_path), name, value]).fetchone()
        assert found == (is_excluded,), (name, value)


def test_types_without_filters_are_named(catalog: Catalog) -> None:
    """0.0 equals -0.0 in SQL and not in a filter, so a filter would hide rows."""
    columns = {
        "x": (DoubleType(), [0.0, -0.0, 1.5, None]),
        "a_boolean": VALUES["a_boolean"],
        "a_long": VALUES["a_long"],
        "s": (
            StructType(NestedField(100, "y", DoubleType()), NestedField(101, "n", LongType())),
            [{"y": 1.0, "n": 1}] * 4,
        ),
    }
    wanted = ("x", "a_boolean", "a_long", "s.y", "s")
    table = table_of(catalog, columns, {f"{ENABLED}{name}": "true" for name in wanted})
    (note,) = [note for note in dataset_of(table).snapshot().notes if "bloom" in note]
    assert all(name in note for name in ("a_boolean", "s.y", "x"))
    assert "a_long" not in note
    assert blooms(compacted(table).file_path).keys() == {"a_long"}


@pytest.mark.parametrize("name", ["x", "device"])
@pytest.mark.parametrize("value", ["false", "", "yes"])
def test_what_is_not_enabled_is_not_written(catalog: Catalog, name: str, value: str) -> None:
    table = new_table(catalog, properties={f"{ENABLED}{name}": value, f"{BLOOM}fpp.column.device": "0.1"})
    for _ in range(2):
        append(table, make_rows(10))
    assert not [note for note in dataset_of(table).snapshot().notes if "bloom" in note]
    assert not blooms(compacted(table).file_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max-bytes", "0"),
        ("max-bytes", "1MB"),
        ("fpp.column.device", "0"),
        ("fpp.column.device", "1"),
        ("fpp.column.device", "nan"),
        ("fpp.column.device", "-1e400"),
        ("fpp.column.device", "low"),
    ],
)
def test_numbers_that_cannot_be_used_are_refused(catalog: Catalog, key: str, value: str) -> None:
    table = new_table(catalog)
    for _ in range(2):
        append(table, make_rows(10))
    properties = {f"{ENABLED}device": "true", f"{BLOOM}{key}": value}
    path = Path(path_of(fresh(table).metadata_location))
    metadata = json.loads(path.read_text())
    path.write_text(json.dumps({**metadata, "properties": {**metadata["properties"], **properties}}))
    with pytest.raises(Refused, match=f"{BLOOM}{key} is '{value}'"):
        compact(dataset_of(table))


def test_texts_processed_as_dictionaries_have_filters(catalog: Catalog, java: IcebergJava) -> None:
    table = new_table(catalog, properties={f"{ENABLED}device": "true"})
    for _ in range(2):
        fresh(table).append(
            pa.table(
                {
                    "event_time": pa.array([0] * 20_000, pa.timestamp("us", "UTC")),
                    "id": pa.array(range(20_000)),
                    "device": [f"device {n % 5}" for n in range(20_000)],
                }
            )
        )
    file = compacted(table)
    location = fresh(table).metadata_location
    found = [
        java.allowed_by_blooms(location, file.file_path, is_equal("device", text))
        for text in ("device 4", "device 5")
    ]
    assert found == [[True], [False]]
