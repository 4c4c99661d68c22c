"""Other tables of the catalog that need files of a table: what expiry and the collection of garbage leave to
them, what that costs, and what is said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import RESTError
from pyiceberg.table import Table

from lithify.base.errors import Refused
from lithify.base.ids import RandomIds
from lithify.config.model import config_type
from lithify.datasets.iceberg.dataset import IcebergDataset
from lithify.datasets.iceberg.io.catalogs import TableUrl
from lithify.datasets.iceberg.maintenance import shared_locations
from lithify.datasets.iceberg.maintenance.expire import (
    DEFAULT_GRACE_MS,
    DONE,
    ExpireOptions,
    Expirer,
    Expiry,
    ExpiryOutcome,
)
from lithify.datasets.iceberg.maintenance.garbage import GarbageOptions, collect
from lithify.datasets.iceberg.maintenance.history_view import show_expiry
from lithify.datasets.iceberg.settings import IcebergSettings
from lithify.store.times import store_now_ms
from lithify.testing import ManualClock
from lithify.views.blocks import Line
from tests.datasets.iceberg.rest import serve_rest
from tests.datasets.iceberg.running import a_clock, compact, dataset_of
from tests.datasets.iceberg.tables import (
    DAY,
    SCHEMA,
    START,
    age_files,
    append,
    check,
    files_of,
    fresh,
    make_rows,
    named_paths,
    new_table,
    read,
    rewrite_without,
)

ALL = ExpireOptions(older_than_ms=4_000_000_000_000, grace_ms=0)


@pytest.fixture
def table(catalog: SqlCatalog) -> Table:
    """A table of eight snapshots, four of which have a file that no later one has."""
    table = new_table(catalog)
    for n in range(4):
        row = append(table, make_rows(2, START + n * DAY))[0]
        rewrite_without(table, row[1])
    return fresh(table)


def run(
    table: Table, options: ExpireOptions = ALL, *, clock: ManualClock | None = None, apart: str = ""
) -> Expiry:
    clock = clock if clock is not None else a_clock()
    unrelated = IcebergSettings(unrelated_tables=apart).unrelated
    url = TableUrl("test", table.name())
    dataset = IcebergDataset(table.catalog, url, clock, RandomIds(), unrelated=unrelated)
    return Expirer(dataset, clock, RandomIds()).run(options)


def later(seconds: float) -> ManualClock:
    """A clock that is ahead of others."""
    clock = a_clock()
    clock.advance_s(seconds)
    return clock


def wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the grace period pass at the store."""
    monkeypatch.setattr(
        "lithify.datasets.iceberg.maintenance.expire.store_now_ms",
        lambda *of: store_now_ms(*of) + DEFAULT_GRACE_MS,
    )


def on_disk(table: Table) -> set[str]:
    """Data files and manifests."""
    root = Path(table.location().removeprefix("file://"))
    return {path.as_uri() for path in root.rglob("*") if path.suffix in (".parquet", ".avro")}


def test_a_table_under_a_second_name_loses_nothing(catalog: SqlCatalog, table: Table) -> None:
    second = catalog.register_table(("db", "second"), fresh(table).metadata_location)
    rows, files = read(second), on_disk(table)
    append(table, make_rows(1))
    fresh(table).delete("id >= 0")
    found = run(table)
    assert found.outcome is ExpiryOutcome.NOT_ALONE
    assert "db.second is the same table under a second name" in found.why
    assert found.expired
    assert not found.deleted
    assert files <= on_disk(table)
    check(second, rows)
    catalog.drop_table(("db", "second"))
    assert run(table, clock=later(shared_locations.LISTED_S)).outcome in DONE
    assert on_disk(table) == named_paths(table)


def test_a_table_that_claims_the_location_of_another_loses_nothing(catalog: SqlCatalog, table: Table) -> None:
    other = catalog.create_table(
        ("db", "other"), SCHEMA, location=table.location(), properties={"format-version": "2"}
    )
    with other.transaction() as transaction, transaction.update_snapshot().fast_append() as added:
        for file in files_of(table):
            added.append_data_file(file)
    rows = read(other)
    fresh(table).delete("id >= 0")
    found = run(table)
    assert found.outcome is ExpiryOutcome.NOT_ALONE
    assert "db.other has its files in" in found.why
    check(other, rows)


