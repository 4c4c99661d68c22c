"""Committing: readers keep the inputs for the life of a checkpoint, however slow the commit is."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from lithify.base.errors import Fenced
from lithify.base.ids import RandomIds
from lithify.datasets.slatedb.compaction.commit import is_committed
from lithify.datasets.slatedb.compaction.transform import apply_compaction
from lithify.datasets.slatedb.compaction.validate import validate
from lithify.datasets.slatedb.dataset import SlateDataset, SlateOptions
from lithify.datasets.slatedb.format.manifest import encode_manifest
from lithify.datasets.slatedb.garbage.retention import without_expired_checkpoints
from lithify.datasets.slatedb.model import Manifest, TieredSpec
from lithify.protocol.model import CompactionState, Ledger
from lithify.testing import ManualClock, MemoryStore, WrappedStore
from tests.datasets.slatedb.trees import FIRST_MS, Mint, drain, manifest_of, tiered

LIFETIME_S = 900
MANIFEST = "db/manifest/{:020}.manifest"


class SlowStore(WrappedStore):
    """Calls `after` once each object is created."""

    after: Callable[[str], None] = staticmethod(lambda _: None)

    def create(self, key: str, data: bytes, put_id: str | None = None) -> str | None:
        etag = super().create(key, data, put_id)
        self.after(key)
        return etag


class Commit:
    """A compaction of two L0 SSTs that is about to be committed."""

    def __init__(self) -> None:
        self.clock = ManualClock(FIRST_MS + 3_600_000)
        self.memory = MemoryStore(self.clock)
        self.store = SlowStore(self.memory)
        self.mint = mint = Mint()
        tree = mint.tree(2)
        self.inputs = {view.sst.id for view in tree.l0}
        submitted = mint.compaction(tiered(tree, slice(None), (), 0))
        self.compaction = replace(submitted, state=CompactionState.COMPACTED, outputs=(mint.sst(),))
        self.memory.create(MANIFEST.format(1), encode_manifest(manifest_of(tree)))
        self.dataset = self.open(self.store)

    def open(self, store: SlowStore | MemoryStore) -> SlateDataset:
        options = SlateOptions(checkpoint_lifetime_s=LIFETIME_S)
        return SlateDataset(
            store, "db", self.clock, RandomIds(random.Random(1)), options=options, rng=random.Random(1)
        )

    def collect_checkpoints(self) -> None:
        """What a garbage collector does first."""
        number, manifest = self.open(self.memory).latest_manifest()
        left = without_expired_checkpoints(manifest, self.clock.now_ms())
        if left != manifest:
            self.memory.create(MANIFEST.format(number + 1), encode_manifest(left))


def pinned(commit: Commit, manifest: Manifest) -> list[Manifest]:
    """What is pinned for at least half of a checkpoint's life."""
    now_s = commit.clock.now_ms() // 1000
    return [
        commit.dataset.manifest(checkpoint.manifest_id)
        for checkpoint in manifest.checkpoints
        if checkpoint.expire_time_s - now_s >= LIFETIME_S // 2
    ]


