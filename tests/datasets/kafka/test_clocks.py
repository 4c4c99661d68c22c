"""Clocks of coordinators that are an hour off: rounds and copies go by the store's clock."""

from __future__ import annotations

import pytest

from lithify.base.ids import ulid_ms
from lithify.datasets.kafka.buckets.topic_copy import CopySnapshot
from lithify.store.times import StoreTime
from lithify.testing import ManualClock, MemoryStore
from tests.datasets.kafka import logs
from tests.datasets.kafka.buckets import a_bucket
from tests.datasets.kafka.copies import opened
from tests.datasets.kafka.test_rounds import NAME, a_topic
from tests.datasets.kafka.test_windows import some

HOUR_S = 3_600


@pytest.mark.parametrize("hours", [-1, 0, 1])
def test_a_round_is_dated_by_the_store(hours: int) -> None:
    """The time of a round decides which tombstones are removed, and until when others stay."""
    topic = a_topic([[logs.data(n, ("a", f"{n}"))] for n in range(0, 60, 10)])
    store_clock = ManualClock(topic.clock.now_ms())
    topic.clock.jump_s(hours * HOUR_S)
    dataset = topic.opened()
    dataset._store_time = StoreTime(MemoryStore(store_clock), "now", topic.clock)
    topic.compact(dataset)
    found = dataset.snapshot().round(NAME)
    assert found is not None
    assert found.done
    for compaction_id in found.done:
        assert abs(ulid_ms(compaction_id) - store_clock.now_ms()) < 60_000


@pytest.mark.parametrize("hours", [-1, 0, 1])
def test_what_is_young_enough_to_be_left_out_of_a_copy_is_told_by_the_store(hours: int) -> None:
    bucket = a_bucket(some())
    newest_ms = bucket.listed()[-1].last_modified_ms
    store_clock = ManualClock(newest_ms + 5_000)
    bucket.clock = ManualClock(store_clock.now_ms())
    bucket.clock.jump_s(hours * HOUR_S)
    dataset = opened(bucket, quiet_period="1m")
    dataset._store_time = StoreTime(MemoryStore(store_clock), "now", bucket.clock)
    dataset.take_epoch(lambda taking: None)
    snapshot = dataset.snapshot()
    assert isinstance(snapshot, CopySnapshot)
    (cut,) = {cut.until_ms for cut in snapshot.cuts.values()}
    assert cut == 0, "all objects are younger than a minute"
