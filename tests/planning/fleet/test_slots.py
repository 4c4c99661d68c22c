"""Slots that only small and urgent work may use."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lithify.planning.fleet.pending_tasks import SMALL_BYTES, may_use_reserve
from lithify.planning.fleet.priorities import PriorityClass
from lithify.planning.fleet.slots import Slots, Usage, reserved_of


def test_ordinary_work_leaves_the_reserve_to_others() -> None:
    slots = Slots(total=4, open=3)
    full = Usage().plus(may_use_reserve=False).plus(may_use_reserve=False).plus(may_use_reserve=False)
    assert not slots.allow(full, may_use_reserve=False)
    assert slots.allow(full, may_use_reserve=True)
    assert not slots.allow(full.plus(may_use_reserve=True), may_use_reserve=True)


def test_small_work_in_open_slots_takes_none_from_ordinary_work_but_those() -> None:
    slots = Slots(total=4, open=3)
    small = Usage().plus(may_use_reserve=True).plus(may_use_reserve=True)
    assert slots.allow(small, may_use_reserve=False)
    assert not slots.allow(
        small.plus(may_use_reserve=False).plus(may_use_reserve=False), may_use_reserve=False
    )


@pytest.mark.parametrize(
    ("band", "cost", "expected"),
    [
        (PriorityClass.NORMAL, SMALL_BYTES, True),
        (PriorityClass.NORMAL, SMALL_BYTES + 1, False),
        (PriorityClass.ASKED, SMALL_BYTES + 1, False),
        (PriorityClass.STALL, 1 << 50, True),
    ],
)
def test_the_reserve_is_for_small_work_and_writers_near_a_stall(
    band: PriorityClass, cost: int, expected: bool
) -> None:
    assert may_use_reserve(band, cost) is expected


@pytest.mark.parametrize(
    ("slots", "reserved", "expected"),
    [
        ({"a": 1, "b": 1, "c": 1}, 2, [1, 1, 0]),
        ({"a": 8, "b": 8, "c": 8}, 2, [2, 0, 0]),
        ({"a": 8, "b": 8, "c": 8}, 10, [8, 2, 0]),
        ({"a": 1, "b": 1, "c": 1}, 99, [1, 1, 0]),
        ({"a": 1}, 1, [0]),
        ({"a": 2}, 0, [0]),
    ],
)
def test_who_has_served_longest_holds_the_reserve(
    slots: dict[str, int], reserved: int, expected: list[int]
) -> None:
    assert [reserved_of(worker, slots, reserved) for worker in slots] == expected


@given(st.dictionaries(st.text("abc", max_size=3), st.integers(0, 8), max_size=6), st.integers(0, 20))
def test_all_that_can_be_is_reserved_and_one_slot_is_open(slots: dict[str, int], reserved: int) -> None:
    parts = {worker: reserved_of(worker, slots, reserved) for worker in slots}
    assert sum(parts.values()) == max(0, min(reserved, sum(slots.values()) - 1))
    assert all(parts[worker] <= slots[worker] for worker in slots)
