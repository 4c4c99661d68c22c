"""What status, metrics and doctor say of a table's history."""

from __future__ import annotations

import os
from functools import partial
from io import StringIO
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from rich.console import Console

from lithify.base.errors import CorruptObject
from lithify.base.events import HistoryRun
from lithify.base.ids import RandomIds
from lithify.coordination.expiry_runs import ExpiryRuns
from lithify.datasets.iceberg.checks import check_table
from lithify.datasets.iceberg.kind import KIND
from lithify.datasets.iceberg.maintenance.expire import ExpireOptions, Expirer, ExpiryOutcome, Outlook
from lithify.datasets.iceberg.maintenance.history_checks import FORGOTTEN, STOPPED_MS
from lithify.datasets.iceberg.maintenance.history_size import freed_bytes, needed_by_refs
from lithify.datasets.iceberg.view import show_status
from lithify.datasets.options import CommandArgs
from lithify.mirror.metered_reads import metered
from lithify.observe.metrics import Metrics
from lithify.protocol.finding import Finding, Severity
from lithify.protocol.model import Ledger
from lithify.protocol.retained import Past, Retained, Runs
from lithify.service.status import status
from lithify.testing import ManualClock, MemoryStore
from lithify.views.drawing import draw
from tests.datasets.iceberg.running import a_clock, dataset_of
from tests.datasets.iceberg.spark_checkpoint import SparkCheckpoint
from tests.datasets.iceberg.tables import append, fresh, make_rows, new_table
from tests.datasets.iceberg.test_expire import ALL, hold, ids_of, maintenance_of, run, six_snapshots

AT_ONCE = {"history.expire.max_snapshot_age_ms": "0"}


@pytest.fixture
def table(catalog: SqlCatalog) -> Table:
    return six_snapshots(new_table(catalog))


def retained(table: Table) -> Retained:
    dataset = dataset_of(table)
    found = dataset.retained(dataset.snapshot(), dataset.ledger() or Ledger())
    assert found is not None
    return found


def examine(table: Table, later_ms: int = 0) -> dict[str, Finding]:
    now_ms = a_clock().now_ms() + later_ms
    find = partial(status, clock=ManualClock(now_ms), heartbeat_timeout_ms=30_000)
    return {finding.check: finding for finding in check_table(lambda: dataset_of(table), find, now_ms)}


def set_properties(table: Table, **properties: str) -> None:
    with fresh(table).transaction() as change:
        change.set_properties({name.replace("_", "-"): text for name, text in properties.items()})


# How much there is


def test_bytes_that_only_history_keeps_are_those_that_expiry_frees(table: Table) -> None:
    metadata, ids = fresh(table).metadata, ids_of(table)
    data = sum(int(s.summary["removed-files-size"] or 0) for s in metadata.snapshots if s.summary)
    assert retained(table).past == Past(6, metadata.snapshots[0].timestamp_ms, data)
    assert freed_bytes(metadata, set(ids[:-1])) == data
    deleted = run(table)
    assert deleted.deleted_bytes > data, "manifests besides"
    assert retained(table).past.only_history_bytes == 0


def test_what_a_tag_or_a_branch_keeps_is_not_freed(table: Table) -> None:
    ids = ids_of(table)
    everything = freed_bytes(fresh(table).metadata, set(ids[:-1]))
    assert freed_bytes(fresh(table).metadata, set(ids[1:-1])) == 0, "the first has them all"
    assert 0 < freed_bytes(fresh(table).metadata, set(ids[:4])) < everything
    with fresh(table).manage_snapshots() as changes:
        changes.create_branch(ids[3], "audit")
    append_to = fresh(table)
    append_to.append(append_to.scan().to_arrow(), branch="audit")
    assert freed_bytes(fresh(table).metadata, set(ids_of(table)[:-1])) < everything, "a branch begins at 3"


