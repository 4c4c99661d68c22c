"""Tables of many small partitions: a compaction has many of them, a run makes few snapshots, and what it
costs grows with the number of partitions and no faster."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.transforms import HourTransform, IdentityTransform

from lithify.datasets.iceberg.compaction import state
from lithify.datasets.iceberg.format import listing
from lithify.datasets.iceberg.format.manifests import live_entries
from lithify.datasets.iceberg.model import LeftAlone
from lithify.protocol.model import CompactionState
from lithify.service.worker import Worker
from lithify.testing.engine import InlineEngine
from tests.datasets.iceberg.running import Steps, compact, dataset_of
from tests.datasets.iceberg.tables import (
    START,
    Row,
    append,
    check,
    delete_equal,
    delete_positions,
    files_of,
    fresh,
    new_table,
)

BY_HOUR_AND_DEVICE = PartitionSpec(
    PartitionField(1, 1000, HourTransform(), "hour"), PartitionField(3, 1001, IdentityTransform(), "device")
)
ONE_BY_ONE = {"small-task-bytes": "1"}


def table_of(catalog: Catalog, hours: int, devices: int, **properties: str) -> tuple[Table, list[Row]]:
    """Three small files in each partition of so many hours and devices."""
    table = new_table(catalog, spec=BY_HOUR_AND_DEVICE, properties=properties)
    rows: list[Row] = []
    for minute in range(3):
        rows += append(
            table,
            [
                (
                    START + timedelta(hours=hour, minutes=minute),
                    1000 * hour + 10 * device + minute,
                    f"d{device}",
                )
                for hour in range(hours)
                for device in range(devices)
            ],
        )
    return table, rows


def snapshots_of(table: Table) -> int:
    return len(fresh(table).snapshots())


def test_many_small_partitions_are_one_compaction_and_one_snapshot(catalog: Catalog) -> None:
    table, rows = table_of(catalog, 6, 4)
    before = snapshots_of(table)
    done = compact(dataset_of(table))
    assert (len(done.committed), done.failures, done.dropped) == (1, (), ())
    assert snapshots_of(table) == before + 1
    assert len(files_of(table)) == 6 * 4
    assert not compact(dataset_of(table)).started, "nothing is left to do"
    check(table, rows)


class Counts:
    """How often manifests were decoded, and data files drawn for planning."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.decoded: Counter[str] = Counter()
        self.drawn = 0
        decode, draw = live_entries, state._Drawn._file

        def counted(io: Any, manifest: Any, spec: Any) -> Any:
            self.decoded[manifest.manifest_path] += 1
            return decode(io, manifest, spec)

        def drawn(*arguments: Any, **options: Any) -> Any:
            self.drawn += 1
            return draw(*arguments, **options)

        monkeypatch.setattr(listing, "live_entries", counted)
        monkeypatch.setattr(state._Drawn, "_file", drawn)


