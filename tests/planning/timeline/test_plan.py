"""Whole plans: convergence, skip offsets, totals, speed by counting."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lithify.planning.timeline.calendar import Calendar, Granularity
from lithify.planning.timeline.model import (
    ActiveTask,
    ChunkAction,
    ChunkBucket,
    DeletesStatus,
    Task,
    TimelineFile,
    TimelinePlan,
)
from lithify.planning.timeline.plan import Replanning, plan, remember, resolve
from lithify.testing.timeline import ModelTable
from tests.planning.timeline.timelines import (
    DAY_US,
    HOUR_US,
    MB,
    NOW_US,
    POLICY,
    calendars,
    day,
    days,
    file,
    keys_in,
    small_files,
    timelines,
)

MAX_ROUNDS = 6
TODAY = NOW_US // DAY_US


def run(table: ModelTable, tasks: Iterable[Task]) -> None:
    """Run tasks one after the other, predecessors first; inputs are resolved when each starts."""
    waiting = list(tasks)
    done: set[str] = set()
    while waiting:
        task = next(task for task in waiting if done >= set(task.after))
        waiting.remove(task)
        table.rewrite([f.id for f in resolve(task.chunks, table.listing(), table.policy)])
        done.add(task.key)


def rounds_until_nothing_is_left(table: ModelTable) -> int:
    """How many plans had tasks."""
    for count in range(MAX_ROUNDS + 1):
        result = plan(table.listing(), table.policy, NOW_US)
        if not result.tasks:
            return count
        run(table, result.tasks)
    raise AssertionError(f"after {MAX_ROUNDS} rounds there are still tasks: {result.tasks}")


@given(
    timelines(groups=("", "b")),
    calendars,
    st.sampled_from([1, 120 * MB, 400 * MB, 1 << 40]),
    st.booleans(),
    st.sampled_from([0.0, 0.25]),
)
@settings(max_examples=40, deadline=None)
def test_run_everything_and_the_next_plan_is_empty(
    files: list[TimelineFile], calendar: Calendar, limit_bytes: int, several: bool, tolerance: float
) -> None:
    policy = replace(
        POLICY,
        calendar=calendar,
        max_task_bytes=limit_bytes,
        several_dependencies=several,
        size_tolerance=tolerance,
    )
    table = ModelTable.of(files, policy)
    rows = table.rows()
    rounds = rounds_until_nothing_is_left(table)
    assert table.rows() == rows
    if limit_bytes == 1 << 40:
        assert rounds <= 2, "one round, and one more for neighbours that got part of a shared file"


def test_sizes_that_come_out_differently_than_expected_do_not_go_round_in_circles() -> None:
    policy = replace(POLICY, size_tolerance=0.25)
    for ratio in (0.8, 0.9, 1.0, 1.1, 1.2):
        table = ModelTable.of(small_files(0, 40, 20), policy, ratio=ratio)
        assert rounds_until_nothing_is_left(table) == 1


@given(timelines(), st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_after_a_crash_only_what_was_not_done_is_planned(files: list[TimelineFile], done: int) -> None:
    """Tasks of chunks whose task ran are not planned again, unless a neighbour's late part arrived."""
    policy = replace(POLICY, max_task_bytes=250 * MB)
    table = ModelTable.of(files, policy)
    red = [task for task in plan(files, policy, NOW_US).tasks if not task.after]
    finished = red[:done]
    run(table, finished)
    again = plan(table.listing(), policy, NOW_US)
    in_time = {key for key in keys_in(finished) if key.bucket is ChunkBucket.TIME}
    assert not in_time & set(keys_in(again.tasks))
    run(table, again.tasks)
    rounds_until_nothing_is_left(table)


