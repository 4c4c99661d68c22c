"""Tables of format version 3 that Java Iceberg writes: expiry, removal of orphans, garbage collection, and
the metadata files that these commits leave.

Java, PyIceberg and DuckDB read the same rows in every snapshot before and after, and Java the same row ids.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.manifest import DataFileContent
from pyiceberg.table import Table

from lithify.base.errors import CorruptObject, Refused, Unsupported
from lithify.base.ids import RandomIds
from lithify.datasets.iceberg.format.listing import ManifestCache, list_snapshot
from lithify.datasets.iceberg.format.manifests import is_vector
from lithify.datasets.iceberg.io.catalogs import load_table
from lithify.datasets.iceberg.maintenance.expire import ExpireOptions, Expirer, Expiry
from lithify.datasets.iceberg.maintenance.garbage import GarbageOptions, collect
from lithify.datasets.iceberg.maintenance.orphans import OrphanOptions, Orphans, remove_orphans
from lithify.datasets.iceberg.maintenance.reachable import FileKind
from tests.datasets.iceberg.hadoop_lake import HadoopLake, hadoop_lake
from tests.datasets.iceberg.reachability import needed_by
from tests.datasets.iceberg.running import a_clock, dataset_of
from tests.datasets.iceberg.tables import read, read_by_duckdb
from tests.judge.iceberg_java import IcebergJava

A_LONG_TIME_MS = 4_000_000_000_000
"""What is older than this is everything."""
A_WEEK_S = 7 * 24 * 3600
MODES = "'write.delete.mode'='merge-on-read', 'write.update.mode'='merge-on-read'"

History = dict[int, list[tuple[Any, ...]]]


@pytest.fixture
def lake3(tmp_path: Path, java: IcebergJava) -> HadoopLake:
    return hadoop_lake(tmp_path / "lake", java)


def create(lake: HadoopLake, *, version: int = 3, partitioned: str = "device") -> None:
    lake.sql(
        "CREATE TABLE events (event_time timestamp, id bigint, device string) USING iceberg "
        f"{f'PARTITIONED BY ({partitioned})' if partitioned else ''} "
        f"TBLPROPERTIES ('format-version'='{version}', {MODES})"
    )


def insert(lake: HadoopLake, first: int, count: int = 10, into: str = "events") -> None:
    device = "CASE WHEN id % 2 = 0 THEN 'a' ELSE 'b' END"
    lake.sql(
        f"INSERT INTO {into} SELECT timestamp_seconds(1735689600 + id * 60), id, {device} "
        f"FROM range({first}, {first + count})"
    )


def make(lake: HadoopLake) -> None:
    """A table with all that version 3 adds: vectors that share a file, one that replaced another, rows that
    were moved by an update, a branch, a tag."""
    create(lake)
    insert(lake, 0)
    insert(lake, 10)
    lake.sql("DELETE FROM events WHERE id IN (1, 2, 14)")
    lake.sql("ALTER TABLE events CREATE TAG kept")
    lake.sql("UPDATE events SET event_time = event_time + INTERVAL 1 DAY WHERE id IN (5, 16)")
    lake.sql("ALTER TABLE events CREATE BRANCH side")
    insert(lake, 20, into="events.branch_side")
    insert(lake, 30)
    lake.sql("DELETE FROM events WHERE id IN (3, 4)")


def history(lake: HadoopLake) -> History:
    """The rows of every snapshot with their identities as Java reads them; the other readers agree."""
    table, found = lake.table, {}
    for snapshot in table.snapshots():
        rows = lake.identities(snapshot.snapshot_id)
        plain = sorted((row[2:] for row in rows), key=lambda row: int(row[1]))
        assert read(table, snapshot.snapshot_id) == plain
        assert read_by_duckdb(table, snapshot.snapshot_id) == plain
        found[snapshot.snapshot_id] = rows
    return found


def expire(lake: HadoopLake, grace_ms: int = 0) -> Expiry:
    clock = a_clock()
    options = ExpireOptions(older_than_ms=A_LONG_TIME_MS, retain_last=1, grace_ms=grace_ms)
    return Expirer(dataset_of(lake.table, clock=clock), clock, RandomIds()).run(options)


def sweep(lake: HadoopLake) -> Orphans:
    """Remove orphans; all files are a week old."""
    root, then = local(lake.table.location()), time.time() - A_WEEK_S
    for path in root.rglob("*"):
        os.utime(path, (then, then))
    clock = a_clock()
    options = OrphanOptions(dry_run=False, max_percent=100)
    return remove_orphans(dataset_of(lake.table, clock=clock), clock, RandomIds(), options)


def local(path: str) -> Path:
    return Path(path.removeprefix("file:").replace("//", "/"))


def puffins(table: Table) -> set[str]:
    return {path.name for path in local(table.location()).rglob("*.puffin")}


def document(table: Table) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(local(table.metadata_location).read_text())
    return found


def test_snapshots_are_expired_and_orphans_removed(lake3: HadoopLake) -> None:
    make(lake3)
    before = history(lake3)
    orphan = local(lake3.table.location()) / "data" / "nobody-deletes.puffin"
    orphan.write_bytes(b"PFA1")

    assert expire(lake3).expired
    assert sweep(lake3).deleted >= 1
    collect(dataset_of(lake3.table), a_clock(), GarbageOptions(dry_run=False))

    assert not orphan.exists()
    after = history(lake3)
    assert len(after) < len(before)
    assert after == {snapshot_id: before[snapshot_id] for snapshot_id in after}
    needed = needed_by(lake3.table.metadata_location, lambda path: local(path).read_bytes()).all
    kinds = (".parquet", ".avro", ".puffin")
    there = {
        path
        for path in local(lake3.table.location()).rglob("*")
        if path.suffix in kinds and "_lithify" not in path.parts
    }
    assert there == set(map(local, needed))
    assert {"kept", "side", "main"} == lake3.table.metadata.refs.keys()
    lake3.sql("DELETE FROM events WHERE id = 33")  # Java goes on
    insert(lake3, 40)
    ids = [row[0] for row in lake3.identities()]
    assert len(set(ids)) == len(ids)


def test_a_puffin_file_is_kept_while_one_of_its_vectors_is_live(lake3: HadoopLake) -> None:
    create(lake3)
    insert(lake3, 0)
    insert(lake3, 10)
    lake3.sql("DELETE FROM events WHERE id IN (2, 3, 14, 15)")  # four vectors in one file or more
    shared = puffins(lake3.table)
    lake3.sql("DELETE FROM events WHERE id IN (4)")  # replaces one of them

    assert expire(lake3).deleted[FileKind.POSITION_DELETES] == 0
    assert puffins(lake3.table) >= shared

    lake3.sql("DELETE FROM events WHERE id >= 0")
    insert(lake3, 20)
    gone = expire(lake3)
    assert gone.deleted[FileKind.POSITION_DELETES] == len(shared) + 1 or not puffins(lake3.table)
    assert not puffins(lake3.table)
    lake3.identities()


def test_the_size_of_a_shared_puffin_file_counts_once(lake3: HadoopLake) -> None:
    create(lake3)
    insert(lake3, 0)
    lake3.sql("DELETE FROM events WHERE id IN (2, 3)")
    table = lake3.table
    names = [local(table.location()) / "data" / name for name in puffins(table)]
    vectors = lake3.sql("SELECT count(*) FROM events.delete_files")[0][0]
    assert vectors > len(names)
    lake3.sql("DELETE FROM events WHERE id >= 0")
    insert(lake3, 20)
    clock = a_clock()
    options = ExpireOptions(older_than_ms=A_LONG_TIME_MS, retain_last=1, grace_ms=0, dry_run=True)
    foreseen = Expirer(dataset_of(lake3.table, clock=clock), clock, RandomIds()).run(options).would_delete
    root = local(table.location())
    before = {path: path.stat().st_size for path in root.rglob("*") if path.is_file()}
    expire(lake3)
    gone = {path: size for path, size in before.items() if not path.exists()}
    assert foreseen == (len(gone), sum(gone.values()))


def test_first_row_ids_are_those_of_java(lake3: HadoopLake) -> None:
    make(lake3)
    table = lake3.table
    for snapshot in table.snapshots():
        found = lake3.sql(
            f"SELECT file_path, first_row_id FROM events.data_files VERSION AS OF {snapshot.snapshot_id}"
        )
        for most in (100_000, 1):  # held, and scanned
            listing = list_snapshot(table, snapshot, ManifestCache(most))
            ours = [
                (e.data_file.file_path, e.data_file._data[-4]) for e in listing.entries(DataFileContent.DATA)
            ]
            assert sorted(ours) == sorted(found)


def test_an_upgraded_table_has_no_row_ids_until_the_next_commit(lake3: HadoopLake) -> None:
    create(lake3, version=2)
    insert(lake3, 0)
    insert(lake3, 10)
    lake3.sql("ALTER TABLE events SET TBLPROPERTIES ('format-version'='3')")
    cache = ManifestCache()

    def ids() -> list[Any]:
        table = lake3.table
        head = table.current_snapshot()
        assert head is not None
        entries = list_snapshot(table, head, cache).entries(DataFileContent.DATA)
        return sorted((e.data_file.file_path, e.data_file._data[-4]) for e in entries)

    def of_java() -> list[Any]:
        return sorted(lake3.sql("SELECT file_path, first_row_id FROM events.data_files"))

    assert {first for _, first in ids()} == {None}
    assert ids() == of_java()
    insert(lake3, 20)
    assert None not in {first for _, first in ids()}
    assert ids() == of_java()
    before = history(lake3)
    assert expire(lake3).expired
    assert history(lake3) == {n: before[n] for n in [s.snapshot_id for s in lake3.table.snapshots()]}


def test_a_commit_changes_nothing_else_in_a_metadata_file(lake3: HadoopLake) -> None:
    make(lake3)
    table = lake3.table
    stored = document(table)
    stored["schemas"][0]["fields"][1] |= {"initial-default": 7, "write-default": 8}
    stored["field-of-the-future"] = {"a": [1, None, "\u00fc"]}
    stored["snapshots"][1]["key-of-the-future"] = "x"
    local(table.metadata_location).write_text(json.dumps(stored))

    with lake3.table.transaction() as change:
        change.set_properties({"mine": "1"})
    now = document(lake3.table)
    properties = {**stored["properties"], "mine": "1"}
    assert changed_fields(stored, now) == {"properties", "last-updated-ms", "metadata-log"}
    assert now["properties"] == properties
    assert now["metadata-log"][:-1] == stored["metadata-log"]

    done = expire(lake3)
    last = document(lake3.table)
    gone = set(done.expired)
    assert last["snapshots"] == [s for s in now["snapshots"] if s["snapshot-id"] not in gone]
    log = [entry["snapshot-id"] for entry in stored["snapshot-log"]]
    newest = max(n for n, snapshot_id in enumerate(log) if snapshot_id in gone)
    assert last["snapshot-log"] == stored["snapshot-log"][newest + 1 :]
    expected = {"snapshots", "snapshot-log", "properties", "last-updated-ms", "metadata-log"}
    assert changed_fields(now, last) <= expected


def changed_fields(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def test_java_expires_the_same(lake3: HadoopLake, tmp_path: Path, java: IcebergJava) -> None:
    """Of the same metadata file, both leave the same."""
    make(lake3)
    other = hadoop_lake(tmp_path / "other", java)
    place = local(lake3.table.location())
    copied = tmp_path / "other" / "db" / "events" / "metadata"
    copied.mkdir(parents=True)
    for path in (place / "metadata").glob("v*"):
        (copied / path.name).write_bytes(path.read_bytes())
    (copied / "version-hint.text").write_text((place / "metadata" / "version-hint.text").read_text())
    assert expire(lake3, grace_ms=3_600_000).expired  # files stay
    other.call("expire_snapshots", older_than="TIMESTAMP '9999-01-01 00:00:00'", retain_last="1")
    ours, theirs = document(lake3.table), document(other.table)
    assert changed_fields(theirs, ours) <= {"properties", "last-updated-ms", "metadata-log"}


def test_a_newer_version_is_called_newer(lake3: HadoopLake) -> None:
    create(lake3)
    table = lake3.table
    stored = document(table)
    local(table.metadata_location).write_text(json.dumps({**stored, "format-version": 4}))
    with pytest.raises(Unsupported, match="format version 4 is newer"):
        load_table(lake3.catalog, ("db", "events"))
    for nonsense in ("3a", -1, None):
        local(table.metadata_location).write_text(json.dumps({**stored, "format-version": nonsense}))
        with pytest.raises(CorruptObject):
            load_table(lake3.catalog, ("db", "events"))


def test_an_encrypted_table_is_refused(lake3: HadoopLake) -> None:
    create(lake3)
    insert(lake3, 0)
    lake3.sql("ALTER TABLE events SET TBLPROPERTIES ('encryption.key-id'='k')")
    place = local(lake3.table.location())
    before = sorted(place.rglob("*"))
    dataset = dataset_of(lake3.table)
    for action in (lambda: expire(lake3), lambda: sweep(lake3), lambda: collect(dataset, a_clock())):
        with pytest.raises(Refused, match="encrypted"):
            action()
    assert sorted(place.rglob("*")) == before


def test_an_encrypted_manifest_list_is_refused(lake3: HadoopLake) -> None:
    create(lake3)
    insert(lake3, 0)
    (head,) = lake3.table.snapshots()
    local(head.manifest_list).write_bytes(b"AGS1" + bytes(100))
    dataset = dataset_of(lake3.table)
    with pytest.raises(Unsupported, match="is encrypted"):
        dataset.snapshot()


def test_a_type_of_the_future_is_called_new(lake3: HadoopLake) -> None:
    create(lake3)
    stored = document(lake3.table)
    stored["schemas"][0]["fields"].append({"id": 4, "name": "v", "type": "variant", "required": False})
    local(lake3.table.metadata_location).write_text(json.dumps(stored))
    with pytest.raises(Unsupported, match="the type variant, which this version"):
        load_table(lake3.catalog, ("db", "events"))


def test_vectors_are_counted_as_delete_files(lake3: HadoopLake) -> None:
    make(lake3)
    state = dataset_of(lake3.table).snapshot()
    assert state.delete_files == lake3.sql("SELECT count(*) FROM events.delete_files")[0][0]
    assert "expiry" not in state.refused
    head = lake3.table.current_snapshot()
    assert head is not None
    deletes = list_snapshot(lake3.table, head, ManifestCache()).entries(DataFileContent.POSITION_DELETES)
    assert all(is_vector(entry.data_file) for entry in deletes)
