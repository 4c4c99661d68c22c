"""Tables of format version 1, which are compacted as they are.

They have no sequence numbers and no delete files: a concurrent delete is always a rewrite, so an input that
is gone. If the table is upgraded meanwhile, deletes count as in version 2.
"""

from __future__ import annotations

from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from lithify.datasets.iceberg.compaction.commit import COMPACTIONS_PROPERTY
from tests.datasets.iceberg.lake import Lake
from tests.datasets.iceberg.running import Steps, compact, dataset_of
from tests.datasets.iceberg.tables import (
    DAY,
    START,
    Row,
    append,
    by_id,
    check,
    delete_equal,
    delete_positions,
    files_of,
    fresh,
    make_rows,
    new_table,
    read,
    read_by_duckdb,
    read_by_java,
    rewrite_without,
)
from tests.datasets.iceberg.test_java import agree, check_metadata, compacted, create, insert
from tests.judge.iceberg_java import iceberg_java


@pytest.mark.parametrize(
    "partitioned", ["", pytest.param("device, days(event_time)", marks=pytest.mark.whole)]
)
def test_java_goes_on(lake: Lake, partitioned: str) -> None:
    create(lake, version=1, partitioned=partitioned, mode="copy-on-write")
    for n in range(3):
        insert(lake, 10 * n)
    lake.sql("DELETE FROM events WHERE id IN (1, 2, 15)")
    compacted(lake.table)
    assert lake.table.metadata.format_version == 1
    check_metadata(lake.table)
    assert versions(lake.table) == {1}

    insert(lake, 30)
    lake.sql("DELETE FROM events WHERE id = 31")
    compacted(lake.table)
    lake.call("rewrite_manifests")
    lake.call("rewrite_data_files", options="map('rewrite-all', 'true')")
    lake.call("expire_snapshots", older_than="TIMESTAMP '9999-01-01 00:00:00'", retain_last="1")
    lake.sql("ALTER TABLE events SET TBLPROPERTIES ('format-version'='2')")
    lake.sql("DELETE FROM events WHERE id = 32")
    insert(lake, 40)
    lake.call("rewrite_manifests")  # DuckDB does not read manifests of version 1 in version 2
    compacted(lake.table)
    assert {row[1] for row in agree(lake.table)} == set(range(50)) - {1, 2, 15, 31, 32}


def versions(table: Table) -> set[int]:
    """The versions of the manifests that the head names, by their headers."""
    now = fresh(table)
    head = now.current_snapshot()
    assert head is not None
    found = set()
    for manifest in head.manifests(now.io):
        with now.io.new_input(manifest.manifest_path).open() as stream:
            header = stream.read()[:20_000]
        found.add(int(header.partition(b"format-version")[2][1:2]))
    return found


def test_manifests_and_lists_are_as_java_writes_them(lake: Lake) -> None:
    create(lake, version=1, mode="copy-on-write")
    for n in range(3):
        insert(lake, 10 * n)
    entries = "SELECT * FROM events.entries"
    theirs = iceberg_java().rows(lake.table.metadata_location, part="entries").columns
    compacted(lake.table)
    assert iceberg_java().rows(lake.table.metadata_location, part="entries").columns == theirs
    assert {row[2] for row in lake.sql(entries)} == {0}, "a sequence number of zero"
    head = lake.table.current_snapshot()
    assert head is not None
    assert head.sequence_number in (0, None)
    assert head.summary is not None
    assert head.summary.additional_properties["total-records"] == "30"


class World:
    """A day of three small files of version 1, rewritten and waiting for the commit."""

    def __init__(self, catalog: SqlCatalog) -> None:
        self.table = new_table(catalog, properties={"format-version": "1"})
        self.rows: list[Row] = []
        for n in range(3):
            self.rows += append(self.table, make_rows(20, START + n * DAY / 4, DAY / 2))
        self.steps = Steps(dataset_of(self.table))
        self.steps.schedule()
        self.steps.execute()

    def published(self) -> int:
        """Snapshots that publish compactions."""
        summaries = [snapshot.summary for snapshot in fresh(self.table).snapshots()]
        return len([s for s in summaries if s and COMPACTIONS_PROPERTY in s.additional_properties])

    def upgrade(self) -> None:
        with fresh(self.table).transaction() as change:
            change.upgrade_table_version(2)


@pytest.fixture
def world(catalog: SqlCatalog) -> World:
    return World(catalog)


def readers_agree(table: Table) -> list[tuple[Any, ...]]:
    """Rows as Java and PyIceberg read them; DuckDB reads no manifests of version 1 in version 2."""
    rows = read_by_java(table)
    assert read(table) == rows
    return rows


def test_appends_never_conflict(world: World) -> None:
    world.rows += append(world.table, make_rows(20, START + DAY / 2, DAY / 4))
    world.steps.commit()
    assert world.published() == 1
    check(world.table, world.rows)


def test_a_delete_meanwhile_is_an_input_that_is_gone(world: World) -> None:
    gone = world.rows.pop(0)
    rewrite_without(world.table, gone[1])
    world.steps.commit()
    assert world.published() == 0
    check(world.table, world.rows)
    compact(dataset_of(world.table))
    check(world.table, world.rows)


def test_an_upgrade_meanwhile_is_no_conflict(world: World) -> None:
    world.upgrade()
    world.rows += append(world.table, make_rows(20, START + DAY / 2, DAY / 4))
    world.steps.commit()
    assert world.published() == 1
    assert readers_agree(world.table) == by_id(world.rows)


def test_position_deletes_after_an_upgrade_are_a_conflict(world: World) -> None:
    world.upgrade()
    before = {row[1] for row in world.rows}
    delete_positions(world.table, {files_of(world.table)[0].file_path: [1, 2]})
    rows = readers_agree(world.table)
    assert len(before) == len(rows) + 2
    world.steps.commit()
    assert world.published() == 0
    assert readers_agree(world.table) == rows
    compact(dataset_of(world.table))
    assert readers_agree(world.table) == rows == read_by_duckdb(world.table)


def test_equality_deletes_after_an_upgrade_apply_to_the_outputs(world: World) -> None:
    world.upgrade()
    gone = world.rows.pop(3)
    delete_equal(world.table, [gone[1]])
    world.steps.commit()
    assert world.published() == 1
    assert read_by_java(world.table) == by_id(world.rows)
