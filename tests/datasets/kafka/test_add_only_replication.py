"""A replication that carries new objects and no deletions: what it makes of a topic that is compacted at its
source, what tells, and what a compaction of the replica puts right."""

from __future__ import annotations

import itertools

import pytest

from lithify.base.errors import LithifyError
from lithify.datasets.kafka.checks import check_log
from lithify.datasets.kafka.format.kernel.layout import LAST_OFFSET_DELTA_AT
from lithify.datasets.kafka.layouts import objects
from lithify.datasets.kafka.layouts.contract import Segment
from lithify.datasets.kafka.layouts.objects import as_segment, count_covered
from lithify.datasets.kafka.settings import KafkaSettings
from lithify.protocol.finding import Finding, Severity
from lithify.service.status import status
from lithify.store.objects import ObjectStore
from lithify.store.urls import open_store
from lithify.testing import ManualClock
from lithify.testing.faulty import StoreFault
from tests.datasets.kafka import logs
from tests.datasets.kafka.buckets import NOW_MS, Bucket, a_bucket
from tests.datasets.kafka.copies import copied, copy_of
from tests.datasets.kafka.folders import latest
from tests.datasets.kafka.test_rounds import NAME, a_topic, published
from tests.datasets.kafka.test_windows import dying, some, soon

SETTINGS = KafkaSettings(broker_build="0.7.0")
_numbers = itertools.count()


def add_only(source: ObjectStore, target: ObjectStore, folder: str) -> None:
    """What is new or another one goes over; what is gone stays."""
    there = {meta.key: target.get(meta.key) for meta in target.list(folder)}
    for meta in source.list(folder):
        if there.get(meta.key) != (data := source.get(meta.key)):
            target.put(meta.key, data)


def replica_of(bucket: Bucket) -> Bucket:
    store, _ = open_store(f"memory://replicas-{next(_numbers)}")
    return Bucket(store, bucket.root, bucket.clock, id=bucket.id)


def replicate(bucket: Bucket, replica: Bucket, folder: str = "topics") -> None:
    add_only(bucket.store, replica.store, f"{bucket.root}/clusters/c/{folder}")
    replica.put_metadata()


def deletions(bucket: Bucket) -> list[Finding]:
    """What the doctor finds of them."""
    dataset = bucket.opened(soon())
    found = check_log(lambda: dataset, lambda one: status(one, ManualClock(NOW_MS), 60_000), NOW_MS, SETTINGS)
    return [one for one in found if one.check == "deletions"]


def test_add_only_replication_leaves_what_merged_objects_cover() -> None:
    """All of them are counted. A compaction of the replica removes them, to the objects of the source; then
    nothing is found any more, as nothing is at the source."""
    bucket = a_bucket(some())
    replica = replica_of(bucket)
    replicate(bucket, replica)
    assert not deletions(replica)
    bucket.compact()
    replicate(bucket, replica)
    assert len(replica.bases()) - len(bucket.bases()) == 28
    (found,) = deletions(replica)
    assert found.severity is Severity.PROBLEM
    assert found.says.startswith("orders-0: 28 of 30 objects lie within the offsets of a merged object")
    assert not deletions(bucket)
    assert latest(replica.rows()) == latest(bucket.rows())
    copied(replica)  # has the rows as well, and nothing that is covered
    assert copy_of(replica).rows() == bucket.rows()
    assert copy_of(replica).bases() == [0, 87]
    replica.compact(replica.opened(soon(min_cleanable_dirty_ratio="0")))
    assert replica.rows() == bucket.rows()
    assert replica.bases() == bucket.bases() == [0, 87]
    assert not deletions(replica)


