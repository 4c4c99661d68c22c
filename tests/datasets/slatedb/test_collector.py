"""When garbage is collected: the decision, then a collector that ticks over a real database."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import pytest

from lithify.base.errors import StoreError
from lithify.base.events import Event, GarbageCollected
from lithify.base.ids import RandomIds
from lithify.config.sections import CollectionSettings
from lithify.datasets.collecting import Due, due_kinds, until_due_s
from lithify.datasets.slatedb.garbage.collection import DEFAULT_KINDS, GarbageKind
from lithify.datasets.slatedb.garbage.collector import by_kind, garbage_collector
from lithify.datasets.slatedb.settings import GarbageCollectorSettings
from lithify.store.wrapped import Call
from lithify.testing import FaultyStore, ManualClock, StoreFault
from tests.compacting import dataset_at
from tests.datasets.slatedb.collecting import HOUR_MS, StoreInTime, aged_database, check, names


def every(seconds: float, min_age_s: float = 0, *, dry_run: bool = False) -> CollectionSettings:
    return CollectionSettings(
        interval=timedelta(seconds=seconds), min_age=timedelta(seconds=min_age_s), dry_run=dry_run
    )


def test_defaults_are_one_collection_of_everything_every_ten_minutes_that_only_reports_fences() -> None:
    settings = by_kind(GarbageCollectorSettings())
    assert set(due_kinds(settings, {}, 5.0)) == {
        Due(300_000, dry_run=False, kinds=DEFAULT_KINDS - {GarbageKind.CHECKPOINT}),
        Due(300_000, dry_run=True, kinds=frozenset({GarbageKind.WAL_FENCE})),
    }
    began_s = dict.fromkeys(settings, 5.0)
    assert due_kinds(settings, began_s, 604.9) == ()
    assert len(due_kinds(settings, began_s, 605.0)) == 2


def test_each_kind_has_its_interval_its_age_and_its_switch() -> None:
    options = {
        GarbageKind.MANIFEST: every(1),
        GarbageKind.COMPACTIONS: every(1),
        GarbageKind.WAL: every(1, dry_run=True),
        GarbageKind.WAL_FENCE: every(5, 60),
    }
    began_s = dict.fromkeys(options, 10.0)
    both = Due(0, dry_run=False, kinds=frozenset({GarbageKind.MANIFEST, GarbageKind.COMPACTIONS}))
    dry = Due(0, dry_run=True, kinds=frozenset({GarbageKind.WAL}))
    fences = Due(60_000, dry_run=False, kinds=frozenset({GarbageKind.WAL_FENCE}))
    assert set(due_kinds(options, began_s, 11.0)) == {both, dry}
    assert set(due_kinds(options, began_s, 15.0)) == {both, dry, fences}
    assert until_due_s(options, began_s, 10.75) == 0.25
    assert until_due_s(options, began_s, 17.0) == 0
    assert until_due_s(options, {}, 17.0) == 0


def test_nothing_to_collect_is_never_due() -> None:
    assert until_due_s({}, {}, 1.0) == float("inf")


def test_ticks_collect_what_is_due_and_tell_it(tmp_path: Path) -> None:
    path = tmp_path / "db"
    model = aged_database(path)
    clock = ManualClock(int(time.time() * 1000) + HOUR_MS)
    events: list[Event] = []
    settings = GarbageCollectorSettings(
        manifest_options=every(3, 300), compacted_options=every(2, 300, dry_run=True)
    )
    dataset = dataset_at(path, wrap=lambda store: StoreInTime(store, clock))
    collector = garbage_collector(dataset, clock, RandomIds(), settings=settings, observer=events.append)
    ssts = names(path, "compacted")
    # A commit that took long has pinned its inputs twice.
    expired = sum(
        0 < checkpoint.expire_time_s <= clock.now_ms() // 1000
        for checkpoint in dataset.snapshot().checkpoints
    )
    assert expired >= 2
    assert collector.tick() == 2
    assert names(path, "compacted") == ssts
    deleted, dry = events
    assert isinstance(deleted, GarbageCollected)
    assert isinstance(dry, GarbageCollected)
    if deleted.dry_run:
        deleted, dry = dry, deleted
    assert (deleted.dry_run, dry.dry_run) == (False, True)
    assert deleted.deleted["checkpoint"] == expired
    assert deleted.left["manifest"] == len(names(path, "manifest")) == 1
    assert dry.deleted["compacted"] > 0
    assert deleted.bytes_deleted > 0

    assert collector.tick() == 2  # nothing is due
    assert len(events) == 2
    clock.advance_s(2.5)
    assert collector.tick() == 0.5
    assert len(events) == 3
    check(path, model)


def test_what_fails_is_told_and_tried_again_after_its_interval(tmp_path: Path) -> None:
    path = tmp_path / "db"
    aged_database(path)
    clock = ManualClock(int(time.time() * 1000) + HOUR_MS)
    broken = True

    def fail_manifests(_number: int, call: Call) -> StoreFault | None:
        is_boundary = call.key.endswith("manifest.boundary") and call.method in ("create", "replace")
        return StoreFault.FAIL_BEFORE if broken and is_boundary else None

    dataset = dataset_at(path, wrap=lambda store: FaultyStore(StoreInTime(store, clock), fail_manifests))
    collector = garbage_collector(dataset, clock, RandomIds())
    ssts, manifests = names(path, "compacted"), names(path, "manifest")
    with pytest.raises(StoreError, match="injected"):
        collector.tick()
    assert collector.wait_s() == 600
    assert names(path, "compacted") < ssts
    assert manifests <= names(path, "manifest")
    broken = False
    clock.advance_s(600)
    collector.tick()
    assert len(names(path, "manifest")) == 1
