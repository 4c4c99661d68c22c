"""Whether a table is the one that Lithify saw, where its log of metadata is short and a clock was wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from lithify.base.errors import CorruptObject, Refused
from lithify.datasets.iceberg.format.lineage import state_of
from tests.datasets.iceberg.running import compact, dataset_of
from tests.datasets.iceberg.tables import NAME, append, fresh, make_rows, new_catalog, new_table, read

HOUR_MS = 3_600_000
SHORT = {"write.metadata.previous-versions-max": "3"}


@pytest.fixture
def table(catalog: SqlCatalog) -> Table:
    """With a log of three metadata files."""
    table = new_table(catalog, properties=SHORT)
    append(table, make_rows(2))
    return table


def seen(table: Table, ahead_ms: int = HOUR_MS) -> None:
    """Lithify sees the table as it is, written by somebody whose clock is ahead."""
    dataset, known = dataset_of(table), state_of(fresh(table))
    ahead = replace(known, last_updated_ms=known.last_updated_ms + ahead_ms)
    dataset.store.put(dataset.lineage.key, json.dumps(asdict(ahead)).encode())


def appended(table: Table, times: int) -> None:
    for _ in range(times):
        append(table, make_rows(2))


def test_a_clock_that_was_ahead_is_no_other_table(table: Table) -> None:
    seen(table)
    appended(table, 5)
    rows = read(table)
    assert compact(dataset_of(table)).committed
    assert read(table) == rows
    known = dataset_of(table).lineage.read()
    assert known is not None
    assert known.metadata_location == fresh(table).metadata_location


def test_a_record_without_a_sequence_number_is_read(table: Table) -> None:
    dataset, now = dataset_of(table), fresh(table)
    known = {
        "metadata_location": now.metadata_location,
        "last_updated_ms": now.metadata.last_updated_ms + HOUR_MS,
    }
    dataset.store.put(dataset.lineage.key, json.dumps(known).encode())
    dataset.lineage.check(now, lambda: fresh(table))
    appended(table, 5)
    with pytest.raises(Refused, match="was restored"):
        dataset_of(table).snapshot()


def test_what_was_restored_is_another_however_short_its_log(
    table: Table, catalog: SqlCatalog, tmp_path: Path
) -> None:
    catalog.close()
    shutil.copy(tmp_path / "catalog.db", tmp_path / "backup.db")
    appended(table, 4)
    seen(table)
    catalog.close()
    shutil.copy(tmp_path / "backup.db", tmp_path / "catalog.db")
    restored = new_catalog(tmp_path).load_table(NAME)
    for _ in range(4):
        append(restored, make_rows(2))
        with pytest.raises(Refused, match="was restored"):
            dataset_of(restored).snapshot()


def change_properties(table: Table) -> None:
    """As often as its log is long."""
    for n in range(5):
        with fresh(table).transaction() as transaction:
            transaction.set_properties({"n": str(n)})


def lose_former_metadata(table: Table) -> None:
    appended(table, 5)
    for entry in fresh(table).metadata.metadata_log:
        Path(entry.metadata_file.removeprefix("file://")).unlink()


@pytest.mark.parametrize("change", [change_properties, lose_former_metadata])
def test_where_nobody_can_tell_it_is_refused(table: Table, change: Callable[[Table], None]) -> None:
    seen(table)
    change(table)
    with pytest.raises(Refused, match="was restored"):
        dataset_of(table).snapshot()


def test_former_metadata_that_are_damaged_are_an_error(table: Table) -> None:
    seen(table)
    appended(table, 5)
    oldest = fresh(table).metadata.metadata_log[0].metadata_file
    Path(oldest.removeprefix("file://")).write_bytes(b'{"format-version": 2}')
    with pytest.raises(CorruptObject):
        dataset_of(table).snapshot()
