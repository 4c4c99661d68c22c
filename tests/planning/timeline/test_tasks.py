"""From judged chunks to tasks: candidates, combining, splitting, by example and by property."""

from __future__ import annotations

import itertools
from dataclasses import replace
from graphlib import TopologicalSorter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lithify.planning.timeline.chunks import lay_out
from lithify.planning.timeline.model import (
    ChunkAction,
    ChunkBucket,
    DeletesStatus,
    TimelineFile,
    TimelinePlan,
    TimelinePolicy,
)
from lithify.planning.timeline.plan import plan
from lithify.planning.timeline.tasks import CandidatePart, Run, candidates, combine, cost_bytes, form, split
from tests.planning.timeline.timelines import (
    DAY_US,
    MB,
    NOW_US,
    POLICY,
    day,
    days,
    file,
    keys_in,
    small_files,
    timelines,
)

APART = replace(POLICY, small_task_bytes=1)
"""Nothing is combined."""


def task_days(result: TimelinePlan) -> list[list[int]]:
    """The days of each task, in order of time."""
    return sorted(days(task.chunks) for task in result.tasks)


def parts_of(
    files: list[TimelineFile], must: set[int], may: set[int] | None = None, policy: TimelinePolicy = POLICY
) -> list[CandidatePart | None]:
    """Days that must and days that may be rewritten; `may` defaults to all others."""
    parts: list[CandidatePart | None] = []
    for chunk in lay_out(files, policy).chunks:
        number = chunk.key.start_us // DAY_US
        if number in must:
            parts.append(CandidatePart(chunk, True, 0.5, ""))
        elif may is None or number in may:
            parts.append(CandidatePart(chunk, False, 0.0, ""))
        else:
            parts.append(None)
    return parts


def run_days(runs: list[Run]) -> list[list[int]]:
    return [days(part.chunk.key for part in run) for run in runs]


CHAIN = [file(i + 0.5, i + 1.5, id=f"c{i}") for i in range(6)]
"""Days 0 to 6, each sharing a file with the next."""


@pytest.mark.parametrize(
    ("must", "may", "want"),
    [
        pytest.param({0, 1, 2, 3, 4, 5, 6}, None, [[0, 1, 2, 3, 4, 5, 6]], id="a chain is one candidate"),
        pytest.param({0, 1, 4, 5}, set(), [[0, 1], [4, 5]], id="others are omitted and end the candidate"),
        pytest.param({0, 2}, set(), [[0], [2]], id="an omitted chunk in between separates"),
        pytest.param(set(), None, [], id="no candidate of chunks without need"),
        pytest.param({3}, None, [[2, 3, 4]], id="those that share with a needy one come along"),
        pytest.param({0, 6}, None, [[0, 1], [5, 6]], id="those further away do not"),
        pytest.param({0, 3}, None, [[0, 1, 2, 3, 4]], id="between two needy ones"),
    ],
)
def test_candidates_of_a_chain(must: set[int], may: set[int] | None, want: list[list[int]]) -> None:
    assert run_days(candidates(parts_of(CHAIN, must, may))) == want


def test_a_chunk_that_shares_nothing_with_the_one_before_begins_a_candidate() -> None:
    files = [*small_files(0, 2), *small_files(1, 2), file(2.5, 3.5)]
    assert run_days(candidates(parts_of(files, {0, 1, 2, 3}))) == [[0], [1], [2, 3]]


def test_a_long_file_brings_all_it_reaches() -> None:
    files = [file(0, 5), *small_files(7, 2)]
    assert run_days(candidates(parts_of(files, {2}))) == [[0, 1, 2, 3, 4]]


