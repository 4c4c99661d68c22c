"""Verdicts: the table of cases, boundaries, priorities, rules of one's own."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lithify.base.errors import Refused
from lithify.planning.timeline.chunks import lay_out
from lithify.planning.timeline.model import (
    Chunk,
    ChunkAction,
    ChunkBucket,
    ChunkRule,
    ChunkVerdict,
    TimelineFile,
    TimelinePolicy,
)
from lithify.planning.timeline.plan import plan
from lithify.planning.timeline.rules import default_rules, judge, rules_of
from tests.planning.timeline.timelines import MB, NOW_US, POLICY, file

TOLERANT = replace(POLICY, size_tolerance=0.25)
PATIENT = replace(POLICY, min_saved_files=4, min_new_ratio=0.2)
DELETES = replace(POLICY, max_deleted_ratio=0.3)


def verdict(files: list[TimelineFile], policy: TimelinePolicy = POLICY) -> ChunkVerdict:
    """On the chunk of day 0."""
    return judge(lay_out(files, policy).chunks[0], rules_of(policy))


def within(*sizes_mb: float) -> list[TimelineFile]:
    return [file(0.1, 0.9, size) for size in sizes_mb]


@pytest.mark.parametrize(
    ("files", "policy", "action", "reason"),
    [
        pytest.param(
            [file(0, 1, rows=9, deleted_rows=9)],
            POLICY,
            ChunkAction.EMPTY,
            "all rows",
            id="only deleted rows",
        ),
        pytest.param([file(0, 1, rows=0)], POLICY, ChunkAction.COMPACT, "1 file without rows", id="no rows"),
        pytest.param(within(1), POLICY, ChunkAction.STABLE, "1 file", id="one small file"),
        pytest.param(within(100), POLICY, ChunkAction.STABLE, "1 file", id="one file of the size"),
        pytest.param(within(100.000001), POLICY, ChunkAction.COMPACT, "above", id="one byte above"),
        pytest.param(within(100, 100, 1), POLICY, ChunkAction.STABLE, "3 files", id="as few as needed"),
        pytest.param(within(100, 99, 1), POLICY, ChunkAction.COMPACT, "where 2", id="one more than needed"),
        pytest.param(within(0.1, 0.1), POLICY, ChunkAction.COMPACT, "where 1 would do", id="two small ones"),
        pytest.param(within(450, 1), POLICY, ChunkAction.COMPACT, "above", id="one too large among others"),
        pytest.param(
            [file(0.5, 1.5)], POLICY, ChunkAction.NO_OPINION, "neighbour", id="overlap, sizes stable"
        ),
        pytest.param(
            [file(0.5, 1.5), file(0, 1)], POLICY, ChunkAction.COMPACT, "where 1", id="overlap, sizes unstable"
        ),
        pytest.param([file(0.5, 1.5, 450)], POLICY, ChunkAction.COMPACT, "above", id="overlap, oversize"),
        pytest.param(within(125), TOLERANT, ChunkAction.STABLE, "1 file", id="tolerance above"),
        pytest.param(within(125.000001), TOLERANT, ChunkAction.COMPACT, "above", id="above the tolerance"),
        pytest.param(within(*[75] * 9), TOLERANT, ChunkAction.STABLE, "9 files", id="tolerance below"),
        pytest.param(
            within(*[75] * 8, 74), TOLERANT, ChunkAction.STABLE, "9 files", id="the last may be smaller"
        ),
        pytest.param(
            within(*[74] * 100), TOLERANT, ChunkAction.COMPACT, "would do", id="below the tolerance"
        ),
        pytest.param(
            [file(0, 1, rows=10, deleted_rows=3, deletes=1)],
            DELETES,
            ChunkAction.COMPACT,
            "30%",
            id="deletes",
        ),
        pytest.param(
            [file(0, 1, rows=100, deleted_rows=29, deletes=1)],
            DELETES,
            ChunkAction.STABLE,
            "",
            id="few deletes",
        ),
        pytest.param(
            [file(0, 1, deletes=1)], DELETES, ChunkAction.COMPACT, "unknown number", id="unknown deletes"
        ),
        pytest.param(
            [file(0, 1, rows=9, deleted_rows=9, deletes=1)],
            DELETES,
            ChunkAction.COMPACT,
            "100%",
            id="all deleted",
        ),
        pytest.param(
            [file(0, 1, rows=10, deleted_rows=9, deletes=1)], POLICY, ChunkAction.STABLE, "", id="deletes off"
        ),
        pytest.param(
            [TimelineFile("a", ChunkBucket.NULL, 1, 1), TimelineFile("b", ChunkBucket.NULL, 1, 1)],
            POLICY,
            ChunkAction.COMPACT,
            "where 1",
            id="files of null times are merged",
        ),
        pytest.param(
            [TimelineFile("a", ChunkBucket.UNKNOWN, 1, 1), TimelineFile("b", ChunkBucket.UNKNOWN, 1, 1)],
            POLICY,
            ChunkAction.NO_OPINION,
            "unknown",
            id="files of unknown times are left alone",
        ),
        pytest.param(
            [file(0, 9999)], POLICY, ChunkAction.COMPACT, "too many chunks", id="a wide file is cut"
        ),
    ],
)
def test_verdict(files: list[TimelineFile], policy: TimelinePolicy, action: ChunkAction, reason: str) -> None:
    found = verdict(files, policy)
    assert found.action is action
    assert reason in found.reason


@given(st.lists(st.integers(1, 500 * MB), min_size=1, max_size=40), st.sampled_from([POLICY, TOLERANT]))
def test_priority_is_in_range_and_more_small_files_are_not_less_urgent(
    sizes: list[int], policy: TimelinePolicy
) -> None:
    files = [replace(file(0, 1), size_bytes=size) for size in sizes]
    before = verdict(files, policy)
    after = verdict([*files, file(0, 1, 1)], policy)
    assert 0 <= before.priority <= after.priority <= 1
    assert (before.priority > 0) == (before.action is ChunkAction.COMPACT)
    assert before == verdict(files, policy)
    assert before.reason


@given(st.lists(st.integers(1, 500 * MB), min_size=1, max_size=30))
def test_sizes_are_stable_exactly_when_no_rewrite_could_save_a_file(sizes: list[int]) -> None:
    limit = POLICY.max_file_bytes
    want = max(sizes) <= limit and -(-sum(sizes) // limit) == len(sizes)
    found = verdict([replace(file(0, 1), size_bytes=size) for size in sizes])
    assert (found.action is ChunkAction.STABLE) == want


@given(st.integers(1, 5000), st.floats(0.8, 1.2))
def test_an_even_split_is_stable_although_sizes_come_out_a_little_different(
    total_mb: int, ratio: float
) -> None:
    """A chunk of several files; one that needs a single file is stable whatever its size."""
    pieces = max(1, -(-total_mb * MB // TOLERANT.max_file_bytes))
    written = [file(0, 1, total_mb * ratio / pieces) for _ in range(pieces)]
    if pieces >= 6:
        assert verdict(written, TOLERANT).action is ChunkAction.STABLE


@dataclass(frozen=True)
class Always:
    """A rule of one's own."""

    action: ChunkAction
    priority: float = 0.0

    def __call__(self, chunk: Chunk) -> ChunkVerdict | None:
        return ChunkVerdict(self.action, f"always {self.action.value}", self.priority)


