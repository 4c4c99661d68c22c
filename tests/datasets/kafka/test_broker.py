"""A real broker judges a topic that was compacted in its bucket, with librdkafka and the Java client: the
broker is stopped, the topic compacted, the broker started again."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lithify.clock import SystemClock
from lithify.coordination.leadership import Leadership
from lithify.datasets.kafka import publishing
from lithify.datasets.kafka.dataset import LogDataset
from lithify.datasets.kafka.settings import KafkaSettings
from lithify.datasets.kafka.topic_copy import TopicCopy
from lithify.ids import RandomIds
from lithify.service import one_shot
from lithify.store.urls import open_store
from lithify.store.wrapped import Call
from lithify.testing.engine import InlineEngine
from lithify.testing.faulty import Crash, Fault, FaultyStore
from lithify.testing.s3.requests import Operation
from tests.judge.kafka_broker import CLUSTER, broker, librdkafka
from tests.judge.kafka_java import KafkaJava, kafka_java
from tests.s3 import S3, serve_s3

TOPIC = "orders"
Map = dict[bytes, bytes | None]
Keyed = tuple[bytes, bytes | None]
Row = tuple[int, bytes, bytes]
"""Offset, key, value."""
ReadFrom = Callable[[int], tuple[list[Row], int]]


@pytest.fixture(scope="module")
def java() -> Iterator[KafkaJava]:
    judge = kafka_java()
    yield judge
    judge.close()


@pytest.fixture(scope="module", params=[False, True], ids=["milliseconds", "seconds"])
def times(request: pytest.FixtureRequest) -> Iterator[S3]:
    """Stores that list times to the millisecond, and to the second."""
    with serve_s3(whole_seconds=request.param) as server:
        yield server


@dataclass
class Written:
    """What was produced: an independent replay."""

    latest: Map = field(default_factory=dict)
    end: int = 0

    def add(self, key: bytes, value: bytes | None, *, counts: bool = True) -> None:
        self.end += 1
        if counts:
            self.latest[key] = value

    @property
    def map(self) -> Map:
        return {key: value for key, value in self.latest.items() if value is not None}


def producer(address: str, **settings: Any) -> Any:
    """It lingers, so what is produced together is one object; who flushes does not wait for that."""
    return librdkafka().Producer({"bootstrap.servers": address, "linger.ms": 999, "log_level": 0, **settings})


def make_topic(address: str) -> None:
    kafka = librdkafka()
    admin = kafka.admin.AdminClient({"bootstrap.servers": address})
    config = {"cleanup.policy": "compact"}
    for made in admin.create_topics([kafka.admin.NewTopic(TOPIC, 1, 1, config=config)]).values():
        made.result(20)


def produce(
    one: Any, written: Written, rows: list[Keyed], *, counts: bool = True, topic: str = TOPIC
) -> None:
    """As one object."""
    for key, value in rows:
        one.produce(topic, key=key, value=value, partition=0)
        written.add(key, value, counts=counts)
    assert one.flush(20) == 0


def produce_all(address: str, written: Written, rng: random.Random) -> None:
    """Many small objects in several codecs; transactions that committed and aborted."""
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        one = producer(address, **{"compression.type": codec, "enable.idempotence": True})
        for _ in range(14):
            produce(one, written, [(b"k%d" % rng.randrange(30), rng.randbytes(9)) for _ in range(5)])
        produce(one, written, [(b"k%d" % rng.randrange(30), None)])
    within = producer(address, **{"transactional.id": "tx"})
    within.init_transactions(20)
    for counts in (True, False, True):
        within.begin_transaction()
        for _ in range(3):
            produce(within, written, [(b"t%d" % rng.randrange(5), rng.randbytes(9))], counts=counts)
        within.commit_transaction(20) if counts else within.abort_transaction(20)
        written.end += 1  # the marker
    produce(one, written, [(b"last", b"1"), (b"last", b"2")])


@contextmanager
def reader(address: str, isolation: str = "read_uncommitted", topic: str = TOPIC) -> Iterator[ReadFrom]:
    """What gives all rows from an offset on, whatever repeats, and where the broker says that the end is."""
    kafka = librdkafka()
    consumer = kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": str(uuid.uuid4()),
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
        }
    )

    def read_from(start: int) -> tuple[list[Row], int]:
        consumer.assign([kafka.TopicPartition(topic, 0, start)])
        rows: list[Row] = []
        for _ in range(200_000):
            message = consumer.poll(20)
            assert message is not None, f"nothing more comes behind {rows[-1:]}"
            if message.error() is None:
                rows.append((message.offset(), message.key(), message.value()))
            elif message.error().code() == kafka.KafkaError._PARTITION_EOF:
                return rows, message.offset()
        raise AssertionError("it does not end")

    try:
        yield read_from
    finally:
        consumer.close()


def read(address: str, isolation: str = "read_uncommitted", topic: str = TOPIC) -> tuple[list[Row], int]:
    """All rows."""
    with reader(address, isolation, topic) as read_from:
        return read_from(0)


def read_all(address: str, wanted: int, topic: str) -> list[Row]:
    """All rows up to this end. A busy broker may tell an earlier one, as far as it got in one fetch."""
    for _ in range(10):
        rows, end = read(address, topic=topic)
        if end >= wanted:
            break
    assert end == wanted
    return rows


def map_of(rows: list[Row]) -> Map:
    return {key: value for key, value in {row[1]: row[2] for row in rows}.items() if value is not None}


def ends(address: str, topic: str = TOPIC) -> tuple[int, int]:
    """Earliest and latest, as the broker tells them."""
    kafka = librdkafka()
    admin = kafka.admin.AdminClient({"bootstrap.servers": address})
    partition = kafka.TopicPartition(topic, 0)
    found = []
    for spec in (kafka.admin.OffsetSpec.earliest(), kafka.admin.OffsetSpec.latest()):
        (answer,) = admin.list_offsets({partition: spec}).values()
        found.append(answer.result(20).offset)
    return found[0], found[1]


def commit(address: str, group: str, offset: int) -> None:
    kafka = librdkafka()
    consumer = kafka.Consumer({"bootstrap.servers": address, "group.id": group})
    consumer.commit(offsets=[kafka.TopicPartition(TOPIC, 0, offset)], asynchronous=False)
    consumer.close()


def resumed(address: str, group: str, topic: str = TOPIC) -> int:
    """The first offset that a group gets which goes on."""
    kafka = librdkafka()
    consumer = kafka.Consumer(
        {"bootstrap.servers": address, "group.id": group, "auto.offset.reset": "error", "log_level": 0}
    )
    consumer.assign([kafka.TopicPartition(topic, 0, kafka.OFFSET_STORED)])
    try:
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None, message.error()
        return int(message.offset())
    finally:
        consumer.close()


def opened(s3: S3, bucket: str, copy_to: str | None = None) -> LogDataset:
    store, _ = open_store(f"s3://{bucket}", s3.options)
    places = (store, f"clusters/{CLUSTER}/topics/{TOPIC}"), (store, f"clusters/{CLUSTER}/lithify/{TOPIC}")
    url, options = f"kafka+s3://{bucket}", (s3.options, s3.options)
    if copy_to is not None:
        settings = KafkaSettings.model_validate({"quiet_period": "1s", "copy_to": copy_to})
        own = f"{places[1][1]}/copies/{copy_to}"
        return TopicCopy(url, places[0], (store, own), SystemClock(), RandomIds(), settings, *options)
    settings = KafkaSettings.model_validate({"quiet_period": "200ms"})
    return LogDataset(url, *places, SystemClock(), RandomIds(), settings, *options)


def compact(s3: S3, bucket: str, copy_to: str | None = None) -> None:
    clock, dataset = SystemClock(), opened(s3, bucket, copy_to)
    summary = one_shot.run(
        dataset, InlineEngine(), clock, RandomIds(), Leadership(dataset, clock, RandomIds())
    )
    assert summary.committed
    assert not summary.failures


def objects(s3: S3, bucket: str, topic: str = TOPIC) -> list[int]:
    store, _ = open_store(f"s3://{bucket}", s3.options)
    folder = f"clusters/{CLUSTER}/topics/{topic}/partitions/{0:010d}/records"
    return sorted(int(meta.key.rpartition("/")[2][:20]) for meta in store.list(folder))


def listings(s3: S3) -> int:
    return sum(one.operation is Operation.LIST for one in s3.server.log)


def test_readers_and_producers_go_on_after_a_window(times: S3, java: KafkaJava, tmp_path: Path) -> None:
    bucket, log, written, rng = times.bucket(), tmp_path / "log", Written(), random.Random(7)
    with broker(times, bucket, log) as address:
        make_topic(address)
        produce_all(address, written, rng)
        commit(address, "readers", 100)
        before, end = read(address, "read_committed")
        assert end == written.end
        count = listings(times)
        read(address)
        listed_before = listings(times) - count
    before_objects = objects(times, bucket)
    compact(times, bucket)
    bases = objects(times, bucket)
    assert len(bases) == 2 < len(before_objects)
    with broker(times, bucket, log) as address:
        # 1: the latest map is that of a replay, and offsets are as they were
        rows, end = read(address)
        assert end == written.end
        assert map_of(rows) == written.map
        assert set(rows) <= set(before)
        # 2: from every position, with both clients
        offsets = [row[0] for row in rows]
        starts = sorted(
            {*bases, *(base + 1 for base in bases), offsets[3] + 1, offsets[-1], 100, end - 1, end}
        )
        with reader(address) as read_from:
            for start in starts:
                found, end = read_from(start)
                assert [row[0] for row in found] == [offset for offset in offsets if offset >= start]
                assert end == written.end
        question = [address, TOPIC, "read_committed", str(written.end)]
        for start, (earliest, latest, position, *got) in zip(
            starts, java.consume(question, starts), strict=True
        ):
            assert got == [offset for offset in offsets if offset >= start], start
            assert position == written.end
            assert (earliest, latest) == ends(address)
        # 3: the broker's ends
        assert ends(address) == (bases[0], bases[-1] + 1)
        # 4: a group goes on
        assert resumed(address, "readers") == next(offset for offset in offsets if offset >= 100)
        # 8: what a full read costs
        count = listings(times)
        read(address)
        assert listings(times) - count <= listed_before
        # 5: producers go on
        one = producer(address, **{"enable.idempotence": True})
        produce(one, written, [(b"k1", b"after")])
        within = producer(address, **{"transactional.id": "tx"})
        within.init_transactions(20)
        within.begin_transaction()
        produce(within, written, [(b"t1", b"after")])
        within.commit_transaction(20)
        written.end += 1
        rows, end = read(address, "read_committed")
        assert end == written.end
        assert map_of(rows) == written.map


def test_a_copy_is_made_while_the_broker_runs_and_taken_over(
    times: S3, java: KafkaJava, tmp_path: Path
) -> None:
    """The broker is never stopped: it shows the new topic at once, with the offsets, rows, ends and groups of
    the old one, whose producer went on meanwhile."""
    bucket, written, rng, new = times.bucket(), Written(), random.Random(8), "orders.v2"
    with broker(times, bucket, tmp_path / "log") as address:
        make_topic(address)
        produce_all(address, written, rng)
        commit(address, "readers", 100)
        time.sleep(2.1)  # what is younger than quiet_period waits, and times may be whole seconds
        compact(times, bucket, new)
        first = objects(times, bucket, new)
        assert len(first) == 2
        rows, end = read(address, topic=new)
        assert (end, map_of(rows)) == (written.end, written.map)
        # The old topic goes on.
        one = producer(address, **{"enable.idempotence": True})
        for n in range(3):
            produce(one, written, [(b"k1", b"late %d" % n), (b"more %d" % n, b"1")])
        commit(address, "readers", written.end - 3)
        time.sleep(2.1)
        old, _ = read(address, "read_committed")
        compact(times, bucket, new)
        since = [base for base in objects(times, bucket) if base > first[-1]]
        assert objects(times, bucket, new) == [*first, *since]
        # Cut-over: every position, both clients, ends, groups, producers.
        rows = read_all(address, written.end, new)
        assert map_of(rows) == written.map
        assert set(rows) <= set(old)
        offsets = [row[0] for row in rows]
        starts = sorted({0, *first, first[1] + 1, offsets[3] + 1, 100, end - 5, end - 1, end})
        with reader(address, topic=new) as read_from:
            for start in starts:
                found, end = read_from(start)
                assert [row[0] for row in found] == [offset for offset in offsets if offset >= start]
                assert end == written.end
        question = [address, new, "read_committed", str(written.end)]
        for start, (earliest, latest, position, *got) in zip(
            starts, java.consume(question, starts), strict=True
        ):
            assert got == [offset for offset in offsets if offset >= start], start
            assert position == written.end
            assert (earliest, latest) == ends(address, new) == (first[0], since[-1] + 1)
        assert resumed(address, "readers", new) == written.end - 3
        produce(producer(address, **{"enable.idempotence": True}), written, [(b"k1", b"new")], topic=new)
        rows = read_all(address, written.end, new)
        assert map_of(rows) == written.map
        assert rows[-1][0] == written.end - 1


@contextmanager
def dying(monkeypatch: pytest.MonkeyPatch, after_writes: int) -> Iterator[None]:
    """Who publishes dies after so many writes to the topic."""
    publish, writes = publishing._Publication, 0

    def decide(_: int, call: Call) -> Fault | None:
        nonlocal writes
        writes += call.method in ("replace", "delete")
        return Fault.CRASH_AFTER if writes == after_writes else None

    with monkeypatch.context() as patched:
        patched.setattr(
            publishing,
            "_Publication",
            lambda task, store, *others: publish(task, FaultyStore(store, decide), *others),
        )
        with pytest.raises(Crash):
            yield


@pytest.mark.parametrize("after_writes", [1, 30])
def test_a_broker_that_is_started_too_early_serves_all_the_same(
    times: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after_writes: int
) -> None:
    """6: who publishes dies, after the put or among the deletes. From offset 0 nothing is missing; the next
    run, with the broker stopped, finishes."""
    bucket, log, written = times.bucket(), tmp_path / "log", Written()
    with broker(times, bucket, log) as address:
        make_topic(address)
        one = producer(address)
        for n in range(60):
            produce(one, written, [(b"k%d" % (n % 7), b"%d" % n), (b"only %d" % n, b"x")])
    with dying(monkeypatch, after_writes):
        compact(times, bucket)
    with broker(times, bucket, log) as address:
        rows, end = read(address)
        assert end == written.end
        assert map_of(rows) == written.map
    compact(times, bucket)
    assert objects(times, bucket) == [0, written.end - 2]
    with broker(times, bucket, log) as address:
        rows, end = read(address)
        assert end == written.end
        assert map_of(rows) == written.map
        assert [row[0] for row in rows] == sorted({row[0] for row in rows})
        assert ends(address) == (0, written.end - 1)
