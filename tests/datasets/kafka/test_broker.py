"""A real broker judges a topic that was compacted in its bucket, with librdkafka and the Java client: the
broker is stopped, the topic compacted, the broker started again."""

from __future__ import annotations

import random
import subprocess
import sys
import time
import uuid
from bisect import bisect_left
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from lithify.base.clock import SystemClock
from lithify.base.ids import RandomIds
from lithify.coordination.leadership import Leadership
from lithify.datasets.kafka.buckets import publishing
from lithify.datasets.kafka.buckets.topic_copy import TopicCopy
from lithify.datasets.kafka.dataset import LogDataset
from lithify.datasets.kafka.layouts.objects import ObjectTopic
from lithify.datasets.kafka.settings import KafkaSettings
from lithify.service import one_shot
from lithify.store.urls import open_store
from lithify.store.wrapped import Call
from lithify.testing.engine import InlineEngine
from lithify.testing.faulty import Crash, FaultyStore, StoreFault
from lithify.testing.s3 import Latency
from lithify.testing.s3.requests import Operation, S3Verb
from tests.judge.kafka_broker import CLUSTER, broker, librdkafka
from tests.judge.kafka_java import KafkaJava, kafka_java
from tests.s3 import S3, serve_s3

TOPIC = "orders"
Map = dict[bytes, bytes | None]
Keyed = tuple[bytes, bytes | None]
Row = tuple[int, bytes, bytes]
"""Offset, key, value."""
AT_ONCE = 8
"""Readers; each waits most of the time."""


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


def read(
    address: str,
    isolation: str = "read_uncommitted",
    topic: str = TOPIC,
    start: int = 0,
    wanted: int = 0,
    most_bytes: int = 1 << 20,
) -> tuple[list[Row], int]:
    """All rows from an offset on, whatever repeats, and where the broker says that the end is: at `wanted` or
    behind it. A busy one may tell an earlier end first, as far as it got in one fetch."""
    kafka = librdkafka()
    consumer = kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": str(uuid.uuid4()),
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
            "fetch.message.max.bytes": most_bytes,
        }
    )
    consumer.assign([kafka.TopicPartition(topic, 0, start)])
    rows: list[Row] = []
    try:
        for _ in range(200_000):
            message = consumer.poll(20)
            assert message is not None, f"nothing more comes behind {rows[-1:]}"
            if message.error() is None:
                rows.append((message.offset(), message.key(), message.value()))
            elif message.error().code() == kafka.KafkaError._PARTITION_EOF and message.offset() >= wanted:
                return rows, message.offset()
        raise AssertionError("it does not end")
    finally:
        consumer.close()


def read_all(address: str, wanted: int, topic: str) -> list[Row]:
    """All rows, up to this end."""
    rows, end = read(address, topic=topic, wanted=wanted)
    assert end == wanted
    return rows


def positions(rows: list[Row], bases: list[int], end: int) -> list[int]:
    """Where readers are to begin: at 0; where each object begins, behind that, at its last row and where it
    ends; in the first and the last hole; at the last row; right before the end, and there."""
    offsets = [row[0] for row in rows]
    ends = [*bases[1:], end]
    last_rows = [offsets[bisect_left(offsets, one) - 1] for one in ends]
    holes = sorted({*range(bases[0], end)} - {*offsets})
    found = {0, end - 1, end, *bases, *last_rows, *holes[:1], *holes[-1:]}
    return sorted(found | {base + 1 for base in bases} | {one - 1 for one in ends})


def read_from_everywhere(
    address: str, java: KafkaJava, rows: list[Row], bases: list[int], end: int, topic: str = TOPIC
) -> None:
    """Both clients, from every position, get the rows from there on, once, in order, and come to the end."""
    starts, offsets = positions(rows, bases, end), [row[0] for row in rows]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        question = [address, topic, "read_committed", str(end)]
        consumed = pool.submit(java.consume, question, starts)
        found = pool.map(lambda start: read(address, topic=topic, start=start, wanted=end), starts)
        for start, (got, seen) in zip(starts, found, strict=True):
            assert [row[0] for row in got] == [offset for offset in offsets if offset >= start], start
            assert seen == end, start
    told = ends(address, topic)
    for start, (earliest, latest, position, *numbers) in zip(starts, consumed.result(), strict=True):
        assert numbers == [offset for offset in offsets if offset >= start], start
        assert position == end, start
        assert (earliest, latest) == told


