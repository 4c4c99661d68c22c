"""Readers that are registered, by what Spark writes in their checkpoints; and holds of tables."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from lithify.base.errors import CorruptObject, HoldLapsed, Refused
from lithify.base.ids import RandomIds
from lithify.coordination.thresholds import ThresholdFiles
from lithify.datasets.iceberg.maintenance.checkpoints import (
    BEGINNING,
    StreamCheckpoint,
    StreamSource,
    parse_offsets,
    read_checkpoint,
)
from lithify.datasets.iceberg.maintenance.expiry_policy import and_descendants, position_of
from lithify.datasets.iceberg.maintenance.operations import TableMaintenance
from lithify.datasets.iceberg.maintenance.readers import ReaderNeed, RegisteredReader, stands
from lithify.datasets.iceberg.maintenance.snapshot_pins import collect_needs
from lithify.datasets.maintenance import HoldRequest
from lithify.store.urls import open_store
from lithify.testing import ManualClock
from lithify.watermarks.model import BlockReason, Needed, Threshold
from tests.datasets.iceberg.running import Steps, a_clock, dataset_of
from tests.datasets.iceberg.spark_checkpoint import OF_SPARK, SparkCheckpoint, position
from tests.datasets.iceberg.tables import append, as_arrow, fresh, make_rows, new_table

LEASE_MS = 3_600_000


@pytest.fixture
def table(catalog: SqlCatalog) -> Table:
    """A table of four snapshots."""
    table = new_table(catalog)
    for _ in range(4):
        append(table, make_rows(2))
    return fresh(table)


@pytest.fixture
def checkpoint(tmp_path: Path) -> SparkCheckpoint:
    return SparkCheckpoint(tmp_path / "checkpoint")


def ids_of(table: Table) -> list[int]:
    return [snapshot.snapshot_id for snapshot in fresh(table).snapshots()]


def times_of(table: Table) -> list[int]:
    return [snapshot.timestamp_ms for snapshot in fresh(table).snapshots()]


def maintenance_of(table: Table, clock: ManualClock | None = None) -> TableMaintenance:
    clock = clock if clock is not None else a_clock()
    return TableMaintenance(dataset_of(table, clock=clock), clock, RandomIds())


def found_in(checkpoint: SparkCheckpoint) -> StreamCheckpoint:
    return read_checkpoint(*open_store(checkpoint.url))


def publish(table: Table, position_ms: int) -> None:
    dataset = dataset_of(table)
    files = ThresholdFiles(dataset.store, dataset.own_folder, a_clock(), RandomIds())
    files.publish(lambda old: Threshold(position_ms))


# What Spark writes


def test_only_what_is_committed_counts(checkpoint: SparkCheckpoint) -> None:
    assert not found_in(checkpoint).is_begun
    checkpoint.begin(1)
    assert found_in(checkpoint).sources == (StreamSource(1, None),)
    checkpoint.plan(2)
    assert found_in(checkpoint).sources == (StreamSource(1, None),)
    checkpoint.commit()
    checkpoint.plan(3)
    assert found_in(checkpoint).sources == (StreamSource(1, 2),)
    for n in range(4, 15):  # 10 is newer than 9
        checkpoint.plan(n)
        checkpoint.commit()
    assert found_in(checkpoint).sources == (StreamSource(1, 14),)


def test_sources_of_other_kinds_are_left_out() -> None:
    lines = ["v1", OF_SPARK, '{"topic":{"0":7}}', position(5), "-", "17"]
    assert parse_offsets("\n".join(lines).encode(), "offsets/3") == {1: 5}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "v1",
        "v2\n{}\n" + position(5),
        "v1\n{}\nnot json",
        'v1\n{}\n{"snapshot_id": 5}',
        'v1\n{}\n{"snapshot_id": 5, "version": 2}',
        'v1\n{}\n{"snapshot_id": "5", "version": 1}',
    ],
)
def test_what_does_not_decode_is_an_error(text: str) -> None:
    with pytest.raises(CorruptObject):
        parse_offsets(text.encode(), "offsets/0")


@pytest.mark.parametrize("text", ["", "v", "v1", "v1\n", "v1\n{", 'v1\n{"nextBatch'])
def test_a_half_written_commit_does_not_count(checkpoint: SparkCheckpoint, text: str) -> None:
    checkpoint.begin(1)
    for n in (2, 3):
        checkpoint.plan(n)
        checkpoint.commit()
    (checkpoint.folder / "commits/1").write_text(text)
    assert found_in(checkpoint).sources == (StreamSource(1, 2),)
    (checkpoint.folder / "commits/0").write_text(text)
    assert found_in(checkpoint).sources == (StreamSource(1, None),)


def test_a_commit_of_another_format_is_an_error(checkpoint: SparkCheckpoint) -> None:
    checkpoint.begin(1)
    checkpoint.plan(2)
    checkpoint.commit()
    (checkpoint.folder / "commits/0").write_text("v2\n{}")
    assert found_in(checkpoint).sources == (StreamSource(1, 2),)
    (checkpoint.folder / "commits/0").write_text("w2\n{}")
    with pytest.raises(CorruptObject, match="commit of Spark"):
        found_in(checkpoint)


def test_an_empty_position_is_an_error(checkpoint: SparkCheckpoint) -> None:
    checkpoint.begin(1)
    (checkpoint.folder / "sources/0/offsets/0").write_text("")
    with pytest.raises(CorruptObject, match="offset of Iceberg"):
        found_in(checkpoint)


def test_a_committed_batch_without_offsets_is_an_error(checkpoint: SparkCheckpoint) -> None:
    checkpoint.plan(1)
    checkpoint.commit()
    (checkpoint.folder / "offsets/0").unlink()
    with pytest.raises(CorruptObject, match="offsets are missing"):
        found_in(checkpoint)


# What a reader needs


def test_where_a_reader_stands(table: Table) -> None:
    one, two, three, _ = ids_of(table)
    metadata = fresh(table).metadata

    def needs(source: StreamSource, *, continuous: bool = False) -> tuple[int, ...] | BlockReason | None:
        standing = stands(RegisteredReader("r", "c", continuous, 0), StreamCheckpoint((source,)), metadata)
        return standing.snapshots or standing.reason

    assert needs(StreamSource(two, None)) == (two,)
    assert needs(StreamSource(one, three)) == tuple(sorted((one, three))), (
        "AvailableNow walks from the beginning"
    )
    assert needs(StreamSource(one, three), continuous=True) == (three,)
    assert needs(StreamSource(BEGINNING, None)) == (one,)
    assert needs(StreamSource(BEGINNING, BEGINNING), continuous=True) == (one,)
    assert needs(StreamSource(99, three)) == (three,), "where it began is gone; that cannot be helped"
    assert needs(StreamSource(one, 99)) is BlockReason.MISSING_MEMBER
    assert needs(StreamSource(99, 98)) is BlockReason.MISSING_MEMBER


def test_a_checkpoint_of_two_tables_counts_for_what_is_this_ones(table: Table) -> None:
    one, two, *_ = ids_of(table)
    found = StreamCheckpoint((StreamSource(98, 99), StreamSource(one, two)))
    standing = stands(RegisteredReader("r", "c", True, 0), found, fresh(table).metadata)
    assert standing.snapshots == (two,)


def test_readers_are_added_listed_and_dropped(table: Table, checkpoint: SparkCheckpoint) -> None:
    maintenance = maintenance_of(table)
    checkpoint.begin(ids_of(table)[1])
    (added,) = maintenance.add_reader(checkpoint.url, None, {}).document["readers"]
    assert added["needs_snapshot_id"] == ids_of(table)[1]
    assert maintenance.add_reader(checkpoint.url, None, {}).document["readers"] == [added], (
        "again is the same"
    )
    with pytest.raises(Refused, match="already registered"):
        maintenance.add_reader(checkpoint.url, added["name"], {"continuous": True})
    assert maintenance.show_readers().document["readers"] == [added]
    maintenance.drop_reader(checkpoint.url)
    assert maintenance.show_readers().document["readers"] == []
    with pytest.raises(Refused, match="no reader"):
        maintenance.drop_reader(checkpoint.url)


def test_a_reader_behind_the_watermark_is_refused_and_not_kept(
    table: Table, checkpoint: SparkCheckpoint
) -> None:
    maintenance = maintenance_of(table)
    checkpoint.begin(ids_of(table)[0])
    publish(table, times_of(table)[1])
    with pytest.raises(Refused, match="catch up"):
        maintenance.add_reader(checkpoint.url, None, {})
    assert maintenance.show_readers().document["readers"] == []


def test_a_source_that_lost_its_place_is_told_though_another_stands(table: Table) -> None:
    one, two, *_ = ids_of(table)
    found = StreamCheckpoint((StreamSource(one, 99), StreamSource(one, two)))
    assert (
        stands(RegisteredReader("r", "c", True, 0), found, fresh(table).metadata).reason
        is BlockReason.MISSING_MEMBER
    )


def test_a_reader_whose_registration_was_cut_off_is_looked_at_again(
    table: Table, checkpoint: SparkCheckpoint
) -> None:
    maintenance = maintenance_of(table)
    checkpoint.begin(ids_of(table)[0])
    maintenance.add_reader(checkpoint.url, "r", {})
    publish(table, times_of(table)[1])
    with pytest.raises(Refused, match="catch up"):
        maintenance.add_reader(checkpoint.url, "r", {})


def test_a_snapshot_that_goes_while_its_reader_is_added_is_refused(
    table: Table, checkpoint: SparkCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    maintenance, first = maintenance_of(table), ids_of(table)[0]
    checkpoint.begin(first)
    load, loads = maintenance._dataset.load, [0]

    def load_late() -> Table:
        loads[0] += 1
        if loads[0] == 2:
            fresh(table).maintenance.expire_snapshots().by_id(first).commit()
        return load()

    monkeypatch.setattr(maintenance._dataset, "load", load_late)
    with pytest.raises(Refused, match="does not have or no longer has"):
        maintenance.add_reader(checkpoint.url, "r", {})
    assert maintenance.show_readers().document["readers"] == []


def test_a_reader_is_shown_though_its_snapshot_was_expired_since(
    table: Table, checkpoint: SparkCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    maintenance, first, time_ms = maintenance_of(table), ids_of(table)[0], times_of(table)[0]
    checkpoint.begin(first)
    add = maintenance._dataset.add_reader

    def add_early(checkpoint: str, name: str | None, *, continuous: bool) -> ReaderNeed:
        added = add(checkpoint, name, continuous=continuous)
        fresh(table).maintenance.expire_snapshots().by_id(first).commit()
        return added

    monkeypatch.setattr(maintenance._dataset, "add_reader", add_early)
    (added,) = maintenance.add_reader(checkpoint.url, "r", {}).document["readers"]
    assert (added["needs_snapshot_id"], added["needs_ms"]) == (first, time_ms)


def test_a_checkpoint_that_cannot_be_read_is_refused(table: Table, checkpoint: SparkCheckpoint) -> None:
    checkpoint.plan(1)
    checkpoint.commit()
    (checkpoint.folder / "offsets/0").write_text("?")
    with pytest.raises(Refused, match="cannot be read"):
        maintenance_of(table).add_reader(checkpoint.url, None, {})


def test_a_reader_that_breaks_later_says_so(table: Table, checkpoint: SparkCheckpoint) -> None:
    maintenance = maintenance_of(table)
    checkpoint.begin(ids_of(table)[0])
    maintenance.add_reader(checkpoint.url, "mine", {})
    (checkpoint.folder / "sources/0/offsets/0").write_text("?")
    (found,) = maintenance.show_readers().document["readers"]
    assert "cannot be read" in found["problem"]


# Holds of tables


def test_what_is_held(table: Table) -> None:
    maintenance, ids, times = maintenance_of(table), ids_of(table), times_of(table)
    held = [
        maintenance.hold(wanted, LEASE_MS, None, "me").about["snapshot_id"]
        for wanted in (
            HoldRequest(),
            HoldRequest(version=ids[1]),
            HoldRequest(at_ms=times[2]),
            HoldRequest(at_ms=times[-1] + 9),
        )
    ]
    assert held == [ids[3], ids[1], ids[2], ids[3]]
    assert len(maintenance.holds()) == 4
    for wanted in (
        HoldRequest(version=5),
        HoldRequest(at_ms=times[0] - 1),
        HoldRequest(version=ids[0], at_ms=times[0]),
    ):
        with pytest.raises(Refused):
            maintenance.hold(wanted, LEASE_MS, None, "me")
    assert len(maintenance.holds()) == 4


def test_what_was_current_is_told_by_the_log_not_by_ancestry(table: Table) -> None:
    """A branch may have a snapshot long before `main` takes it."""
    first = ids_of(table)[-1]
    with fresh(table).manage_snapshots() as changes:
        changes.create_branch(first, "audit")
    fresh(table).append(as_arrow(make_rows(2)), branch="audit")
    second = ids_of(table)[-1]
    at_ms = times_of(table)[-1] + 1
    while time.time() * 1000 < at_ms + 2:
        time.sleep(0.001)
    with fresh(table).manage_snapshots() as changes:
        changes.set_current_snapshot(snapshot_id=second)
    held = maintenance_of(table).hold(HoldRequest(at_ms=at_ms), LEASE_MS, None, "me")
    assert held.about["snapshot_id"] == first


def test_what_was_current_and_is_expired_is_refused(table: Table) -> None:
    ids, times = ids_of(table), times_of(table)
    fresh(table).maintenance.expire_snapshots().by_id(ids[1]).commit()
    with pytest.raises(Refused, match="which snapshot was current"):
        maintenance_of(table).hold(HoldRequest(at_ms=times[1]), LEASE_MS, None, "me")
    held = maintenance_of(table).hold(HoldRequest(at_ms=times[2]), LEASE_MS, None, "me")
    assert held.about["snapshot_id"] == ids[2]


def test_an_empty_table_has_nothing_to_hold(catalog: SqlCatalog) -> None:
    with pytest.raises(Refused, match="no snapshot"):
        maintenance_of(new_table(catalog)).hold(HoldRequest(), LEASE_MS, None, "me")


def test_a_hold_whose_snapshot_another_program_expired_is_no_hold(table: Table) -> None:
    maintenance, first = maintenance_of(table), ids_of(table)[0]
    placed = maintenance.hold(HoldRequest(version=first), LEASE_MS, "x", "me")
    fresh(table).maintenance.expire_snapshots().by_id(first).commit()
    with pytest.raises(HoldLapsed, match="has expired"):
        maintenance.renew(placed)


# All of it together


def test_everybody_who_needs_something(table: Table, checkpoint: SparkCheckpoint) -> None:
    clock = a_clock()
    maintenance = maintenance_of(table, clock)
    ids, times = ids_of(table), times_of(table)
    checkpoint.begin(ids[1])
    maintenance.add_reader(checkpoint.url, "r", {})
    maintenance.hold(HoldRequest(version=ids[2]), LEASE_MS, "h", "me")
    dataset = dataset_of(table, clock=clock)
    Steps(dataset, clock=clock).schedule()
    (standing,) = dataset.standings(fresh(table))

    def needs(at_ms: int) -> list[str]:
        metadata = fresh(table).metadata
        found = collect_needs(metadata, maintenance._holds.list(), [standing], dataset.ledger(), at_ms)
        assert found.collected.least == Needed(times[1], "reader r")
        kept = and_descendants(metadata, found.snapshots)
        assert kept == set(ids[1:])
        return [one.by.split()[0] for one in found.by]

    ledger = dataset.ledger()
    active = ["compaction"] if ledger is not None and ledger.active() else []
    assert needs(clock.now_ms()) == ["reader", "hold", *active]
    assert needs(clock.now_ms() + 2 * LEASE_MS) == ["reader", *active]


def test_what_descends_from_a_needed_snapshot_stays_though_a_clock_went_back(table: Table) -> None:
    metadata = fresh(table).metadata
    first, second, third, fourth = metadata.snapshots
    odd = [first, second, third.model_copy(update={"timestamp_ms": first.timestamp_ms - 30_000}), fourth]
    changed = metadata.model_copy(update={"snapshots": odd})
    maintenance = maintenance_of(table)
    placed = maintenance.hold(HoldRequest(version=second.snapshot_id), LEASE_MS, "h", "me")
    assert position_of(changed, second.snapshot_id) == first.timestamp_ms - 30_000
    needs = collect_needs(changed, [placed], [], None, a_clock().now_ms())
    assert and_descendants(changed, needs.snapshots) == {
        second.snapshot_id,
        third.snapshot_id,
        fourth.snapshot_id,
    }


def test_a_time_is_read_as_people_write_it() -> None:
    from lithify.cli.options.values import time_of

    assert (
        time_of("2025-01-31T12:00:00Z")
        == time_of("2025-01-31 12:00")
        == datetime(2025, 1, 31, 12, tzinfo=UTC)
    )
    with pytest.raises(Refused, match="is not a time"):
        time_of("yesterday")


def test_what_is_registered_is_json(table: Table, checkpoint: SparkCheckpoint) -> None:
    checkpoint.begin(ids_of(table)[0])
    shown = maintenance_of(table).add_reader(checkpoint.url, "r", {"continuous": True})
    assert json.loads(json.dumps(shown.document))["readers"][0]["continuous"] is True
