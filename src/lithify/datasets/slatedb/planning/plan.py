"""Planning of a SlateDB database: its manifest and ledger as the planner's neutral values, and the planner's
proposals as specs.

Sizes are computed as SlateDB does (SlateDB format: size-tiered scheduler): an SST counts with everything
before its statistics. A view that shows only a key range of its SST counts with the visible fraction,
estimated from the keys alone: after the common prefix of the SST's first and last key, the next eight bytes
of a key are read as a position between 0 and 1.

A *full compaction* merges all L0 SSTs and runs of a tree into one run. It is requested at one moment, and
`FullRequest` records what existed then:

1. A tree with L0 SSTs or several runs needs it.
2. A tree that is already one run needs it only if rows could be dropped that could not be dropped when the
   run was written. That is decided by the clock and the snapshot horizon in the manifest, and both move only
   when the writer flushes an L0 SST. Without segments that L0 SST lies in this very tree, so (1) holds; with
   segments it may lie in another, so the run is rewritten if it is older than the last flush. The tree also
   needs it if it shows SSTs of another database: a clone is independent of its parent afterwards.
3. It is done when the tree is one run that contains nothing that existed at the request. Later additions of
   the writer do not count, so repeated planning ends although the writer continues.

In a clone of several parts of one database, each part's views keep their ids, so one id may stand for several
L0 views (of different keys). A spec names its sources by id, and its commit moves the marker to the first
view of an id and drops everything below: a pick takes all views down from the first one with the same id.

While a full compaction is in progress its L0 SSTs stay, so an active writer stalls when it reaches its
`l0_max_ssts`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from lithify.base.errors import Refused
from lithify.base.ids import Ulid, ulid_ms
from lithify.datasets.slatedb.format.ledger import SlateLedger
from lithify.datasets.slatedb.model import (
    KeyRange,
    Manifest,
    SortedRun,
    Spec,
    TieredSpec,
    Tree,
    View,
    tree_label,
)
from lithify.datasets.slatedb.planning.tiered import (
    L0,
    ActiveWork,
    HeldSources,
    TieredPolicy,
    TieredProposal,
    TieredRun,
    TieredTree,
    full_compaction,
    l0_priority,
    next_run_id,
    plan,
    runs_priority,
)
from lithify.protocol.model import CompactionState
from lithify.protocol.proposal import NOTHING_HELD, Held, Plan, Proposal

__all__ = ["FullRequest", "TieredPolicy", "priority", "propose", "propose_full", "visible_size_bytes"]

_POSITION_BYTES = 8
_MIN_VISIBLE_FRACTION = 1e-6
_F64_EPSILON = 2.0**-52


def propose(
    manifest: Manifest,
    ledger: SlateLedger,
    policy: TieredPolicy,
    segment: bytes | None = None,
    held: Held = NOTHING_HELD,
) -> Plan:
    """Return what the size-tiered scheduler would compact now, in all trees or in one `segment`, without the
    `held` sources."""
    trees = tuple(map(tree_shape, _trees(manifest, segment)))
    active = active_work(ledger)
    next_id = next_run_id(map(tree_shape, manifest.trees()), active)
    tiered = plan(trees, active, policy, next_id, held_sources(manifest, held))
    notes = tuple(
        _labelled(manifest, left.key, left.reason) for left in tiered.unpicked if _speaks(manifest, left.key)
    )
    return as_plan(manifest, tiered.proposals, notes)


def priority(spec: Spec, manifest: Manifest, policy: TieredPolicy) -> float:
    """Return the urgency of a compaction, given the L0 SSTs and runs that its tree has now."""
    tree = manifest.tree(spec.segment)
    if tree is None:
        return 0.0
    if any(view.id in spec.l0_view_ids for view in tree.l0):
        return l0_priority(len(tree.l0), policy)
    return runs_priority(len(tree.runs), policy) if spec.sorted_runs else 0.0


@dataclass(frozen=True, slots=True)
class FullRequest:
    """A request to compact trees fully, and the views each of them had when it was made."""

    views: tuple[tuple[bytes, frozenset[Ulid]], ...]

    @classmethod
    def of(cls, manifest: Manifest, segment: bytes | None = None) -> FullRequest:
        """Create a request for all trees of the manifest, or for one. Raise `Refused` if there is no such
        segment."""
        wanted = (tree for tree in _trees(manifest, segment) if _needs_full(tree, manifest))
        return cls(tuple((tree.prefix, frozenset(view.id for view in tree.views())) for tree in wanted))


def propose_full(
    manifest: Manifest,
    ledger: SlateLedger,
    policy: TieredPolicy,
    request: FullRequest,
    held: Held = NOTHING_HELD,
) -> Plan:
    """Return the remaining work for `request`, at most `max_concurrent_compactions` at a time, without the
    `held` sources."""
    left_alone = held_sources(manifest, held)
    active = active_work(ledger)
    shapes = tuple(tree_shape(tree) for tree in manifest.trees())
    next_id = next_run_id(shapes, active)
    free_slots = policy.max_concurrent_compactions - sum(work.takes_slot for work in active)
    asked = dict(request.views)
    proposals: list[TieredProposal] = []
    notes: list[str] = []
    for tree, shape in zip(manifest.trees(), shapes, strict=True):
        if not _is_left(tree, asked.get(tree.prefix)):
            if _speaks(manifest, tree.prefix):
                notes.append(_labelled(manifest, tree.prefix, _why_done(tree)))
            continue
        pick = full_compaction(shape, active, next_id, left_alone.get(tree.prefix, HeldSources()))
        if isinstance(pick, TieredProposal) and len(proposals) >= free_slots:
            pick = f"waits: max_concurrent_compactions {policy.max_concurrent_compactions} is used up"
        if isinstance(pick, str):
            notes.append(_labelled(manifest, tree.prefix, pick))
            continue
        proposals.append(pick)
        next_id = max(next_id, pick.destination + 1)
    return as_plan(manifest, tuple(proposals), tuple(notes))


def visible_size_bytes(view: View) -> int:
    """Return the size of the visible part of a view's SST, at least 1."""
    size_bytes = view.sst.size_bytes
    if view.visible_range is None:
        return size_bytes
    return max(1, math.floor(size_bytes * _visible_fraction(view) + 0.5))


