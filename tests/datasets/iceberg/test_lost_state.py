"""What is lost with each object of Lithify's folder of a table, and that nothing that counts is forgotten
with it: holds, registered readers, files that wait, outputs of compactions under way."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, ForbiddenError
from pyiceberg.table import Table

from lithify.base.errors import HoldLapsed, Refused, Replaced, StoreUnavailable
from lithify.base.ids import RandomIds
from lithify.coordination.holds import Placed
from lithify.datasets.iceberg.checks import check_table
from lithify.datasets.iceberg.dataset import IcebergDataset
from lithify.datasets.iceberg.maintenance import expire as expire_module
from lithify.datasets.iceberg.maintenance.expire import ExpireOptions, Expirer, Expiry, ExpiryOutcome
from lithify.datasets.iceberg.maintenance.garbage import GarbageOptions, collect
from lithify.datasets.iceberg.maintenance.history_view import show_expiry
from lithify.datasets.iceberg.maintenance.operations import TableMaintenance
from lithify.datasets.iceberg.maintenance.orphans import OrphanOptions, remove_orphans
from lithify.datasets.iceberg.maintenance.own_state import PREFIX, FolderIdentity, missing, recorded_in
from lithify.datasets.iceberg.policy import parse_policy
from lithify.datasets.iceberg.view import show_status
from lithify.datasets.maintenance import ExpiryAsked, HoldRequest
from lithify.protocol.finding import Finding, Severity
from lithify.service.status import status
from lithify.store.times import store_now_ms
from lithify.testing import ManualClock
from lithify.views.blocks import Line
from tests.datasets.iceberg.other_cleaners import (
    own_folder,
    remove_folder,
    remove_orphans_as_iceberg_go,
    root_of,
)
from tests.datasets.iceberg.rest import serve_rest
from tests.datasets.iceberg.running import Steps, a_clock, compact, dataset_of
from tests.datasets.iceberg.spark_checkpoint import SparkCheckpoint
from tests.datasets.iceberg.tables import (
    DAY,
    NAME,
    START,
    age_files,
    append,
    check,
    fresh,
    make_rows,
    named_paths,
    new_catalog,
    new_table,
    read,
    rewrite_without,
)

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
LEASE_MS = 10 * DAY_MS
FOUR_DAYS_S = 4 * 24 * 3600
ALL = ExpireOptions(older_than_ms=4_000_000_000_000, grace_ms=0)
ACCEPTING = ExpireOptions(older_than_ms=4_000_000_000_000, grace_ms=0, accept_loss=True)


@pytest.fixture
def table(catalog: SqlCatalog) -> Table:
    """A table of six snapshots. Each has data files that the one before it does not have, and the other way
    round."""
    table = new_table(catalog)
    rows = [append(table, make_rows(3, START + n * DAY))[0] for n in range(3)]
    for row in rows:
        rewrite_without(table, row[1])
    return fresh(table)


def maintenance_of(table: Table) -> TableMaintenance:
    clock = a_clock()
    return TableMaintenance(dataset_of(table, clock=clock), clock, RandomIds())


def ids_of(table: Table) -> list[int]:
    return [snapshot.snapshot_id for snapshot in fresh(table).snapshots()]


def hold(table: Table, snapshot_id: int, name: str | None = None, lease_ms: int = LEASE_MS) -> Placed:
    return maintenance_of(table).hold(HoldRequest(version=snapshot_id), lease_ms, name, "me")


def release(table: Table, placed: Sequence[Placed]) -> None:
    maintenance = maintenance_of(table)
    for one in placed:
        maintenance.release(one)


def reader(table: Table, folder: Path, name: str, snapshot_id: int | None = None) -> SparkCheckpoint:
    """A registered reader that stands on a snapshot, by default on the first."""
    checkpoint = SparkCheckpoint(folder / name)
    checkpoint.begin(ids_of(table)[0] if snapshot_id is None else snapshot_id)
    maintenance_of(table).add_reader(checkpoint.url, name, {"continuous": True})
    return checkpoint


def run(table: Table, options: ExpireOptions = ALL) -> Expiry:
    return Expirer(dataset_of(table), a_clock(), RandomIds()).run(options)


def later(monkeypatch: pytest.MonkeyPatch, ms: int) -> None:
    """Let time pass at the store, for expiries."""
    monkeypatch.setattr(expire_module, "store_now_ms", lambda *of: store_now_ms(*of) + ms)


def examine(table: Table) -> dict[str, Finding]:
    clock = a_clock()
    find = partial(status, clock=clock, heartbeat_timeout_ms=30_000)
    found = check_table(lambda: dataset_of(table), find, clock.now_ms())
    return {finding.check: finding for finding in found}


def shown_status(table: Table) -> str:
    found = status(dataset_of(table), a_clock(), heartbeat_timeout_ms=30_000)
    return " ".join(f"{b.lead} {b.text}" for b in show_status(found).blocks if isinstance(b, Line))


def commits(table: Table, action: Callable[[], object]) -> int:
    """How many commits to the table this makes."""

    def number() -> int:
        now = fresh(table)
        return len(now.metadata.metadata_log)

    before = number()
    action()
    return number() - before


def no_commits(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """The catalog refuses to set properties."""
    commit = SqlCatalog.commit_table

    def refuse(self: SqlCatalog, table: Table, requirements: Any, updates: Any) -> Any:
        if any(update.action in ("set-properties", "remove-properties") for update in updates):
            raise error
        return commit(self, table, requirements, updates)

    monkeypatch.setattr(SqlCatalog, "commit_table", refuse)


# The folder is removed


@pytest.mark.parametrize("by", ["iceberg-go", "a person"])
def test_an_expiry_stops_where_holds_and_readers_were_removed(table: Table, tmp_path: Path, by: str) -> None:
    ids = ids_of(table)
    hold(table, ids[0], "training")
    reader(table, tmp_path / "checkpoints", "dash", ids[1])
    before = {snapshot_id: read(table, snapshot_id) for snapshot_id in ids}
    assert run(table).outcome is ExpiryOutcome.HELD
    assert examine(table)["history"].severity is Severity.OK
    if by == "iceberg-go":
        age_files(root_of(table), FOUR_DAYS_S)
        gone = remove_orphans_as_iceberg_go(table)
        assert any("/holds/" in path for path in gone)
        assert all(path.startswith("_lithify/") for path in gone)
    else:
        remove_folder(table)
    for options in (ExpireOptions(ALL.older_than_ms, grace_ms=0, dry_run=True), ALL, ALL):
        found = run(table, options)
        assert found.outcome is ExpiryOutcome.STATE_LOST
        assert "the registered readers dash and holds whose leases may last until" in found.why
        assert "lithify expire --accept-loss" in found.why
        (line, *_) = show_expiry("iceberg://test/db.events", found, 0).blocks
        assert isinstance(line, Line)
        assert (line.lead, line.is_bad) == ("State lost:", True)
    assert {snapshot_id: read(table, snapshot_id) for snapshot_id in ids_of(table)} == before
    left = [path.name for path in own_folder(table).rglob("*") if path.is_file()]
    assert sorted(left) == ["expiry-runs.json", "now"], "how it ended, and what time it is"
    asked = ExpiryAsked(older_than_ms=ALL.older_than_ms)
    assert not maintenance_of(table).expire(asked).is_done, "exit code 1"
    assert examine(table)["history"].severity is Severity.PROBLEM
    assert "the registered readers dash" in examine(table)["history"].says
    assert "Nothing can expire: the table records the registered readers dash" in shown_status(table)
    outlook = Expirer(dataset_of(table), a_clock(), RandomIds()).outlook()
    assert (outlook.outcome, outlook.going) == (ExpiryOutcome.STATE_LOST, 0)


def test_what_a_person_does_then(table: Table, tmp_path: Path) -> None:
    ids = ids_of(table)
    hold(table, ids[0], "training")
    for name in ("dash", "other"):
        reader(table, tmp_path / "checkpoints", name, ids[3])
    remove_folder(table)
    with pytest.raises(HoldLapsed):
        maintenance_of(table).renew("training")
    hold(table, ids[2], "training")
    reader(table, tmp_path / "checkpoints", "dash", ids[3])
    maintenance_of(table).drop_reader("other")
    found = run(table)
    assert found.outcome is ExpiryOutcome.STATE_LOST
    assert "readers" not in found.why.partition(", but Lithify's folder")[0]
    assert "holds" in found.why
    dry = run(table, ExpireOptions(ALL.older_than_ms, grace_ms=0, dry_run=True, accept_loss=True))
    assert set(dry.expired) == set(ids[:2])
    assert run(table).outcome is ExpiryOutcome.STATE_LOST, "a dry run accepts nothing"
    found = run(table, ACCEPTING)
    assert (found.outcome, set(found.expired)) == (ExpiryOutcome.EXPIRED, set(ids[:2]))
    assert any("accepted as lost" in note for note in found.notes)
    assert run(table).outcome is ExpiryOutcome.HELD
    assert examine(table)["history"].severity is Severity.OK


def test_a_lost_reader_is_registered_again_or_dropped(table: Table, tmp_path: Path) -> None:
    ids = ids_of(table)
    checkpoint = reader(table, tmp_path, "dash", ids[3])
    (own_folder(table) / "readers" / "dash.json").unlink()
    found = run(table)
    assert found.outcome is ExpiryOutcome.STATE_LOST
    assert found.why.startswith("the table records the registered readers dash, but")
    maintenance_of(table).add_reader(checkpoint.url, "dash", {"continuous": True})
    assert set(run(table).expired) == set(ids[:3])
    (own_folder(table) / "readers" / "dash.json").unlink()
    with pytest.raises(Refused, match="no reader nobody is registered"):
        maintenance_of(table).drop_reader("nobody")
    maintenance_of(table).drop_reader("dash")
    assert run(table).outcome is ExpiryOutcome.EXPIRED
    assert recorded_in(fresh(table).metadata).readers == frozenset()


def test_what_is_removed_by_age_takes_the_identity_first(table: Table, tmp_path: Path) -> None:
    """A hold that is renewed is younger than the folder, so it is there when others are not."""
    ids = ids_of(table)
    old = hold(table, ids[0], "old")
    age_files(root_of(table), FOUR_DAYS_S)
    hold(table, ids[3], "young")
    gone = remove_orphans_as_iceberg_go(table)
    assert any(f"old~{old.token}" in path for path in gone)
    assert list((own_folder(table) / "holds").glob("young~*"))
    assert run(table).outcome is ExpiryOutcome.STATE_LOST


def test_where_nothing_was_kept_nothing_is_lost(table: Table) -> None:
    """Of a table without holds and readers the folder may go: compactions are planned again."""
    assert run(table, ExpireOptions(ALL.older_than_ms)).outcome is ExpiryOutcome.EXPIRED
    append(table, make_rows(2))
    remove_folder(table)
    assert run(table).outcome is ExpiryOutcome.EXPIRED
    assert examine(table)["history"].severity is Severity.OK


def test_leases_that_end_need_nobody_to_clear_them(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    hold(table, ids_of(table)[0], lease_ms=HOUR_MS)
    remove_folder(table)
    assert run(table).outcome is ExpiryOutcome.STATE_LOST
    later(monkeypatch, DAY_MS // 2)
    assert run(table).outcome is ExpiryOutcome.STATE_LOST, "the day is not over"
    later(monkeypatch, 3 * DAY_MS)
    assert run(table).outcome is ExpiryOutcome.EXPIRED
    hold(table, ids_of(table)[-1], lease_ms=HOUR_MS)
    assert len(recorded_in(fresh(table).metadata).holds) == 1, "what is over was taken out"


def test_a_folder_that_is_removed_during_a_run(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    for moment in ("_publish", "_only_named_by"):
        held = hold(table, ids_of(table)[-1], lease_ms=HOUR_MS)
        step = getattr(Expirer, moment)

        def remove(self: Expirer, *arguments: Any, step: Any = step) -> Any:
            result = step(self, *arguments)
            result = result if not hasattr(result, "__next__") else list(result)
            shutil.rmtree(own_folder(table) / "holds", ignore_errors=True)
            (own_folder(table) / "state.json").unlink(missing_ok=True)
            return result

        with monkeypatch.context() as patched:
            patched.setattr(Expirer, moment, remove)
            found = run(table)
        assert found.outcome is ExpiryOutcome.STATE_LOST, moment
        assert not found.expired
        assert len(ids_of(table)) == 6
        dataset = dataset_of(table)
        dataset.record.accept(fresh(table), dataset.begin_state(fresh(table)), ())
        assert held.name


def test_a_reader_that_is_registered_while_a_run_reads(table: Table, tmp_path: Path) -> None:
    """After the list of readers was read, and before the table was."""
    ids = ids_of(table)
    expirer = Expirer(dataset_of(table), a_clock(), RandomIds())
    load, added = expirer._load, list[SparkCheckpoint]()

    def register_first() -> Table:
        if not added:
            added.append(reader(table, tmp_path, "dash", ids[3]))
        return load()

    expirer._load = register_first  # type: ignore[method-assign]
    found = expirer.run(ALL)
    assert (found.outcome, set(found.expired)) == (ExpiryOutcome.EXPIRED, set(ids[:3]))


# What it costs, and who may write


def test_holds_cost_a_commit_now_and_then(table: Table) -> None:
    ids = ids_of(table)
    assert commits(table, lambda: hold(table, ids[0], "first", lease_ms=HOUR_MS)) == 1
    placed = [hold(table, ids[n % 6], lease_ms=HOUR_MS) for n in range(20)]
    assert commits(table, lambda: [hold(table, ids[n % 6], lease_ms=HOUR_MS) for n in range(20)]) == 0
    assert commits(table, lambda: [maintenance_of(table).renew(one) for one in placed]) == 0
    assert commits(table, lambda: hold(table, ids[0], lease_ms=30 * DAY_MS)) == 1
    assert commits(table, lambda: release(table, placed)) == 0


def test_readers_cost_a_commit_each(table: Table, tmp_path: Path) -> None:
    assert commits(table, lambda: reader(table, tmp_path, "dash")) == 1
    assert commits(table, lambda: reader(table, tmp_path, "dash")) == 0
    assert commits(table, lambda: maintenance_of(table).drop_reader("dash")) == 1


def test_an_expiry_records_what_waits_in_its_own_commit(table: Table) -> None:
    assert commits(table, lambda: run(table, ExpireOptions(ALL.older_than_ms))) == 1
    assert recorded_in(fresh(table).metadata).files
    append(table, make_rows(1))
    assert commits(table, lambda: run(table, ExpireOptions(ALL.older_than_ms))) == 1
    assert len(recorded_in(fresh(table).metadata).keys) == 1


def test_a_catalog_that_may_not_be_written(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = ids_of(table)
    with monkeypatch.context() as patched:
        no_commits(patched, ForbiddenError("no right to change tables"))
        with pytest.raises(Refused, match="does not let the table record this"):
            hold(table, ids[0], "mine")
        assert maintenance_of(table).holds() == ()
        with pytest.raises(Refused, match="does not let the table record this"):
            reader(table, tmp_path, "dash")
        assert not list((own_folder(table) / "readers").glob("*"))
    hold(table, ids[0], "operator", lease_ms=HOUR_MS)
    no_commits(monkeypatch, ForbiddenError("no right to change tables"))
    hold(table, ids[1], "mine", lease_ms=HOUR_MS)
    assert len(maintenance_of(table).holds()) == 2, "what covers one covers the other"


def test_a_record_that_may_come_late_leaves_the_reader_registered(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a record of a reader that is nowhere would stop expiries for ever."""
    with monkeypatch.context() as patched:
        no_commits(patched, CommitStateUnknownException("no answer"))
        with pytest.raises(StoreUnavailable):
            reader(table, tmp_path, "dash")
    dataset_of(table).record.reader(fresh(table), "dash")  # the late one
    assert [one.name for one in dataset_of(table).readers().list()] == ["dash"]
    assert run(table).outcome is ExpiryOutcome.HELD
    reader(table, tmp_path, "dash")
    assert run(table).outcome is ExpiryOutcome.HELD


