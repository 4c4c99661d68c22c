"""Columns of numbers get a dictionary where files become smaller by it."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog

from lithify.datasets.iceberg.compaction.encoding import MIN_ROWS, distinct, without_dictionary
from tests.datasets.iceberg.running import compact, dataset_of
from tests.datasets.iceberg.tables import append, check, files_of, make_rows, new_table

ROWS = 60_000
RNG = np.random.default_rng(7)
BIG = 1 << 62


def stored_bytes(table: pa.Table, has_dictionary: bool = False) -> int:
    """The length of a file."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", use_dictionary=has_dictionary)
    return buffer.tell()


COLUMNS = {
    "times": pa.array(1_700_000_000_000_000 + np.sort(RNG.integers(0, 1 << 37, ROWS)), pa.timestamp("us")),
    "days": pa.array(np.sort(RNG.integers(0, 30, ROWS)).astype(np.int32), pa.date32()),
    "unique": pa.array(RNG.integers(0, BIG, ROWS)),
    "few": pa.array(RNG.choice(RNG.integers(0, BIG, 500), ROWS)),
    "half": pa.array(RNG.choice(RNG.integers(0, BIG, ROWS // 2), ROWS)),
    "small users": pa.array(RNG.integers(0, ROWS, ROWS)),
    "in turn": pa.array(np.tile(RNG.integers(0, BIG, ROWS // 4), 4)),
    "floats": pa.array(RNG.normal(size=ROWS)),
    "rounded": pa.array(np.round(RNG.normal(20, 5, ROWS), 1)),
    "ints": pa.array(RNG.integers(0, 1 << 31, ROWS).astype(np.int32)),
    "constant": pa.array(np.zeros(ROWS)),
    "counter": pa.array(np.arange(ROWS)),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_files_are_no_larger_than_with_the_other_choice(name: str) -> None:
    table = pa.table({name: COLUMNS[name]})
    is_plain = name in without_dictionary(table, stored_bytes)
    assert stored_bytes(table, not is_plain) <= 1.03 * stored_bytes(table, is_plain)


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", "b"] * MIN_ROWS),
        pa.array([[1], [2]] * MIN_ROWS),
        pa.array([True, False] * MIN_ROWS),
        pa.array([*range(2 * MIN_ROWS), None]),
        pa.array(range(MIN_ROWS - 1)),
        pa.array([], pa.int64()),
    ],
)
def test_what_is_left_to_the_writer(column: pa.Array) -> None:
    assert not without_dictionary(pa.table({"column": column}), stored_bytes)


@pytest.mark.parametrize("name", COLUMNS)
def test_different_values_are_counted_well_enough(name: str) -> None:
    exact = len(COLUMNS[name].unique())
    assert distinct(COLUMNS[name]) == pytest.approx(exact, rel=0.1, abs=200)
    assert distinct(COLUMNS[name][1:]) == pytest.approx(exact, rel=0.1, abs=200)


def test_outputs_of_a_table(catalog: Catalog) -> None:
    table = new_table(catalog)
    rows = [row for _ in range(2) for row in append(table, make_rows(MIN_ROWS))]
    compact(dataset_of(table))
    check(table, rows)
    (file,) = files_of(table)
    group = pq.ParquetFile(file.file_path.removeprefix("file://")).metadata.row_group(0)
    has_dictionary = [group.column(number).has_dictionary_page for number in range(3)]
    assert has_dictionary == [False, False, True]
