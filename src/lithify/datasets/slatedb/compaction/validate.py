"""Validation of compactions of a SlateDB database before they are scheduled or committed.

The rules are SlateDB's own (SlateDB format: validation of a spec) and apply to every submitted compaction. A
refused compaction becomes Failed, which loses nothing. It is checked while it is Submitted, and again against
the latest manifest when it is Compacted:

1. It has sources, its tree exists, and the tree still has every one of them.
2. The destination is not the id of a run that is no source, in any tree. A new run made from L0 SSTs alone is
   newer than every run: of all trees while Submitted, of its own tree when Compacted (another segment may
   have committed a higher id meanwhile).
3. No other compaction of L0 SSTs of the same tree is in progress.
4. A merge's sources are neighbours in read order (L0 newest first, then runs newest first), and its
   destination is its oldest run.
5. L0 sources reach down to the oldest L0 SST of the tree. The commit moves the marker to the newest of them
   and everything below the marker counts as compacted: an older L0 SST left out would be lost. SlateDB itself
   checks this for drains only.
6. Only segments can be drained, never the root.
7. While Submitted, a merge shares no source and no destination with a compaction in progress. SlateDB leaves
   that to its scheduler; a manual submission would waste the work, or stop its workers. The same holds for a
   Scheduled one, since its entry may have been made manually.
8. When Compacted, the outputs are in key order and do not overlap, none has an impossible description, and
   none is older than the compaction: SlateDB closes a database whose manifest got such an SST.
9. No client is active with which Lithify would do harm (`clients`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from lithify.base.ids import Ulid, ulid_ms
from lithify.datasets.slatedb.format.clients import why_too_old
from lithify.datasets.slatedb.format.ledger import SlateCompaction, SlateLedger
from lithify.datasets.slatedb.model import (
    DrainSpec,
    Manifest,
    Spec,
    Sst,
    TieredSpec,
    Tree,
    layout_problem,
    tree_label,
)
from lithify.protocol.model import CompactionState

_UNDER_WAY = (CompactionState.SCHEDULED, CompactionState.RUNNING)


def validate(compaction: SlateCompaction, manifest: Manifest, ledger: SlateLedger) -> str | None:
    """Return why `compaction` must not be scheduled (when it is Submitted), carried out (Scheduled) or
    committed (Compacted), as one sentence, or `None`."""
    if compaction.state not in (
        CompactionState.SUBMITTED,
        CompactionState.SCHEDULED,
        CompactionState.COMPACTED,
    ):
        return (
            f"it is {compaction.state.value}; only Submitted, Scheduled and Compacted compactions are "
            "validated"
        )
    return next(_refusals(compaction, manifest, ledger), None)


def _refusals(compaction: SlateCompaction, manifest: Manifest, ledger: SlateLedger) -> Iterator[str]:
    """Yield refusals in the order of the rules; later rules may rely on the earlier ones."""
    if too_old := why_too_old(manifest):
        yield too_old
    spec = compaction.spec
    label = tree_label(spec.segment)
    if not spec.l0_view_ids and not spec.sorted_runs:
        yield "it has no sources"
        return
    if isinstance(spec, DrainSpec) and not spec.segment:
        yield "the root tree cannot be drained"
        return
    tree = manifest.tree(spec.segment)
    if tree is None:
        yield f"{label} does not exist"
        return
    yield from _missing(spec, tree, label)
    if isinstance(spec, TieredSpec):
        yield from _bad_destination(spec, manifest, tree, compaction.state)
    if left := older_l0_left(spec, tree):
        yield left
    if spec.l0_view_ids:
        yield from _parallel_l0(spec, _others(compaction, ledger), label)
    if isinstance(spec, TieredSpec):
        yield from _not_neighbours(spec, tree)
        if compaction.state is not CompactionState.COMPACTED:
            yield from _conflicts(spec, _others(compaction, ledger))
    if compaction.state is CompactionState.COMPACTED:
        yield from _bad_outputs(compaction)


def _missing(spec: Spec, tree: Tree, label: str) -> Iterator[str]:
    l0_ids = {view.id for view in tree.l0}
    run_ids = {run.id for run in tree.runs}
    gone = [f"L0 {view_id}" for view_id in spec.l0_view_ids if view_id not in l0_ids]
    gone += [f"run {run_id}" for run_id in spec.sorted_runs if run_id not in run_ids]
    # The commit keeps a run with the number of the destination.
    stays = isinstance(spec, TieredSpec) and spec.destination in spec.sorted_runs
    if gone and len(gone) + stays >= len(spec.l0_view_ids) + len(spec.sorted_runs):
        others = ", nor is any other" if len(gone) > 1 else ""
        yield (
            f"its source {gone[0]} is no longer in {label}{others}: it was committed before a crash, or "
            "another compaction took its sources"
        )
    for source in gone:
        yield f"its source {source} is no longer in {label}"


def _bad_destination(
    spec: TieredSpec, manifest: Manifest, tree: Tree, state: CompactionState
) -> Iterator[str]:
    if not spec.sorted_runs:
        trees = manifest.trees() if state is CompactionState.SUBMITTED else (tree,)
        newest = max((run.id for t in trees for run in t.runs), default=-1)
        if spec.destination <= newest:
            yield f"its destination {spec.destination} is not above the newest run {newest}"
    taken = {run.id for t in manifest.trees() for run in t.runs}
    if spec.destination in taken and spec.destination not in spec.sorted_runs:
        yield f"its destination {spec.destination} is another run, which is not among its sources"


def older_l0_left(spec: Spec, tree: Tree) -> str | None:
    """Return why the commit would lose an L0 SST that is no source (rule 5), or `None`. Workers check this
    too: SlateDB's coordinator schedules such a compaction if it is submitted."""
    left = older_l0(spec, tree)
    if not left:
        return None
    return f"it leaves out L0 {left[-1]}, which is older than its newest L0 source and would be lost"