@given(timelines(groups=("", "b")), st.booleans())
@settings(max_examples=30, deadline=None)
def test_totals_add_up_to_the_timeline(files: list[TimelineFile], busy: bool) -> None:
    policy = replace(POLICY, skip_newest_us=2 * DAY_US)
    first = plan(files, policy, NOW_US)
    active = [
        ActiveTask(task.key, frozenset(task.chunks), frozenset(task.files))
        for task in first.tasks[: busy * 2]
    ]
    result = plan(files, policy, NOW_US, active=active)
    assert set(result.totals) == set(DeletesStatus)
    amounts = result.totals.values()
    assert sum(a.chunks for a in amounts) == len(result.chunks)
    assert sum(a.files for a in amounts) == len(files)
    assert sum(a.size_bytes for a in amounts) == sum(f.size_bytes for f in files)
    awaiting = {p.chunk.key for p in result.chunks if p.status is DeletesStatus.AWAITING}
    assert awaiting == {p.chunk.key for p in first.chunks if p.status is DeletesStatus.AWAITING}
    assert not set(keys_in(result.tasks)) & {key for work in active for key in work.chunks}


def test_a_file_counts_once_by_its_most_urgent_chunk() -> None:
    files = [file(0.5, 1.5, 7, id="both"), *small_files(1, 1)]
    totals = plan(files, POLICY, NOW_US).totals
    assert (totals[DeletesStatus.AWAITING].files, totals[DeletesStatus.AWAITING].size_bytes) == (2, 8 * MB)
    assert totals[DeletesStatus.AWAITING].chunks == 2, "day 0 is rewritten with its neighbour"
    assert totals[DeletesStatus.COMPACTED].files == 0


def planned_days(result: TimelinePlan) -> list[int]:
    return sorted(days(keys_in(result.tasks)))


def held_days(result: TimelinePlan) -> list[int]:
    return sorted(days(p.chunk.key for p in result.chunks if p.held is not None))


RECENT = [f for i in range(TODAY - 5, TODAY + 1) for f in small_files(i, 2)]
"""Two files for each of the last days; those of today end in the future."""


@pytest.mark.parametrize(
    ("files", "clock_days", "newest_days", "planned", "held"),
    [
        pytest.param(RECENT, None, None, [-5, -4, -3, -2, -1, 0], [], id="nothing is held by itself"),
        pytest.param(RECENT, 0, None, [-5, -4, -3, -2, -1], [0], id="the day that is not over"),
        pytest.param(RECENT, 1, None, [-5, -4, -3, -2], [-1, 0], id="and the day before"),
        pytest.param(RECENT[:8], 1, None, [-5, -4, -3, -2], [], id="the clock does not care for data"),
        pytest.param(RECENT[:8], None, 0, [-5, -4, -3], [-2], id="the day of the newest data"),
        pytest.param(RECENT[:8], None, 1, [-5, -4], [-3, -2], id="and the one before"),
        pytest.param(RECENT, None, 0, [-5, -4, -3, -2], [-1, 0], id="newest: not what is in the future"),
        pytest.param(RECENT[:8], 4, 0, [-5], [-4, -3, -2], id="whichever holds more"),
        pytest.param(
            [*RECENT[:8], *small_files(TODAY + 900, 2)],
            None,
            1,
            [-5, -4],
            [-3, -2, 900],
            id="future data does not move the offset",
        ),
        pytest.param(
            [*RECENT[:8], file(TODAY - 2.5, TODAY + 9000)],
            None,
            1,
            [-5, -4],
            [-3, -2],
            id="nor does a file that reaches into the future",
        ),
    ],
)
def test_skip_offsets(
    files: list[TimelineFile],
    clock_days: int | None,
    newest_days: int | None,
    planned: list[int],
    held: list[int],
) -> None:
    policy = replace(
        POLICY,
        skip_clock_us=None if clock_days is None else clock_days * DAY_US,
        skip_newest_us=None if newest_days is None else newest_days * DAY_US,
    )
    result = plan(files, policy, NOW_US)
    in_time = [key for key in keys_in(result.tasks) if key.bucket is ChunkBucket.TIME]
    assert [number - TODAY for number in sorted(days(in_time))] == planned
    assert [number - TODAY for number in held_days(result)] == held
    for chunk in result.chunks:
        if chunk.held is not None:
            assert chunk.status is DeletesStatus.SKIPPED
            assert chunk.verdict.action is ChunkAction.COMPACT


def test_a_held_chunk_with_nothing_to_do_counts_as_compacted() -> None:
    files = [*small_files(TODAY - 1, 1), *small_files(TODAY, 2)]
    totals = plan(files, replace(POLICY, skip_clock_us=DAY_US), NOW_US).totals
    assert (totals[DeletesStatus.COMPACTED].files, totals[DeletesStatus.SKIPPED].files) == (1, 2)


