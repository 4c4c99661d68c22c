"""Topics in a broker's bucket that are copied to a new topic: what tests of that have in common."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from lithify.base.clock import SystemClock
from lithify.base.ids import RandomIds
from lithify.datasets.kafka import view
from lithify.datasets.kafka.buckets import copying
from lithify.datasets.kafka.buckets.topic_copy import TopicCopy
from lithify.datasets.kafka.settings import KafkaSettings
from lithify.protocol.run_summary import RunSummary
from lithify.store.objects import ObjectStore
from lithify.store.wrapped import Call
from lithify.testing.faulty import Crash, FaultyStore, StoreFault
from tests.cli.invoking import invoke
from tests.datasets.kafka.buckets import Bucket
from tests.datasets.kafka.folders import latest

NEW = "orders.v2"


def copy_of(bucket: Bucket) -> Bucket:
    """The new topic, as readers of it see it."""
    return replace(bucket, name=NEW)


def opened(
    bucket: Bucket, store: ObjectStore | None = None, kind: type[TopicCopy] = TopicCopy, **settings: str
) -> TopicCopy:
    """A dataset that copies the topic."""
    through = store or bucket.store
    own = f"{bucket.root}/clusters/c/lithify/{bucket.name}/copies/{NEW}"
    places = (through, bucket.topic), (through, own)
    asked = KafkaSettings.model_validate({"quiet_period": "0s", "copy_to": NEW, **settings})
    return kind("kafka+memory://x", *places, bucket.clock, RandomIds(), asked)


def copied(bucket: Bucket, store: ObjectStore | None = None, **settings: str) -> RunSummary:
    """By a command."""
    dataset = opened(bucket, store, TopicCopy, **settings)
    return bucket.compact(dataset, dataset.planner())


def told(bucket: Bucket) -> dict[str, Any]:
    """What the broker knows of the new topic; nothing if it does not."""
    document = json.loads(bucket.store.get(f"{bucket.root}/clusters/c/meta.json"))
    found: dict[str, Any] = document["topics"].get(NEW, {})
    return found


def high(bucket: Bucket) -> int:
    found: int = json.loads(bucket.store.get(f"{bucket.partition}/watermark.json"))["high"]
    return found


def commit(bucket: Bucket, group: str, offset: int) -> None:
    document = {"offset": offset, "leader_epoch": -1, "timestamp": None, "metadata": ""}
    bucket.store.put(offset_key(bucket, group), json.dumps(document).encode())


def committed(bucket: Bucket, group: str) -> int:
    found: int = json.loads(bucket.store.get(offset_key(bucket, group)))["offset"]
    return found


def offset_key(bucket: Bucket, group: str) -> str:
    folder = f"{bucket.root}/clusters/c/groups/consumers/{group}/offsets/{bucket.name}"
    return f"{folder}/partitions/{bucket.number:010d}.json"


def same_log(bucket: Bucket) -> None:
    """The copy has the latest map and the ends of the source, and rows of it only."""
    copy = copy_of(bucket)
    rows = copy.rows()
    assert set(rows) <= set(bucket.rows())
    assert latest(rows) == latest(bucket.rows())
    assert [row[0] for row in rows] == sorted({row[0] for row in rows})
    assert high(copy) == high(bucket)
    assert copy.earliest_and_latest() == (copy.bases()[0], bucket.bases()[-1])
    assert copy.store.get(copy.key(copy.bases()[-1])) == bucket.store.get(bucket.key(bucket.bases()[-1]))


def numbered(bucket: Bucket, number: int) -> Bucket:
    return replace(bucket, number=number)


def of_broker(bucket: Bucket, count: int, topic: str = "orders") -> None:
    """The broker says that a topic has so many partitions."""
    key = f"{bucket.root}/clusters/c/meta.json"
    document = json.loads(bucket.store.get(key))
    document["topics"][topic]["topic"]["num_partitions"] = count
    bucket.store.put(key, json.dumps(document).encode())


def said(bucket: Bucket) -> dict[str, Any]:
    """What is said of the copy, in JSON."""
    found: dict[str, Any] = view.copy_json(view.look(opened(bucket).snapshot()))["copy"]
    return found


def is_complete(bucket: Bucket) -> bool:
    found: bool = said(bucket)["is_complete"]
    return found


def asked(bucket: Bucket) -> list[str]:
    """Arguments of commands that copy the topic."""
    return ["--copy-to", NEW, "--set", "kafka.quiet_period=0s", f"kafka+{bucket.store.url}/{bucket.topic}"]


def words(*arguments: str) -> str:
    """What a command prints, however it is broken into lines."""
    return " ".join(invoke(*arguments).output.split())


class Pausing(SystemClock):
    """Pauses indeed, so that times of objects differ, which are the store's."""

    def sleep_s(self, duration_s: float) -> None:
        time.sleep(0.005)


def dying(
    monkeypatch: pytest.MonkeyPatch, bucket: Bucket, number: int, fault: StoreFault | None
) -> list[Call]:
    """Copy, and kill the process at its call of this number, whoever makes it; the calls that write."""
    store = FaultyStore(bucket.store, lambda at, call: fault if at == number else None)
    make = copying._Copying

    def attempt(task, _, own, movements, clock):  # type: ignore[no-untyped-def]
        return make(task, store, FaultyStore(own, lambda at, call: None), movements, clock)

    with monkeypatch.context() as patched:
        patched.setattr(copying, "_Copying", attempt)
        with suppress(Crash):
            copied(bucket, store)
    return store.calls