@pytest.mark.parametrize(
    ("sizes_mb", "policy", "want"),
    [
        pytest.param([2, 2, 2], POLICY, [[0, 1, 2]], id="small and small"),
        pytest.param([2, 50, 2], replace(POLICY, small_task_bytes=10 * MB), [[0], [1], [2]], id="not large"),
        pytest.param([6, 6, 6, 6], replace(POLICY, small_task_bytes=10 * MB), [[0, 1], [2, 3]], id="no more"),
        pytest.param(
            [6, 6, 6], replace(POLICY, max_task_bytes=13 * MB), [[0, 1], [2]], id="within the limit"
        ),
        pytest.param([2, 0, 2], POLICY, [[0], [2]], id="not over a gap"),
        pytest.param([2, 0, 2], replace(POLICY, max_combine_gap_us=DAY_US), [[0, 2]], id="over that gap"),
        pytest.param([2, 0, 0, 2], replace(POLICY, max_combine_gap_us=DAY_US), [[0], [3]], id="too wide"),
    ],
)
def test_combine(sizes_mb: list[float], policy: TimelinePolicy, want: list[list[int]]) -> None:
    files = [f for i, size in enumerate(sizes_mb) if size for f in small_files(i, 2, size / 2)]
    assert task_days(plan(files, policy, NOW_US)) == want


def test_groups_are_never_combined() -> None:
    files = [replace(f, group=f"g{i}", id=f"g{i}{f.id}") for i in range(2) for f in small_files(i, 2)]
    assert task_days(plan(files, POLICY, NOW_US)) == [[0], [1]]
    assert sorted(task.key for task in plan(files, POLICY, NOW_US).tasks) == [
        "g0@1970-01-01",
        "g1@1970-01-02",
    ]


def test_below_the_limit_a_candidate_becomes_the_task() -> None:
    files = [*CHAIN, *small_files(0, 3, 90), *small_files(4, 3, 90)]
    (task,) = plan(files, replace(POLICY, max_task_bytes=546 * MB), NOW_US).tasks
    assert days(task.chunks) == [0, 1, 2, 3, 4, 5, 6]
    assert task.cost_bytes == 546 * MB
    assert len(task.files) == len(set(task.files)) == 12
    assert not task.oversize


def test_a_large_candidate_is_split_at_chunk_edges() -> None:
    files = [f for i in range(6) for f in (file(i + 0.5, i + 1.5, 30), file(i + 0.2, i + 0.8, 60))]
    policy = replace(APART, max_task_bytes=220 * MB)
    tasks = plan(files, policy, NOW_US).tasks
    assert all(task.cost_bytes <= policy.max_task_bytes or len(task.chunks) == 1 for task in tasks)
    assert sorted(keys_in(tasks)) == [day(i) for i in range(7)]
    assert len(tasks) == 3


def test_a_single_chunk_above_the_limit_is_oversize() -> None:
    files = [*small_files(0, 5, 50), *small_files(1, 2)]
    tasks = plan(files, replace(POLICY, max_task_bytes=100 * MB), NOW_US).tasks
    assert [(days(t.chunks), t.oversize, t.cost_bytes) for t in tasks] == [
        ([0], True, 250 * MB),
        ([1], False, 2 * MB),
    ]


def test_a_piece_without_need_is_dropped() -> None:
    """A piece of neighbours only waits for what the task beside it makes of the shared file."""
    files = [
        *small_files(0, 4, 90),
        file(0.5, 1.5, 10),
        *[file(1 + i / 10, 1.05 + i / 10, 100) for i in range(9)],
    ]
    policy = replace(POLICY, max_task_bytes=400 * MB)
    runs = candidates(parts_of(files, {0}, policy=policy))
    assert run_days(runs) == [[0, 1]]
    assert run_days(split(runs, policy)) == [[0], [1]]
    assert run_days(form(parts_of(files, {0}, policy=policy), policy)) == [[0]]


@given(timelines(groups=("", "b")), st.sampled_from([1, 120 * MB, 400 * MB, 1 << 40]), st.booleans())
@settings(max_examples=50, deadline=None)
def test_combining_and_splitting_keep_the_chunks_and_the_limits(
    files: list[TimelineFile], limit_bytes: int, gaps: bool
) -> None:
    policy = replace(
        POLICY, max_task_bytes=limit_bytes, small_task_bytes=110 * MB, max_combine_gap_us=gaps * 2 * DAY_US
    )
    parts = parts_of(
        [f for f in files if not isinstance(f.times, ChunkBucket)], set(range(99)), policy=policy
    )
    runs = candidates(parts)
    combined = combine(runs, policy)
    pieces = split(combined, policy)
    for result in (combined, pieces):
        assert [part for run in result for part in run] == [part for run in runs for part in run]
    for run in combined:
        joined = [other for other in runs if set(other) <= set(run)]
        if len(joined) > 1:
            assert cost_bytes(run) <= policy.max_task_bytes
            assert all(cost_bytes(other) < policy.small_task_bytes for other in joined)
            assert len({part.chunk.key.group for part in run}) == 1
    for run in pieces:
        distinct = {f.id: f.size_bytes for part in run for f in part.chunk.files}
        assert sum(distinct.values()) <= cost_bytes(run)
        assert cost_bytes(run) <= policy.max_task_bytes or len(run) == 1


