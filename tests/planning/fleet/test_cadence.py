"""How often a dataset is looked at, and how closely."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lithify.planning.fleet.cadence import (
    LISTING_EVERY_MS,
    LONGEST_PAUSE_MS,
    Depth,
    PollState,
    depth,
    is_due,
    listing_pause_ms,
    next_look_ms,
    pause_ms,
)

MINUTE = 60_000
HOUR = 60 * MINUTE


@pytest.mark.parametrize(
    ("silence_ms", "pause"),
    [
        (-5, 5_000),
        (0, 5_000),
        (50_000, 5_000),
        (60_000, 6_000),
        (HOUR // 2, 180_000),
        (HOUR, 300_000),
        (9 * HOUR, 300_000),
    ],
)
def test_the_pause_is_a_tenth_of_the_silence_between_5_s_and_5_min(silence_ms: int, pause: int) -> None:
    assert pause_ms(silence_ms, is_running=False) == pause


def test_what_runs_is_looked_at_every_2_s() -> None:
    assert pause_ms(9 * HOUR, is_running=True) == 2_000


def test_a_new_one_is_looked_at_at_once_and_then_after_its_pause() -> None:
    assert is_due(PollState("db", changed_ms=0), 0)
    watched = PollState("db", changed_ms=0, looked_ms=100_000, listed_ms=0)
    assert next_look_ms(watched) == 110_000
    assert not is_due(watched, 109_999)
    assert is_due(watched, 110_000)


def test_a_clock_that_was_set_back_puts_no_look_off() -> None:
    watched = PollState("db", changed_ms=9 * HOUR, looked_ms=9 * HOUR, listed_ms=9 * HOUR)
    assert is_due(watched, HOUR)
    assert depth(watched, HOUR) is Depth.LISTING


@pytest.mark.parametrize(
    ("looked_ms", "listed_ms", "expected"),
    [
        (None, None, Depth.LISTING),
        (HOUR - 1, None, Depth.LISTING),
        (HOUR - MINUTE, HOUR - MINUTE, Depth.NUMBERS),
        (HOUR - MINUTE - 1, HOUR - MINUTE - 1, Depth.BOUNDARY),
        (HOUR - 1, 0, Depth.LISTING),
    ],
)
def test_the_longer_ago_the_closer(looked_ms: int | None, listed_ms: int | None, expected: Depth) -> None:
    assert depth(PollState("db", 0, looked_ms, listed_ms), HOUR) is expected


@given(st.text(), st.integers(0, 50 * HOUR))
def test_every_dataset_is_listed_each_hour(url: str, age_ms: int) -> None:
    """However long it has been silent: it is looked at by its pauses, and one look an hour lists."""
    now_ms = listed_ms = looked_ms = age_ms
    for _ in range(40):
        watched = PollState(url, 0, looked_ms, listed_ms)
        now_ms = next_look_ms(watched)
        looked_ms = now_ms
        if depth(watched, now_ms) is Depth.LISTING:
            assert now_ms - listed_ms <= LISTING_EVERY_MS
            listed_ms = now_ms
        assert now_ms - listed_ms <= LISTING_EVERY_MS


def test_what_was_found_together_is_not_listed_together() -> None:
    pauses = {listing_pause_ms(f"db{number}") // MINUTE for number in range(200)}
    assert len(pauses) > 10
    assert max(pauses) * MINUTE <= LISTING_EVERY_MS - LONGEST_PAUSE_MS