def _visible_fraction(view: View) -> float:
    info = view.sst.info
    if info.first_entry is None or info.last_entry is None:
        return 1.0
    physical = KeyRange(info.first_entry, info.last_entry, end_inclusive=True)
    shown = view.effective_range
    if shown == physical:
        return 1.0
    skip = _common_prefix_len(info.first_entry, info.last_entry)
    shown_length = _position(shown.end, skip) - _position(shown.start, skip)
    if shown_length == 0:
        return 1.0
    length = max(_position(info.last_entry, skip) - _position(info.first_entry, skip), _F64_EPSILON)
    return min(max(shown_length / length, _MIN_VISIBLE_FRACTION), 1.0)


def _position(key: bytes | None, skip: int) -> float:
    assert key is not None, "an SST's effective range is bounded"
    position, scale = 0.0, 1.0 / 256
    for byte in key[skip : skip + _POSITION_BYTES]:
        position += byte * scale
        scale /= 256
    return position


def _common_prefix_len(a: bytes, b: bytes) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def tree_shape(tree: Tree) -> TieredTree:
    """Return a tree as the planner's value."""
    return TieredTree(
        tree.prefix,
        tuple(L0(view.id, visible_size_bytes(view)) for view in tree.l0),
        tuple(TieredRun(run.id, sum(map(visible_size_bytes, run.views))) for run in tree.runs),
    )


def source_names(segment: bytes, l0_ids: Iterable[str], run_ids: Iterable[int]) -> tuple[str, ...]:
    """Return names of sources that are unique in the database, in this order."""
    where = f" of {tree_label(segment)}" if segment else ""
    return (*(f"{view_id}{where}" for view_id in l0_ids), *(f"run {run_id}{where}" for run_id in run_ids))


def held_sources(manifest: Manifest, held: Held) -> dict[bytes, HeldSources]:
    """Return the held sources as the planner's values, by tree."""
    if not held:
        return {}
    found = {}
    for tree in manifest.trees():
        l0 = {view.id: held.get(source_names(tree.prefix, [view.id], [])[0]) for view in tree.l0}
        runs = {run.id: held.get(source_names(tree.prefix, [], [run.id])[0]) for run in tree.runs}
        sources = HeldSources(
            {view_id: why for view_id, why in l0.items() if why is not None},
            {run_id: why for run_id, why in runs.items() if why is not None},
        )
        if sources.l0 or sources.runs:
            found[tree.prefix] = sources
    return found


