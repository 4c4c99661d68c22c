"""A log as a copy in a group (`lithify.coordination.groups`).

1. The log *has* the records of the source folder, not those of the output, since Lithify does not know when a
   broker takes the output over. So its marks come from an index of the source. *Clean* is the offset of the
   first record that a newer one supersedes. *Resolved* is that of the first record that was aborted, or of
   the first one of a transaction whose marker the folder lacks; in a broker's bucket, where compaction takes
   records out of transactions, that of the first record in one.
2. Marks are computed when matching is published, and reported then and when the round is published. A log
   that was compacted, taken over and compacted again is clean up to the first round's bound.
3. The next step's spec contains the limits of removals as planned. Thresholds never go down, so older limits
   are harmless.
4. The state has the incarnation. A folder that lost records was restored, so it joins with another
   incarnation (`lithify.coordination.membership`).
5. A name joins with its log's URL. Another log with the same name is refused before it does anything, and so
   is a log that the group does not expect.
6. A log that joins too late, because thresholds are past its records, is not a member: nothing is removed
   from it, plans and the doctor report that, and an operator has to copy the log anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from lithify.base.errors import Fenced, Refused, StoreError
from lithify.coordination.groups import GroupFiles, check_may_join
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
    def __init__(self, files: GroupFiles, name: str) -> None:
        self.name = name
        self._files = files

    def read(self) -> GroupState:
        """Return the group's state; raise `DatasetNotFound` if there is no group."""
        return self._files.read()

    def member(self, state: LogState) -> GroupMember:
        """Return this member with the incarnation in the state."""
        return GroupMember(self.name, state.incarnation)

    def is_in(self, group: GroupState, state: LogState) -> bool:
        return group.find(self.member(state)) is not None

    def check(self, group: GroupState, source: str) -> None:
        """Raise `Refused` if the name belongs to a log other than that at `source`, or the group does not
        expect it."""
        check_may_join(group, self.name, GroupRole.COPY, source)

    def check_offsets(self, state: LogState) -> None:
        """Raise `Refused` if the log has other offsets than a member of the group."""
        self._files.check_offsets(self.name, state.standings)

    def bounds(self, group: GroupState, state: LogState, partition: int) -> Marks:
        """Return the offsets below which tombstones and markers may be removed."""
        return bound(group, self.member(state), partition)

    def tell(self, source: str, read: Callable[[], LogState], update: Callable[[Change], bool]) -> None:
        """Join if necessary, report the standings of the log at the URL `source`, and publish the new
        thresholds. `update` applies a change to the state atomically; it returns `False` if the change
        returns `None`."""
        state = _LogMemberState(read, update)
        membership = Membership(self._files, self.name, GroupRole.COPY, state, source)
        try:
            for _ in range(_MAX_STEPS):
                entry, member = membership.enter()
                if entry is EntryStep.MEMBER:
                    break
            else:
                raise StoreError(f"{self.name} has not become a member of its group in {_MAX_STEPS} steps")
        except Refused as error:
            _log.warning("%s", error)
            return
        kept = state.read()
        if kept.incarnation == member.incarnation:  # else the process that took the new incarnation reports
            self._files.say(member, kept.standings)
        for _ in range(_MAX_LEADERS):
            try:
                self._files.publish(self._files.lead(self.name))
            except Fenced:
                continue  # another leader was faster, and may have published without this report
            self._files.collect_garbage()
            return
        _log.warning(
            "%s: other members lead the group all the time; they publish what this log has reported",
            self.name,
        )


class _LogMemberState:
    """The log's standings in its state (`lithify.coordination.membership.MemberStateStore`)."""

    def __init__(self, read: Callable[[], LogState], update: Callable[[Change], bool]) -> None:
        self._state = read
        self._update = update

    def read(self) -> Kept:
        return _kept(self._state())

    def renew(self, before: Kept, incarnation: str) -> bool:
        return self._change(before, lambda state: replace(state, incarnation=incarnation))

    def empty(self, before: Kept, incarnation: str) -> bool:
        raise Refused(
            "this log is not a member of its group and cannot join with its present records: other members "
            "may already have removed tombstones or markers that it needs; copy it again from a member, to "
            "its end"
        )

    def adopt(self, before: Kept, marks: Mapping[int, Marks]) -> bool:
        adopted = {partition: PartitionStanding(mark) for partition, mark in marks.items()}
        return self._change(before, lambda state: replace(state, standings={**state.standings, **adopted}))

    def _change(self, before: Kept, change: Callable[[LogState], LogState]) -> bool:
        return self._update(lambda state: change(state) if before.is_in(_kept(state)) else None)


def _kept(state: LogState) -> Kept:
    return Kept(state.incarnation, dict(state.standings))


def waits(group: GroupState, partition: int) -> list[str]:
    """Return in words which records of a partition wait for which members."""
    if partition in group.differing:
        one, other = group.differing[partition]
        return [f"tombstones and markers are kept, since {one} and {other} have different offsets"]
    if group.expected:
        return [f"tombstones and markers wait for {', '.join(sorted(group.expected))} to join the group"]
    return [
        f"{WORDS[found.track]} from offset {found.position:,} on wait for {found.by}"
        for found in waiting(group)
        if found.partition == partition
    ]


def lowest(first: int | None, end: int) -> int:
    """Return a mark: the first offset that is in the way, at most `end`; `end` if there is none."""
    return end if first is None else min(first, end)
