"""A real broker judges a topic that is compacted while it runs, with librdkafka and the Java client, under
readers and a producer that never stop."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lithify.base.clock import SystemClock
from lithify.base.ids import RandomIds
from lithify.coordination.leadership import Leadership
from lithify.datasets.kafka.buckets.live_topic import LiveTopic
from lithify.datasets.kafka.settings import KafkaSettings
from lithify.service import one_shot
from lithify.store.urls import open_store
from lithify.testing.engine import InlineEngine
from tests.datasets.kafka.test_broker import (
    TOPIC,
    Row,
    Written,
    commit,
    dying,
    ends,
    java,
    kill_while_compacting,
    lists_of_a_read,
    make_topic,
    map_of,
    objects,
    produce,
    produce_all,
    producer,
    read,
    read_all,
    read_from_everywhere,
    resumed,
    times,
    transact,
)
from tests.judge.kafka_broker import CLUSTER, broker, librdkafka
from tests.judge.kafka_java import KafkaJava
from tests.s3 import S3

__all__ = ["java", "times"]
KEYS = 12
"""That the producer writes which never stops, numbers that only grow."""


def compact(s3: S3, bucket: str) -> bool:
    """Live; whether there was anything to do."""
    return compact_with(s3.options, bucket)


def compact_with(options: dict[str, str], bucket: str, copy_to: None = None) -> bool:
    """Whoever was at it before is dead."""
    store, _ = open_store(f"s3://{bucket}", options)
    places = (store, f"clusters/{CLUSTER}/topics/{TOPIC}"), (store, f"clusters/{CLUSTER}/lithify/{TOPIC}")
    clock = SystemClock()
    settings = KafkaSettings.model_validate(
        {"live": True, "broker_build": "0.7.0-pre.1", "min_cleanable_dirty_ratio": "0"}
    )
    both = (options, options)
    dataset = LiveTopic(f"kafka+s3://{bucket}", *places, clock, RandomIds(), settings, *both)
    leadership, planner = Leadership(dataset, clock, RandomIds()), dataset.planner()
    summary = one_shot.run(
        dataset, InlineEngine(), clock, RandomIds(), leadership, planner=planner, take_over=True
    )
    assert not summary.failures
    assert not summary.refused
    return summary.started


@contextmanager
def writing(address: str, written: Written) -> Iterator[None]:
    """An idempotent producer that never stops, a small object each time."""
    one, stop = producer(address, **{"enable.idempotence": True}), threading.Event()
    failed: list[BaseException] = []

    def run() -> None:
        number = 0
        try:
            while not stop.wait(0.1):
                rows = [(b"n%d" % (n % KEYS), b"%d" % n) for n in range(number, number + 5)]
                produce(one, written, rows)  # type: ignore[arg-type]
                number += 5
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)
    assert not failed


class Reading:
    """A reader that began before, and goes on: whatever it is given, in that order."""

    def __init__(self, address: str, pause_s: float) -> None:
        self.rows: list[Row] = []
        self._stop = threading.Event()
        kafka = librdkafka()
        settings = {"bootstrap.servers": address, "group.id": f"r{pause_s}", "enable.auto.commit": False}
        self._consumer = kafka.Consumer({**settings, "check.crcs": True, "log_level": 0})
        self._consumer.assign([kafka.TopicPartition(TOPIC, 0, 0)])
        self._thread = threading.Thread(target=self._run, args=(pause_s,))
        self._thread.start()

    def _run(self, pause_s: float) -> None:
        while not self._stop.is_set():
            for message in self._consumer.consume(50, 0.2):
                if message.error() is None:
                    self.rows.append((message.offset(), message.key(), message.value()))
            self._stop.wait(pause_s)

    def read_to(self, end: int) -> None:
        """Until it has got what is last."""
        until_s = time.monotonic() + 60
        while time.monotonic() < until_s and (not self.rows or self.rows[-1][0] < end - 1):
            time.sleep(0.05)
        assert self.rows[-1][0] == end - 1

    def close(self) -> None:
        self._stop.set()
        self._thread.join(60)
        self._consumer.close()

    def backward(self) -> list[tuple[int, int]]:
        """Where an older row came after a newer one: from which offset to which."""
        offsets = [row[0] for row in self.rows]
        return [(a, b) for a, b in itertools.pairwise(offsets) if b <= a]


def test_readers_and_a_producer_that_never_stop(times: S3, java: KafkaJava, tmp_path: Path) -> None:
    bucket, written, rng = times.bucket(), Written(), random.Random(9)
    with broker(times, bucket, tmp_path / "log") as address:
        make_topic(address)
        produce_all(address, written, rng)
        commit(address, "readers", 100)
        readers = [Reading(address, pause_s) for pause_s in (0.0, 0.5)]
        try:
            with writing(address, written):
                rounds = 0
                for _ in range(4):
                    time.sleep(1)
                    rounds += compact(times, bucket)
                assert rounds >= 2
            for one in readers:
                one.read_to(written.end)
        finally:
            for one in readers:
                one.close()
        # Who read meanwhile holds what a replay says, whatever came twice. Rows of aborted transactions this
        # broker shows to all; their keys are those that begin with t.
        expected = {key: value for key, value in written.map.items() if not key.startswith(b"t")}
        for one in readers:
            held = map_of(one.rows)
            assert {key: value for key, value in held.items() if not key.startswith(b"t")} == expected
        while compact(times, bucket):  # until nothing is left to do
            pass
        first = objects(times, bucket)[0]
        # How far they went back: to rows that a merged object has while what it covers is there still, so
        # never over a place where an object began and still does.
        for one in readers:
            for newer, older in one.backward():
                assert not any(older < base <= newer for base in objects(times, bucket)), (newer, older)
        # 1: the latest map is that of a replay, offsets ascend
        rows = read_all(address, written.end, TOPIC)
        assert map_of(rows) == written.map
        # 2: from every position, with both clients
        bases = objects(times, bucket)
        read_from_everywhere(address, java, rows, bases, written.end)
        # 3: the broker's ends; of what is produced within one second it tells the first
        earliest, latest = ends(address)
        assert earliest == first == 0
        assert latest > bases[-4]
        # 4: a group goes on
        assert resumed(address, "readers") == next(row[0] for row in rows if row[0] >= 100)
        # 8: what a full read costs
        assert lists_of_a_read(times, address) <= 8
        # 5: producers go on
        produce(producer(address, **{"enable.idempotence": True}), written, [(b"k1", b"after")])
        transact(address, written, [(b"t1", b"after")])
        rows, end = read(address, "read_committed")
        assert end == written.end
        assert map_of(rows) == written.map


@pytest.mark.parametrize(
    "after_writes", [1, *(pytest.param(n, marks=pytest.mark.whole) for n in (2, 30)), None]
)
def test_killed_under_a_running_broker(
    times: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after_writes: int | None
) -> None:
    """6: who publishes dies, after the put or among the deletes, or its process is killed. Readers find all
    there is; a producer goes on; the next run finishes, with what came meanwhile left for later."""
    bucket, written = times.bucket(), Written()
    with broker(times, bucket, tmp_path / "log") as address:
        make_topic(address)
        one = producer(address, **{"enable.idempotence": True})
        for n in range(60):
            produce(one, written, [(b"k%d" % (n % 7), b"%d" % n), (b"only %d" % n, b"x")])
        if after_writes is None:
            kill_while_compacting(times, bucket, lambda: len(objects(times, bucket)) < 50, within=__name__)
        else:
            with dying(monkeypatch, after_writes):
                compact(times, bucket)
        rows, _ = read(address)
        assert map_of(rows) == written.map
        produce(one, written, [(b"k1", b"meanwhile")])
        compact(times, bucket)
        assert objects(times, bucket) == [0, 2, *range(114, 122, 2)]
        rows = read_all(address, written.end, TOPIC)
        assert map_of(rows) == written.map
        assert [row[0] for row in rows] == sorted({row[0] for row in rows})
        assert ends(address) == (0, 121)


def test_consumers_paused_inside_a_batch_go_on_after_it_was_merged(times: S3, tmp_path: Path) -> None:
    """Also at a row that is gone since, and inside what is one batch only since. The pause is between two
    fetches, which bring one object each, and as long as a round takes."""
    bucket, written, kafka = times.bucket(), Written(), librdkafka()
    with broker(times, bucket, tmp_path / "log") as address:
        make_topic(address)
        one = producer(address)
        for n in range(24):
            produce(one, written, [(b"k%d" % ((n + i) % 9), b"%d %d" % (n, i)) for i in range(5)])
        paused = []
        for stop in (7, 30, 63):
            settings = {"bootstrap.servers": address, "group.id": f"r{stop}", "enable.auto.commit": False}
            few = {"fetch.message.max.bytes": 1, "queued.min.messages": 1, "check.crcs": True}
            consumer, had = kafka.Consumer({**settings, **few}), list[Row]()
            place = kafka.TopicPartition(TOPIC, 0, 0)
            consumer.assign([place])
            while not had or had[-1][0] < stop:
                message = consumer.poll(20)
                assert message.error() is None
                had.append((message.offset(), message.key(), message.value()))
            consumer.pause([place])
            paused.append((consumer, place, had))
        while compact(times, bucket):
            pass
        assert objects(times, bucket) == [0, 5, *range(100, 120, 5)]
        for consumer, place, had in paused:
            begin = len(had)
            consumer.resume([place])
            while had[-1][0] < written.end - 1:
                message = consumer.poll(20)
                assert message.error() is None
                had.append((message.offset(), message.key(), message.value()))
            consumer.close()
            assert [row[0] for row in had] == sorted({row[0] for row in had})
            assert map_of(had) == written.map
            assert len(had) - begin < written.end - begin - 20, "it was given what had been merged"
