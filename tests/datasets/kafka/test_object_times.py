"""Stores that list times to the millisecond, and to the second: whatever is made there is the same, and what
tells by times (the ends of a topic, what came since) tells the truth."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from lithify.datasets.kafka.buckets.object_times import put_times_right
from lithify.datasets.kafka.layouts import objects
from lithify.protocol.model import Ledger
from lithify.protocol.run_summary import RunSummary
from lithify.testing import ManualClock
from tests.datasets.kafka import logs, test_live
from tests.datasets.kafka.buckets import NOW_MS, Bucket, a_timed_bucket, a_timed_store
from tests.datasets.kafka.copies import copied, copy_of, same_log
from tests.datasets.kafka.folders import latest, read_rows
from tests.datasets.kafka.logs import Batch
from tests.datasets.kafka.test_kept_indexes import add, segments_of, step, whole_round, without_indexes
from tests.datasets.kafka.test_rounds import NAME, Topic, cut, published
from tests.datasets.kafka.test_topic_copies import decided
from tests.datasets.kafka.test_windows import replayed, some, soon

STEPS_MS = pytest.mark.parametrize("step_ms", [1, 1000])
Compact = Callable[[Bucket], RunSummary]


def window(bucket: Bucket) -> RunSummary:
    return bucket.compact(bucket.opened(soon(min_cleanable_dirty_ratio="0")))


def live(bucket: Bucket) -> RunSummary:
    return test_live.compact(bucket, min_cleanable_dirty_ratio="0")


@STEPS_MS
@pytest.mark.parametrize(("compact", "bases"), [(window, [0, 87]), (live, [0, 3, 78, 81, 84, 87])])
def test_the_ends_of_a_topic_that_is_compacted_in_its_place(
    monkeypatch: pytest.MonkeyPatch, compact: Compact, bases: list[int], step_ms: int
) -> None:
    bucket = a_timed_bucket(monkeypatch, step_ms, some())
    before = bucket.rows()
    compact(bucket)
    assert bucket.bases() == bases
    assert bucket.earliest_and_latest() == (0, 87)
    assert latest(bucket.rows()) == latest(before)
    assert not compact(bucket).started


@STEPS_MS
def test_the_ends_of_a_copy(monkeypatch: pytest.MonkeyPatch, step_ms: int) -> None:
    """And what comes within the same second is found by the next run."""
    bucket = a_timed_bucket(monkeypatch, step_ms, some(20))
    copied(bucket)
    same_log(bucket)
    assert copy_of(bucket).bases() == [0, 57]
    assert not copied(bucket).started
    for count in (21, 25, 30):
        bucket.produce(*some(count)[len(bucket.bases()) :])
        copied(bucket)
        same_log(bucket)
        assert not copied(bucket).started
    assert copy_of(bucket).bases() == [0, *range(57, 90, 3)]


@STEPS_MS
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("compact", [window, live, copied])
def test_random_histories_that_grow(
    monkeypatch: pytest.MonkeyPatch, compact: Compact, seed: int, step_ms: int
) -> None:
    """Within a second, or seconds apart; an independent replay agrees."""
    rng = random.Random(seed)
    monkeypatch.setattr(objects, "CHUNK_OBJECTS", rng.choice((3, 11, 1000)))
    monkeypatch.setattr(objects.ObjectTopic, "target_bytes", rng.choice((400, 900_000)))
    history = logs.random_history(rng)
    bucket = a_timed_bucket(monkeypatch, step_ms, history[:20])
    for start in range(20, len(history), 6):
        compact(bucket)
        bucket.clock.advance_s(rng.choice((0, 0.2, 3)))
        bucket.produce(*history[start : start + 6])
    compact(bucket)
    found = copy_of(bucket) if compact is copied else bucket
    rows = found.rows()
    assert latest(row for row in rows if row[0] in decided(history)) == replayed(history)
    assert [row[0] for row in rows] == sorted({row[0] for row in rows})
    earliest, told = found.earliest_and_latest()
    assert earliest == found.bases()[0]
    # Live, of what a producer has written within one second the first tells the end.
    assert told == history[-1].last if compact is not live else told in found.bases()[-6:]


@pytest.mark.parametrize("step_ms", [1, 1000])
@pytest.mark.parametrize("moves_on", [0, 1, 3])
def test_the_end_of_the_log_is_told_by_what_producers_wrote(
    monkeypatch: pytest.MonkeyPatch, step_ms: int, moves_on: int
) -> None:
    """Who puts the last object again may find that a producer has moved on: then that one is the last, or a
    producer's own of a later moment tells the end, as it does where nobody compacts."""
    bucket = a_timed_bucket(monkeypatch, step_ms, some(10))
    rewritten, left = bucket.key(3), some(10 + moves_on)[10:]
    bucket.store.put(rewritten, bucket.store.get(rewritten))
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1
        if looks > 1 and left:
            bucket.produce(left.pop(0))

    records = f"{bucket.partition}/records"
    put_times_right(bucket.store, records, bucket.clock, look, lambda *_: None, live_from=15)
    earliest, told = bucket.earliest_and_latest()
    assert earliest == 0
    assert told == bucket.bases()[-1] or (told >= 27 and moves_on)


def a_timed_topic(monkeypatch: pytest.MonkeyPatch, step_ms: int, segments: list[list[Batch]]) -> Topic:
    clock = ManualClock(NOW_MS)
    topic = Topic(a_timed_store(monkeypatch, clock, step_ms), "data", clock)
    add(topic, segments)
    return topic


@STEPS_MS
@pytest.mark.parametrize("seed", range(3))
def test_rounds_over_a_folder_of_segments_that_grows(
    monkeypatch: pytest.MonkeyPatch, seed: int, step_ms: int
) -> None:
    """Within a second, or seconds apart: what a round makes is what one makes that finds nothing kept."""
    rng = random.Random(seed)
    segments = [list(part) for part in cut(rng, logs.random_history(rng), 9)]
    topic = a_timed_topic(monkeypatch, step_ms, segments[:3])
    for end in (3, 5, 7, 9):
        add(topic, segments[end - 2 : end])
        dataset = topic.opened()
        while dataset.propose(dataset.snapshot(), Ledger(), full=True).proposals:
            step(dataset)
        found = dataset.snapshot().round(NAME)
        assert found is not None
        if found.settled:
            assert segments_of(topic.store, published(dataset)) == without_indexes(topic)
        topic.clock.advance_s(rng.choice((0, 0.2, 3)))


@STEPS_MS
def test_a_segment_that_is_replaced_by_one_as_large_is_noticed(
    monkeypatch: pytest.MonkeyPatch, step_ms: int
) -> None:
    """Within the second in which it was written first."""
    segments = [[logs.data(2 * n, ("a", f"{n}"), (f"k{n}", "1"))] for n in range(4)]
    topic = a_timed_topic(monkeypatch, step_ms, segments)
    whole_round(topic.opened())
    add(topic, [[logs.data(0, ("a", "0"), ("b0", "1"))]])
    whole_round(topic.opened())
    assert b"b0" in [row[2] for row in read_rows(topic.store, published(topic.opened()))]
