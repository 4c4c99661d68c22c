"""A group: the copies of one keyed log and its stateful readers, as one value and its rules.

Each copy is compacted by itself. A tombstone, or a transaction's marker, may be removed only when no member
can still have the records that it concerns; otherwise a deleted key comes back, an aborted row is served, or
a committed one vanishes. So every member reports for each partition how far it is done, and the group
publishes the minimum. There are two tracks; their bounds are *exclusive*:

| track    | below a copy's mark                                  | below a reader's  | threshold allows |
|          |                                                      | mark              | removal of       |
|----------|------------------------------------------------------|-------------------|------------------|
| CLEAN    | only the newest record of each key is left           | all is read and   | tombstones       |
|          |                                                      | committed         |                  |
| RESOLVED | no record was aborted, and the copy has the markers  | (none)            | markers of       |
|          | of all records that belong to a transaction          |                   | transactions     |

Partitions without reports have marks and thresholds of 0. `model` lists the rules; in short:

1. The group is one versioned value: epoch, members with their incarnations and marks, thresholds. Each
   version is derived from the previous one (`joined`, `left`, `led`, `published`). So each publication
   includes all present members, and fails for a leader of an old epoch.
2. A member that joins with data is admitted only if no threshold is past them (`passed`): all records that it
   lacks still exist everywhere. Such a copy has no marks yet. A member that joins without data adopts the
   thresholds as its marks: records below them are clean already if it copies only from copies as clean as
   these (`is_source`), and if below them it copies whole transactions from one state of a copy: records
   whose marker it does not get may lose it everywhere.
3. A copy keeps records that it has copied or read only if a later read shows it as a member, in the same
   incarnation: then all removals up to that read have considered its marks.
4. A member that reports less than before has lost data (`lost`): it was restored from a backup, or recreated.
   It joins again as a new incarnation.
5. A member removes below the minimum of the threshold and all marks, which it computes itself (`bound`). Any
   older version of the group will do, since thresholds never go down.
6. The copies are named before they join (`expecting`). No threshold is raised, and nothing is removed, while
   one of them has not joined: it may lag, and has not reported its marks. A copy that is not named cannot
   join (`is_expected`).
7. The threshold for markers is raised only as far as copies have reported markers. So a log without
   transactions has a threshold of 0, at which no copy comes too late.
8. Marks are offsets, so all copies must have equal offsets. If two reports contradict each other (`differ`),
   no threshold of the partition is raised, and nothing is removed from it. A copy that contradicts a member
   is not admitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import combinations

from lithify.watermarks.model import GroupMember, Mark, Threshold
from lithify.watermarks.rules import admits, collect, next_threshold


class GroupRole(StrEnum):
    COPY = "copy"
    READER = "reader"


class Track(StrEnum):
    CLEAN = "clean"
    RESOLVED = "resolved"


REQUIRED = {Track.CLEAN: frozenset(GroupRole), Track.RESOLVED: frozenset({GroupRole.COPY})}
"""The roles whose marks count. A reader of committed records never sees a record before its transaction has
ended."""


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
    """A member's report about a partition, derived from its own data only."""

    marks: Marks = NO_MARKS
    end: int = 0
    """The next offset it will receive."""
    markers_end: int = 0
    """The offset after its last transaction marker; 0 if it has none."""
    sample: Mapping[int, int] = field(default_factory=dict)
    """The hashes of the keys of some records, by offset (`differ`)."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A member's entry in the group."""

    member: GroupMember
    role: GroupRole
    since_ms: int
    marks: Mapping[int, Marks] = field(default_factory=dict)
    """By partition: the marks adopted when joining or reported since, whichever are higher."""
    owner: str = ""
    """The member's URL, so that no other may join under its name; empty if not given."""


