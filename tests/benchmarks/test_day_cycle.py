"""What the simulated day claims: the queue is bounded, the most urgent is done, deferred work comes back,
and in the end nothing is left."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import mean

import pytest
from benchmarks.day_cycle import CAPACITY, PHASES, Day, Fleet, draw

OVERLOAD = next(i for i, phase in enumerate(PHASES) if phase.name == "overload")
BEGIN_MIN, END_MIN = PHASES[OVERLOAD - 1].until_hour * 60, PHASES[OVERLOAD].until_hour * 60


@pytest.fixture(scope="module")
def day() -> Day:
    return Fleet().run()


def test_queue_and_running_tasks_are_bounded(day: Day) -> None:
    assert max(s.queued for s in day.samples) == CAPACITY.max_queued, "the overload is one"
    assert max(s.running for s in day.samples) <= CAPACITY.max_running


def test_more_arrives_in_the_overload_than_can_be_read(day: Day) -> None:
    overload = [s for s in day.samples if BEGIN_MIN < s.minute <= END_MIN]
    assert sum(s.arrived_bytes for s in overload) > 1.5 * sum(s.read_bytes for s in overload)


def test_only_the_least_urgent_is_shed(day: Day) -> None:
    assert day.shed
    assert all(shed.priority <= shed.least_kept for shed in day.shed)
    assert {shed.minute for shed in day.shed if BEGIN_MIN <= shed.minute < END_MIN}
    full_min = BEGIN_MIN + 120
    done = [priority for minute, priority in day.started if full_min <= minute < END_MIN]
    left = [shed.priority for shed in day.shed if full_min <= shed.minute < END_MIN]
    assert mean(done) > max(left) > mean(left)


def test_deferred_work_comes_back_and_is_done(day: Day) -> None:
    assert max(s.deferred_chunks for s in day.samples) > CAPACITY.max_queued
    assert day.samples[-1].deferred_chunks == 0
    assert day.ever_deferred <= day.compacted


def test_while_nothing_changes_deferred_chunks_are_not_analysed(day: Day) -> None:
    """Few files arrive in the recovery: what is looked at is far less than what is deferred, except when
    the queue is empty and they come back."""
    recovery = [s for s in day.samples if END_MIN + 30 < s.minute <= PHASES[OVERLOAD + 1].until_hour * 60]
    waiting = [s for s in recovery if s.deferred_chunks > CAPACITY.max_queued and s.queued > 0]
    assert len(waiting) > 10
    assert sum(s.analysed < s.deferred_chunks / 2 for s in waiting) > 0.9 * len(waiting)


def test_the_day_ends_with_nothing_left_and_no_row_lost(day: Day) -> None:
    assert day.last_plan_tasks == 0
    assert day.rows_left == day.rows_arrived
    assert day.samples[-1].queued == day.samples[-1].running == 0


def test_the_quiet_after_the_burst_is_enough(day: Day) -> None:
    before_overload = [s for s in day.samples if s.minute < BEGIN_MIN]
    assert before_overload[-1].queued == 0
    assert not [shed for shed in day.shed if shed.minute < BEGIN_MIN]


def test_the_picture_is_the_committed_one(day: Day, tmp_path: Path) -> None:
    """Its curves, that is: what the picture library draws around them may change."""
    draw(day, tmp_path / "day.svg")
    committed = Path(__file__).parents[2] / "docs" / "day-cycle.svg"
    assert _curves(tmp_path / "day.svg") == _curves(committed)


def _curves(path: Path) -> list[str]:
    """The long lines, with coordinates to a tenth."""
    found = [line for line in re.findall(r' d="(M[^"]*)"', path.read_text()) if line.count("L") > 50]
    assert len(found) > 5
    return [re.sub(r"(\.\d)\d*", r"\1", line) for line in found]
