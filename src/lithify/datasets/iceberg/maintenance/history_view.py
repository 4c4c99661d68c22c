"""Views of a table's history: holds, readers, expiries and orphan files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lithify.coordination.holds import Placed
from lithify.datasets.iceberg.maintenance.expire import DONE, NEWER, Expiry, ExpiryOutcome, Outlook
from lithify.datasets.iceberg.maintenance.orphans import Orphans
from lithify.datasets.iceberg.maintenance.reachable import FileKind
from lithify.datasets.iceberg.maintenance.readers import ReaderNeed
from lithify.datasets.iceberg.maintenance.snapshot_pins import SNAPSHOT
from lithify.views import text
from lithify.views.blocks import Alarm, Block, Line, Shown, Table, columns, notes
from lithify.watermarks.model import Needed

_UNKNOWN = frozenset(
    {
        ExpiryOutcome.MISSING_READER,
        ExpiryOutcome.UNPUBLISHED,
        ExpiryOutcome.NO_WATERMARK,
        ExpiryOutcome.STATE_LOST,
    }
)
"""Outcomes where the needs are not known."""


def needed_json(needed: Needed) -> dict[str, Any]:
    """Return a need as a JSON value."""
    return {"by": needed.by, "since_ms": needed.since_ms, "from_ms": needed.position}


def show_needed(needed: Needed) -> str:
    """Return a need as text."""
    since = "" if needed.since_ms is None else f", since {text.moment(needed.since_ms)}"
    return f"{needed.by}: from {text.moment(needed.position)} on{since}"


def hold_json(placed: Placed) -> dict[str, Any]:
    """Return a hold as a JSON value."""
    hold = placed.hold
    return {
        "name": hold.name,
        "owner": hold.owner,
        SNAPSHOT: placed.about.get(SNAPSHOT),
        "position_ms": hold.position,
        "since_ms": hold.since_ms,
        "lease_ms": placed.lease_ms,
        "until_ms": hold.until_ms,
    }


def show_hold(url: str, placed: Placed) -> Shown:
    """Show a hold that was placed or renewed."""
    snapshot, until = placed.about.get(SNAPSHOT), text.moment(placed.hold.until_ms)
    written = text.moment(placed.hold.position)
    lines = (
        Line(f"Snapshot {snapshot} of {written}, and all later ones, are kept until {until}."),
        Line(f"Renew: lithify hold --renew {placed.name} {url}"),
        Line(f"Release: lithify hold --release {placed.name} {url}"),
    )
    return Shown({"url": url, "hold": hold_json(placed)}, (Line("", f"Hold {placed.name}"), *lines))


def show_holds(url: str, holds: Sequence[Placed]) -> Shown:
    """Show all holds, the oldest first."""
    found = sorted(holds, key=lambda placed: (placed.hold.position, placed.name))
    block: Block = Line("There are no holds.")
    if found:
        rows = [
            (
                placed.name,
                placed.hold.owner,
                str(placed.about.get(SNAPSHOT)),
                text.moment(placed.hold.position),
                text.moment(placed.hold.since_ms),
                text.moment(placed.hold.until_ms),
            )
            for placed in found
        ]
        block = Table("Holds", columns("name", "owner", "snapshot", "of", "since", "until"), rows, of="holds")
    return Shown({"url": url, "holds": [hold_json(placed) for placed in found]}, (block,))


def show_readers(url: str, standings: Sequence[ReaderNeed]) -> Shown:
    """Show readers and their positions."""
    documents, rows = [], []
    for standing in standings:
        reader, oldest = standing.reader, standing.oldest
        documents.append(
            {
                "name": reader.name,
                "checkpoint": reader.checkpoint,
                "continuous": reader.continuous,
                "needs_snapshot_id": None if oldest is None else oldest.snapshot_id,
                "needs_ms": None if oldest is None else oldest.timestamp_ms,
                "problem": None if standing.reason is None else standing.why,
            }
        )
        stands = "the beginning"
        if oldest is not None:
            stands = f"{oldest.snapshot_id} of {text.moment(oldest.timestamp_ms)}"
        rows.append(
            (
                reader.name,
                reader.checkpoint,
                "continuous" if reader.continuous else "any",
                stands if standing.reason is None else Alarm(standing.why),
            )
        )
    block: Block = Line("No readers are registered.")
    if rows:
        block = Table("Readers", columns("name", "checkpoint", "runs", "needs snapshot"), rows, of="readers")
    return Shown({"url": url, "readers": documents}, (block,))


def show_dropped(url: str, name: str) -> Shown:
    """Show that a reader was dropped."""
    return Shown(
        {"url": url, "dropped": name}, (Line(f"Reader {name} was dropped, and no longer keeps history."),)
    )


def show_expiry(url: str, found: Expiry, grace_ms: int) -> Shown:
    """Show what a run expired and deleted, or would; what blocks it; what waits."""
    files, size_bytes = found.would_delete
    document = {
        "url": url,
        "dry_run": found.dry_run,
        "outcome": found.outcome.value,
        "why": found.why,
        "snapshots": found.snapshots,
        "expired_snapshots": list(found.expired),
        "expired_refs": list(found.refs),
        "kept_snapshots": found.kept,
        "needed": [needed_json(needed) for needed in found.needed],
        "low_watermark_ms": found.watermark_ms,
        **{f"deleted_{kind.value}_count": found.deleted[kind] for kind in FileKind},
        "deleted_bytes": found.deleted_bytes,
        "would_delete_files": files,
        "would_delete_bytes": size_bytes,
        "pending_files": sum(entry.files for entry in found.pending),
        "pending_bytes": sum(entry.size_bytes for entry in found.pending),
        "notes": list(found.notes),
    }
    blocks: list[Block] = [_outcome(found)]
    if found.kept:
        holders = ", ".join(f"{needed.by} from {text.moment(needed.position)}" for needed in found.needed[:5])
        why = f"needed by {holders}" if holders else NEWER
        blocks.append(Line(f"{found.kept} snapshots that can expire by the policy are kept: {why}."))
    if found.dry_run:
        blocks.append(Line(f"{files:,} files ({text.size(size_bytes)}) would no longer be needed."))
    deleted = sum(found.deleted.values())
    if deleted:
        counts = ", ".join(
            f"{count:,} {kind.value.replace('_', ' ')}" for kind, count in sorted(found.deleted.items())
        )
        blocks.append(Line(f"Deleted {deleted:,} files ({text.size(found.deleted_bytes)}): {counts}."))
    going = [entry for entry in found.pending if not entry.blocked]
    if going:
        waiting = sum(entry.files for entry in going)
        waiting_bytes = sum(entry.size_bytes for entry in going)
        grace_ms = max(grace_ms, *(entry.grace_ms for entry in going))
        blocks.append(
            Line(
                f"{waiting:,} files ({text.size(waiting_bytes)}) are kept for {text.duration(grace_ms)}, "
                "because readers may still use them; run this again after that."
            )
        )
    return Shown(document, (*blocks, notes(found.notes)))


def show_orphans(url: str, found: Orphans) -> Shown:
    """Show orphan files, and whether they were deleted."""
    document = {
        "url": url,
        "dry_run": found.dry_run,
        "older_than_ms": found.older_than_ms,
        "listed_files_count": found.listed,
        "listed_bytes": found.listed_bytes,
        "orphan_files_count": found.found,
        "orphan_bytes": found.found_bytes,
        "deleted_orphan_files_count": found.deleted,
        "deleted_bytes": found.deleted_bytes,
        "orphan_file_locations": found.paths,
        "notes": list(found.notes),
    }
    listed = f"{found.listed:,} files ({text.size(found.listed_bytes)}) are under the table's location"
    before = text.moment(found.older_than_ms)
    if not found.found:
        nothing = Line(f"{listed}; none that is older than {before} is an orphan.")
        return Shown(document, (nothing, notes(found.notes)))
    deleted = f"Deleted {found.deleted:,} files ({text.size(found.deleted_bytes)})."
    blocks = (
        Table("Orphan files", columns("path"), [(path,) for path in found.paths], of="files"),
        Line(f"{listed}; {found.found:,} ({text.size(found.found_bytes)}) are orphans older than {before}."),
        Line("Nothing was deleted; add --delete to delete these files." if found.dry_run else deleted),
        notes(found.notes),
    )
    return Shown(document, blocks)


def outlook_json(found: Outlook) -> dict[str, Any]:
    """Return the outlook of an expiry as a JSON value."""
    return {
        "outcome": found.outcome.value,
        "why": found.why,
        "snapshots": found.versions,
        "expirable_snapshots": found.going,
        "expirable_bytes": found.going_bytes,
        "kept_snapshots": found.staying,
        "kept_bytes": found.staying_bytes,
        "needed": [needed_json(needed) for needed in found.needed],
    }


def show_outlook(found: Outlook) -> tuple[Block, ...]:
    """Show what would expire, and what stays, for whom, since when."""
    rows = []
    if found.going:
        rows.append(("can expire", f"{found.going:,}", f"≥ {text.size(found.going_bytes)}", ""))
    if found.staying:
        is_known = found.outcome not in _UNKNOWN
        why = f"the newest {found.min_kept:,} are always kept" if is_known and not found.needed else ""
        rows.append(("old, but kept", f"{found.staying:,}", f"≥ {text.size(found.staying_bytes)}", why))
    rows += [("", "", "", show_needed(needed)) for needed in found.needed[: text.MAX_SHOWN]]
    if not found.going and not found.staying:
        return (
            Line(f"None of the {found.versions:,} snapshots of the table's history is old enough to expire."),
        )
    blocked: tuple[Block, ...] = ()
    if found.outcome not in (ExpiryOutcome.EXPIRED, ExpiryOutcome.NOTHING_TO_DO, ExpiryOutcome.HELD):
        blocked = (Line(found.why, "Nothing can expire:", is_bad=True),)
    title = f"History: {found.versions:,} snapshots"
    return (Table(title, columns("", ">snapshots", ">bytes", "needed by"), rows), *blocked)


def _outcome(found: Expiry) -> Line:
    done = text.count(len(found.expired), "snapshot")
    if found.refs:
        done += f" and {text.count(len(found.refs), 'branch or tag', 'branches or tags')}"
    if found.outcome is ExpiryOutcome.EXPIRED:
        verb = "would be expired" if found.dry_run else "expired"
        are = "is" if found.snapshots == 1 else "are"
        return Line(f"{done} {verb}; {found.snapshots} {are} left.")
    if found.outcome is ExpiryOutcome.NOTHING_TO_DO:
        return Line(f"Nothing to expire; the table has {text.count(found.snapshots, 'snapshot')}.")
    if found.outcome is ExpiryOutcome.REF_LOST:
        return Line(f"{done} expired, but {found.why}.", "Ref lost:", is_bad=True)
    if found.outcome is ExpiryOutcome.NOT_ALONE:
        verb = "would be expired" if found.dry_run else "expired"
        return Line(f"{done} {verb}, but no file is deleted: {found.why}.", "Not alone:", is_bad=True)
    lead = found.outcome.value.replace("_", " ").capitalize()
    return Line(f"{found.why}. Nothing was expired.", f"{lead}:", is_bad=found.outcome not in DONE)
