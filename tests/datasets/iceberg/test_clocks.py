"""Clocks of coordinators that are an hour off: snapshots are dated by the store's clock."""

from __future__ import annotations

from datetime import timedelta

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from lithify.base.clock import SystemClock
from lithify.testing import ManualClock
from tests.datasets.iceberg.running import compact, dataset_of
from tests.datasets.iceberg.tables import START, append, fresh, make_rows, new_table

HOUR_MS = 3_600_000


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_snapshot_is_dated_by_the_store(catalog: SqlCatalog, hours: int) -> None:
    """By a time in the future no other program could commit: each refuses to go back in time. By one in the
    past the snapshot would expire early."""
    table = new_table(catalog)
    for hour in range(4):
        append(table, make_rows(10, START + timedelta(hours=hour)))
    now_ms = SystemClock().now_ms()
    clock = ManualClock(now_ms + hours * HOUR_MS)
    compact(dataset_of(table, clock=clock), clock=clock)
    snapshot = fresh(table).current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary.operation.value == "replace"
    assert abs(snapshot.timestamp_ms - SystemClock().now_ms()) < 120_000
