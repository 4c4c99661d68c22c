"""Table properties that say when a chunk is worth compacting."""

from __future__ import annotations

import pytest
from pyiceberg.catalog import Catalog

from lithify.errors import Refused
from tests.datasets.iceberg.running import compact, dataset_of
from tests.datasets.iceberg.tables import (
    DAY,
    START,
    Row,
    append,
    check,
    delete_positions,
    files_of,
    make_rows,
    new_table,
)


def test_a_trickle_waits_until_enough_files_are_saved(catalog: Catalog) -> None:
    table = new_table(catalog, properties={"lithify.min-saved-files": "3"})
    rows: list[Row] = []
    for _ in range(3):
        rows += append(table, make_rows(20, START))
    assert not compact(dataset_of(table)).started
    rows += append(table, make_rows(20, START))
    assert compact(dataset_of(table)).committed
    assert len(files_of(table)) == 1
    check(table, rows)


def test_a_chunk_with_many_deleted_rows_is_rewritten(catalog: Catalog) -> None:
    table = new_table(catalog, properties={"lithify.max-deleted-percent": "30"})
    rows = append(table, make_rows(10, START))
    (first,) = (file.file_path for file in files_of(table))
    rows += append(table, make_rows(10, START + 2 * DAY))
    others = {file.file_path for file in files_of(table)} - {first}
    delete_positions(table, {first: [0, 1]})
    assert not compact(dataset_of(table)).started
    delete_positions(table, {first: [2]})
    assert compact(dataset_of(table)).committed
    paths = {file.file_path for file in files_of(table)}
    assert first not in paths
    assert others < paths
    check(table, rows[3:])
    assert not compact(dataset_of(table)).started


def test_more_than_all_rows_is_refused(catalog: Catalog) -> None:
    table = new_table(catalog, properties={"lithify.max-deleted-percent": "101"})
    append(table, make_rows(10, START))
    with pytest.raises(Refused, match="max-deleted-percent is 101"):
        compact(dataset_of(table))