_NONE = Threshold(0)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The thresholds of one partition."""

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
    """One version of a group."""

    epoch: int = 0
    leader: str = ""
    published_in: int = 0
    """The epoch of the last publication; the leader of a new epoch publishes again."""
    members: Mapping[str, Joined] = field(default_factory=dict)
    """By name."""
    thresholds: Mapping[int, Thresholds] = field(default_factory=dict)
    """By partition."""
    expected: frozenset[str] = frozenset()
    """Names of members that have not joined yet."""
    markers_ends: Mapping[int, int] = field(default_factory=dict)
    """By partition, the offset after the last transaction marker that any copy has reported."""
    differing: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    """By partition, two copies whose reports show that they are not copies of one log with equal offsets."""

    def find(self, member: GroupMember) -> Joined | None:
        """Return the entry of this incarnation; `None` also if another incarnation has replaced it."""
        found = self.members.get(member.name)
        return found if found is not None and found.member == member else None

    def thresholds_of(self, partition: int) -> Marks:
        return self.thresholds.get(partition, _NO_THRESHOLDS).positions


@dataclass(frozen=True, slots=True)
class BlockedRemoval:
    """A removal on a copy that waits for another member."""

    partition: int
    track: Track
    position: int
    """The threshold."""
    by: str
    """The member that blocks it."""
    since_ms: int | None
    until: int
    """The highest mark of any copy; for markers, at most the end of the last one."""


# Members


def passed(group: GroupState, role: GroupRole, ends: Mapping[int, int]) -> int | None:
    """Return a partition whose threshold is past the data of a new member; `None` if it may join with
    them."""
    for partition, thresholds in sorted(group.thresholds.items()):
        end = ends.get(partition, 0)
        if not all(admits(thresholds.of(track), end) for track in _tracks_of(role)):
            return partition
    return None


def taken(group: GroupState, name: str, owner: str) -> str | None:
    """Return the other owner of this name; `None` if `owner` may use it."""
    there = group.members.get(name)
    if there is None or not owner or there.owner in ("", owner):
        return None
    return there.owner


def expecting(group: GroupState, names: Iterable[str]) -> GroupState:
    """Return the group that also waits for these names, unless they are members."""
    return replace(group, expected=group.expected | (frozenset(names) - group.members.keys()))


def is_expected(group: GroupState, name: str, role: GroupRole) -> bool:
    """Return whether a member of this name may join, or join again. Readers need not be expected."""
    return role is GroupRole.READER or name in group.expected or name in group.members


def joined(
    group: GroupState,
    member: GroupMember,
    role: GroupRole,
    now_ms: int,
    ends: Mapping[int, int] | None = None,
    owner: str = "",
) -> GroupState:
    """Return the group with a new member, or with a new incarnation replacing the old one. `ends` is how far
    it has each partition; `None` if it has no data. The caller has checked `is_expected`, `passed` and
    `taken`."""
    if group.find(member) is not None:
        return group
    if ends is None:
        marks = {partition: _marks(role, group.thresholds_of(partition)) for partition in group.thresholds}
    elif role is GroupRole.READER:
        marks = {partition: Marks(clean=end) for partition, end in ends.items()}
    else:
        marks = {}
    members = {**group.members, member.name: Joined(member, role, now_ms, marks, owner)}
    return replace(group, members=members, expected=group.expected - {member.name})


def adopted(marks: Mapping[int, Marks], now: Mapping[int, PartitionStanding]) -> dict[int, Marks]:
    """Return the marks that a member must still adopt from its entry in the group: those of partitions of
    which it has no data."""
    found = {}
    for partition, mark in marks.items():
        standing = now.get(partition, PartitionStanding())
        if standing.end == 0 and standing.marks != (most := _most(standing.marks, mark)):
            found[partition] = most
    return found


def left(group: GroupState, name: str, now_ms: int) -> GroupState:
    """Return the group without a member, or without waiting for one that has not joined. Thresholds that only
    this member blocked rise at once."""
    if name not in group.members and name not in group.expected:
        return group
    members = {n: m for n, m in group.members.items() if n != name}
    differing = {partition: both for partition, both in group.differing.items() if name not in both}
    without = replace(group, members=members, expected=group.expected - {name}, differing=differing)
    return _raised(without, now_ms)


def is_source(own: Marks, end: int, source: Marks) -> bool:
    """Return whether a copy may copy a partition from `end` on from a copy whose *data* have the marks
    `source`. Below its own marks it relies on copied records being as clean as these say."""
    return all(end >= own.of(track) or source.of(track) >= own.of(track) for track in Track)


def differ(one: Mapping[int, int], other: Mapping[int, int]) -> bool:
    """Return whether two samples show that partitions are not copies of one log: at some offset they have
    different keys. No lag and no compaction of copies leads to that."""
    return any(one[offset] != other[offset] for offset in one.keys() & other.keys())


# Marks


def lost(before: Mapping[int, PartitionStanding], now: Mapping[int, PartitionStanding]) -> int | None:
    """Return a partition in which a member has less than it has reported before; `None` if it has lost
    nothing. Read `before` first, then derive `now`."""
    for partition, then in sorted(before.items()):
        found = now.get(partition, PartitionStanding())
        if found.end < then.end or any(found.marks.of(t) < then.marks.of(t) for t in Track):
            return partition
    return None


def said(
    before: Mapping[int, PartitionStanding], now: Mapping[int, PartitionStanding]
) -> dict[int, PartitionStanding]:
    """Return a member's merged reports. Within an incarnation nothing goes down."""
    merged = dict(before)
    for partition, standing in now.items():
        then = merged.get(partition, PartitionStanding())
        merged[partition] = PartitionStanding(
            _most(then.marks, standing.marks),
            max(then.end, standing.end),
            max(then.markers_end, standing.markers_end),
            standing.sample or then.sample,
        )
    return merged