def test_the_work_of_planning_grows_with_the_number_of_partitions_and_no_faster(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, _ = table_of(catalog, 6, 4)
    counts = Counts(monkeypatch)
    compact(dataset_of(table))
    assert set(counts.decoded.values()) == {1}, "each manifest once"
    files = 3 * 24 + 24
    assert counts.drawn <= 2 * files


def test_a_compaction_looks_at_its_own_files_alone(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where partitions are large, so that each is a compaction of its own."""
    table, _ = table_of(catalog, 6, 4)
    steps = Steps(dataset_of(table, options={**ONE_BY_ONE, "max-tasks": "100"}))
    ledger = steps.schedule().ledger
    assert len(ledger.active()) == 24
    counts = Counts(monkeypatch)
    steps.execute()
    assert counts.drawn == 3 * 24
    assert not counts.decoded


@pytest.mark.parametrize("partitions", [20, 40])
def test_a_run_of_many_compactions_makes_few_snapshots(catalog: Catalog, partitions: int) -> None:
    table, rows = table_of(catalog, partitions // 4, 4)
    before = snapshots_of(table)
    done = compact(dataset_of(table, options=ONE_BY_ONE))
    assert len(done.committed) == partitions
    assert snapshots_of(table) - before <= 10
    assert len(files_of(table)) == partitions
    check(table, rows)


def test_finished_compactions_wait_for_each_other_and_not_for_ever(catalog: Catalog) -> None:
    table, _ = table_of(catalog, 5, 4)
    steps = Steps(dataset_of(table, options={**ONE_BY_ONE, "max-tasks": "4"}))
    steps.coordinator._batches.max_wait_ms = 60_000
    steps.schedule()
    steps.execute()  # everything that was admitted
    before = snapshots_of(table)
    tick = steps.schedule()
    assert tick.committed, "four of twenty are more than an eighth"
    steps.worker.tick(tick.seen)
    assert snapshots_of(table) == before + 1


def spoil(table: Table, device: str) -> str:
    """Cut off one of a device's files; its path."""
    path = next(file.file_path for file in files_of(table) if file.partition[1] == device)
    local = Path(path.removeprefix("file://"))
    local.write_bytes(local.read_bytes()[:-20])
    return path


def test_a_partition_that_cannot_be_read_stops_none_of_the_others(catalog: Catalog) -> None:
    table, rows = table_of(catalog, 3, 4)
    bad = spoil(table, "d2")
    paths = {file.file_path for file in files_of(table)}
    done = compact(dataset_of(table))
    assert len(done.committed) == 1
    ((_, dropped),) = [(ended.compaction, ended.reason) for ended in done.dropped]
    assert dropped.startswith("3 of its 36 inputs are not replaced: ")
    assert Path(bad).name in dropped
    ((_, failure),) = [(ended.compaction, ended.reason) for ended in done.failures]
    assert Path(bad).name in failure
    after = files_of(table)
    assert len(after) == 3 * 4 - 1 + 3
    left = [file.file_path for file in after if file.file_path in paths]
    assert len(left) == 3
    assert bad in left
    kept = fresh(table).scan(row_filter="device != 'd2'").to_arrow()
    assert sorted(kept["id"].to_pylist()) == sorted(row[1] for row in rows if row[2] != "d2")


def test_partitions_that_cannot_be_read_are_compacted_alone_and_given_up(catalog: Catalog) -> None:
    table, _ = table_of(catalog, 1, 3)
    for device in ("d0", "d1", "d2"):
        spoil(table, device)
    before = {file.file_path for file in files_of(table)}
    dataset = dataset_of(table)
    done = compact(dataset)
    assert not done.committed
    assert len(done.failures) == 3, "each for itself"
    assert {file.file_path for file in files_of(table)} == before
    assert len(dataset.alone) == 3


def test_what_is_wrong_with_a_partition_is_never_taken_for_an_empty_one(catalog: Catalog) -> None:
    table, _ = table_of(catalog, 1, 3)
    spoil(table, "d1")
    steps = Steps(dataset_of(table))
    steps.schedule()
    steps.execute()
    ledger = steps.dataset.ledger()
    assert ledger is not None
    (compaction,) = ledger.active()
    (left,) = [output for output in compaction.outputs if isinstance(output, LeftAlone)]
    assert len(left.sources) == 3
    assert steps.commit().committed
    assert len(files_of(table)) == 2 + 3


def test_a_change_in_one_partition_drops_that_one_alone(catalog: Catalog) -> None:
    table, rows = table_of(catalog, 2, 3)
    target = files_of(table)[0].file_path
    steps = Steps(dataset_of(table))
    steps.schedule()
    steps.execute()
    delete_positions(table, {target: [0]})
    tick = steps.commit()
    ((_, reason),) = tick.dropped
    assert reason.startswith("3 of its 18 inputs are not replaced: rows of ")
    live = {file.file_path for file in files_of(table)}
    assert target in live
    assert len(live) == 5 + 3
    check(table, [row for row in rows if row[1] != _ids_in(target)[0]])


def test_deletes_of_each_partition_are_applied(catalog: Catalog) -> None:
    table, rows = table_of(catalog, 2, 3)
    by_position, by_value, other = files_of(table)[:3]
    gone = {*_ids_in(by_position.file_path), *_ids_in(by_value.file_path)}
    delete_positions(table, {by_position.file_path: [0]})
    # Of every partition the same ids: each deletes only in its own.
    for file in (by_value, other):
        delete_equal(table, _ids_in(by_value.file_path), partition=file.partition)
    (done,) = compact(dataset_of(table)).committed
    assert done
    check(table, [row for row in rows if row[1] not in gone])


def _ids_in(path: str) -> list[int]:
    found: list[int] = pq.read_table(path.removeprefix("file://"), partitioning=None)["id"].to_pylist()
    return found


def test_finished_ranges_of_many_partitions_are_not_done_again(catalog: Catalog) -> None:
    table, rows = table_of(catalog, 3, 4)
    dataset = dataset_of(table)
    dataset.range_bytes = 1
    steps = Steps(dataset)
    steps.schedule()
    stepped = InlineEngine(stepped=True)
    first = Worker(dataset, stepped, steps.clock, "first")
    first.tick()
    assert stepped.waiting == 12, "a task for each partition, as each fills one"
    for _ in range(5):
        stepped.step()
    first.release()
    engine = InlineEngine()
    second = Worker(dataset, engine, steps.clock, "second")
    second.tick()
    assert len(engine.submitted) == 7
    while second.is_busy:
        second.tick()
    ledger = dataset.ledger()
    assert ledger is not None
    assert [c.state for c in ledger.active()] == [CompactionState.COMPACTED]
    assert steps.commit().committed
    assert len(files_of(table)) == 12
    check(table, rows)