def test_a_held_chunk_is_compacted_once_it_is_old_enough() -> None:
    policy = replace(POLICY, skip_clock_us=HOUR_US)
    files = small_files(10, 3)
    assert not plan(files, policy, 11 * DAY_US + HOUR_US - 1).tasks
    assert plan(files, policy, 11 * DAY_US + HOUR_US).tasks


def test_a_chunk_in_work_gets_no_second_task() -> None:
    files = [f for i in range(3) for f in small_files(i, 3)]
    policy = replace(POLICY, max_task_bytes=1)
    active = ActiveTask("x", frozenset({day(1)}), frozenset({"d1-0", "d1-1", "d1-2"}))
    result = plan(files, policy, NOW_US, active=[active])
    assert planned_days(result) == [0, 2]
    assert [(p.status, p.task) for p in result.chunks if p.chunk.key == day(1)] == [
        (DeletesStatus.AWAITING, "x")
    ]


def test_more_fragmented_chunks_come_first() -> None:
    files = [*small_files(0, 3), *small_files(2, 30), *small_files(4, 9)]
    assert [days(task.chunks) for task in plan(files, POLICY, NOW_US).tasks] == [[2], [4], [0]]


def test_reasons_say_where_and_why() -> None:
    files = [*small_files(0, 3), *small_files(1, 30)]
    (task,) = plan(files, POLICY, NOW_US).tasks
    assert task.key == "@1970-01-01"
    assert task.reason == "2 chunks with 33 files; 1970-01-02: 30 files (30.0 MB) where 1 would do"


def test_the_zone_decides_what_is_one_day() -> None:
    late = [file(0.96, 0.97), file(1.01, 1.02)]
    for zone, count in (("UTC", 0), ("Asia/Tokyo", 1)):
        policy = replace(POLICY, calendar=Calendar(Granularity.DAY, zone))
        assert len(plan(late, policy, NOW_US).tasks) == count


def test_a_chunk_with_a_held_file_is_left_alone_and_its_neighbours_are_not() -> None:
    files = [f for n in range(3) for f in small_files(n, 4)]
    whole = plan(files, POLICY, NOW_US)
    held = {files[5].id: "it failed"}
    result = plan(files, POLICY, NOW_US, held=held)
    assert [planned.held for planned in result.chunks] == [None, "it failed", None]
    assert [planned.status for planned in result.chunks] == [
        DeletesStatus.AWAITING,
        DeletesStatus.SKIPPED,
        DeletesStatus.AWAITING,
    ]
    taken = {file_id for task in result.tasks for file_id in task.files}
    assert taken == {f.id for f in files} - {f.id for f in files[4:8]}
    assert {file_id for task in whole.tasks for file_id in task.files} == {f.id for f in files}


def test_planning_again_gives_what_planning_anew_would() -> None:
    policy = replace(POLICY, skip_clock_us=HOUR_US, max_task_bytes=1)
    files = [f for n in range(4) for f in small_files(n, 3)]
    more = [*files, *small_files(9, 4)]
    active = (ActiveTask("x", frozenset({day(1)}), frozenset({"d1-0"})),)
    states = remember(plan(files, policy, NOW_US), policy)
    rng, replanning, seen = random.Random(1), Replanning(), set[int]()
    for _ in range(150):
        now_us = rng.choice((2 * DAY_US, 2 * DAY_US + 1, NOW_US))
        held: dict[str, str] = rng.choice(({}, {}, {files[5].id: "it failed"}))
        given: dict[str, Any] = {
            "states": rng.choice((None, states)),
            "active": rng.choice(((), active)),
            "revive_deferred": rng.random() < 0.5,
            "held": held,
        }
        of, under = rng.choice((files, files, more)), rng.choice((policy, policy, POLICY))
        found = replanning.plan(of, under, now_us, **given)
        assert found == plan(of, under, now_us, **given)
        assert replanning.plan(of, under, now_us, **given) is found
        seen.add(len(found.tasks))
    assert len(seen) > 2
