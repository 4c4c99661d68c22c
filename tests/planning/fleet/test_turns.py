"""Turns by weight, and turns for who has waited longest."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lithify.planning.fleet.fairness import (
    FAIR_EVERY,
    MAX_REMEMBERED,
    FairTurns,
    WeightedTurns,
    longest_wait_claims,
)


def play(turns: WeightedTurns[str], weights: dict[str, int], count: int) -> str:
    given_to = []
    for _ in range(count):
        key = turns.next(weights)
        turns.had(key, weights[key])
        given_to.append(key)
    return "".join(given_to)


def test_equals_take_turns() -> None:
    assert play(WeightedTurns(), {"a": 1, "b": 1, "c": 1}, 6) == "abcabc"


@pytest.mark.parametrize("weights", [{"a": 3, "b": 1}, {"a": 1, "b": 2, "c": 7}, {"a": 1000, "b": 1}])
def test_turns_are_in_proportion_to_weights(weights: dict[str, int]) -> None:
    total = sum(weights.values())
    assert Counter(play(WeightedTurns(), weights, 3 * total)) == {key: 3 * w for key, w in weights.items()}


def test_who_was_away_saved_nothing_up() -> None:
    turns: WeightedTurns[str] = WeightedTurns()
    play(turns, {"a": 1}, 50)
    assert play(turns, {"a": 1, "b": 1}, 4) in ("baba", "abab", "baab")


def test_who_had_many_alone_is_not_punished() -> None:
    turns: WeightedTurns[str] = WeightedTurns()
    play(turns, {"a": 1}, 50)
    play(turns, {"b": 1}, 50)
    assert Counter(play(turns, {"a": 1, "b": 1}, 10))["a"] in (5, 6), "a turn ahead at most"


def test_what_is_remembered_of_many_who_came_once_is_bounded() -> None:
    turns: WeightedTurns[str] = WeightedTurns()
    for number in range(MAX_REMEMBERED + 5):
        play(turns, {str(number): 1}, 1)
    assert len(turns._starts) == MAX_REMEMBERED


@given(
    st.dictionaries(st.text("abcdef", min_size=1, max_size=1), st.integers(1, 9), min_size=1),
    st.integers(1, 60),
)
def test_nobody_is_more_than_a_turn_ahead(weights: dict[str, int], count: int) -> None:
    had = Counter(play(WeightedTurns(), weights, count))
    for one in weights:
        for other in weights:
            ahead = had[one] / weights[one] - had[other] / weights[other]
            assert ahead <= 1 / weights[one] + 1 / weights[other] + 1e-9


def test_of_every_four_claims_one_goes_to_who_waited_longest() -> None:
    fair: FairTurns[str] = FairTurns()
    waiting, given_to = ["a", "b", "hot"], []
    for _ in range(3 * FAIR_EVERY):
        key = fair.longest(waiting) if fair.is_due("all") else "hot"
        fair.count("all", is_fair=fair.longest(waiting) == key)
        fair.had(key, waiting)
        given_to.append(key)
    assert given_to == ["hot", "hot", "hot", "a", "hot", "hot", "hot", "b", "hot", "hot", "hot", "a"]


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), min_size=40, max_size=150))
def test_nobody_is_passed_over_more_often_than_stated(claims: list[tuple[int, int]]) -> None:
    """Whoever the urgent one is, and whoever comes meanwhile."""
    fair: FairTurns[int] = FairTurns()
    waiting, passed = [0], Counter[int]()
    for urgent, comes in claims:
        if comes not in waiting:
            waiting.append(comes)
        key = fair.longest(waiting) if fair.is_due("all") else urgent if urgent in waiting else 0
        fair.count("all", is_fair=fair.longest(waiting) == key)
        fair.had(key, waiting)
        passed.update(other for other in waiting if other != key)
        passed[key] = 0
        assert max(passed.values()) <= longest_wait_claims(len(waiting))
