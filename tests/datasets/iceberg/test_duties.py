"""What a coordinator does for a table beside compacting it: nothing expires unless the table says so."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from lithify.base.errors import CorruptObject, LithifyError, Refused, StoreError
from lithify.base.events import Event, GarbageCollected
from lithify.base.ids import RandomIds
from lithify.datasets.iceberg.maintenance import duties as duties_module
from lithify.datasets.iceberg.maintenance.duties import Duty, duties
from lithify.datasets.iceberg.maintenance.expire import Expirer
from lithify.datasets.iceberg.maintenance.garbage import GarbageKind, by_kind
from lithify.datasets.iceberg.maintenance.orphans import remove_orphans
from lithify.datasets.iceberg.rewriting.rewrite_deletes import DeleteRewriter
from lithify.datasets.iceberg.rewriting.rewrite_manifests import ManifestRewriter
from lithify.datasets.iceberg.settings import TableCollectionSettings, TableGarbageSettings
from tests.datasets.iceberg.running import a_clock, compact, dataset_of
from tests.datasets.iceberg.tables import (
    age_files,
    append,
    by_id,
    fresh,
    make_rows,
    named_paths,
    new_table,
    read,
)
from tests.datasets.iceberg.test_expire import ids_of, on_disk, six_snapshots
from tests.datasets.iceberg.test_expire import reader_that_has_not_begun as add_reader

AT_ONCE = {"history.expire.max-snapshot-age-ms": "0"}


def ticked(table: Table, ticks: int = 1) -> list[GarbageCollected]:
    """What a coordinator's collector does in so many rounds, hours apart."""
    found: list[Event] = []
    clock = a_clock()
    options = by_kind(TableGarbageSettings())
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
    monkeypatch.setattr("lithify.datasets.iceberg.maintenance.expire.store_now_ms", lambda *_: hours_later)
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
    assert "reader new: it has not started" in caplog.text
    assert len(ids_of(table)) == 6


def test_the_property_is_a_switch(catalog: SqlCatalog) -> None:
    table = new_table(catalog, properties={"lithify.expire-snapshots": "2"})
    with pytest.raises(Refused, match="more than 1"):
        dataset_of(table).policy(fresh(table))


PARTS = ("deletes", "manifests", "expiry", "files")


@pytest.mark.parametrize("in_settings", [False, True])
@pytest.mark.parametrize("skipped", PARTS)
def test_each_part_is_left_out_where_the_policy_says_so(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch, skipped: str, in_settings: bool
) -> None:
    """In the table's properties or in the settings, which win; the other parts are done."""
    wanted = {"expire-snapshots": "1", "rewrite-manifests": "1", "rewrite-position-delete-files": "1"}
    properties = {**AT_ONCE, **{f"lithify.{name}": value for name, value in wanted.items()}}
    properties["lithify.skip-parts"] = "data, files" if in_settings else skipped
    table = new_table(catalog, properties=properties)
    six_snapshots(table)
    done = set[str]()

    def note(part: str, module: object, name: str) -> None:
        do = getattr(module, name)

        def noted(*arguments: Any, **options: Any) -> Any:
            done.add(part)
            return do(*arguments, **options)

        monkeypatch.setattr(module, name, noted)

    note("deletes", DeleteRewriter, "run")
    note("manifests", ManifestRewriter, "run")
    note("expiry", Expirer, "run")
    note("files", duties_module, "collect_due")
    clock = a_clock()
    options = {"skip-parts": skipped} if in_settings else {}
    dataset = dataset_of(table, clock=clock, options=options)
    duties(dataset, clock, RandomIds(), by_kind(TableGarbageSettings())).tick()
    assert done == set(PARTS) - {skipped}


@pytest.mark.parametrize("in_settings", [False, True])
def test_files_are_left_out_by_a_policy_of_which_something_else_is_wrong(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch, in_settings: bool
) -> None:
    own = {} if in_settings else {"lithify.skip-parts": "files"}
    table = new_table(catalog, properties={"lithify.granularty": "day", **own})
    append(table, make_rows(3))
    collected: list[object] = []
    monkeypatch.setattr(duties_module, "collect_due", lambda *_: collected.append(1))
    clock = a_clock()
    dataset = dataset_of(table, clock=clock, options={"skip-parts": "files"} if in_settings else {})
    with pytest.raises(Refused, match="granularty is unknown"):
        duties(dataset, clock, RandomIds(), by_kind(TableGarbageSettings())).tick()
    assert collected == []


