"""Parquet files of outputs, as parquet-mr reads them: indexes of pages, and sizes as the table asks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import DoubleType, ListType, LongType, NestedField, StringType, TimestamptzType

from tests.datasets.iceberg.running import compact, dataset_of
from tests.datasets.iceberg.tables import START, files_of, fresh, new_table
from tests.judge.iceberg_java import IcebergJava, ParquetFile

AT_ONCE = {"lithify.min-saved-files": "1", "lithify.min-new-percent": "0"}
PARQUET = "write.parquet."
SCHEMA = Schema(
    NestedField(1, "event_time", TimestamptzType(), required=False),
    NestedField(2, "id", LongType(), required=False),
    NestedField(3, "text", StringType(), required=False),
    NestedField(4, "device", StringType(), required=False),
    NestedField(5, "x", DoubleType(), required=False),
    NestedField(6, "l", ListType(7, LongType(), element_required=False), required=False),
)


def table_of(
    catalog: Catalog, rows: int, properties: Mapping[str, str], *, text_bytes: int = 8, x: float = 1.5
) -> Table:
    """A table of two files whose texts do not compress."""
    table = new_table(catalog, schema=SCHEMA, properties={**AT_ONCE, **properties})
    schema = schema_to_pyarrow(SCHEMA)
    for first in (0, rows // 2):
        ids = range(first, first + rows // 2)
        columns: dict[str, Any] = {
            "event_time": [START] * len(ids),
            "id": list(ids),
            "text": [os.urandom(text_bytes // 2).hex() for _ in ids],
            "device": [f"device {n % 7}" for n in ids],
            "x": [x] * len(ids),
            "l": [[n] * (n % 3) for n in ids],
        }
        fresh(table).append(pa.Table.from_pydict(columns, schema))
    return table


def compacted(java: IcebergJava, table: Table) -> ParquetFile:
    assert compact(dataset_of(table)).committed
    (file,) = files_of(table)
    return java.parquet(file.file_path)


def test_pages_are_indexed(catalog: Catalog, java: IcebergJava) -> None:
    found = compacted(java, table_of(catalog, 100, {f"{PARQUET}row-group-limit": "30"}))
    assert [chunk.row_group for chunk in found.chunks] == [n for n in range(4) for _ in range(6)]
    assert all(chunk.has_offset_index for chunk in found.chunks)
    assert all(chunk.has_column_index for chunk in found.chunks)


def test_pages_with_nan_have_no_bounds(catalog: Catalog, java: IcebergJava) -> None:
    found = compacted(java, table_of(catalog, 10, {}, x=float("nan")))
    indexed = {chunk.column: (chunk.has_offset_index, chunk.has_column_index) for chunk in found.chunks}
    assert indexed.pop("x") == (True, False)
    assert set(indexed.values()) == {(True, True)}