def test_who_needs_the_oldest(table: Table) -> None:
    ids = ids_of(table)
    assert retained(table).needed == ()
    hold(table, ids[3], "training")
    with fresh(table).manage_snapshots() as changes:
        changes.create_tag(ids[1], "audit").create_tag(ids[-1], "newest")
    found = retained(table)
    assert [needed.by for needed in found.needed] == ["tag audit", "hold training of me"]
    assert needed_by_refs(fresh(table).metadata) == found.needed[:1], "a tag of the newest keeps no history"


def test_what_a_run_found_of_a_reader_is_told_while_it_is_registered(table: Table, tmp_path: Path) -> None:
    checkpoint = SparkCheckpoint(tmp_path / "checkpoint")
    checkpoint.begin(ids_of(table)[2])
    maintenance_of(table).add_reader(checkpoint.url, "dash", {})
    assert (retained(table).needed, retained(table).readers) == ((), 1)
    run(table)
    assert [needed.by for needed in retained(table).needed] == ["reader dash"]
    maintenance_of(table).drop_reader("dash")
    assert retained(table).needed == ()


def test_what_waits_and_how_runs_ended(table: Table) -> None:
    done = run(table, ExpireOptions(ALL.older_than_ms))
    found = retained(table)
    assert (found.pending_files, found.pending_bytes) == (done.pending[0].files, done.pending[0].size_bytes)
    assert found.pending_files > 0
    run(table)
    run(table, ExpireOptions(ALL.older_than_ms, dry_run=True))
    runs = retained(table).runs
    assert {outcome: ended.count for outcome, ended in runs.items()} == {"expired": 1, "nothing_to_do": 1}
    shown = show_status(status(dataset_of(table), a_clock(), 30_000))
    assert shown.document["history"]["runs"]["expired"]["count"] == 1


def test_runs_that_are_damaged_are_counted_anew() -> None:
    store = MemoryStore()
    runs = ExpiryRuns(store, "own")
    assert runs.read() == {}
    runs.add("held", "by x", 5)
    runs.add("held", "by y" * 1000, 7)
    assert runs.read() == {"held": Runs(2, 7, ("by y" * 1000)[:1000])}
    for damage in (b"?", b"[]", b'{"held": 1}', b'{"held": {"count": -1, "last_ms": 0, "why": ""}}'):
        store.put("own/expiry-runs.json", damage)
        with pytest.raises(CorruptObject):
            runs.read()
    runs.add("held", "", 9)
    assert runs.read() == {"held": Runs(1, 9)}


def test_damage_is_told_and_stops_no_status(table: Table) -> None:
    hold(table, ids_of(table)[0], "h")
    own = Path(table.location().removeprefix("file://")) / "_lithify" / str(table.metadata.table_uuid)
    (placed,) = (own / "holds").glob("*.json")
    placed.write_text("?")
    found = retained(table)
    assert (found.past.versions, len(found.damaged)) == (6, 1)
    assert "is not a hold" in found.damaged[0]
    assert examine(table)["history"].severity is Severity.PROBLEM


# Metrics


def test_metrics_of_a_history(table: Table) -> None:
    clock = ManualClock()
    metrics = Metrics(clock, coordinates=True)
    dataset = dataset_of(table)
    metered(dataset, metrics, clock).snapshot()

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(name, {"dataset": dataset.url, **labels})

    assert value("lithify_history_versions") == 6
    past = retained(table).past
    assert value("lithify_history_bytes") == past.only_history_bytes > 0

    def ended(outcome: str, by: str, needed_ms: int | None) -> None:
        metrics(HistoryRun(dataset.url, outcome, "", 1, 2, 3, 4, 50, by, needed_ms))

    ended("held", "hold a of me", 7_000)
    assert value("lithify_history_needed_since_seconds", by="hold a of me") == 7
    ended("held", "hold b of me", 8_000)
    ended("expired", "", None)
    assert value("lithify_history_needed_since_seconds", by="hold a of me") is None
    assert value("lithify_history_needed_since_seconds", by="hold b of me") is None
    assert value("lithify_history_runs_total", outcome="held") == 2
    assert value("lithify_history_runs_total", outcome="expired") == 1
    assert (value("lithify_history_pending_files"), value("lithify_history_pending_bytes")) == (4, 50)


