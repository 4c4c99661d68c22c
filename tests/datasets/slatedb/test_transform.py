"""What a commit makes of a manifest, as a table, as properties, and as the official coordinator does it."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lithify.base.errors import Refused
from lithify.datasets.slatedb.compaction.transform import (
    apply_compaction,
    apply_trivial_move,
    trivial_move_views,
    with_checkpoint,
)
from lithify.datasets.slatedb.format.manifest import decode_manifest, encode_manifest
from lithify.datasets.slatedb.model import (
    Checkpoint,
    ExternalDb,
    KeyRange,
    Manifest,
    SortedRun,
    Spec,
    TieredSpec,
    Tree,
    View,
)
from lithify.datasets.slatedb.planning.plan import FullRequest, TieredPolicy, propose, propose_full
from lithify.protocol.model import CompactionState, Ledger
from tests.datasets.slatedb.coordinated import OfficialCoordinator
from tests.datasets.slatedb.trees import MB, Mint, drain, manifest_of, manifests, tiered

M = Mint()
MARKER = M.ulid()
A = replace(M.tree(5, {7: MB, 4: MB, 2: MB}, b"a"), last_compacted_l0=MARKER)
B = M.tree(3, {9: MB}, b"b")
MANIFEST = manifest_of(A, B)
OUT = (M.sst(MB, b"aa", b"ac"), M.sst(MB, b"ac", b"ad"))
NEW = SortedRun(10, tuple(View(sst.id, sst) for sst in OUT))
R7, R4, R2 = A.runs


def placed(run_id: int) -> SortedRun:
    return replace(NEW, id=run_id)


@pytest.mark.parametrize(
    ("spec", "want"),
    [
        (tiered(A, slice(None), (), 10), Tree(b"a", A.l0[0].id, (), (NEW, R7, R4, R2))),
        (tiered(A, slice(3, None), (), 10), Tree(b"a", A.l0[3].id, A.l0[:3], (NEW, R7, R4, R2))),
        (tiered(A, slice(3, None), (), 8), Tree(b"a", A.l0[3].id, A.l0[:3], (placed(8), R7, R4, R2))),
        (tiered(A, slice(None), (7,), 7), Tree(b"a", A.l0[0].id, (), (placed(7), R4, R2))),
        (tiered(A, slice(None), (7, 4, 2), 2), Tree(b"a", A.l0[0].id, (), (placed(2),))),
        (tiered(A, None, (7, 4), 4), replace(A, runs=(placed(4), R2))),
        (tiered(A, None, (4, 2), 2), replace(A, runs=(R7, placed(2)))),
        (tiered(A, None, (4,), 4), replace(A, runs=(R7, placed(4), R2))),
        (drain(A, slice(None), (7, 4, 2)), Tree(b"a", A.l0[0].id, (), ())),
        (drain(A, slice(2, None), ()), Tree(b"a", A.l0[2].id, A.l0[:2], A.runs)),
        (drain(A, None, (4,)), replace(A, runs=(R7, R2))),
    ],
)
def test_only_its_own_tree_changes(spec: Spec, want: Tree) -> None:
    assert apply_compaction(MANIFEST, spec, OUT) == replace(MANIFEST, segments=(want, B))


def test_root_tree() -> None:
    root = replace(A, prefix=b"")
    manifest = replace(manifest_of(root), last_l0_seq=7, recent_snapshot_min_seq=3, compactor_epoch=9)
    spec = tiered(root, slice(None), (7, 4, 2), 2)
    want = replace(manifest, root=Tree(b"", A.l0[0].id, (), (placed(2),)))
    assert apply_compaction(manifest, spec, OUT) == want


def test_no_outputs_make_an_empty_run() -> None:
    result = apply_compaction(MANIFEST, tiered(A, slice(None), (7, 4, 2), 2))
    assert result.segments[0].runs == (SortedRun(2, ()),)
    assert decode_manifest(encode_manifest(result), "m") == result


def test_external_dbs_keep_only_what_is_shown_and_their_entry() -> None:
    source, kept = A.l0[0].sst.id, B.runs[0].views[0].sst.id
    entry = ExternalDb("parent", uuid.UUID(int=1), uuid.UUID(int=2), (source, kept))
    other = ExternalDb("other", uuid.UUID(int=3), None, (source,))
    manifest = replace(MANIFEST, external_dbs=(entry, other))
    result = apply_compaction(manifest, tiered(A, slice(None), (), 10), OUT)
    assert result.external_dbs == (replace(entry, sst_ids=(kept,)), replace(other, sst_ids=()))


def test_an_sst_shown_by_another_view_stays_external() -> None:
    """Two projections of one SST: compacting one of them must not let the parent drop it."""
    sst = M.sst()
    low = M.view(sst, KeyRange(b"a", b"m"))
    high = M.view(sst, KeyRange(b"m", None))
    root = Tree(l0=(low,), runs=(SortedRun(0, (high,)),))
    entry = ExternalDb("parent", uuid.UUID(int=1), None, (sst.id,))
    manifest = replace(manifest_of(root), external_dbs=(entry,))
    assert apply_compaction(manifest, tiered(root, slice(None), (), 1), OUT).external_dbs == (entry,)


@pytest.mark.parametrize(
    "spec",
    [
        replace(tiered(A, slice(None), (), 10), segment=b"c"),
        replace(tiered(A, slice(None), (), 10), l0_view_ids=(M.ulid(),)),
        tiered(A, None, (7, 3), 3),
        tiered(A, None, (7, 4), 2),
        drain(B, None, (4,)),
    ],
)
def test_what_is_gone_or_in_the_way_is_refused(spec: Spec) -> None:
    with pytest.raises(Refused):
        apply_compaction(MANIFEST, spec, OUT)


def test_with_checkpoint() -> None:
    first = Checkpoint(uuid.UUID(int=1), 4, 0, 1, "mine")
    second = Checkpoint(uuid.UUID(int=2), 9, 1000, 100)
    manifest = with_checkpoint(replace(MANIFEST, checkpoints=(first,)), second)
    assert manifest == replace(MANIFEST, checkpoints=(first, second))


def part(first: bytes, last: bytes | None, visible: KeyRange | None = None) -> View:
    return M.view(M.sst(MB, first, last), visible)


@pytest.mark.parametrize(
    ("l0", "run", "order"),
    [
        ([part(b"c", b"d"), part(b"a", b"b")], [], [1, 0]),
        ([part(b"e", b"f")], [part(b"a", b"b"), part(b"c", b"d")], [1, 2, 0]),
        ([part(b"a", b"b"), part(b"b", b"c")], [], None),
        ([part(b"a", b"z"), part(b"c", b"d")], [], None),
        ([part(b"a", None), part(b"c", b"d")], [], None),
        ([part(b"c", None), part(b"a", b"b")], [], [1, 0]),
        ([part(b"a", b"z", KeyRange(b"a", b"m")), part(b"a", b"z", KeyRange(b"m", None))], [], [0, 1]),
        (
            [
                part(b"a", b"z", KeyRange(b"a", b"m", end_inclusive=True)),
                part(b"a", b"z", KeyRange(b"m", None)),
            ],
            [],
            None,
        ),
        ([], [], None),
    ],
)
def test_trivial_move(l0: list[View], run: list[View], order: list[int] | None) -> None:
    root = Tree(l0=tuple(l0), runs=(SortedRun(0, tuple(run)),))
    spec = tiered(root, slice(None), (0,), 0)
    manifest = manifest_of(root)
    moved = trivial_move_views(manifest, spec)
    if order is None:
        assert moved is None
        with pytest.raises(Refused, match="overlap"):
            apply_trivial_move(manifest, spec)
    else:
        views = tuple([*l0, *run][i] for i in order)
        assert moved == views
        want = Tree(last_compacted_l0=l0[0].id, runs=(SortedRun(0, views),))
        assert apply_trivial_move(manifest, spec) == manifest_of(want)


# Properties


@given(manifests(), st.sampled_from([0, 2, 3]), st.integers(1, 9), st.integers(0, 2))
@settings(max_examples=50, deadline=None)
def test_compacting_until_nothing_is_proposed(
    world: tuple[Mint, Manifest], threshold: int, slots: int, outputs: int
) -> None:
    """Planning and committing comes to rest, and every manifest on the way is one clients can use."""
    mint, manifest = world
    policy = TieredPolicy(
        2, 6, sorted_run_consolidation_threshold=threshold, max_concurrent_compactions=slots
    )
    rounds = 2 * sum(len(tree.l0) + len(tree.runs) for tree in manifest.trees()) + 1
    for _ in range(rounds):
        proposals = propose(manifest, Ledger(), policy).proposals
        if not proposals:
            break
        for proposal in proposals:
            manifest = _carried_out(manifest, proposal.spec, mint, outputs)
        assert decode_manifest(encode_manifest(manifest), "m") == manifest
    else:
        pytest.fail(f"still planning after {rounds} rounds")


@given(manifests(), st.integers(1, 9), st.integers(0, 2), st.data())
@settings(max_examples=50, deadline=None)
def test_full_compaction_ends_while_the_writer_goes_on(
    world: tuple[Mint, Manifest], slots: int, outputs: int, data: st.DataObject
) -> None:
    mint, manifest = world
    asked = FullRequest.of(manifest)
    before = {view.id for tree in manifest.trees() for view in tree.views()}
    for _ in range(len(manifest.trees()) + 1):
        proposals = propose_full(
            manifest, Ledger(), TieredPolicy(max_concurrent_compactions=slots), asked
        ).proposals
        if not proposals:
            break
        manifest = _flushed(manifest, mint, data)
        for proposal in proposals:
            manifest = _carried_out(manifest, proposal.spec, mint, outputs)
    else:
        pytest.fail("a full compaction takes one for each tree")
    for tree in manifest.trees():
        assert len(tree.runs) <= 1
        if tree.l0 or len(tree.runs) > 1:
            assert not before & {view.id for view in tree.l0}


def _carried_out(manifest: Manifest, spec: TieredSpec, mint: Mint, outputs: int) -> Manifest:
    made = [mint.sst(MB, spec.segment + bytes([i, 0]), spec.segment + bytes([i, 9])) for i in range(outputs)]
    return apply_compaction(manifest, spec, made)


def _flushed(manifest: Manifest, mint: Mint, data: st.DataObject) -> Manifest:
    """The writer adds an L0 SST to each tree."""

    def add(tree: Tree) -> Tree:
        count = data.draw(st.integers(0, 2))
        fresh = [mint.view(mint.sst(MB, tree.prefix + b"a", tree.prefix + b"z")) for _ in range(count)]
        return replace(tree, l0=(*fresh[::-1], *tree.l0))

    if manifest.segments:
        return replace(manifest, segments=tuple(map(add, manifest.segments)))
    return replace(manifest, root=add(manifest.root))


# The official coordinator as judge


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> OfficialCoordinator:
    return OfficialCoordinator(tmp_path_factory.mktemp("official"))


def _external(manifest: Manifest, data: st.DataObject) -> tuple[ExternalDb, ...]:
    """One or no external database from which some of the SSTs come."""
    ids = sorted({view.sst.id for tree in manifest.trees() for view in tree.views()})
    chosen = tuple(i for i in ids if data.draw(st.booleans()))
    return (ExternalDb("parent", uuid.UUID(int=1), uuid.UUID(int=2), chosen),) if chosen else ()


@given(st.data(), st.booleans())
@settings(
    max_examples=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_official_coordinator_commits_the_same(
    official: OfficialCoordinator, data: st.DataObject, trivial_move: bool
) -> None:
    mint, manifest = data.draw(manifests(max_l0=6))
    policy = TieredPolicy(1, 6, 1000.0, sorted_run_consolidation_threshold=2)
    full = propose_full(manifest, Ledger(), policy, FullRequest.of(manifest)).proposals
    proposals = (*propose(manifest, Ledger(), policy).proposals, *full)
    if not proposals:
        return
    manifest = replace(manifest, external_dbs=_external(manifest, data))
    spec: TieredSpec = data.draw(st.sampled_from(proposals)).spec
    compaction = mint.compaction(
        spec, CompactionState.SUBMITTED if trivial_move else CompactionState.COMPACTED
    )
    if not trivial_move:
        count = data.draw(st.integers(0, 3))
        made = [
            mint.sst(MB, spec.segment + bytes([i, 0]), spec.segment + bytes([i, 9])) for i in range(count)
        ]
        compaction = replace(compaction, outputs=tuple(made))
        ours = apply_compaction(manifest, spec, made)
    elif trivial_move_views(manifest, spec) is None:
        ours = manifest
    else:
        ours = apply_trivial_move(manifest, spec)

    result = official.run(
        manifest,
        Ledger(0, (compaction,)),
        lambda now: [c.state for c in now.compactions] != [compaction.state],
        trivial_move=trivial_move,
    )
    (settled,) = result.ledger.compactions
    assert settled.state is (CompactionState.SCHEDULED if ours is manifest else CompactionState.COMPLETED)
    assert _trees(result.manifest) == _trees(ours)
    assert result.manifest.external_dbs == ours.external_dbs


def _trees(manifest: Manifest) -> list[Tree]:
    """The trees; the writer removes segments that are empty when it likes."""
    return [tree for tree in manifest.trees() if not tree.prefix or tree.l0 or tree.runs]
