"""Orphan files as a duty of coordinators: only where the table says so, seldom, and never in silence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from lithify.base.clock import Clock
from lithify.base.errors import Refused, StoreUnavailable
from lithify.base.events import Event, GarbageCollected
from lithify.base.ids import RandomIds
from lithify.datasets.iceberg.maintenance.duties import Duty, duties
from lithify.datasets.iceberg.maintenance.history_checks import check_history
from lithify.datasets.iceberg.maintenance.orphan_runs import OrphanRun, OrphanRuns
from lithify.protocol.finding import Finding
from lithify.protocol.retained import Past, Retained
from lithify.testing import ManualClock, MemoryStore
from tests.datasets.iceberg.running import a_clock, dataset_of
from tests.datasets.iceberg.tables import age_files, append, fresh, make_rows, new_table

DAY_S = 24 * 3600


@pytest.fixture
def clock() -> ManualClock:
    return a_clock()


def table_with(catalog: SqlCatalog, **properties: str) -> Table:
    names = {f"lithify.{name.replace('_', '-')}": value for name, value in properties.items()}
    table = new_table(catalog, properties=names)
    append(table, make_rows(3))
    return fresh(table)


def left(table: Table, name: str, days: int) -> Path:
    """A file that a writer left behind so long ago."""
    path = Path(table.location().removeprefix("file://"), "data", name, "left.parquet")
    path.parent.mkdir()
    path.write_bytes(b"left behind")
    age_files(path.parent, days * DAY_S + 60)
    return path


def tick(table: Table, clock: Clock) -> list[GarbageCollected]:
    """What a coordinator that has just begun does."""
    found: list[Event] = []
    duties(dataset_of(table, clock=clock), clock, RandomIds(), {}, found.append).tick()
    return [event for event in found if isinstance(event, GarbageCollected)]


def findings(table: Table, clock: Clock) -> Sequence[tuple[str, str]]:
    dataset = dataset_of(table, clock=clock)
    found: Sequence[Finding] = list(check_history(dataset, Retained(Past(1, None, 0)), clock.now_ms()))
    return [(one.severity.value, one.says) for one in found if one.check == "orphans"]


def test_never_unless_the_table_says_so(catalog: SqlCatalog, clock: ManualClock) -> None:
    table = table_with(catalog)
    orphan = left(table, "x", 30)
    tick(table, clock)
    assert orphan.exists()
    assert findings(table, clock) == []
    assert OrphanRuns(dataset_of(table).store, dataset_of(table).own_folder).read() is None


def test_what_is_older_than_three_days_goes_once_a_week(catalog: SqlCatalog, clock: ManualClock) -> None:
    table = table_with(catalog, remove_orphans="1")
    old, young = left(table, "old", 3), left(table, "young", 2)
    assert [event.deleted.get(Duty.ORPHAN.value) for event in tick(table, clock)] == [1]
    assert (old.exists(), young.exists()) == (False, True)
    later = left(table, "later", 3)
    clock.advance_s(6 * DAY_S)
    tick(table, clock)
    assert later.exists(), "it is not time yet, whoever looked last"
    clock.advance_s(DAY_S)
    tick(table, clock)
    assert not later.exists()


def test_one_that_is_refused_waits_as_long_and_is_told(catalog: SqlCatalog, clock: ManualClock) -> None:
    table = table_with(catalog, remove_orphans="1")
    orphan = left(table, "x", 3)
    new_table(catalog, name=("db", "other"), properties={"write.data.path": f"{table.location()}/data"})
    with pytest.raises(Refused, match=r"db\.other has its files in"):
        tick(table, clock)
    tick(table, clock)
    assert orphan.exists()
    ((level, text),) = findings(table, clock)
    assert (level, "was refused" in text, "db.other has its files in" in text) == ("warning", True, True)
    catalog.drop_table(("db", "other"))
    clock.advance_s(7 * DAY_S)
    tick(table, clock)
    assert not orphan.exists()
    assert [level for level, _ in findings(table, clock)] == ["ok"]


def test_one_that_failed_is_tried_again_soon(
    catalog: SqlCatalog, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_with(catalog, remove_orphans="1")
    orphan = left(table, "x", 3)

    def fail(*_: object) -> None:
        raise StoreUnavailable("it is away", "the store failed")

    with monkeypatch.context() as patched:
        patched.setattr("lithify.datasets.iceberg.maintenance.duties.remove_orphans", fail)
        with pytest.raises(StoreUnavailable):
            tick(table, clock)
    tick(table, clock)
    assert not orphan.exists()


def test_that_nobody_looks_any_more_is_told(catalog: SqlCatalog, clock: ManualClock) -> None:
    table = table_with(catalog, remove_orphans="1")
    assert [level for level, _ in findings(table, clock)] == ["ok"]
    tick(table, clock)
    clock.advance_s(13 * DAY_S)
    assert [level for level, _ in findings(table, clock)] == ["ok"]
    clock.advance_s(2 * DAY_S)
    ((level, text),) = findings(table, clock)
    assert (level, "the last search was 15d ago" in text) == ("warning", True)


@pytest.mark.parametrize(
    ("name", "value"), [("orphan_age_seconds", "3600"), ("orphan_interval_seconds", "60")]
)
def test_what_is_too_soon_is_refused(catalog: SqlCatalog, name: str, value: str) -> None:
    table = table_with(catalog, **{name: value})
    with pytest.raises(Refused, match="it must be a whole number from"):
        dataset_of(table).policy(table)


def test_a_note_that_is_damaged_is_as_none(catalog: SqlCatalog, clock: ManualClock) -> None:
    table = table_with(catalog, remove_orphans="1")
    dataset = dataset_of(table)
    dataset.store.put(f"{dataset.own_folder}/orphan-run.json", b"{")
    orphan = left(table, "x", 3)
    tick(table, clock)
    assert not orphan.exists()


def test_a_refusal_is_recorded_whatever_its_text() -> None:
    runs = OrphanRuns(MemoryStore(), "own")
    runs.note_refused("a file \ud800", 5, 7)
    assert runs.read() == OrphanRun(7, 5, why="a file \ufffd", deleting_ms=7)
