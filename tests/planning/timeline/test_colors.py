"""Red and black: which tasks may run at once. Judged by running them in all kinds of orders."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from graphlib import TopologicalSorter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lithify.planning.timeline.colors import dependencies, first_sharing
from lithify.planning.timeline.model import ActiveTask, Color, Task, TimelineFile, TimelinePolicy
from lithify.planning.timeline.plan import plan, resolve
from lithify.testing.timeline import ModelTable
from tests.planning.timeline.timelines import (
    DAY_US,
    MB,
    NOW_US,
    POLICY,
    day,
    file,
    small_files,
    timelines,
)

ONE_EACH = replace(POLICY, max_task_bytes=1)
"""A task for each chunk."""


def chain(length: int) -> list[TimelineFile]:
    """Days that each share a file with the next, all to be compacted."""
    return [f for i in range(length) for f in (file(i + 0.5, i + 1.5, id=f"c{i}"), *small_files(i, 2))]


def by_day(tasks: Sequence[Task]) -> list[Task]:
    return sorted(tasks, key=lambda task: task.chunks)


def picture(tasks: Sequence[Task]) -> list[tuple[str, list[int]]]:
    """Color and the days waited for, of each task in order of time."""
    numbers = {task.key: task.chunks[0].start_us // DAY_US for task in tasks}
    return [(t.color.value, sorted(numbers[key] for key in t.after)) for t in by_day(tasks)]


def test_the_first_is_red_and_each_that_shares_with_the_one_before_is_black() -> None:
    tasks = plan(chain(5), replace(ONE_EACH, several_dependencies=False), NOW_US).tasks
    assert picture(tasks)[:5] == [
        ("red", []),
        ("black", [0]),
        ("black", [1]),
        ("black", [2]),
        ("black", [3]),
    ]


def test_with_several_dependencies_every_other_task_is_red() -> None:
    tasks = plan(chain(5), ONE_EACH, NOW_US).tasks
    assert picture(tasks)[:5] == [
        ("red", []),
        ("black", [0, 2]),
        ("red", []),
        ("black", [2, 4]),
        ("red", []),
    ]


@pytest.mark.parametrize("several", [True, False])
def test_a_file_in_all_tasks_serialises_them(several: bool) -> None:
    files = [file(0, 4, id="long"), *(f for i in range(4) for f in small_files(i, 2))]
    tasks = plan(files, replace(ONE_EACH, several_dependencies=several), NOW_US).tasks
    want = [[], [0], [0, 1], [0, 2]] if several else [[], [0], [1], [2]]
    assert [after for _, after in picture(tasks)] == want


def test_tasks_that_share_nothing_are_all_red() -> None:
    files = [f for i in range(4) for f in small_files(i, 2)]
    tasks = plan(files, ONE_EACH, NOW_US).tasks
    assert [task.color for task in tasks] == [Color.RED] * 4


def test_a_task_waits_for_an_active_one_it_shares_with() -> None:
    files = chain(2)
    active = ActiveTask("running", frozenset({day(1)}), frozenset({"c0", "d1-0", "d1-1", "c1"}))
    tasks = plan(files, ONE_EACH, NOW_US, active=[active]).tasks
    assert [(t.chunks, t.color, t.after) for t in tasks] == [((day(0),), Color.BLACK, ("running",))]


def test_whoever_is_waited_for_is_as_urgent_as_who_waits() -> None:
    files = [*small_files(0, 2), file(0.5, 1.5, id="shared"), *small_files(1, 40)]
    first, second = by_day(plan(files, ONE_EACH, NOW_US).tasks)[:2]
    assert second.after == (first.key,)
    assert first.priority == second.priority > 0.5
    assert plan(files, ONE_EACH, NOW_US).tasks[0] == first


stretches = st.lists(st.tuples(st.integers(0, 11), st.integers(0, 5)), max_size=12)
"""Files as stretches of tasks: the first, and how many more."""


@given(stretches, st.booleans())
def test_dependencies_order_all_that_share_and_never_in_a_circle(
    files: list[tuple[int, int]], several: bool
) -> None:
    tasks = [
        {f"{i}" for i, (first, more) in enumerate(files) if first <= task <= first + more}
        for task in range(12)
    ]
    before = dependencies(first_sharing([sorted(task) for task in tasks]), several=several)
    order = list(TopologicalSorter(dict(enumerate(before))).static_order())
    assert sorted(order) == list(range(len(tasks)))
    reach = [set(others) for others in before]
    for index in order:
        for other in before[index]:
            assert tasks[index] & tasks[other]
            reach[index] |= reach[other]
    for a, b in itertools.combinations(range(len(tasks)), 2):
        if tasks[a] & tasks[b]:
            assert a in reach[b] or b in reach[a]


def run_to_the_end(files: list[TimelineFile], policy: TimelinePolicy, rng: random.Random) -> int:
    """Run a plan with random durations; black tasks resolve their inputs when they start. The number
    of tasks run."""
    table = ModelTable.of(files, policy)
    rows = table.rows()
    waiting = list(plan(files, policy, NOW_US).tasks)
    unfinished = {task.key for task in waiting}
    running: dict[str, list[str]] = {}
    count = len(waiting)
    while waiting or running:
        ready = [task for task in waiting if not unfinished & set(task.after)]
        assert ready or running, "somebody can go on"
        if ready and (not running or rng.random() < 0.7):
            task = rng.choice(ready)
            waiting.remove(task)
            inputs = [f.id for f in resolve(task.chunks, table.listing(), policy)]
            if task.color is Color.RED:
                assert inputs == list(task.files)
            for other in running.values():
                assert not set(inputs) & set(other), "two running tasks share no file"
            running[task.key] = inputs
        else:
            key = rng.choice(sorted(running))
            table.rewrite(running.pop(key))
            unfinished.discard(key)
    assert table.rows() == rows
    return count


@given(timelines(), st.sampled_from([1, 120 * MB, 300 * MB]), st.booleans(), st.randoms())
@settings(max_examples=80, deadline=None)
def test_no_two_running_tasks_share_a_file(
    files: list[TimelineFile], limit_bytes: int, several: bool, rng: random.Random
) -> None:
    run_to_the_end(files, replace(POLICY, max_task_bytes=limit_bytes, several_dependencies=several), rng)


@pytest.mark.parametrize("several", [True, False])
def test_a_chain_of_overlaps_comes_to_its_end(several: bool) -> None:
    policy = replace(ONE_EACH, several_dependencies=several)
    assert run_to_the_end(chain(30), policy, random.Random(1)) == 30


def test_a_black_task_takes_its_inputs_from_the_timeline_as_it_is_then() -> None:
    files = chain(2)
    first, second = by_day(plan(files, ONE_EACH, NOW_US).tasks)[:2]
    assert "c0" in first.files
    assert "c0" in second.files
    table = ModelTable.of(files, ONE_EACH)
    (written,) = [f for f in table.rewrite(first.files) if f.times == file(1, 1.5).times]
    inputs = [f.id for f in resolve(second.chunks, table.listing(), ONE_EACH)]
    assert "c0" not in inputs, "the shared file is gone"
    assert written.id in inputs, "its part of this chunk came in its place"