def test_a_table_inside_of_another_keeps_what_that_has_added(catalog: SqlCatalog, table: Table) -> None:
    inner = catalog.create_table(
        ("db", "inner"), SCHEMA, location=f"{table.location()}/inner", properties={"format-version": "2"}
    )
    rows = append(inner, make_rows(3))
    with fresh(table).transaction() as transaction, transaction.update_snapshot().fast_append() as added:
        for file in files_of(inner):
            added.append_data_file(file)
    fresh(table).delete("id >= 0")
    found = run(table)
    assert found.outcome is ExpiryOutcome.EXPIRED
    assert found.deleted
    check(inner, rows)


def test_a_neighbour_that_cannot_be_read(catalog: SqlCatalog, table: Table) -> None:
    other = new_table(catalog, name=("db", "other"))
    metadata = Path(fresh(other).metadata_location.removeprefix("file://"))
    text = metadata.read_text()
    metadata.unlink()
    files = on_disk(table)
    for options in (ExpireOptions(ALL.older_than_ms, grace_ms=0, dry_run=True), ALL):
        found = run(table, options)
        assert found.outcome is ExpiryOutcome.NOT_ALONE
        assert "table db.other of the same catalog cannot be read" in found.why
        assert "iceberg.unrelated_tables" in found.why
        (line, *_) = show_expiry("iceberg://test/db.events", found, 0).blocks
        assert isinstance(line, Line)
        assert "no file is deleted: table db.other" in line.text
    assert files <= on_disk(table), "they wait"
    assert sum(entry.files for entry in found.pending)
    metadata.write_text(text)
    assert run(table, clock=later(shared_locations.UNREADABLE_S)).outcome in DONE
    assert on_disk(table) == named_paths(table)


def test_what_is_said_to_be_apart_need_not_be_readable(catalog: SqlCatalog, table: Table) -> None:
    other = new_table(catalog, name=("db", "other"))
    Path(fresh(other).metadata_location.removeprefix("file://")).unlink()
    found = run(table, apart="else.*, db.oth*")
    assert found.outcome is ExpiryOutcome.EXPIRED
    assert on_disk(table) == named_paths(table)


def test_namespaces_that_may_not_be_listed(catalog: SqlCatalog, table: Table) -> None:
    """A catalog of many teams, each with rights for its own."""

    class Teams(SqlCatalog):
        def list_tables(self, namespace: str | tuple[str, ...]) -> list[tuple[str, ...]]:
            if tuple(namespace) == ("theirs",):
                raise RESTError("403 Forbidden")
            return super().list_tables(namespace)

    catalog.create_namespace("theirs")
    teams = Teams("test", **catalog.properties)
    found = run(teams.load_table(table.name()))
    assert found.outcome is ExpiryOutcome.NOT_ALONE
    assert "cannot be listed" in found.why
    assert run(teams.load_table(table.name()), apart="theirs.*").outcome in DONE
    assert on_disk(table) == named_paths(table)


def test_through_a_rest_catalog(catalog: SqlCatalog, table: Table) -> None:
    with serve_rest(catalog) as rest:
        catalog.register_table(("db", "second"), fresh(table).metadata_location)
        found = run(rest.load_table(table.name()), ExpireOptions(ALL.older_than_ms, grace_ms=0))
        assert found.outcome in DONE, "the files wait for five minutes"
        catalog.drop_table(("db", "second"))
    assert named_paths(table) <= on_disk(table)


