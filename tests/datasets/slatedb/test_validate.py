"""Each rule of validation in a table; everything the planner proposes is valid; and the official
coordinator refuses nothing that we accept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lithify.base.ids import Ulid
from lithify.datasets.slatedb.compaction.transform import apply_compaction
from lithify.datasets.slatedb.compaction.validate import validate
from lithify.datasets.slatedb.format.ledger import SlateCompaction, SlateLedger
from lithify.datasets.slatedb.model import DrainSpec, Manifest, Spec, Sst, TieredSpec, Tree
from lithify.datasets.slatedb.planning.plan import FullRequest, TieredPolicy, propose, propose_full
from lithify.protocol.model import CompactionState, Ledger
from tests.datasets.slatedb.coordinated import OfficialCoordinator
from tests.datasets.slatedb.trees import MB, Mint, drain, manifest_of, manifests, tiered

M = Mint()
A = M.tree(5, {7: MB, 4: MB, 2: MB}, b"a")
B = M.tree(3, {9: MB}, b"b")
MANIFEST = manifest_of(A, B)
ALL = slice(None)
OLDEST_2 = slice(3, None)
GONE = M.ulid()


@dataclass(frozen=True)
class Case:
    name: str
    spec: Spec
    submitted: str | None
    """Part of the refusal, `None` when it is valid."""
    compacted: str | None
    under_way: Spec | None = None
    """Another compaction that is Running."""


def same(name: str, spec: Spec, refusal: str | None, under_way: Spec | None = None) -> Case:
    return Case(name, spec, refusal, refusal, under_way)


def swapped(ids: Sequence[Ulid]) -> tuple[Ulid, ...]:
    return (ids[1], ids[0], *ids[2:])


ALL_L0 = tiered(A, ALL, (), 10)
CASES = [
    same("all L0", ALL_L0, None),
    same("oldest L0", tiered(A, OLDEST_2, (), 10), None),
    same("all L0 and newest run", tiered(A, ALL, (7,), 7), None),
    same("everything", tiered(A, ALL, (7, 4, 2), 2), None),
    same("oldest L0 and runs", tiered(A, OLDEST_2, (7, 4), 4), None),
    same("runs", tiered(A, None, (4, 2), 2), None),
    same("one run anew", tiered(A, None, (4,), 4), None),
    same("drain", drain(A, ALL, (7, 4, 2)), None),
    same("drain oldest L0", drain(A, OLDEST_2, ()), None),
    same("drain a run in the middle", drain(A, None, (4,)), None),
    same("no sources", TieredSpec(b"a", (), (), 10), "no sources"),
    same("drain nothing", DrainSpec(b"a", (), ()), "no sources"),
    same("drain the root", DrainSpec(b"", (A.l0[0].id,), ()), "root tree cannot be drained"),
    same("unknown segment", replace(ALL_L0, segment=b"c"), "segment 63 does not exist"),
    same("root instead of segment", replace(ALL_L0, segment=b""), "no longer in root"),
    same(
        "L0 gone", replace(ALL_L0, l0_view_ids=(*ALL_L0.l0_view_ids[:-1], GONE)), f"L0 {GONE} is no longer in"
    ),
    same("run gone", tiered(A, None, (4, 3), 3), "run 3 is no longer in segment 61"),
    same("run of another segment", tiered(A, None, (9,), 9), "run 9 is no longer in segment 61"),
    same("drained run gone", drain(A, None, (3,)), "run 3 is no longer in"),
    same("destination is a run of its tree", tiered(A, ALL, (), 7), "7 is not above the newest run"),
    same("destination below", tiered(A, ALL, (), 5), "5 is not above the newest run"),
    same("destination is a run of another tree", tiered(A, ALL, (), 9), "9"),
    Case("above its own tree only", tiered(A, ALL, (), 8), "not above the newest run 9", None),
    same("destination is no source", tiered(A, None, (4, 2), 7), "7 is another run"),
    same("destination is not the oldest run", tiered(A, None, (7, 4), 7), "not its oldest source run 4"),
    same("destination free but not the oldest", tiered(A, None, (7, 4), 11), "not its oldest source run 4"),
    same("newest L0 only", tiered(A, slice(0, 2), (), 10), "would be lost"),
    same("middle L0", tiered(A, slice(1, 4), (), 10), "would be lost"),
    same("drain the newest L0 only", drain(A, slice(0, 2), ()), "would be lost"),
    same("drain leaves a hole", drain(A, slice(0, 5, 2), ()), "would be lost"),
    same("L0 hole", tiered(A, slice(0, 5, 2), (), 10), "would be lost"),
    same("L0 out of order", replace(ALL_L0, l0_view_ids=swapped(ALL_L0.l0_view_ids)), "not neighbours"),
    same("L0 oldest first", replace(ALL_L0, l0_view_ids=ALL_L0.l0_view_ids[::-1]), "not neighbours"),
    same(
        "L0 twice",
        replace(ALL_L0, l0_view_ids=(ALL_L0.l0_view_ids[0], *ALL_L0.l0_view_ids)),
        "not neighbours",
    ),
    same("run left out", tiered(A, None, (7, 2), 2), "not neighbours"),
    same("runs oldest first", tiered(A, None, (4, 7), 4), "not neighbours"),
    same("newest run left out below L0", tiered(A, ALL, (4, 2), 2), "not neighbours"),
    same("L0 under way", ALL_L0, "of L0 SSTs in segment 61 is in progress", tiered(A, OLDEST_2, (), 12)),
    same("drain beside L0", drain(A, ALL, ()), "is in progress", tiered(A, OLDEST_2, (), 12)),
    same("L0 of another segment under way", ALL_L0, None, tiered(B, ALL, (), 11)),
    same("runs under way beside L0", ALL_L0, None, tiered(A, None, (4, 2), 2)),
    Case("source under way", tiered(A, None, (7, 4), 4), "source in common", None, tiered(A, None, (7,), 7)),
    Case("same destination under way", ALL_L0, "same destination 10", None, tiered(B, ALL, (), 10)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("state", [CompactionState.SUBMITTED, CompactionState.COMPACTED])
def test_rules(case: Case, state: CompactionState) -> None:
    compaction = M.compaction(case.spec, state)
    ledger: SlateLedger = Ledger(1, (compaction,))
    if case.under_way is not None:
        ledger = ledger.add(M.compaction(case.under_way, CompactionState.RUNNING))
    refusal = validate(compaction, MANIFEST, ledger)
    want = case.submitted if state is CompactionState.SUBMITTED else case.compacted
    if want is None:
        assert refusal is None
    else:
        assert refusal is not None
        assert want in refusal


@pytest.mark.parametrize("case", CASES)
def test_what_is_scheduled_is_no_more_than_what_may_be_scheduled(case: Case) -> None:
    """But a higher id that another segment has committed meanwhile says nothing against it."""
    compaction = M.compaction(case.spec, CompactionState.SCHEDULED)
    ledger: SlateLedger = Ledger(1, (compaction,))
    if case.under_way is not None:
        ledger = ledger.add(M.compaction(case.under_way, CompactionState.RUNNING))
    refusal = validate(compaction, MANIFEST, ledger)
    if case.compacted is not None:
        assert case.compacted in str(refusal)
    elif case.submitted is None or "newest run" in case.submitted:
        assert refusal is None
    else:
        assert case.submitted in str(refusal)


@pytest.mark.parametrize(
    "state", [CompactionState.RUNNING, CompactionState.COMPLETED, CompactionState.FAILED]
)
def test_other_states_are_refused(state: CompactionState) -> None:
    assert state.value in str(validate(M.compaction(ALL_L0, state), MANIFEST, Ledger()))


@pytest.mark.parametrize(
    ("keys", "refusal"),
    [
        ([], None),
        ([(b"a", b"c")], None),
        ([(b"a", b"c"), (b"c", b"d"), (b"e", b"e")], None),
        ([(b"a", b"c"), (b"b", b"d")], "before the end of output"),
        ([(b"c", b"d"), (b"a", b"b")], "before the end of output"),
        ([(b"a", None)], "first and last key"),
        ([(None, b"b")], "first and last key"),
        ([(b"c", b"b")], "first and last key"),
    ],
)
def test_outputs(keys: list[tuple[bytes | None, bytes | None]], refusal: str | None) -> None:
    def output(first: bytes | None, last: bytes | None) -> Sst:
        sst = M.sst()
        return replace(sst, info=replace(sst.info, first_entry=first, last_entry=last))

    compaction = M.compaction(ALL_L0, CompactionState.COMPACTED)
    compaction = replace(compaction, outputs=tuple(output(*pair) for pair in keys))
    got = validate(compaction, MANIFEST, Ledger(1, (compaction,)))
    assert got is None if refusal is None else refusal in str(got)


def test_an_output_older_than_its_compaction() -> None:
    early = M.sst()
    compaction = M.compaction(ALL_L0, CompactionState.COMPACTED, [early])
    assert "older than the compaction" in str(validate(compaction, MANIFEST, Ledger(1, (compaction,))))


POLICIES = st.builds(
    TieredPolicy,
    st.integers(1, 6),
    st.integers(1, 8),
    st.sampled_from([1.0, 4.0, 1000.0]),
    st.sampled_from([0, 2, 3]),
    st.integers(1, 9),
)


@given(manifests(), POLICIES, st.booleans())
@settings(max_examples=60, deadline=None)
def test_all_that_is_proposed_is_valid(
    world: tuple[Mint, Manifest], policy: TieredPolicy, full: bool
) -> None:
    """One after another, as a coordinator schedules them, and again as it commits them."""
    mint, manifest = world
    ledger: SlateLedger = Ledger()
    plan = (
        propose_full(manifest, ledger, policy, FullRequest.of(manifest))
        if full
        else propose(manifest, ledger, policy)
    )
    for proposal in plan.proposals:
        compaction = mint.compaction(proposal.spec)
        ledger = ledger.add(compaction)
        assert validate(compaction, manifest, ledger) is None
        ledger = ledger.update(compaction.id, lambda c: replace(c, state=CompactionState.RUNNING))
    for compaction in ledger.compactions[::-1]:
        compaction = replace(compaction, state=CompactionState.COMPACTED)
        ledger = ledger.update(compaction.id, lambda c: replace(c, state=CompactionState.COMPACTED))
        assert validate(compaction, manifest, ledger) is None
        manifest = apply_compaction(manifest, compaction.spec)
        ledger = ledger.update(compaction.id, lambda c: replace(c, state=CompactionState.COMPLETED))


# The official coordinator as judge


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> OfficialCoordinator:
    return OfficialCoordinator(tmp_path_factory.mktemp("official"))


OURS_ALONE = ("would be lost", "same destination", "source in common")
"""Refusals of rules the official coordinator does not have."""


@st.composite
def full_manifests(draw: st.DrawFn) -> tuple[Mint, Manifest]:
    """A manifest whose trees all have L0 SSTs and runs."""
    mint = Mint(draw(st.integers(0, 1 << 30)))
    ids = iter(draw(st.permutations(range(12))))
    made = [
        mint.tree(draw(st.integers(1, 5)), {next(ids): MB for _ in range(draw(st.integers(1, 4)))}, prefix)
        for prefix in draw(st.sampled_from([(b"",), (b"a", b"b"), (b"a", b"b", b"c")]))
    ]
    return mint, manifest_of(*made)


@st.composite
def specs(draw: st.DrawFn, manifest: Manifest) -> Spec:
    """A spec that may be valid, or not: neighbours in read order, often damaged in one place."""
    tree = draw(st.sampled_from([tree for tree in manifest.trees() if tree.l0]))
    l0 = [view.id for view in tree.l0]
    runs = [run.id for run in tree.runs]
    match draw(st.sampled_from(["l0", "l0", "both", "both", "runs", "runs", "newest l0"])):
        case "l0":
            l0_ids, run_ids = l0[draw(st.integers(0, len(l0) - 1)) :], []
        case "both":
            l0_ids, run_ids = l0[draw(st.integers(0, len(l0) - 1)) :], runs[: draw(st.integers(1, len(runs)))]
        case "runs":
            first = draw(st.integers(0, len(runs) - 1))
            l0_ids, run_ids = [], runs[first : first + draw(st.integers(1, 4))]
        case _:
            l0_ids, run_ids = l0[: draw(st.integers(1, len(l0)))], []
    if run_ids and draw(st.integers(0, 5)) == 0:
        run_ids.pop(draw(st.integers(0, len(run_ids) - 1)))
    if draw(st.integers(0, 5)) == 0:
        l0_ids = draw(st.permutations(l0_ids))
    if draw(st.integers(0, 5)) == 0:
        run_ids = draw(st.permutations(run_ids))
    if draw(st.integers(0, 9)) == 0:
        run_ids = [*run_ids, draw(st.integers(0, 12))]
    if draw(st.integers(0, 3)) == 0:
        return DrainSpec(tree.prefix, tuple(l0_ids), tuple(run_ids))
    fresh = max(run.id for t in manifest.trees() for run in t.runs) + 1
    above = tree.runs[0].id + 1
    usual = min(run_ids, default=fresh)
    destination = draw(st.sampled_from([usual] * 4 + [fresh, above, draw(st.integers(0, 12))]))
    return TieredSpec(tree.prefix, tuple(l0_ids), tuple(run_ids), destination)


def outputs_for(mint: Mint, prefix: bytes, count: int) -> tuple[Sst, ...]:
    return tuple(mint.sst(MB, prefix + bytes([i, 0]), prefix + bytes([i, 9])) for i in range(count))


def _agree(
    official: OfficialCoordinator, manifest: Manifest, ledger: SlateLedger, compaction: SlateCompaction
) -> None:
    """We refuse what the official coordinator refuses, and more only where a rule is ours alone. What
    both accept to commit gives the same trees."""
    refusal = validate(compaction, manifest, ledger)
    result = official.run(manifest, ledger, lambda now: _state(now, compaction.id) is not compaction.state)
    state = _state(result.ledger, compaction.id)
    if state is CompactionState.FAILED:
        assert refusal is not None
        return
    assert refusal is None or any(text in refusal for text in OURS_ALONE)
    is_committed = compaction.state is CompactionState.COMPACTED or isinstance(compaction.spec, DrainSpec)
    assert state is (CompactionState.COMPLETED if is_committed else CompactionState.SCHEDULED)
    if refusal is None and is_committed:
        ours = apply_compaction(manifest, compaction.spec, compaction.outputs)
        assert _without_empty(ours) == _without_empty(result.manifest)


def _state(ledger: SlateLedger, compaction_id: Ulid) -> CompactionState | None:
    compaction = ledger.get(compaction_id)
    return None if compaction is None else compaction.state


def _without_empty(manifest: Manifest) -> list[Tree]:
    """The trees; the writer removes segments that are empty when it likes."""
    return [tree for tree in manifest.trees() if not tree.prefix or tree.l0 or tree.runs]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("state", [CompactionState.SUBMITTED, CompactionState.COMPACTED])
def test_official_coordinator_agrees_on_each_rule(
    official: OfficialCoordinator, case: Case, state: CompactionState
) -> None:
    if state is CompactionState.COMPACTED and isinstance(case.spec, DrainSpec):
        return  # a drain is never compacted: no worker runs it
    compaction = M.compaction(case.spec, state)
    ledger: SlateLedger = Ledger(0, (compaction,))
    if case.under_way is not None:
        ledger = ledger.add(M.compaction(case.under_way, CompactionState.RUNNING))
    _agree(official, MANIFEST, ledger, compaction)


@given(st.data())
@settings(
    max_examples=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_official_coordinator_agrees(official: OfficialCoordinator, data: st.DataObject) -> None:
    mint, manifest = data.draw(full_manifests())
    spec, other = data.draw(specs(manifest)), data.draw(specs(manifest))
    ledger: SlateLedger = Ledger()
    if isinstance(other, TieredSpec) and data.draw(st.integers(0, 2)) == 0:
        ledger = ledger.add(mint.compaction(other, CompactionState.RUNNING))
    compacted = isinstance(spec, TieredSpec) and data.draw(st.booleans())
    compaction = mint.compaction(spec, CompactionState.COMPACTED if compacted else CompactionState.SUBMITTED)
    if compacted:
        outputs = outputs_for(mint, spec.segment, data.draw(st.integers(0, 3)))
        compaction = replace(compaction, outputs=outputs)
    _agree(official, manifest, ledger.add(compaction), compaction)
