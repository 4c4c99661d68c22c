"""The queue of a table over several looks and processes, and a damaged memory of its chunks."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from lithify.base.errors import Unsupported
from lithify.datasets.iceberg.dataset import IcebergDataset
from lithify.datasets.iceberg.model import IcebergLedger
from lithify.planning.timeline.model import ChunkAction, TimelinePlan
from lithify.protocol.model import Ledger
from lithify.service.worker import Worker, WorkerOptions
from lithify.testing.engine import InlineEngine
from tests.datasets.iceberg.running import Steps, compact, dataset_of
from tests.datasets.iceberg.tables import (
    DAY,
    START,
    Row,
    append,
    check,
    delete_positions,
    files_of,
    fresh,
    make_rows,
    new_table,
)


def timeline_of(dataset: IcebergDataset) -> TimelinePlan:
    return dataset.timeline(dataset.snapshot(), dataset.ledger() or Ledger())


def make_days(catalog: Catalog, days: int, **properties: str) -> tuple[Table, list[Row]]:
    """Two files for each day, each day a task of its own."""
    own = {f"lithify.{name.replace('_', '-')}": value for name, value in properties.items()}
    table = new_table(catalog, properties={"lithify.small-task-bytes": "1", **own})
    rows: list[Row] = []
    for day in range(days):
        for half in range(2):
            rows += append(table, make_rows(5, START + (day + half / 2) * DAY, DAY / 4))
    return table, rows


def set_property(table: Table, name: str, value: str) -> None:
    with fresh(table).transaction() as transaction:
        transaction.set_properties({f"lithify.{name}": value})


@pytest.mark.parametrize("limit", ["max-tasks", "max-active-bytes"])
def test_what_another_process_started_counts(catalog: Catalog, limit: str) -> None:
    table, _ = make_days(catalog, 3)
    bytes_of_one_task = 2 * max(file.file_size_in_bytes for file in files_of(table))
    set_property(table, limit, {"max-tasks": "1", "max-active-bytes": str(bytes_of_one_task)}[limit])
    assert len(Steps(dataset_of(table)).schedule().ledger.active()) == 1
    tick = Steps(dataset_of(table), name="another").schedule()
    assert not tick.plan.proposals
    assert len(tick.ledger.active()) == 1


def test_what_is_not_planned_any_more_leaves_the_queue(catalog: Catalog) -> None:
    table, rows = make_days(catalog, 3, max_tasks="1")
    steps = Steps(dataset_of(table))
    (first,) = steps.schedule().ledger.active()
    steps.execute()
    kept = set(first.spec.inputs)
    gone = [file for file in files_of(table) if file.file_path not in kept]
    with fresh(table).transaction() as transaction, transaction.update_snapshot().overwrite() as removing:
        for file in gone:
            removing.delete_data_file(file)
    ids = set(fresh(table).scan().to_arrow()["id"].to_pylist())
    tick = steps.commit()
    assert tick.committed
    assert not tick.plan.proposals
    check(table, [row for row in rows if row[1] in ids])


def test_deferred_chunks_come_back_when_the_queue_is_empty_though_something_runs(catalog: Catalog) -> None:
    """Two of six days fit. When the first has ended the second still runs, and its slot's neighbour must not
    idle."""
    table, rows = make_days(catalog, 6, max_tasks="2", max_queued_tasks="2")
    steps = Steps(dataset_of(table))
    one_at_a_time = WorkerOptions(max_concurrent_compactions=1)
    steps.worker = Worker(steps.dataset, InlineEngine(), steps.clock, "w", options=one_at_a_time)
    assert len(steps.schedule().ledger.active()) == 2
    steps.worker.tick()
    steps.worker.tick()
    tick = steps.commit()
    assert len(tick.committed) == 1
    assert len(tick.plan.proposals) == 1
    assert len(tick.ledger.active()) == 2
    for _ in range(20):
        steps.worker.tick()
        steps.commit()
    assert len(files_of(table)) == 6
    check(table, rows)


def test_what_a_commit_wrote_is_remembered_as_it_was_written(catalog: Catalog) -> None:
    """Before anybody analyses it: paths, sizes, rows and versions are those of the next listing."""
    table, _ = make_days(catalog, 3)
    steps = Steps(dataset_of(table))
    active = steps.schedule().ledger.active()
    steps.execute()
    ledger = steps.dataset.ledger()
    assert ledger is not None
    assert set(steps.dataset.commit(ledger.active(), steps.coordinator.epoch).values()) == {None}
    steps.dataset.update_ledger(lambda latest: latest)
    done: IcebergLedger = Ledger(ledger.epoch, ())
    dataset = dataset_of(table)
    timeline = dataset.timeline(dataset.snapshot(), done)
    assert len(active) == len(timeline.chunks) == 3
    assert timeline.analysed == 0


def test_deletes_of_several_files_are_not_counted_for_each(catalog: Catalog) -> None:
    """A delete file names rows of two data files; how many of each is not known without reading it."""
    table = new_table(catalog)
    for day in range(2):
        append(table, make_rows(6, START + day * DAY, timedelta(hours=1)))
    delete_positions(table, {file.file_path: [0, 1, 2] for file in files_of(table)})
    dataset = dataset_of(table)
    assert [(f.deletes, f.deleted_rows) for f in dataset.snapshot().files] == [(1, 0), (1, 0)]
    assert ChunkAction.EMPTY not in {chunk.verdict.action for chunk in timeline_of(dataset).chunks}


def damage(table: Table, damaged: bytes) -> Path:
    """Put these bytes in place of what is remembered."""
    folder = Path("/") / dataset_of(table).own_folder / "chunks"
    newest = max(folder.glob("*.json"))
    newest.write_bytes(damaged or newest.read_bytes()[:-7])
    return newest


@pytest.mark.parametrize(
    "damaged", [b"", b"\x00" * 100, b'{"format":"other"}'], ids=["torn", "zeros", "other"]
)
def test_a_damaged_memory_is_forgotten_with_a_note(catalog: Catalog, damaged: bytes) -> None:
    """It costs one analysis, and the next one is kept again."""
    table, rows = make_days(catalog, 3)
    compact(dataset_of(table))
    path = damage(table, damaged)
    dataset = dataset_of(table)
    assert timeline_of(dataset).analysed == 3
    (note,) = dataset.snapshot().notes
    assert path.name in note
    rows += append(table, make_rows(3, START))
    assert compact(dataset_of(table)).committed
    assert timeline_of(dataset_of(table)).analysed == 0
    assert not dataset_of(table).snapshot().notes
    check(table, rows)


def test_a_memory_of_a_newer_lithify_is_refused(catalog: Catalog) -> None:
    table, _ = make_days(catalog, 1)
    compact(dataset_of(table))
    damage(table, b'{"format":"lithify.chunks","version":2}')
    with pytest.raises(Unsupported, match="upgrade"):
        compact(dataset_of(table))
