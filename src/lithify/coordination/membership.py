"""How a copy or a reader becomes a member of a group and stays one, whatever it keeps (`groups`).

1. Read what it has said in the incarnation it has, *then* what it has. Does it have less, it lost something.
2. Who has lost something, or is no member, takes a new incarnation, written down with what it has, and joins
   with that. If that comes too late it gives up what it has, in another new incarnation, and joins with
   nothing.
3. Who has nothing writes down the marks that it has adopted before it gets anything: it relies on them, and
   so does whoever restores it from a backup.
4. What it got after that counts only if it is a member still when it has got it (`is_still`). That is up to
   whoever copies or reads: Lithify gets nothing from other members, a log that it compacts was copied by
   somebody else. So only those that the simulator plays ask it (`simulator.groups`).

Each step is one write on condition of what was read. Who dies between two of them begins again with what is
there. Whoever puts a backup in place of what a member has stops its processes first: one that sleeps could
say later what was so before.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from lithify.coordination.groups import GroupFiles, TooLate, check_owner
from lithify.watermarks.groups import GroupRole, Marks, PartitionStanding, adopted, lost
from lithify.watermarks.model import GroupMember

_log = logging.getLogger("lithify")


@dataclass(frozen=True, slots=True)
class Kept:
    """What a member has, as it was read at once."""

    incarnation: str
    standings: Mapping[int, PartitionStanding]
    """By partition."""

    def is_in(self, now: Kept) -> bool:
        """Whether it is the same incarnation, and has lost nothing since."""
        return now.incarnation == self.incarnation and lost(self.standings, now.standings) is None


class MemberStateStore(Protocol):
    """What keeps it. Each change is made in one step, on condition that what was read is in it still
    (`Kept.is_in`); `False` when it is not."""

    def read(self) -> Kept: ...

    def renew(self, before: Kept, incarnation: str) -> bool:
        """Take another incarnation, and keep the rest."""
        ...

    def empty(self, before: Kept, incarnation: str) -> bool:
        """Give up all that is kept, and take another incarnation. It may refuse: then a person has to."""
        ...

    def adopt(self, before: Kept, marks: Mapping[int, Marks]) -> bool:
        """Keep these marks, in partitions of which there is nothing so far."""
        ...


class EntryStep(StrEnum):
    """What came of one step."""

    MEMBER = "is a member"
    JOINED = "joins with what it has"
    JOINED_EMPTY = "joins with nothing"
    ADOPTED = "adopts the thresholds"
    CHANGED = "was changed meanwhile"


class Membership:
    """The place of one copy or reader in a group."""

    def __init__(
        self, files: GroupFiles, name: str, role: GroupRole, keeper: MemberStateStore, owner: str = ""
    ) -> None:
        """`owner`: what it is, as a URL; empty where nobody could take another for it."""
        self._files = files
        self._name = name
        self._role = role
        self._keeper = keeper
        self._owner = owner

    def enter(self) -> tuple[EntryStep, GroupMember]:
        """Do what has to be done first, one step of it: call again until it is a member. Then it may go on,
        in this incarnation. `Refused` when the name is another's."""
        member = GroupMember(self._name, self._keeper.read().incarnation)
        before = self._files.said(member)
        kept = self._keeper.read()
        if kept.incarnation != member.incarnation:
            return EntryStep.CHANGED, member
        group = self._files.read()
        check_owner(group, self._name, self._owner)
        mine = group.find(member)
        partition = lost(before, kept.standings)
        if partition is not None:
            _log.warning(
                "%s %s has less of partition %d than it said: it was restored or made anew, and joins again",
                self._role,
                self._name,
                partition,
            )
        if mine is None or partition is not None:
            return self._join(kept)
        new = adopted(mine.marks, kept.standings)
        if new:
            is_done = self._keeper.adopt(kept, new)
            return (EntryStep.ADOPTED if is_done else EntryStep.CHANGED), member
        return EntryStep.MEMBER, member

    def is_still(self, member: GroupMember) -> bool:
        """Whether what was read before this counts."""
        return self._files.read().find(member) is not None

    def _join(self, kept: Kept) -> tuple[EntryStep, GroupMember]:
        member = GroupMember(self._name, self._files.new_incarnation())
        if not self._keeper.renew(kept, member.incarnation):
            return EntryStep.CHANGED, member
        ends = {partition: standing.end for partition, standing in kept.standings.items()}
        try:
            self._files.join(member, self._role, ends, self._owner)
        except TooLate as error:
            _log.warning("%s", error)
            return self._join_empty(Kept(member.incarnation, kept.standings))
        return EntryStep.JOINED, member

    def _join_empty(self, kept: Kept) -> tuple[EntryStep, GroupMember]:
        member = GroupMember(self._name, self._files.new_incarnation())
        if not self._keeper.empty(kept, member.incarnation):
            return EntryStep.CHANGED, member
        self._files.join(member, self._role, owner=self._owner)
        return EntryStep.JOINED_EMPTY, member
