"""Texts that repeat are carried as dictionaries, and nobody can tell from the outputs."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.types import ListType, LongType, MapType, NestedField, StringType, StructType

from lithify.datasets.iceberg.compaction.dictionary_columns import repeating_columns
from tests.datasets.iceberg.running import compact, dataset_of
from tests.datasets.iceberg.tables import (
    DAY,
    START,
    Row,
    append,
    as_arrow,
    check,
    files_of,
    fresh,
    make_rows,
    new_table,
)
from tests.datasets.iceberg.test_stored import read, task_of

KINDS = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "text", StringType()),
    NestedField(3, "texts", ListType(4, StringType())),
    NestedField(5, "by_name", MapType(6, StringType(), 7, StringType())),
    NestedField(8, "parts", StructType(NestedField(9, "text", StringType()))),
)


def file_with(size_bytes: int, values: int, *field_ids: int) -> DataFile:
    """A data file with these statistics of some columns."""
    return DataFile.from_args(
        column_sizes=dict.fromkeys(field_ids, size_bytes), value_counts=dict.fromkeys(field_ids, values)
    )


@pytest.mark.parametrize(
    ("files", "excluded", "expected"),
    [
        ([file_with(200, 100, 1, 2, 4, 6, 7, 9)], (), (2, 4)),  # texts only, not those in maps and structs
        ([file_with(201, 100, 2, 4)], (), ()),
        ([file_with(300, 100, 2), file_with(100, 100, 2)], (), (2,)),  # on the whole
        ([file_with(200, 100, 2, 4)], (2,), (4,)),
        ([file_with(0, 0, 2), DataFile.from_args()], (), ()),  # nothing is known
    ],
)
def test_which_columns_repeat(
    files: list[DataFile], excluded: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert repeating_columns(KINDS, files, excluded) == expected


def test_outputs_have_plain_texts_and_their_bounds(catalog: Catalog) -> None:
    table = new_table(catalog)
    rows: list[Row] = []
    for n, device in enumerate("cabacb"):
        rows += append(table, make_rows(500, START + n * DAY / 6, DAY / 6, device))
    rows += append(table, [(START, 10_000_000 + n, None) for n in range(100)])  # type: ignore[misc]

    compact(dataset_of(table))

    (file,) = files_of(table)
    check(table, rows)
    footer = pq.ParquetFile(Path(urlsplit(file.file_path).path))
    assert footer.schema_arrow.field("device").type == pa.string()
    assert "RLE_DICTIONARY" in footer.metadata.row_group(0).column(2).encodings
    assert from_bytes(StringType(), file.lower_bounds[3]) == "a"
    assert from_bytes(StringType(), file.upper_bounds[3]) == "c"
    assert file.null_value_counts[3] == 100


def test_a_repeating_text_may_be_younger_than_some_files(catalog: Catalog) -> None:
    table = new_table(catalog)
    append(table, make_rows(500))
    with fresh(table).update_schema() as update:
        update.add_column("kind", StringType())
        update.add_column("kinds", ListType(20, StringType(), element_required=False))
    kinds = [pa.array(["x"] * 5000), pa.array([["x"]] * 5000)]
    rows = as_arrow(make_rows(5000)).append_column("kind", kinds[0]).append_column("kinds", kinds[1])
    fresh(table).append(rows)
    task = task_of(table)
    assert len(task.repeating) == 3
    found = read(task)
    assert (found["kind"].null_count, found["kinds"].null_count, found.num_rows) == (500, 500, 5500)