def test_two_who_record_at_once(table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another commit comes between the look and the commit of each."""
    ids, commit, left = ids_of(table), SqlCatalog.commit_table, [2]

    def meddle(self: SqlCatalog, given: Table, requirements: Any, updates: Any) -> Any:
        is_ours = any(u.action == "set-properties" and "holds" in str(u.updates) for u in updates)
        if is_ours and left[0]:
            left[0] -= 1
            if left[0]:
                raise CommitFailedException("another was faster")
            reader(table, tmp_path, "dash")
        return commit(self, given, requirements, updates)

    monkeypatch.setattr(SqlCatalog, "commit_table", meddle)
    hold(table, ids[0])
    recorded = recorded_in(fresh(table).metadata)
    assert recorded.readers == frozenset({"dash"})
    assert len(recorded.holds) == 1


def test_a_property_that_is_removed_by_two_at_once(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyIceberg takes the removal of what is not there for a mistake of its caller."""
    run(table, ExpireOptions(ALL.older_than_ms))
    append(table, make_rows(1))
    (key,) = recorded_in(fresh(table).metadata).keys
    later(monkeypatch, 5 * DAY_MS)
    commit, left = SqlCatalog.commit_table, [1]

    def remove_first(self: SqlCatalog, given: Table, requirements: Any, updates: Any) -> Any:
        if left[0] and any(u.action == "remove-properties" for u in updates):
            left[0] = 0
            with fresh(table).transaction() as change:
                change.remove_properties(key)
        return commit(self, given, requirements, updates)

    monkeypatch.setattr(SqlCatalog, "commit_table", remove_first)
    assert run(table, ExpireOptions(ALL.older_than_ms)).outcome is ExpiryOutcome.EXPIRED
    assert left == [0]
    assert key not in fresh(table).properties


def test_through_a_rest_catalog(catalog: SqlCatalog, table: Table, tmp_path: Path) -> None:
    """It asserts nothing about properties, so each is a fact of its own."""
    with serve_rest(catalog) as rest:
        remote = rest.load_table(NAME)
        ids = ids_of(table)
        hold(remote, ids[0], lease_ms=HOUR_MS)
        reader(remote, tmp_path, "dash", ids[1])
        assert run(remote).outcome is ExpiryOutcome.HELD
        remove_folder(table)
        assert run(remote).outcome is ExpiryOutcome.STATE_LOST
        assert run(remote, ACCEPTING).outcome is ExpiryOutcome.EXPIRED


# Properties are data


def test_what_another_table_records_does_not_count(catalog: SqlCatalog, table: Table, tmp_path: Path) -> None:
    """Properties are copied with tables."""
    hold(table, ids_of(table)[0])
    reader(table, tmp_path, "dash")
    records = {k: v for k, v in fresh(table).properties.items() if k.startswith(PREFIX)}
    assert len(records) == 2
    copy = new_table(catalog, name=("db", "copy"), properties=records)
    for _ in range(3):
        append(copy, make_rows(2))
    assert recorded_in(fresh(copy).metadata).keys == frozenset()
    assert run(copy).outcome is ExpiryOutcome.EXPIRED


@pytest.mark.parametrize(
    "key",
    ["other.x", "holds.x.2026-01-01", "holds", "reader.../../x", "reader.", "holds.{}.today", "x" * 9999],
)
def test_what_makes_no_sense_stops_an_expiry(table: Table, key: str) -> None:
    """A newer version may mean something by it."""
    name = PREFIX + key.format("a" * 32)
    with fresh(table).transaction() as change:
        change.set_properties({name: str(table.metadata.table_uuid)})
    found = run(table)
    assert found.outcome is ExpiryOutcome.STATE_LOST
    assert "state in the unknown property" in found.why
    assert len(found.why) < 1000
    assert run(table, ACCEPTING).outcome is ExpiryOutcome.EXPIRED
    assert recorded_in(fresh(table).metadata).unknown == ()


def test_versions_that_do_not_know_these_properties_do_not_refuse_the_table() -> None:
    assert parse_policy({f"{PREFIX}holds.{'a' * 32}.2026-01-01": "x"}, "iceberg://test/db.t")


def test_what_is_missing_is_told_in_few_words(table: Table) -> None:
    names = {f"{PREFIX}reader.r{n:03}": str(table.metadata.table_uuid) for n in range(200)}
    metadata = table.metadata.model_copy(update={"properties": names})
    text = missing(recorded_in(metadata), FolderIdentity("a" * 32, 0), (), 0)
    assert text == "the registered readers r000, r001, r002, r003, r004 and 195 more"


def test_the_day_of_a_record_covers_the_next_one(table: Table) -> None:
    placed = hold(table, ids_of(table)[0], lease_ms=HOUR_MS)
    until_ms = placed.hold.until_ms or 0
    (end_ms,) = recorded_in(fresh(table).metadata).holds.values()
    day = datetime.fromtimestamp(until_ms / 1000, UTC).date() + timedelta(days=2)
    assert end_ms == datetime.combine(day, datetime.min.time(), UTC).timestamp() * 1000


# The other objects


def test_outputs_of_a_compaction_stay_though_its_ledger_is_removed(catalog: SqlCatalog) -> None:
    """Another coordinator knows nothing of it, and collects garbage at once."""
    table = new_table(catalog, properties={"lithify.min-saved-files": "1"})
    rows = [row for n in range(4) for row in append(table, make_rows(3, START + n * DAY / 8))]
    steps = Steps(dataset_of(table))
    steps.schedule()
    steps.execute()
    age_files(root_of(table))
    remove_folder(table)
    dataset_of(table).take_epoch()
    report = collect(dataset_of(table), a_clock(), GarbageOptions(min_age_ms=0, dry_run=False))
    assert [found for found in report.garbage if found.path.endswith(".parquet")] == []
    assert any("older than Lithify's folder" in note for note in report.notes)
    with pytest.raises(Replaced):
        steps.commit()
    check(table, rows)


def test_a_coordinator_whose_ledger_was_removed_leaves_the_next_one_alone(catalog: SqlCatalog) -> None:
    table = new_table(catalog, properties={"lithify.min-saved-files": "1"})
    rows = [row for n in range(4) for row in append(table, make_rows(3, START + n * DAY / 8))]
    steps = Steps(dataset_of(table))
    steps.schedule()
    remove_folder(table)
    other = dataset_of(table)
    other.take_epoch()
    with pytest.raises(Replaced):
        steps.execute()
    age_files(root_of(table), 60)
    collect(other, a_clock(), GarbageOptions(min_age_ms=0, dry_run=False))
    assert other.stored_ledger() == other.ledger()
    compact(other)
    check(table, rows)


def test_orphans_are_not_removed_while_files_wait_that_are_not_known(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(table, ExpireOptions(ALL.older_than_ms))
    waiting = {path for path in root_of(table).rglob("*.parquet") if path.as_uri() not in named_paths(table)}
    assert waiting
    remove_folder(table)
    age_files(root_of(table), FOUR_DAYS_S)
    with pytest.raises(Refused, match="files that wait until"):
        remove_orphans(dataset_of(table), a_clock(), RandomIds(), OrphanOptions(dry_run=False))
    assert all(path.exists() for path in waiting)
    clock = a_clock()
    clock.advance_s(FOUR_DAYS_S)
    found = remove_orphans(dataset_of(table, clock=clock), clock, RandomIds(), OrphanOptions())
    assert {Path(path.removeprefix("file://")) for path in found.paths} >= waiting


def test_files_that_stay_for_good_stay_though_their_list_is_removed(
    catalog: SqlCatalog, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tag was made while its snapshot was expired through a REST catalog: a person wants to recover it."""
    ids = ids_of(table)
    with serve_rest(catalog) as rest:
        remote, commit = rest.load_table(NAME), type(rest).commit_table

        def tag_first(self: Any, given: Table, requirements: Any, updates: Any) -> Any:
            if any(update.action == "remove-snapshots" for update in updates):
                with fresh(table).manage_snapshots() as changes:
                    changes.create_tag(ids[0], "audit")
            return commit(self, given, requirements, updates)

        with monkeypatch.context() as patched:
            patched.setattr(type(rest), "commit_table", tag_first)
            assert run(remote).outcome is ExpiryOutcome.REF_LOST
        remove_folder(table)
        age_files(root_of(table), FOUR_DAYS_S)
        clock = a_clock()
        clock.advance_s(FOUR_DAYS_S)
        with pytest.raises(Refused, match="files that are never deleted"):
            remove_orphans(dataset_of(remote, clock=clock), clock, RandomIds(), OrphanOptions())
        found = run(remote)
        assert (found.outcome, "files that are never deleted" in found.why) == (
            ExpiryOutcome.STATE_LOST,
            True,
        )
        run(remote, ACCEPTING)
        assert remove_orphans(dataset_of(remote, clock=clock), clock, RandomIds(), OrphanOptions()).found


def test_what_lithify_wrote_before_its_folder_is_an_orphan_like_others(
    catalog: SqlCatalog, tmp_path: Path
) -> None:
    table = new_table(catalog, properties={"lithify.min-saved-files": "1"})
    for n in range(4):
        append(table, make_rows(3, START + n * DAY / 8))
    steps = Steps(dataset_of(table))
    steps.schedule()
    steps.execute()
    outputs = set(root_of(table).glob("data/lithify-*"))
    assert outputs
    remove_folder(table)
    age_files(root_of(table), FOUR_DAYS_S)
    clock = a_clock()
    assert not remove_orphans(dataset_of(table), clock, RandomIds(), OrphanOptions()).found, "nobody knows"
    dataset_of(table).take_epoch()
    found = remove_orphans(dataset_of(table), clock, RandomIds(), OrphanOptions(dry_run=False))
    assert {Path(path.removeprefix("file://")) for path in found.paths} == outputs
    assert not any(path.exists() for path in outputs)


LOSSES = {
    "ledger": "compactions are planned again",
    "ledger.boundary": "nothing",
    "chunks": "what was remembered of chunks is found again",
    "chunks.boundary": "nothing",
    "coordinator.json": "the lease; another coordinator takes over",
    "progress": "movements of tasks",
    "attempts": "attempts are counted from none",
    "failures": "why compactions have failed",
    "commits": "records for people",
    "lineage.json": "that a second self of the table is another one: a person says so by deleting it",
    "watermark": "the next run publishes it",
    "watermark.boundary": "nothing",
    "pending": "files stay",
    "pending-files": "files stay",
    "pending.boundary": "nothing",
    "expiry-runs.json": "how expiries ended",
    "orphan-run.json": "the next look for orphans is due",
    "now": "what time it was",
    "state.json": "an expiry stops while holds may last",
    "holds": "an expiry stops only if the identity is gone too",
    "readers": "an expiry stops and names them",
}
"""What the loss of each object under `_lithify/<uuid>/` causes."""


def with_everything(catalog: SqlCatalog, folder: Path) -> tuple[Table, list[Any], list[int]]:
    """A table that has everything in its folder, its rows, and the snapshots that are held."""
    table = new_table(catalog, properties={"lithify.min-saved-files": "1"})
    rows = [row for n in range(4) for row in append(table, make_rows(3, START + n * DAY / 8))]
    compact(dataset_of(table))
    ids = ids_of(table)
    hold(table, ids[-2], "training")
    reader(table, folder, "dash", ids[-1])
    run(table, ExpireOptions(ALL.older_than_ms))
    remove_orphans(dataset_of(table), a_clock(), RandomIds())
    rows += append(table, make_rows(2, START + DAY * 2))
    return table, rows, ids[-2:]


@pytest.mark.parametrize("lost", sorted(LOSSES))
def test_the_loss_of_each_object_loses_nothing_that_is_needed(
    catalog: SqlCatalog, tmp_path: Path, lost: str
) -> None:
    table, rows, needed = with_everything(catalog, tmp_path / "checkpoints")
    path = own_folder(table) / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    before = set(root_of(table).glob("data/*")) | set(root_of(table).glob("metadata/*"))
    age_files(root_of(table))
    compact(dataset_of(table))
    collect(dataset_of(table), a_clock(), GarbageOptions(dry_run=False))
    outcome = run(table, ExpireOptions(ALL.older_than_ms, grace_ms=0)).outcome
    if lost in ("state.json", "readers"):
        assert outcome is ExpiryOutcome.STATE_LOST
    if lost != "holds":
        assert set(needed) <= set(ids_of(table))
    if lost in ("pending", "pending-files"):
        assert all(path.exists() for path in before if path.suffix in (".parquet", ".avro"))
    check(table, rows)


def test_each_object_of_the_folder_is_in_the_list(catalog: SqlCatalog, tmp_path: Path) -> None:
    table, _, _ = with_everything(catalog, tmp_path / "checkpoints")
    collect(dataset_of(table), a_clock(), GarbageOptions(min_age_ms=0, dry_run=False))
    found = {path.name for path in own_folder(table).iterdir() if "#" not in path.name}
    assert found <= LOSSES.keys()
    assert len(found) >= 12


def test_a_second_self_is_still_noticed_after_a_loss_of_all(table: Table, tmp_path: Path) -> None:
    """Which of the two is the one is decided by the first to look after the table."""
    second = new_catalog(tmp_path / "second").register_table(NAME, fresh(table).metadata_location)
    remove_folder(table) if own_folder(table).exists() else None
    dataset_of(table).take_epoch()
    append(second, make_rows(2))
    append(table, make_rows(2))
    run(table, ExpireOptions(ALL.older_than_ms))
    with pytest.raises(Refused, match="second catalog"):
        run(second)


def test_a_clock_an_hour_off_makes_no_difference(table: Table) -> None:
    clock = ManualClock(a_clock().now_ms() - HOUR_MS)
    dataset = IcebergDataset(table.catalog, dataset_url(table), clock, RandomIds())
    maintenance = TableMaintenance(dataset, clock, RandomIds())
    maintenance.hold(HoldRequest(), 60_000, "short", "me")
    remove_folder(table)
    assert run(table).outcome is ExpiryOutcome.STATE_LOST


def dataset_url(table: Table) -> Any:
    from lithify.datasets.iceberg.io.catalogs import TableUrl

    return TableUrl("test", table.name())
