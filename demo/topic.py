"""A topic of a broker without disks: 10,000 small objects, compacted in its bucket, judged by librdkafka.

1. Start an S3 server and a broker on it, and write a topic with librdkafka: small batches, keys that are
   written again and again, some of them deleted. Remember every row in a dictionary, the model.
2. Read it with librdkafka for a while, as a new consumer does, and show what Lithify would do.
3. Stop the broker, run `lithify compact` in a process of its own, start the broker again.
4. Read it all with librdkafka, and compare with the model.

The broker and librdkafka are packages of PyPI (`tests/judge/broker.txt`). Where they cannot be had, this part
says so.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

from tests.judge.kafka_broker import CLUSTER, PACKAGE, broker, librdkafka
from tests.s3 import S3, serve_s3

from demo.shell import lithify, say
from lithify.testing.s3 import Latency, Weather
from lithify.testing.s3.requests import Verb

TOPIC = "orders"
BATCHES = 10_000
BATCH_ROWS = 10
KEYS = 5_000
PATIENCE_S = 20.0
"""How long a reader may take for what nobody has compacted."""
LIKE_S3 = Weather(latency={Verb.LIST: Latency(100), Verb.GET: Latency(15)})
SEED = 7
Model = dict[bytes, bytes]


def demonstrate(folder: Path) -> bool:
    """Whether every row was right; also where the broker cannot be had."""
    if not (PACKAGE / ".installed").exists():
        say("   skipped: the broker and librdkafka could not be installed (tests/judge/broker.txt)")
        return True
    folder.mkdir(parents=True)
    with serve_s3() as s3:
        bucket = s3.bucket()
        url = f"kafka+s3://{bucket}/clusters/{CLUSTER}/topics/{TOPIC}"
        with broker(s3, bucket, folder / "broker.log") as address:
            say(f"1. Writing a topic through a broker: {url}")
            model, end = _write(address)
            say(f"   {BATCHES:,} objects, {end:,} rows, {len(model):,} keys are left")
            say("\n2. Reading it with librdkafka, and what Lithify would do; the store is as slow as S3")
            _tell(s3, address, end)
            lithify("plan", url, environment=s3.environment)
        say("\n3. Compacting it on Spark, while the broker is stopped")
        # The broker is known to be stopped, so nobody has to see it stand still.
        lithify("compact", "--quiet-period", "0s", url, environment=s3.environment)
        say("\n4. Reading it all with librdkafka")
        with broker(s3, bucket, folder / "broker.log") as address:
            is_right = _tell(s3, address, end) == model
            say(f"   librdkafka: {'every row is right' if is_right else 'WRONG ROWS'}")
    return is_right


def _write(address: str) -> tuple[Model, int]:
    """What is held at the end, and the offset behind the last row."""
    kafka, rng, model = librdkafka(), random.Random(SEED), Model()
    admin = kafka.admin.AdminClient({"bootstrap.servers": address})
    topic = kafka.admin.NewTopic(TOPIC, 1, 1, config={"cleanup.policy": "compact"})
    for made in admin.create_topics([topic]).values():
        made.result(20)
    settings = {"bootstrap.servers": address, "batch.num.messages": BATCH_ROWS, "linger.ms": 1000}
    producer = kafka.Producer({**settings, "enable.idempotence": True})
    for _ in range(BATCHES):
        for _ in range(BATCH_ROWS):
            key, value = b"key %d" % rng.randrange(KEYS), rng.randbytes(30)
            if rng.random() < 0.02:
                model.pop(key, None)
                producer.produce(TOPIC, key=key, value=None, partition=0)
            else:
                model[key] = value
                producer.produce(TOPIC, key=key, value=value, partition=0)
        producer.poll(0)
    assert producer.flush(120) == 0
    return model, BATCHES * BATCH_ROWS


def _tell(s3: S3, address: str, end: int) -> Model:
    """Say how far a new consumer gets; what it holds then."""
    s3.server.weather = LIKE_S3
    started_s = time.monotonic()
    rows, held, is_done = _read(address, end)
    took_s = time.monotonic() - started_s
    said = "all there is" if is_done else f"not finished after {PATIENCE_S:g} s"
    say(f"   {rows:,} rows in {took_s:.1f} s, {said}")
    s3.server.weather = Weather()
    return held


def _read(address: str, end: int) -> tuple[int, Model, bool]:
    kafka, held, rows = librdkafka(), Model(), 0
    settings: dict[str, Any] = {"bootstrap.servers": address, "group.id": "demo", "check.crcs": True}
    consumer = kafka.Consumer({**settings, "enable.auto.commit": False})
    consumer.assign([kafka.TopicPartition(TOPIC, 0, 0)])
    end_s = time.monotonic() + PATIENCE_S
    try:
        while time.monotonic() < end_s:
            for message in consumer.consume(1000, 0.5):
                if message.error() is not None:
                    continue
                rows += 1
                if message.value() is None:
                    held.pop(message.key(), None)
                else:
                    held[message.key()] = message.value()
                if message.offset() == end - 1:
                    return rows, held, True
    finally:
        consumer.close()
    return rows, held, False