@given(timelines(groups=("", "b")))
@settings(max_examples=50, deadline=None)
def test_tasks_hold_what_needs_them_and_nothing_stable(files: list[TimelineFile]) -> None:
    result = plan(files, replace(POLICY, max_task_bytes=300 * MB), NOW_US)
    by_key = {planned.chunk.key: planned for planned in result.chunks}
    keys = keys_in(result.tasks)
    assert len(keys) == len(set(keys)), "a chunk is in one task"
    for task in result.tasks:
        actions = [by_key[key].verdict.action for key in task.chunks]
        assert ChunkAction.COMPACT in actions
        assert set(actions) <= {ChunkAction.COMPACT, ChunkAction.NO_OPINION}
        assert all(by_key[key].task == task.key for key in task.chunks)
        assert task.cost_bytes == sum(f.size_bytes for f in files if f.id in task.files)
        assert 0 < task.priority <= 1
    for planned in result.chunks:
        awaits = planned.verdict.action is ChunkAction.COMPACT
        assert (planned.status is DeletesStatus.AWAITING) == (planned.task is not None)
        assert (planned.task is not None) >= awaits
    assert [t.priority for t in result.tasks] == sorted((t.priority for t in result.tasks), reverse=True)


@given(timelines())
@settings(max_examples=40, deadline=None)
def test_a_file_is_an_input_of_one_task_or_shared_by_dependent_ones(files: list[TimelineFile]) -> None:
    result = plan(files, replace(POLICY, max_task_bytes=120 * MB), NOW_US)
    after = {task.key: set(task.after) for task in result.tasks}
    for key in TopologicalSorter(after).static_order():
        after[key] |= {further for other in after[key] for further in after[other]}
    for f in files:
        users = [task.key for task in result.tasks if f.id in task.files]
        for a, b in itertools.combinations(users, 2):
            assert a in after[b] or b in after[a]


def test_files_of_null_times_are_merged_unless_of_a_good_size() -> None:
    nulls = [TimelineFile(f"n{i}", ChunkBucket.NULL, 30 * MB, 9, i, int(i > 0)) for i in range(3)]
    nulls.append(TimelineFile("good", ChunkBucket.NULL, 100 * MB, 9))
    nulls.append(TimelineFile("deleted", ChunkBucket.NULL, 100 * MB, 9, 1, 1))
    (task,) = plan(nulls, POLICY, NOW_US).tasks
    assert (task.key, task.files) == ("@null", ("n0", "n1", "n2"))
    (task,) = plan(nulls, replace(POLICY, max_deleted_ratio=0.01), NOW_US).tasks
    assert sorted(task.files) == ["deleted", "n0", "n1", "n2"]
    assert plan(nulls, replace(POLICY, max_task_bytes=1), NOW_US).tasks == (), "nothing fits"


def test_wide_files_are_cut_in_portions() -> None:
    """The smallest first, so that one task rids the timeline of as many as can be."""
    files = [file(0, 500, size, id=f"w{100 - size}") for size in (70, 20, 30, 50)]
    (task,) = plan(files, replace(POLICY, max_task_bytes=100 * MB), NOW_US).tasks
    assert task.files == ("w80", "w70", "w50")


def test_wide_files_are_cut_by_themselves() -> None:
    wide = [file(0, 500, id=f"w{i}") for i in range(2)]
    result = plan([*wide, *small_files(3, 2)], POLICY, NOW_US)
    assert sorted((t.key, sorted(t.files)) for t in result.tasks) == [
        ("@1970-01-04", ["d3-0", "d3-1"]),
        ("@wide", ["w0", "w1"]),
    ]
    assert not any(task.after for task in result.tasks)


