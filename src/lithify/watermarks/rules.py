"""The rules of `model`, as functions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from lithify.watermarks.model import BlockReason, GroupMember, Hold, Mark, Needed, Threshold


@dataclass(frozen=True, slots=True)
class Collected:
    """The oldest position needed by members and holds."""

    least: Needed | None = None
    """`None` if nothing is needed."""
    reason: BlockReason | None = None
    """Why the oldest is unknown; then `least` is the oldest known one."""
    by: str = ""
    """The member whose mark is missing."""


def raised(old: Mark | None, new: Mark) -> Mark:
    """Return a member's mark after a new report. Within an incarnation it never goes down."""
    if old is None or old.member != new.member or old.position is None:
        return new
    return old if new.position is None or new.position < old.position else new


def live(holds: Iterable[Hold], now_ms: int) -> tuple[Hold, ...]:
    """Return the unexpired holds."""
    return tuple(hold for hold in holds if not hold.has_lapsed(now_ms))


def admits(threshold: Threshold | None, position: int) -> bool:
    """Return whether a hold at a position is valid, given the threshold read after the hold was created."""
    return threshold is None or threshold.position <= position


def is_over(hold: Hold, threshold: Threshold | None, now_ms: int) -> bool:
    """Return whether a hold may be deleted: it has expired and cannot be renewed any more."""
    return hold.has_lapsed(now_ms) and not admits(threshold, hold.position)


def collect(
    required: Collection[GroupMember], marks: Iterable[Mark], holds: Iterable[Hold], now_ms: int
) -> Collected:
    """Return the oldest position that required members and live holds need. Other marks do not count."""
    known: dict[GroupMember, Mark] = {}
    for mark in marks:
        if mark.member in required:
            known[mark.member] = raised(known.get(mark.member), mark)
    needed = [Needed(m.position, m.member.name) for m in known.values() if m.position is not None]
    needed += [Needed(hold.position, hold.name, hold.since_ms) for hold in live(holds, now_ms)]
    least = min(needed, key=lambda one: (one.position, one.by), default=None)
    return Collected(least, *_missing(required, known))


def _missing(
    required: Collection[GroupMember], known: Mapping[GroupMember, Mark]
) -> tuple[BlockReason | None, str]:
    for member in sorted(required, key=lambda member: member.name):
        if member not in known:
            return BlockReason.MISSING_MEMBER, member.name
    for member in sorted(required, key=lambda member: member.name):
        if known[member].position is None:
            return BlockReason.UNPUBLISHED, member.name
    return None, ""


def next_threshold(
    published: Threshold | None, low_watermark: int | None, collected: Collected
) -> Threshold | None:
    """Return the threshold to publish: the policy's low watermark or the oldest needed position, whichever is
    lower, but never below the published threshold. Unchanged if the oldest is unknown; `None` if nothing was
    published either."""
    position = None if published is None else published.position
    if collected.reason is None and low_watermark is not None:
        free = low_watermark if collected.least is None else min(low_watermark, collected.least.position)
        position = free if position is None else max(position, free)
    return None if position is None else Threshold(position, collected.least)


def cut(published: Threshold | None, low_watermark: int | None, collected: Collected) -> int | BlockReason:
    """Return the position below which a leader may expire history, or why it may not. `collected` must have
    been read after `published` was published. `low_watermark` lies just past the history that the policy
    expires; `None` if it expires nothing."""
    if collected.reason is not None:
        return collected.reason
    if low_watermark is None:
        return BlockReason.NOTHING_TO_DO
    if published is None:
        return BlockReason.NO_WATERMARK
    free = min(published.position, low_watermark)
    return free if collected.least is None else min(free, collected.least.position)
