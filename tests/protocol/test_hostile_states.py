"""What a manifest or a ledger can say that no writer would: it ends in a clear error of what it is about, and
everything else goes on. The bytes decode; it is the values that cannot be."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lithify.base import events
from lithify.base.errors import Refused, StoreError
from lithify.base.ids import RandomIds, Ulid, ulid_ms
from lithify.datasets.slatedb import view
from lithify.datasets.slatedb.checks import check_database
from lithify.datasets.slatedb.dataset import SlateDataset
from lithify.datasets.slatedb.format.ledger import SlateCompaction, SlateLedger, encode_ledger
from lithify.datasets.slatedb.format.manifest import encode_manifest
from lithify.datasets.slatedb.model import DrainSpec, Manifest, SortedRun, Sst, TieredSpec
from lithify.protocol.model import AssignedWorker as Owner
from lithify.protocol.model import Compaction, CompactionState, Ledger
from lithify.service import control, status
from lithify.service.loops import run_workers
from lithify.service.options import CoordinatorOptions
from lithify.store.keys import MAX_VERSION_ID
from lithify.testing.engine import InlineEngine
from tests.compacting import compact
from tests.judge.rows import read_database, visible_rows
from tests.pools import every, pool_of
from tests.protocol.rig import Rig

HUGE = (1 << 40, 1 << 48, (1 << 62) + 1, 1 << 63, (1 << 64) - 1)
NUMBERS = ("index_offset", "index_len", "filter_offset", "filter_len", "stats_offset", "stats_len")
TIMEOUT_MS = 30_000
MAX_ATTEMPTS = CoordinatorOptions().max_attempts


def publish_manifest(dataset: SlateDataset, change: Callable[[Manifest], Manifest]) -> None:
    manifest_id, manifest = dataset.latest_manifest()
    key = f"{dataset.paths.manifest_folder}/{manifest_id + 1:020}.manifest"
    dataset.store.put(key, encode_manifest(change(manifest)))


def publish_ledger(dataset: SlateDataset, ledger: SlateLedger) -> None:
    version = max(dataset.ledger_ids(), default=0) + 1
    key = f"{dataset.paths.compactions_folder}/{version:020}.compactions"
    dataset.store.put(key, encode_ledger(ledger))


def with_info(manifest: Manifest, numbers: Mapping[str, Any], position: int = 0) -> Manifest:
    """The manifest with another description of one L0 SST."""
    views = list(manifest.root.l0)
    sst = views[position].sst
    views[position] = replace(views[position], sst=replace(sst, info=replace(sst.info, **numbers)))
    return replace(manifest, root=replace(manifest.root, l0=tuple(views)))


@pytest.mark.parametrize("value", HUGE)
@pytest.mark.parametrize("field", NUMBERS)
def test_a_description_that_no_sst_has(rig: Rig, field: str, value: int) -> None:
    """A run ends, the compaction is Failed, nothing is committed; all that only looks still works."""
    dataset = rig.dataset()
    numbers = {field: value} | ({"filter_len": 5} if field == "filter_offset" else {})
    publish_manifest(dataset, lambda manifest: with_info(manifest, numbers))
    before = dataset.snapshot()
    for _ in range(2):
        result = compact(rig.dataset(), clock=rig.clock)
        assert len(result.failures) == 1
        assert not result.committed
        assert [c.state for c in rig.ledger.compactions] == [CompactionState.FAILED]
    after = rig.dataset().snapshot()
    assert after.trees() == before.trees()
    found = status.status(rig.dataset(), rig.clock, TIMEOUT_MS)
    assert found.failures
    now_ms = rig.clock.now_ms()
    assert list(
        check_database(
            rig.dataset(), partial(status.status, clock=rig.clock, heartbeat_timeout_ms=TIMEOUT_MS), now_ms
        )
    )
    view.show_manifest(1, after)


@pytest.mark.parametrize("field", ["index_offset", "stats_len"])
def test_attempts_at_it_are_counted_until_it_is_given_up(rig: Rig, field: str) -> None:
    publish_manifest(rig.dataset(), lambda manifest: with_info(manifest, {field: 1 << 63}))
    coordinator, worker = rig.coordinator(), rig.worker(stepped=False)
    for _ in range(3600):
        coordinator.tick()
        worker.tick()
        if rig.seen(events.Failed):
            break
        rig.clock.advance_s(1)
    (failed,) = rig.seen(events.Failed)
    assert (failed.attempts, rig.states()) == (MAX_ATTEMPTS, [CompactionState.FAILED])


def test_it_keeps_a_worker_from_no_other_database(rig: Rig, tmp_path: Path) -> None:
    """A worker of two, one of which has such an SST: the other is compacted, and both are given back."""
    other = Rig.of(rig.template, tmp_path / "other")
    publish_manifest(rig.dataset(), lambda manifest: with_info(manifest, {"stats_len": 1 << 63}))
    coordinators = [r.coordinator() for r in (rig, other)]
    for coordinator in coordinators:
        coordinator.tick()
    workers = [r.worker(stepped=False) for r in (rig, other)]

    class Rounds(threading.Event):
        rounds = 0

        def is_set(self) -> bool:
            self.rounds += 1
            return self.rounds > 4

    run_workers(pool_of(*workers), Rounds(), random.Random(1), every(0.001))
    for coordinator in coordinators:
        coordinator.tick()
    assert (rig.states(), other.states()) == ([CompactionState.SCHEDULED], [CompactionState.COMPLETED])
    assert rig.dataset().journal.attempts()
    other.check()


def compaction_of(dataset: SlateDataset, **fields: Any) -> SlateCompaction:
    tree = dataset.snapshot().root
    spec = TieredSpec(b"", tuple(view.id for view in tree.l0), (), 0)
    known: dict[str, Any] = {"id": RandomIds().ulid(ulid_ms(tree.l0[0].id)), "spec": spec}
    return Compaction(**(known | fields))


def put_into_ledger(dataset: SlateDataset, *compactions: SlateCompaction) -> tuple[Ulid, ...]:
    ledger = dataset.ledger()
    epoch = ledger.epoch if ledger is not None else 0
    publish_ledger(dataset, Ledger(epoch, tuple(sorted(compactions, key=lambda c: c.id))))
    return tuple(c.id for c in compactions)


def test_a_drain_that_is_scheduled(segmented: Rig) -> None:
    """No coordinator schedules one. Workers leave it to the coordinator, and it is given up in the end."""
    coordinator, worker = segmented.coordinator(), segmented.worker(stepped=False, first_retry_pause_ms=1)
    dataset = segmented.dataset()
    tree = dataset.snapshot().segments[0]
    spec = DrainSpec(tree.prefix, tuple(view.id for view in tree.l0), ())
    newest = RandomIds().ulid(ulid_ms(tree.l0[0].id))
    (drain,) = put_into_ledger(dataset, Compaction(newest, spec, CompactionState.SCHEDULED))
    for _ in range(100):
        coordinator.tick()
        worker.tick()
        segmented.clock.advance_s(1)
    (failure,) = segmented.dataset().journal.failures()
    assert (failure.compaction, failure.attempts) == (drain, MAX_ATTEMPTS)
    assert "drains a segment" in failure.reason
    segmented.check()


def test_outputs_that_would_make_a_manifest_no_client_reads(rig: Rig) -> None:
    """An output under the id of an SST that is there: Failed, and the coordinator goes on."""
    coordinator = rig.coordinator()
    dataset = rig.dataset()
    tree = dataset.snapshot().root
    oldest = tree.l0[-1]
    lie = replace(tree.l0[0].sst, info=replace(tree.l0[0].sst.info, first_entry=b"a"))
    compaction = compaction_of(
        dataset,
        id=RandomIds().ulid(0),
        spec=TieredSpec(b"", (oldest.id,), (), 0),
        state=CompactionState.COMPACTED,
        outputs=(lie,),
    )
    put_into_ledger(dataset, compaction)
    tick = coordinator.tick()
    ((_, reason),) = tick.refused
    assert "described twice" in reason
    assert rig.dataset().snapshot().root == tree
    rig.finish(coordinator, rig.worker(stepped=False))
    rig.check()


def test_sources_that_another_tree_holds_are_not_asked_for_for_ever(rig: Rig) -> None:
    """While its worker may be alive. Every tick proposed them anew, and noted why that was refused."""
    rig.coordinator()
    dataset = rig.dataset()
    views = tuple(view.id for view in dataset.snapshot().root.l0)
    spec = TieredSpec(b"no such segment", views, (), 0)
    holder = Owner("holder", rig.clock.now_ms())
    odd = compaction_of(dataset, spec=spec, state=CompactionState.RUNNING, worker=holder)
    put_into_ledger(dataset, odd)
    before = rig.clock.now_ms()
    result = compact(dataset, full=False, clock=rig.clock, take_over=True)
    assert rig.clock.now_ms() - before >= TIMEOUT_MS - 1000
    assert len(result.refused) <= 4
    assert "refused 3 times" in result.failures[0].reason


@pytest.mark.timeout(60)
def test_an_sst_that_is_in_l0_and_in_a_run(rig: Rig) -> None:
    """As an entry that claims it as its output can have it: what merges both is not done already. A run went
    on for ever."""

    def put_into_a_run(manifest: Manifest) -> Manifest:
        oldest = manifest.root.l0[-1]
        return replace(manifest, root=replace(manifest.root, l0=(oldest,), runs=(SortedRun(0, (oldest,)),)))

    publish_manifest(rig.dataset(), put_into_a_run)
    rows = visible_rows(read_database(str(rig.path)))
    result = compact(rig.dataset(), clock=rig.clock)
    assert (len(result.committed), result.failures) == (1, ())
    tree = rig.dataset().snapshot().root
    assert (tree.l0, len(tree.runs)) == ((), 1)
    assert visible_rows(read_database(str(rig.path))) == rows


@pytest.mark.parametrize("field", ["index_offset", "stats_len"])
def test_outputs_that_no_sst_is_like(rig: Rig, field: str) -> None:
    coordinator = rig.coordinator()
    dataset = rig.dataset()
    newest = dataset.snapshot().root.l0[0].sst
    hostile: dict[str, Any] = {field: 1 << 63}
    output = Sst(RandomIds().ulid(ulid_ms(newest.id)), replace(newest.info, **hostile))
    put_into_ledger(dataset, compaction_of(dataset, state=CompactionState.COMPACTED, outputs=(output,)))
    ((_, reason),) = coordinator.tick().refused
    assert "is impossible" in reason


@pytest.mark.parametrize("heartbeat_ms", [1 << 48, (1 << 63) - 1, (1 << 64) - 1])
def test_a_heartbeat_from_the_end_of_time(rig: Rig, heartbeat_ms: int) -> None:
    """Its own worker beats on after it, and others take it back; looking at it works."""
    coordinator = rig.coordinator()
    worker = rig.worker(heartbeat_interval_ms=1, heartbeat_min_interval_ms=1, heartbeat_bytes=0)
    coordinator.tick()
    worker.tick()
    running = replace(rig.only, worker=Owner("w", heartbeat_ms))
    put_into_ledger(rig.dataset(), running)
    rig.clock.advance_s(20)
    assert status.status(rig.dataset(), rig.clock, TIMEOUT_MS).compactions
    now_ms = rig.clock.now_ms()
    assert list(
        check_database(
            rig.dataset(), partial(status.status, clock=rig.clock, heartbeat_timeout_ms=TIMEOUT_MS), now_ms
        )
    )
    worker.tick()
    assert rig.only.worker == Owner("w", rig.clock.now_ms())
    rig.finish(coordinator, worker)
    rig.check()


@pytest.mark.parametrize("kind", ["manifest", "compactions"])
def test_the_last_number_there_is(rig: Rig, kind: str) -> None:
    """Whatever would write the next version says so."""
    dataset = rig.dataset()
    rig.coordinator()
    newest = max((rig.path / kind).glob(f"*.{kind}")).read_bytes()
    dataset.store.put(f"{dataset.paths.root}/{kind}/{MAX_VERSION_ID}.{kind}", newest)
    with pytest.raises(StoreError, match="no number is left"):
        compact(rig.dataset(), clock=rig.clock, take_over=True)


def test_an_old_ledger_that_is_damaged(rig: Rig) -> None:
    """It only tells since when things are as they are."""
    coordinator, dataset = rig.coordinator(), rig.dataset()
    coordinator.tick()
    rig.worker().tick()
    first, second, _ = dataset.ledger_ids()
    for version, data in ((first, b"\0\2junk"), (second, b"\0\x09")):
        dataset.store.put(f"{dataset.paths.compactions_folder}/{version:020}.compactions", data)
    (shown,) = status.status(rig.dataset(), rig.clock, TIMEOUT_MS).compactions
    assert shown.id == rig.only.id
    assert control.outcome(rig.dataset(), RandomIds().ulid(1)) is None


def test_a_failure_noted_by_a_newer_lithify_holds_nothing_back(rig: Rig) -> None:
    """Its spec may be of a kind that this one does not know."""
    dataset = rig.dataset()
    unknown = "AAk="  # a ledger of format version 9
    note = {"compaction": RandomIds().ulid(1), "reason": "r", "attempts": 3, "at_ms": 1, "spec": unknown}
    dataset.store.put(f"{dataset.paths.own_folder}/failures/x.json", json.dumps(note).encode())
    with pytest.raises(Refused):
        dataset.decode_spec(unknown)
    rig.finish(rig.coordinator(), rig.worker(stepped=False))
    rig.check()


def test_what_nobody_foresaw_is_counted_as_an_attempt(rig: Rig, defects: list[str]) -> None:
    """In a run, with its engine: the compaction is Failed, and says that this is a defect."""

    class Broken(SlateDataset):
        def prepare(self, *_: object) -> object:  # type: ignore[override]
            raise OverflowError("int too large to convert")

    dataset = rig.dataset()
    dataset.__class__ = Broken
    result = compact(dataset, clock=rig.clock, engine=InlineEngine())
    (failure,) = result.failures
    assert "OverflowError" in failure.reason
    assert "defect" in failure.reason
    assert rig.states() == [CompactionState.FAILED]
    assert len(defects) == MAX_ATTEMPTS
    defects.clear()
