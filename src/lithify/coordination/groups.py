"""A group of copies and readers of one keyed log, as objects of a store that all members reach
(`lithify.watermarks.groups`).

| object                              | is                                              | written by         |
|-------------------------------------|-------------------------------------------------|--------------------|
| `group/<n as 20 digits>.json`       | the group: epoch, members, marks, thresholds    | any process        |
| `group.boundary`                    | the boundary of its old versions                | the leader         |
| `marks/<name>~<incarnation>.json`   | how far a member is, as it last reported        | that member        |

1. The group is a numbered value. Every change is computed anew from the latest version, so it never includes
   members that have left or omits a new one; a leader whose epoch that version no longer has is `Fenced`.
2. Marks are only raised, by conditional writes. Each incarnation has an object of its own: a process of the
   previous incarnation, however late, cannot report in the name of the next one.
3. A member reports only committed work, which survives a crash.
4. The leader deletes the marks of former members: it lists them, then reads the group. A member joins before
   it reports anything.
5. A value that could not be read again is refused and not written: every change begins with reading the
   current one.
6. The group exists before its members join: it names the copies that have to join (`begin`, `expect`), so
   that no copy that is compacted early decides without them.

A crash while joining leaves a member that reports nothing and holds back the thresholds until it is removed,
or its next incarnation replaces it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal, TypeVar

from lithify.base.clock import Clock
from lithify.base.documents import Count, CountKey, DocumentCodec, readable
from lithify.base.errors import (
    CorruptObject,
    DatasetNotFound,
    Fenced,
    ObjectExists,
    ObjectNotFound,
    PreconditionFailed,
    Refused,
    StoreError,
    Unsupported,
)
from lithify.base.ids import Ids
from lithify.coordination.holds import checked_name
from lithify.store.keys import join
from lithify.store.objects import ObjectStore
from lithify.store.versions import Version, VersionedFiles
from lithify.watermarks.groups import (
    GroupRole,
    GroupState,
    Joined,
    Marks,
    PartitionStanding,
    Thresholds,
    differ,
    expecting,
    is_expected,
    joined,
    led,
    left,
    passed,
    published,
    said,
    taken,
)
from lithify.watermarks.model import GroupMember, Threshold

KEPT_VERSIONS = 20
_FORMAT: Final = 2
"""Format 1, which is read too, names no expected members and has no ends of markers."""
_READ_FORMATS = range(1, _FORMAT + 1)
_SUFFIX = ".json"
_TOKEN = "~"
"""Precedes the incarnation; not allowed in names."""
_MAX_TRIES = 5

T = TypeVar("T")


class TooLate(Refused):
    """A joining member lacks records that may have been removed; it can join with nothing."""


class GroupFiles:
    """The group whose own folder is `folder` of `store`. Knows nothing about the log."""

    def __init__(
        self, store: ObjectStore, folder: str, clock: Clock, ids: Ids, rng: random.Random | None = None
    ) -> None:
        self._store = store
        self._folder = folder
        self._marks = join(folder, "marks")
        self._clock = clock
        self._ids = ids
        self._rng = rng if rng is not None else random.Random()
        self._decoded: tuple[Version, GroupState] | None = None
        self.files = VersionedFiles(
            store, join(folder, "group"), _SUFFIX, join(folder, "group.boundary"), ids, clock=clock
        )

    def read(self) -> GroupState:
        """Return the latest version. Raise `DatasetNotFound` when there is no group."""
        return self._decode(self.files.confirmed())

    def begin(self, members: Collection[str]) -> GroupState:
        """Create a group that waits for these members. Raise `Refused` if there is another group."""
        group = expecting(GroupState(), map(checked_name, members))

        def first(version: Version | None) -> bytes | None:
            if version is None:
                return encode(group)
            if self._decode(version) != group:
                raise Refused(f"{join(self._store.url, self._folder)} already has a group")
            return None

        return self._decode(self.files.update(first, self._clock, self._rng))

    def expect(self, members: Collection[str]) -> GroupState:
        """Wait for these members too, unless they have joined."""
        names = list(map(checked_name, members))
        return self._update(lambda group: expecting(group, names))

    # Members

    def new_incarnation(self) -> str:
        """Return a name for an incarnation that was never used. It must be stored with the member's data."""
        return self._ids.uuid().hex

    def join(
        self, member: GroupMember, role: GroupRole, ends: Mapping[int, int] | None = None, owner: str = ""
    ) -> GroupState:
        """Add a member, replacing an earlier incarnation if there is one. `ends` is
        how far it has each partition, all of it kept while it was a member, or since before the group; `None`
        means that it begins with nothing. Return the resulting group. Raise `TooLate` if the
        member's data are not enough, and `Refused` if another owner (`Joined.owner`) has the name, or the
        group does not expect this copy."""
        checked_name(member.name)
        checked_name(member.incarnation)

        def change(group: GroupState) -> GroupState:
            there = group.members.get(member.name)
            if there is not None and there.role is not role:
                raise Refused(f"{member.name} is a {there.role} of the group; take another name")
            check_may_join(group, member.name, role, owner)
            if group.find(member) is None and ends is not None:
                self._check(group, member.name, role, ends)
            return joined(group, member, role, self._clock.now_ms(), ends, owner)

        return self._update(change)

    def _check(self, group: GroupState, name: str, role: GroupRole, ends: Mapping[int, int]) -> None:
        partition = passed(group, role, ends)
        if partition is not None:
            thresholds = group.thresholds_of(partition)
            past = (
                thresholds.clean if role is GroupRole.READER else max(thresholds.clean, thresholds.resolved)
            )
            raise TooLate(
                f"{role} {name} joins too late: it has partition {partition} up to {ends.get(partition, 0)}, "
                f"and tombstones and markers below {past} may have been removed; start it without data"
            )

    def check_offsets(self, name: str, standings: Mapping[int, PartitionStanding]) -> None:
        """Raise `Refused` if a copy with these data has other offsets than a member, as the target of
        MirrorMaker has: marks of one would say nothing about the other."""
        for other, one in sorted(self.read().members.items()):
            reported = {} if other == name else self.said(one.member)
            for partition in sorted(standings.keys() & reported.keys()):
                if differ(standings[partition].sample, reported[partition].sample):
                    raise Refused(
                        f"partition {partition} of {name} and {other} have different keys at the same "
                        f"offset, as a topic has that MirrorMaker or Replicator has written: let {name} form "
                        f"a group of its own (kafka.group), and then: lithify group leave GROUP {name}"
                    )

    def leave(self, name: str) -> GroupState:
        """Remove a member, whatever it still does, or stop waiting for an expected one; no error if there is
        none. Its data may not be used as a member's any more."""
        return self._update(lambda group: left(group, name, self._clock.now_ms()))

    def said(self, member: GroupMember) -> dict[int, PartitionStanding]:
        """Return the last report of a member's incarnation, by partition."""
        found = self._read_marks(member)
        return {} if found is None else found[0]

    def say(self, member: GroupMember, now: Mapping[int, PartitionStanding]) -> None:
        """Report a member's data: only committed data that survive a crash. Earlier reports stay valid."""
        key = self._marks_key(member)
        for _ in range(_MAX_TRIES):
            found = self._read_marks(member)
            before, etag = ({}, None) if found is None else found
            merged = said(before, now)
            if merged == before:
                return
            data = readable(
                partial(_encode_marks, member, merged), partial(_decode_marks, key=key, member=member), key
            )
            try:
                if found is None:
                    self._store.create(key, data)
                else:
                    self._store.replace(key, data, etag or "")
            except (ObjectExists, PreconditionFailed, ObjectNotFound):
                continue  # perhaps by an earlier request of this call whose answer was lost
            return
        raise StoreError(f"{key}: changed by other processes {_MAX_TRIES} times in a row")

    # The leader

    def lead(self, leader: str) -> int:
        """Take the next epoch, which fences every older leader. Return it."""
        return self._update(lambda group: led(group, leader)).epoch

    def publish(self, epoch: int) -> GroupState:
        """Collect the members' reports and publish the resulting thresholds; publish nothing if nothing has
        changed since this leader's last publication. Raise `Fenced` if there is a newer leader."""
        members = [one.member for one in self._known(epoch).members.values()]
        reports = {member: self.said(member) for member in members}

        def change(group: GroupState) -> GroupState:
            _check_epoch(group, epoch)
            return published(group, reports, self._clock.now_ms())

        return self._update(change)

    def _known(self, epoch: int) -> GroupState:
        group = self._decode(self.files.latest())
        _check_epoch(group, epoch)
        return group

    def collect_garbage(self) -> None:
        """Delete old versions, and the marks of former members."""
        there = [meta.key for meta in self._store.list(self._marks) if meta.key.endswith(_SUFFIX)]
        needed = {self._marks_key(one.member) for one in self.read().members.values()}
        for key in there:
            if key not in needed:
                self._store.delete(key)
        old = self.files.ids()[:-KEPT_VERSIONS]
        if old:
            self.files.advance_boundary(old[-1])
            for version_id in old:
                self._store.delete(self.files.key(version_id))

    # Objects

    def _update(self, change: Callable[[GroupState], GroupState]) -> GroupState:
        def changed(version: Version | None) -> bytes | None:
            before = self._decode(version)
            after = change(before)
            for partition in before.thresholds:
                then, now = before.thresholds_of(partition), after.thresholds_of(partition)
                assert now.clean >= then.clean, "it never goes down"
                assert now.resolved >= then.resolved, "it never goes down"
            if after == before:
                return None
            return readable(partial(encode, after), partial(decode, key=self._folder), self._folder)

        return self._decode(self.files.update(changed, self._clock, self._rng))

    def _decode(self, version: Version | None) -> GroupState:
        if version is None:
            place = join(self._store.url, self._folder)
            raise DatasetNotFound(
                f"there is no group in {place}; create it with its members: lithify group init {place} "
                "--members NAME,NAME"
            )
        decoded = self._decoded  # another thread may decode another version meanwhile
        if decoded is None or decoded[0] != version:
            self._decoded = decoded = version, self.files.decode(version, decode)
        return decoded[1]

    def _marks_key(self, member: GroupMember) -> str:
        return join(self._marks, f"{member.name}{_TOKEN}{member.incarnation}{_SUFFIX}")

    def _read_marks(self, member: GroupMember) -> tuple[dict[int, PartitionStanding], str | None] | None:
        key = self._marks_key(member)
        try:
            data, meta = self._store.get_with_meta(key)
        except ObjectNotFound:
            return None
        return _decode_marks(data, key, member), meta.etag


