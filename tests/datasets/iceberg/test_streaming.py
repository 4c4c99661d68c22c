"""Spark Structured Streaming on a table whose history is expired: Iceberg's own source, with checkpoints that
Spark writes. A reader stops, is left behind by many commits, compactions and expiries, and is started again.

Its rows go to files of JSON through Spark's file sink, which shows those of finished batches only. So what
is in them twice was read twice, and what is missing was lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import get_args

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from lithify.base.ids import RandomIds
from lithify.datasets.iceberg.maintenance.expire import ExpireOptions, Expirer
from lithify.datasets.iceberg.maintenance.operations import TableMaintenance
from tests.datasets.iceberg.rest import serve_rest
from tests.datasets.iceberg.running import a_clock, compact, dataset_of
from tests.datasets.iceberg.tables import append, fresh, make_rows, new_table
from tests.judge.iceberg_java import IcebergJava, JavaError, Trigger

TRIGGERS: tuple[Trigger, ...] = get_args(Trigger)
COMMITS = 50
COMMITS_PER_RUN = 10
"""After so many, the table is compacted and its history is expired."""


@dataclass(frozen=True)
class SparkReader:
    """A stream from a table, with its checkpoint."""

    java: IcebergJava
    table: str
    trigger: Trigger
    folder: Path

    @property
    def checkpoint(self) -> str:
        return (self.folder / self.trigger / "checkpoint").as_uri()

    def run(self) -> None:
        """Read all there is, and stop."""
        self.java.stream(self.table, self.checkpoint, self._output, self.trigger)

    def ids(self) -> list[int]:
        """The ids of all rows that it has read until now."""
        return sorted(self.java.streamed(self._output, "id"))

    @property
    def _output(self) -> str:
        return (self.folder / self.trigger / "rows").as_uri()


@pytest.fixture
def table(catalog: SqlCatalog) -> Table:
    return new_table(catalog, properties={"lithify.min-saved-files": "1"})


@pytest.fixture
def reader_of(table: Table, java: IcebergJava, tmp_path: Path) -> Iterator[Callable[[Trigger], SparkReader]]:
    """A reader with that trigger."""
    with serve_rest(table.catalog) as rest:
        name = f"{java.catalog(str(rest.properties['uri']))}.{'.'.join(table.name())}"
        yield lambda trigger: SparkReader(java, name, trigger, tmp_path)


def add(table: Table) -> list[int]:
    """The ids of a few new rows."""
    return [row[1] for row in append(table, make_rows(2))]


def left_behind(table: Table, expire: Callable[[], None]) -> list[int]:
    """Commits, compactions and expiries while nobody reads; the ids of what was added."""
    ids = []
    for _ in range(COMMITS // COMMITS_PER_RUN):
        for _ in range(COMMITS_PER_RUN):
            ids += add(table)
        compact(dataset_of(table))
        expire()
    return ids


def expire_by_lithify(table: Table) -> None:
    """All that nobody needs, files too."""
    clock = a_clock()
    options = ExpireOptions(older_than_ms=clock.now_ms() + 1, retain_last=1, grace_ms=0)
    Expirer(dataset_of(table, clock=clock), clock, RandomIds()).run(options)


def expire_by_pyiceberg(table: Table) -> None:
    """All snapshots but the newest."""
    later = datetime.now() + timedelta(minutes=1)
    fresh(table).maintenance.expire_snapshots().older_than(later).commit()


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_a_registered_reader_reads_every_row_once(
    table: Table, reader_of: Callable[[Trigger], SparkReader], trigger: Trigger
) -> None:
    reader, clock = reader_of(trigger), a_clock()
    ids = [*add(table), *add(table)]
    reader.run()
    assert reader.ids() == ids
    maintenance = TableMaintenance(dataset_of(table, clock=clock), clock, RandomIds())
    maintenance.add_reader(reader.checkpoint, None, {"continuous": trigger == "processingTime"})

    ids += left_behind(table, lambda: expire_by_lithify(table))

    held = len(fresh(table).snapshots())
    assert held >= COMMITS, "it needs every commit since it stopped"
    reader.run()
    assert reader.ids() == ids
    ids += add(table)
    expire_by_lithify(table)
    if trigger == "processingTime":
        assert len(fresh(table).snapshots()) < COMMITS, "it has read the others"
    else:
        assert len(fresh(table).snapshots()) > held, "it needs where it began"
    reader.run()
    assert reader.ids() == ids


def test_no_reader_survives_the_expiry_of_pyiceberg(
    table: Table, reader_of: Callable[[Trigger], SparkReader]
) -> None:
    """The control: without Lithify's expiry, which asks who reads, readers are cut off."""
    readers = [reader_of(trigger) for trigger in TRIGGERS]
    ids = [*add(table), *add(table)]
    for reader in readers:
        reader.run()

    left_behind(table, lambda: expire_by_pyiceberg(table))

    for reader in readers:
        with pytest.raises(JavaError, match="the snapshot was expired or removed"):
            reader.run()
        assert reader.ids() == ids, "it has read nothing more"
