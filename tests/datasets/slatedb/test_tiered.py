"""The size-tiered planner as a table of shapes, and its invariants on random ones."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lithify.base.errors import Refused
from lithify.datasets.slatedb.planning.tiered import (
    L0,
    MAX_RUN_ID,
    ActiveWork,
    HeldSources,
    TieredPlan,
    TieredPolicy,
    TieredProposal,
    TieredRun,
    TieredTree,
    full_compaction,
    next_run_id,
    parse_scheduler_options,
    plan,
)

MB = 1_000_000


def tree(l0: int | list[int], runs: dict[int, int] | None = None, key: bytes = b"") -> TieredTree:
    """A tree of `l0` SSTs of 1 MB (or of these sizes, newest first), and runs id -> size."""
    sizes = [MB] * l0 if isinstance(l0, int) else l0
    ids = [f"{key.decode()}L{len(sizes) - i:02}" for i in range(len(sizes))]
    return TieredTree(
        key,
        tuple(itertools.starmap(L0, zip(ids, sizes, strict=True))),
        tuple(TieredRun(i, size) for i, size in sorted((runs or {}).items(), reverse=True)),
    )


def equal_runs(count: int, size: int = MB) -> dict[int, int]:
    return dict.fromkeys(range(count), size)


Picked = tuple[int, tuple[int, ...], int]
"""Number of L0 SSTs, runs, destination."""


def picked(result: TieredPlan) -> list[Picked]:
    return [(len(p.l0_ids), p.run_ids, p.destination) for p in result.proposals]


P = TieredPolicy()


@dataclass(frozen=True)
class Case:
    name: str
    tree: TieredTree
    want: list[Picked]
    policy: TieredPolicy = P
    active: tuple[ActiveWork, ...] = ()


CASES = [
    Case("empty", tree(0), []),
    Case("too few L0", tree(3), []),
    Case("enough L0", tree(4), [(4, (), 0)]),
    Case("at most max L0", tree(11), [(8, (), 0)]),
    Case("max below min", tree(4), [(2, (), 0)], TieredPolicy(4, 2)),
    Case("L0 above runs", tree(4, {0: MB, 7: MB}), [(4, (), 8)]),
    Case("L0 and runs in one plan", tree(4, equal_runs(4)), [(4, (), 4), (0, (3, 2, 1, 0), 0)]),
    Case("similar runs", tree(0, equal_runs(4)), [(0, (3, 2, 1, 0), 0)]),
    Case("oldest max runs", tree(0, equal_runs(10)), [(0, (7, 6, 5, 4, 3, 2, 1, 0), 0)]),
    Case("one too large", tree(0, {3: MB, 2: MB, 1: MB, 0: 4 * MB + 1}), []),
    Case("just small enough", tree(0, {3: MB, 2: MB, 1: MB, 0: 4 * MB}), [(0, (3, 2, 1, 0), 0)]),
    Case(
        "the smallest so far counts",
        tree(0, {4: 4 * MB, 3: MB, 2: MB, 1: MB, 0: 5 * MB}),
        [(0, (4, 3, 2, 1), 1)],
    ),
    Case("a group below a small run", tree(0, {4: 1, 3: MB, 2: MB, 1: MB, 0: MB}), [(0, (3, 2, 1, 0), 0)]),
    Case("empty runs join nothing larger", tree(0, {3: 0, 2: 0, 1: 0, 0: MB}), []),
    Case("empty runs merge", tree(0, equal_runs(4, 0)), [(0, (3, 2, 1, 0), 0)]),
    Case("threshold 1", tree(0, {3: 9, 2: 8, 1: 7, 0: 7}), [(0, (3, 2, 1, 0), 0)], TieredPolicy(4, 8, 1.0)),
    Case("threshold 0", tree(0, equal_runs(9)), [], TieredPolicy(4, 8, 0.0)),
    Case(
        "32-bit arithmetic rounds 16,777,217 down",
        tree(0, {1: 16_777_217, 0: 16_777_217}),
        [],
        TieredPolicy(2, 8, 1.0),
    ),
    Case(
        "infinite threshold",
        tree(0, {3: 1, 2: 1, 1: 1, 0: 10**15}),
        [(0, (3, 2, 1, 0), 0)],
        TieredPolicy(4, 8, float("inf")),
    ),
    Case(
        "two groups",
        tree(0, {7: 1, 6: 1, 5: 1, 4: 1, 3: MB, 2: MB, 1: MB, 0: MB}),
        [(0, (7, 6, 5, 4), 4), (0, (3, 2, 1, 0), 0)],
    ),
    Case(
        "one slot",
        tree(4, equal_runs(4)),
        [(4, (), 4)],
        TieredPolicy(max_concurrent_compactions=1),
    ),
    Case(
        "an active one takes the slot",
        tree(4),
        [],
        TieredPolicy(max_concurrent_compactions=1),
        (ActiveWork(b"x", frozenset(), frozenset({9}), 9),),
    ),
    Case(
        "a compacted one takes no slot",
        tree(4),
        [(4, (), 10)],
        TieredPolicy(max_concurrent_compactions=1),
        (ActiveWork(b"x", frozenset(), frozenset({9}), 9, takes_slot=False),),
    ),
    Case(
        "L0 job in flight blocks the next",
        tree(9),
        [],
        active=(ActiveWork(b"", frozenset({"L01"}), frozenset(), 0),),
    ),
    Case(
        "runs in flight are left alone",
        tree(0, equal_runs(8)),
        [(0, (7, 6, 5, 4), 4)],
        active=(ActiveWork(b"", frozenset(), frozenset({3, 2}), 2),),
    ),
    Case(
        "L0 held back by a full group below",
        tree(4, equal_runs(8)),
        [(0, (7, 6, 5, 4, 3, 2, 1, 0), 0)],
    ),
    Case(
        "no backpressure from far larger runs",
        tree(4, equal_runs(8, 17 * MB)),
        [(4, (), 8), (0, (7, 6, 5, 4, 3, 2, 1, 0), 0)],
    ),
    Case("ids used up", tree(4, {MAX_RUN_ID: 1}), []),
    Case("one run is never merged with itself", tree(0, {0: MB}), [], TieredPolicy(1, 8)),
    Case("nor with max 1", tree(0, equal_runs(4)), [], TieredPolicy(1, 1)),
    Case("consolidation off", tree(0, {i: 10**i for i in range(3)}), []),
    Case(
        "consolidation at the threshold",
        tree(0, {i: 10**i for i in range(3)}),
        [],
        TieredPolicy(sorted_run_consolidation_threshold=3),
    ),
    Case(
        "consolidation as little as needed",
        tree(0, {5 - i: 10**i for i in range(6)}),
        [(0, (5, 4, 3, 2), 2)],
        TieredPolicy(sorted_run_consolidation_threshold=3),
    ),
    Case(
        "consolidation skips busy runs",
        tree(0, {5 - i: 10**i for i in range(6)}),
        [(0, (4, 3, 2, 1, 0), 0)],
        TieredPolicy(sorted_run_consolidation_threshold=2),
        (ActiveWork(b"", frozenset(), frozenset({5}), 5),),
    ),
    Case(
        "consolidation up to max",
        tree(0, {9 - i: 10**i for i in range(10)}),
        [(0, (9, 8, 7), 7), (0, (6, 5, 4), 4), (0, (3, 2, 1), 1)],
        TieredPolicy(max_compaction_sources=3, sorted_run_consolidation_threshold=2),
    ),
    Case(
        "consolidation counts runs to come",
        tree(4, {0: 10**12, 1: 1}),
        [(4, (), 2), (0, (1, 0), 0)],
        TieredPolicy(sorted_run_consolidation_threshold=2),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_picks(case: Case) -> None:
    assert picked(plan([case.tree], case.active, case.policy)) == case.want


def test_l0_sources_are_the_oldest_newest_first() -> None:
    (proposal,) = plan([tree(11)], (), P).proposals
    assert proposal.l0_ids == tuple(f"L{i:02}" for i in range(8, 0, -1))
    assert proposal.cost_bytes == 8 * MB


def test_trees_take_turns_and_the_longest_l0_list_goes_first() -> None:
    trees = [tree(0), tree(4, equal_runs(4), b"a"), tree(6, key=b"b"), tree(5, key=b"c"), tree(6, key=b"d")]
    trees[0] = tree(0)
    trees[1] = tree(4, {i + 10: MB for i in range(4)}, b"a")
    result = plan(trees, (), replace(P, max_concurrent_compactions=10))
    got = [(p.key, p.destination) for p in result.proposals]
    assert got == [(b"b", 14), (b"d", 15), (b"c", 16), (b"a", 17), (b"a", 10)]
    limited = plan(trees, (), replace(P, max_concurrent_compactions=3))
    assert [p.key for p in limited.proposals] == [b"b", b"d", b"c"]
    assert [(u.key, u.reason) for u in limited.unpicked] == [
        (b"", "empty"),
        (
            b"a",
            "4 L0 SSTs (4.0 MB) reached min_compaction_sources 4, "
            "but max_concurrent_compactions 3 is used up",
        ),
    ]


@pytest.mark.parametrize(
    ("shape", "policy", "active", "reason"),
    [
        (tree(8), P, (), "8 L0 SSTs (8.0 MB) reached min_compaction_sources 4"),
        (
            tree(11),
            P,
            (),
            "11 L0 SSTs (11.0 MB) reached min_compaction_sources 4; "
            "only the oldest 8 are merged (max_compaction_sources)",
        ),
        (
            tree(0, {3: MB, 2: 2 * MB, 1: MB, 0: MB}),
            P,
            (),
            "4 sorted runs of similar size (1.0 MB to 2.0 MB) reached min_compaction_sources 4",
        ),
        (
            tree(0, {2: MB, 1: 8 * MB, 0: 64 * MB}),
            TieredPolicy(sorted_run_consolidation_threshold=2),
            (),
            "3 sorted runs, more than sorted_run_consolidation_threshold 2: "
            "2 neighbours (1.0 MB to 8.0 MB) are merged regardless of their sizes",
        ),
        (tree(0), P, (), "empty"),
        (
            tree(3),
            P,
            (),
            "3 L0 SSTs, fewer than min_compaction_sources 4; "
            "no sorted runs, fewer than min_compaction_sources 4",
        ),
        (
            tree(1, {4: 1, 3: 9, 2: 729, 1: 729, 0: 800}),
            P,
            (),
            "1 L0 SST, fewer than min_compaction_sources 4; "
            "5 sorted runs, at most 3 neighbours free and of similar size (4 needed)",
        ),
        (
            tree(5, equal_runs(4)),
            P,
            (
                ActiveWork(b"", frozenset({"L01"}), frozenset(), 4),
                ActiveWork(b"", frozenset(), frozenset({1, 0}), 0),
            ),
            "5 L0 SSTs, the oldest of them already being compacted; "
            "4 sorted runs, at most 2 neighbours free and of similar size (4 needed), 2 being compacted",
        ),
        (
            tree(4, equal_runs(8)),
            P,
            (ActiveWork(b"", frozenset(), frozenset(range(8)), 0),),
            "4 L0 SSTs, held back until the similar runs below are merged; "
            "8 sorted runs, at most 0 neighbours free and of similar size (4 needed), 8 being compacted",
        ),
        (
            tree(4, {MAX_RUN_ID: 1}),
            P,
            (),
            "4 L0 SSTs, but the run ids are used up (the highest is 4294967295); a full compaction of every "
            "segment frees them; 1 sorted run, fewer than min_compaction_sources 4",
        ),
    ],
)
def test_reasons(
    shape: TieredTree, policy: TieredPolicy, active: tuple[ActiveWork, ...], reason: str
) -> None:
    result = plan([shape], active, policy)
    reasons = [p.reason for p in result.proposals] + [u.reason for u in result.unpicked]
    assert reasons == [reason]


def test_l0_is_more_urgent_than_runs_and_a_long_list_more_than_a_short_one() -> None:
    def first(shape: TieredTree, policy: TieredPolicy = P) -> float:
        return plan([shape], (), policy).proposals[0].priority

    uneven = tree(0, {5 - i: 10**i for i in range(6)})
    consolidation = first(uneven, TieredPolicy(sorted_run_consolidation_threshold=2))
    order = [
        consolidation,
        first(tree(0, equal_runs(6))),
        first(tree(0, equal_runs(16))),
        first(tree(4)),
        first(tree(8)),
    ]
    assert order == sorted(set(order))
    assert first(tree(40)) == 1.0


@pytest.mark.parametrize(
    ("shape", "want", "reason"),
    [
        (
            tree(3, {9: MB, 4: MB, 2: MB}),
            (3, (9, 4, 2), 2),
            "full compaction: 3 L0 SSTs and 3 sorted runs into one run (6.0 MB)",
        ),
        (tree(1), (1, (), 77), "full compaction: 1 L0 SST into one run (1.0 MB)"),
        (tree(0, equal_runs(2)), (0, (1, 0), 0), "full compaction: 2 sorted runs into one (2.0 MB)"),
        (tree(0, {5: MB}), (0, (5,), 5), "full compaction: 1 sorted run rewritten (1.0 MB)"),
    ],
)
def test_full_compaction(shape: TieredTree, want: Picked, reason: str) -> None:
    proposal = full_compaction(shape, (ActiveWork(b"elsewhere"),), 77)
    assert isinstance(proposal, TieredProposal)
    assert (len(proposal.l0_ids), proposal.run_ids, proposal.destination) == want
    assert proposal.reason == reason


def test_full_compaction_says_why_not() -> None:
    assert full_compaction(tree(0), (), 0) == "empty"
    assert full_compaction(tree(2), (ActiveWork(b""),), 0) == "waits for the compaction in progress"
    assert "used up" in str(full_compaction(tree(2), (), MAX_RUN_ID + 1))


@pytest.mark.parametrize(
    ("name", "text", "want"),
    [
        ("min_compaction_sources", "2", TieredPolicy(min_compaction_sources=2)),
        ("min_compaction_sources", "+2", TieredPolicy(min_compaction_sources=2)),
        ("max_compaction_sources", "007", TieredPolicy(max_compaction_sources=7)),
        ("include_size_threshold", "1.5", TieredPolicy(include_size_threshold=1.5)),
        ("include_size_threshold", ".5e1", TieredPolicy(include_size_threshold=5.0)),
        ("include_size_threshold", "Inf", TieredPolicy(include_size_threshold=float("inf"))),
        ("sorted_run_consolidation_threshold", "2", TieredPolicy(sorted_run_consolidation_threshold=2)),
        ("sorted_run_consolidation_threshold", "0", P),
    ],
)
def test_option_is_read(name: str, text: str, want: TieredPolicy) -> None:
    parsed = parse_scheduler_options({name: text})
    assert parsed.policy == want
    assert parsed.warnings == ()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("min_compaction_sources", "-1"),
        ("min_compaction_sources", " 2"),
        ("min_compaction_sources", "1_0"),
        ("min_compaction_sources", "٣"),
        ("min_compaction_sources", ""),
        ("min_compaction_sources", str(1 << 64)),
        ("min_compaction_sources", "0"),
        ("max_compaction_sources", "0"),
        ("max_compaction_sources", "4.0"),
        ("include_size_threshold", "four"),
        ("include_size_threshold", "1_0"),
        ("include_size_threshold", "."),
        ("include_size_threshold", "nan"),
        ("include_size_threshold", "-1"),
        ("max_concurrent_compactions", "9"),
        ("unknown", "1"),
    ],
)
def test_option_is_ignored_with_a_warning(name: str, text: str) -> None:
    parsed = parse_scheduler_options({name: text})
    assert parsed.policy == P
    (warning,) = parsed.warnings
    assert name in warning
    assert "ignored" in warning


def test_consolidation_threshold_one_counts_as_off() -> None:
    base = TieredPolicy(sorted_run_consolidation_threshold=3)
    parsed = parse_scheduler_options({"sorted_run_consolidation_threshold": "1"}, base)
    assert parsed.policy.sorted_run_consolidation_threshold == 0
    assert len(parsed.warnings) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"min_compaction_sources": 0},
        {"max_compaction_sources": 0},
        {"max_concurrent_compactions": 0},
        {"include_size_threshold": -0.5},
        {"include_size_threshold": float("nan")},
        {"sorted_run_consolidation_threshold": 1},
        {"sorted_run_consolidation_threshold": -1},
    ],
)
def test_impossible_policy_is_refused(options: dict[str, int]) -> None:
    with pytest.raises(Refused, match=next(iter(options))):
        TieredPolicy(**options)


# Properties

SIZES = st.one_of(st.integers(0, 40), st.integers(0, 10**12))
POLICIES = st.builds(
    TieredPolicy,
    st.integers(1, 6),
    st.integers(1, 8),
    st.sampled_from([0.0, 1.0, 1.3, 4.0, 100.0, float("inf")]),
    st.sampled_from([0, 2, 3, 5]),
    st.integers(1, 6),
)


@st.composite
def forests(draw: st.DrawFn) -> list[TieredTree]:
    """A root and up to three segments with run ids of their own."""
    ids = draw(st.permutations(range(24)))
    trees = []
    for key in (b"", b"a", b"b", b"c")[: draw(st.integers(1, 4))]:
        count = draw(st.integers(0, 6))
        own, ids = ids[:count], ids[count:]
        sizes = draw(st.lists(SIZES, min_size=0, max_size=12))
        trees.append(tree(sizes, {i: draw(SIZES) for i in own}, key))
    return trees


@st.composite
def busy_forests(draw: st.DrawFn) -> tuple[list[TieredTree], list[ActiveWork]]:
    """Trees, with some of what could be compacted in progress already."""
    trees = draw(forests())
    policy = draw(POLICIES)
    possible = plan(trees, (), replace(policy, max_concurrent_compactions=9)).proposals
    active = [
        ActiveWork(p.key, frozenset(p.l0_ids), frozenset(p.run_ids), p.destination, draw(st.booleans()))
        for p in possible
        if draw(st.booleans())
    ]
    return trees, active


def names(work: TieredProposal | ActiveWork) -> set[tuple[bytes, str | int]]:
    used: set[tuple[bytes, str | int]] = {(work.key, i) for i in (*work.l0_ids, *work.run_ids)}
    if work.destination is not None:
        used.add((work.key, work.destination))
    return used


@given(busy_forests(), POLICIES)
@settings(max_examples=100, deadline=None)
def test_every_plan_keeps_the_invariants(
    world: tuple[list[TieredTree], list[ActiveWork]], policy: TieredPolicy
) -> None:
    trees, active = world
    result = plan(trees, active, policy)
    by_key = {t.key: t for t in trees}
    assert plan(trees, list(active), policy) == result

    taken = [*map(names, active), *map(names, result.proposals)]
    assert sum(map(len, taken)) == len(set().union(*taken))

    slots = sum(work.takes_slot for work in active)
    assert len(result.proposals) <= max(0, policy.max_concurrent_compactions - slots)

    fresh = next_run_id(trees, active)
    destinations = [p.destination for p in result.proposals]
    assert len(set(destinations)) == len(destinations)
    for p in result.proposals:
        shape = by_key[p.key]
        assert 1 <= len(p.l0_ids) + len(p.run_ids) <= policy.max_compaction_sources
        assert 0.0 <= p.priority <= 1.0
        sizes: dict[str | int, int] = {sst.id: sst.size_bytes for sst in shape.l0}
        sizes.update((run.id, run.size_bytes) for run in shape.runs)
        sources: list[str | int] = [*p.l0_ids, *p.run_ids]
        assert p.cost_bytes == sum(sizes[i] for i in sources)
        if p.l0_ids:
            assert not p.run_ids
            assert p.l0_ids == tuple(s.id for s in shape.l0)[-len(p.l0_ids) :]
            assert p.destination >= fresh
        else:
            order = [run.id for run in shape.runs]
            first = order.index(p.run_ids[0])
            assert len(p.run_ids) > 1
            assert tuple(order[first : first + len(p.run_ids)]) == p.run_ids
            assert p.destination == p.run_ids[-1]
    assert {u.key for u in result.unpicked} == set(by_key) - {p.key for p in result.proposals}


def after(shape: TieredTree, proposal: TieredProposal, shrink: float) -> TieredTree:
    """The tree with the proposal carried out and the output smaller than the inputs."""
    if proposal.key != shape.key:
        return shape
    run = TieredRun(proposal.destination, int(proposal.cost_bytes * shrink))
    runs = (run, *(r for r in shape.runs if r.id not in proposal.run_ids))
    return TieredTree(
        shape.key,
        tuple(s for s in shape.l0 if s.id not in proposal.l0_ids),
        tuple(sorted(runs, key=lambda r: -r.id)),
    )


@given(forests(), POLICIES, st.sampled_from([0.0, 0.5, 1.0]))
@settings(max_examples=100, deadline=None)
def test_repeating_plan_and_compaction_comes_to_rest(
    trees: list[TieredTree], policy: TieredPolicy, shrink: float
) -> None:
    sources = sum(len(t.l0) + len(t.runs) for t in trees)
    for _ in range(sources * 2 + 1):
        result = plan(trees, (), policy)
        if not result.proposals:
            return
        for proposal in result.proposals:
            trees = [after(t, proposal, shrink) for t in trees]
    pytest.fail(f"still planning after {sources * 2 + 1} rounds: {result}")


# What is held

WHY = "left alone, it failed"
L0_HELD = HeldSources({"L01": WHY})
RUN_HELD = HeldSources(runs={3: WHY})
HELD_CASES: list[tuple[str, TieredTree, HeldSources, list[Picked]]] = [
    ("L0 held, runs go", tree(4, equal_runs(4)), L0_HELD, [(0, (3, 2, 1, 0), 0)]),
    ("L0 held, nothing else", tree(4), L0_HELD, []),
    ("younger L0 does not overtake", tree(20), L0_HELD, []),
    ("runs above the held one", tree(0, equal_runs(8)), RUN_HELD, [(0, (7, 6, 5, 4), 4)]),
    ("too few on either side", tree(0, equal_runs(7)), RUN_HELD, []),
    ("a held group is no backpressure", tree(4, equal_runs(8)), RUN_HELD, [(4, (), 8), (0, (7, 6, 5, 4), 4)]),
]


@pytest.mark.parametrize(
    ("shape", "held", "want"), [case[1:] for case in HELD_CASES], ids=[case[0] for case in HELD_CASES]
)
def test_what_is_held_is_passed_over(shape: TieredTree, held: HeldSources, want: list[Picked]) -> None:
    result = plan([shape], [], P, held={shape.key: held})
    assert picked(result) == want
    assert WHY in [left.reason for left in result.unpicked], "it is told why"


def test_what_is_held_takes_no_slot() -> None:
    trees = [tree(5 if n < 4 else 4, key=b"%d" % n) for n in range(6)]
    held = {shape.key: HeldSources({sst.id: WHY for sst in shape.l0}) for shape in trees[:4]}
    result = plan(trees, [], P, held=held)
    assert {proposal.key for proposal in result.proposals} == {b"4", b"5"}
    assert [left.key for left in result.unpicked if left.reason == WHY] == [b"0", b"1", b"2", b"3"]


def test_what_is_held_does_not_matter_where_it_would_not_be_picked() -> None:
    shape = tree(3, equal_runs(2))
    held = HeldSources({"L01": WHY}, {0: WHY})
    assert plan([shape], [], P, held={b"": held}).unpicked == plan([shape], [], P).unpicked


def test_a_full_compaction_of_what_is_held_waits() -> None:
    assert full_compaction(tree(2), [], 0, L0_HELD) == WHY
    assert isinstance(full_compaction(tree(2), [], 0, RUN_HELD), TieredProposal)
