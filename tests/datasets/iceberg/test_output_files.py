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


def sizes(found: ParquetFile, column: str) -> list[tuple[int, int]]:
    """Bytes and values of each page of a column."""
    return [
        (page.encoded_bytes, page.values)
        for chunk in found.chunks
        if chunk.column == column
        for page in chunk.pages
    ]


def test_pages_have_as_many_bytes_as_the_table_asks_for(catalog: Catalog, java: IcebergJava) -> None:
    limit = 64 * 1024
    properties = {f"{PARQUET}page-size-bytes": str(limit), f"{PARQUET}dict-size-bytes": "1000"}
    found = compacted(java, table_of(catalog, 1000, properties, text_bytes=4096))
    pages = [size for size, _ in sizes(found, "text")]
    assert max(pages) <= 1.1 * limit
    assert 1000 * 4096 / limit < len(pages) < 1.5 * 1000 * 4096 / limit


def test_pages_have_as_many_rows_as_the_table_asks_for(catalog: Catalog, java: IcebergJava) -> None:
    """Also those of columns that take next to nothing."""
    found = compacted(java, table_of(catalog, 3000, {f"{PARQUET}page-row-limit": "700"}))
    for column in ("device", "x", "id", "event_time"):
        assert [values for _, values in sizes(found, column)] == [700, 700, 700, 700, 200], column
    rows_with_values = 700 * (0 + 1 + 2) // 3 + 700 // 3 + 1
    assert max(values for _, values in sizes(found, "l.list.element")) <= rows_with_values


def test_dictionaries_have_as_many_bytes_as_the_table_asks_for(catalog: Catalog, java: IcebergJava) -> None:
    limit = 64 * 1024
    properties = {f"{PARQUET}dict-size-bytes": str(limit)}
    found = compacted(java, table_of(catalog, 1000, properties, text_bytes=4096))
    (text,) = [chunk for chunk in found.chunks if chunk.column == "text"]
    assert text.dictionary_bytes <= 1.1 * limit
    (device,) = [chunk for chunk in found.chunks if chunk.column == "device"]
    assert device.dictionary_bytes == 7 * (4 + len("device 0"))


def groups(found: ParquetFile) -> list[int]:
    """Bytes of each row group."""
    return list({chunk.row_group: chunk.row_group_bytes for chunk in found.chunks}.values())


def test_row_groups_have_as_many_bytes_as_the_table_asks_for(catalog: Catalog, java: IcebergJava) -> None:
    limit = 256 * 1024
    properties = {f"{PARQUET}row-group-size-bytes": str(limit)}
    *full, last = groups(compacted(java, table_of(catalog, 2000, properties, text_bytes=1024)))
    assert len(full) in (4, 5)
    assert all(0.8 * limit < size <= 1.02 * limit for size in full)
    assert last <= limit