def older_l0(spec: Spec, tree: Tree) -> list[Ulid]:
    """Return the L0 views of the tree that are older than the newest L0 source and are no source, newest
    first."""
    listed = set(spec.l0_view_ids)
    newest = next((i for i, view in enumerate(tree.l0) if view.id in listed), len(tree.l0))
    return [view.id for view in tree.l0[newest:] if view.id not in listed]


def parallel_l0(compaction: SlateCompaction, ledger: SlateLedger) -> tuple[SlateCompaction, ...]:
    """Return the other compactions of L0 SSTs of the same tree that are not finished."""
    spec = compaction.spec
    if not spec.l0_view_ids:
        return ()
    others = _others(compaction, ledger)
    return tuple(c for c in others if c.spec.segment == spec.segment and c.spec.l0_view_ids)


def why_unclaimable(
    compaction: SlateCompaction, parallel: Iterable[SlateCompaction], manifest: Manifest
) -> str | None:
    """Return why a worker must not claim `compaction` beside the `parallel` ones of `parallel_l0`, or `None`.

    Up to 0.17, SlateDB's coordinator never lets two compactions of L0 SSTs of one tree be in progress: the
    commit of the newer one moves the marker over the inputs of the older one. So if both are Scheduled or
    Running, their coordinator can commit them in any order, and a worker may execute the newer one
    (tombstones are kept, see `prepare`). A Submitted one may be refused, and a Compacted one may fail its
    validation; the L0 SSTs of both would then be lost by the commit of the newer one. So that one waits. The
    sources that it leaves out must all be older than its own, and the run that it makes newer than theirs."""
    spec = compaction.spec
    tree = manifest.tree(spec.segment)
    if tree is None or not (left := set(older_l0(spec, tree))):
        return None
    oldest = max(i for i, view in enumerate(tree.l0) if view.id in spec.l0_view_ids)
    if spec.sorted_runs or any(view.id in left for view in tree.l0[:oldest]):
        return "it leaves out L0 SSTs that are newer than some of its sources"
    for other in parallel:
        taken = left.intersection(other.spec.l0_view_ids)
        if taken and other.state not in _UNDER_WAY:
            return f"it waits until compaction {other.id} of older L0 SSTs is committed or refused"
        if taken and not _makes_older_run(other.spec, spec):
            return f"compaction {other.id} of older L0 SSTs does not make an older run"
        left -= taken
    if not left:
        return None
    return f"it leaves out L0 {min(left)}, which no compaction in progress reads and which would be lost"


def _makes_older_run(older: Spec, newer: Spec) -> bool:
    return (
        isinstance(older, TieredSpec)
        and isinstance(newer, TieredSpec)
        and older.destination < newer.destination
    )


def _others(compaction: SlateCompaction, ledger: SlateLedger) -> Iterator[SlateCompaction]:
    return (c for c in ledger.compactions if not c.state.is_terminal and c.id != compaction.id)


def _parallel_l0(spec: Spec, others: Iterable[SlateCompaction], label: str) -> Iterator[str]:
    for other in others:
        if other.state in _UNDER_WAY and other.spec.segment == spec.segment and other.spec.l0_view_ids:
            yield f"compaction {other.id} of L0 SSTs in {label} is in progress"


def _not_neighbours(spec: TieredSpec, tree: Tree) -> Iterator[str]:
    order: list[str | int] = [*(view.id for view in tree.l0), *(run.id for run in tree.runs)]
    sources: list[str | int] = [*spec.l0_view_ids, *spec.sorted_runs]
    first = order.index(sources[0])
    if order[first : first + len(sources)] != sources:
        yield "its sources are not neighbours in read order (L0 newest first, then runs newest first)"
    if spec.sorted_runs and spec.destination != min(spec.sorted_runs):
        yield f"its destination {spec.destination} is not its oldest source run {min(spec.sorted_runs)}"


def _conflicts(spec: TieredSpec, others: Iterable[SlateCompaction]) -> Iterator[str]:
    for other in others:
        if other.state is CompactionState.SUBMITTED:
            continue
        if isinstance(other.spec, TieredSpec) and other.spec.destination == spec.destination:
            yield f"compaction {other.id}, which is in progress, has the same destination {spec.destination}"
        if {*spec.l0_view_ids, *spec.sorted_runs} & {*other.spec.l0_view_ids, *other.spec.sorted_runs}:
            yield f"compaction {other.id}, which is in progress, has a source in common"


def _bad_outputs(compaction: SlateCompaction) -> Iterator[str]:
    outputs = compaction.outputs
    for sst in outputs:
        if ulid_ms(sst.id) < ulid_ms(compaction.id):
            yield f"its output {sst.id} is older than the compaction itself; a worker's clock is behind"
        first, last = sst.info.first_entry, sst.info.last_entry
        if first is None or last is None or last < first:
            yield f"its output {sst.id} does not state its first and last key"
            return
        if problem := layout_problem(sst.info):
            yield f"the description of its output {sst.id} is impossible: {problem}"
    for before, after in pairwise(outputs):
        if _first(after) < _last(before):
            yield f"its output {after.id} starts before the end of output {before.id}"


def _first(sst: Sst) -> bytes:
    return sst.info.first_entry or b""


def _last(sst: Sst) -> bytes:
    return sst.info.last_entry or b""
