"""What counts for a member of a group."""

from __future__ import annotations

from lithify.watermarks.groups import NO_MARKS, GroupState, Marks
from lithify.watermarks.model import GroupMember


def marks_of(group: GroupState, member: GroupMember, partition: int) -> Marks:
    """Nothing when it is no member."""
    found = group.find(member)
    return NO_MARKS if found is None else found.marks.get(partition, NO_MARKS)
