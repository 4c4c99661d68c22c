"""Table properties that say when a chunk is worth compacting."""

from __future__ import annotations

import pytest
from pyiceberg.catalog import Catalog

from lithify.base.errors import Refused
from lithify.testing import ManualClock
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


@pytest.mark.parametrize(
    ("properties", "appends"),
    [
        pytest.param({}, 6, id="five files are saved"),
        pytest.param({"lithify.min-saved-files": "1"}, 2, id="one is enough"),
    ],
)
def test_a_day_that_is_not_over_waits_until_enough_is_new(
    catalog: Catalog, properties: dict[str, str], appends: int
) -> None:
    table = new_table(catalog, properties=properties)
    clock = ManualClock(round((START + DAY / 2).timestamp() * 1000))
    rows: list[Row] = []
    for _ in range(appends):
        assert not compact(dataset_of(table, clock=clock), clock=clock).started
        rows += append(table, make_rows(20, START))
    assert compact(dataset_of(table, clock=clock), clock=clock).committed
    assert len(files_of(table)) == 1
    check(table, rows)


def test_a_day_that_is_over_is_compacted_once_and_then_waits_for_late_data(catalog: Catalog) -> None:
    table = new_table(catalog)
    clock = ManualClock(round((START + DAY).timestamp() * 1000))
    rows = append(table, make_rows(20, START)) + append(table, make_rows(20, START))
    assert not compact(dataset_of(table, clock=clock), clock=clock).started, "late data is allowed for"
    clock.advance_s(3601)
    assert compact(dataset_of(table, clock=clock), clock=clock).committed
    rows += append(table, make_rows(20, START))
    assert not compact(dataset_of(table, clock=clock), clock=clock).started
    assert len(files_of(table)) == 2
    for _ in range(4):
        rows += append(table, make_rows(20, START))
    assert compact(dataset_of(table, clock=clock), clock=clock).committed
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


@pytest.mark.parametrize("name", ["max-deleted-percent", "min-new-percent"])
def test_more_than_everything_is_refused(catalog: Catalog, name: str) -> None:
    table = new_table(catalog, properties={f"lithify.{name}": "101"})
    append(table, make_rows(10, START))
    with pytest.raises(Refused, match=f"{name} is 101"):
        compact(dataset_of(table))
