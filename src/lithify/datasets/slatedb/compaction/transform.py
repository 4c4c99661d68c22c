"""The effect of committing a compaction on a manifest: pure functions of the latest manifest.

A merge (SlateDB format: manifest commit) changes only its own tree:

1. Its L0 views leave the list, and the marker becomes the newest of them. Newer L0 SSTs that the writer has
   added meanwhile stay.
2. Its runs are removed, and the destination is inserted in the strictly descending order, with one view of
   each output. Without outputs the run has no views: it is a legal source later.
3. Each external database keeps only the SSTs this manifest still shows; its entry stays even if none is left,
   so that the garbage collector can detach it.

A drain does the same without a destination. A trivial move makes the source views themselves, with their ids
and visible ranges, the destination's views: no row is read. It is possible if no two sources can show the
same key. It is not used for a single run: a request for that asks for a rewrite.

Nothing else changes. The sources must exist: the caller has validated the compaction against the same
manifest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain, pairwise

from lithify.base.errors import Refused
from lithify.datasets.slatedb.model import (
    Checkpoint,
    DrainSpec,
    KeyRange,
    Manifest,
    SortedRun,
    Spec,
    Sst,
    TieredSpec,
    Tree,
    View,
    tree_label,
)


def apply_compaction(manifest: Manifest, spec: Spec, outputs: Iterable[Sst] = ()) -> Manifest:
    """Return the manifest after a merge with these outputs (in key order), or after a drain."""
    tree = _tree_of(manifest, spec)
    if isinstance(spec, DrainSpec):
        return _with_tree(manifest, _without_sources(tree, spec))
    run = SortedRun(spec.destination, tuple(View(sst.id, sst) for sst in outputs))
    return _with_tree(manifest, _with_run(_without_sources(tree, spec), run))


def is_trivial_move(manifest: Manifest, spec: Spec) -> bool:
    """Return whether all sources exist and could become the destination unchanged."""
    tree = manifest.tree(spec.segment)
    if not isinstance(spec, TieredSpec) or tree is None or _missing(tree, spec):
        return False
    return (
        len(spec.l0_view_ids) + len(spec.sorted_runs) > 1 and trivial_move_views(manifest, spec) is not None
    )


def trivial_move_views(manifest: Manifest, spec: TieredSpec) -> tuple[View, ...] | None:
    """Return the source views by ascending key if no two can show the same key, else `None`."""
    views = sorted(
        _source_views(_tree_of(manifest, spec), spec), key=lambda v: v.effective_range.start or b""
    )
    if not views or any(_overlap(a.effective_range, b.effective_range) for a, b in pairwise(views)):
        return None
    return tuple(views)


def apply_trivial_move(manifest: Manifest, spec: TieredSpec) -> Manifest:
    """Return the manifest after the sources' own views have become the destination run."""
    views = trivial_move_views(manifest, spec)
    if views is None:
        raise Refused("the sources overlap or show nothing, so they cannot be moved without merging them")
    tree = _without_sources(_tree_of(manifest, spec), spec)
    return _with_tree(manifest, _with_run(tree, SortedRun(spec.destination, views)))


def with_checkpoint(manifest: Manifest, checkpoint: Checkpoint) -> Manifest:
    """Return the manifest with one more checkpoint."""
    return replace(manifest, checkpoints=(*manifest.checkpoints, checkpoint))


def _tree_of(manifest: Manifest, spec: Spec) -> Tree:
    tree = manifest.tree(spec.segment)
    if tree is None:
        raise Refused(f"{tree_label(spec.segment)} no longer exists")
    if gone := _missing(tree, spec):
        raise Refused(f"{', '.join(gone)} of {tree_label(spec.segment)} is gone from the manifest")
    return tree


def _missing(tree: Tree, spec: Spec) -> list[str]:
    l0_ids, run_ids = {view.id for view in tree.l0}, {run.id for run in tree.runs}
    return [
        *(f"L0 {view_id}" for view_id in spec.l0_view_ids if view_id not in l0_ids),
        *(f"run {run_id}" for run_id in spec.sorted_runs if run_id not in run_ids),
    ]


def _source_views(tree: Tree, spec: Spec) -> Iterable[View]:
    l0 = (view for view in tree.l0 if view.id in spec.l0_view_ids)
    return chain(l0, (view for run in tree.runs if run.id in spec.sorted_runs for view in run.views))


def _without_sources(tree: Tree, spec: Spec) -> Tree:
    taken = next((view.id for view in tree.l0 if view.id in spec.l0_view_ids), tree.last_compacted_l0)
    return replace(
        tree,
        last_compacted_l0=taken,
        l0=tuple(view for view in tree.l0 if view.id not in spec.l0_view_ids),
        runs=tuple(run for run in tree.runs if run.id not in spec.sorted_runs),
    )


def _with_run(tree: Tree, run: SortedRun) -> Tree:
    if any(other.id == run.id for other in tree.runs):
        raise Refused(f"run {run.id} of {tree_label(tree.prefix)} would be replaced without being merged")
    return replace(tree, runs=tuple(sorted((*tree.runs, run), key=lambda r: -r.id)))


def _with_tree(manifest: Manifest, tree: Tree) -> Manifest:
    if not tree.prefix:
        changed = replace(manifest, root=tree)
    else:
        segments = tuple(tree if old.prefix == tree.prefix else old for old in manifest.segments)
        changed = replace(manifest, segments=segments)
    shown = {view.sst.id for t in changed.trees() for view in t.views()}
    external = tuple(
        replace(db, sst_ids=tuple(i for i in db.sst_ids if i in shown)) for db in changed.external_dbs
    )
    return replace(changed, external_dbs=external)


def _overlap(a: KeyRange, b: KeyRange) -> bool:
    return not a.intersect(b).is_empty