def check_may_join(group: GroupState, name: str, role: GroupRole, owner: str) -> None:
    """Raise `Refused` if another owner has the name, or the group does not expect this copy."""
    if not is_expected(group, name, role):
        awaited = f"waits for {', '.join(sorted(group.expected))}" if group.expected else "waits for no copy"
        raise Refused(
            f"the group does not expect {name}, and {awaited}: correct the name (kafka.member), or if "
            f"{name} is another copy of the same log: lithify group expect GROUP {name}"
        )
    other = taken(group, name, owner)
    if other is not None:
        raise Refused(
            f"{name} is the name of {other} in the group, so {owner} needs another one (kafka.member); if it "
            f"has moved here for good: lithify group leave GROUP {name}, then lithify group expect GROUP "
            f"{name}"
        )


def _check_epoch(group: GroupState, epoch: int) -> None:
    if group.epoch != epoch:
        raise Fenced(f"the group has a newer leader, {group.leader}, in epoch {group.epoch} after {epoch}")


# Documents


@dataclass(frozen=True, slots=True)
class _MemberFields:
    role: GroupRole
    incarnation: str
    since_ms: Count
    marks: Mapping[CountKey, tuple[Count, Count]]
    owner: str = ""


@dataclass(frozen=True, slots=True)
class _GroupFields:
    """A version of a group. Partitions are keys; a partition's two positions are a pair."""

    format: Literal[1, 2]
    epoch: Count
    leader: str
    published_in: Count
    members: Mapping[str, _MemberFields]
    thresholds: Mapping[CountKey, tuple[Threshold, Threshold]]
    expected: tuple[str, ...] = ()
    markers_ends: Mapping[CountKey, Count] = field(default_factory=dict)
    differing: Mapping[CountKey, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _StandingFields:
    clean: Count
    resolved: Count
    end: Count
    markers_end: Count
    sample: tuple[tuple[Count, Count], ...]
    """Offsets, and hashes of keys."""


@dataclass(frozen=True, slots=True)
class _MarksFields:
    """The marks and the end of a member in each partition."""

    format: Literal[1, 2]
    incarnation: str
    marks: Mapping[CountKey, _StandingFields | tuple[Count, Count, Count]]
    """In format 1 both marks and the end."""


@dataclass(frozen=True, slots=True)
class _Format:
    format: int


_GROUPS = DocumentCodec(_GroupFields, "a group", optional={"owner", "expected", "markers_ends", "differing"})
_MARKS = DocumentCodec(_MarksFields, "the marks of a member")
_FORMATS = DocumentCodec(_Format)


def encode(group: GroupState) -> bytes:
    """Encode a version of a group as JSON."""
    members = {
        name: _MemberFields(
            one.role,
            one.member.incarnation,
            one.since_ms,
            {partition: (marks.clean, marks.resolved) for partition, marks in one.marks.items()},
            one.owner,
        )
        for name, one in group.members.items()
    }
    thresholds = {partition: (one.clean, one.resolved) for partition, one in group.thresholds.items()}
    return _GROUPS.encode(
        _GroupFields(
            _FORMAT,
            group.epoch,
            group.leader,
            group.published_in,
            members,
            thresholds,
            tuple(sorted(group.expected)),
            group.markers_ends,
            group.differing,
        )
    )


def decode(data: bytes, key: str) -> GroupState:
    """Decode a group. Raise `CorruptObject` if it is not one, and `Unsupported` if a newer version of Lithify
    wrote it."""
    found = _supported(_GROUPS, data, key)
    members = {
        name: Joined(
            GroupMember(name, one.incarnation),
            one.role,
            one.since_ms,
            {partition: Marks(*pair) for partition, pair in one.marks.items()},
            one.owner,
        )
        for name, one in found.members.items()
    }
    thresholds = {partition: Thresholds(*pair) for partition, pair in found.thresholds.items()}
    return GroupState(
        found.epoch,
        found.leader,
        found.published_in,
        members,
        thresholds,
        frozenset(found.expected),
        found.markers_ends,
        found.differing,
    )


def _encode_marks(member: GroupMember, standings: Mapping[int, PartitionStanding]) -> bytes:
    marks = {
        p: _StandingFields(
            one.marks.clean,
            one.marks.resolved,
            one.end,
            one.markers_end,
            tuple(sorted(one.sample.items())),
        )
        for p, one in standings.items()
    }
    return _MARKS.encode(_MarksFields(_FORMAT, member.incarnation, marks))


def _decode_marks(data: bytes, key: str, member: GroupMember) -> dict[int, PartitionStanding]:
    found = _supported(_MARKS, data, key)
    if found.incarnation != member.incarnation:
        reason = "does not decode as the marks of a member: its incarnation differs from that in its name"
        raise CorruptObject(key, reason)
    return {partition: _standing(fields) for partition, fields in found.marks.items()}


def _standing(found: _StandingFields | tuple[int, int, int]) -> PartitionStanding:
    if isinstance(found, tuple):
        clean, resolved, end = found
        return PartitionStanding(Marks(clean, resolved), end)
    marks = Marks(found.clean, found.resolved)
    return PartitionStanding(marks, found.end, found.markers_end, dict(found.sample))


def _supported(codec: DocumentCodec[T], data: bytes, key: str) -> T:
    try:
        return codec.decode(data, key)
    except CorruptObject:
        found = _format_of(data)
        if found in _READ_FORMATS:
            raise
    raise Unsupported(
        f"{key}: has format {found!r}, but this version of Lithify reads only formats up to {_FORMAT}; use a "
        "newer one"
    )


def _format_of(data: bytes) -> int:
    try:
        return _FORMATS.decode(data, "").format
    except CorruptObject:
        return _FORMAT
