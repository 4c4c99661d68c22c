"""What a commit changes in a table's metadata, and what it leaves as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.statistics import StatisticsFile
from pyiceberg.table.update import SetSnapshotRefUpdate, SetStatisticsUpdate
from pyiceberg.transforms import DayTransform
from pyiceberg.typedef import Record

from lithify.datasets.iceberg.format.summary import deletes_summary
from tests.datasets.iceberg.running import compact, dataset_of
from tests.datasets.iceberg.tables import (
    DAY,
    START,
    append,
    check,
    delete_positions,
    files_of,
    fresh,
    make_rows,
    new_table,
)

RETENTION = {"min-snapshots-to-keep": 7, "max-snapshot-age-ms": 86_400_000, "max-ref-age-ms": 99_000_000}
HOUR_MS = 3_600_000


def set_ref(table: Table, name: str, kind: SnapshotRefType, **retention: int) -> None:
    now = fresh(table)
    snapshot = now.current_snapshot()
    assert snapshot is not None
    ref = {"snapshot-id": snapshot.snapshot_id, "ref-name": name, "type": kind, **retention}
    now.catalog.commit_table(now, (), (SetSnapshotRefUpdate.model_validate(ref),))


def document(table: Table) -> dict[str, Any]:
    """The table's metadata as it is written."""
    path = Path(fresh(table).metadata_location.removeprefix("file://"))
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.mark.parametrize("branch", ["main", "audit"])
def test_a_commit_keeps_the_retention_of_the_branch(catalog: Catalog, branch: str) -> None:
    table = new_table(catalog, properties={"lithify.branch": branch})
    rows = append(table, make_rows(10)) + append(table, make_rows(10))
    set_ref(table, branch, SnapshotRefType.BRANCH, **RETENTION)
    before = document(table)["refs"][branch]
    assert {key: before[key] for key in RETENTION} == RETENTION
    assert compact(dataset_of(table)).committed
    after = document(table)["refs"][branch]
    assert after["snapshot-id"] != before["snapshot-id"]
    assert {**after, "snapshot-id": None} == {**before, "snapshot-id": None}
    check(table, rows)


def test_a_commit_changes_nothing_else(catalog: Catalog) -> None:
    """Other branches, tags, statistics, properties, schemas, specs, orders and all of the history stay."""
    table = new_table(catalog, properties={"lithify.branch": "main", "owner": "somebody"})
    append(table, make_rows(10))
    set_ref(table, "main", SnapshotRefType.BRANCH, **{"min-snapshots-to-keep": 3})
    set_ref(table, "audit", SnapshotRefType.BRANCH, **RETENTION)
    set_ref(table, "monthly", SnapshotRefType.TAG, **{"max-ref-age-ms": 5})
    append(table, make_rows(10))
    now = fresh(table)
    snapshot = now.current_snapshot()
    assert snapshot is not None
    statistics = {
        "snapshot-id": snapshot.snapshot_id,
        "statistics-path": f"{now.location()}/metadata/s.puffin",
        "file-size-in-bytes": 10,
        "file-footer-size-in-bytes": 5,
        "blob-metadata": [],
    }
    update = SetStatisticsUpdate.model_validate({"statistics": StatisticsFile.model_validate(statistics)})
    now.catalog.commit_table(now, (), (update,))

    before = document(table)
    assert compact(dataset_of(table)).committed
    after = document(table)
    assert after.pop("snapshots")[:-1] == before.pop("snapshots")
    assert after.pop("snapshot-log")[:-1] == before.pop("snapshot-log")
    assert after.pop("metadata-log")[:-1] == before.pop("metadata-log")
    assert after["refs"].pop("main") != before["refs"].pop("main")
    assert after.pop("last-sequence-number") == before.pop("last-sequence-number") + 1
    for changed in ("current-snapshot-id", "last-updated-ms"):
        assert after.pop(changed) != before.pop(changed)
    assert after == before