def test_what_is_damaged_covers_nothing() -> None:
    """Its header says what it likes."""
    bucket = a_bucket(some())
    key = bucket.key(0)
    data = bytearray(bucket.store.get(key))
    data[LAST_OFFSET_DELTA_AT] = 1
    assert count_covered(bucket.store, segments_of(bucket)) == 0
    for damaged in (bytes(data[:-1]), bytes(data[:9]), b"", b"x" * 400):
        bucket.store.put(key, damaged)
        assert count_covered(bucket.store, segments_of(bucket)) == 0
    bucket.store.put(key, bytes(data))
    assert count_covered(bucket.store, segments_of(bucket)) == 29


def segments_of(bucket: Bucket) -> list[Segment]:
    return [as_segment(meta) for meta in bucket.listed()]


def test_after_an_add_only_replication_a_deleted_key_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source has deleted the objects that had the key, and later its tombstone, which stood in an object
    that stays: the replica has the one, and not the other. The doctor finds what is covered, though not the
    objects that were deleted whole. No compaction of the replica helps."""
    monkeypatch.setattr(objects, "CHUNK_OBJECTS", 5)
    dead = [logs.data(n, ("a", f"{n}")) for n in range(5)]
    bucket = a_bucket(
        [
            *dead,
            logs.data(5, ("b", "1"), ("a", None)),
            *[logs.data(n, ("z", f"{n}")) for n in range(7, 30)],
        ]
    )
    replica = replica_of(bucket)
    replicate(bucket, replica)
    for _ in range(2):
        bucket.compact(bucket.opened(soon(min_cleanable_dirty_ratio="0")))
        replicate(bucket, replica)
        bucket.clock.advance_s(2)
    assert set(latest(bucket.rows())) == {b"b", b"z"}
    assert latest(replica.rows())[b"a"][0] == 4
    (found,) = deletions(replica)
    assert found.severity is Severity.PROBLEM
    assert "deleted keys may reappear" in found.says
    assert "copy the topic again" in found.do
    replica.compact(replica.opened(soon(min_cleanable_dirty_ratio="0")))
    assert latest(replica.rows())[b"a"][0] == 4


def test_a_replica_of_what_lithify_keeps_is_told_from_the_source() -> None:
    """It says of which log it is, so nothing of the replica is taken for compacted."""
    bucket = a_bucket(some())
    replica = replica_of(bucket)
    bucket.compact()
    replicate(bucket, replica)
    replicate(bucket, replica, "lithify")
    before = replica.contents()
    with pytest.raises(LithifyError, match=f"contains the output of {bucket.store.url}"):
        replica.compact()
    assert replica.contents() == before


def test_what_a_publication_covers_is_no_finding_while_it_is_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bucket = a_bucket(some())
    calls = dying(monkeypatch, a_bucket(some()), 0, None)
    put = next(number for number, call in enumerate(calls, 1) if call.method == "replace")
    dying(monkeypatch, bucket, put, StoreFault.CRASH_AFTER)
    assert len(bucket.bases()) == 30
    assert not deletions(bucket)
    bucket.compact(bucket.opened(soon()))
    assert bucket.bases() == [0, 87]


def test_segments_after_an_add_only_replication_are_refused_before_anything_is_written() -> None:
    """A broker that merges segments deletes those whose rows went into another one; a replica that has both
    has offsets twice."""
    segments = [[logs.data(2 * n, ("a", f"{n}"), (f"k{n}", "1"))] for n in range(4)]
    topic, replica = a_topic(segments), a_topic(segments)
    topic.compact(topic.opened())
    merged = [meta.key for meta in topic.store.list(published(topic.opened())) if meta.key.endswith(".log")]
    assert len(merged) == 2
    for key in merged:
        replica.store.put(f"{replica.root}/{NAME}/{key.rpartition('/')[2]}", topic.store.get(key))
    before = replica.everything()
    summary = replica.compact(replica.opened())
    assert "its last offset is 5, but the next segment begins at 2" in summary.failures[0].reason
    assert replica.everything() == before
    assert not [meta for meta in replica.store.list(f"{replica.root}/out") if meta.key.endswith(".log")]
