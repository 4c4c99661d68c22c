"""Files without a place on the axis: packed by size, with any number of tasks at the same time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from lithify.planning.timeline.model import (
    ActiveTask,
    ChunkAction,
    ChunkBucket,
    ChunkKey,
    Color,
    DeletesStatus,
    TimelineFile,
    TimelinePlan,
    TimelinePolicy,
)
from lithify.planning.timeline.packing import pack
from lithify.planning.timeline.plan import plan, remember
from lithify.planning.timeline.state import ChunkStates, committed, deferred
from lithify.testing.timeline import ModelTable
from tests.planning.timeline.timelines import MB, NOW_US

POLICY = TimelinePolicy(max_file_bytes=100 * MB, max_task_bytes=1000 * MB, small_task_bytes=200 * MB)


def unplaced(
    size_mb: float, id: str, *, version: int = 1, rows: int = 100, deleted_rows: int = 0, group: str = ""
) -> TimelineFile:
    deletes = int(deleted_rows > 0)
    size = round(size_mb * MB)
    return TimelineFile(id, ChunkBucket.NULL, size, rows, deleted_rows, deletes, version, group)


def many(count: int, size_mb: float, prefix: str = "f", group: str = "") -> list[TimelineFile]:
    """Files of one size, each added by a commit of its own."""
    return [unplaced(size_mb, f"{prefix}{n:04}", version=n, group=group) for n in range(1, count + 1)]


def inputs_of(found: TimelinePlan) -> list[str]:
    return [id for task in found.tasks for id in task.files]


def actives(found: TimelinePlan, count: int | None = None) -> list[ActiveTask]:
    return [
        ActiveTask(task.key, frozenset(task.chunks), frozenset(task.files)) for task in found.tasks[:count]
    ]


def test_small_files_of_a_group_are_one_task() -> None:
    files = many(60, 0.5)
    (task,) = plan(files, POLICY, NOW_US).tasks
    assert task.files == tuple(f.id for f in files)
    assert task.key == "@null"


def test_tasks_have_at_most_max_task_bytes_and_run_at_once() -> None:
    files = many(400, 10)
    found = plan(files, POLICY, NOW_US)
    assert len(found.tasks) == 5
    assert sorted(inputs_of(found)) == [f.id for f in files]
    assert all(task.cost_bytes <= POLICY.max_task_bytes for task in found.tasks)
    assert {task.color for task in found.tasks} == {Color.RED}
    assert len({task.key for task in found.tasks}) == 5


def test_files_of_similar_age_are_packed_together() -> None:
    """Rows that arrived together stay together, so bounds of columns that grow with time stay narrow."""
    files = [unplaced(50, f"f{99 - n:02}", version=n) for n in range(40)]
    for planned in plan(files, replace(POLICY, max_file_bytes=500 * MB), NOW_US).chunks:
        versions = [file.version for file in planned.chunk.files]
        assert versions == list(range(versions[0], versions[0] + len(versions)))


def test_files_of_a_good_size_are_left_as_they_are() -> None:
    good = [unplaced(size, f"good{size}") for size in (75, 100, 125)]
    found = plan([*good, *many(30, 1)], POLICY, NOW_US)
    (task,) = found.tasks
    assert not [id for id in task.files if id.startswith("good")]
    verdicts = {p.chunk.key.start_us: p.verdict.action for p in found.chunks}
    assert verdicts == {-1: ChunkAction.STABLE, 0: ChunkAction.COMPACT}


def test_a_file_that_is_too_large_is_cut() -> None:
    (task,) = plan(
        [unplaced(450, "large"), *[unplaced(100, f"g{n}") for n in range(50)]], POLICY, NOW_US
    ).tasks
    assert task.files == ("large",)


def test_a_file_with_many_deleted_rows_is_rewritten_however_good_its_size_is() -> None:
    few, many_deleted = unplaced(100, "few", deleted_rows=29), unplaced(100, "many", deleted_rows=30)
    found = plan([few, many_deleted], replace(POLICY, max_deleted_ratio=0.3), NOW_US)
    (task,) = found.tasks
    assert task.files == ("many",)
    assert "30%" in task.reason
    assert plan([few, many_deleted], POLICY, NOW_US).tasks == ()


def test_while_a_task_runs_other_files_are_packed_and_its_own_are_not() -> None:
    files = many(200, 10)
    first = plan(files, POLICY, NOW_US)
    running = actives(first, 1)
    added = many(50, 10, "new")
    found = plan([*files, *added], POLICY, NOW_US, active=running)
    ids = inputs_of(found)
    assert not set(ids) & running[0].files
    assert set(ids) | running[0].files == {f.id for f in (*files, *added)}
    assert {task.color for task in found.tasks} == {Color.RED}
    assert not {task.key for task in found.tasks} & {work.key for work in running}
    keys = [key for task in found.tasks for key in task.chunks]
    assert not set(keys) & running[0].chunks
    busy = next(p for p in found.chunks if p.chunk.key in running[0].chunks)
    assert (busy.status, busy.task) == (DeletesStatus.AWAITING, running[0].key)


def test_files_of_a_failed_task_are_planned_again() -> None:
    files = many(30, 1)
    first = plan(files, POLICY, NOW_US)
    states = remember(first, POLICY)
    during = plan(files, POLICY, NOW_US, states=states, active=actives(first))
    assert during.tasks == ()
    after = plan(files, POLICY, NOW_US, states=remember(during, POLICY))
    assert inputs_of(after) == inputs_of(first)


def test_small_groups_are_bundled() -> None:
    files = [f for n in range(20) for f in many(3, 1, f"g{n:02}-", group=f"0:p={n:02}")]
    (task,) = plan(files, replace(POLICY, max_bundle_files=1000), NOW_US).tasks
    assert len(task.files) == 60
    assert len(task.chunks) == 20


def test_a_large_group_that_is_well_sized_is_still_bundled() -> None:
    good = [unplaced(100, f"good{n}", group="a") for n in range(50)]
    files = [*good, *many(3, 1, "a", group="a"), *many(3, 1, "b", group="b")]
    (task,) = plan(files, replace(POLICY, max_bundle_files=1000), NOW_US).tasks
    assert {key.group for key in task.chunks} == {"a", "b"}


def test_a_shed_task_is_deferred() -> None:
    files = many(30, 1)
    first = plan(files, POLICY, NOW_US)
    states = deferred(remember(first, POLICY), first.tasks[0].chunks)
    found = plan(files, POLICY, NOW_US, states=states)
    assert found.tasks == ()
    assert found.chunks[0].status is DeletesStatus.DEFERRED
    assert len(plan(files, POLICY, NOW_US, states=states, revive_deferred=True).tasks) == 1


def test_own_commits_need_no_analysis() -> None:
    table = ModelTable.of(many(30, 1), POLICY)
    found = plan(table.listing(), POLICY, NOW_US)
    states = remember(found, POLICY)
    for task in found.tasks:
        states = committed(states, task.chunks, table.rewrite(task.files), POLICY)
    again = plan(table.listing(), POLICY, NOW_US, states=states)
    assert again.analysed == 0
    assert again.tasks == ()


def test_files_that_were_compacted_wait_for_enough_new_ones() -> None:
    policy = replace(POLICY, min_saved_files=5, min_new_ratio=0.2)
    table, states = ModelTable.of(many(20, 2), policy), ChunkStates()

    def runs() -> int:
        nonlocal states
        found = plan(table.listing(), policy, NOW_US, states=states)
        states = remember(found, policy)
        for task in found.tasks:
            states = committed(states, task.chunks, table.rewrite(task.files), policy)
        return len(found.tasks)

    assert (runs(), runs()) == (1, 0)
    table.version += 1
    for n in range(4):
        table.files[f"n{n}"] = unplaced(4, f"n{n}", version=table.version)
    assert runs() == 0
    table.files["n4"] = unplaced(4, "n4", version=table.version)
    assert (runs(), runs()) == (1, 0)


SIZES = st.sampled_from([1, MB, 3 * MB, 30 * MB, 60 * MB, 70 * MB, 99 * MB, 100 * MB, 130 * MB, 510 * MB])


@st.composite
def timeless(draw: st.DrawFn) -> list[TimelineFile]:
    """Files without a place, in up to three groups."""
    found = []
    for n in range(draw(st.integers(0, 60))):
        rows = draw(st.sampled_from([0, 1000, 1500]))
        gone = draw(st.sampled_from([0, 0, 0, rows // 4, rows // 2]))
        group, version = draw(st.sampled_from(["a", "b", "c"])), draw(st.integers(1, 5))
        file = TimelineFile(
            f"f{n:03}", ChunkBucket.NULL, draw(SIZES), rows, gone, int(gone > 0), version, group
        )
        found.append(file)
    return found


policies = st.builds(
    replace,
    st.just(POLICY),
    max_task_bytes=st.sampled_from([1, 50 * MB, 250 * MB, 1000 * MB, 10**12]),
    max_deleted_ratio=st.sampled_from([None, 0.3]),
    size_tolerance=st.sampled_from([0.0, 0.25]),
    max_bundle_files=st.sampled_from([0, 20]),
    small_task_bytes=st.sampled_from([1, 60 * MB]),
)


@given(timeless(), policies)
@settings(deadline=None)
def test_every_file_is_in_one_chunk_and_at_most_one_task(
    files: list[TimelineFile], policy: TimelinePolicy
) -> None:
    found = plan(files, policy, NOW_US)
    assert Counter(f.id for p in found.chunks for f in p.chunk.files) == Counter(f.id for f in files)
    assert max(Counter(inputs_of(found)).values(), default=1) == 1
    assert sum(amount.files for amount in found.totals.values()) == len(files)
    assert sum(amount.rows for amount in found.totals.values()) == sum(f.rows for f in files)
    assert sum(amount.size_bytes for amount in found.totals.values()) == sum(f.size_bytes for f in files)
    assert all(task.color is Color.RED for task in found.tasks)
    assert len({task.key for task in found.tasks}) == len(found.tasks)
    assert [p.chunk.key for p in found.chunks] == sorted(p.chunk.key for p in found.chunks)


@given(timeless(), policies, st.integers(0, 5))
@settings(deadline=None)
def test_plans_beside_running_tasks_touch_none_of_their_files(
    files: list[TimelineFile], policy: TimelinePolicy, count: int
) -> None:
    running = actives(plan(files, policy, NOW_US), count)
    taken = {id for work in running for id in work.files}
    found = plan(files, policy, NOW_US, active=running)
    assert not taken.intersection(inputs_of(found))
    assert Counter(f.id for p in found.chunks for f in p.chunk.files) == Counter(f.id for f in files)
    assert not {task.key for task in found.tasks} & {work.key for work in running}


@given(timeless(), policies)
@settings(deadline=None)
def test_a_second_run_does_nothing(files: list[TimelineFile], policy: TimelinePolicy) -> None:
    """As long as tasks may hold a few files of the target size; smaller ones end too, a little later."""
    table = ModelTable.of(files, policy)
    for turn in range(6):
        found = plan(table.listing(), policy, NOW_US)
        if not found.tasks:
            return
        assert turn < 1 or policy.max_task_bytes < 1000 * MB or _is_uneven(files)
        rows = table.rows()
        for task in found.tasks:
            table.rewrite(task.files)
        assert table.rows() == rows
    raise AssertionError("it does not come to an end")


def _is_uneven(files: Sequence[TimelineFile]) -> bool:
    """Whether deleted rows make outputs smaller than the model says."""
    return any(f.deleted_rows or not f.rows for f in files)


@given(st.lists(SIZES, max_size=60))
def test_packs_are_runs_that_fill_their_files(sizes: list[int]) -> None:
    files = [TimelineFile(f"f{n:02}", ChunkBucket.NULL, size, 1) for n, size in enumerate(sizes)]
    packs = pack(files, 100 * MB)
    assert [f for one in packs for f in one] == files
    for one in packs[:-1]:
        size = sum(f.size_bytes for f in one)
        assert size / (-(-size // (100 * MB)) * 100 * MB) >= 0.875
    assert pack([f for one in packs[1:] for f in one], 100 * MB) == packs[1:], (
        "they depend on no earlier file"
    )


def test_chunks_of_other_programs_or_versions_are_no_trouble() -> None:
    """An older Lithify had one chunk of all such files."""
    old = ActiveTask("@null", frozenset({ChunkKey("", ChunkBucket.NULL, 0)}), frozenset({"f0001", "gone"}))
    found = plan(many(10, 1), POLICY, NOW_US, active=[old])
    assert set(inputs_of(found)) == {f"f{n:04}" for n in range(2, 11)}
