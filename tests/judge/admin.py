"""The official administration of a database, and typed values of a manifest's shape."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slatedb import uniffi
from tests.judge.client import DEFAULT_TIMEOUT_S, Target, open_store, run, split_target


@dataclass(frozen=True, slots=True)
class ViewShape:
    """One view of a tree, as the official client reports it."""

    id: str
    sst_id: str
    sst_info: Any
    """The client's `SsTableInfo`."""
    visible_start: bytes | None = None
    visible_start_inclusive: bool = True
    visible_end: bytes | None = None
    visible_end_inclusive: bool = False

    def shows(self, key: bytes) -> bool:
        """Whether `key` lies in the visible range."""
        start, end = self.visible_start, self.visible_end
        if start is not None and (key < start or (key == start and not self.visible_start_inclusive)):
            return False
        return end is None or key < end or (key == end and self.visible_end_inclusive)


@dataclass(frozen=True, slots=True)
class RunShape:
    """One sorted run."""

    id: int
    views: tuple[ViewShape, ...]


@dataclass(frozen=True, slots=True)
class TreeShape:
    """One LSM tree; the root tree has the empty prefix. Everything newest first."""

    prefix: bytes
    marker: str | None
    l0: tuple[ViewShape, ...]
    runs: tuple[RunShape, ...]


def _view_shape(view: Any) -> ViewShape:
    visible = view.visible_range
    if visible is None:
        return ViewShape(view.id, view.sst.id.value, view.sst.info)
    return ViewShape(
        view.id,
        view.sst.id.value,
        view.sst.info,
        visible.start,
        visible.start_inclusive,
        visible.end,
        visible.end_inclusive,
    )


def _tree_shape(prefix: bytes, tree: Any) -> TreeShape:
    return TreeShape(
        prefix,
        tree.last_compacted_l0_sst_view_id,
        tuple(_view_shape(view) for view in tree.l0),
        tuple(RunShape(run.id, tuple(_view_shape(view) for view in run.sst_views)) for run in tree.compacted),
    )


def shape(manifest: Any) -> tuple[TreeShape, ...]:
    """The trees of a `VersionedManifest`: the root tree, then the segments."""
    return (
        _tree_shape(b"", manifest),
        *(_tree_shape(bytes(segment.prefix), segment) for segment in manifest.segments),
    )


@dataclass(frozen=True, slots=True)
class CloneSource:
    """A database to clone from: all of it, or its keys from `start` (inclusive) to `end` (exclusive)."""

    target: Target
    checkpoint: str | None = None
    start: bytes | None = None
    end: bytes | None = None


def _clone_source(source: CloneSource) -> Any:
    projection = None
    if source.start is not None or source.end is not None:
        projection = uniffi.KeyRange(
            start=source.start,
            start_inclusive=source.start is not None,
            end=source.end,
            end_inclusive=False,
        )
    return uniffi.CloneSourceSpec(
        path=split_target(source.target)[1], checkpoint=source.checkpoint, projection_range=projection
    )


class Admin:
    """The official administration of one database. Manifests and compactions come as the client's own
    values (`VersionedManifest`, `VersionedCompactions`); `shape` makes typed values of the trees."""

    def __init__(
        self,
        target: Target,
        *,
        store_options: Mapping[str, str] | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        self._target = target
        self._root, path = split_target(target)
        self._options = dict(store_options or {})
        self._admin = uniffi.AdminBuilder(path, open_store(self._root, self._options)).build()
        self._timeout_s = timeout_s

    def _do(self, work: Coroutine[Any, Any, Any], what: str) -> Any:
        return run(work, f"{what} of {self._target}", self._timeout_s)

    def read_manifest(self, manifest_id: int | None = None) -> Any:
        """One version of the manifest, the latest by default; `None` when there is none."""
        return self._do(self._admin.read_manifest(manifest_id), "read the manifest")

    def list_manifests(self) -> list[Any]:
        """Every stored version of the manifest."""
        return list(self._do(self._admin.list_manifests(None, None), "list the manifests"))

    def trees(self, manifest_id: int | None = None) -> tuple[TreeShape, ...]:
        """The shape of a manifest's trees."""
        return shape(self.read_manifest(manifest_id))

    def read_compactions(self, compactions_id: int | None = None) -> Any:
        """One version of the compactions file; `None` when there is none."""
        return self._do(self._admin.read_compactions(compactions_id), "read the compactions")

    def list_compactions(self) -> list[Any]:
        """Every stored version of the compactions file, oldest first."""
        return list(self._do(self._admin.list_compactions(None, None), "list the compactions"))

    def read_compaction(self, compaction_id: str) -> Any:
        """One compaction of the latest compactions file; `None` when it is not there."""
        return self._do(self._admin.read_compaction(compaction_id, None), "read a compaction")

    def submit_compaction(
        self, l0_view_ids: Sequence[str], sorted_runs: Sequence[int], destination: int, segment: bytes = b""
    ) -> str:
        """Submit a tiered compaction; its id. Both lists are newest first."""
        sources = [uniffi.SourceId.SST_VIEW(view_id) for view_id in l0_view_ids]
        sources += [uniffi.SourceId.SORTED_RUN(run_id) for run_id in sorted_runs]
        spec = uniffi.CompactionSpec.TIERED(segment=segment, sources=sources, destination=destination)
        return str(self._do(self._admin.submit_compaction(spec), "submit a compaction").id)

    def create_checkpoint(
        self, *, name: str | None = None, lifetime_ms: int | None = None, source: str | None = None
    ) -> str:
        """Create a checkpoint of the latest manifest (or a copy of another checkpoint); its id."""
        options = uniffi.CheckpointOptions(lifetime_ms=lifetime_ms, source=source, name=name)
        return str(self._do(self._admin.create_detached_checkpoint(options), "create a checkpoint").id)

    def list_checkpoints(self) -> list[Any]:
        """The client's `Checkpoint` values."""
        return list(self._do(self._admin.list_checkpoints(None), "list the checkpoints"))

    def delete_checkpoint(self, checkpoint_id: str) -> None:
        self._do(self._admin.delete_checkpoint(checkpoint_id), "delete a checkpoint")

    def clone_from(self, *sources: CloneSource) -> None:
        """Make this database a clone of the sources (same store). Projections must not overlap."""
        builder = self._admin.create_clone_builder_from_source(_clone_source(sources[0]))
        for source in sources[1:]:
            builder.with_source(_clone_source(source))
        self._do(builder.build(), "build a clone")

    def run_gc(self, *, min_age_ms: int = 0, wal_fences: bool = False) -> None:
        """Run the official garbage collector once over everything, or over everything but fences."""
        folder = uniffi.GarbageCollectorDirectoryOptions(
            interval_ms=None, min_age_ms=min_age_ms, dry_run=False
        )
        options = uniffi.GarbageCollectorOptions(
            manifest_options=folder,
            wal_options=folder,
            compacted_options=folder,
            compactions_options=folder,
            wal_fence_options=folder if wal_fences else None,
            detach_options=uniffi.GarbageCollectorScheduleOptions(interval_ms=None),
        )
        self._do(self._admin.run_gc_once(options), "collect garbage")