def transact(address: str, written: Written, rows: list[Keyed], topic: str = TOPIC) -> None:
    """The transactional producer goes on, in another process."""
    within = producer(address, **{"transactional.id": "tx"})
    within.init_transactions(20)
    within.begin_transaction()
    produce(within, written, rows, topic=topic)
    within.commit_transaction(20)
    written.end += 1  # the marker


def map_of(rows: list[Row]) -> Map:
    return {key: value for key, value in {row[1]: row[2] for row in rows}.items() if value is not None}


def is_known(address: str, topic: str) -> bool:
    """Whether the broker knows of a topic."""
    admin = librdkafka().admin.AdminClient({"bootstrap.servers": address})
    return topic in admin.list_topics(timeout=20).topics


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


def resumed(address: str, group: str, topic: str = TOPIC, partition: int = 0) -> int:
    """The first offset that a group gets which goes on."""
    kafka = librdkafka()
    consumer = kafka.Consumer(
        {"bootstrap.servers": address, "group.id": group, "auto.offset.reset": "error", "log_level": 0}
    )
    consumer.assign([kafka.TopicPartition(topic, partition, kafka.OFFSET_STORED)])
    try:
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None, message.error()
        return int(message.offset())
    finally:
        consumer.close()


def opened(options: dict[str, str], bucket: str, copy_to: str | None = None) -> LogDataset:
    store, _ = open_store(f"s3://{bucket}", options)
    places = (store, f"clusters/{CLUSTER}/topics/{TOPIC}"), (store, f"clusters/{CLUSTER}/lithify/{TOPIC}")
    url, both = f"kafka+s3://{bucket}", (options, options)
    if copy_to is not None:
        settings = KafkaSettings.model_validate({"quiet_period": "1s", "copy_to": copy_to})
        own = f"{places[1][1]}/copies/{copy_to}"
        return TopicCopy(url, places[0], (store, own), SystemClock(), RandomIds(), settings, *both)
    settings = KafkaSettings.model_validate({"quiet_period": "200ms"})
    return LogDataset(url, *places, SystemClock(), RandomIds(), settings, *both)


def compact(s3: S3, bucket: str, copy_to: str | None = None) -> None:
    compact_with(s3.options, bucket, copy_to)


def compact_with(options: dict[str, str], bucket: str, copy_to: str | None) -> None:
    """Whoever was at it before is dead."""
    clock, dataset = SystemClock(), opened(options, bucket, copy_to)
    leadership, planner = Leadership(dataset, clock, RandomIds()), dataset.planner()
    summary = one_shot.run(
        dataset, InlineEngine(), clock, RandomIds(), leadership, planner=planner, take_over=True
    )
    assert summary.committed
    assert not summary.failures


def kill_while_compacting(
    s3: S3, bucket: str, until: Callable[[], bool], copy_to: str | None = None, within: str = __name__
) -> None:
    """Compact in a process of its own, with `compact_with` of this module, and kill that as soon as this is
    so."""
    command = f"from {within} import compact_with; compact_with({s3.options!r}, {bucket!r}, {copy_to!r})"
    weather, until_s = s3.server.weather, time.monotonic() + 60
    s3.server.weather = replace(weather, latency={S3Verb.PUT: Latency(40), S3Verb.DELETE: Latency(40)})
    process = subprocess.Popen([sys.executable, "-c", command], cwd=Path(__file__).parents[3])
    try:
        while not until() and time.monotonic() < until_s:
            assert process.poll() is None, "it has ended before"
            time.sleep(0.002)
    finally:
        process.kill()
        process.wait()
        s3.server.weather = weather
    assert until()


