"""Files over chunks: both input forms, spans, membership, overlap marks, buckets."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lithify.base.errors import Refused
from lithify.planning.timeline.calendar import MAX_US, MIN_US, Calendar, Granularity
from lithify.planning.timeline.chunks import files_of, lay_out, merge
from lithify.planning.timeline.model import ChunkBucket, Interval, ListedChunk, TimelineFile, TimelinePolicy
from lithify.planning.timeline.plan import plan
from tests.planning.timeline.timelines import (
    DAY_US,
    HOUR_US,
    NOW_US,
    POLICY,
    calendars,
    day,
    file,
    timelines,
)


def listed_by(files: list[TimelineFile], length_us: int) -> list[ListedChunk]:
    """The other input form: chunks of that length, with the files that have data for each."""
    untimed = tuple(f for f in files if not isinstance(f.times, Interval))
    chunks = [ListedChunk(Interval(0, 1), untimed)] if untimed else []
    timed = [(f, f.times) for f in files if isinstance(f.times, Interval)]
    for start in range(0, max((t.end_us for _, t in timed), default=0), length_us):
        interval = Interval(start, start + length_us)
        inside = tuple(f for f, times in timed if times.meets(interval))
        if inside:
            chunks.append(ListedChunk(interval, inside))
    return chunks


@given(timelines(groups=("a", "b")), st.sampled_from([HOUR_US, 7 * HOUR_US, 2 * DAY_US]), st.randoms())
@settings(max_examples=60, deadline=None)
def test_both_input_forms_and_every_order_give_the_same_plan(
    files: list[TimelineFile], length_us: int, rng: random.Random
) -> None:
    want = plan(files, POLICY, NOW_US)
    chunks = listed_by(files, length_us)
    rng.shuffle(chunks)
    assert plan(files_of(chunks), POLICY, NOW_US) == want
    rng.shuffle(files)
    assert plan(files, POLICY, NOW_US) == want


def test_a_file_listed_twice_with_different_properties_is_refused() -> None:
    one = file(0.5, 1.5, id="x")
    with pytest.raises(Refused, match="file x is listed twice"):
        files_of(
            [
                ListedChunk(Interval(0, DAY_US), (one,)),
                ListedChunk(Interval(DAY_US, 2 * DAY_US), (replace(one, size_bytes=7),)),
            ]
        )


def test_a_file_listed_where_it_has_no_data_is_refused() -> None:
    with pytest.raises(Refused, match="file x is listed in a chunk"):
        files_of([ListedChunk(Interval(0, DAY_US), (file(1, 2, id="x"),))])


@given(timelines(groups=("", "b")))
@settings(max_examples=100, deadline=None)
def test_spans_are_the_union_of_the_intervals_and_never_touch(files: list[TimelineFile]) -> None:
    spans = lay_out(files, POLICY).spans
    for group in ("", "b"):
        own = [span for name, span in spans if name == group]
        assert all(a.end_us < b.start_us for a, b in itertools.pairwise(own))
        hours = {h for s in own for h in range(s.start_us // HOUR_US, s.end_us // HOUR_US)}
        intervals = [f.times for f in files if f.group == group and isinstance(f.times, Interval)]
        assert hours == {h for t in intervals for h in range(t.start_us // HOUR_US, t.end_us // HOUR_US)}


def test_a_gap_is_where_one_file_ends_before_the_next_begins() -> None:
    assert merge([(0, 5), (5, 7), (8, 9), (1, 2)]) == [(0, 7), (8, 9)]


@given(timelines(groups=("", "b")), calendars)
@settings(max_examples=100, deadline=None)
def test_a_file_is_in_exactly_the_chunks_it_meets(files: list[TimelineFile], calendar: Calendar) -> None:
    policy = replace(POLICY, calendar=calendar)
    layout = lay_out(files, policy)
    for chunk in layout.chunks:
        assert chunk.files
        if chunk.interval is None:
            assert all(f.times is chunk.key.bucket and f.group == chunk.key.group for f in chunk.files)
            continue
        start, end = chunk.interval.start_us, chunk.interval.end_us
        assert [start, end] == calendar.edges(start, end)
        met = [
            f
            for f in files
            if f.group == chunk.key.group and isinstance(f.times, Interval) and f.times.meets(chunk.interval)
        ]
        assert set(chunk.files) == set(met)
        assert chunk.size_bytes == sum(f.size_bytes for f in met)
        assert chunk.largest_bytes == max(f.size_bytes for f in met)
        assert (chunk.rows, chunk.deleted_rows) == (
            sum(f.rows for f in met),
            sum(f.deleted_rows for f in met),
        )
    assert {f.id for chunk in layout.chunks for f in chunk.files} == {f.id for f in files}
    assert [chunk.key for chunk in layout.chunks] == sorted({chunk.key for chunk in layout.chunks})


@given(timelines(groups=("", "b")))
@settings(max_examples=100, deadline=None)
def test_overlap_marks_mirror_each_other(files: list[TimelineFile]) -> None:
    chunks = {chunk.key: chunk for chunk in lay_out(files, POLICY).chunks}
    for key, chunk in chunks.items():
        if chunk.interval is None:
            assert not chunk.overlaps
            continue
        before = chunks.get(replace(key, start_us=chunk.interval.start_us - DAY_US))
        after = chunks.get(replace(key, start_us=chunk.interval.end_us))
        assert chunk.overlap_prior == (before is not None and before.overlap_later)
        assert chunk.overlap_later == (after is not None and after.overlap_prior)
        shared = set(before.files) & set(chunk.files) if before is not None else set()
        assert chunk.overlap_prior == bool(shared)


@given(timelines(groups=("", "b")))
@settings(max_examples=50, deadline=None)
def test_no_row_is_dropped_whatever_its_times(files: list[TimelineFile]) -> None:
    totals = plan(files, POLICY, NOW_US).totals.values()
    assert sum(t.rows for t in totals) == sum(f.rows for f in files)
    assert sum(t.size_bytes for t in totals) == sum(f.size_bytes for f in files)
    assert sum(t.files for t in totals) == len(files)


def test_files_without_times_are_in_named_buckets() -> None:
    files = [
        TimelineFile("null", ChunkBucket.NULL, 1, 1),
        TimelineFile("unknown", ChunkBucket.UNKNOWN, 1, 1),
        file(0, 400, id="wide"),
        file(0, 366, id="just not"),
    ]
    layout = lay_out(files, POLICY)
    assert [(c.key.bucket, [f.id for f in c.files]) for c in layout.chunks if c.key.bucket] == [
        (ChunkBucket.NULL, ["null"]),
        (ChunkBucket.WIDE, ["wide"]),
        (ChunkBucket.UNKNOWN, ["unknown"]),
    ]
    assert sum(c.key.bucket is ChunkBucket.TIME for c in layout.chunks) == 366


def test_one_wrong_timestamp_does_not_make_millions_of_chunks() -> None:
    forever = TimelineFile("forever", Interval(0, (1 << 63) - 1), 1, 1)
    everything = TimelineFile("everything", Interval(-(1 << 63), 1 << 63), 1, 1)
    far = TimelineFile("far", Interval((1 << 63) - 1, 1 << 63), 1, 1)
    layout = lay_out([forever, everything, far, file(1, 2)], POLICY)
    assert [c.key.bucket for c in layout.chunks] == [ChunkBucket.TIME, ChunkBucket.TIME, ChunkBucket.WIDE]
    assert len(layout.chunks[-1].files) == 2
    last = layout.chunks[1].interval
    assert last is not None
    assert MIN_US < last.start_us < last.end_us == MAX_US


@pytest.mark.parametrize("granularity", list(Granularity))
def test_the_end_of_an_interval_is_excluded(granularity: Granularity) -> None:
    policy = TimelinePolicy(calendar=Calendar(granularity))
    edge = Calendar(granularity).edges(NOW_US, NOW_US + 1)[0]
    ends_at_edge = TimelineFile("a", Interval(edge - 1, edge), 1, 1)
    begins_at_edge = TimelineFile("b", Interval(edge, edge + 1), 1, 1)
    over_edge = TimelineFile("c", Interval(edge - 1, edge + 1), 1, 1)
    chunks = lay_out([ends_at_edge, begins_at_edge, over_edge], policy).chunks
    assert [[f.id for f in c.files] for c in chunks] == [["a", "c"], ["c", "b"]]


def test_groups_are_timelines_of_their_own() -> None:
    files = [file(0, 2, id="a", group="a"), file(1, 3, id="b", group="b")]
    assert [(c.key, len(c.files)) for c in lay_out(files, POLICY).chunks] == [
        (day(0, "a"), 1),
        (day(1, "a"), 1),
        (day(1, "b"), 1),
        (day(2, "b"), 1),
    ]


@pytest.mark.parametrize(
    "bad",
    [
        TimelineFile("x", Interval(0, 1), -1, 1),
        TimelineFile("x", Interval(0, 1), 1 << 63, 1),
        TimelineFile("x", Interval(0, 1), 1, -1),
        TimelineFile("x", Interval(0, 1), 1, 1, deleted_rows=2),
        TimelineFile("x", ChunkBucket.TIME, 1, 1),
        TimelineFile("x", ChunkBucket.WIDE, 1, 1),
    ],
)
def test_impossible_files_are_refused(bad: TimelineFile) -> None:
    with pytest.raises(Refused, match="file x has"):
        lay_out([bad], POLICY)


def test_two_files_of_one_id_are_refused() -> None:
    with pytest.raises(Refused, match="two files x"):
        lay_out([file(0, 1, id="x"), file(1, 2, id="x")], POLICY)


def test_an_empty_timeline_has_no_chunks() -> None:
    assert lay_out([], POLICY).chunks == ()
    assert plan([], POLICY, NOW_US).tasks == ()


def test_times_are_positive() -> None:
    with pytest.raises(ValueError, match="is empty"):
        Interval(5, 5)
