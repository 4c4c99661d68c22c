"""Marks, holds and thresholds: how far a history may be expired.

A *position* is a place in a history: a number that only grows, such as milliseconds, an offset or a
version. Snapshots of tables, tombstones of keyed logs and versions of a catalog expire by the same rules, so
this module knows no dataset, store or clock.

| role           | may                            | only if                                                |
|----------------|--------------------------------|--------------------------------------------------------|
| holder         | create a hold                  | it then reads the threshold, and deletes its hold if   |
|                |                                | the threshold is past it (`admits`)                    |
| holder         | renew its hold                 | the hold is its own; an expired one is renewed like a  |
|                |                                | new one is created                                     |
| member         | raise its mark                 | all work below it is done, durably, in this            |
|                |                                | incarnation (`raised`)                                 |
| leader         | raise the threshold            | no required mark is missing, to at most the least      |
|                |                                | needed position and the low watermark; never down      |
|                |                                | (`collect`, `next_threshold`)                          |
| leader         | expire history                 | below its published threshold, and below all needed    |
|                |                                | positions listed after publishing (`cut`)              |
| leader         | delete a hold                  | it has expired and the threshold is past it            |
|                |                                | (`is_over`), so that its holder cannot renew it        |
| operator       | add or drop a member,          | always; a member is added like a hold is created       |
|                | drop a hold                    |                                                        |
| new member     | join a group with its data     | no threshold is past them (`groups.passed`)            |
| new member     | join a group without data      | it adopts the thresholds as its marks, and copies only |
|                |                                | from sources as clean as these (`groups.is_source`)    |
| copy           | keep copied data               | a read after copying shows it as a member, in this     |
|                |                                | incarnation                                            |
| group member   | remove                         | below the threshold, and below the least of all marks, |
|                |                                | which it computes itself (`groups.bound`)              |
| group leader   | publish                        | on top of the previous version, if that has its epoch, |
|                |                                | for that version's members (`groups.published`)        |

Invariants:

1. A threshold never goes down, whatever the order of publishers.
2. A threshold is never past the mark of a required member or past an unexpired hold, as listed for it.
3. A required member whose mark is missing, or unknown in its present incarnation, blocks the threshold. Slow
   members are not left out.
4. No history at or past the position of an admitted hold is expired before the hold expires or is deleted,
   in any interleaving of its holder and of any number of leaders. This needs no locks: the holder creates and
   then reads, the leader publishes and then lists.
5. An expired hold keeps nothing.
6. In a group (`groups`), a copy may remove everything below a threshold for ever once it is done with it
   itself. A member that joins later has these records or their result, or copies only from such members.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lithify.base.documents import Count


class BlockReason(StrEnum):
    """Why no history expires."""

    MISSING_MEMBER = "a member's needs are unknown"
    UNPUBLISHED = "a member has not published its needs yet"
    NO_WATERMARK = "the policy lets nothing expire"
    NOTHING_TO_DO = "everything that the policy lets expire has expired"
    HELD = "everything that the policy lets expire is still needed"


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A party whose mark is required."""

    name: str
    incarnation: str = ""
    """Changes when the member loses its state; marks of earlier incarnations do not count."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A member's report that it is done with everything below a position."""

    member: GroupMember
    position: int | None
    """`None`: not reported yet."""


@dataclass(frozen=True, slots=True)
class Hold:
    """A holder's claim that it needs everything from a position on."""

    name: str
    owner: str
    position: int
    since_ms: int
    until_ms: int | None = None
    """When it expires unless renewed, by the clock of the store that contains it; `None`: never."""

    def has_lapsed(self, now_ms: int) -> bool:
        return self.until_ms is not None and now_ms >= self.until_ms


@dataclass(frozen=True, slots=True)
class Needed:
    """The oldest needed position of a history, and the member or hold that needs it."""

    position: Count
    by: str
    since_ms: Count | None = None
    """`None` if unknown."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """The published position below which a history may be expired."""

    position: Count
    least: Needed | None = None
    """The oldest needed position at the last check; `None` if there was none."""
