"""A log as a copy in a group (`lithify.coordination.groups`): what it says, and what it may remove.

1. What the log *has* is what is in the folder that is read, not what was made of it: nobody here knows when a
   broker takes that over. So its marks are told from an index of the folder. *Clean* is the first record that
   a newer one supersedes, *resolved* the first record that belongs to a transaction.
2. They are told when matching is published, and said then, and once more when the round is. A log that was
   compacted, taken over and compacted again is clean up to where it was settled the first time.
3. What may be removed is asked for when the next step is planned, and stands in its spec. Thresholds never go
   down, so an older one does no harm.
4. The incarnation lies in the state, beside what was read. A folder with less in it than it had is one that
   was restored: it joins again under another (`lithify.coordination.membership`).
5. A name is one log's: it is joined with the log's URL, and another log with the same name in its settings
   is refused before it does anything.
6. Who comes too late, since thresholds are past what it has, is no member: nothing is removed from it, and
   plans and the doctor say so. A person has to copy the log anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from lithify.base.errors import Fenced, Refused, StoreError
from lithify.coordination.groups import GroupFiles, check_owner
from lithify.coordination.membership import EntryStep, Kept, Membership
from lithify.datasets.kafka.state import LogState
from lithify.views.groups import WORDS
from lithify.watermarks.groups import GroupRole, GroupState, Marks, PartitionStanding, bound, waiting
from lithify.watermarks.model import GroupMember

Change = Callable[[LogState], LogState | None]
_MAX_STEPS = 10
_MAX_LEADERS = 5
_log = logging.getLogger("lithify")


class LogMember:
    """The place of a log in its group."""

    def __init__(self, files: GroupFiles, name: str) -> None:
        self.name = name
        self._files = files

    def read(self) -> GroupState:
        """The group as it is. `DatasetNotFound` when there is none."""
        return self._files.read()

    def member(self, state: LogState) -> GroupMember:
        """It, as the state knows it."""
        return GroupMember(self.name, state.incarnation)

    def is_in(self, group: GroupState, state: LogState) -> bool:
        """Whether it is a member."""
        return group.find(self.member(state)) is not None

    def check(self, group: GroupState, source: str) -> None:
        """`Refused` when the name is that of another log than the one at `source`."""
        check_owner(group, self.name, source)

    def bounds(self, group: GroupState, state: LogState, partition: int) -> Marks:
        """Below which offsets tombstones and markers may go."""
        return bound(group, self.member(state), partition)

    def tell(self, source: str, read: Callable[[], LogState], update: Callable[[Change], bool]) -> None:
        """Join if it is no member, say what the log at the URL `source` has, and publish what follows.
        `update` changes the state in one step, unless the change is `None`: `False` then."""
        keeper = _Keeper(read, update)
        membership = Membership(self._files, self.name, GroupRole.COPY, keeper, source)
        try:
            for _ in range(_MAX_STEPS):
                entry, member = membership.enter()
                if entry is EntryStep.MEMBER:
                    break
            else:
                raise StoreError(f"{self.name} has become no member of its group in {_MAX_STEPS} steps")
        except Refused as error:
            _log.warning("%s", error)
            return
        kept = keeper.read()
        if kept.incarnation == member.incarnation:  # else who took the new one says what it has
            self._files.say(member, kept.standings)
        for _ in range(_MAX_LEADERS):
            try:
                self._files.publish(self._files.lead(self.name))
            except Fenced:
                continue  # two lead at once; what one of them published may be older than what was said here
            self._files.collect_garbage()
            return
        _log.warning("%s: others lead the group all the time; they publish what this log said", self.name)


class _Keeper:
    """What a log has, as its state knows it (`lithify.coordination.membership.MemberStateStore`)."""

    def __init__(self, read: Callable[[], LogState], update: Callable[[Change], bool]) -> None:
        self._state = read
        self._update = update

    def read(self) -> Kept:
        return _kept(self._state())

    def renew(self, before: Kept, incarnation: str) -> bool:
        return self._change(before, lambda state: replace(state, incarnation=incarnation))

    def empty(self, before: Kept, incarnation: str) -> bool:
        raise Refused(
            "this log is no member of its group and cannot become one with what it has: what says that "
            "something is gone may have been removed elsewhere. Copy it anew from a member, to its end"
        )

    def adopt(self, before: Kept, marks: Mapping[int, Marks]) -> bool:
        adopted = {partition: PartitionStanding(mark) for partition, mark in marks.items()}
        return self._change(before, lambda state: replace(state, standings={**state.standings, **adopted}))

    def _change(self, before: Kept, change: Callable[[LogState], LogState]) -> bool:
        return self._update(lambda state: change(state) if before.is_in(_kept(state)) else None)


def _kept(state: LogState) -> Kept:
    return Kept(state.incarnation, dict(state.standings))


def waits(group: GroupState, partition: int) -> list[str]:
    """What of a partition waits for whom, in words."""
    return [
        f"{WORDS[found.track]} from offset {found.position:,} on wait for {found.by}"
        for found in waiting(group)
        if found.partition == partition
    ]


def lowest(first: int | None, end: int) -> int:
    """A mark: the first offset that is in the way, or the end where none is."""
    return end if first is None else min(first, end)