def objects(s3: S3, bucket: str, topic: str = TOPIC) -> list[int]:
    store, _ = open_store(f"s3://{bucket}", s3.options)
    folder = f"clusters/{CLUSTER}/topics/{topic}/partitions/{0:010d}/records"
    return sorted(int(meta.key.rpartition("/")[2][:20]) for meta in store.list(folder))


def lists_of_a_read(s3: S3, address: str, topic: str = TOPIC) -> int:
    """How many listings a full read costs."""
    before = len(s3.server.log)
    read(address, topic=topic)
    return sum(one.operation is Operation.LIST for one in s3.server.log[before:])


def test_readers_and_producers_go_on_after_a_window(
    times: S3, java: KafkaJava, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ObjectTopic, "target_bytes", 300)  # so that several are merged
    bucket, log, written, rng = times.bucket(), tmp_path / "log", Written(), random.Random(7)
    with broker(times, bucket, log) as address:
        make_topic(address)
        produce_all(address, written, rng)
        commit(address, "readers", 100)
        before, end = read(address, "read_committed")
        assert end == written.end
        listed_before = lists_of_a_read(times, address)
    before_objects = objects(times, bucket)
    compact(times, bucket)
    bases = objects(times, bucket)
    assert 4 < len(bases) < len(before_objects) / 8
    with broker(times, bucket, log) as address:
        # 1: the latest map is that of a replay, and offsets are as they were
        rows, end = read(address)
        assert end == written.end
        assert map_of(rows) == written.map
        assert set(rows) <= set(before)
        # 2: from every position, with both clients; however many of the objects an answer has
        read_from_everywhere(address, java, rows, bases, end)
        for most_bytes in (1, 300, 600):
            assert read(address, most_bytes=most_bytes)[0] == rows
        # 3: the broker's ends
        assert ends(address) == (bases[0], bases[-1] + 1)
        # 4: a group goes on
        assert resumed(address, "readers") == next(row[0] for row in rows if row[0] >= 100)
        # 8: what a full read costs
        assert lists_of_a_read(times, address) <= listed_before
        # 5: producers go on
        produce(producer(address, **{"enable.idempotence": True}), written, [(b"k1", b"after")])
        transact(address, written, [(b"t1", b"after")])
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
        # Cut-over: map, every position with both clients, ends, groups, listings, producers.
        rows = read_all(address, written.end, new)
        assert map_of(rows) == written.map
        assert set(rows) <= set(old)
        read_from_everywhere(address, java, rows, [*first, *since], written.end, new)
        assert ends(address, new) == (first[0], since[-1] + 1)
        assert resumed(address, "readers", new) == written.end - 3
        assert lists_of_a_read(times, address, new) <= lists_of_a_read(times, address)
        one = producer(address, **{"enable.idempotence": True})
        produce(one, written, [(b"k1", b"new")], topic=new)
        transact(address, written, [(b"t1", b"new")], topic=new)
        rows = read_all(address, written.end, new)
        assert map_of(rows) == written.map
        assert rows[-1] == (written.end - 2, b"t1", b"new")


def found(s3: S3, bucket: str, prefix: str) -> dict[str, bytes]:
    """The objects of the cluster whose names begin with this."""
    store, _ = open_store(f"s3://{bucket}", s3.options)
    keys = [meta.key for meta in store.list(f"clusters/{CLUSTER}")]
    within = {key: key.removeprefix(f"clusters/{CLUSTER}/") for key in keys}
    return {name: store.get(key) for key, name in within.items() if name.startswith(prefix)}


