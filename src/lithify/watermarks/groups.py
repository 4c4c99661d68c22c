"""A group: the copies of one keyed log and the readers of it that keep state, as one value and its rules.

Each copy is compacted by itself. What says that something is gone, a tombstone or the marker of a
transaction, may go only when nobody can have any more what it speaks of, or a deleted key comes back, an
aborted row is served, a committed one vanishes. So every member says for each partition how far it is done,
and the group publishes the least of that. There are two tracks, and both hold *exclusive* bounds:

| track    | a copy's mark: below it                                     | a reader's    | its threshold    |
|          |                                                             |               | lets go          |
|----------|-------------------------------------------------------------|---------------|------------------|
| CLEAN    | of each key only the newest record is left                  | it has read   | tombstones       |
|          |                                                             | and committed |                  |
| RESOLVED | no record belongs to a transaction any more: what was       | (none)        | markers of       |
|          | aborted is gone, what was committed is plain                |               | transactions     |

A partition that nobody named has marks and thresholds of 0. Who may do what stands in `model`; in short:

1. The group is one versioned value: epoch, members with their incarnations and marks, thresholds. Each
   version is made of the one before (`joined`, `left`, `led`, `published`). So whoever publishes does it
   with the members there are, and a leader of an old epoch finds that.
2. Who joins with what it has is admitted only if no threshold is past it (`passed`): what it lacks is still
   everywhere. A copy of that kind has no marks yet. Who joins with nothing adopts the thresholds as its
   marks: all it can copy below them is clean already, if it copies only from copies as clean (`is_source`).
3. A copy keeps what it has copied, or read, only if it finds itself a member, in the same incarnation, when
   it has read it: what went before that, went with its marks in the minimum.
4. Who says less than it has said has lost something (`lost`): it was restored from a backup, or made anew.
   It is another incarnation from then on, and joins as one.
5. A member removes below the least of all marks, reckoned by itself, and the threshold (`bound`). Any older
   version of the group is as good for that as the latest, since thresholds never go down.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from lithify.watermarks.model import GroupMember, Mark, Threshold
from lithify.watermarks.rules import admits, collect, next_threshold


class GroupRole(StrEnum):
    COPY = "copy"
    READER = "reader"


class Track(StrEnum):
    CLEAN = "clean"
    RESOLVED = "resolved"


REQUIRED = {Track.CLEAN: frozenset(GroupRole), Track.RESOLVED: frozenset({GroupRole.COPY})}
"""Whose marks count. A reader of committed records never sees a record before its transaction has ended."""


@dataclass(frozen=True, slots=True)
class Marks:
    """The two marks of a member in a partition, or the positions of its two thresholds."""

    clean: int = 0
    resolved: int = 0

    def of(self, track: Track) -> int:
        return self.clean if track is Track.CLEAN else self.resolved


NO_MARKS = Marks()


@dataclass(frozen=True, slots=True)
class PartitionStanding:
    """What a member says of a partition, told from what it has and nothing else."""

    marks: Marks = NO_MARKS
    end: int = 0
    """How far what it has reaches: the offset that it gets next."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A member as the group knows it."""

    member: GroupMember
    role: GroupRole
    since_ms: int
    marks: Mapping[int, Marks] = field(default_factory=dict)
    """By partition: what it adopted when it joined, or has said since, whichever is more."""
    owner: str = ""
    """What it is, as a URL: another one may not have its name. Empty for who did not say."""


