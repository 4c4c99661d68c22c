"""A topic that gains partitions after it was copied, under a real broker, as its clients see the copy."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from lithify.store.urls import open_store
from tests.datasets.kafka.test_broker import TOPIC, compact, make_topic, producer, resumed
from tests.judge.kafka_broker import CLUSTER, broker, librdkafka
from tests.s3 import S3

NEW = "orders.v2"
YOUNG_S = 1.2
"""What is younger than quiet_period is not copied yet."""


def produce(one: Any, partition: int, *values: bytes, topic: str = TOPIC) -> None:
    """Each as an object, of one key."""
    for value in values:
        one.produce(topic, key=b"k", value=value, partition=partition)
        assert one.flush(20) == 0


def gain(s3: S3, bucket: str, count: int) -> None:
    """As a broker does that can be asked for it, which this one cannot."""
    store, _ = open_store(f"s3://{bucket}", s3.options)
    data, meta = store.get_with_meta(f"clusters/{CLUSTER}/meta.json")
    document = json.loads(data)
    document["topics"][TOPIC]["topic"]["num_partitions"] = count
    assert meta.etag is not None
    store.replace(meta.key, json.dumps(document).encode(), meta.etag)


def partitions(address: str, topic: str) -> int:
    admin = librdkafka().admin.AdminClient({"bootstrap.servers": address})
    return len(admin.list_topics(topic, timeout=20).topics[topic].partitions)


def wait_for(address: str, topic: str, count: int) -> None:
    """Until the broker shows so many partitions: it looks at its metadata every five seconds."""
    for _ in range(200):
        if partitions(address, topic) == count:
            return
        time.sleep(0.1)
    raise AssertionError(f"it shows {partitions(address, topic)} partitions of {topic}")


def read(address: str, topic: str, partition: int) -> tuple[list[bytes], int]:
    """All values of a partition, and where it ends."""
    kafka = librdkafka()
    settings = {"bootstrap.servers": address, "group.id": "anybody", "enable.partition.eof": True}
    consumer = kafka.Consumer({**settings, "enable.auto.commit": False})
    consumer.assign([kafka.TopicPartition(topic, partition, 0)])
    found: list[bytes] = []
    try:
        while True:
            message = consumer.poll(20)
            assert message is not None
            if message.error() is not None:
                assert message.error().code() == kafka.KafkaError._PARTITION_EOF, message.error()
                return found, message.offset()
            found.append(message.value())
    finally:
        consumer.close()


def test_the_broker_serves_partitions_of_a_copy_that_come_later(s3: S3, tmp_path: Path) -> None:
    """One with rows, of which the copy has the newest, and one without, where a group has committed."""
    bucket = s3.bucket()
    with broker(s3, bucket, tmp_path / "log") as address:
        make_topic(address)
        one = producer(address)
        produce(one, 0, b"a", b"b", b"c")
        time.sleep(YOUNG_S)
        compact(s3, bucket, NEW)
        wait_for(address, NEW, 1)
        assert read(address, NEW, 0) == ([b"b", b"c"], 3)
        gain(s3, bucket, 3)
        wait_for(address, TOPIC, 3)
        other = producer(address)
        produce(other, 1, b"d", b"e", b"f")
        kafka = librdkafka()
        readers = kafka.Consumer({"bootstrap.servers": address, "group.id": "readers"})
        readers.commit(offsets=[kafka.TopicPartition(TOPIC, 2, 0)], asynchronous=False)
        readers.close()
        assert partitions(address, NEW) == 1
        time.sleep(YOUNG_S)
        compact(s3, bucket, NEW)
        wait_for(address, NEW, 3)
        assert [read(address, NEW, n) for n in range(3)] == [([b"b", b"c"], 3), ([b"e", b"f"], 3), ([], 0)]
        # Producers and the group go on.
        for partition in (1, 2):
            produce(producer(address), partition, b"g", topic=NEW)
        assert read(address, NEW, 1) == ([b"e", b"f", b"g"], 4)
        assert resumed(address, "readers", NEW, 2) == 0
