"""Whoever has lost something is somebody else, and whoever comes too late begins with nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from lithify.base.errors import Refused
from lithify.base.ids import RandomIds
from lithify.coordination.groups import GroupFiles
from lithify.coordination.membership import EntryStep, Kept, Membership
from lithify.store.objects import ObjectStore
from lithify.testing import ManualClock, MemoryStore
from lithify.testing.faulty import crash_at_every_call
from lithify.watermarks.groups import GroupRole, Marks, PartitionStanding
from lithify.watermarks.model import GroupMember
from tests.watermarks.marks import marks_of

P = 0
OTHER = GroupMember("other", "1")


@dataclass
class Shelf:
    """Keeps what a copy has in a variable."""

    kept: Kept = field(default_factory=lambda: kept(0))
    is_changed: bool = False
    """Somebody is always faster."""

    def read(self) -> Kept:
        return self.kept

    def renew(self, before: Kept, incarnation: str) -> bool:
        return self._put(before, Kept(incarnation, self.kept.standings))

    def empty(self, before: Kept, incarnation: str) -> bool:
        return self._put(before, Kept(incarnation, {}))

    def adopt(self, before: Kept, marks: Mapping[int, Marks]) -> bool:
        return self._put(
            before, Kept(self.kept.incarnation, {p: PartitionStanding(m) for p, m in marks.items()})
        )

    def _put(self, before: Kept, after: Kept) -> bool:
        if self.is_changed or not before.is_in(self.kept):
            return False
        self.kept = after
        return True


def kept(end: int, clean: int = 0, resolved: int = 0, incarnation: str = "first") -> Kept:
    return Kept(incarnation, {P: PartitionStanding(Marks(clean, resolved), end)})


class World:
    """A group with another copy in it, and one that is to join."""

    def __init__(self, threshold: int = 0) -> None:
        self.memory = MemoryStore()
        self.files = self.opened(self.memory)
        self.files.begin([OTHER.name, "c"])
        self.files.join(OTHER, GroupRole.COPY, {})
        self.say_other(threshold)
        self.shelf = Shelf()

    @staticmethod
    def opened(store: ObjectStore) -> GroupFiles:
        return GroupFiles(store, "group", ManualClock(), RandomIds())

    def say_other(self, threshold: int) -> None:
        if threshold:
            self.files.leave("c")  # the threshold was raised before it was expected
        self.files.say(OTHER, {P: PartitionStanding(Marks(threshold, threshold), threshold, threshold)})
        self.files.publish(self.files.lead("other"))
        self.files.expect(["c"])

    def enter(self, store: ObjectStore | None = None) -> EntryStep:
        files = self.files if store is None else self.opened(store)
        return Membership(files, "c", GroupRole.COPY, self.shelf).enter()[0]

    def enter_at_last(self) -> list[EntryStep]:
        """All the steps until it is a member."""
        steps = [self.enter()]
        while steps[-1] is not EntryStep.MEMBER:
            assert len(steps) < 6
            steps.append(self.enter())
        return steps

    @property
    def member(self) -> GroupMember:
        return GroupMember("c", self.shelf.kept.incarnation)


def test_who_has_all_joins_with_what_it_has() -> None:
    world = World(threshold=5)
    world.shelf.kept = kept(end=5)
    assert world.enter_at_last() == [EntryStep.JOINED, EntryStep.MEMBER]
    assert world.shelf.kept.standings == kept(end=5).standings
    assert marks_of(world.files.read(), world.member, P) == Marks(0, 0)


@pytest.mark.parametrize("end", [0, 4])
def test_who_comes_too_late_begins_with_nothing_and_keeps_what_it_adopted(end: int) -> None:
    world = World(threshold=5)
    world.shelf.kept = kept(end)
    assert world.enter_at_last() == [EntryStep.JOINED_EMPTY, EntryStep.ADOPTED, EntryStep.MEMBER]
    assert world.shelf.kept.standings == {P: PartitionStanding(Marks(5, 5), 0)}


@pytest.mark.parametrize("now", [kept(8, 7, 7), kept(9, 6, 7), kept(9, 7, 6)])
def test_who_has_less_than_it_has_said_is_another_incarnation(now: Kept) -> None:
    world = World(threshold=5)
    world.shelf.kept = kept(9)
    world.enter_at_last()
    before = world.member
    world.files.say(before, kept(9, 7, 7).standings)
    world.shelf.kept = Kept(before.incarnation, now.standings)
    assert world.enter_at_last() == [EntryStep.JOINED, EntryStep.MEMBER]
    assert world.member != before
    assert not Membership(world.files, "c", GroupRole.COPY, world.shelf).is_still(before)


def test_who_was_restored_from_too_long_ago_begins_with_nothing() -> None:
    world = World()
    world.shelf.kept = kept(3)
    world.enter_at_last()
    world.files.say(world.member, kept(9, 9, 9).standings)
    world.say_other(9)
    world.shelf.kept = Kept(world.member.incarnation, kept(3).standings)
    assert world.enter_at_last() == [EntryStep.JOINED_EMPTY, EntryStep.ADOPTED, EntryStep.MEMBER]


def test_who_was_removed_joins_anew() -> None:
    world = World()
    world.enter_at_last()
    before = world.member
    world.files.leave("c")
    world.files.expect(["c"])
    membership = Membership(world.files, "c", GroupRole.COPY, world.shelf)
    assert not membership.is_still(before)
    assert world.enter_at_last() == [EntryStep.JOINED, EntryStep.MEMBER]
    assert world.member != before


def test_what_has_changed_meanwhile_is_read_again() -> None:
    world = World()
    world.shelf.is_changed = True
    assert world.enter() is EntryStep.CHANGED
    assert world.files.read().members.keys() == {"other"}


def test_what_is_refused_for_another_reason_empties_nothing() -> None:
    world = World()
    world.shelf.kept = kept(3)
    with pytest.raises(Refused, match="other is a copy of the group"):
        Membership(world.files, "other", GroupRole.READER, world.shelf).enter()
    assert world.shelf.kept.standings == kept(3).standings


@pytest.mark.parametrize("end", [4, 5])
def test_whoever_dies_while_joining_joins_the_next_time(end: int) -> None:
    worlds: list[World] = []

    def fresh() -> ObjectStore:
        worlds.append(World(threshold=5))
        worlds[-1].shelf.kept = kept(end)
        return worlds[-1].memory

    for _ in crash_at_every_call(fresh, lambda store: worlds[-1].enter(store)):
        world = worlds[-1]
        assert world.enter_at_last()[-1] is EntryStep.MEMBER
        assert world.files.read().find(world.member) is not None
        assert world.shelf.kept.standings == (
            {P: PartitionStanding(Marks(5, 5), 0)} if end < 5 else kept(5).standings
        )


def test_who_has_the_name_of_another_is_refused_before_anything_is_written() -> None:
    world = World()
    files = world.opened(world.memory)
    assert Membership(files, "c", GroupRole.COPY, Shelf(), "s3://here").enter()[0] is EntryStep.JOINED
    before, second = files.read(), Shelf()
    with pytest.raises(Refused, match="c is the name of s3://here in the group, so s3://there needs another"):
        Membership(files, "c", GroupRole.COPY, second, "s3://there").enter()
    assert (files.read(), second.kept) == (before, kept(0))
    files.leave("c")
    files.expect(["c"])
    assert Membership(files, "c", GroupRole.COPY, second, "s3://there").enter()[0] is EntryStep.JOINED
    assert files.read().members["c"].owner == "s3://there"


def test_two_that_take_one_name_at_once() -> None:
    """Both found it free. The later write is refused."""
    world = World()
    files = world.opened(world.memory)
    files.join(GroupMember("c", "1"), GroupRole.COPY, {P: 0}, "s3://here")
    with pytest.raises(Refused, match="is the name of s3://here"):
        files.join(GroupMember("c", "2"), GroupRole.COPY, {P: 0}, "s3://there")
    assert files.read().members["c"].member == GroupMember("c", "1")


def test_who_is_not_expected_is_refused_before_anything_is_written() -> None:
    """Neither in the group nor with its data."""
    world = World()
    world.files.leave("c")
    before = world.files.read()
    with pytest.raises(Refused, match="the group does not expect c"):
        world.enter()
    assert (world.files.read(), world.shelf.kept) == (before, kept(0))
