"""Expiry through a REST catalog: what is asked and asserted goes over its protocol."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from lithify.base.ids import RandomIds
from lithify.datasets.iceberg.maintenance.expire import ExpireOptions, Expirer, Expiry, ExpiryOutcome
from tests.datasets.iceberg import test_expire
from tests.datasets.iceberg.rest import serve_rest
from tests.datasets.iceberg.running import a_clock, dataset_of
from tests.datasets.iceberg.tables import (
    append,
    fresh,
    make_rows,
    named_paths,
    new_table,
    read,
    rewrite_without,
)
from tests.datasets.iceberg.test_expire import ALL, ids_of, meanwhile, on_disk, six_snapshots, statistics_of


@pytest.fixture(autouse=True)
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lithify.datasets.iceberg.maintenance.expire.MIN_UNCHECKED_GRACE_MS", 0)


@pytest.fixture
def table(catalog: SqlCatalog) -> Table:
    return six_snapshots(new_table(catalog))


@pytest.fixture
def rest(catalog: SqlCatalog) -> Iterator[RestCatalog]:
    with serve_rest(catalog) as client:
        yield client


def run(table: Table, rest: RestCatalog, options: ExpireOptions = ALL) -> Expiry:
    return Expirer(dataset_of(table, catalog=rest), a_clock(), RandomIds()).run(options)


def test_snapshots_statistics_and_refs_go(table: Table, rest: RestCatalog) -> None:
    rows, ids = read(table), ids_of(table)
    statistics_of(table, ids[0])
    with fresh(table).manage_snapshots() as changes:
        changes.create_tag(ids[1], "old", max_ref_age_ms=1)
        changes.create_tag(ids[2], "kept")
    found = run(table, rest)
    assert (found.outcome, found.refs) == (ExpiryOutcome.EXPIRED, ("old",))
    assert ids_of(table) == [ids[2], ids[-1]]
    assert not fresh(table).metadata.statistics
    assert not fresh(table).metadata.partition_statistics
    assert read(table) == rows
    assert on_disk(table) == named_paths(table)


def test_a_ref_that_moves_is_seen(table: Table, rest: RestCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = ids_of(table)
    with fresh(table).manage_snapshots() as changes:
        changes.create_tag(ids[3], "moving")

    def move() -> None:
        with fresh(table).manage_snapshots() as changes:
            changes.remove_tag("moving").create_tag(ids[2], "moving")

    meanwhile(monkeypatch, move)
    assert run(table, rest).outcome is ExpiryOutcome.EXPIRED
    assert ids_of(table) == [ids[2], ids[-1]]


def test_a_commit_that_comes_between_is_seen(
    table: Table, rest: RestCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[Any] = list(read(table))
    meanwhile(monkeypatch, lambda: rows.extend(append(table, make_rows(2))))
    assert run(table, rest).outcome is ExpiryOutcome.EXPIRED
    assert sorted(row[1] for row in read(table)) == sorted(row[1] for row in rows)


@pytest.mark.parametrize("is_logged", [True, False])
def test_a_tag_that_is_lost_is_told_and_its_files_stay(
    table: Table, rest: RestCatalog, monkeypatch: pytest.MonkeyPatch, is_logged: bool
) -> None:
    """No requirement of the protocol says that there is no other ref."""
    ids, before = ids_of(table), on_disk(table)
    if not is_logged:
        with fresh(table).transaction() as transaction:
            transaction.set_properties({"write.metadata.previous-versions-max": "1"})

    def make() -> None:
        with fresh(table).manage_snapshots() as changes:
            changes.create_tag(ids[2], "precious")

    meanwhile(monkeypatch, make)
    found = run(table, rest)
    assert found.outcome is ExpiryOutcome.REF_LOST
    assert ("precious" if is_logged else "it is unknown whether") in found.why
    again = run(table, rest)
    assert again.outcome is ExpiryOutcome.NOTHING_TO_DO
    assert any("are never deleted" in note for note in again.notes)
    assert before <= on_disk(table)
    assert again.pending


def test_a_lost_tag_can_be_recovered_after_what_it_shares_with_others_was_expired(
    table: Table, rest: RestCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = ids_of(table)
    lost = named_paths(table, ids[4])
    shared = {path for path in lost & named_paths(table, ids[5]) if path.endswith(".parquet")}
    assert shared

    def make() -> None:
        with fresh(table).manage_snapshots() as changes:
            changes.create_tag(ids[4], "precious")

    meanwhile(monkeypatch, make)
    assert run(table, rest).outcome is ExpiryOutcome.REF_LOST
    for row in read(table):
        rewrite_without(table, row[1])
    assert run(table, rest).outcome is ExpiryOutcome.EXPIRED
    assert not shared & named_paths(table)
    assert lost <= on_disk(table)


def test_a_tag_of_what_stays_is_not_lost(
    table: Table, rest: RestCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make() -> None:
        with fresh(table).manage_snapshots() as changes:
            changes.create_tag(ids_of(table)[-1], "daily")

    meanwhile(monkeypatch, make)
    assert run(table, rest).outcome is ExpiryOutcome.EXPIRED
    assert on_disk(table) == named_paths(table)


def test_what_this_process_cannot_check_waits_a_few_minutes(
    table: Table, rest: RestCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    before = on_disk(table)
    assert run(table, rest).pending
    assert before <= on_disk(table)


def test_another_run_comes_between(table: Table, rest: RestCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = ids_of(table)
    meanwhile(monkeypatch, lambda: test_expire.run(table))
    assert run(table, rest).outcome in (ExpiryOutcome.EXPIRED, ExpiryOutcome.NOTHING_TO_DO)
    run(table, rest)
    assert (ids_of(table), on_disk(table)) == (ids[-1:], named_paths(table))
