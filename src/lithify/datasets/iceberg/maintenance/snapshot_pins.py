"""All needs that pin snapshots of a table, in one collection.

| user                           | needs                                                                    |
|--------------------------------|--------------------------------------------------------------------------|
| a hold                         | its snapshot, and all later ones                                         |
| a registered reader            | its position, and all later ones (`readers`)                             |
| an active compaction of ours   | the snapshot it was planned on: it is read, and compared when it commits |
| a branch, a tag                | see `expiry_policy`; they are in the table itself                        |

Positions are the times of snapshots. A table's clock may go back a little between two commits, so the
snapshots after another are also determined by ancestry (`and_descendants`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from lithify.coordination.holds import Placed
from lithify.datasets.iceberg.maintenance.expiry_policy import ancestors, position_of
from lithify.datasets.iceberg.maintenance.readers import ReaderNeed
from lithify.datasets.iceberg.model import IcebergLedger
from lithify.watermarks.model import BlockReason, GroupMember, Hold, Mark, Needed
from lithify.watermarks.rules import Collected, collect, live

SNAPSHOT = "snapshot_id"
"""The key of a hold's snapshot in `Placed.about`."""


@dataclass(frozen=True, slots=True)
class Needs:
    """The collected needs of a table."""

    collected: Collected
    snapshots: frozenset[int]
    """Needed snapshots; all later ones are needed too."""
    by: tuple[Needed, ...]
    """All needs with their owners, the oldest first."""
    why: str = ""
    """Why the position of a reader is unknown; empty if all are known."""


def collect_needs(
    metadata: TableMetadata,
    holds: Sequence[Placed],
    standings: Sequence[ReaderNeed],
    ledger: IcebergLedger | None,
    now_ms: int,
) -> Needs:
    """Return the collected needs (pure); `now_ms` is by the clock of the store that has the holds."""
    marks = [_mark(standing, metadata) for standing in standings]
    required = [mark.member for mark in marks if mark is not None]
    required += [GroupMember(_reader(standing)) for standing in standings if standing.reason is not None]
    said = [mark for mark in marks if mark is not None]
    said += [Mark(GroupMember(_reader(s)), None) for s in standings if s.reason is BlockReason.UNPUBLISHED]
    active = _active(metadata, ledger)
    all_holds = [*(replace(p.hold, name=f"hold {p.name} of {p.hold.owner}") for p in holds), *active.values()]
    collected = collect(required, said, all_holds, now_ms)
    by = [Needed(m.position, m.member.name) for m in said if m.position is not None]
    by += [Needed(hold.position, hold.name, hold.since_ms) for hold in live(all_holds, now_ms)]
    snapshots = {p.about.get(SNAPSHOT) for p in holds if not p.hold.has_lapsed(now_ms)}
    snapshots |= {snapshot for standing in standings for snapshot in standing.snapshots}
    return Needs(
        collected,
        frozenset(s for s in snapshots if isinstance(s, int)) | active.keys(),
        tuple(sorted(by, key=lambda one: (one.position, one.by))),
        next((f"{_reader(s)}: {s.why}" for s in standings if _reader(s) == collected.by), ""),
    )


def is_of_reader(by: str, name: str) -> bool:
    """Return whether `by` is the name of this reader's need."""
    return by == f"reader {name}"


def _reader(standing: ReaderNeed) -> str:
    return f"reader {standing.reader.name}"


def _mark(standing: ReaderNeed, metadata: TableMetadata) -> Mark | None:
    if standing.reason is not None:
        return None
    times = [position_of(metadata, snapshot) for snapshot in standing.snapshots]
    # A reader at the beginning of an empty table needs all future snapshots.
    return Mark(GroupMember(_reader(standing)), min(times, default=0))


def _active(metadata: TableMetadata, ledger: IcebergLedger | None) -> dict[int, Hold]:
    """Return holds for Lithify's compactions, by the snapshot they were planned on."""
    found: dict[int, Hold] = {}
    for compaction in ledger.active() if ledger is not None else ():
        snapshot = metadata.snapshot_by_id(compaction.spec.snapshot_id)
        if snapshot is not None:
            name = f"compaction {compaction.id}"
            position = position_of(metadata, snapshot.snapshot_id)
            found[snapshot.snapshot_id] = Hold(name, "", position, snapshot.timestamp_ms)
    return found


def snapshot_at(metadata: TableMetadata, at_ms: int) -> Snapshot | None:
    """Return the snapshot that was current at a time, by the table's log (pure); `None` if that is uncertain.
    Expired snapshots are missing from the log, so an entry is certain only if the next one is surely its
    successor: a descendant, or any if no snapshot was ever expired."""
    log = metadata.snapshot_log
    place = next((n for n in reversed(range(len(log))) if log[n].timestamp_ms <= at_ms), None)
    if place is None:
        return None
    found, by_id = log[place].snapshot_id, {s.snapshot_id: s for s in metadata.snapshots}
    if place + 1 == len(log):
        is_whole = found == metadata.current_snapshot_id
    else:
        following = log[place + 1].snapshot_id
        line = {s.snapshot_id for s in ancestors(by_id, following)}
        is_whole = found != following and found in line
    is_whole = is_whole or len({s.sequence_number for s in by_id.values()}) == getattr(
        metadata, "last_sequence_number", None
    )
    return by_id.get(found) if is_whole else None
