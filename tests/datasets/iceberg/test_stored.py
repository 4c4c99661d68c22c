"""Files that need no projection are read as they are: the rows of a range, and only its row groups."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from lithify.datasets.iceberg.compaction.reader import RangeReader
from lithify.datasets.iceberg.compaction.task import RewriteBatch, RewriteTask
from lithify.datasets.iceberg.format.projection import Projection
from lithify.datasets.iceberg.model import TimeRange
from tests.datasets.iceberg.running import Steps, dataset_of
from tests.datasets.iceberg.tables import (
    DAY,
    START,
    Row,
    append,
    append_with_deletes,
    fresh,
    make_rows,
    new_table,
)

ROWS = 40
HOUR = timedelta(hours=1)


def task_of(table: Table) -> RewriteTask:
    """The only task of the table's compaction."""
    dataset = dataset_of(table)
    (compaction,) = Steps(dataset).schedule().ledger.active()
    (work,) = dataset.prepare(compaction, dataset.snapshot()).works
    batch: RewriteBatch = work.argument
    (task,) = batch.tasks
    return task


def micros(time: datetime) -> int:
    return round(time.timestamp() * 1_000_000)


def read(task: RewriteTask) -> pa.Table:
    """All rows of the task's range, without their origins."""
    reader = RangeReader(task)
    files, names = reader.opened_ahead(), reader.arrow_schema.names
    batches = [batch.select(names) for source in task.sources for batch in reader.batches(source, files)]
    return pa.Table.from_batches(batches, reader.arrow_schema)


@pytest.mark.parametrize("with_nulls", [False, True])
@pytest.mark.parametrize(
    ("first", "last"), [(None, None), (3, 17), (5, 6), (None, 8), (20, None), (30, 31), (0, 24)]
)
def test_rows_of_a_range(catalog: Catalog, first: int | None, last: int | None, with_nulls: bool) -> None:
    table = new_table(catalog, properties={"write.parquet.row-group-limit": "7"})
    rows = append(table, make_rows(ROWS, START, DAY))
    rows += append(table, [(None, 1 << 40, "b"), *make_rows(ROWS, START, DAY)])
    start, end = (None if hour is None else START + hour * HOUR for hour in (first, last))
    task = task_of(table)
    wanted = TimeRange(
        None if start is None else micros(start), None if end is None else micros(end), (), with_nulls
    )
    sources = tuple(replace(source, is_inside=False) for source in task.sources)

    found = read(replace(task, range=wanted, sources=sources))

    def belongs(row: Row) -> bool:
        time = row[0]
        if time is None:
            return with_nulls
        return (start is None or start <= time) and (end is None or time < end)

    assert sorted(found["id"].to_pylist()) == sorted(row[1] for row in rows if belongs(row))


def test_which_files_are_projected(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    table = new_table(catalog)
    append(table, make_rows(ROWS))
    append_with_deletes(table, make_rows(ROWS), [3])
    with fresh(table).update_schema() as update:
        update.rename_column("device", "unit")
    fresh(table).append(pa.table({"id": [1], "event_time": [START], "unit": ["x"]}))
    projected: list[int] = []
    apply = Projection.apply

    def note(self: Projection, batch: pa.RecordBatch) -> pa.RecordBatch:
        projected.append(batch.num_rows)
        return apply(self, batch)

    monkeypatch.setattr(Projection, "apply", note)
    task = task_of(table)

    found = read(task)

    assert found.num_rows == 2 * ROWS
    assert found.schema.names == ["event_time", "id", "unit"]
    assert sorted(projected) == [ROWS - 1, ROWS]