def test_what_is_due_while_the_policy_lets_nothing_go(
    catalog: SqlCatalog, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(table, ExpireOptions(ALL.older_than_ms))
    catalog.register_table(("db", "second"), fresh(table).metadata_location)
    files = on_disk(table)
    wait(monkeypatch)
    assert run(table).outcome is ExpiryOutcome.NOT_ALONE, "nothing to expire, but to delete"
    assert on_disk(table) == files


def test_files_stay_while_the_table_says_so_whoever_else_there_is(catalog: SqlCatalog, table: Table) -> None:
    run(table, ExpireOptions(ALL.older_than_ms))
    catalog.register_table(("db", "second"), fresh(table).metadata_location)
    with fresh(table).transaction() as change:
        change.set_properties({"gc.enabled": "false"})
    assert run(table).outcome is ExpiryOutcome.NO_WATERMARK


# Garbage


def test_garbage_is_left_alone_that_a_second_name_needs(catalog: SqlCatalog, tmp_path: Path) -> None:
    """PyIceberg's own expiry deletes no files: what only expired snapshots have named looks like garbage."""
    table = new_table(catalog, properties={"lithify.min-saved-files": "1"})
    rows = [row for n in range(2) for row in append(table, make_rows(3, START + n * DAY / 8))]
    assert compact(dataset_of(table)).committed
    second = catalog.register_table(("db", "second"), fresh(table).metadata_location)
    append(table, make_rows(1))
    fresh(table).delete("id >= 0")
    head = fresh(table).current_snapshot()
    assert head is not None
    old = [s.snapshot_id for s in fresh(table).snapshots() if s.snapshot_id != head.snapshot_id]
    fresh(table).maintenance.expire_snapshots().by_ids(old).commit()
    age_files(tmp_path)
    with pytest.raises(Refused, match=r"db\.second is the same table under a second name"):
        collect(dataset_of(table), a_clock(), GarbageOptions(dry_run=False))
    check(second, rows)
    catalog.drop_table(("db", "second"))
    dataset = dataset_of(table, clock=later(shared_locations.LISTED_S))
    report = collect(dataset, a_clock(), GarbageOptions(dry_run=False))
    assert [found for found in report.garbage if found.path.endswith(".parquet")]


# What it costs


class _Counted(SqlCatalog):
    """Counts what it is asked."""

    asked: Counter[str]

    def load_table(self, identifier: Any) -> Table:
        self.asked[f"load {'.'.join(identifier)}"] += 1
        return super().load_table(identifier)

    def list_tables(self, namespace: str | tuple[str, ...]) -> list[tuple[str, ...]]:
        self.asked["list"] += 1
        return super().list_tables(namespace)


@pytest.fixture
def counted(catalog: SqlCatalog, table: Table) -> _Counted:
    """A catalog with twenty more tables."""
    for n in range(20):
        new_table(catalog, name=("db", f"t{n}"))
    found = _Counted("test", **catalog.properties)
    found.asked = Counter()
    return found


def others_asked(catalog: _Counted, action: Callable[[], object]) -> int:
    """How often other tables were loaded meanwhile."""
    catalog.asked.clear()
    action()
    return sum(count for name, count in catalog.asked.items() if name.startswith("load db.t"))


def test_the_tables_of_a_catalog_are_read_once_an_hour_for_all(counted: _Counted, table: Table) -> None:
    clock = a_clock()
    url = TableUrl("test", table.name())
    one = IcebergDataset(counted, url, clock, RandomIds())
    other = IcebergDataset(counted, TableUrl("test", ("db", "t7")), clock, RandomIds())
    assert others_asked(counted, one.known_others) == 20
    assert counted.asked["list"] == 2, "listed again, lest one was renamed meanwhile"
    assert others_asked(counted, one.known_others) == 0
    assert counted.asked["list"] == 0
    assert others_asked(counted, other.known_others) == 0
    assert counted.asked == {"load db.events": 1, "list": 1}
    assert others_asked(counted, other.known_others) == 0
    assert not counted.asked
    clock.advance_s(shared_locations.LISTED_S)
    assert others_asked(counted, one.known_others) == 0
    assert counted.asked["list"] == 1
    new_table(counted, name=("db", "t-new"))
    assert others_asked(counted, one.known_others) == 0
    clock.advance_s(shared_locations.LISTED_S)
    assert others_asked(counted, one.known_others) == 1
    clock.advance_s(shared_locations.KNOWN_S)
    assert others_asked(counted, one.known_others) == 21


def test_a_neighbour_that_cannot_be_read_costs_the_others_nothing(counted: _Counted, table: Table) -> None:
    Path(counted.load_table(("db", "t3")).metadata_location.removeprefix("file://")).unlink()
    clock = a_clock()
    dataset = IcebergDataset(counted, TableUrl("test", table.name()), clock, RandomIds())

    def look() -> None:
        with pytest.raises(Refused, match=r"db\.t3"):
            dataset.known_others()

    assert others_asked(counted, look) == 20
    assert others_asked(counted, look) == 0
    clock.advance_s(shared_locations.UNREADABLE_S)
    assert others_asked(counted, look) == 1


def test_nothing_is_asked_of_others_where_no_file_is_due(
    counted: _Counted, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = counted.load_table(table.name())
    assert others_asked(counted, lambda: run(mine, ExpireOptions(ALL.older_than_ms))) == 0
    wait(monkeypatch)
    assert others_asked(counted, lambda: run(mine)) == 20


def test_the_setting_is_read() -> None:
    config = config_type((IcebergSettings,)).model_validate({"iceberg": {"unrelated_tables": " a.b, c.*,, "}})
    assert config.of(IcebergSettings).unrelated == ("a.b", "c.*")