def test_duties_are_done_whatever_is_wrong_with_the_policy_of_data(catalog: SqlCatalog) -> None:
    wrong = {"lithify.granularity": "fortnight", "lithify.time-column": "when", "lithify.max-tasks": "0"}
    table = new_table(catalog, properties={**AT_ONCE, "lithify.expire-snapshots": "1", **wrong})
    newest = ids_of(six_snapshots(table))[-1:]
    ticked(table)
    assert ids_of(table) == newest


def test_every_duty_that_fails_is_logged(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    table = new_table(catalog, properties={"lithify.expire-snapshots": "1", "lithify.remove-orphans": "1"})
    append(table, make_rows(3))

    def fail(*_: object) -> None:
        raise StoreError("away")

    monkeypatch.setattr(Expirer, "run", fail)
    monkeypatch.setattr(duties_module, "remove_orphans", fail)
    with pytest.raises(StoreError, match="away"):
        ticked(table)
    assert "removing orphan files failed: away" in caplog.text


def test_an_expiry_that_fails_stops_no_removal_of_orphans(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table(catalog, properties={"lithify.expire-snapshots": "1", "lithify.remove-orphans": "1"})
    append(table, make_rows(3))
    looked: list[object] = []

    def fail(*_: object) -> None:
        raise StoreError("away")

    def look(*arguments: Any) -> Any:
        looked.append(arguments)
        return remove_orphans(*arguments)

    monkeypatch.setattr(Expirer, "run", fail)
    monkeypatch.setattr(duties_module, "remove_orphans", look)
    with pytest.raises(StoreError, match="away"):
        ticked(table)
    assert len(looked) == 1


def test_nothing_is_compacted_unasked_where_the_policy_leaves_the_data_out(catalog: SqlCatalog) -> None:
    table = new_table(catalog, properties={"lithify.skip-parts": "data", "lithify.min-saved-files": "1"})
    rows = [row for _ in range(3) for row in append(table, make_rows(3))]
    dataset = dataset_of(table)
    before = named_paths(table)
    done = compact(dataset)
    assert not done.started
    assert any("lithify.skip-parts names data" in note for note in done.plan.notes)
    assert named_paths(table) == before
    assert read(table) == by_id(rows)
    options = {"skip-parts": ""}
    assert compact(dataset_of(table, options=options)).committed, "the settings win"


def test_a_part_that_there_is_not_is_refused(catalog: SqlCatalog) -> None:
    table = new_table(catalog, properties={"lithify.skip-parts": "expiry,snapshots"})
    with pytest.raises(
        Refused, match="skip-parts names snapshots: not a part of maintenance; the parts are data, "
    ):
        dataset_of(table).policy(fresh(table))


@pytest.mark.parametrize(
    "error",
    [Refused("too much"), CorruptObject("a/ledger", "it is short"), StoreError("away"), TypeError("defect")],
    ids=lambda error: type(error).__name__,
)
def test_garbage_that_is_not_collected_stops_no_expiry(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch, defects: list[str], error: Exception
) -> None:
    table = six_snapshots(new_table(catalog, properties={**AT_ONCE, "lithify.expire-snapshots": "1"}))

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("lithify.datasets.iceberg.maintenance.duties.collect_due", fail)
    clock = a_clock()
    options = dict.fromkeys(GarbageKind, TableCollectionSettings())
    found: list[Event] = []
    collector = duties(dataset_of(table, clock=clock), clock, RandomIds(), options, found.append)
    with pytest.raises(LithifyError, match=str(error)):
        collector.tick()
    assert len(ids_of(table)) == 1
    collected = [event for event in found if isinstance(event, GarbageCollected)]
    assert [event.deleted[Duty.SNAPSHOT.value] for event in collected if event.deleted] == [5]
    defects.clear()


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
