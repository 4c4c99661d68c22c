"""Tables whose rows need no order are compacted by copying pages; all else is decoded as before."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import (
    DoubleType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
)

from lithify.datasets.iceberg.compaction import copying
from tests.datasets.iceberg.running import compact, dataset_of
from tests.datasets.iceberg.tables import (
    _Transaction,
    delete_positions,
    files_of,
    fresh,
    new_table,
    read_by_duckdb,
)

SCHEMA = Schema(
    NestedField(1, "name", StringType(), required=False),
    NestedField(2, "id", LongType(), required=False),
    NestedField(3, "score", DoubleType(), required=False),
    NestedField(4, "point", StructType(NestedField(5, "x", DoubleType(), required=False)), required=False),
    NestedField(6, "tags", ListType(7, StringType(), element_required=False), required=False),
)
BLOOM = {"write.parquet.bloom-filter-enabled.column.id": "true"}


def fill(table: Table, files: int = 8, rows: int = 50) -> None:
    for n in range(files):
        ids = range(n * rows, n * rows + rows)
        made = pa.table(
            {
                "name": [f"näme {k % 7}" if k % 11 else None for k in ids],
                "id": list(ids),
                "score": [
                    math.nan if k % 13 == 0 and n == 2 else -0.0 if k % 17 == 0 else k / 8 for k in ids
                ],
                "point": [{"x": k / 4} if k % 3 else None for k in ids],
                "tags": [["a", None, f"t{k}"][: k % 4] for k in ids],
            }
        )
        with _Transaction(fresh(table)) as transaction:
            transaction.append(made.cast(fresh(table).schema().as_arrow()))


def writers_of(table: Table) -> set[str]:
    paths = [Path(file.file_path.removeprefix("file://")) for file in files_of(table)]
    return {pq.read_metadata(path).created_by.split(" ")[0] for path in paths}


def rows_of(table: Table) -> list[str]:
    found = sorted(map(repr, fresh(table).scan().to_arrow().to_pylist()))
    assert sorted(map(repr, read_by_duckdb(table)))
    return found


@pytest.mark.parametrize("properties", [{}, BLOOM, {"write.parquet.compression-codec": "snappy"}])
def test_an_append_only_table_is_copied(catalog: Catalog, properties: Mapping[str, str]) -> None:
    table = new_table(catalog, schema=SCHEMA, properties=dict(properties))
    fill(table)
    rows, by_duckdb = rows_of(table), sorted(map(repr, read_by_duckdb(table)))
    assert compact(dataset_of(table)).committed
    assert len(files_of(table)) == 1
    assert writers_of(table) == {"lithify"}
    assert rows_of(table) == rows
    assert sorted(map(repr, read_by_duckdb(table))) == by_duckdb
    footer = pq.read_metadata(files_of(table)[0].file_path.removeprefix("file://"))
    assert footer.num_row_groups == 1
    assert footer.metadata is not None
    assert set(footer.metadata) == {b"iceberg.schema"}
    assert not compact(dataset_of(table)).started


def test_the_entry_of_a_copied_file_is_that_of_a_decoded_one(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = []
    for name, is_decoded in (("copied", False), ("decoded", True)):
        with monkeypatch.context() as patch:
            if is_decoded:
                patch.setattr(copying, "_must_decode", lambda task: True)
            table = new_table(catalog, schema=SCHEMA, name=("db", name))
            fill(table)
            compact(dataset_of(table))
            assert writers_of(table) == {"parquet-cpp-arrow" if is_decoded else "lithify"}
            (file,) = files_of(table)
            entries.append(file)
    copied, decoded = entries
    for attribute in (
        "record_count",
        "value_counts",
        "null_value_counts",
        "nan_value_counts",
        "lower_bounds",
        "upper_bounds",
        "sort_order_id",
    ):
        assert getattr(copied, attribute) == getattr(decoded, attribute), attribute
    assert copied.column_sizes.keys() == decoded.column_sizes.keys()


def test_files_with_deletes_are_decoded(catalog: Catalog) -> None:
    table = new_table(catalog, schema=SCHEMA)
    fill(table)
    delete_positions(table, {files_of(table)[0].file_path: [0, 3]})
    rows = rows_of(table)
    assert compact(dataset_of(table)).committed
    assert writers_of(table) == {"parquet-cpp-arrow"}
    assert rows_of(table) == rows


def test_files_of_an_older_schema_are_decoded(catalog: Catalog) -> None:
    table = new_table(catalog, schema=Schema(*SCHEMA.fields[:2]))
    with _Transaction(fresh(table)) as transaction:
        transaction.append(pa.table({"name": ["a"], "id": [1]}))
    with fresh(table).update_schema() as update:
        update.add_column("more", LongType())
    for n in range(4):
        with _Transaction(fresh(table)) as transaction:
            transaction.append(pa.table({"name": ["b"], "id": [n], "more": [n]}))
    rows = rows_of(table)
    assert compact(dataset_of(table)).committed
    assert writers_of(table) == {"parquet-cpp-arrow"}
    assert rows_of(table) == rows


def test_a_damaged_page_is_not_carried_on(catalog: Catalog) -> None:
    table = new_table(catalog, schema=SCHEMA, properties={"write.parquet.compression-codec": "zstd"})
    fill(table)
    path = Path(files_of(table)[3].file_path.removeprefix("file://"))
    data = bytearray(path.read_bytes())
    for place in range(30, 60):
        data[place] ^= 0x55
    path.write_bytes(data)
    before = {file.file_path for file in files_of(table)}
    summary = compact(dataset_of(table))
    assert path.as_uri() in {file.file_path for file in files_of(table)} or not summary.committed
    assert {file.file_path for file in files_of(table)} == before
    assert len(list(path.parent.glob("*.parquet"))) == len(before)
