"""The line of a compaction under way: its pace is that since it began, from the first second on."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from lithify.base import events
from lithify.observe.progress import ProgressBars
from lithify.testing import ManualClock
from tests.observe.test_waiting import drawn

URL, ID = "s3://b/db", "01ABCDEF"
GB = 1_000_000_000


def moved(done_bytes: int) -> events.Moved:
    return events.Moved(URL, ID, done_bytes, GB)


def test_the_pace_is_that_since_it_began_however_it_becomes_known() -> None:
    screen, clock = io.StringIO(), ManualClock()
    with ProgressBars(Console(file=screen, force_terminal=True, width=150), clock) as bars:
        bars(events.Prepared(URL, ID, 4, GB))
        clock.advance_s(3)
        said = drawn(bars, screen)
        assert "0/1.0 GB" in said
        assert "– in 3s" in said, "nothing is known yet"
        clock.advance_s(7)
        # All at once: tasks report now and then, and a range that ends counts whole.
        for done in (100_000_000, 200_000_000, 250_000_000):
            bars(moved(done))
        assert "25.0 MB/s in 10s, 30s left" in drawn(bars, screen)
        clock.advance_s(10)
        assert "12.5 MB/s in 20s, 1m left" in drawn(bars, screen), "nothing has moved since"


@pytest.mark.parametrize("done", [0, GB])
def test_the_first_moment_has_no_pace(done: int) -> None:
    screen = io.StringIO()
    with ProgressBars(Console(file=screen, force_terminal=True, width=150), ManualClock()) as bars:
        bars(events.Prepared(URL, ID, 4, GB))
        bars(moved(done))
        assert "– in 0s" in drawn(bars, screen)
