"""The inputs of a compaction of a SlateDB database: the views of its sources, and their objects."""

from __future__ import annotations

from lithify.base.errors import ObjectNotFound, Refused
from lithify.datasets.slatedb.format.paths import DatabasePaths
from lithify.datasets.slatedb.model import Manifest, TieredSpec, Tree, View
from lithify.store.objects import ObjectStore


def source_views(tree: Tree, spec: TieredSpec) -> tuple[tuple[View, ...], ...] | None:
    """Return the views of a spec's sources, newest source first, or `None` if one is missing."""
    # By position, not by id: in a clone of several databases one view id may stand for two views.
    l0 = [view for view in tree.l0 if view.id in spec.l0_view_ids]
    runs = [run for run in tree.runs if run.id in spec.sorted_runs]
    if {v.id for v in l0} != set(spec.l0_view_ids) or {r.id for r in runs} != set(spec.sorted_runs):
        return None
    return (*((view,) for view in l0), *(run.views for run in runs))


class Locator:
    """Finds the object of an SST: in the database's own folder, or in another database that a clone still
    reads. That other path is relative to the root of the store its client used, which may be any folder above
    the clone, so the folders are tried from the top."""

    def __init__(self, store: ObjectStore, paths: DatabasePaths, manifest: Manifest) -> None:
        self._store = store
        self._paths = paths
        self._external = {sst_id: db.path for db in manifest.external_dbs for sst_id in db.sst_ids}
        self._bases: dict[str, str] = {}

    def __call__(self, view: View) -> str:
        path = self._external.get(view.sst.id)
        if path is None:
            return self._paths.sst(view.sst.id)
        base = self._bases.get(path)
        if base is not None:
            return DatabasePaths(base).sst(view.sst.id)
        parts = self._paths.root.split("/")
        for depth in range(len(parts)):
            base = "/".join([*parts[:depth], path.strip("/")])
            key = DatabasePaths(base).sst(view.sst.id)
            try:
                self._store.head(key)
            except ObjectNotFound:
                continue
            self._bases[path] = base
            return key
        raise Refused(
            f"SST {view.sst.id} of the database at {path!r} was not found from the store {self._store.url}; "
            "a clone must be compacted through the same store as its parent"
        )
