"""The retention policy of a table, exactly as Java Iceberg's `RemoveSnapshots` applies it (pure).

1. A ref expires if its snapshot is older than the ref's `max-ref-age-ms`, else the table's
   `history.expire.max-ref-age-ms` (default: unlimited), or if its snapshot does not exist. `main` never
   expires.
2. Each remaining branch keeps its newest ancestors: the first `min-snapshots-to-keep` (the branch's own, else
   `history.expire.min-snapshots-to-keep`, 1), and further ones up to the first that is older than
   `max-snapshot-age-ms` (the branch's own, else `history.expire.max-snapshot-age-ms`, 5 days).
3. Each remaining tag keeps its snapshot.
4. A snapshot that no remaining ref reaches is kept until it is older than the table's maximum age.
5. All other snapshots expire. With `gc.enabled=false` none does.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot

from lithify.base.errors import Refused
from lithify.datasets.iceberg.format.properties import whole_number
from lithify.datasets.iceberg.format.table_properties import properties_of

MAX_AGE = "history.expire.max-snapshot-age-ms"
MIN_KEPT = "history.expire.min-snapshots-to-keep"
MAX_REF_AGE = "history.expire.max-ref-age-ms"
DEFAULT_MAX_AGE_MS = 5 * 24 * 3_600_000
_MOST = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class TableRetention:
    """The retention settings of a table, at one time."""

    now_ms: int
    older_than_ms: int
    """Older snapshots expire, unless a branch says otherwise."""
    min_kept: int
    max_ref_age_ms: int


@dataclass(frozen=True, slots=True)
class Expirable:
    """The snapshots and refs that the policy expires."""

    snapshots: frozenset[int] = frozenset()
    refs: tuple[str, ...] = ()


def retention_of(
    properties: Mapping[str, str],
    now_ms: int,
    older_than_ms: int | None = None,
    retain_last: int | None = None,
) -> TableRetention:
    """Return the retention by a table's properties; `older_than_ms` and `retain_last` override them. Raise
    `Refused` if one is invalid."""
    age_ms = whole_number(properties, MAX_AGE, DEFAULT_MAX_AGE_MS, 0, _MOST)
    kept = whole_number(properties, MIN_KEPT, 1, 1, _MOST)
    if retain_last is not None:
        if retain_last < 1:
            raise Refused(f"retain-last is {retain_last}; it must be at least 1")
        kept = retain_last
    older_than_ms = now_ms - age_ms if older_than_ms is None else older_than_ms
    return TableRetention(now_ms, older_than_ms, kept, whole_number(properties, MAX_REF_AGE, _MOST, 0, _MOST))


def may_expire(properties: Mapping[str, str]) -> bool:
    """Return whether the table owns its files (`gc.enabled`), so that maintenance may delete them. The
    property is read as Iceberg's own maintenance reads it."""
    return properties.get("gc.enabled", "true").lower() == "true"


def rules_of(metadata: TableMetadata) -> dict[str, Any]:
    """Return all rules about the history: each branch and tag completely, and the properties."""
    properties = properties_of(metadata).items()
    return {
        "refs": {name: ref.model_dump(mode="json") for name, ref in metadata.refs.items()},
        "properties": {k: v for k, v in properties if k == "gc.enabled" or k.startswith("history.expire.")},
    }


def expirable(metadata: TableMetadata, retention: TableRetention) -> Expirable:
    """Return what the policy expires; see the module."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    refs = {name: ref for name, ref in metadata.refs.items() if _ref_stays(metadata, name, by_id, retention)}
    kept: set[int] = set()
    reached: set[int] = set()
    for ref in refs.values():
        if ref.snapshot_ref_type == SnapshotRefType.TAG:
            kept.add(ref.snapshot_id)
            reached.add(ref.snapshot_id)
            continue
        line = ancestors(by_id, ref.snapshot_id)
        reached.update(snapshot.snapshot_id for snapshot in line)
        older_than_ms = (
            retention.older_than_ms
            if ref.max_snapshot_age_ms is None
            else retention.now_ms - ref.max_snapshot_age_ms
        )
        min_kept = retention.min_kept if ref.min_snapshots_to_keep is None else ref.min_snapshots_to_keep
        for n, snapshot in enumerate(line):
            if n >= min_kept and snapshot.timestamp_ms < older_than_ms:
                break
            kept.add(snapshot.snapshot_id)
    for snapshot in metadata.snapshots:
        if snapshot.snapshot_id not in reached and snapshot.timestamp_ms >= retention.older_than_ms:
            kept.add(snapshot.snapshot_id)
    return Expirable(frozenset(by_id.keys() - kept), tuple(sorted(metadata.refs.keys() - refs.keys())))


def low_watermark(metadata: TableMetadata, found: Expirable, now_ms: int) -> int | None:
    """Return the time just after all snapshots that the policy expires and their ancestors; `None` if it
    expires none. An ancestor that is newer, because a clock went back, would otherwise keep its descendant.
    The result is never past the head of `main` or `now_ms`: a newer snapshot on another branch would end all
    holds."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    lines: set[int] = set()
    for snapshot_id in found.snapshots:
        one: int | None = snapshot_id
        while one is not None and one in by_id and one not in lines:
            lines.add(one)
            one = by_id[one].parent_snapshot_id
    times = [by_id[one].timestamp_ms for one in lines]
    if not times:
        return None
    head = metadata.current_snapshot()
    return min(max(times) + 1, now_ms, *([] if head is None else [head.timestamp_ms]))


def position_of(metadata: TableMetadata, snapshot_id: int) -> int:
    """Return the position from which the history is needed to keep a snapshot and its descendants (pure): its
    time, or that of an older descendant where a clock went back."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    kept = and_descendants(metadata, {snapshot_id})
    return min(by_id[one].timestamp_ms for one in kept)


def and_descendants(metadata: TableMetadata, snapshots: Set[int]) -> frozenset[int]:
    """Return these snapshots and all their descendants in the table (pure)."""
    parents = {s.snapshot_id: s.parent_snapshot_id for s in metadata.snapshots}
    kept = set(snapshots & parents.keys())
    others: set[int] = set()
    for snapshot_id in parents:
        path: list[int] = []
        now: int | None = snapshot_id
        while now is not None and now in parents and now not in kept and now not in others:
            path.append(now)
            others.add(now)
            now = parents[now]
        if now in kept:
            kept.update(path)
            others.difference_update(path)
    return frozenset(kept)


def ancestors(by_id: Mapping[int, Snapshot], snapshot_id: int | None) -> list[Snapshot]:
    """Return a snapshot and its known ancestors, the newest first."""
    line: list[Snapshot] = []
    seen: set[int] = set()
    while snapshot_id is not None and snapshot_id in by_id and snapshot_id not in seen:
        seen.add(snapshot_id)
        line.append(by_id[snapshot_id])
        snapshot_id = by_id[snapshot_id].parent_snapshot_id
    return line


def _ref_stays(
    metadata: TableMetadata, name: str, by_id: Mapping[int, Snapshot], retention: TableRetention
) -> bool:
    ref = metadata.refs[name]
    if name == MAIN_BRANCH:
        return True
    if ref.snapshot_id not in by_id:
        return False
    max_age_ms = retention.max_ref_age_ms if ref.max_ref_age_ms is None else ref.max_ref_age_ms
    return retention.now_ms - by_id[ref.snapshot_id].timestamp_ms <= max_age_ms
