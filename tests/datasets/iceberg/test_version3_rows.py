"""Compaction of tables of format version 3 that Java writes: every row keeps its identity, deletion vectors
are applied and dropped, all readers agree, and Java goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from lithify.datasets.iceberg.compaction import support_checks
from tests.datasets.iceberg.hadoop_lake import HadoopLake, hadoop_lake
from tests.datasets.iceberg.running import compact, dataset_of
from tests.datasets.iceberg.tables import delete_files_of, files_of
from tests.datasets.iceberg.test_version3 import create, history, insert, make
from tests.datasets.iceberg.test_version3_commits import check_ids, goes_on
from tests.judge.iceberg_java import IcebergJava

AT_ONCE = ", ".join(
    f"'lithify.{name}'='{value}'"
    for name, value in {
        "branch": "main",
        "min-saved-files": 1,
        "min-new-percent": 0,
        "max-deleted-percent": 1,
    }.items()
)


@pytest.fixture
def lake3(tmp_path: Path, java: IcebergJava, monkeypatch: pytest.MonkeyPatch) -> HadoopLake:
    monkeypatch.setattr(support_checks, "COMPACTED_VERSIONS", (1, 2, 3))
    return hadoop_lake(tmp_path / "lake", java)


def compacted(lake: HadoopLake) -> None:
    """Compact. All snapshots have the rows and identities that they had."""
    lake.sql(f"ALTER TABLE events SET TBLPROPERTIES ({AT_ONCE})")
    rows, before = lake.identities(), history(lake)
    result = compact(dataset_of(lake.table))
    assert result.committed
    assert not result.failures
    assert lake.identities() == rows
    after = history(lake)
    assert {n: after[n] for n in before} == before
    assert not delete_files_of(lake.table)
    assert not compact(dataset_of(lake.table)).committed


def test_java_reads_the_same_identities_after_a_compaction(lake3: HadoopLake) -> None:
    make(lake3)
    count = len(files_of(lake3.table))
    compacted(lake3)
    assert len(files_of(lake3.table)) < count
    lake3.sql("ALTER TABLE events DROP BRANCH side")
    check_ids(lake3)
    goes_on(lake3)
    insert(lake3, 2000)
    lake3.sql("DELETE FROM events WHERE id IN (5, 2001)")
    compacted(lake3)


def test_an_upgraded_table_with_position_deletes_is_compacted_as_java_reads_it(lake3: HadoopLake) -> None:
    """Its rows get their ids with the commit of the compaction, or with one before."""
    create(lake3, version=2)
    insert(lake3, 0)
    insert(lake3, 10)
    lake3.sql("DELETE FROM events WHERE id IN (1, 2, 14)")
    lake3.sql("ALTER TABLE events SET TBLPROPERTIES ('format-version'='3')")
    insert(lake3, 20)
    lake3.sql("DELETE FROM events WHERE id IN (3, 25)")
    compacted(lake3)
    check_ids(lake3)
    goes_on(lake3)