def test_a_copy_whose_process_is_killed_again_and_again_under_a_running_broker(
    times: S3, java: KafkaJava, tmp_path: Path
) -> None:
    """6: before the new topic has anything, when it has something, right after the broker was told of it, and
    among the objects that are put behind it later. The old topic stays byte for byte; of the new one nothing
    half is shown; the next run ends as if none had died."""
    bucket, written, new = times.bucket(), Written(), "orders.v2"
    with broker(times, bucket, tmp_path / "log") as address:
        make_topic(address)
        one = producer(address, **{"enable.idempotence": True})
        for n in range(30):
            produce(one, written, [(b"k%d" % (n % 7), b"%d" % n), (b"only %d" % n, b"x")])
        commit(address, "readers", 20)
        time.sleep(2.1)  # what is younger than quiet_period waits, and times may be whole seconds
        old = found(times, bucket, f"topics/{TOPIC}/")
        for until in (
            lambda: len(found(times, bucket, f"lithify/{TOPIC}/copies")) >= 3,
            lambda: bool(objects(times, bucket, new)),
            lambda: new.encode() in found(times, bucket, "meta.json")["meta.json"],
        ):
            assert not is_known(address, new)
            kill_while_compacting(times, bucket, until, new)
            assert found(times, bucket, f"topics/{TOPIC}/") == old
        until_s = time.monotonic() + 20
        while not is_known(address, new) and time.monotonic() < until_s:
            time.sleep(0.1)  # the broker remembers for a second what topics there are
        for is_finished in (False, True):  # as it was shown, and as the next run leaves it
            if is_finished:
                compact(times, bucket, new)
            rows = read_all(address, written.end, new)
            assert map_of(rows) == written.map
            assert objects(times, bucket, new) == [0, written.end - 2]
            assert ends(address, new) == (0, written.end - 1)
        assert resumed(address, "readers", new) == next(row[0] for row in rows if row[0] >= 20)
        end = written.end
        for n in range(4):
            produce(one, written, [(b"k%d" % n, b"late"), (b"more %d" % n, b"x")])
        time.sleep(2.1)
        old = found(times, bucket, f"topics/{TOPIC}/")
        kill_while_compacting(times, bucket, lambda: len(objects(times, bucket, new)) == 4, new)
        # A reader has what was, and then what came, in order, as far as it is there.
        ((_, _, position, *offsets),) = java.consume([address, new, "read_committed", str(end + 4)], [0])
        assert (position, offsets) == (end + 4, [*(row[0] for row in rows), *range(end, end + 4)])
        compact(times, bucket, new)
        assert found(times, bucket, f"topics/{TOPIC}/") == old
        assert objects(times, bucket, new) == [0, *range(end - 2, written.end, 2)]
        rows = read_all(address, written.end, new)
        assert map_of(rows) == written.map
        assert [row[0] for row in rows] == sorted({row[0] for row in rows})
        assert ends(address, new) == (0, written.end - 1)


@contextmanager
def dying(monkeypatch: pytest.MonkeyPatch, after_writes: int) -> Iterator[None]:
    """Who publishes dies after so many writes to the topic."""
    publish, writes = publishing._Publication, 0

    def decide(_: int, call: Call) -> StoreFault | None:
        nonlocal writes
        writes += call.method in ("replace", "delete")
        return StoreFault.CRASH_AFTER if writes == after_writes else None

    with monkeypatch.context() as patched:
        patched.setattr(
            publishing,
            "_Publication",
            lambda task, store, *others: publish(task, FaultyStore(store, decide), *others),
        )
        with pytest.raises(Crash):
            yield


@pytest.mark.parametrize("after_writes", [1, pytest.param(30, marks=pytest.mark.whole), None])
def test_a_broker_that_is_started_too_early_serves_all_the_same(
    times: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after_writes: int | None
) -> None:
    """6: who publishes dies, after the put or among the deletes, or its process is killed. From offset 0
    nothing is missing; the next run, with the broker stopped, finishes."""
    bucket, log, written = times.bucket(), tmp_path / "log", Written()
    with broker(times, bucket, log) as address:
        make_topic(address)
        one = producer(address)
        for n in range(60):
            produce(one, written, [(b"k%d" % (n % 7), b"%d" % n), (b"only %d" % n, b"x")])
    if after_writes is None:
        kill_while_compacting(times, bucket, lambda: len(objects(times, bucket)) < 50)
    else:
        with dying(monkeypatch, after_writes):
            compact(times, bucket)
    assert len(objects(times, bucket)) > 2
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