@pytest.mark.parametrize("pause_s", [0, LIFETIME_S // 3, LIFETIME_S - 10, 2 * LIFETIME_S])
def test_a_publication_that_takes_long(pause_s: int) -> None:
    """The checkpoint is lengthened afterwards, where readers would have less than half of its life."""
    commit = Commit()
    paused: list[str] = []

    def pause(key: str) -> None:
        if not paused:
            paused.append(key)
            commit.clock.advance_s(pause_s)

    commit.store.after = pause
    assert commit.dataset.commit([commit.compaction], epoch=1) == {commit.compaction.id: None}

    _, manifest = commit.open(commit.memory).latest_manifest()
    assert [run.id for run in manifest.root.runs] == [0]
    assert len(manifest.checkpoints) == 1
    assert any(commit.inputs <= {view.sst.id for view in m.root.views()} for m in pinned(commit, manifest))


def test_a_checkpoint_that_was_collected_before_it_is_lengthened_stays_away() -> None:
    commit = Commit()

    def collected(_: str) -> None:
        commit.store.after = lambda _: None
        commit.clock.advance_s(2 * LIFETIME_S)
        commit.collect_checkpoints()

    commit.store.after = collected
    assert commit.dataset.commit([commit.compaction], epoch=1) == {commit.compaction.id: None}
    _, manifest = commit.open(commit.memory).latest_manifest()
    assert [run.id for run in manifest.root.runs] == [0]
    assert manifest.checkpoints == ()


def before_the_write(commit: Commit, change: Callable[[Manifest], Manifest]) -> None:
    """Somebody publishes a manifest after the commit has looked at the latest, and before it publishes."""
    commit.dataset.snapshot()
    number, manifest = commit.open(commit.memory).latest_manifest()
    commit.memory.create(MANIFEST.format(number + 1), encode_manifest(change(manifest)))


def test_a_commit_that_meets_another_pins_the_version_that_it_replaces() -> None:
    commit = Commit()
    newer = commit.mint.tree(1).l0
    before_the_write(commit, lambda m: replace(m, root=replace(m.root, l0=(*newer, *m.root.l0))))
    assert commit.dataset.commit([commit.compaction], epoch=1) == {commit.compaction.id: None}
    number, manifest = commit.open(commit.memory).latest_manifest()
    assert number == 3
    assert [checkpoint.manifest_id for checkpoint in manifest.checkpoints] == [2]
    assert manifest.root.l0 == newer


def test_who_is_fenced_before_the_write_publishes_no_outputs() -> None:
    commit = Commit()
    before_the_write(commit, lambda manifest: replace(manifest, compactor_epoch=2))
    with pytest.raises(Fenced):
        commit.dataset.commit([commit.compaction], epoch=1)
    _, manifest = commit.open(commit.memory).latest_manifest()
    assert (manifest.compactor_epoch, manifest.root.runs) == (2, ())


def test_what_is_invalid_before_the_write_is_refused() -> None:
    commit = Commit()
    before_the_write(
        commit, lambda manifest: replace(manifest, root=replace(manifest.root, l0=manifest.root.l0[1:]))
    )
    (refusal,) = commit.dataset.commit([commit.compaction], epoch=1).values()
    assert refusal is not None
    assert "is no longer in" in refusal
    _, manifest = commit.open(commit.memory).latest_manifest()
    assert manifest.root.runs == ()


def test_nothing_is_refused_by_a_manifest_that_is_not_the_latest() -> None:
    """What was seen last lacks an input that the writer has published since."""
    commit = Commit()
    number, whole = commit.open(commit.memory).latest_manifest()
    short = replace(whole, root=replace(whole.root, l0=whole.root.l0[1:]))
    commit.memory.create(MANIFEST.format(number + 1), encode_manifest(short))
    commit.dataset.snapshot()
    commit.memory.create(MANIFEST.format(number + 2), encode_manifest(whole))
    assert commit.dataset.commit([commit.compaction], epoch=1) == {commit.compaction.id: None}


def test_of_two_with_the_same_sources_one_is_committed() -> None:
    commit = Commit()
    first = commit.compaction
    second = replace(
        commit.mint.compaction(first.spec), state=CompactionState.COMPACTED, outputs=(commit.mint.sst(),)
    )
    verdicts = commit.dataset.commit([first, second], epoch=1)
    assert verdicts[first.id] is None
    assert "is no longer in" in (verdicts[second.id] or "")
    _, manifest = commit.open(commit.memory).latest_manifest()
    assert [view.sst for run in manifest.root.runs for view in run.views] == list(first.outputs)


def test_a_store_that_is_always_too_slow() -> None:
    commit = Commit()
    commit.store.after = lambda _: commit.clock.advance_s(LIFETIME_S)
    assert commit.dataset.commit([commit.compaction], epoch=1) == {commit.compaction.id: None}
    _, manifest = commit.open(commit.memory).latest_manifest()
    assert [run.id for run in manifest.root.runs] == [0]


def test_calls_of_a_commit() -> None:
    """One manifest, with the outputs and with a checkpoint of the manifest before it."""
    commit = Commit()
    created: list[str] = []
    commit.store.after = created.append
    commit.dataset.commit([commit.compaction], epoch=1)
    assert created == [MANIFEST.format(2)]
    _, manifest = commit.open(commit.memory).latest_manifest()
    assert [checkpoint.manifest_id for checkpoint in manifest.checkpoints] == [1]
    assert commit.inputs <= {view.sst.id for view in commit.dataset.manifest(1).root.views()}


M = Mint()
BEFORE = M.tree(2, {7: 10, 4: 10, 2: 10})
L0_ONLY = tiered(BEFORE, slice(None), (), 8)
TO_4 = tiered(BEFORE, slice(None), (7, 4), 4)
RUNS = tiered(BEFORE, None, (7, 4), 4)


def after(*specs: TieredSpec) -> Manifest:
    """The tree after these merges, none of which left a row."""
    manifest = manifest_of(BEFORE)
    for spec in specs:
        manifest = apply_compaction(manifest, spec)
    return manifest


@pytest.mark.parametrize(
    ("spec", "manifest", "expected"),
    [
        (L0_ONLY, after(L0_ONLY), True),
        (TO_4, after(TO_4), True),
        (RUNS, after(RUNS), True),
        (L0_ONLY, after(), False),
        (TO_4, after(), False),
        (RUNS, after(), False),
        (TO_4, after(RUNS), False),  # its L0 SSTs are still there
        (replace(TO_4, sorted_runs=(4,)), after(RUNS, L0_ONLY), False),  # they went elsewhere
        (L0_ONLY, after(replace(L0_ONLY, destination=9)), False),
        (TO_4, after(replace(TO_4, sorted_runs=(7, 4, 2), destination=2)), False),
    ],
)
def test_a_commit_without_outputs_is_recognised_by_an_empty_destination_and_sources_that_are_gone(
    spec: TieredSpec, manifest: Manifest, expected: bool
) -> None:
    compaction = M.compaction(spec, CompactionState.COMPACTED)
    assert is_committed(compaction, manifest) is expected
    assert not is_committed(replace(compaction, outputs=(M.sst(),)), manifest)
    assert not is_committed(replace(compaction, state=CompactionState.SUBMITTED), manifest)


def test_what_may_have_been_committed_is_refused_with_just_that() -> None:
    manifest = manifest_of(M.tree(0, {}, b"a"))
    refusal = validate(M.compaction(drain(M.tree(2, {1: 10}, b"a"), slice(None), (1,))), manifest, Ledger())
    assert refusal is not None
    assert (
        "nor is any other: it was committed before a crash, or another compaction took its sources" in refusal
    )
