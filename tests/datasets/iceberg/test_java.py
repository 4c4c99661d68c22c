"""Tables on which Java Iceberg works too: what it writes, and its own maintenance before and after ours.

Rows, history and time travel stay the same for Java, PyIceberg and DuckDB.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFileContent
from pyiceberg.table import Table

from lithify.datasets.iceberg.deletes import equality_deletes
from lithify.datasets.iceberg.format.ownership import OWN_FOLDER
from lithify.datasets.iceberg.rewriting.head_rewrite import RewriteOutcome
from lithify.datasets.iceberg.rewriting.rewrite_deletes import DeleteRewriter
from lithify.datasets.iceberg.rewriting.rewrite_manifests import ManifestRewriter, RewritingManifests
from tests.datasets.iceberg.lake import Lake
from tests.datasets.iceberg.running import a_clock, compact, dataset_of
from tests.datasets.iceberg.tables import (
    DAY,
    START,
    Row,
    append,
    append_with_deletes,
    check,
    delete_equal,
    delete_files_of,
    delete_positions,
    files_of,
    fresh,
    make_rows,
    new_table,
    read,
    read_by_duckdb,
    read_by_java,
)
from tests.judge.iceberg_java import iceberg_java

A_WEEK_S = 7 * 24 * 3600
AT_ONCE = {"lithify.min-saved-files": "1", "lithify.min-new-percent": "0", "lithify.max-deleted-percent": "1"}
"""Whatever there is to do is done."""


def create(lake: Lake, columns: str = "", *, partitioned: str = "", version: int = 2, mode: str = "") -> None:
    """An empty table made by Java."""
    mode = mode or "merge-on-read"
    at_once = "".join(f", '{key}'='{value}'" for key, value in AT_ONCE.items())
    modes = "".join(f", 'write.{what}.mode'='{mode}'" for what in ("delete", "update", "merge"))
    lake.sql(
        f"CREATE TABLE events (event_time timestamp, id bigint, device string{columns}) USING iceberg "
        f"{f'PARTITIONED BY ({partitioned})' if partitioned else ''} "
        f"TBLPROPERTIES ('format-version'='{version}'{at_once}{modes})"
    )


def insert(lake: Lake, first: int, count: int = 10, more: str = "", day: int = 0) -> None:
    """Rows of two devices on one day, by Java."""
    at = f"timestamp_seconds({round(START.timestamp())} + {day} * 86400 + id * 60)"
    device = "CASE WHEN id % 2 = 0 THEN 'a' ELSE 'b' END"
    lake.sql(f"INSERT INTO events SELECT {at}, id, {device}{more} FROM range({first}, {first + count})")


def agree(table: Table, *, by_pyiceberg: bool = True) -> list[tuple[Any, ...]]:
    """What all readers read."""
    rows = read_by_java(table)
    assert read_by_java(table, reader="generic") == rows
    assert read_by_duckdb(table) == rows
    if by_pyiceberg:
        assert read(table) == rows
    return rows


def history(table: Table) -> dict[int, list[tuple[Any, ...]]]:
    """The rows of every snapshot as Java and PyIceberg read them."""
    found = {}
    for snapshot in fresh(table).snapshots():
        rows = read_by_java(table, snapshot.snapshot_id, reader="generic")
        assert read(table, snapshot.snapshot_id) == rows
        found[snapshot.snapshot_id] = rows
    return found


METADATA = ("files", "entries", "manifests", "refs", "history", "snapshots", "partitions", "all_data_files")


def check_metadata(table: Table) -> None:
    """Java reads all metadata tables, and the files in them are those of PyIceberg."""
    location = fresh(table).metadata_location
    found = {part: iceberg_java().rows(location, part=part).dicts() for part in METADATA}
    files = {file["file_path"]: file["record_count"] for file in found["files"]}
    expected = [*files_of(table), *delete_files_of(table)]
    assert files == {file.file_path: file.record_count for file in expected}
    assert {row["snapshot_id"] for row in found["snapshots"]} == {s.snapshot_id for s in table.snapshots()}
    assert all(found.values())


def compacted(table: Table, *, by_pyiceberg: bool = True) -> None:
    """Compact. The rows stay, and those of all snapshots there were."""
    rows = agree(table, by_pyiceberg=by_pyiceberg)
    before = history(table) if by_pyiceberg else {}
    result = compact(dataset_of(table))
    assert result.committed
    assert not result.failures
    assert agree(table, by_pyiceberg=by_pyiceberg) == rows
    if by_pyiceberg:
        after = history(table)
        assert {n: after[n] for n in before} == before


# Java's maintenance


def orphan(table: Table) -> Path:
    """A data file that nobody refers to; everything beside the table is a week old now."""
    place = Path(table.location().removeprefix("file://"))
    path = place / "data" / "nobody.parquet"
    path.write_bytes(b"nothing")
    then = time.time() - A_WEEK_S
    for found in place.rglob("*"):
        os.utime(found, (then, then))
    return path


def own_files(table: Table) -> list[Path]:
    """What Lithify keeps beside the table."""
    return sorted(Path(table.location().removeprefix("file://"), OWN_FOLDER).rglob("*.json"))


def maintain(lake: Lake, procedure: str) -> None:
    """One of Java's procedures, and that it did what it is for."""
    if procedure == "rewrite_manifests":
        assert lake.call(procedure)[0][0] > 1
    elif procedure == "rewrite_data_files":
        assert lake.call(procedure, options="map('rewrite-all', 'true')")[0][0] > 1
    elif procedure == "rewrite_position_delete_files":
        lake.call(procedure, options="map('rewrite-all', 'true')")
    elif procedure == "expire_snapshots":
        lake.call(procedure, older_than="TIMESTAMP '9999-01-01 00:00:00'", retain_last="1")
        assert len(fresh(lake.table).snapshots()) == 1
    else:
        path = orphan(lake.table)
        notes = own_files(lake.table)
        gone = {row[0] for row in lake.call(procedure)}
        assert f"file:{path}" in gone
        assert not path.exists()
        assert own_files(lake.table) == notes