# The doctor


def test_a_sound_history(table: Table) -> None:
    found = examine(table)
    assert {found[check].severity for check in ("history", "policy")} == {Severity.OK}
    assert "6 snapshots" in found["history"].says
    assert "readers" not in found


def test_readers_that_keep_all_history(table: Table, tmp_path: Path) -> None:
    checkpoint = SparkCheckpoint(tmp_path / "checkpoint")
    maintenance_of(table).add_reader(checkpoint.url, "dash", {})
    assert "it has not started" in examine(table)["readers"].says
    assert examine(table)["readers"].severity is Severity.WARNING
    run(table)
    assert "unpublished" in examine(table)["expiry"].says
    checkpoint.begin(ids_of(table)[2])
    assert examine(table)["readers"].severity is Severity.OK
    (checkpoint.folder / "sources/0/offsets/0").write_text("?")
    broken = examine(table)["readers"]
    assert (broken.severity, "cannot be read" in broken.says) == (Severity.PROBLEM, True)
    assert "lithify readers drop iceberg://test/db.events dash" in broken.do


def test_a_reader_that_stopped(table: Table, tmp_path: Path) -> None:
    checkpoint = SparkCheckpoint(tmp_path / "checkpoint")
    checkpoint.begin(ids_of(table)[2])
    maintenance_of(table).add_reader(checkpoint.url, "dash", {})
    checkpoint.plan(ids_of(table)[3])
    checkpoint.commit()
    assert examine(table)["readers"].severity is Severity.OK
    stopped = examine(table, STOPPED_MS + 60_000)["readers"]
    assert (stopped.severity, "has read nothing for 1d" in stopped.says) == (Severity.WARNING, True)
    checkpoint.plan(ids_of(table)[-1])
    checkpoint.commit()
    before_s = (a_clock().now_ms() - 10 * STOPPED_MS) / 1000
    os.utime(checkpoint.folder / "commits/1", (before_s, before_s))
    assert examine(table)["readers"].severity is Severity.OK, "there is nothing that it has not read"


@pytest.mark.parametrize(
    ("properties", "severity", "says"),
    [
        ({"history.expire.max_snapshot_age_ms": "0"}, Severity.WARNING, "keeps no history"),
        ({"history.expire.max_snapshot_age_ms": str(1 << 62)}, Severity.WARNING, "keeps all of its history"),
        (
            {"history.expire.min_snapshots_to_keep": str(1 << 31)},
            Severity.WARNING,
            "keeps all of its history",
        ),
        ({"gc.enabled": "false", "lithify.expire_snapshots": "1"}, Severity.WARNING, "gc.enabled"),
        ({"gc.enabled": "false"}, Severity.OK, "5d"),
        ({"history.expire.max_snapshot_age_ms": "soon"}, Severity.PROBLEM, "soon"),
        (
            {"history.expire.max_snapshot_age_ms": "0", "history.expire.min_snapshots_to_keep": "9"},
            Severity.OK,
            "at least 9",
        ),
    ],
)
def test_policies(table: Table, properties: dict[str, str], severity: Severity, says: str) -> None:
    set_properties(table, **properties)
    found = examine(table)["policy"]
    assert (found.severity, says in found.says) == (severity, True), found


