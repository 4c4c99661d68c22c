"""What there is to show of a table's history: holds and readers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from pyiceberg.table.metadata import TableMetadata

from lithify.coordination.holds import Placed
from lithify.datasets.iceberg.needs import SNAPSHOT
from lithify.datasets.iceberg.readers import Reader, Standing, time_of
from lithify.views.blocks import Alarm, Block, Line, Shown, Table, columns


def at(time_ms: int | None) -> str:
    """A time for people."""
    if time_ms is None:
        return "–"
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"


def hold_json(placed: Placed) -> dict[str, Any]:
    """A hold as a JSON value."""
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
    """A hold that was put or renewed."""
    snapshot, until = placed.about.get(SNAPSHOT), at(placed.hold.until_ms)
    lines = (
        Line(f"Snapshot {snapshot} of {at(placed.hold.position)}, and all after it, stay until {until}."),
        Line(f"Renew it: lithify hold --renew {placed.name} {url}"),
        Line(f"Give it up: lithify hold --release {placed.name} {url}"),
    )
    return Shown({"url": url, "hold": hold_json(placed)}, (Line("", f"Hold {placed.name}"), *lines))


def show_holds(url: str, holds: Sequence[Placed]) -> Shown:
    """All holds, the oldest first."""
    found = sorted(holds, key=lambda placed: (placed.hold.position, placed.name))
    block: Block = Line("Nothing is held.")
    if found:
        rows = [
            (
                placed.name,
                placed.hold.owner,
                str(placed.about.get(SNAPSHOT)),
                at(placed.hold.position),
                at(placed.hold.since_ms),
                at(placed.hold.until_ms),
            )
            for placed in found
        ]
        block = Table("Holds", columns("name", "owner", "snapshot", "of", "since", "until"), rows, of="holds")
    return Shown({"url": url, "holds": [hold_json(placed) for placed in found]}, (block,))


def show_readers(url: str, metadata: TableMetadata, standings: Sequence[Standing]) -> Shown:
    """Readers, and where they stand."""
    documents, rows = [], []
    for standing in standings:
        reader = standing.reader
        oldest = min(standing.snapshots, key=lambda s: time_of(metadata, s), default=None)
        time_ms = None if oldest is None else time_of(metadata, oldest)
        documents.append(
            {
                "name": reader.name,
                "checkpoint": reader.checkpoint,
                "continuous": reader.continuous,
                "needs_snapshot_id": oldest,
                "needs_ms": time_ms,
                "problem": None if standing.reason is None else standing.why,
            }
        )
        stands = f"{oldest} of {at(time_ms)}" if oldest is not None else "the beginning"
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
        block = Table(
            "Readers", columns("name", "~checkpoint", "runs", "~needs snapshot"), rows, of="readers"
        )
    return Shown({"url": url, "readers": documents}, (block,))


def show_dropped(url: str, reader: Reader) -> Shown:
    """A reader that is not waited for any more."""
    text = f"Reader {reader.name} ({reader.checkpoint}) is not waited for any more."
    return Shown({"url": url, "dropped": reader.name}, (Line(text),))