@pytest.mark.parametrize(
    ("files", "policy", "may_wait"),
    [
        pytest.param(within(1, 1), POLICY, False, id="patience is off"),
        pytest.param(within(60, 10, 10, 10), PATIENT, True, id="too few files"),
        pytest.param(within(60, 10, 10, 10, 10), PATIENT, False, id="enough files with enough of the bytes"),
        pytest.param(within(90, 1, 1, 1, 1), PATIENT, True, id="too few bytes"),
        pytest.param(within(80, *[0.001] * 121), PATIENT, True, id="tiny files count as 128 KiB"),
        pytest.param(within(80, *[0.001] * 123), PATIENT, False, id="so many tiny files are enough"),
        pytest.param(within(100, 100, 30, *[1] * 4), PATIENT, True, id="as many are kept as are needed"),
        pytest.param(within(126, 1), PATIENT, False, id="too large is too large"),
    ],
)
def test_what_may_wait_for_more_data(
    files: list[TimelineFile], policy: TimelinePolicy, may_wait: bool
) -> None:
    found = verdict(files, policy)
    assert (found.action, found.may_wait) == (ChunkAction.COMPACT, may_wait)


@dataclass(frozen=True)
class Silent:
    def __call__(self, chunk: Chunk) -> ChunkVerdict | None:
        return None


def test_rules_can_be_replaced() -> None:
    def actions(*rules: ChunkRule) -> list[tuple[ChunkAction, str]]:
        result = plan(within(1), replace(POLICY, rules=rules), NOW_US)
        return [(c.verdict.action, c.verdict.reason) for c in result.chunks]

    assert actions(Always(ChunkAction.COMPACT, 0.7)) == [(ChunkAction.COMPACT, "always compact")]
    assert actions(Silent(), Always(ChunkAction.EMPTY)) == [(ChunkAction.EMPTY, "always empty")]
    assert actions(Silent()) == [(ChunkAction.NO_OPINION, "no rule applies")]
    assert actions(Silent(), *default_rules(POLICY)) == [
        (ChunkAction.STABLE, "1 file (1.0 MB), as few as needed")
    ]


def test_a_priority_outside_0_to_1_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="not between 0 and 1"):
        ChunkVerdict(ChunkAction.COMPACT, "", 1.1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_file_bytes": 0},
        {"min_saved_files": 0},
        {"max_task_bytes": 0},
        {"small_task_bytes": 0},
        {"max_chunks_per_file": 0},
        {"min_new_ratio": 1.1},
        {"lateness_us": -1},
        {"size_tolerance": 1.0},
        {"size_tolerance": -0.1},
        {"max_deleted_ratio": 0.0},
        {"max_deleted_ratio": 1.1},
        {"max_combine_gap_us": -1},
        {"skip_clock_us": -1},
        {"skip_newest_us": -1},
    ],
)
def test_impossible_policies_are_refused(wrong: dict[str, float]) -> None:
    (name,) = wrong
    with pytest.raises(Refused, match=name):
        TimelinePolicy(**wrong)  # type: ignore[arg-type] # that is the point
