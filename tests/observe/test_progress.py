"""The line of a run: tasks, bytes, speed, time left, time elapsed."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
from rich.console import Console

from lithify.base import events
from lithify.observe.progress import ProgressBars
from lithify.testing import ManualClock
from tests.observe.test_waiting import drawn

URL, ID, OTHER = "s3://b/db", "01ABCDEF", "01GHJKMN"
GB = 1_000_000_000


class Screen:
    """A terminal on which the events of a run are shown."""

    def __init__(self, width: int = 150) -> None:
        self.clock = ManualClock()
        self.out = io.StringIO()
        self.bars = ProgressBars(Console(file=self.out, force_terminal=True, width=width), self.clock)

    def after(self, seconds: float, *happened: events.Event) -> str:
        """Return the line after events, and seconds after that."""
        for event in happened:
            self.bars(event)
        self.clock.advance_s(seconds)
        return drawn(self.bars, self.out)


@pytest.fixture
def screen() -> Iterator[Screen]:
    shown = Screen()
    with shown.bars:
        yield shown


def submitted(compaction: str, cost_bytes: int = GB) -> events.Submitted:
    return events.Submitted(URL, compaction, "4 files", cost_bytes, "hour=3@2026-01-01")


def moved(done_bytes: int, compaction: str = ID) -> events.Moved:
    return events.Moved(URL, compaction, done_bytes, GB)


def test_the_line_is_there_before_the_first_compaction(screen: Screen) -> None:
    assert "planning" in screen.after(3)
    said = screen.after(2, submitted(ID))
    assert "starting" in said
    assert "5s elapsed" in said


def test_the_pace_is_that_since_the_first_compaction_began(screen: Screen) -> None:
    screen.after(10, submitted(ID))
    said = screen.after(3, events.Prepared(URL, ID, 4, GB))
    assert "ABCDEF: 0/4 ranges, 0 B of 1.0 GB" in said
    assert "/s" not in said, "nothing is known yet"
    screen.after(7)
    # All at once: tasks report now and then, and a range that ends counts whole.
    said = screen.after(0, *(moved(done) for done in (100_000_000, 200_000_000, 250_000_000)))
    assert "25.0 MB/s, 30s left, 20s elapsed" in said
    assert "12.5 MB/s, 1m left, 30s elapsed" in screen.after(10), "nothing has moved since"


@pytest.mark.parametrize("done", [0, GB])
def test_the_first_moment_has_no_pace(done: int, screen: Screen) -> None:
    assert "/s" not in screen.after(0.1, events.Prepared(URL, ID, 4, GB), moved(done))


def test_bytes_of_an_earlier_run_are_not_moved_by_this_one(screen: Screen) -> None:
    resumed = events.Resumed(URL, ID, 3, 1)
    said = screen.after(2, submitted(ID), resumed, events.Prepared(URL, ID, 1, GB), moved(GB // 2))
    assert "3/4 ranges, 500.0 MB of 1.0 GB" in said
    assert "/s" not in said
    assert "100.0 MB/s, 3s left" in screen.after(0, moved(GB // 2 + 200_000_000))


def test_one_line_counts_all_compactions(screen: Screen) -> None:
    said = screen.after(
        10,
        submitted(ID),
        submitted(OTHER),
        events.Prepared(URL, ID, 2, GB),
        moved(GB),
        events.Committed(URL, ID),
        events.Prepared(URL, OTHER, 3, GB),
        moved(GB // 5, OTHER),
    )
    assert "1/2 compactions, 2/5 ranges, 1.2 GB of 2.0 GB" in said
    assert "120.0 MB/s, 7s left, 10s elapsed" in said
    assert said.count("elapsed") == 1


def test_the_commit_has_no_pace(screen: Screen) -> None:
    ended = [events.RangeFinished(URL, ID, n, GB // 2, 1, 1, 1, 0, 0.0) for n in range(2)]
    said = screen.after(10, submitted(ID), events.Prepared(URL, ID, 2, GB), *ended, moved(GB))
    assert "2/2 ranges" in said
    assert "committing, 10s elapsed" in said
    assert "/s" not in said


def test_a_failed_attempt_takes_its_bytes_back(screen: Screen) -> None:
    screen.after(10, submitted(ID), events.Prepared(URL, ID, 2, GB), moved(GB // 2))
    said = screen.after(0, events.AttemptFailed(URL, ID, "disk on fire"), events.Prepared(URL, ID, 2, GB))
    assert "0/2 ranges, 0 B of 1.0 GB" in said
    assert "0 B of" not in screen.after(0, events.Failed(URL, ID, 3, "disk on fire"))


def test_lines_name_the_unit_and_are_few() -> None:
    out = io.StringIO()
    with ProgressBars(Console(file=out, width=200)) as bars:
        for number in range(30):
            bars(submitted(f"01ABC{number:03}"))
        bars(events.Committed(URL, "01ABC007"))
        bars(events.Resumed(URL, "01ABC008", 1, 1))
    lines = out.getvalue().splitlines()
    assert lines[-2] == "ABC007 committed: hour=3@2026-01-01"
    assert lines[-1] == "ABC008 continues: 1 range is finished, 1 remains."
    assert sum("4 files" in line for line in lines) == 20


def test_a_narrow_terminal_shows_all_figures() -> None:
    screen = Screen(80)
    with screen.bars:
        said = screen.after(100, submitted(ID), events.Prepared(URL, ID, 12, GB), moved(GB // 9))
    assert "0/12 ranges, 111.1 MB of 1.0 GB" in said
    assert "1.1 MB/s, 13m 20s left, 1m 40s elapsed" in said
