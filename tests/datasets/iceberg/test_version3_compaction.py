"""Compactions of tables of format version 3: rows keep their ids, deletion vectors go with their files."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from lithify.datasets.iceberg.compaction.commit import COMPACTIONS_PROPERTY
from lithify.datasets.iceberg.format.listing import ManifestCache, read_listing
from lithify.datasets.iceberg.format.publish import publish
from lithify.datasets.iceberg.format.replace import Replacement, write
from lithify.datasets.iceberg.io.closed_catalogs import ClosedCatalog
from tests.datasets.iceberg.hadoop_lake import HadoopLake, hadoop_lake
from tests.datasets.iceberg.running import Steps, compact, dataset_of
from tests.datasets.iceberg.tables import (
    DAY,
    START,
    append,
    by_id,
    fresh,
    make_rows,
    new_catalog,
    new_table,
    read,
    set_version,
)
from tests.datasets.iceberg.test_version3 import MODES, create, document, history, insert, make
from tests.datasets.iceberg.test_version3_commits import check_ids, goes_on, live_vectors
from tests.judge.iceberg_java import IcebergJava

AT_ONCE = "'lithify.min-saved-files'='1', 'lithify.min-new-percent'='0', 'lithify.max-deleted-percent'='1'"


@pytest.fixture
def lake3(tmp_path: Path, java: IcebergJava) -> HadoopLake:
    return hadoop_lake(tmp_path / "lake", java)


def test_rows_keep_their_ids(lake3: HadoopLake) -> None:
    make(lake3)
    lake3.sql(f"ALTER TABLE events SET TBLPROPERTIES ({AT_ONCE}, 'lithify.branch'='main')")
    before, rows = history(lake3), lake3.identities()
    result = compact(dataset_of(lake3.table))
    assert result.committed
    assert not result.failures
    assert lake3.identities() == rows
    after = history(lake3)
    assert {n: after[n] for n in before} == before
    head = read_listing(lake3.table, "main", ManifestCache())
    assert head is not None
    assert not live_vectors(head)
    assert len(head.data) < 6
    check_ids(lake3)
    lake3.sql("ALTER TABLE events DROP BRANCH side")
    goes_on(lake3)
    rows = lake3.identities()
    lake3.sql("DELETE FROM events WHERE id = 1005")
    assert compact(dataset_of(lake3.table)).committed
    assert lake3.identities() == [row for row in rows if row[3] != 1005]


def test_an_upgraded_table_has_ids_after_its_compaction(lake3: HadoopLake) -> None:
    create(lake3, version=2)
    insert(lake3, 0)
    insert(lake3, 10)
    lake3.sql("DELETE FROM events WHERE id IN (1, 2, 14)")
    lake3.sql(f"ALTER TABLE events SET TBLPROPERTIES ('format-version'='3', {MODES}, {AT_ONCE})")
    before = history(lake3)
    assert compact(dataset_of(lake3.table)).committed
    after = history(lake3)
    assert {n: after[n] for n in before} == before
    assert None not in {row[0] for row in lake3.identities()}
    assert document(lake3.table)["next-row-id"] >= 17
    check_ids(lake3)
    goes_on(lake3)


class OwnCatalog(ClosedCatalog, SqlCatalog):
    """A catalog as Lithify opens it, which writes all versions."""


@pytest.mark.parametrize("is_numbered", [True, False])
def test_inputs_that_were_given_row_ids_meanwhile_are_kept(tmp_path: Path, is_numbered: bool) -> None:
    """The first commit after an upgrade gives ids to all rows; outputs of before have none."""
    table = new_table(new_catalog(tmp_path))
    rows = [row for n in range(3) for row in append(table, make_rows(20, START + n * DAY / 4, DAY / 2))]
    catalog = OwnCatalog("test", **table.catalog.properties)
    steps = Steps(dataset_of(table, catalog=catalog))
    steps.schedule()
    steps.execute()
    set_version(table, 3)
    if is_numbered:
        commit_nothing(catalog.load_table(table.name()))
    steps.commit()
    summaries = [snapshot.summary for snapshot in fresh(table).snapshots()]
    published = [s for s in summaries if s and COMPACTIONS_PROPERTY in s.additional_properties]
    assert len(published) == (0 if is_numbered else 1)
    assert read(table) == by_id(rows)


def commit_nothing(table: Table) -> None:
    """A commit that changes no file."""
    head = read_listing(table, "main", ManifestCache())
    assert head is not None
    prepared = write(table, "main", head, Replacement(), {}, 0)
    assert publish(table, prepared, lambda: fresh(table))
