"""How many slots each member may fill."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lithify.planning.fleet.priorities import PriorityClass
from lithify.planning.fleet.slots import AHEAD, Demand, Slots, apportioned, parts, quota, tenant_cap

STALL, ASKED, NORMAL = PriorityClass.STALL, PriorityClass.ASKED, PriorityClass.NORMAL

names = st.text("abcdef", min_size=1, max_size=2)
demands = st.dictionaries(
    names, st.dictionaries(st.sampled_from(PriorityClass), st.integers(0, 50)), max_size=5
)


@pytest.mark.parametrize(
    ("slots", "wants", "expected"),
    [
        (10, {"a": {NORMAL: 30}, "b": {NORMAL: 10}}, {"a": 8, "b": 2}),
        (10, {"a": {NORMAL: 3}, "b": {NORMAL: 2}}, {"a": 3, "b": 2}),
        (10, {"a": {NORMAL: 999}, "b": {STALL: 50}}, {"a": 0, "b": 10}),
        (10, {"a": {NORMAL: 999}, "b": {STALL: 4}}, {"a": 6, "b": 4}),
        (10, {"a": {ASKED: 2, NORMAL: 90}, "b": {STALL: 4, NORMAL: 30}}, {"a": 5, "b": 5}),
        (1, {"b": {NORMAL: 1}, "a": {NORMAL: 1}}, {"a": 1, "b": 0}),
        (3, {"a": {}, "b": {NORMAL: 9}}, {"a": 0, "b": 3}),
    ],
)
def test_parts_go_to_the_most_urgent_first_and_by_share(
    slots: int, wants: dict[str, Demand], expected: dict[str, int]
) -> None:
    assert parts(slots, wants) == expected


@given(st.integers(0, 40), demands)
def test_parts_are_exact_and_no_slot_idles_while_somebody_wants_it(
    slots: int, wants: dict[str, Demand]
) -> None:
    found = parts(slots, wants)
    everything = {name: sum(demand.values()) for name, demand in wants.items()}
    assert sum(found.values()) == min(slots, sum(everything.values()))
    assert all(0 <= found[name] <= everything[name] for name in wants)


@given(st.integers(0, 40), st.dictionaries(names, st.integers(0, 99), max_size=6))
def test_a_share_differs_from_the_exact_one_by_less_than_one(seats: int, wants: dict[str, int]) -> None:
    total = sum(wants.values())
    for name, part in apportioned(seats, wants).items():
        exact = wants[name] * min(1, seats / total) if total else 0
        assert abs(part - exact) < 1


def test_a_quota_is_the_part_and_one_ahead() -> None:
    wants = {"a": {NORMAL: 30}, "b": {NORMAL: 10}}
    assert quota("a", 8, 0, wants) == Slots(6 + AHEAD, 6 + AHEAD)
    assert quota("a", 8, 4, wants) == Slots(7, 4), "three of the four that are not reserved, and one ahead"


def test_who_has_nothing_and_where_nobody_serves_nothing_is_admitted() -> None:
    assert quota("a", 0, 0, {"a": {STALL: 9}}) == Slots(0, 0)
    assert quota("a", 9, 0, {"b": {STALL: 9}, "a": {NORMAL: 0}}) == Slots(0, 0)


def test_something_is_open_however_much_is_reserved() -> None:
    assert quota("a", 2, 9, {"a": {NORMAL: 9}}).open == 1 + AHEAD


def test_a_tenants_cap_is_shared_and_nobody_is_left_without() -> None:
    wants = {"a": 30, "b": 10, "c": 0}
    assert [tenant_cap(member, 8, wants) for member in "abc"] == [6, 2, 1]
    assert [tenant_cap(member, 1, wants) for member in "ab"] == [1, 1]
