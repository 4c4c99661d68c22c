"""How often a dataset is polled."""

from __future__ import annotations

import pytest

from lithify.planning.fleet.polling import pause_ms

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
