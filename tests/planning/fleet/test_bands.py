"""Bands: what is in which, and that none reaches into another, through everything that uses them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lithify.planning.fleet.admission import QueueAdmission, QueueLimits
from lithify.planning.fleet.priorities import NEAR_STALL_MS, PriorityClass, band_of, rank
from lithify.planning.fleet.slots import Slots
from tests.planning.fleet.wanting import names, want

priorities = st.floats(0, 1)


@pytest.mark.parametrize(
    ("stall_ms", "waiting", "limit", "band"),
    [
        (0, 8, 8, PriorityClass.STALL),
        (NEAR_STALL_MS, 1, 8, PriorityClass.STALL),
        (NEAR_STALL_MS + 1, 7, 8, PriorityClass.NORMAL),
        (NEAR_STALL_MS + 1, 8, 8, PriorityClass.OVER_LIMIT),
        (None, 8, 8, PriorityClass.OVER_LIMIT),
        (None, 7, 8, PriorityClass.NORMAL),
        (None, 99, 0, PriorityClass.NORMAL),
    ],
)
def test_which_band(stall_ms: int | None, waiting: int, limit: int, band: PriorityClass) -> None:
    """The last one: a limit that nobody knows is not exceeded (Accumulo ranked ordinary work above that of
    people so)."""
    assert band_of(stall_ms=stall_ms, waiting=waiting, limit=limit) is band


@given(st.sampled_from(PriorityClass), priorities, st.sampled_from(PriorityClass), priorities)
def test_bands_are_disjoint_and_inside_one_the_priority_decides(
    band: PriorityClass, priority: float, other: PriorityClass, other_priority: float
) -> None:
    first, second = rank(band, priority), rank(other, other_priority)
    assert 0 <= first <= 1
    if band != other:
        assert (first > second) == (band < other)
    elif priority >= other_priority:
        assert first >= second


@given(st.lists(st.tuples(st.sampled_from(PriorityClass), priorities), min_size=1, max_size=3))
def test_bands_are_disjoint_through_the_planner(wants: list[tuple[PriorityClass, float]]) -> None:
    """From backlog and limit to what is admitted: no priority lifts a want over a better band. No more than
    three: the fourth claim is for who has waited longest."""
    queue = QueueAdmission(QueueLimits())
    for number, (band, priority) in enumerate(wants):
        queue.offer(f"d{number}", [want(f"d{number}", band, priority)], 0)
    admitted = queue.admit(Slots(9, 9), 9)
    assert [w.band for w in admitted] == sorted(band for band, _ in wants)


def test_inside_a_band_priority_then_age() -> None:
    queue = QueueAdmission(QueueLimits())
    queue.offer("a", [want("a", priority=0.2, since_ms=1)], 0)
    queue.offer("b", [want("b", priority=0.2, since_ms=0)], 0)
    queue.offer("c", [want("c", priority=0.3, since_ms=9)], 0)
    assert names(queue.admit(Slots(9, 9), 9)) == ["c", "b", "a"]


@pytest.mark.parametrize("priority", [-0.1, 1.1, math.nan, math.inf])
def test_what_is_no_priority_is_no_want(priority: float) -> None:
    with pytest.raises(ValueError, match="not a priority"):
        want("d", priority=priority)
