"""Commits on tables of format version 3: manifests rewritten, data files replaced.

Java reads all rows with the ids that they had, goes on, and gives no id twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntry
from pyiceberg.table import Table

from lithify.base.errors import CorruptObject
from lithify.datasets.iceberg.compaction.task import SourceFile
from lithify.datasets.iceberg.deletes.deleted_rows import DeletedRows
from lithify.datasets.iceberg.format.listing import Listing, ManifestCache, read_listing
from lithify.datasets.iceberg.format.manifests import is_vector, key_of
from lithify.datasets.iceberg.format.publish import PreparedSnapshot, publish
from lithify.datasets.iceberg.format.replace import (
    Added,
    Replacement,
    data_file_of,
    obsolete_deletes,
    write,
)
from lithify.datasets.iceberg.model import NewFile
from lithify.datasets.iceberg.rewriting.head_rewrite import RewriteOutcome
from lithify.datasets.iceberg.rewriting.rewrite_manifests import ManifestRewriter
from tests.datasets.iceberg.hadoop_lake import HadoopLake, hadoop_lake
from tests.datasets.iceberg.running import a_clock, dataset_of
from tests.datasets.iceberg.test_version3 import create, document, history, insert, local, make
from tests.judge.iceberg_java import IcebergJava


@pytest.fixture
def lake3(tmp_path: Path, java: IcebergJava) -> HadoopLake:
    return hadoop_lake(tmp_path / "lake", java)


def check_ids(lake: HadoopLake) -> None:
    """No id is given twice, and all are below the next one."""
    counts = Counter(row[0] for row in lake.identities())
    assert not [row_id for row_id, count in counts.items() if count > 1]
    following = document(lake.table)["next-row-id"]
    assert all(row_id < following for row_id in counts)
    for snapshot in document(lake.table)["snapshots"]:
        if "first-row-id" in snapshot:
            assert snapshot["first-row-id"] + snapshot["added-rows"] <= following


def goes_on(lake: HadoopLake) -> None:
    """Java deletes, updates and inserts, and the other rows keep their identities; then it maintains the
    table. Java 1.10 itself may give other ids to rows when it rewrites manifests and data files, whose ids
    are not stored in the files."""
    before = {row[3]: row for row in lake.identities()}
    lake.sql("DELETE FROM events WHERE id IN (7, 12)")
    lake.sql("UPDATE events SET event_time = event_time + INTERVAL 2 DAY WHERE id = 8")
    insert(lake, 1000)
    after = {row[3]: row for row in lake.identities()}
    expected = before.keys() - {7, 8, 12}
    assert {n: after[n] for n in expected} == {n: before[n] for n in expected}
    assert after[8][0] == before[8][0]
    check_ids(lake)
    lake.call("rewrite_manifests")
    lake.call("rewrite_data_files", options="map('rewrite-all', 'true')")
    lake.call("rewrite_position_delete_files", options="map('rewrite-all', 'true')")
    assert {row[3]: row[2:] for row in lake.identities()} == {n: row[2:] for n, row in after.items()}
    check_ids(lake)


def rewrite_manifests(lake: HadoopLake) -> None:
    clock = a_clock()
    done = ManifestRewriter(dataset_of(lake.table, clock=clock), clock).run()
    assert done.outcome is RewriteOutcome.REWRITTEN


# Manifests


@pytest.mark.parametrize("version", [3, 2])
def test_manifests_are_rewritten(lake3: HadoopLake, version: int) -> None:
    """Also as the first commit after an upgrade, which gives ids to all existing rows."""
    if version == 3:
        make(lake3)
        lake3.sql("ALTER TABLE events DROP BRANCH side")
    else:
        create(lake3, version=2)
        insert(lake3, 0)
        insert(lake3, 10)
        lake3.sql("DELETE FROM events WHERE id IN (1, 2, 14)")
        lake3.sql("ALTER TABLE events SET TBLPROPERTIES ('format-version'='3')")
    before, rows = history(lake3), lake3.identities()
    rewrite_manifests(lake3)
    after = history(lake3)
    assert {n: after[n] for n in before} == before
    if version == 3:
        assert lake3.identities() == rows
    else:
        assert [row[2:] for row in by_id(lake3.identities())] == [row[2:] for row in by_id(rows)]
        assert not [row for row in lake3.identities() if None in row[:2]]
    check_ids(lake3)
    head = document(lake3.table)["snapshots"][-1]
    assert head["first-row-id"] + head["added-rows"] == document(lake3.table)["next-row-id"]
    goes_on(lake3)


def by_id(rows: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=lambda row: int(row[3]))


# Data files


def rewritten(table: Table, entry: ManifestEntry, positions: set[int]) -> NewFile:
    """An output: the rows of a data file that are left, with their identities."""
    file, first = entry.data_file, entry.data_file._data[-4]
    content = pq.read_table(local(file.file_path), partitioning=None)
    schema = content.schema
    for name, field_id, values in (
        ("_row_id", 2147483540, [first + n for n in range(content.num_rows)]),
        ("_last_updated_sequence_number", 2147483539, [entry.sequence_number] * content.num_rows),
    ):
        if name in content.column_names:
            own = content.column(name).to_pylist()
            values = [value if found is None else found for value, found in zip(values, own, strict=True)]
            content = content.drop_columns([name])
        field = pa.field(name, pa.int64(), True, {"PARQUET:field_id": str(field_id)})
        content = content.append_column(field, pa.array(values, pa.int64()))
    keep = [n for n in range(content.num_rows) if n not in positions]
    path = Path(f"{file.file_path}.again.parquet")
    pq.write_table(content.take(keep), path)
    assert schema.names
    return NewFile(str(path), path.stat().st_size, len(keep), None)


def replaced(lake: HadoopLake, branch: str = "main") -> PreparedSnapshot:
    """All data files that have a vector are written without it, and all others as they are."""
    table = lake.table
    head = read_listing(table, branch, ManifestCache())
    assert head is not None
    replacement = Replacement()
    for path, entry in head.data.items():
        deletes = head.deletes_of(entry)
        assert all(map(is_vector, deletes))
        gone = positions_of(table, entry, deletes) if deletes else set()
        output = rewritten(table, entry, gone)
        replacement.removed[path] = entry
        file = data_file_of(output, entry.data_file.spec_id, entry.data_file.partition)
        if output.rows:
            replacement.added.append(Added(file, head.snapshot.sequence_number or 0))
    replacement.removed |= obsolete_deletes(head, replacement)
    return write(table, branch, head, replacement, {}, 0)


def positions_of(table: Table, entry: ManifestEntry, deletes: Collection[DataFile]) -> set[int]:
    source = SourceFile(0, entry.data_file, tuple(deletes), True, entry.sequence_number or 0)
    positions = DeletedRows(table.io, [source]).of(source).between(0, entry.data_file.record_count)
    return set(positions.tolist())


def live_vectors(listing: Listing) -> set[Any]:
    entries = listing.entries(DataFileContent.POSITION_DELETES)
    return {key_of(entry.data_file) for entry in entries}


def test_data_files_are_replaced(lake3: HadoopLake) -> None:
    make(lake3)
    lake3.sql("ALTER TABLE events DROP BRANCH side")
    before, rows = history(lake3), lake3.identities()
    prepared = replaced(lake3)
    assert publish(lake3.table, prepared, lambda: lake3.table)
    assert lake3.identities() == rows
    after = history(lake3)
    assert {n: after[n] for n in before} == before
    head = read_listing(lake3.table, "main", ManifestCache())
    assert head is not None
    assert not live_vectors(head)
    summary = document(lake3.table)["snapshots"][-1]["summary"]
    assert summary["removed-dvs"] == summary["removed-delete-files"]
    assert "removed-position-delete-files" not in summary
    assert (summary["total-delete-files"], summary["total-records"]) == ("0", str(len(rows)))
    check_ids(lake3)
    goes_on(lake3)


def test_another_branch_takes_row_ids_too(lake3: HadoopLake) -> None:
    """A commit that was prepared before is refused, and made again with the next ids."""
    create(lake3)
    insert(lake3, 0)
    lake3.sql("ALTER TABLE events CREATE BRANCH side")
    prepared, table = replaced(lake3), lake3.table
    insert(lake3, 100, into="events.branch_side")
    assert not publish(table, prepared, lambda: lake3.table)
    check_ids(lake3)
    rows = lake3.identities()
    again = replaced(lake3)
    assert publish(lake3.table, again, lambda: lake3.table)
    assert lake3.identities() == rows
    side = replaced(lake3, "side")
    on_side = lake3.sql("SELECT _row_id, id FROM events.branch_side ORDER BY id")
    assert publish(lake3.table, side, lambda: lake3.table)
    assert lake3.sql("SELECT _row_id, id FROM events.branch_side ORDER BY id") == on_side
    check_ids(lake3)
    insert(lake3, 200)
    check_ids(lake3)


def test_another_branch_takes_the_sequence_number(lake3: HadoopLake) -> None:
    """By a commit without rows, which takes no row ids."""
    create(lake3)
    insert(lake3, 0)
    lake3.sql("ALTER TABLE events CREATE BRANCH side")
    prepared, table = replaced(lake3), lake3.table
    lake3.sql("DELETE FROM events.branch_side WHERE id = 1")
    assert not publish(table, prepared, lambda: lake3.table)
    assert publish(lake3.table, replaced(lake3), lambda: lake3.table)
    numbers = [snapshot["sequence-number"] for snapshot in document(lake3.table)["snapshots"]]
    assert len(set(numbers)) == len(numbers)
    check_ids(lake3)


def test_a_next_row_id_that_was_given_already_is_refused(lake3: HadoopLake) -> None:
    create(lake3)
    insert(lake3, 0)
    insert(lake3, 10)
    path = local(lake3.table.metadata_location)
    stored = path.read_text()
    for wrong in ('"next-row-id":5', '"other":0'):
        path.write_text(stored.replace('"next-row-id":20', wrong))
        with pytest.raises(CorruptObject, match="next row id"):
            ManifestRewriter(dataset_of(lake3.table), a_clock()).run()