def test_files_of_unknown_times_are_never_compacted() -> None:
    unknown = [TimelineFile(f"u{i}", ChunkBucket.UNKNOWN, 1, 1) for i in range(9)]
    result = plan(unknown, POLICY, NOW_US)
    assert not result.tasks
    assert [c.status for c in result.chunks] == [DeletesStatus.SKIPPED]


BUNDLED = replace(POLICY, max_bundle_files=100, small_task_bytes=100 * MB, max_task_bytes=200 * MB)
"""Small tasks of several groups are one."""


def in_groups(sizes_mb: dict[str, float], files: int = 2, day_of: int = 0) -> list[TimelineFile]:
    """So many files of one day in each group, with so many megabytes in all."""
    return [
        replace(f, group=group, id=f"{group}/{f.id}")
        for group, size in sizes_mb.items()
        for f in small_files(day_of, files, size / files)
    ]


def test_small_tasks_of_several_groups_are_one() -> None:
    (task,) = plan(in_groups({"a": 2, "b": 4, "c": 6}), BUNDLED, NOW_US).tasks
    assert [key.group for key in task.chunks] == ["a", "b", "c"]
    assert (task.key, task.group) == ("a@1970-01-01 and 2 more", "a")
    assert task.cost_bytes == 12 * MB
    assert len(task.files) == 6
    assert task.reason.startswith("3 chunks of 3 partitions with 6 files; ")
    assert not task.after


def test_a_bundle_is_small_itself() -> None:
    sizes = {f"g{n:02}": 40.0 for n in range(10)}
    tasks = plan(in_groups(sizes), BUNDLED, NOW_US).tasks
    assert sorted(task.cost_bytes // MB for task in tasks) == [40, 120, 120, 120]
    few_files = replace(BUNDLED, max_bundle_files=4)
    assert {len(task.files) for task in plan(in_groups(sizes), few_files, NOW_US).tasks} == {4}


@pytest.mark.parametrize(
    ("files", "policy"),
    [
        pytest.param(in_groups({"a": 150, "b": 150}, files=6), BUNDLED, id="large ones"),
        pytest.param(in_groups({"a": 2}) + in_groups({"a": 2}, day_of=5), BUNDLED, id="those of one group"),
        pytest.param(in_groups({"a": 2, "b": 2}), POLICY, id="where the policy bundles none"),
    ],
)
def test_tasks_that_are_not_bundled(files: list[TimelineFile], policy: TimelinePolicy) -> None:
    assert len(plan(files, policy, NOW_US).tasks) == 2


def test_what_shares_files_with_another_task_is_not_bundled() -> None:
    small = [f for number in range(7) for f in small_files(number, 2)]
    chain = [replace(f, group="chain") for f in [*(replace(f, size_bytes=60 * MB) for f in CHAIN), *small]]
    tasks = plan([*chain, *in_groups({"a": 2, "b": 2})], BUNDLED, NOW_US).tasks
    bundles = [task for task in tasks if len({key.group for key in task.chunks}) > 1]
    assert [[key.group for key in task.chunks] for task in bundles] == [["a", "b"]]
    assert sum(task.group == "chain" for task in tasks) > 1


@given(timelines(groups=("a", "b", "c")), st.integers(0, 40), st.integers(1, 300))
@settings(max_examples=60, deadline=None)
def test_bundling_changes_nothing_but_what_is_done_together(
    files: list[TimelineFile], most: int, small_mb: int
) -> None:
    apart = replace(POLICY, small_task_bytes=small_mb * MB)
    together = replace(apart, max_bundle_files=most)
    one, other = plan(files, apart, NOW_US), plan(files, together, NOW_US)
    assert sorted(key for task in one.tasks for key in task.chunks) == sorted(
        key for task in other.tasks for key in task.chunks
    )
    assert sorted(f for task in one.tasks for f in set(task.files)) == sorted(
        f for task in other.tasks for f in set(task.files)
    )
    assert len(other.tasks) <= len(one.tasks)
    assert len({task.key for task in other.tasks}) == len(other.tasks)
    for task in other.tasks:
        if len({key.group for key in task.chunks}) > 1:
            others = {f for rest in other.tasks if rest is not task for f in rest.files}
            assert not task.after
            assert others.isdisjoint(task.files)
            assert len(task.files) <= most or len(task.chunks) == 1
    list(TopologicalSorter({task.key: task.after for task in other.tasks}).static_order())