PROCEDURES = [
    "rewrite_manifests",
    "rewrite_data_files",
    "rewrite_position_delete_files",
    "expire_snapshots",
    "remove_orphan_files",
]


@pytest.mark.parametrize("procedure", PROCEDURES)
def test_java_maintains_the_table_before_and_after(lake: Lake, catalog: Catalog, procedure: str) -> None:
    table = new_table(catalog, properties=AT_ONCE)
    rows: list[Row] = []

    def more() -> None:
        for n in range(4):
            rows.extend(append(table, make_rows(10, START + n // 2 * DAY)))
        rows.extend(append_with_deletes(table, make_rows(10, START + DAY), [0, 3]))
        gone = files_of(table)[-1]
        delete_positions(table, {gone.file_path: [1]})
        left = {row[1] for row in read(table)}
        rows[:] = [row for row in rows if row[1] in left]

    def keeps(snapshots: dict[int, list[tuple[Any, ...]]]) -> None:
        now = history(table)
        assert all(now[n] == found for n, found in snapshots.items() if n in now)

    more()
    check(table, rows)
    past = history(table)
    maintain(lake, procedure)
    keeps(past)
    check(table, rows)
    rows += append(table, make_rows(10))
    compacted(table)
    past = history(table)
    maintain_again(lake, procedure)
    keeps(past)
    check(table, rows)
    more()
    check(table, rows)
    compacted(table)
    check(table, rows)


def test_java_applies_the_deletes_that_are_too_many(
    lake: Lake, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `lithify doctor` advises."""
    monkeypatch.setattr(equality_deletes, "MAX_ROWS", 5)
    table = new_table(catalog, properties=AT_ONCE)
    rows = [row for n in range(3) for row in append(table, make_rows(10, START + n * DAY))]
    delete_equal(table, [row[1] for row in rows[:6]])
    (left,) = dataset_of(table).snapshot().left_alone
    assert (left.files, left.is_stuck) == (3, True)
    lake.call("rewrite_data_files", options="map('delete-file-threshold', '1', 'min-input-files', '100')")
    assert dataset_of(table).snapshot().left_alone == ()
    check(table, rows[6:], by_pyiceberg=False)


def maintain_again(lake: Lake, procedure: str) -> None:
    """The same after a compaction, which may have left it little to do."""
    if procedure == "rewrite_data_files":
        lake.call(procedure, options="map('rewrite-all', 'true')")
    elif procedure == "rewrite_manifests":
        lake.call(procedure)
    else:
        assert own_files(lake.table)
        maintain(lake, procedure)


# What Java writes


@pytest.mark.parametrize(
    ("mode", "partitioned"),
    [
        pytest.param("merge-on-read", "", marks=pytest.mark.whole),
        pytest.param("merge-on-read", "device", marks=pytest.mark.whole),
        pytest.param("merge-on-read", "days(event_time)", marks=pytest.mark.whole),
        ("merge-on-read", "bucket(2, id), truncate(1, device)"),
        ("copy-on-write", "device"),
    ],
)
def test_java_changes_rows(lake: Lake, mode: str, partitioned: str) -> None:
    create(lake, partitioned=partitioned, mode=mode)
    for n in range(3):
        insert(lake, 10 * n, day=n // 2)
    lake.sql("DELETE FROM events WHERE id IN (1, 2, 15)")
    lake.sql("UPDATE events SET device = 'c' WHERE id IN (3, 21)")
    lake.sql(
        "MERGE INTO events t USING (SELECT explode(array(4L, 100L)) id) s ON t.id = s.id "
        "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN "
        f"INSERT (event_time, id, device) VALUES (timestamp_seconds({round(START.timestamp())}), s.id, 'm')"
    )
    rows = {row[1]: row[2] for row in agree(lake.table)}
    assert set(rows) == set(range(30)) - {1, 2, 15, 4} | {100}
    assert (rows[3], rows[21], rows[100]) == ("c", "c", "m")
    compacted(lake.table)
    assert not [f for f in delete_files_of(lake.table) if f.content == DataFileContent.POSITION_DELETES]
    lake.sql("DELETE FROM events WHERE id = 5")
    insert(lake, 200)
    compacted(lake.table)
    check_metadata(lake.table)
    assert {row[1] for row in agree(lake.table)} == set(rows) - {5} | set(range(200, 210))


@pytest.mark.parametrize("partition", [pytest.param(None, marks=pytest.mark.whole), "device=a"])
def test_java_deletes_by_value(lake: Lake, partition: str | None) -> None:
    """The compaction applies such a delete, and what is written later stays."""
    create(lake, partitioned="device" if partition else "")
    insert(lake, 0)
    insert(lake, 10)
    path = f"{lake.table.location()}/data/by-value.parquet"
    events = f"{lake.name}.db.events"
    lake.java.delete_equal(events, ["id", "device"], [[4, "a"], [12, "a"]], partition=partition, path=path)
    insert(lake, 0)  # after the delete, so these stay
    insert(lake, 10)
    rows = agree(lake.table, by_pyiceberg=False)
    assert len(rows) == 38
    compacted(lake.table, by_pyiceberg=False)
    assert delete_files_of(lake.table) == []
    assert agree(lake.table) == rows


def test_java_changes_schema_and_partitions(lake: Lake) -> None:
    create(lake, ", n int, x float, s struct<a: int, b: string>, gone string, d decimal(5, 2)")
    made = ", cast(id AS int), cast(id / 3 AS float), named_struct('a', cast(id AS int), 'b', 'q'), 'g', 1.25"
    insert(lake, 0, more=made)
    insert(lake, 10, more=made)
    for change in (
        "ADD COLUMN more array<struct<k: int>> AFTER id",
        "RENAME COLUMN device TO unit",
        "ALTER COLUMN n TYPE bigint",
        "ALTER COLUMN x TYPE double",
        "ALTER COLUMN d TYPE decimal(10, 2)",
        "ALTER COLUMN s.a TYPE bigint",
        "ADD COLUMN s.c timestamp_ntz",
        "RENAME COLUMN s.b TO z",
        "DROP COLUMN gone",
        "ADD PARTITION FIELD unit",
        "ALTER COLUMN x FIRST",
    ):
        lake.sql(f"ALTER TABLE events {change}")
    values = "1.5, timestamp_seconds({0}), {1}, array(named_struct('k', 1), NULL), 'u', 1, "
    values += "named_struct('a', 2, 'z', 'r', 'c', NULL), 2"
    for n in (100, 101):
        lake.sql(f"INSERT INTO events VALUES ({values.format(round(START.timestamp()), n)})")
    lake.sql("DELETE FROM events WHERE id = 3")
    lake.sql("ALTER TABLE events REPLACE PARTITION FIELD unit WITH bucket(4, id)")
    for n in (200, 204):
        lake.sql(f"INSERT INTO events VALUES ({values.format(round(START.timestamp()), n)})")
    before = of_java(lake.table)
    assert len(before) == 23
    assert compact(dataset_of(lake.table)).committed
    assert of_java(lake.table) == before
    assert len(files_of(lake.table)) < 8


def of_java(table: Table) -> list[str]:
    """All rows as Java reads them, for any schema."""
    location = fresh(table).metadata_location
    found = [iceberg_java().rows(location, reader=reader) for reader in ("spark", "generic")]
    spark, generic = (sorted(map(repr, rows.dicts())) for rows in found)
    assert spark == generic
    return spark


ALL_TYPES = """
    true, cast(-2147483648 AS int), 9223372036854775807L, cast(0.1 AS float), double('NaN'), 1.50,
    1234567890.0123456789, date'0001-01-01', timestamp_ntz'0001-01-01 00:00:00.000001',
    timestamp'9999-12-31 23:59:59.999999', 'Zürich', X'00ff', array(1, NULL),
    map('a', named_struct('t', timestamp'1969-12-31 23:59:59.999999')),
    named_struct('l', array(named_struct('x', 1), NULL), 'm', map('k', array(1.5d)))
"""
TYPE_COLUMNS = """,
    c0 boolean, c1 int, c2 bigint, c3 float, c4 double, c5 decimal(9, 2), c6 decimal(38, 10), c7 date,
    c8 timestamp_ntz, c9 timestamp, c10 string, c11 binary, c12 array<int>,
    c13 map<string, struct<t: timestamp>>,
    c14 struct<l: array<struct<x: int>>, m: map<string, array<double>>>
"""


def test_java_writes_every_type(lake: Lake) -> None:
    create(lake, TYPE_COLUMNS)
    lake.sql("ALTER TABLE events SET TBLPROPERTIES ('lithify.time-column'='event_time')")
    nulls = ", ".join(["NULL"] * 15)
    for n in range(4):
        values = ALL_TYPES if n % 2 == 0 else nulls
        at = f"timestamp_seconds({round(START.timestamp())})"
        lake.sql(f"INSERT INTO events VALUES ({at}, {n}, 'a', {values})")
    before = of_java(lake.table)
    assert compact(dataset_of(lake.table)).committed
    assert len(files_of(lake.table)) == 1
    assert of_java(lake.table) == before
    lake.sql("DELETE FROM events WHERE id = 2")
    lake.sql("INSERT INTO events SELECT * FROM events WHERE id = 0")
    before = of_java(lake.table)
    assert compact(dataset_of(lake.table)).committed
    assert of_java(lake.table) == before


def test_a_table_that_java_upgraded_from_version_1(lake: Lake) -> None:
    """Old manifests have no sequence numbers, and a partition field that was dropped became void."""
    create(lake, version=1, partitioned="device, days(event_time)", mode="copy-on-write")
    for n in range(3):
        insert(lake, 10 * n)
    lake.sql("ALTER TABLE events DROP PARTITION FIELD device")
    insert(lake, 30)
    lake.sql(
        "ALTER TABLE events SET TBLPROPERTIES ('format-version'='2', 'write.delete.mode'='merge-on-read', "
        "'write.update.mode'='merge-on-read', 'write.merge.mode'='merge-on-read')"
    )
    lake.sql("DELETE FROM events WHERE id IN (3, 33)")
    insert(lake, 40)
    rows = read_by_java(lake.table)  # DuckDB reads no manifests of version 1 in a table of version 2
    before = history(lake.table)
    assert compact(dataset_of(lake.table)).committed
    assert agree(lake.table) == rows
    after = history(lake.table)
    assert {n: after[n] for n in before} == before
    lake.sql("DELETE FROM events WHERE id = 5")
    compacted(lake.table)
    assert {row[1] for row in agree(lake.table)} == set(range(50)) - {3, 33, 5}


# Manifests


def rewrite_manifests(table: Table) -> RewritingManifests:
    return ManifestRewriter(dataset_of(table), a_clock()).run()


def entries(table: Table) -> list[Any]:
    """What Java finds in the manifests of the newest snapshot that is not deleted, with its numbers."""
    rows = iceberg_java().rows(fresh(table).metadata_location, part="entries").dicts()
    names = ("snapshot_id", "sequence_number", "file_sequence_number", "data_file")
    return sorted(repr([row[name] for name in names]) for row in rows if row["status"] != 2)


def rewritten(table: Table, *, by_duckdb: bool = True) -> RewritingManifests:
    """Rewrite the manifests. All snapshots read as before, and every entry has its numbers still."""
    rows, before, numbers = read_by_java(table), history(table), entries(table)
    done = rewrite_manifests(table)
    assert done.outcome is RewriteOutcome.REWRITTEN
    assert entries(table) == numbers
    assert (agree(table) if by_duckdb else read_by_java(table)) == rows
    after = history(table)
    assert {n: after[n] for n in before} == before
    check_metadata(fresh(table))
    assert rewrite_manifests(table).outcome is RewriteOutcome.NOTHING_TO_DO
    return done


@pytest.mark.parametrize(
    "partitioned",
    [
        "",
        pytest.param("device, days(event_time)", marks=pytest.mark.whole),
        pytest.param("bucket(2, id), truncate(1, device)", marks=pytest.mark.whole),
    ],
)
def test_manifests_that_java_wrote(lake: Lake, partitioned: str) -> None:
    """With deleted entries among others, as Java merges them, deletes by position and two specs."""
    create(lake, partitioned=partitioned)
    merge = "'commit.manifest.min-count-to-merge'='2', 'write.delete.mode'='{}'"
    lake.sql(f"ALTER TABLE events SET TBLPROPERTIES ({merge.format('copy-on-write')})")
    for n in range(3):
        insert(lake, 10 * n, day=n)
    lake.sql("DELETE FROM events WHERE id IN (1, 2, 15)")
    lake.sql(f"ALTER TABLE events SET TBLPROPERTIES ({merge.format('merge-on-read')})")
    lake.sql("DELETE FROM events WHERE id IN (5, 25)")
    lake.sql("ALTER TABLE events ADD PARTITION FIELD hours(event_time)")
    for n in range(2):
        insert(lake, 100 + 10 * n, day=n)
    lake.sql("DELETE FROM events WHERE id = 103")
    done = rewritten(lake.table)
    assert "DELETED" in {reason.name for reason in done.plan.reasons}
    insert(lake, 200)
    lake.sql("DELETE FROM events WHERE id IN (201, 6)")
    lake.call("rewrite_manifests")
    compacted(lake.table)
    assert {row[1] for row in agree(lake.table)} == {
        *(set(range(30)) - {1, 2, 5, 6, 15, 25}),
        *(set(range(100, 120)) - {103}),
        *(set(range(200, 210)) - {201}),
    }


@pytest.mark.parametrize(
    "partitioned", [pytest.param("", marks=pytest.mark.whole), "device, days(event_time)"]
)
def test_manifests_of_version_1(lake: Lake, partitioned: str) -> None:
    create(lake, version=1, partitioned=partitioned, mode="copy-on-write")
    for n in range(3):
        insert(lake, 10 * n, day=n)
    lake.sql("DELETE FROM events WHERE id IN (1, 2, 15)")
    if partitioned:
        lake.sql("ALTER TABLE events DROP PARTITION FIELD device")
        for n in range(2):
            insert(lake, 100 + 10 * n)
    rewritten(lake.table)
    assert lake.table.metadata.format_version == 1
    insert(lake, 40)
    lake.sql("DELETE FROM events WHERE id = 41")
    rewritten(lake.table)
    assert len(agree(lake.table)) == (56 if partitioned else 36)


def test_manifests_of_version_1_in_a_table_of_version_2(lake: Lake) -> None:
    create(lake, version=1, partitioned="device", mode="copy-on-write")
    for n in range(2):
        insert(lake, 10 * n)
    lake.sql("ALTER TABLE events SET TBLPROPERTIES ('format-version'='2')")
    insert(lake, 20)
    rewritten(lake.table)
    assert len(agree(lake.table)) == 30, "DuckDB does not read the old manifests, and does the new ones"


def test_java_reads_what_was_added_since_a_snapshot(lake: Lake) -> None:
    """Incremental readers find what was appended, and nothing of a rewrite."""
    create(lake)
    for n in range(3):
        insert(lake, 10 * n)
    start = lake.table.snapshots()[0].snapshot_id
    rewritten(lake.table)
    insert(lake, 30)
    end = lake.table.snapshots()[-1].snapshot_id
    lake.call(
        "create_changelog_view",
        changelog_view="'changes'",
        options=(f"map('start-snapshot-id', '{start}', 'end-snapshot-id', '{end}')"),
    )
    changes = lake.java.sql("SELECT _change_type, id FROM changes").values
    assert sorted(changes) == [("INSERT", n) for n in range(10, 40)]


# Deletes


@pytest.mark.parametrize("granularity", ["file", pytest.param("partition", marks=pytest.mark.whole)])
def test_deletes_that_java_wrote(lake: Lake, granularity: str) -> None:
    """Also in files that say which data file they are for, of two specs."""
    create(lake, partitioned="device")
    lake.sql(f"ALTER TABLE events SET TBLPROPERTIES ('write.delete.granularity'='{granularity}')")
    for n in range(2):
        insert(lake, 10 * n)
    for n in (1, 2, 3, 4, 12):
        lake.sql(f"DELETE FROM events WHERE id = {n}")
    path = files_of(lake.table)[0]
    name = f"{lake.table.location()}/data/for-one.parquet"
    device = str(path.partition[0])
    events = f"{lake.name}.db.events"
    lake.java.delete_positions(events, path.file_path, [4], path=name, partition=f"device={device}")
    lake.sql("ALTER TABLE events ADD PARTITION FIELD hours(event_time)")
    insert(lake, 20)
    for n in (21, 13):
        lake.sql(f"DELETE FROM events WHERE id = {n}")
    rows, before = agree(lake.table), history(lake.table)
    deletes = len(delete_files_of(lake.table))
    done = DeleteRewriter(dataset_of(lake.table), a_clock()).run()
    assert done.outcome.value == "rewritten"
    assert len(delete_files_of(lake.table)) < deletes
    assert agree(lake.table) == rows
    after = history(lake.table)
    assert {n: after[n] for n in before} == before
    check_metadata(lake.table)
    assert DeleteRewriter(dataset_of(lake.table), a_clock()).run().outcome.value == "nothing_to_do"
    lake.call("rewrite_position_delete_files", options="map('rewrite-all', 'true')")
    assert agree(lake.table) == rows
    lake.sql("DELETE FROM events WHERE id = 5")
    compacted(lake.table)
