"""How much history a table has, and what expiring some of it would free (pure): by the summaries of the
snapshots alone, so that it costs nothing however many files there are.

1. What a snapshot removed is still there for the one before it.
2. So when that one goes, and with it all that it descends from, and no other descends from it, these files
   are needed by nobody any more. That is the least that an expiry gives back; where branches part, or where a
   writer says nothing of what it removed, it is more.
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
    """How much there is."""
    snapshots = [] if metadata is None else metadata.snapshots
    there = {snapshot.snapshot_id for snapshot in snapshots}
    return Past(
        versions=len(snapshots),
        oldest_ms=min((snapshot.timestamp_ms for snapshot in snapshots), default=None),
        only_history_bytes=sum(_removed_bytes(s) for s in snapshots if s.parent_snapshot_id in there),
    )


def freed_bytes(metadata: TableMetadata, going: Set[int]) -> int:
    """What would be needed by nobody once these snapshots are gone, at the least."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    children = Counter(snapshot.parent_snapshot_id for snapshot in metadata.snapshots)
    wholly_gone: dict[int | None, bool] = {}

    def goes(snapshot_id: int | None) -> bool:
        """Whether it goes with all that it descends from."""
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
    """What tags and other branches than `main` need at the least: the snapshots they name. Nobody knows since
    when. Those of the newest snapshot keep no history."""
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