_NONE = Threshold(0)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Those of one partition."""

    clean: Threshold = _NONE
    resolved: Threshold = _NONE

    def of(self, track: Track) -> Threshold:
        return self.clean if track is Track.CLEAN else self.resolved

    @property
    def positions(self) -> Marks:
        return Marks(self.clean.position, self.resolved.position)


_NO_THRESHOLDS = Thresholds()


@dataclass(frozen=True, slots=True)
class GroupState:
    """One version of it."""

    epoch: int = 0
    leader: str = ""
    published_in: int = 0
    """The epoch whose leader was the last to publish: a new one publishes again."""
    members: Mapping[str, Joined] = field(default_factory=dict)
    """By name."""
    thresholds: Mapping[int, Thresholds] = field(default_factory=dict)
    """By partition."""

    def find(self, member: GroupMember) -> Joined | None:
        """`None` too when another incarnation has its place."""
        found = self.members.get(member.name)
        return found if found is not None and found.member == member else None

    def thresholds_of(self, partition: int) -> Marks:
        return self.thresholds.get(partition, _NO_THRESHOLDS).positions


@dataclass(frozen=True, slots=True)
class BlockedRemoval:
    """What some copy could remove, if it were not for another member."""

    partition: int
    track: Track
    position: int
    """The threshold."""
    by: str
    """Who keeps it there."""
    since_ms: int | None
    until: int
    """The mark of the copy that is the furthest."""


# Members


def passed(group: GroupState, role: GroupRole, ends: Mapping[int, int]) -> int | None:
    """A partition in which a threshold is past all that a newcomer has; `None` when it may join with it."""
    for partition, thresholds in sorted(group.thresholds.items()):
        end = ends.get(partition, 0)
        if not all(admits(thresholds.of(track), end) for track in _tracks_of(role)):
            return partition
    return None


def taken(group: GroupState, name: str, owner: str) -> str | None:
    """Who else has this name; `None` when `owner` may have it."""
    there = group.members.get(name)
    if there is None or not owner or there.owner in ("", owner):
        return None
    return there.owner


def joined(
    group: GroupState,
    member: GroupMember,
    role: GroupRole,
    now_ms: int,
    ends: Mapping[int, int] | None = None,
    owner: str = "",
) -> GroupState:
    """The group with a new member, or with a new incarnation of one in its place. `ends`: how far it has each
    partition; `None`: it has nothing. Whoever may not join with what it has (`passed`), or under this name
    (`taken`), has been refused."""
    if group.find(member) is not None:
        return group
    if ends is None:
        marks = {partition: _marks(role, group.thresholds_of(partition)) for partition in group.thresholds}
    elif role is GroupRole.READER:
        marks = {partition: Marks(clean=end) for partition, end in ends.items()}
    else:
        marks = {}
    return replace(group, members={**group.members, member.name: Joined(member, role, now_ms, marks, owner)})


def adopted(marks: Mapping[int, Marks], now: Mapping[int, PartitionStanding]) -> dict[int, Marks]:
    """What a member has still to write down of the marks that the group knows of it: those of partitions of
    which it has nothing."""
    found = {}
    for partition, mark in marks.items():
        standing = now.get(partition, PartitionStanding())
        if standing.end == 0 and standing.marks != (most := _most(standing.marks, mark)):
            found[partition] = most
    return found


def left(group: GroupState, name: str, now_ms: int) -> GroupState:
    """The group without a member. What only that one kept is free at once."""
    if name not in group.members:
        return group
    return _raised(replace(group, members={n: m for n, m in group.members.items() if n != name}), now_ms)


def is_source(own: Marks, end: int, source: Marks) -> bool:
    """Whether a copy may go on copying a partition from `end` on from a copy whose *data* have these marks.
    Below its own marks it relies on that what it gets is as clean as they say."""
    return all(end >= own.of(track) or source.of(track) >= own.of(track) for track in Track)


# Marks


def lost(before: Mapping[int, PartitionStanding], now: Mapping[int, PartitionStanding]) -> int | None:
    """A partition in which a member has less than it has said before; `None` when it has lost nothing. `now`
    is to be told from what was read after `before`."""
    for partition, then in sorted(before.items()):
        found = now.get(partition, PartitionStanding())
        if found.end < then.end or any(found.marks.of(t) < then.marks.of(t) for t in Track):
            return partition
    return None


def said(
    before: Mapping[int, PartitionStanding], now: Mapping[int, PartitionStanding]
) -> dict[int, PartitionStanding]:
    """What a member has said in all. Within an incarnation nothing goes down."""
    merged = dict(before)
    for partition, standing in now.items():
        then = merged.get(partition, PartitionStanding())
        merged[partition] = PartitionStanding(_most(then.marks, standing.marks), max(then.end, standing.end))
    return merged


# The leader


def led(group: GroupState, leader: str) -> GroupState:
    """The group in the next epoch. Its thresholds stay."""
    return replace(group, epoch=group.epoch + 1, leader=leader)


def published(group: GroupState, marks: Mapping[GroupMember, Mapping[int, Marks]], now_ms: int) -> GroupState:
    """The group with what its members have said by now, and the thresholds that follow. Of a member that
    could not be asked the last that is known counts; what others said does not."""
    members = {}
    for name, one in group.members.items():
        new = marks.get(one.member, {})
        both = {p: _most(one.marks.get(p, NO_MARKS), new.get(p, NO_MARKS)) for p in {*one.marks, *new}}
        members[name] = replace(one, marks=both)
    return _raised(replace(group, members=members, published_in=group.epoch), now_ms)


def _raised(group: GroupState, now_ms: int) -> GroupState:
    partitions = {*group.thresholds, *(p for one in group.members.values() for p in one.marks)}
    thresholds = {}
    for partition in sorted(partitions):
        old = group.thresholds.get(partition, _NO_THRESHOLDS)
        thresholds[partition] = Thresholds(
            *(_next(group, partition, track, old.of(track), now_ms) for track in Track)
        )
    return replace(group, thresholds=thresholds)


def _next(group: GroupState, partition: int, track: Track, old: Threshold, now_ms: int) -> Threshold:
    required = _required(group.members.values(), track)
    marks = (Mark(one.member, one.marks.get(partition, NO_MARKS).of(track)) for one in required)
    collected = collect({one.member for one in required}, marks, (), now_ms)
    least = collected.least
    new = next_threshold(old, None if least is None else least.position, collected)
    assert new is not None, "there was one before"
    if least is None:
        return new
    before = old.least
    is_same = before is not None and (before.position, before.by) == (least.position, least.by)
    return Threshold(new.position, before if is_same else replace(least, since_ms=now_ms))


# What follows for everybody


def bound(group: GroupState, member: GroupMember, partition: int) -> Marks:
    """Below which offsets a copy may remove tombstones and markers. Nothing when it is no member."""
    if group.find(member) is None:
        return NO_MARKS
    thresholds = group.thresholds_of(partition)
    return Marks(*(_least(group, partition, track, thresholds.of(track)) for track in Track))


def _least(group: GroupState, partition: int, track: Track, threshold: int) -> int:
    required = _required(group.members.values(), track)
    return min([threshold, *(one.marks.get(partition, NO_MARKS).of(track) for one in required)])


def waiting(group: GroupState) -> tuple[BlockedRemoval, ...]:
    """What waits for whom, and since when, as the group was published last."""
    found = []
    for partition, thresholds in sorted(group.thresholds.items()):
        for track in Track:
            threshold = thresholds.of(track)
            marks = [
                one.marks.get(partition, NO_MARKS).of(track)
                for one in group.members.values()
                if one.role is GroupRole.COPY
            ]
            until, least = max(marks, default=0), threshold.least
            if least is not None and least.position < until:
                position = min(threshold.position, least.position)
                found.append(BlockedRemoval(partition, track, position, least.by, least.since_ms, until))
    return tuple(found)


def _marks(role: GroupRole, marks: Marks) -> Marks:
    """Of these those that somebody can have."""
    return Marks(*(marks.of(track) if role in REQUIRED[track] else 0 for track in Track))


def _tracks_of(role: GroupRole) -> Iterable[Track]:
    return (track for track in Track if role in REQUIRED[track])


def _required(members: Iterable[Joined], track: Track) -> list[Joined]:
    return [one for one in members if one.role in REQUIRED[track]]


def _most(one: Marks, other: Marks) -> Marks:
    return Marks(max(one.clean, other.clean), max(one.resolved, other.resolved))