def active_work(ledger: SlateLedger) -> tuple[ActiveWork, ...]:
    """Return the compactions in progress in the ledger as the planner's values."""
    return tuple(
        ActiveWork(
            c.spec.segment,
            frozenset(c.spec.l0_view_ids),
            frozenset(c.spec.sorted_runs),
            c.spec.destination if isinstance(c.spec, TieredSpec) else None,
            takes_slot=c.state is not CompactionState.COMPACTED,
        )
        for c in ledger.active()
    )


def _trees(manifest: Manifest, segment: bytes | None) -> tuple[Tree, ...]:
    if segment is None:
        return manifest.trees()
    tree = manifest.tree(segment)
    if tree is None:
        known = ", ".join(s.prefix.hex() for s in manifest.segments) or "none"
        raise Refused(f"there is no {tree_label(segment)} in the database; its segments are: {known}")
    return (tree,)


def _needs_full(tree: Tree, manifest: Manifest) -> bool:
    if tree.l0 or len(tree.runs) > 1:
        return True
    foreign = {sst_id for db in manifest.external_dbs for sst_id in db.sst_ids}
    return any(
        _is_older_than_last_flush(run, manifest) or any(view.sst.id in foreign for view in run.views)
        for run in tree.runs
    )


def _is_older_than_last_flush(run: SortedRun, manifest: Manifest) -> bool:
    return bool(manifest.segments) and any(
        ulid_ms(view.sst.id) < manifest.last_l0_clock_tick for view in run.views
    )


def _is_left(tree: Tree, asked: frozenset[Ulid] | None) -> bool:
    if asked is None:
        return False
    return len(tree.runs) > 1 or any(view.id in asked for view in tree.views())


def _why_done(tree: Tree) -> str:
    if not tree.l0 and not tree.runs:
        return "empty"
    count = len(tree.l0)
    later = f"; {count} L0 {'SST was' if count == 1 else 'SSTs were'} added later" if count else ""
    return ("one sorted run already" if tree.runs else "nothing left from the time of the request") + later


def as_plan(manifest: Manifest, proposals: tuple[TieredProposal, ...], notes: tuple[str, ...]) -> Plan:
    """Return the planner's picks as proposals, most urgent first."""
    ordered = sorted(proposals, key=lambda proposal: -proposal.priority)
    return Plan(tuple(_proposal(manifest, proposal) for proposal in ordered), notes)


def _proposal(manifest: Manifest, proposal: TieredProposal) -> Proposal:
    tree = manifest.tree(proposal.key)
    assert tree is not None, "the planner judges only trees of the manifest"
    l0 = _with_namesakes(tree, len(proposal.l0_ids))
    more = l0[: len(l0) - len(proposal.l0_ids)]
    return Proposal(
        TieredSpec(
            proposal.key,
            tuple(view.id for view in l0),
            proposal.run_ids,
            proposal.destination,
        ),
        proposal.priority,
        proposal.cost_bytes + sum(map(visible_size_bytes, more)),
        _labelled(manifest, proposal.key, proposal.reason),
    )


def _with_namesakes(tree: Tree, count: int) -> tuple[View, ...]:
    """Return the oldest `count` L0 views, and all that must be compacted with them because one id stands for
    several."""
    start = len(tree.l0) - count
    while True:
        ids = {view.id for view in tree.l0[start:]}
        first = next((i for i, view in enumerate(tree.l0) if view.id in ids), start)
        if first == start:
            return tree.l0[start:]
        start = first


def _speaks(manifest: Manifest, prefix: bytes) -> bool:
    """Return whether a tree is worth a note: the root of a database with segments is empty by design."""
    return bool(prefix) or not manifest.segments or bool(manifest.root.l0 or manifest.root.runs)


def _labelled(manifest: Manifest, prefix: bytes, reason: str) -> str:
    return f"{tree_label(prefix)}: {reason}" if manifest.segments else reason
