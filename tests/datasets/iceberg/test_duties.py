"""What a coordinator does for a table beside compacting it: nothing expires unless the table says so."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from lithify.datasets.collecting import DirectoryOptions
from lithify.datasets.iceberg.duties import Duty, duties
from lithify.datasets.iceberg.expire import DEFAULT_GRACE_MS
from lithify.datasets.iceberg.garbage import Kind, collector_options
from lithify.datasets.iceberg.rewrite_manifests import ManifestRewriter
from lithify.datasets.iceberg.settings import TableGarbageSettings
from lithify.errors import LithifyError, Refused, StoreError
from lithify.events import Event, GarbageCollected
from lithify.ids import RandomIds
from tests.datasets.iceberg.running import a_clock, dataset_of
from tests.datasets.iceberg.tables import age_files, fresh, named_paths, new_table, read
from tests.datasets.iceberg.test_expire import ids_of, on_disk, six_snapshots
from tests.datasets.iceberg.test_expire import reader_that_has_not_begun as add_reader

AT_ONCE = {"history.expire.max-snapshot-age-ms": "0"}


def ticked(table: Table, ticks: int = 1) -> list[GarbageCollected]:
    """What a coordinator's collector does in so many rounds, hours apart."""
    found: list[Event] = []
    clock = a_clock()
    options = collector_options(TableGarbageSettings())
    collector = duties(dataset_of(table, clock=clock), clock, RandomIds(), options, found.append)
    for _ in range(ticks):
        collector.tick()
        age_files(Path(table.location().removeprefix("file://")))
        clock.advance_s(7200)
    return [event for event in found if isinstance(event, GarbageCollected)]


def test_nothing_expires_by_itself(catalog: SqlCatalog) -> None:
    table = six_snapshots(new_table(catalog, properties=AT_ONCE))
    before = ids_of(table), on_disk(table)
    assert all(Duty.SNAPSHOT.value not in event.deleted for event in ticked(table, 2))
    assert (ids_of(table), on_disk(table)) == before


def test_a_table_that_says_so_is_expired(catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    table = six_snapshots(new_table(catalog, properties={**AT_ONCE, "lithify.expire-snapshots": "1"}))
    rows, newest = read(table), ids_of(table)[-1:]
    first = ticked(table)
    assert [
        event.deleted[Duty.SNAPSHOT.value] for event in first if Duty.SNAPSHOT.value in event.deleted
    ] == [5]
    assert ids_of(table) == newest
    assert on_disk(table) > named_paths(table), "files stay for a while"
    hours_later = a_clock().now_ms() + 7_200_000
    monkeypatch.setattr("lithify.datasets.iceberg.expire.store_now_ms", lambda *_: hours_later)
    ticked(table)
    assert on_disk(table) == named_paths(table)
    assert read(table) == rows


def test_what_stands_in_the_way_is_logged(
    catalog: SqlCatalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = six_snapshots(new_table(catalog, properties={**AT_ONCE, "lithify.expire-snapshots": "1"}))
    add_reader(table, tmp_path)
    with caplog.at_level(logging.WARNING, "lithify"):
        ticked(table)
    assert "unpublished" in caplog.text
    assert "reader new: it has not begun" in caplog.text
    assert len(ids_of(table)) == 6


def test_the_property_is_a_switch(catalog: SqlCatalog) -> None:
    table = new_table(catalog, properties={"lithify.expire-snapshots": "2"})
    with pytest.raises(Refused, match="more than 1"):
        dataset_of(table).policy(fresh(table))


def test_garbage_that_is_refused_stops_no_expiry(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = six_snapshots(new_table(catalog, properties={**AT_ONCE, "lithify.expire-snapshots": "1"}))

    def refuse(*_: object) -> None:
        raise Refused("too much garbage")

    monkeypatch.setattr("lithify.datasets.iceberg.duties.collect_due", refuse)
    clock = a_clock()
    options = dict.fromkeys(Kind, DirectoryOptions(min_age_ms=DEFAULT_GRACE_MS))
    with suppress(Refused):
        duties(dataset_of(table, clock=clock), clock, RandomIds(), options).tick()
    assert len(ids_of(table)) == 1


@pytest.mark.parametrize("error", [StoreError("it took too long"), TypeError("a defect")])
def test_manifests_that_cannot_be_rewritten_stop_no_expiry(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch, defects: list[str], error: Exception
) -> None:
    both = {"lithify.expire-snapshots": "1", "lithify.rewrite-manifests": "1"}
    table = six_snapshots(new_table(catalog, properties={**AT_ONCE, **both}))

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(ManifestRewriter, "run", fail)
    with pytest.raises(LithifyError, match=str(error)):
        ticked(table)
    assert len(ids_of(table)) == 1
    defects.clear()
