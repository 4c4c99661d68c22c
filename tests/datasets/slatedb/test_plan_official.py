"""The plan equals what the official scheduler schedules, on the same trees."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lithify.datasets.slatedb.format.ledger import SlateLedger
from lithify.datasets.slatedb.model import DrainSpec, KeyRange, Manifest, SortedRun, Spec, Tree, View
from lithify.datasets.slatedb.planning.plan import TieredPolicy, propose, visible_size_bytes
from lithify.protocol.model import CompactionState, Ledger
from tests.datasets.slatedb.coordinated import OfficialCoordinator, coordinate
from tests.datasets.slatedb.trees import MB, Mint, manifest_of, manifests
from tests.judge.official import Admin, Put, compactor_settings, open_db


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> OfficialCoordinator:
    return OfficialCoordinator(tmp_path_factory.mktemp("official"))


def scheduled_officially(
    official: OfficialCoordinator, mint: Mint, manifest: Manifest, ledger: SlateLedger, policy: TieredPolicy
) -> set[Spec]:
    """The specs the official scheduler came up with.

    All of a tick's proposals are scheduled in one version of the ledger. To see that there are none, a
    compaction that must fail is submitted: it fails in the same tick, after the scheduler was asked.
    """
    known = {c.id for c in ledger.compactions}
    bound_to_fail = mint.compaction(DrainSpec(b"", (), ()))

    def asked(latest: SlateLedger) -> bool:
        return any(c.id == bound_to_fail.id and c.state is CompactionState.FAILED for c in latest.compactions)

    result = official.run(
        manifest,
        ledger.add(bound_to_fail),
        asked,
        scheduler={
            "min_compaction_sources": str(policy.min_compaction_sources),
            "max_compaction_sources": str(policy.max_compaction_sources),
            "include_size_threshold": str(policy.include_size_threshold),
            "sorted_run_consolidation_threshold": str(policy.sorted_run_consolidation_threshold),
        },
        # While it is submitted, the failing one takes a slot.
        max_concurrent=policy.max_concurrent_compactions + 1,
    )
    new = [c for c in result.ledger.compactions if c.id not in known and c.id != bound_to_fail.id]
    assert all(c.state is CompactionState.SCHEDULED for c in new)
    return {c.spec for c in new}


def proposed(manifest: Manifest, ledger: SlateLedger, policy: TieredPolicy) -> set[Spec]:
    specs = [proposal.spec for proposal in propose(manifest, ledger, policy).proposals]
    assert len(specs) == len(set(specs))
    return set(specs)


DEFAULTS = TieredPolicy()


@dataclass(frozen=True)
class Case:
    name: str
    manifest: Manifest
    policy: TieredPolicy = DEFAULTS


def _runs(*sizes: int) -> dict[int, int]:
    """Runs of these sizes, newest first."""
    return {len(sizes) - 1 - i: size for i, size in enumerate(sizes)}


M = Mint()
CASES = [
    *(Case(f"{count} L0", manifest_of(M.tree(count))) for count in range(3, 21)),
    *(Case(f"{count} runs", manifest_of(M.tree(0, _runs(*[MB] * count)))) for count in range(1, 18)),
    *(
        Case(
            f"6 uneven runs, consolidation {threshold}",
            manifest_of(M.tree(2, _runs(*(MB * 10**i for i in range(6))))),
            TieredPolicy(sorted_run_consolidation_threshold=threshold),
        )
        for threshold in (0, 2, 3, 5, 6)
    ),
    Case("L0 and runs", manifest_of(M.tree(9, _runs(MB, MB, MB, MB)))),
    Case("held back", manifest_of(M.tree(9, _runs(*[4 * MB] * 8)))),
    Case("just not held back", manifest_of(M.tree(9, _runs(*[33 * MB] * 8)))),
    Case("exactly four times", manifest_of(M.tree(0, _runs(MB, MB, MB, 4 * MB)))),
    Case("a byte more", manifest_of(M.tree(0, _runs(MB, MB, MB, 4 * MB + 1)))),
    Case("32-bit rounding", manifest_of(M.tree(0, _runs(16_777_217, 16_777_217))), TieredPolicy(2, 8, 1.0)),
    Case("other options", manifest_of(M.tree(5, _runs(1, 2, 3, 5, 8))), TieredPolicy(2, 3, 1.5)),
    Case(
        "segments",
        manifest_of(M.tree(4, {3: MB}, b"a"), M.tree(12, {1: MB, 0: MB}, b"b"), M.tree(5, {2: MB}, b"c")),
    ),
    Case(
        "segments, two slots",
        manifest_of(M.tree(4, {3: MB}, b"a"), M.tree(12, {1: MB, 0: MB}, b"b"), M.tree(5, {2: MB}, b"c")),
        TieredPolicy(max_concurrent_compactions=2),
    ),
    Case(
        "several of one segment",
        manifest_of(
            M.tree(4, {11: 1, 10: 1, 9: 1, 8: 1, 3: MB, 2: MB, 1: MB, 0: MB}, b"a"), M.tree(0, {5: 1}, b"b")
        ),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_table(official: OfficialCoordinator, case: Case) -> None:
    want = scheduled_officially(official, M, case.manifest, Ledger(), case.policy)
    assert proposed(case.manifest, Ledger(), case.policy) == want


@pytest.mark.parametrize(
    ("l0_count", "run_count", "prefix_len"),
    [(4, 0, None), (5, 4, None), (11, 2, None), (6, 0, 1)],
)
def test_real_databases(tmp_path: Path, l0_count: int, run_count: int, prefix_len: int | None) -> None:
    """Databases that were written, and whose runs were compacted, by the official client."""
    rng = random.Random(l0_count)
    with open_db(
        tmp_path,
        settings={"compactor_options": compactor_settings()},
        segment_prefix_len=prefix_len,
    ) as db:
        admin = Admin(tmp_path)
        for number in range(run_count + l0_count):
            db.write_each(
                Put(rng.choice([b"a", b"b"]) + bytes([i]), rng.randbytes(200))
                for i in range(rng.randrange(1, 60))
            )
            db.flush()
            if number < run_count:
                admin.submit_compaction([view.id for view in admin.trees()[0].l0], [], number)
                _await_run(admin, number)
    policy = TieredPolicy(max_concurrent_compactions=8)
    result = coordinate(
        tmp_path,
        lambda ledger: any(c.state is CompactionState.SCHEDULED for c in ledger.compactions),
        scheduler={},
        max_concurrent=8,
        segment_prefix_len=prefix_len,
    )
    want = {c.spec for c in result.ledger.active()}
    assert proposed(result.manifest, Ledger(), policy) == want


def _await_run(admin: Admin, run_id: int) -> None:
    deadline_s = time.monotonic() + 100
    while all(run.id != run_id for run in admin.trees()[0].runs):
        assert time.monotonic() < deadline_s, f"the official compactor did not make run {run_id}"
        time.sleep(0.01)


POLICIES = st.builds(
    TieredPolicy,
    st.integers(2, 6),
    st.integers(2, 8),
    st.sampled_from([0.0, 1.0, 1.3, 4.0, 1000.0, float("inf")]),
    st.sampled_from([0, 2, 3, 5]),
    st.integers(1, 6),
)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Mint, Manifest, SlateLedger]:
    """A manifest, and some of what could be compacted is being compacted already."""
    mint, manifest = draw(manifests())
    ledger: SlateLedger = Ledger()
    for proposal in propose(manifest, ledger, draw(POLICIES)).proposals:
        if draw(st.integers(0, 2)) == 0:
            ledger = ledger.add(mint.compaction(proposal.spec, CompactionState.RUNNING))
    return mint, manifest, ledger


@given(worlds(), POLICIES)
@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_random_trees(
    official: OfficialCoordinator, world: tuple[Mint, Manifest, SlateLedger], policy: TieredPolicy
) -> None:
    mint, manifest, ledger = world
    want = scheduled_officially(official, mint, manifest, ledger, policy)
    assert proposed(manifest, ledger, policy) == want


@st.composite
def projected_views(draw: st.DrawFn, mint: Mint) -> list[View]:
    """A view for each of some segments; sizes are exact as 32-bit floats."""
    found = []
    for prefix in range(draw(st.integers(20, 60))):
        stem = bytes([prefix]) + draw(st.binary(max_size=9))
        keys = st.binary(max_size=draw(st.sampled_from([1, 3, 12]))).map(stem.__add__)
        first, last = sorted((draw(keys), draw(keys)))
        last_known = draw(st.integers(0, 9)) > 0
        start, end = draw(st.one_of(st.none(), keys)), draw(st.one_of(st.none(), keys))
        shown = KeyRange(start, end, end is not None and draw(st.booleans()))
        sst = mint.sst(draw(st.integers(1, 1 << 23)), first, last if last_known else None)
        view = mint.view(sst, shown)
        found.append(mint.view(sst) if view.effective_range.is_empty else view)
    return found


@given(st.data())
@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_visible_size_is_exact(official: OfficialCoordinator, data: st.DataObject) -> None:
    """With threshold 1, two runs are merged if the older one is not larger than the newer one. Runs of
    just the visible size, and of one byte less, show what the official client takes the size to be."""
    mint = Mint()
    views = data.draw(projected_views(mint))
    policy = TieredPolicy(2, 2, 1.0, max_concurrent_compactions=1000)
    for less, expected in ((0, len(views)), (1, 0)):
        segments = []
        for i, view in enumerate(views):
            size = visible_size_bytes(view) - less
            prefix = bytes([i])
            newer = mint.view(mint.sst(size, prefix, prefix))
            segments.append(Tree(prefix, runs=(SortedRun(2 * i + 1, (newer,)), SortedRun(2 * i, (view,)))))
        manifest = manifest_of(*segments)
        want = scheduled_officially(official, mint, manifest, Ledger(), policy)
        assert proposed(manifest, Ledger(), policy) == want
        assert len(want) == expected