# The leader


def led(group: GroupState, leader: str) -> GroupState:
    """Return the group in the next epoch, with the same thresholds."""
    return replace(group, epoch=group.epoch + 1, leader=leader)


def published(
    group: GroupState, reports: Mapping[GroupMember, Mapping[int, PartitionStanding]], now_ms: int
) -> GroupState:
    """Return the group with new reports of its members and the resulting thresholds. For a member that did
    not answer, the last known marks count; reports of non-members do not."""
    members, markers_ends = {}, dict(group.markers_ends)
    for name, one in group.members.items():
        new = reports.get(one.member, {})
        marks = dict(one.marks)
        for partition, standing in new.items():
            marks[partition] = _most(marks.get(partition, NO_MARKS), standing.marks)
            if standing.markers_end > markers_ends.get(partition, 0):
                markers_ends[partition] = standing.markers_end
        members[name] = replace(one, marks=marks)
    new_group = replace(
        group,
        members=members,
        markers_ends=markers_ends,
        differing=_differing({one.member.name: reports.get(one.member, {}) for one in members.values()}),
        published_in=group.epoch,
    )
    return _raised(new_group, now_ms)


def _differing(reports: Mapping[str, Mapping[int, PartitionStanding]]) -> dict[int, tuple[str, str]]:
    found: dict[int, tuple[str, str]] = {}
    for one, other in combinations(sorted(reports), 2):
        for partition in sorted(reports[one].keys() & reports[other].keys()):
            if differ(reports[one][partition].sample, reports[other][partition].sample):
                found.setdefault(partition, (one, other))
    return found


def _raised(group: GroupState, now_ms: int) -> GroupState:
    partitions = {*group.thresholds, *(p for one in group.members.values() for p in one.marks)}
    thresholds = {}
    for partition in sorted(partitions):
        old = group.thresholds.get(partition, _NO_THRESHOLDS)
        if partition in group.differing:
            thresholds[partition] = old
            continue
        thresholds[partition] = Thresholds(
            *(_next(group, partition, track, old.of(track), now_ms) for track in Track)
        )
    return replace(group, thresholds=thresholds)


def _next(group: GroupState, partition: int, track: Track, old: Threshold, now_ms: int) -> Threshold:
    required = _required(group.members.values(), track)
    marks = (Mark(one.member, one.marks.get(partition, NO_MARKS).of(track)) for one in required)
    awaited = {GroupMember(name) for name in group.expected}
    collected = collect({one.member for one in required} | awaited, marks, (), now_ms)
    least = collected.least
    most = None if least is None else least.position
    if most is not None and track is Track.RESOLVED:
        most = min(most, group.markers_ends.get(partition, 0))
    new = next_threshold(old, most, collected)
    assert new is not None, "there was one before"
    if least is None:
        return new
    before = old.least
    is_same = before is not None and (before.position, before.by) == (least.position, least.by)
    return Threshold(new.position, before if is_same else replace(least, since_ms=now_ms))


# Results


def bound(group: GroupState, member: GroupMember, partition: int) -> Marks:
    """Return the offsets below which a copy may remove tombstones and markers; 0 if it is not a member, while
    an expected member has not joined, and while two copies differ."""
    if group.find(member) is None or group.expected or partition in group.differing:
        return NO_MARKS
    thresholds = group.thresholds_of(partition)
    return Marks(*(_least(group, partition, track, thresholds.of(track)) for track in Track))


def _least(group: GroupState, partition: int, track: Track, threshold: int) -> int:
    required = _required(group.members.values(), track)
    return min([threshold, *(one.marks.get(partition, NO_MARKS).of(track) for one in required)])


def waiting(group: GroupState) -> tuple[BlockedRemoval, ...]:
    """Return the removals that wait for a member, as of the last publication."""
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
            if track is Track.RESOLVED:
                until = min(until, group.markers_ends.get(partition, 0))
            if least is not None and least.position < until:
                position = min(threshold.position, least.position)
                found.append(BlockedRemoval(partition, track, position, least.by, least.since_ms, until))
    return tuple(found)


def _marks(role: GroupRole, marks: Marks) -> Marks:
    """Return the marks that apply to a role."""
    return Marks(*(marks.of(track) if role in REQUIRED[track] else 0 for track in Track))


def _tracks_of(role: GroupRole) -> Iterable[Track]:
    return (track for track in Track if role in REQUIRED[track])


def _required(members: Iterable[Joined], track: Track) -> list[Joined]:
    return [one for one in members if one.role in REQUIRED[track]]


def _most(one: Marks, other: Marks) -> Marks:
    return Marks(max(one.clean, other.clean), max(one.resolved, other.resolved))
