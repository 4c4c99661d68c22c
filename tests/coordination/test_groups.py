"""A group as objects: nobody publishes for others than are members, nothing that was said is lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lithify.base.errors import CorruptObject, DatasetNotFound, Fenced, LithifyError, Refused, Unsupported
from lithify.base.ids import RandomIds
from lithify.coordination.groups import KEPT_VERSIONS, GroupFiles, decode, encode
from lithify.store.objects import ObjectStore
from lithify.testing import ManualClock, MemoryStore
from lithify.testing.faulty import FaultyStore, StoreFault, crash_at_every_call
from lithify.watermarks.groups import (
    GroupRole,
    GroupState,
    Marks,
    PartitionStanding,
    bound,
    published,
)
from lithify.watermarks.model import GroupMember

A, B = GroupMember("a", "1"), GroupMember("b", "1")
P = 0


class World:
    """A group of two copies, on one clock."""

    def __init__(self, *, keeps_put_ids: bool = True) -> None:
        self.clock = ManualClock()
        self.memory = MemoryStore(self.clock, keeps_put_ids=keeps_put_ids)
        self.files = self.opened()
        self.files.begin([A.name, B.name])
        for member in (A, B):
            self.files.join(member, GroupRole.COPY, {})

    def opened(self, wrap: Callable[[ObjectStore], ObjectStore] = lambda store: store) -> GroupFiles:
        """The group as another process reaches it."""
        return GroupFiles(wrap(self.memory), "group", self.clock, RandomIds())

    def say(self, member: GroupMember, clean: int, resolved: int, end: int = 100) -> None:
        self.files.say(member, standing(clean, resolved, end))

    def thresholds(self) -> Marks:
        return self.opened().read().thresholds_of(P)


def standing(clean: int, resolved: int, end: int = 100) -> dict[int, PartitionStanding]:
    return {P: PartitionStanding(Marks(clean, resolved), end, end)}


@pytest.fixture(params=[True, False], ids=["put ids", "no put ids"])
def world(request: pytest.FixtureRequest) -> World:
    return World(keeps_put_ids=request.param)


def test_what_members_say_is_collected_and_published(world: World) -> None:
    world.say(A, 9, 4)
    world.say(B, 5, 7)
    world.files.publish(world.files.lead("me"))
    group = world.opened().read()
    assert group.thresholds_of(P) == Marks(5, 4)
    assert bound(group, A, P) == Marks(5, 4)
    assert (group.leader, group.epoch, group.published_in) == ("me", 1, 1)


def test_nothing_is_written_where_nothing_has_changed(world: World) -> None:
    epoch = world.files.lead("me")
    world.say(A, 9, 9)
    world.files.publish(epoch)
    before = world.files.files.ids()
    world.say(A, 9, 9)
    world.say(A, 8, 8, 1)
    assert world.files.publish(epoch) == world.opened().read()
    assert world.files.files.ids() == before
    assert world.files.said(A) == standing(9, 9)


def test_an_old_leader_publishes_nothing(world: World) -> None:
    old = world.files.lead("old")
    world.opened().lead("new")
    world.say(A, 9, 9)
    world.say(B, 9, 9)
    with pytest.raises(Fenced, match="a newer leader, new, in epoch 2 after 1"):
        world.files.publish(old)
    assert world.thresholds() == Marks(0, 0)


def test_a_leader_that_slept_publishes_for_the_members_there_are() -> None:
    """It has read the marks of all members it knew; meanwhile another one joins that has not cleaned."""
    world = World()
    world.say(A, 9, 9)
    world.say(B, 9, 9)
    late = GroupMember("c", "1")
    epoch = world.files.lead("me")

    def join_meanwhile(number: int, call: object) -> StoreFault | None:
        if "create group/group/" in f"{getattr(call, 'method', '')} {getattr(call, 'key', '')}":
            world.opened().expect([late.name])
            world.opened().join(late, GroupRole.COPY, {P: 50})
        return None

    sleeper = world.opened(lambda store: FaultyStore(store, join_meanwhile))
    group = sleeper.publish(epoch)
    assert group.find(late) is not None
    assert world.thresholds() == Marks(0, 0)


def test_marks_of_an_earlier_incarnation_say_nothing(world: World) -> None:
    world.say(A, 9, 9)
    world.say(B, 3, 3)
    epoch = world.files.lead("me")
    world.files.publish(epoch)
    again = GroupMember("b", "2")
    world.opened().join(again, GroupRole.COPY, {P: 7})
    world.say(B, 9, 9)
    world.files.publish(epoch)
    assert world.thresholds() == Marks(3, 3)
    world.files.say(again, standing(6, 6))
    world.files.publish(epoch)
    assert world.thresholds() == Marks(6, 6)


@pytest.mark.parametrize(("role", "end"), [(GroupRole.COPY, 8), (GroupRole.READER, 5)])
def test_who_comes_too_late_is_refused_before_anything_is_written(
    world: World, role: GroupRole, end: int
) -> None:
    world.say(A, 6, 9)
    world.say(B, 6, 9)
    world.files.publish(world.files.lead("me"))
    world.files.expect(["c"])
    before = [meta.key for meta in world.memory.list("")]
    with pytest.raises(Refused, match=rf"{role} c joins too late: it has partition 0 up to {end}, .* below"):
        world.files.join(GroupMember("c", "1"), role, {P: end})
    assert [meta.key for meta in world.memory.list("")] == before
    world.files.join(GroupMember("c", "1"), role, {P: 9})
    assert world.thresholds() == Marks(6, 9)


@pytest.mark.parametrize("member", [GroupMember("a b", "1"), GroupMember("a", "~"), GroupMember("", "1")])
def test_names_are_checked(world: World, member: GroupMember) -> None:
    with pytest.raises(Refused, match="is not a name"):
        world.files.join(member, GroupRole.COPY)


def test_a_name_has_one_role(world: World) -> None:
    with pytest.raises(Refused, match="a is a copy of the group"):
        world.files.join(GroupMember("a", "2"), GroupRole.READER)


def test_a_member_that_leaves_frees_the_others(world: World) -> None:
    world.say(A, 9, 9)
    world.say(B, 3, 3)
    world.files.publish(world.files.lead("me"))
    world.opened().leave("b")
    assert world.thresholds() == Marks(9, 9)
    world.files.leave("b")


def test_where_there_is_no_group_nobody_can_do_anything() -> None:
    files = GroupFiles(MemoryStore(), "group", ManualClock(), RandomIds())
    for action in (files.read, lambda: files.lead("me"), lambda: files.publish(1), lambda: files.leave("a")):
        with pytest.raises(DatasetNotFound, match="there is no group in memory://lithify-testing/group"):
            action()


def test_old_versions_and_the_marks_of_who_is_gone_are_deleted(world: World) -> None:
    world.say(A, 1, 1)
    world.say(B, 1, 1)
    epoch = world.files.lead("me")
    for clean in range(2, KEPT_VERSIONS + 10):
        world.say(A, clean, clean)
        world.say(B, clean, clean)
        world.files.publish(epoch)
    world.files.leave("b")
    world.files.collect_garbage()
    assert len(world.files.files.ids()) == KEPT_VERSIONS
    assert [meta.key for meta in world.memory.list("group/marks")] == ["group/marks/a~1.json"]
    assert world.opened().read() == world.files.read()


STEPS: dict[str, Callable[[GroupFiles], object]] = {
    "expect": lambda files: files.expect(["c"]),
    "join": lambda files: files.join(GroupMember("b", "2"), GroupRole.COPY, {P: 9}),
    "say": lambda files: files.say(A, standing(9, 9)),
    "publish": lambda files: files.publish(1),
    "leave": lambda files: files.leave("b"),
    "collect garbage": lambda files: files.collect_garbage(),
}


def prepared(keeps_put_ids: bool) -> World:
    world = World(keeps_put_ids=keeps_put_ids)
    world.files.lead("me")
    world.say(A, 5, 5)
    world.say(B, 5, 5)
    world.say(GroupMember("gone", "1"), 5, 5)
    return world


def told(world: World) -> tuple[GroupState, object, list[str]]:
    files = world.opened()
    return files.read(), files.said(A), [meta.key for meta in world.memory.list("group/marks")]


@pytest.mark.parametrize("keeps_put_ids", [True, False])
@pytest.mark.parametrize("step", STEPS)
def test_whoever_dies_at_any_call_can_do_it_again(step: str, keeps_put_ids: bool) -> None:
    expected = prepared(keeps_put_ids)
    STEPS[step](expected.opened())
    worlds: list[World] = []

    def fresh() -> ObjectStore:
        worlds.append(prepared(keeps_put_ids))
        return worlds[-1].memory

    def run(store: ObjectStore) -> None:
        STEPS[step](GroupFiles(store, "group", worlds[-1].clock, RandomIds()))

    for _ in crash_at_every_call(fresh, run):
        STEPS[step](worlds[-1].opened())
        assert told(worlds[-1]) == told(expected)


@pytest.mark.parametrize("keeps_put_ids", [True, False])
@pytest.mark.parametrize("step", STEPS)
def test_an_answer_that_is_lost_does_no_harm(step: str, keeps_put_ids: bool) -> None:
    expected = prepared(keeps_put_ids)
    STEPS[step](expected.opened())
    for number in range(1, 20):
        world = prepared(keeps_put_ids)
        files = world.opened(lambda store, n=number: FaultyStore.scripted(store, {n: StoreFault.FAIL_AFTER}))  # type: ignore[misc]
        try:
            STEPS[step](files)
        except LithifyError:
            STEPS[step](world.opened())
        assert told(world) == told(expected)


def a_group() -> GroupState:
    world = World()
    world.say(A, 9, 4)
    world.say(B, 5, 7)
    return world.files.publish(world.files.lead("me"))


def test_a_group_is_read_as_it_was_written() -> None:
    assert decode(encode(a_group()), "k") == a_group()
    differing = replace(a_group(), differing={P: ("a", "b")}, expected=frozenset({"c"}))
    assert decode(encode(differing), "k") == differing


def test_a_report_is_read_as_it_was_written(world: World) -> None:
    report = {3: PartitionStanding(Marks(1, 2), 9, 4, {7: (1 << 62) - 1, 5: 1})}
    world.files.say(A, report)
    assert world.opened().said(A) == report


@pytest.mark.parametrize(
    "damage",
    [
        lambda fields: fields.pop("epoch"),
        lambda fields: fields.update(epoch=-1),
        lambda fields: fields.update(members=[]),
        lambda fields: fields["members"]["a"].update(role="king"),
        lambda fields: fields["members"]["a"]["marks"].update({"0": [1]}),
        lambda fields: fields["members"]["a"]["marks"].update({"00": [1, 1]}),
        lambda fields: fields["thresholds"].update({"0": [None, None]}),
        lambda fields: fields["thresholds"].update({"0": 5}),
    ],
)
def test_what_is_no_group_is_an_error(damage: Callable[[dict[str, object]], object]) -> None:
    fields = json.loads(encode(a_group()))
    damage(fields)
    with pytest.raises(CorruptObject, match="k: does not decode as a group"):
        decode(json.dumps(fields).encode(), "k")


def test_a_newer_format_is_refused(world: World) -> None:
    fields = json.loads(encode(a_group()))
    with pytest.raises(Unsupported, match="has format 3"):
        decode(json.dumps({**fields, "format": 3}).encode(), "k")
    world.memory.put("group/marks/a~1.json", b'{"format": 3}')
    with pytest.raises(Unsupported, match="has format 3"):
        world.files.said(A)


def test_the_first_format_is_read_and_continued(world: World) -> None:
    """Its members and thresholds stay; it expects no member, and none has reported markers."""
    before = {
        "format": 1,
        "epoch": 1,
        "leader": "me",
        "published_in": 1,
        "members": {"a": {"role": "copy", "incarnation": "1", "since_ms": 5, "marks": {"0": [5, 4]}}},
        "thresholds": {"0": [{"position": 5, "least": None}, {"position": 4, "least": None}]},
    }
    world.memory.put("group/marks/a~1.json", b'{"format": 1, "incarnation": "1", "marks": {"0": [9, 9, 9]}}')
    assert world.files.said(A) == {P: PartitionStanding(Marks(9, 9), 9)}
    group = decode(json.dumps(before).encode(), "k")
    assert (group.expected, group.members["a"].marks) == (frozenset(), {0: Marks(5, 4)})
    after = published(group, {A: world.files.said(A)}, 6)
    assert after.thresholds_of(P) == Marks(9, 4)
    assert decode(encode(after), "k") == after


def test_a_group_names_its_members_first(world: World) -> None:
    files = GroupFiles(world.memory, "other", world.clock, RandomIds())
    with pytest.raises(DatasetNotFound, match="create it with its members"):
        files.join(A, GroupRole.COPY, {})
    files.begin(["a", "c"])
    assert files.begin(["c", "a"]) == files.read()
    with pytest.raises(Refused, match="already has a group"):
        files.begin(["a"])
    before = files.read()
    with pytest.raises(Refused, match="does not expect b, and waits for a, c: correct the name"):
        files.join(B, GroupRole.COPY, {})
    assert files.read() == before
    files.join(A, GroupRole.COPY, {})
    assert files.leave("c").expected == frozenset()
    with pytest.raises(Refused, match="does not expect c, and waits for no copy"):
        files.join(GroupMember("c", "1"), GroupRole.COPY, {})
    files.expect(["c"])
    files.join(GroupMember("c", "1"), GroupRole.COPY, {})
    assert files.read().members.keys() == {"a", "c"}


@pytest.mark.parametrize("data", [b"", b"[]", b'{"format": 1, "incarnation": "2", "marks": {}}'])
def test_marks_that_do_not_decode_are_an_error_and_not_nothing(world: World, data: bytes) -> None:
    world.memory.put("group/marks/a~1.json", data)
    with pytest.raises(CorruptObject, match="does not decode as the marks of a member"):
        world.files.say(A, standing(9, 9))
    with pytest.raises(CorruptObject):
        world.files.publish(world.files.lead("me"))


# What nobody could read


@pytest.mark.parametrize("bad", [5.0, True, -1, 1 << 62, float("nan"), object()])
def test_what_nobody_could_read_again_is_refused_before_anything_is_written(world: World, bad: Any) -> None:
    world.say(A, 3, 3)
    before = {meta.key: world.memory.get(meta.key) for meta in world.memory.list("")}
    with pytest.raises(Refused, match="nothing was written"):
        world.files.join(GroupMember("c", "1"), GroupRole.READER, {P: bad})
    with pytest.raises(Refused, match="nothing was written"):
        world.files.join(GroupMember("b", "2"), GroupRole.COPY, {}, owner="s3://b/\udcff")
    assert {meta.key: world.memory.get(meta.key) for meta in world.memory.list("")} == before


@pytest.mark.parametrize("bad", [5.0, True, 1 << 62, float("inf")])
def test_marks_that_nobody_could_read_again_are_refused(world: World, bad: Any) -> None:
    world.say(A, 3, 3)
    before = {meta.key: world.memory.get(meta.key) for meta in world.memory.list("")}
    for member in (A, B):
        with pytest.raises(Refused, match="nothing was written"):
            world.files.say(member, {7: PartitionStanding(Marks(1, 1), bad)})
    assert {meta.key: world.memory.get(meta.key) for meta in world.memory.list("")} == before
