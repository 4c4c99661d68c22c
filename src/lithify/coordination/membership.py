"""Becoming and staying a member of a group, for copies and readers of any log (`groups`).

1. Read the last report of the member's incarnation, *then* its data. If it has less than it reported, it lost
   data.
2. If it lost data, or is not a member, it takes a new incarnation, stored with its data, and joins with that.
   If that is too late, it gives up its data, takes another new incarnation, and joins with nothing.
3. A member without data stores the marks that it adopts before it gets any data: it relies on them, and so
   does a restore from its backup.
4. Data that it gets later count only if it is still a member when it has them (`is_still`). The copying or
   reading program must check that: Lithify gets nothing from other members, and another program copied the
   log that it compacts. So only members played by the simulator call it (`simulator.groups`).

Each step is one conditional write. After a crash between two steps, the next process continues from the state
it finds. Before replacing a member's data by a backup, stop its processes: one that sleeps could later report
an outdated state.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from lithify.coordination.groups import GroupFiles, TooLate, check_may_join
from lithify.watermarks.groups import GroupRole, Marks, PartitionStanding, adopted, lost
from lithify.watermarks.model import GroupMember

_log = logging.getLogger("lithify")


@dataclass(frozen=True, slots=True)
class Kept:
    """A member's data, read at once."""

    incarnation: str
    standings: Mapping[int, PartitionStanding]
    """By partition."""

    def is_in(self, now: Kept) -> bool:
        """Return whether `now` is of the same incarnation and nothing was lost since."""
        return now.incarnation == self.incarnation and lost(self.standings, now.standings) is None


class MemberStateStore(Protocol):
    """The store of a member's data. Each change is one step, on condition that the data that were read are
    still in it (`Kept.is_in`); otherwise it returns `False`."""

    def read(self) -> Kept: ...

    def renew(self, before: Kept, incarnation: str) -> bool:
        """Take another incarnation, and keep the rest."""
        ...

    def empty(self, before: Kept, incarnation: str) -> bool:
        """Delete all data, and take another incarnation. May refuse: then an operator has to do it."""
        ...

    def adopt(self, before: Kept, marks: Mapping[int, Marks]) -> bool:
        """Store these marks, in partitions that have no data so far."""
        ...


class EntryStep(StrEnum):
    """The result of one step."""

    MEMBER = "is a member"
    JOINED = "joins with what it has"
    JOINED_EMPTY = "joins with nothing"
    ADOPTED = "adopts the thresholds"
    CHANGED = "was changed meanwhile"


class Membership:
    """The membership of one copy or reader in a group."""

    def __init__(
        self, files: GroupFiles, name: str, role: GroupRole, state: MemberStateStore, owner: str = ""
    ) -> None:
        """`owner` identifies the copy or reader as a URL; empty if it cannot be mistaken for another one."""
        self._files = files
        self._name = name
        self._role = role
        self._state = state
        self._owner = owner

    def enter(self) -> tuple[EntryStep, GroupMember]:
        """Do one step of joining; repeat until the result is `MEMBER`. Then it may continue, in this
        incarnation. Raise `Refused` if another owner has the name, the group does not expect this copy,
        or it has other offsets than a member."""
        member = GroupMember(self._name, self._state.read().incarnation)
        before = self._files.said(member)
        kept = self._state.read()
        if kept.incarnation != member.incarnation:
            return EntryStep.CHANGED, member
        group = self._files.read()
        check_may_join(group, self._name, self._role, self._owner)
        mine = group.find(member)
        partition = lost(before, kept.standings)
        if partition is not None:
            _log.warning(
                "%s %s has less of partition %d than it reported: it was restored or recreated; it joins "
                "again",
                self._role,
                self._name,
                partition,
            )
        if mine is None or partition is not None:
            self._files.check_offsets(self._name, kept.standings)
            return self._join(kept)
        new = adopted(mine.marks, kept.standings)
        if new:
            is_done = self._state.adopt(kept, new)
            return (EntryStep.ADOPTED if is_done else EntryStep.CHANGED), member
        return EntryStep.MEMBER, member

    def is_still(self, member: GroupMember) -> bool:
        """Return whether data that were read before this call count."""
        return self._files.read().find(member) is not None

    def _join(self, kept: Kept) -> tuple[EntryStep, GroupMember]:
        member = GroupMember(self._name, self._files.new_incarnation())
        if not self._state.renew(kept, member.incarnation):
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
        if not self._state.empty(kept, member.incarnation):
            return EntryStep.CHANGED, member
        self._files.join(member, self._role, owner=self._owner)
        return EntryStep.JOINED_EMPTY, member
