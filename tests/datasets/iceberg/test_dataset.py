"""Compacting tables with the coordinator, the worker and the one-shot run that every dataset has."""

from __future__ import annotations

from datetime import timedelta

from pyiceberg.catalog import Catalog
from pyiceberg.table.snapshots import Operation

from lithify.base.events import Event, Prepared
from tests.datasets.iceberg.running import compact, dataset_of
from tests.datasets.iceberg.tables import (
    DAY,
    START,
    Row,
    append,
    by_id,
    check,
    files_of,
    fresh,
    make_rows,
    new_table,
    read,
    read_by_duckdb,
    read_by_java,
)


def test_small_files_become_one_for_each_day(catalog: Catalog) -> None:
    table = new_table(catalog)
    rows: list[Row] = []
    for n in range(12):
        rows += append(table, make_rows(50, START + n * timedelta(hours=6), timedelta(hours=6)))
    before = fresh(table).current_snapshot()
    assert before is not None
    events: list[Event] = []

    result = compact(dataset_of(table), observer=events.append)

    assert result.started
    assert not result.failures
    assert len(files_of(table)) == 3
    check(table, rows)
    for reader in (read, read_by_duckdb, read_by_java):
        assert reader(table, before.snapshot_id) == by_id(rows), "the snapshot before is as it was"
    after = fresh(table).current_snapshot()
    assert after is not None
    assert after.summary is not None
    assert after.summary.operation == Operation.REPLACE
    assert [type(e) for e in events].count(Prepared) == len(result.committed)


def test_a_second_run_finds_nothing_to_do(catalog: Catalog) -> None:
    table = new_table(catalog)
    for n in range(6):
        append(table, make_rows(50, START + n * DAY / 3))
    assert compact(dataset_of(table)).committed
    again = compact(dataset_of(table))
    assert not again.started
    assert not again.plan.proposals


def test_a_table_without_a_snapshot_is_left_alone(catalog: Catalog) -> None:
    table = new_table(catalog)
    result = compact(dataset_of(table))
    assert not result.started
    assert result.plan.notes == ("the table has no snapshot yet",)