def test_a_clock_that_is_behind_does_not_turn_the_history_around(catalog: Catalog) -> None:
    """Java reads no table whose log goes back by more than a minute."""
    from lithify.testing import ManualClock

    table = new_table(catalog)
    append(table, make_rows(10))
    append(table, make_rows(10))
    head = document(table)
    behind = ManualClock(head["last-updated-ms"] - 5 * HOUR_MS)
    assert compact(dataset_of(table, clock=behind), clock=behind).committed
    after = document(table)
    times = [entry["timestamp-ms"] for entry in after["snapshot-log"]]
    assert times == sorted(times)
    assert after["last-updated-ms"] >= times[-1] == after["snapshots"][-1]["timestamp-ms"]


def test_the_summary_is_that_of_a_replace(catalog: Catalog) -> None:
    """The properties that Java's rewrite gives its snapshot, with the same values."""
    spec = PartitionSpec(PartitionField(1, 1000, DayTransform(), "day"))
    table = new_table(catalog, spec=spec, properties={"write.summary.partition-limit": "5"})
    for _ in range(2):
        append(table, make_rows(10, span=DAY))
        append(table, make_rows(10, START + DAY, span=DAY))
    path = files_of(table)[0].file_path
    delete_positions(table, {path: [1, 2]})
    inputs = files_of(table)
    removed_bytes = sum(file.file_size_in_bytes for file in inputs) + _size_of_deletes(table)
    assert compact(dataset_of(table)).committed
    snapshot = fresh(table).current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    summary = snapshot.summary.model_dump()
    outputs = files_of(table)
    assert summary["operation"] == "replace"
    compactions = summary.pop("lithify.compactions")
    assert len(compactions.split(",")) == 1, "small partitions are one compaction"
    partitions = {key: summary.pop(key) for key in list(summary) if key.startswith("partitions.")}
    assert set(partitions) == {"partitions.day=2025-01-01", "partitions.day=2025-01-02"}
    size = str(sum(file.file_size_in_bytes for file in outputs))
    assert summary == {
        "operation": "replace",
        "added-data-files": "2",
        "deleted-data-files": "4",
        "added-records": "38",
        "deleted-records": "40",
        "added-files-size": size,
        "removed-files-size": str(removed_bytes),
        "removed-delete-files": "1",
        "removed-position-delete-files": "1",
        "removed-position-deletes": "2",
        "changed-partition-count": "2",
        "partition-summaries-included": "true",
        "total-data-files": "2",
        "total-delete-files": "0",
        "total-records": "38",
        "total-files-size": size,
        "total-position-deletes": "0",
        "total-equality-deletes": "0",
    }


def _size_of_deletes(table: Table) -> int:
    now = fresh(table)
    snapshot = now.current_snapshot()
    assert snapshot is not None
    return sum(
        entry.data_file.file_size_in_bytes
        for manifest in snapshot.manifests(now.io)
        if manifest.content == 1
        for entry in manifest.fetch_manifest_entry(now.io)
    )


@pytest.mark.parametrize("summary", [None, {"operation": "append", "total-records": "many"}])
def test_totals_do_not_depend_on_the_summary_before(catalog: Catalog, summary: dict[str, str] | None) -> None:
    table = new_table(catalog)
    append(table, make_rows(10))
    append(table, make_rows(10))
    metadata = document(table)
    metadata["snapshots"][-1].pop("summary")
    if summary is not None:
        metadata["snapshots"][-1]["summary"] = summary
    Path(fresh(table).metadata_location.removeprefix("file://")).write_text(json.dumps(metadata))
    assert compact(dataset_of(table)).committed
    found = document(table)["snapshots"][-1]["summary"]
    assert (found["total-records"], found["total-data-files"]) == ("20", "1")


def test_a_total_that_is_certainly_wrong_is_not_carried_on() -> None:
    removed = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES, record_count=7, file_size_in_bytes=100, partition=Record()
    )
    said = {"total-delete-files": "0", "total-position-deletes": "9" * 5000, "total-files-size": "250"}
    found = deletes_summary(Summary(Operation.APPEND, **said), [removed], []).additional_properties
    assert {name: value for name, value in found.items() if name.startswith("total-")} == {
        "total-files-size": "150"
    }