def test_a_history_that_nobody_expires(catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    table = new_table(catalog)
    for _ in range(4):
        append(table, make_rows(1))
    monkeypatch.setattr("lithify.datasets.iceberg.maintenance.history_checks.FORGOTTEN", 3)
    assert FORGOTTEN > 3
    later_ms = 6 * 24 * 3_600_000
    found = examine(table, later_ms)["policy"]
    assert (found.severity, "3 snapshots can expire" in found.says) == (Severity.WARNING, True)
    assert examine(table)["policy"].severity is Severity.OK
    set_properties(table, **{"lithify.expire_snapshots": "1"})
    assert examine(table, later_ms)["policy"].severity is Severity.OK


def test_bad_outcomes_are_told(table: Table) -> None:
    dataset = dataset_of(table)
    ExpiryRuns(dataset.store, dataset.own_folder).add(ExpiryOutcome.LOST_RACE.value, "another came first", 5)
    assert "another came first" in examine(table)["expiry"].says
    ExpiryRuns(dataset.store, dataset.own_folder).add(ExpiryOutcome.HELD.value, "", 6)
    assert "expiry" not in examine(table)


# What a plan says


def outlook(table: Table) -> Outlook:
    return Expirer(dataset_of(table), a_clock(), RandomIds()).outlook()


def test_a_plan_says_what_expiry_would_give_back(table: Table) -> None:
    assert (outlook(table).outcome, outlook(table).going) == (ExpiryOutcome.NOTHING_TO_DO, 0)
    assert "is old enough" in planned(table)
    set_properties(table, **AT_ONCE)
    ids, data = ids_of(table), retained(table).past.only_history_bytes
    found = outlook(table)
    assert (found.outcome, found.going, found.going_bytes) == (ExpiryOutcome.EXPIRED, 5, data)
    hold(table, ids[4], "training")
    with fresh(table).manage_snapshots() as changes:
        changes.create_tag(ids[3], "audit")
    found = outlook(table)
    assert (found.going, found.staying) == (3, 2), "the tag's, and the hold's"
    assert 0 < found.going_bytes < data
    assert found.going_bytes + found.staying_bytes == data
    assert [needed.by for needed in found.needed] == ["tag audit", "hold training of me"]
    said = planned(table)
    for part in (
        "can expire",
        "old, but kept",
        "tag audit: from 20",
        "hold training of me: from 20",
        "since 20",
    ):
        assert part in said
    done = run(table, ExpireOptions(grace_ms=0))
    assert len(done.expired) == found.going


def test_a_plan_says_what_stands_in_the_way(table: Table, tmp_path: Path) -> None:
    set_properties(table, **AT_ONCE)
    maintenance_of(table).add_reader(SparkCheckpoint(tmp_path / "new").url, "dash", {})
    found = outlook(table)
    assert (found.outcome, found.going, found.staying) == (ExpiryOutcome.UNPUBLISHED, 0, 5)
    assert "reader dash: it has not started" in planned(table)
    maintenance_of(table).drop_reader("dash")
    before = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    set_properties(table, **{"gc.enabled": "false"})
    assert (outlook(table).outcome, outlook(table).going) == (ExpiryOutcome.NO_WATERMARK, 0)
    assert "gc.enabled" in planned(table)
    after = sorted(path for path in tmp_path.rglob("*") if path.is_file() and "metadata" not in path.parts)
    assert [p for p in before if "metadata" not in p.parts] == after, "a plan writes nothing"


def test_a_plan_is_shown_although_its_history_is_refused(table: Table) -> None:
    dataset = dataset_of(table)
    dataset.store.put(f"{dataset.own_folder}/readers/x.json", b"?")
    assert "is not a reader" in planned(table)
    assert "Nothing to compact now." in planned(table)


def planned(table: Table) -> str:
    dataset = dataset_of(table)
    clock = ManualClock(a_clock().now_ms())
    snapshot, ledger = dataset.snapshot(), dataset.ledger() or Ledger()
    plan = dataset.propose(snapshot, ledger)
    shown = KIND.show_plan(
        dataset, snapshot, ledger, plan, CommandArgs(), clock, dataset.plan_details()
    ).shown
    assert shown.document["history"]
    with StringIO() as text:
        draw(Console(file=text, width=200), shown.blocks)
        return f"{shown.verdict}.\n{text.getvalue()}"
