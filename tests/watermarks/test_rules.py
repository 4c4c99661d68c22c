"""The invariants of `lithify.watermarks`, for whatever anybody does in any order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lithify.watermarks.model import BlockReason, GroupMember, Hold, Mark, Needed, Threshold
from lithify.watermarks.rules import (
    Collected,
    admits,
    collect,
    cut,
    is_over,
    live,
    next_threshold,
    raised,
)

NOW = 1000
positions = st.integers(0, 50)
members = st.builds(GroupMember, st.sampled_from("abc"), st.sampled_from(["1", "2"]))
marks = st.lists(st.builds(Mark, members, st.none() | positions), max_size=8)
holds = st.lists(
    st.builds(
        Hold,
        st.sampled_from("xyz"),
        st.just("somebody"),
        positions,
        st.integers(0, NOW),
        st.none() | st.integers(NOW - 2, NOW + 2),
    ),
    max_size=4,
)
required_members = st.frozensets(members, max_size=3)
watermarks = st.none() | positions


def at(position: int) -> Threshold:
    return Threshold(position)


@given(st.lists(st.tuples(watermarks, required_members, marks, holds), max_size=6))
def test_a_threshold_never_goes_down_and_never_passes_what_is_needed(rounds: list) -> None:  # type: ignore[type-arg]
    published: Threshold | None = None
    for low, required, said, held in rounds:
        collected = collect(required, said, held, NOW)
        found = next_threshold(published, low, collected)
        before = -1 if published is None else published.position
        after = -1 if found is None else found.position
        assert after >= before
        if after > before:
            assert low is not None
            assert after <= low
            assert all(after <= hold.position for hold in live(held, NOW))
            for member in required:
                said_by = [mark.position for mark in said if mark.member == member]
                assert said_by
                assert max(p if p is not None else -1 for p in said_by) >= after
        published = found


@given(required_members, marks, holds, watermarks, st.none() | st.builds(at, positions))
def test_what_is_cut_off_nobody_needs(
    required: frozenset[GroupMember],
    said: list[Mark],
    held: list[Hold],
    low: int | None,
    published: Threshold | None,
) -> None:
    collected = collect(required, said, held, NOW)
    below = cut(published, low, collected)
    known = {mark.member for mark in said if mark.position is not None}
    if not required <= known:
        assert below in (BlockReason.MISSING_MEMBER, BlockReason.UNPUBLISHED)
    if isinstance(below, int):
        assert published is not None
        assert low is not None
        assert below <= min(published.position, low)
        assert all(below <= hold.position for hold in live(held, NOW))


@given(st.lists(st.builds(Mark, members, st.none() | positions), min_size=1))
def test_a_mark_never_goes_down_within_an_incarnation(said: list[Mark]) -> None:
    mark: Mark | None = None
    for new in said:
        before, mark = mark, raised(mark, new)
        if before is not None and before.member == mark.member and before.position is not None:
            assert mark.position is not None
            assert mark.position >= before.position


def test_a_new_incarnation_has_said_nothing() -> None:
    before, now = GroupMember("a", "1"), GroupMember("a", "2")
    assert collect([now], [Mark(before, 9)], [], NOW).reason is BlockReason.MISSING_MEMBER
    assert collect([now], [Mark(before, 9), Mark(now, None)], [], NOW).reason is BlockReason.UNPUBLISHED
    assert collect([now], [Mark(now, 3)], [], NOW).least == Needed(3, "a")


def test_members_nobody_requires_block_nothing() -> None:
    assert collect([], [Mark(GroupMember("a"), None), Mark(GroupMember("b"), 1)], [], NOW) == Collected()


def test_a_member_that_is_missing_leaves_the_threshold_where_it_is_and_what_is_known_is_told() -> None:
    collected = collect([GroupMember("a"), GroupMember("b")], [Mark(GroupMember("b"), 7)], [], NOW)
    assert collected == Collected(Needed(7, "b"), BlockReason.MISSING_MEMBER, "a")
    assert next_threshold(at(3), 9, collected) == Threshold(3, Needed(7, "b"))
    assert next_threshold(None, 9, collected) is None


def test_a_lapsed_hold_keeps_nothing_and_goes_once_it_cannot_be_renewed() -> None:
    hold = Hold("x", "me", 5, 0, NOW)
    assert collect([], [], [hold], NOW - 1).least == Needed(5, "x", 0)
    assert collect([], [], [hold], NOW).least is None
    assert not is_over(hold, at(5), NOW), "its holder may renew it"
    assert not is_over(hold, at(6), NOW - 1), "it has not lapsed"
    assert is_over(hold, at(6), NOW)


def test_the_reasons() -> None:
    nothing = Collected()
    assert cut(at(5), None, nothing) is BlockReason.NOTHING_TO_DO
    assert cut(None, 5, nothing) is BlockReason.NO_WATERMARK
    assert cut(at(5), 9, nothing) == 5
    assert cut(at(9), 5, nothing) == 5
    assert cut(at(9), 5, Collected(Needed(2, "x"))) == 2


# The race

Steps = list[str]
PUTS_FIRST, READS_FIRST = ["put", "read"], ["read", "put"]
PUBLISHES_FIRST, LISTS_FIRST = ["publish", "list"], ["list", "publish"]


def interleavings(holder: Steps, leader: Steps) -> Iterator[Steps]:
    """All orders in which two parties can take their steps."""
    count = len(holder) + len(leader)
    for chosen in combinations(range(count), len(holder)):
        one, other = iter(holder), iter(leader)
        yield [next(one) if n in chosen else next(other) for n in range(count)]


def is_bad(order: Steps, position: int) -> bool:
    """Whether somebody holds what is cut off."""
    held: list[Hold] = []
    published: Threshold | None = None
    collected, admitted, below = Collected(), False, 0
    for step in order:
        match step:
            case "put":
                held.append(Hold("x", "me", position, 0))
            case "read":
                admitted = admits(published, position)
            case "publish":
                published = next_threshold(published, 2, Collected())
            case "list":
                collected = collect([], [], held, NOW)
            case "cut":
                found = cut(published, 2, collected)
                below = found if isinstance(found, int) else 0
    return admitted and position < below


@pytest.mark.parametrize(
    ("holder", "leader", "is_safe"),
    [
        (PUTS_FIRST, PUBLISHES_FIRST, True),
        (READS_FIRST, PUBLISHES_FIRST, False),
        (PUTS_FIRST, LISTS_FIRST, False),
    ],
)
def test_whoever_registers_races_safely(holder: Steps, leader: Steps, is_safe: bool) -> None:
    """The holder puts and then reads, the leader publishes and then lists; turned round, either loses."""
    orders = list(interleavings(holder, [*leader, "cut"]))
    bad = [(order, position) for order in orders for position in range(4) if is_bad(order, position)]
    assert len(orders) == 10
    assert (not bad) == is_safe, bad
