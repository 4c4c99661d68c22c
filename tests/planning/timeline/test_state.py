"""What is remembered of chunks: what is skipped, what is noticed, and the file it is kept in."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lithify.base.errors import CorruptObject, Unsupported
from lithify.planning.timeline.calendar import Calendar, Granularity
from lithify.planning.timeline.model import (
    ActiveTask,
    Chunk,
    ChunkAction,
    ChunkBucket,
    ChunkKey,
    ChunkVerdict,
    DeletesStatus,
    Fingerprint,
    Task,
    TimelineFile,
    TimelinePlan,
    TimelinePolicy,
)
from lithify.planning.timeline.plan import plan, remember, resolve
from lithify.planning.timeline.state import ChunkRecord, ChunkState, ChunkStates, committed, deferred
from lithify.planning.timeline.state_codec import decode, encode
from lithify.testing.timeline import ModelTable
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

STABLE_DAYS = [file(i + 0.1, i + 0.9, 50, f"s{i}") for i in range(5)]
EACH = replace(POLICY, max_task_bytes=1)
"""A task for each chunk."""


def active(task: Task) -> ActiveTask:
    return ActiveTask(task.key, frozenset(task.chunks), frozenset(task.files))


def analysed_days(result: TimelinePlan) -> list[int]:
    return days(p.chunk.key for p in result.chunks if p.analysed)


@dataclass
class Memory:
    """A planner that remembers."""

    policy: TimelinePolicy = POLICY
    states: ChunkStates = field(default_factory=ChunkStates)

    def plan(
        self, files: list[TimelineFile], active: list[ActiveTask] | None = None, *, revive: bool = False
    ) -> TimelinePlan:
        result = plan(
            files, self.policy, NOW_US, states=self.states, active=active or [], revive_deferred=revive
        )
        self.states = remember(result, self.policy)
        return result

    def shed(self, result: TimelinePlan) -> None:
        """All tasks of the plan are shed."""
        self.states = deferred(self.states, keys_in(result.tasks))


def test_the_four_states() -> None:
    memory = Memory(EACH)
    files = [
        file(0, 1, rows=5, deleted_rows=5, deletes=1),
        *small_files(1, 1),
        *small_files(2, 2),
        *small_files(3, 9),
    ]
    result = memory.plan(files)
    memory.states = deferred(memory.states, result.tasks[-1].chunks)
    assert {days([key])[0]: record.state for key, record in memory.states.records.items()} == {
        0: ChunkState.EMPTY,
        1: ChunkState.STABLE,
        2: ChunkState.DEFERRED,
        3: ChunkState.UNSTABLE,
    }


def test_empty_stable_and_deferred_chunks_are_skipped() -> None:
    memory = Memory(EACH)
    files = [file(9, 10, rows=1, deleted_rows=1), *STABLE_DAYS, *small_files(7, 3)]
    first = memory.plan(files)
    assert len(analysed_days(first)) == 7
    memory.states = deferred(memory.states, first.tasks[0].chunks)
    before = memory.states
    again = memory.plan(files)
    assert analysed_days(again) == []
    assert again.tasks == ()
    assert memory.states == before, "nothing has to be written"
    assert again.totals[DeletesStatus.DEFERRED].files == 3
    assert again.chunks[-2].verdict.priority == first.chunks[-2].verdict.priority > 0


def test_an_unstable_chunk_with_a_task_gets_no_second_one() -> None:
    memory = Memory(EACH)
    files = small_files(0, 3)
    (task,) = memory.plan(files).tasks
    again = memory.plan(files, [active(task)])
    assert again.tasks == ()
    assert analysed_days(again) == []
    assert again.chunks[0].status is DeletesStatus.AWAITING


def test_an_unstable_chunk_without_a_task_gets_exactly_one() -> None:
    memory = Memory(EACH)
    files = small_files(0, 3)
    (task,) = memory.plan(files).tasks
    assert memory.plan(files).tasks == (task,), "the process that had it crashed"


def with_late_data(files: list[TimelineFile]) -> list[TimelineFile]:
    return [*files, file(2.3, 2.4, 1, "late", version=2)]


def with_replacement(files: list[TimelineFile]) -> list[TimelineFile]:
    return [replace(f, id="new") if f.id == "s2" else f for f in files]


def with_delete(files: list[TimelineFile]) -> list[TimelineFile]:
    return [replace(f, deletes=1) if f.id == "s2" else f for f in files]


def with_more_deleted_rows(files: list[TimelineFile]) -> list[TimelineFile]:
    return [replace(f, deletes=1, deleted_rows=1) if f.id == "s2" else f for f in files]


def with_other_size(files: list[TimelineFile]) -> list[TimelineFile]:
    return [replace(f, size_bytes=f.size_bytes + 1) if f.id == "s2" else f for f in files]


@pytest.mark.parametrize(
    "change", [with_late_data, with_replacement, with_delete, with_more_deleted_rows, with_other_size]
)
def test_a_change_is_noticed_in_its_chunk_only(
    change: Callable[[list[TimelineFile]], list[TimelineFile]],
) -> None:
    memory = Memory(EACH)
    memory.plan(STABLE_DAYS)
    result = memory.plan(change(STABLE_DAYS))
    assert analysed_days(result) == [2]
    again = memory.plan(change(STABLE_DAYS), [active(task) for task in result.tasks])
    assert analysed_days(again) == []


def test_a_delete_file_replaced_by_a_larger_one_is_noticed() -> None:
    memory = Memory(EACH)
    memory.plan(with_more_deleted_rows(STABLE_DAYS))
    more = [replace(f, deleted_rows=9) if f.deletes else f for f in with_more_deleted_rows(STABLE_DAYS)]
    assert analysed_days(memory.plan(more)) == [2]


def test_a_removed_chunk_is_forgotten() -> None:
    memory = Memory(EACH)
    memory.plan(STABLE_DAYS)
    assert memory.plan(STABLE_DAYS[:2]).analysed == 0
    assert set(memory.states.records) == {day(0), day(1)}


@pytest.mark.parametrize(
    ("policy", "again"),
    [
        pytest.param(replace(EACH, max_file_bytes=40 * MB), True, id="size"),
        pytest.param(replace(EACH, size_tolerance=0.1), True, id="tolerance"),
        pytest.param(replace(EACH, min_saved_files=2), True, id="files to save"),
        pytest.param(replace(EACH, min_new_ratio=0.1), True, id="new bytes"),
        pytest.param(replace(EACH, max_deleted_ratio=0.5), True, id="deletes"),
        pytest.param(replace(EACH, calendar=Calendar(Granularity.WEEK)), True, id="granularity"),
        pytest.param(replace(EACH, calendar=Calendar(zone="Asia/Tokyo")), True, id="zone"),
        pytest.param(replace(EACH, max_chunks_per_file=9), True, id="wide files"),
        pytest.param(replace(EACH, rules=()), True, id="rules"),
        pytest.param(replace(EACH, max_task_bytes=5, skip_clock_us=1), False, id="what no verdict rests on"),
    ],
)
def test_a_changed_policy_is_noticed(policy: TimelinePolicy, again: bool) -> None:
    memory = Memory(EACH)
    memory.plan(STABLE_DAYS)
    memory.policy = policy
    assert (memory.plan(STABLE_DAYS).analysed > 0) == again


@dataclass(frozen=True)
class Constant:
    priority: float

    def __call__(self, chunk: Chunk) -> ChunkVerdict | None:
        return ChunkVerdict(ChunkAction.COMPACT, "always", self.priority)


def test_the_parameters_of_a_rule_count() -> None:
    memory = Memory(replace(EACH, rules=(Constant(0.1),)))
    result = memory.plan(STABLE_DAYS)
    memory.shed(result)
    assert memory.plan(STABLE_DAYS).analysed == 0
    memory.policy = replace(EACH, rules=(Constant(0.2),))
    assert memory.plan(STABLE_DAYS).analysed == 5


def test_deferred_chunks_come_back_when_the_queue_is_empty_most_urgent_first() -> None:
    memory = Memory(EACH)
    files = [*small_files(0, 3), *small_files(2, 30), *small_files(4, 9)]
    memory.shed(memory.plan(files))
    assert memory.plan(files).tasks == ()
    assert [days(task.chunks) for task in memory.plan(files, revive=True).tasks] == [[2], [4], [0]]


def test_a_deferred_chunk_that_changed_is_analysed_at_once() -> None:
    memory = Memory(EACH)
    files = [*small_files(0, 3), *small_files(2, 3)]
    memory.shed(memory.plan(files))
    assert memory.states.records[day(0)].state is ChunkState.DEFERRED
    result = memory.plan([*files, file(0.4, 0.5, id="late")])
    assert [days(task.chunks) for task in result.tasks] == [[0]]
    assert memory.states.records[day(2)].state is ChunkState.DEFERRED


def test_only_unstable_chunks_are_deferred() -> None:
    memory = Memory(EACH)
    memory.plan(STABLE_DAYS)
    assert deferred(memory.states, [day(0), day(99)]) == memory.states


def test_our_own_commit_is_no_change() -> None:
    memory = Memory(EACH)
    table = ModelTable.of([*small_files(0, 30, 20), *STABLE_DAYS[1:]], EACH, ratio=1.3)
    (task,) = memory.plan(table.listing()).tasks
    table.version = 2
    added = table.rewrite(task.files)
    memory.states = committed(memory.states, task.chunks, added, EACH)
    assert memory.plan(table.listing()).analysed == 0


def test_what_others_added_before_our_commit_is_noticed() -> None:
    memory = Memory(EACH)
    table = ModelTable.of([*small_files(0, 30), *STABLE_DAYS[1:]], EACH)
    (task,) = memory.plan(table.listing()).tasks
    late = file(0.4, 0.5, id="late", version=7)
    table.files[late.id] = late
    memory.states = committed(memory.states, task.chunks, table.rewrite(task.files), EACH)
    result = memory.plan(table.listing())
    assert analysed_days(result) == [0]
    assert days(keys_in(result.tasks)) == [0]


def test_a_neighbour_that_got_part_of_a_shared_file_is_noticed() -> None:
    memory = Memory(EACH)
    shared = file(0.5, 1.5, 10, "shared")
    table = ModelTable.of([*small_files(0, 3), shared, file(1.6, 1.9, 80, "own"), *STABLE_DAYS[3:]], EACH)
    task = memory.plan(table.listing()).tasks[0]
    added = table.rewrite([f.id for f in resolve([day(0)], table.listing(), EACH)])
    assert task.chunks == (day(0),)
    memory.states = committed(memory.states, task.chunks, added, EACH)
    assert analysed_days(memory.plan(table.listing())) == [1]


def test_a_chunk_that_still_shares_files_after_a_commit_may_move_with_its_neighbour() -> None:
    """As after a rewrite that could not cut at every edge."""
    written = [file(0.1, 1.5, 60, "w")]
    states = committed(ChunkStates(), [day(0), day(1)], written, EACH)
    result = plan([*written, *small_files(1, 2)], EACH, NOW_US, states=states)
    assert result.analysed == 1
    assert sorted(days(keys_in(result.tasks))) == [1]
    wide = replace(EACH, max_task_bytes=1 << 40)
    (task,) = plan([*written, *small_files(1, 2)], wide, NOW_US, states=states).tasks
    assert days(task.chunks) == [0, 1]


def test_a_chunk_left_without_files_is_forgotten() -> None:
    memory = Memory(EACH)
    memory.plan(STABLE_DAYS)
    assert day(0) not in committed(memory.states, [day(0)], [], EACH).records


def test_memory_under_another_policy_is_not_mixed_in() -> None:
    memory = Memory(EACH)
    memory.plan(STABLE_DAYS)
    other = replace(EACH, max_file_bytes=1)
    states = committed(memory.states, [day(0)], [STABLE_DAYS[0]], other)
    assert set(states.records) == {day(0)}


@given(timelines(groups=("", "b")))
@settings(max_examples=80, deadline=None)
def test_a_plan_with_memory_is_the_plan_without(files: list[TimelineFile]) -> None:
    policy = replace(POLICY, max_task_bytes=200 * MB)
    first = plan(files, policy, NOW_US)
    second = plan(files, policy, NOW_US, states=remember(first, policy))
    assert second.tasks == first.tasks
    assert second.totals == first.totals
    assert remember(second, policy) == remember(first, policy)
    unstable = sum(p.verdict.action is ChunkAction.COMPACT for p in first.chunks)
    assert second.analysed == unstable


def test_ten_thousand_unchanged_chunks_are_not_analysed() -> None:
    policy = replace(POLICY, calendar=Calendar(Granularity.HOUR))
    files = [file(i / 24, (i + 1) / 24, 50, f"f{i}") for i in range(10_000)]
    states = remember(plan(files, policy, NOW_US), policy)
    again = plan(files, policy, NOW_US, states=decode(encode(states), "x"))
    assert len(again.chunks) == 10_000
    assert again.analysed == 0


# The codec


@given(timelines(groups=("", "Grüße/№", 'a"b')), st.sampled_from([POLICY, EACH]))
@settings(max_examples=50, deadline=None)
def test_states_survive_being_written(files: list[TimelineFile], policy: TimelinePolicy) -> None:
    result = plan(files, policy, NOW_US)
    states = deferred(remember(result, policy), keys_in(result.tasks[::2]))
    data = encode(states)
    assert decode(data, "x") == states
    assert encode(decode(data, "x")) == data


RECORD = ChunkRecord(ChunkState.DEFERRED, Fingerprint(-3, 2, (1 << 64) - 1), 1 / 3)
STATES = ChunkStates(
    "0123456789abcdef",
    {
        ChunkKey("g", ChunkBucket.TIME, -DAY_US): RECORD,
        ChunkKey("g", ChunkBucket.NULL, 0): ChunkRecord(
            ChunkState.STABLE, Fingerprint(0, 1, 0), no_opinion=True, settled=True
        ),
    },
)


def test_the_written_form() -> None:
    assert encode(STATES).decode() == (
        '{"format":"lithify.chunks","version":1,"policy":"0123456789abcdef","chunks":['
        '["g","TIME",-86400000000,"deferred",-3,2,"ffffffffffffffff",0.3333333333333333,false,false],'
        '["g","NULL",0,"stable",0,1,"0000000000000000",0.0,true,true]]}'
    )
    assert decode(encode(STATES), "x") == STATES
    assert decode(encode(ChunkStates()), "x") == ChunkStates()


def test_a_newer_version_is_refused() -> None:
    document = json.loads(encode(STATES)) | {"version": 2}
    with pytest.raises(Unsupported, match=r"chunks/1: chunk states of version 2.*upgrade"):
        decode(json.dumps(document).encode(), "chunks/1")


ROW = ["g", "TIME", 0, "stable", 0, 1, "0" * 16]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        encode(STATES)[:-1],
        b"[]",
        b"[" * 100_000,
        b'{"format":"lithify.chunks","version":1}',
        b'{"format":"other","version":1,"policy":"","chunks":[]}',
        b'{"format":"lithify.chunks","version":1,"policy":"xyz","chunks":[]}',
        b'{"format":"lithify.chunks","version":1,"policy":"","chunks":{}}',
    ],
)
def test_a_torn_file_is_not_believed(data: bytes) -> None:
    with pytest.raises(CorruptObject, match="chunks/1"):
        decode(data, "chunks/1")


@pytest.mark.parametrize(
    "row",
    [
        None,
        [],
        ROW[:-1],
        [*ROW, 0.5],
        [*ROW, 0.5, False],
        [*ROW, 1.5, False, False],
        [*ROW, "x", False, False],
        [*ROW, 0.5, 1, False],
        [*ROW, 0.5, False, 0],
        ["g", "TIME", 1 << 63, "stable", 0, 1, "0" * 16],
        ["g", "TIME", 0.5, "stable", 0, 1, "0" * 16],
        ["g", "TIME", True, "stable", 0, 1, "0" * 16],
        ["g", "SPACE", 0, "stable", 0, 1, "0" * 16],
        ["\ud800", "TIME", 0, "stable", 0, 1, "0" * 16],
        [7, "TIME", 0, "stable", 0, 1, "0" * 16],
        ["g", "TIME", 0, "solid", 0, 1, "0" * 16],
        ["g", "TIME", 0, "stable", 0, 1, "0" * 15],
        ["g", ["TIME"], 0, "stable", 0, 1, "0" * 16],
    ],
)
def test_a_damaged_row_is_not_believed(row: object) -> None:
    document = {"format": "lithify.chunks", "version": 1, "policy": "", "chunks": [ROW, row]}
    with pytest.raises(CorruptObject, match="chunk 1"):
        decode(json.dumps(document).encode(), "x")
    document["chunks"] = [ROW, ROW]
    with pytest.raises(CorruptObject, match="twice"):
        decode(json.dumps(document).encode(), "x")
