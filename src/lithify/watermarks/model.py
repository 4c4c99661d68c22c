"""What a history is cut off by: who still needs it, from where on, and how far it was said to be free.

A *position* is a place in a history: a number that only grows, such as milliseconds, an offset or a
version. Nothing here knows a dataset, a store or a clock. Snapshots of tables, tombstones of keyed logs and
versions of a catalog are cut off by the same rules.

| who            | may                              | only if                                              |
|----------------|----------------------------------|------------------------------------------------------|
| a holder       | put a hold                       | it then reads the threshold, and gives up its hold   |
|                |                                  | where that is past it (`admits`)                     |
| a holder       | renew its hold                   | it is its own; if it had lapsed, then as when it was |
|                |                                  | put                                                  |
| a member       | raise its mark                   | what is below is done for good, as it will be after  |
|                |                                  | a crash, and in this incarnation (`raised`)          |
| the leader     | raise the threshold              | no required mark is missing, to at most the least    |
|                |                                  | needed and the low watermark; never down             |
|                |                                  | (`collect`, `next_threshold`)                        |
| the leader     | cut off                          | below the threshold it has published, and below what |
|                |                                  | is needed as it was listed after that (`cut`)        |
| the leader     | remove a hold                    | it has lapsed, and the threshold is past it          |
|                |                                  | (`is_over`): its holder cannot renew it any more     |
| a person       | add or drop a member, drop a hold | always; a member is added like a hold is put         |
| who comes new  | join a group with what it has    | no threshold is past it (`groups.passed`)            |
| who comes new  | join a group with nothing        | it adopts the thresholds as its marks, and copies    |
|                |                                  | only from what is as clean (`groups.is_source`)      |
| a copy         | keep what it has copied          | it is a member, in this incarnation, by what it      |
|                |                                  | reads after that                                     |
| a member of a  | remove                           | below the threshold, and below the least of all      |
| group          |                                  | marks, which it reckons itself (`groups.bound`)      |
| a group's      | publish                          | on top of the version before, if that has its epoch, |
| leader         |                                  | for the members in it (`groups.published`)           |

Invariants:

1. A threshold never goes down, whoever publishes it, in whatever order.
2. A threshold is never past a mark of a required member, or past a hold that has not lapsed, of those that
   were listed for it.
3. A required member whose mark is missing, or not known in its present incarnation, keeps the threshold where
   it is. Nobody is left out because he is slow.
4. Nothing at or past the position of a hold that was admitted is cut off before the hold lapses or is given
   up, in any interleaving of its holder and of any number of leaders. Nobody is asked: the holder puts and
   then reads, the leader publishes and then lists.
5. A lapsed hold keeps nothing.
6. Of a group (`groups`): what is below a threshold may be removed for ever, by a copy that is done with it
   itself. Who joins later has it, or what came of it, or copies only from who has.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class BlockReason(StrEnum):
    """Why nothing is cut off."""

    MISSING_MEMBER = "what a member needs cannot be told"
    UNPUBLISHED = "a member has not said yet what it needs"
    NO_WATERMARK = "the policy lets nothing go"
    NOTHING_TO_DO = "all that the policy lets go is gone"
    HELD = "somebody needs all that the policy lets go"


@dataclass(frozen=True, slots=True)
class GroupMember:
    """Somebody whose mark is required."""

    name: str
    incarnation: str = ""
    """Another one when it lost what it knew: the marks it made before count no more."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What a member says: below this position it is done."""

    member: GroupMember
    position: int | None
    """`None`: it has not said so yet."""


@dataclass(frozen=True, slots=True)
class Hold:
    """What somebody says: from this position on I still need everything."""

    name: str
    owner: str
    position: int
    since_ms: int
    until_ms: int | None = None
    """When it lapses unless it is renewed, by the clock of where it lies; `None`: never by itself."""

    def has_lapsed(self, now_ms: int) -> bool:
        return self.until_ms is not None and now_ms >= self.until_ms


@dataclass(frozen=True, slots=True)
class Needed:
    """From where on a history is needed, and who needs the oldest of it."""

    position: int
    by: str
    since_ms: int | None = None
    """Since when; `None` when nobody knows."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """How far a history was said to be free."""

    position: int
    least: Needed | None = None
    """The oldest that anybody needed when it was last looked at; `None` when nobody needed anything."""
