"""The size of a table's history, and the bytes that expiring some of it would free (pure). It uses only the
snapshots' summaries, so its cost does not depend on the number of files.

1. The files that a snapshot removed still exist for its parent.
2. If the parent and all its ancestors expire, and the parent has no other child, these files are free. This
   is a lower bound: it is more where branches part, or where a writer did not record the removed bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot

from lithify.protocol.retained import Past
from lithify.watermarks.model import Needed

_REMOVED = "removed-files-size"
_KINDS = {SnapshotRefType.BRANCH: "branch", SnapshotRefType.TAG: "tag"}


def past_of(metadata: TableMetadata | None) -> Past:
    snapshots = [] if metadata is None else metadata.snapshots
    there = {snapshot.snapshot_id for snapshot in snapshots}
    return Past(
        versions=len(snapshots),
        oldest_ms=min((snapshot.timestamp_ms for snapshot in snapshots), default=None),
        only_history_bytes=sum(_removed_bytes(s) for s in snapshots if s.parent_snapshot_id in there),
    )


def freed_bytes(metadata: TableMetadata, going: Set[int]) -> int:
    """Return a lower bound of the bytes that are free once these snapshots have expired."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    children = Counter(snapshot.parent_snapshot_id for snapshot in metadata.snapshots)
    wholly_gone: dict[int | None, bool] = {}

    def goes(snapshot_id: int | None) -> bool:
        """Return whether a snapshot expires together with all its ancestors."""
        path: list[int] = []
        now = snapshot_id
        while now is not None and now in by_id and now not in wholly_gone and now in going:
            path.append(now)
            wholly_gone[now] = True
            now = by_id[now].parent_snapshot_id
        stays = now is not None and now in by_id and not wholly_gone.get(now, False)
        if stays:
            wholly_gone.update(dict.fromkeys([*path, now], False))
        return not stays

    return sum(
        _removed_bytes(snapshot)
        for snapshot in metadata.snapshots
        if snapshot.parent_snapshot_id in by_id
        and children[snapshot.parent_snapshot_id] == 1
        and goes(snapshot.parent_snapshot_id)
    )


def needed_by_refs(metadata: TableMetadata) -> tuple[Needed, ...]:
    """Return the needs of tags and of branches other than `main`: at least their snapshots. It is not known
    since when. Refs to the current snapshot keep no history."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    return tuple(
        Needed(by_id[ref.snapshot_id].timestamp_ms, f"{_KINDS[ref.snapshot_ref_type]} {name}")
        for name, ref in metadata.refs.items()
        if name != MAIN_BRANCH
        and ref.snapshot_id in by_id
        and ref.snapshot_id != metadata.current_snapshot_id
    )


def _removed_bytes(snapshot: Snapshot) -> int:
    if snapshot.summary is None:
        return 0
    text = snapshot.summary.additional_properties.get(_REMOVED, "0")
    return int(text) if text.isdecimal() else 0
