"""Thousands of entries in a ledger that nobody meant: what they cost grows with their number and not with its
square, and what was meant goes on. Counted, not timed."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from lithify.base.ids import RandomIds, Ulid, ulid_ms
from lithify.datasets.slatedb import view
from lithify.datasets.slatedb.dataset import SlateDataset
from lithify.datasets.slatedb.format.ledger import SlateCompaction
from lithify.datasets.slatedb.model import DrainSpec, TieredSpec
from lithify.protocol.attempts import MAX_FAILURES
from lithify.protocol.model import AssignedWorker as Owner
from lithify.protocol.model import Compaction, CompactionState, Ledger
from lithify.protocol.transitions import AnyCompaction, AnyLedger
from lithify.service import status
from lithify.service.coordinator import Coordinator
from lithify.store.metered import Verb
from lithify.testing import CountingStore
from lithify.views import text
from lithify.views.drawing import draw
from tests.protocol.rig import TIMEOUT_S, Rig
from tests.protocol.test_hostile_states import publish_ledger

COUNTS = (200, 800)
TIMEOUT_MS = 30_000


def junk(dataset: SlateDataset, count: int, state: CompactionState) -> list[SlateCompaction]:
    """Compactions of what is there and of what is not, of all kinds."""
    rng, trees = random.Random(count), dataset.snapshot().trees()
    ids = RandomIds(rng)
    made: list[SlateCompaction] = []
    for _ in range(count):
        tree = rng.choice(trees)
        views = tuple(view.id for view in tree.l0[rng.randrange(len(tree.l0) + 1) :])
        runs = tuple(rng.sample((7, 8, 9), rng.randrange(3)))
        spec = rng.choice((TieredSpec(tree.prefix, views, runs, 7), DrainSpec(tree.prefix, views, runs)))
        newest_ms = max(ulid_ms(view.id) for view in trees[1].l0)
        worker = Owner(f"w{rng.random()}", 1) if state is CompactionState.RUNNING else None
        made.append(Compaction(ids.ulid(newest_ms), spec, state, worker=worker))
    return made


class Counted(SlateDataset):
    """Counts how often a compaction is validated, and against how many."""

    calls: Counter[str]

    def validate(self, compaction: AnyCompaction, snapshot: Any, ledger: AnyLedger) -> str | None:
        self.calls["validations"] += 1
        self.calls["compared with"] += len(ledger.compactions)
        return super().validate(compaction, snapshot, ledger)


def work_for(rig: Rig, count: int, state: CompactionState) -> Counter[str]:
    """What one coordinator does about so many of them."""
    stores: list[CountingStore] = []

    def counting(store: Any) -> CountingStore:
        stores.append(CountingStore(store))
        return stores[-1]

    made: Coordinator = rig.coordinator(wrap=counting)
    dataset = made._dataset
    dataset.__class__ = Counted
    assert isinstance(dataset, Counted)
    dataset.calls = Counter()
    made.tick()
    meant = [c for c in rig.ledger.compactions if c.state is CompactionState.SCHEDULED]
    assert meant
    entries = sorted((*rig.ledger.compactions, *junk(dataset, count, state)), key=lambda c: c.id)
    publish_ledger(rig.dataset(), replace(rig.ledger, compactions=tuple(entries)))
    stores[-1].reset()
    dataset.calls.clear()
    versions = rig.versions()
    for _ in range(5):
        made.tick()
        rig.clock.advance_s(TIMEOUT_S / 3 + 1)
    left = rig.ledger.compactions
    assert len(left) < 40, "the junk is gone"
    assert {c.id for c in meant} <= {c.id for c in left}
    return dataset.calls + Counter(writes=stores[-1].requests[Verb.PUT], versions=rig.versions() - versions)


@pytest.mark.parametrize(
    "state", [CompactionState.SUBMITTED, CompactionState.SCHEDULED, CompactionState.RUNNING]
)
def test_what_a_coordinator_does_about_junk_does_not_multiply(
    segmented_template: Any, tmp_path_factory: pytest.TempPathFactory, state: CompactionState
) -> None:
    few, many = (
        work_for(Rig.of(segmented_template, tmp_path_factory.mktemp("junk")), count, state)
        for count in COUNTS
    )
    factor = COUNTS[1] / COUNTS[0]
    assert many["validations"] <= 1.5 * factor * few["validations"]
    assert many["compared with"] <= 1.5 * factor * few["compared with"]
    assert many["versions"] <= 5
    assert many["writes"] <= 3 * MAX_FAILURES


class Watched(str):
    """An id that counts how often it is compared."""

    __slots__ = ()
    comparisons = 0

    def __lt__(self, other: str) -> bool:
        Watched.comparisons += 1
        return str.__lt__(self, other)

    def __eq__(self, other: object) -> bool:
        Watched.comparisons += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_finding_and_changing_one_of_many_looks_at_few() -> None:
    entries: tuple[AnyCompaction, ...] = tuple(
        Compaction(Ulid(Watched(f"{n:026}")), "spec") for n in range(10_000)
    )
    ledger: AnyLedger = Ledger(1, entries)
    Watched.comparisons = 0
    for n in (0, 4711, 9999):
        assert ledger.get(Ulid(f"{n:026}")) is entries[n]
        changed = ledger.update(Ulid(f"{n:026}"), lambda c: replace(c, state=CompactionState.FAILED))
        assert [c.state for c in changed.compactions].count(CompactionState.FAILED) == 1
    assert ledger.get(Ulid("x")) is None
    with pytest.raises(KeyError):
        ledger.update(Ulid("x"), lambda c: c)
    assert Watched.comparisons < 300


def test_looking_at_many_running_ones_lists_once(segmented: Rig) -> None:
    dataset = segmented.dataset()
    segmented.coordinator()
    entries = sorted(junk(dataset, 400, CompactionState.RUNNING), key=lambda c: c.id)
    publish_ledger(dataset, Ledger(dataset.snapshot().compactor_epoch, tuple(entries)))
    stores: list[CountingStore] = []

    def counting(store: Any) -> CountingStore:
        stores.append(CountingStore(store))
        return stores[-1]

    found = status.status(segmented.dataset(counting), segmented.clock, TIMEOUT_MS)
    assert len(found.compactions) == 400
    assert sum(stores[-1].requests.values()) < 40


def test_people_are_shown_so_many_lines_and_told_of_the_rest(segmented: Rig) -> None:
    dataset = segmented.dataset()
    views = dataset.snapshot().segments[0].l0 * text.MAX_SHOWN
    manifest = replace(dataset.snapshot(), root=replace(dataset.snapshot().root, l0=views))
    ledger = Ledger(1, tuple(junk(dataset, text.MAX_SHOWN + 7, CompactionState.FAILED)))
    console = Console(file=StringIO(), width=200)
    draw(console, view.show_manifest(1, manifest).blocks)
    draw(console, view.show_ledger(ledger).blocks)
    assert isinstance(console.file, StringIO)
    shown = console.file.getvalue()
    assert len(shown.splitlines()) < 2 * text.MAX_SHOWN + 30
    views_left = sum(len(tree.l0) for tree in manifest.trees()) - text.MAX_SHOWN
    assert f"And {views_left:,} more views" in shown
    assert "And 7 more compactions" in shown
