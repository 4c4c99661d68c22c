"""The rules of a group: whatever is said, joins, leaves and leads in any order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lithify.watermarks.groups import (
    BlockedRemoval,
    GroupRole,
    GroupState,
    Joined,
    Marks,
    PartitionStanding,
    Track,
    bound,
    differ,
    expecting,
    is_expected,
    is_source,
    joined,
    led,
    left,
    lost,
    passed,
    published,
    said,
    waiting,
)
from lithify.watermarks.model import GroupMember
from tests.watermarks.marks import marks_of

A, B, C = GroupMember("a", "1"), GroupMember("b", "1"), GroupMember("c", "1")
P = 0
positions = st.integers(0, 9)
all_marks = st.builds(Marks, positions, positions)
standings = st.builds(PartitionStanding, all_marks, positions)


def group_of(*members: GroupMember, role: GroupRole = GroupRole.COPY) -> GroupState:
    group = GroupState()
    for member in members:
        group = joined(group, member, role, 0, {})
    return group


def say(group: GroupState, now_ms: int = 1, **marks: tuple[int, int]) -> GroupState:
    """Members by their names, with their two marks in the one partition."""
    return published(group, {group.members[n].member: {P: report(*p)} for n, p in marks.items()}, now_ms)


def report(clean: int, resolved: int, markers_end: int = 99) -> PartitionStanding:
    return PartitionStanding(Marks(clean, resolved), 99, markers_end)


def thresholds(group: GroupState) -> tuple[int, int]:
    found = group.thresholds_of(P)
    return found.clean, found.resolved


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[str, str, Marks, int]]:
    what = st.sampled_from(["say", "fresh", "with data", "reader", "leave", "lead"])
    return draw(st.lists(st.tuples(what, st.sampled_from("abc"), all_marks, positions), max_size=12))


@given(steps())
def test_thresholds_never_go_down_nor_past_what_anybody_has_said(
    played: list[tuple[str, str, Marks, int]],
) -> None:
    group, number = group_of(A), 0
    for what, name, marks, end in played:
        before, number = group, number + 1
        newcomer, members = GroupMember(name, str(number)), tuple(group.members.values())
        match what:
            case "say":
                said_by = {one.member: {P: report(marks.clean, marks.resolved, end)} for one in members}
                group = published(group, said_by, number)
            case "fresh":
                group = joined(group, newcomer, GroupRole.COPY, number)
            case "with data" | "reader":
                role = GroupRole.COPY if what == "with data" else GroupRole.READER
                if passed(group, role, {P: end}) is None:
                    group = joined(group, newcomer, role, number, {P: end})
            case "leave":
                group = left(group, name, number)
            case "lead":
                group = led(group, name)
        for track in Track:
            then, now = before.thresholds_of(P).of(track), group.thresholds_of(P).of(track)
            assert now >= then
            required = [m for m in group.members.values() if track is Track.CLEAN or m.role is GroupRole.COPY]
            if now > then:
                assert all(now <= m.marks.get(P, Marks()).of(track) for m in required)
            for one in group.members.values():
                limit = bound(group, one.member, P).of(track)
                assert limit <= now
                assert all(limit <= m.marks.get(P, Marks()).of(track) for m in required)


def test_the_thresholds_are_the_least_of_both_marks_on_their_own() -> None:
    group = say(group_of(A, B), a=(9, 3), b=(5, 7))
    assert thresholds(group) == (5, 3)
    assert bound(group, A, P) == Marks(5, 3)


def test_who_has_said_nothing_keeps_everything() -> None:
    group = say(group_of(A, B), a=(9, 9))
    assert thresholds(group) == (0, 0)
    assert waiting(group) == (
        BlockedRemoval(P, Track.CLEAN, 0, "b", 1, 9),
        BlockedRemoval(P, Track.RESOLVED, 0, "b", 1, 9),
    )


def test_who_is_silent_is_named_with_the_time_since_when() -> None:
    group = say(group_of(A, B), 10, a=(9, 9), b=(4, 9))
    group = say(group, 20, a=(12, 12))
    assert waiting(group)[0] == BlockedRemoval(P, Track.CLEAN, 4, "b", 10, 12)
    group = say(group, 30, b=(7, 12))
    assert waiting(group)[0] == BlockedRemoval(P, Track.CLEAN, 7, "b", 30, 12)
    assert waiting(say(group, 40, b=(12, 12))) == ()


def test_what_is_said_for_another_incarnation_does_not_count() -> None:
    group = joined(say(group_of(A, B), a=(9, 9), b=(3, 3)), GroupMember("b", "2"), GroupRole.COPY, 1, {P: 9})
    group = published(group, {B: {P: report(9, 9)}}, 2)
    assert thresholds(group) == (3, 3)
    assert bound(group, A, P) == Marks(0, 0), "it may have anything below there"
    assert bound(group, B, P) == Marks(0, 0), "it is no member any more"


def test_a_member_that_is_removed_keeps_nothing_at_once() -> None:
    group = say(group_of(A, B), a=(9, 9), b=(3, 3))
    assert thresholds(left(group, "b", 2)) == (9, 9)
    assert left(group, "nobody", 2) is group


def test_the_last_copy_may_leave() -> None:
    group = say(group_of(A), a=(9, 9))
    assert thresholds(left(group, "a", 2)) == (9, 9)


def test_who_comes_with_nothing_adopts_the_thresholds_and_keeps_nobody() -> None:
    group = joined(say(group_of(A), a=(9, 8)), B, GroupRole.COPY, 2)
    assert marks_of(group, B, P) == Marks(9, 8)
    assert bound(group, A, P) == Marks(9, 8)
    assert thresholds(say(group, a=(12, 12))) == (9, 8), "until it is clean itself"


@pytest.mark.parametrize(
    ("role", "end", "is_late"),
    [
        (GroupRole.COPY, 8, True),
        (GroupRole.COPY, 9, False),
        (GroupRole.COPY, 10, False),
        (GroupRole.READER, 4, True),
        (GroupRole.READER, 5, False),  # markers are nothing to a reader
    ],
)
def test_who_comes_with_something_must_have_all_below_the_thresholds(
    role: GroupRole, end: int, is_late: bool
) -> None:
    group = say(group_of(A), a=(5, 9))
    assert passed(group, role, {P: end}) == (P if is_late else None)


def test_a_partition_that_a_newcomer_does_not_name_it_does_not_have() -> None:
    group = published(group_of(A), {A: {3: report(1, 1)}}, 1)
    assert passed(group, GroupRole.COPY, {P: 100}) == 3


def test_nothing_is_raised_before_each_expected_copy_has_joined_and_reported() -> None:
    """Whoever is compacted first decides nothing."""
    group = say(expecting(group_of(A), ["b", "c"]), a=(9, 9))
    assert thresholds(group) == (0, 0)
    group = say(joined(group, B, GroupRole.COPY, 2, {P: 3}), b=(3, 3))
    assert thresholds(group) == (0, 0), "c may be further behind"
    group = say(joined(group, C, GroupRole.COPY, 3, {P: 1}))
    assert thresholds(group) == (0, 0), "c has not reported"
    group = say(group, c=(1, 0))
    assert thresholds(group) == (1, 0)
    assert group.expected == frozenset()


def test_nothing_is_removed_while_a_new_copy_is_awaited_and_no_threshold_goes_down() -> None:
    group = expecting(say(group_of(A), a=(9, 9)), ["b"])
    assert bound(group, A, P) == Marks(0, 0)
    assert thresholds(say(group, a=(12, 12))) == (9, 9)
    assert bound(left(group, "b", 2), A, P) == Marks(9, 9)


def test_a_copy_that_is_not_expected_may_not_join_and_a_reader_may() -> None:
    group = expecting(group_of(A), ["b", "a"])
    assert group.expected == {"b"}, "a has joined"
    assert [is_expected(group, name, GroupRole.COPY) for name in "abc"] == [True, True, False]
    assert is_expected(group, "c", GroupRole.READER)


def test_a_log_without_markers_publishes_nothing_about_them() -> None:
    """So no copy comes too late for markers that never were."""
    group = published(group_of(A), {A: {P: report(0, 9, markers_end=0)}}, 1)
    assert thresholds(group) == (0, 0)
    assert passed(group, GroupRole.COPY, {P: 1}) is None
    assert waiting(group) == ()
    group = published(group, {A: {P: report(0, 9, markers_end=4)}}, 2)
    assert thresholds(group) == (0, 4)
    assert thresholds(published(group, {A: {P: report(0, 12, markers_end=0)}}, 3)) == (0, 4)


@pytest.mark.parametrize(
    ("one", "other", "contradict"),
    [
        ({4: 1}, {4: 1}, False),
        ({4: 1}, {4: 2}, True),
        ({4: 1, 5: 1}, {5: 2, 6: 1}, True),
        ({4: 1}, {5: 1}, False),  # a newer record of the key, which the first may still lack
        ({}, {4: 1}, False),
    ],
)
def test_copies_differ_if_they_have_two_keys_at_one_offset(
    one: dict[int, int], other: dict[int, int], contradict: bool
) -> None:
    assert (differ(one, other), differ(other, one)) == (contradict, contradict)


def test_no_threshold_is_raised_while_two_copies_differ() -> None:
    group = say(group_of(A, B), a=(3, 3), b=(3, 3))
    reports = {member: {P: replace(report(9, 9), sample={1: at})} for member, at in ((A, 4), (B, 5))}
    group = published(group, reports, 2)
    assert (group.differing, thresholds(group)) == ({P: ("a", "b")}, (3, 3))
    assert bound(group, A, P) == Marks(0, 0)
    assert thresholds(left(group, "b", 3)) == (9, 9)
    reports[B] = {P: replace(report(9, 9), sample={1: 4})}
    assert thresholds(published(group, reports, 3)) == (9, 9)


def test_who_joins_twice_has_joined_once() -> None:
    group = say(group_of(A, B), a=(9, 9), b=(9, 9))
    assert joined(group, B, GroupRole.COPY, 7, {P: 9}) is group


def test_a_reader_counts_for_tombstones_only() -> None:
    group = joined(group_of(A), B, GroupRole.READER, 0, {P: 4})
    group = say(group, a=(9, 9))
    assert thresholds(group) == (4, 9)
    assert thresholds(say(group, b=(2, 0))) == (4, 9), "offsets that are reset backwards lower nothing"
    assert thresholds(say(group, b=(7, 0))) == (7, 9)


@pytest.mark.parametrize(
    ("own", "end", "source", "may"),
    [
        (Marks(0, 0), 0, Marks(0, 0), True),
        (Marks(9, 9), 0, Marks(9, 9), True),
        (Marks(9, 9), 8, Marks(9, 8), False),
        (Marks(9, 9), 8, Marks(8, 9), False),
        (Marks(9, 9), 9, Marks(0, 0), True),  # what it copies lies past what it relies on
    ],
)
def test_who_relies_on_adopted_marks_copies_from_who_is_as_clean(
    own: Marks, end: int, source: Marks, may: bool
) -> None:
    assert is_source(own, end, source) == may


def test_a_member_believes_its_own_minimum_and_not_a_threshold_that_is_too_high() -> None:
    group = say(group_of(A, B), a=(9, 9), b=(3, 3))
    high = say(group_of(A), a=(20, 20)).thresholds
    assert bound(replace(group, thresholds=high), A, P) == Marks(3, 3)


def test_a_new_leader_publishes_again() -> None:
    group = say(group_of(A), a=(9, 9))
    assert say(group, 2, a=(9, 9)) == group
    after = led(group, "other")
    assert after.thresholds == group.thresholds
    assert say(after, 2, a=(9, 9)) != after


@given(st.dictionaries(st.integers(0, 2), standings), st.dictionaries(st.integers(0, 2), standings))
def test_what_was_said_stays_said_and_who_has_less_has_lost_something(
    before: dict[int, PartitionStanding], now: dict[int, PartitionStanding]
) -> None:
    both = said(before, now)
    assert lost(both, said(both, before)) is None
    is_all_there = all(both[partition] == now.get(partition, PartitionStanding()) for partition in before)
    assert (lost(before, now) is None) == is_all_there
    for one in (before, now):
        for partition, standing in one.items():
            assert both[partition].end >= standing.end
            assert all(both[partition].marks.of(t) >= standing.marks.of(t) for t in Track)


@pytest.mark.parametrize(
    "now",
    [PartitionStanding(Marks(3, 4), 9), PartitionStanding(Marks(4, 3), 9), PartitionStanding(Marks(4, 4), 8)],
)
def test_less_of_anything_is_a_loss(now: PartitionStanding) -> None:
    assert lost({P: PartitionStanding(Marks(4, 4), 9)}, {P: now}) == P
    assert lost({P: PartitionStanding(Marks(4, 4), 9)}, {P: PartitionStanding(Marks(4, 4), 9)}) is None


def test_marks_are_by_partition() -> None:
    group = published(group_of(A, B), {A: {0: report(5, 5), 1: report(7, 7)}, B: {1: report(6, 6)}}, 1)
    assert (group.thresholds_of(0), group.thresholds_of(1)) == (Marks(0, 0), Marks(6, 6))
    assert isinstance(group.members["a"], Joined)
