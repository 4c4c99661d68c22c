"""From manifest and ledger to proposals and back; full compactions. The scheduler itself is judged in
`test_plan_official`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lithify.base.errors import Refused
from lithify.base.ids import ulid_ms
from lithify.datasets.slatedb.compaction.transform import apply_compaction
from lithify.datasets.slatedb.format.ledger import SlateLedger
from lithify.datasets.slatedb.model import KeyRange, Manifest, SortedRun, TieredSpec, Tree
from lithify.datasets.slatedb.planning.plan import (
    FullRequest,
    TieredPolicy,
    propose,
    propose_full,
    visible_size_bytes,
)
from lithify.protocol.model import CompactionState, Ledger
from lithify.protocol.proposal import Plan
from tests.datasets.slatedb.trees import MB, Mint, manifest_of, tiered

M = Mint()
P = TieredPolicy()
A = M.tree(4, {2: MB}, b"a")
B = M.tree(9, {}, b"b")
C = M.tree(1, {7: MB, 6: MB, 5: MB, 4: MB}, b"c")
D = M.tree(2, {0: MB}, b"d")
SEGMENTED = manifest_of(A, B, C, D)


def specs(plan: Plan) -> list[TieredSpec]:
    return [proposal.spec for proposal in plan.proposals]


def test_proposals_are_specs_with_ids_unique_over_all_trees() -> None:
    plan = propose(SEGMENTED, Ledger(), P)
    assert specs(plan) == [
        tiered(B, slice(1, None), (), 8),
        tiered(A, slice(None), (), 9),
        tiered(C, None, (7, 6, 5, 4), 4),
    ]
    assert [p.cost_bytes for p in plan.proposals] == [8 * MB, 4 * MB, 4 * MB]
    assert [p.priority for p in plan.proposals] == sorted((p.priority for p in plan.proposals), reverse=True)
    assert plan.proposals[1].reason == "segment 61: 4 L0 SSTs (4.0 MB) reached min_compaction_sources 4"


def test_what_is_left_alone_is_explained() -> None:
    assert propose(SEGMENTED, Ledger(), P).notes == (
        "segment 64: 2 L0 SSTs, fewer than min_compaction_sources 4; "
        "1 sorted run, fewer than min_compaction_sources 4",
    )
    assert propose(manifest_of(M.tree(3)), Ledger(), P).notes == (
        "3 L0 SSTs, fewer than min_compaction_sources 4; no sorted runs, fewer than min_compaction_sources 4",
    )
    assert propose(manifest_of(Tree()), Ledger(), P) == Plan((), ("empty",))


def test_one_segment_only_but_with_ids_above_all() -> None:
    plan = propose(SEGMENTED, Ledger(), P, segment=b"a")
    assert specs(plan) == [tiered(A, slice(None), (), 8)]
    assert plan.notes == ()
    with pytest.raises(Refused, match="no segment 78 in the database; its segments are: 61, 62, 63, 64"):
        propose(SEGMENTED, Ledger(), P, segment=b"x")


@pytest.mark.parametrize(
    ("state", "slots", "left"),
    [
        (CompactionState.SUBMITTED, 1, 0),
        (CompactionState.SCHEDULED, 1, 0),
        (CompactionState.RUNNING, 1, 0),
        (CompactionState.RUNNING, 2, 1),
        (CompactionState.COMPACTED, 1, 1),
        (CompactionState.COMPLETED, 1, 1),
        (CompactionState.FAILED, 1, 1),
    ],
)
def test_what_is_active_counts(state: CompactionState, slots: int, left: int) -> None:
    active = M.compaction(tiered(B, slice(1, None), (), 30), state)
    plan = propose(SEGMENTED, Ledger(0, (active,)), replace(P, max_concurrent_compactions=slots))
    assert len(plan.proposals) == left
    is_over = state in (CompactionState.COMPLETED, CompactionState.FAILED)
    for spec in specs(plan):
        assert spec == (tiered(B, slice(1, None), (), 8) if is_over else tiered(A, slice(None), (), 31))


@pytest.mark.parametrize(
    ("visible", "size"),
    [
        (None, MB),
        (KeyRange(), MB),
        (KeyRange(b"k\x00", b"k\x80"), MB // 2),
        (KeyRange(b"k\x80", None), MB // 2),
        (KeyRange(b"k\x40", b"k\x50"), MB // 16),
        (KeyRange(b"k\x40", b"k\x40", end_inclusive=True), MB),
        (KeyRange(b"k\x40", b"k\x40\x00\x00\x00\x01"), 1),
    ],
)
def test_visible_size(visible: KeyRange | None, size: int) -> None:
    sst = M.sst(MB, b"k", b"k\xff\xff\xff\xff\xff\xff\xff\xff")
    assert visible_size_bytes(M.view(sst, visible)) == pytest.approx(size, abs=0.6)
    old = M.sst(MB, b"k", None)
    assert visible_size_bytes(M.view(old, visible)) == MB


# Full compactions


def full(manifest: Manifest, request: FullRequest | None = None, ledger: SlateLedger | None = None) -> Plan:
    request = request if request is not None else FullRequest.of(manifest)
    return propose_full(manifest, ledger if ledger is not None else Ledger(), P, request)


def test_full_compaction_of_every_tree() -> None:
    plan = full(SEGMENTED)
    assert specs(plan) == [
        tiered(A, slice(None), (2,), 2),
        tiered(B, slice(None), (), 8),
        tiered(C, slice(None), (7, 6, 5, 4), 4),
        tiered(D, slice(None), (0,), 0),
    ]
    reason = "segment 61: full compaction: 4 L0 SSTs and 1 sorted run into one run (5.0 MB)"
    assert plan.proposals[0].reason == reason


def test_full_compaction_of_one_segment() -> None:
    request = FullRequest.of(SEGMENTED, b"b")
    plan = full(SEGMENTED, request)
    assert specs(plan) == [tiered(B, slice(None), (), 8)]
    with pytest.raises(Refused, match="no segment 78"):
        FullRequest.of(SEGMENTED, b"x")


def test_full_compaction_takes_no_more_slots_than_there_are() -> None:
    policy = TieredPolicy(max_concurrent_compactions=2)
    active = M.compaction(tiered(A, slice(None), (), 30), CompactionState.RUNNING)
    plan = propose_full(SEGMENTED, Ledger(0, (active,)), policy, FullRequest.of(SEGMENTED))
    assert specs(plan) == [tiered(B, slice(None), (), 31)]
    assert plan.notes == (
        "segment 61: waits for the compaction in progress",
        "segment 63: waits: max_concurrent_compactions 2 is used up",
        "segment 64: waits: max_concurrent_compactions 2 is used up",
    )


@pytest.mark.parametrize(
    ("tree", "note"),
    [(Tree(), "empty"), (M.tree(0, {3: MB}), "one sorted run already")],
    ids=["empty", "one run"],
)
def test_nothing_to_do(tree: Tree, note: str) -> None:
    """Without segments the horizon cannot move without an L0, however old the run is."""
    manifest = replace(manifest_of(tree), last_l0_clock_tick=1 << 60)
    assert full(manifest) == Plan((), (note,))


def test_a_segments_only_run_is_rewritten_once_if_the_writer_flushed_elsewhere_since() -> None:
    tree = M.tree(0, {3: MB}, b"a")
    made_ms = ulid_ms(tree.runs[0].views[0].sst.id)
    just_flushed = replace(manifest_of(tree), last_l0_clock_tick=made_ms)
    assert full(just_flushed) == Plan((), ("segment 61: one sorted run already",))

    later = replace(just_flushed, last_l0_clock_tick=made_ms + 1)
    request = FullRequest.of(later)
    plan = full(later, request)
    assert specs(plan) == [tiered(tree, None, (3,), 3)]
    assert plan.proposals[0].reason == "segment 61: full compaction: 1 sorted run rewritten (1.0 MB)"
    # A writer whose clock is ahead of ours does not make this go on for ever.
    done = apply_compaction(later, plan.proposals[0].spec, [M.sst(MB, b"aa", b"ab")])
    done = replace(done, last_l0_clock_tick=1 << 60)
    assert full(done, request) == Plan((), ("segment 61: one sorted run already",))


def test_l0_ssts_that_come_later_are_left_to_the_next_request() -> None:
    tree = M.tree(2, {3: MB})
    manifest = manifest_of(tree)
    request = FullRequest.of(manifest)
    done = apply_compaction(manifest, specs(full(manifest, request))[0], [M.sst()])
    flushed = replace(done, root=replace(done.root, l0=(M.view(),)))
    assert full(flushed, request) == Plan((), ("one sorted run already; 1 L0 SST was added later",))
    assert len(full(flushed).proposals) == 1


def test_what_was_compacted_in_part_meanwhile_is_still_merged_into_one() -> None:
    """Compactions in progress at the time of the request replace everything, but leave two runs."""
    tree = M.tree(4, {3: MB, 2: MB})
    manifest = manifest_of(tree)
    request = FullRequest.of(manifest)
    manifest = apply_compaction(manifest, tiered(tree, slice(None), (), 4), [M.sst()])
    manifest = apply_compaction(manifest, tiered(tree, None, (3, 2), 2), [M.sst()])
    assert specs(full(manifest, request)) == [TieredSpec(b"", (), (4, 2), 2)]


def test_empty_runs_are_merged_away() -> None:
    manifest = manifest_of(Tree(runs=(SortedRun(5, ()), SortedRun(1, ()))))
    request = FullRequest.of(manifest)
    (spec,) = specs(full(manifest, request))
    done = apply_compaction(manifest, spec)
    assert done.root.runs == (SortedRun(1, ()),)
    assert full(done, request).proposals == ()
