"""A topic in a broker's bucket, grown by hand as the broker does it, and what a reader finds there."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from lithify.base.errors import ObjectNotFound
from lithify.base.ids import RandomIds
from lithify.coordination.leadership import Leadership
from lithify.datasets.kafka.dataset import LogDataset
from lithify.datasets.kafka.format.kernel.layout import CONTROL
from lithify.datasets.kafka.format.record_batches import decode, rebased
from lithify.datasets.kafka.settings import KafkaSettings
from lithify.protocol.proposal import Planner
from lithify.protocol.run_summary import RunSummary
from lithify.service import one_shot
from lithify.store.objects import FolderListing, ObjectMeta, ObjectStore
from lithify.store.urls import open_store
from lithify.store.wrapped import Call, ResultT, WrappedStore
from lithify.testing import ManualClock, MemoryStore
from lithify.testing.engine import InlineEngine
from tests.datasets.kafka.folders import Row
from tests.datasets.kafka.logs import Batch, encode

NOW_MS = 1_800_000_000_000
_numbers = itertools.count()


@dataclass
class Bucket:
    """A partition of a topic, in a cluster with the topic `orders`."""

    store: ObjectStore
    root: str
    clock: ManualClock = field(default_factory=lambda: ManualClock(NOW_MS))
    configs: Mapping[str, str] = field(default_factory=lambda: {"cleanup.policy": "compact"})
    id: str = "one"
    transactions: Mapping[str, Any] = field(default_factory=dict)
    name: str = "orders"
    number: int = 0
    partitions: int = 1

    @property
    def topic(self) -> str:
        return f"{self.root}/clusters/c/topics/{self.name}"

    @property
    def partition(self) -> str:
        return f"{self.topic}/partitions/{self.number:010d}"

    def key(self, base_offset: int) -> str:
        return f"{self.partition}/records/{base_offset:020d}.batch"

    def produce(self, *batches: Batch) -> None:
        """Each as an object."""
        for batch in batches:
            self.store.put(self.key(batch.first), rebased(encode(batch), 0))
            watermark = {"low": None, "high": batch.last + 1, "timestamps": None}
            self.store.put(f"{self.partition}/watermark.json", json.dumps(watermark).encode())

    def put_metadata(self) -> None:
        """What the broker says of its topics."""
        configs = [{"name": name, "value": value} for name, value in self.configs.items()]
        topic = {"name": "orders", "num_partitions": self.partitions, "configs": configs}
        topics = {"orders": {"id": self.id, "topic": topic}}
        document = {"producers": {}, "topics": topics, "transactions": self.transactions}
        self.store.put(f"{self.root}/clusters/c/meta.json", json.dumps(document).encode())

    def opened(self, settings: KafkaSettings | None = None, store: ObjectStore | None = None) -> LogDataset:
        through = store or self.store
        places = (through, self.topic), (through, f"{self.root}/clusters/c/lithify/orders")
        settings = settings or KafkaSettings.model_validate({"quiet_period": "0s"})
        return LogDataset("kafka+memory://x", *places, self.clock, RandomIds(), settings)

    def compact(self, dataset: LogDataset | None = None, planner: Planner | None = None) -> RunSummary:
        dataset = dataset or self.opened()
        leadership = Leadership(dataset, self.clock, RandomIds())
        return one_shot.run(dataset, InlineEngine(), self.clock, RandomIds(), leadership, planner=planner)

    def listed(self) -> list[ObjectMeta]:
        found = self.store.list(f"{self.partition}/records")
        return sorted(found, key=lambda meta: meta.key)

    def bases(self) -> list[int]:
        return [int(meta.key.rpartition("/")[2].partition(".")[0]) for meta in self.listed()]

    def contents(self) -> dict[str, bytes]:
        return {meta.key: self.store.get(meta.key) for meta in self.store.list(self.topic)}

    def rows(self, start: int = 0) -> list[Row]:
        """What a reader gets from an offset on, who goes on behind the last one it was given. Markers are no
        rows."""
        found: list[Row] = []
        for base in self.bases():
            try:
                data = self.store.get(self.key(base))
            except ObjectNotFound:
                continue
            log = decode(rebased(data, base), str(base))
            assert len(log.batches) == 1
            assert len(log.records), "readers would wait at an empty batch for ever"
            if log.batches[0]["attributes"] & CONTROL:
                continue
            for number, record in enumerate(log.records):
                if record["offset"] >= max(start, found[-1][0] + 1 if found else 0):
                    row = int(record["offset"]), int(record["timestamp"]), log.key(number), log.value(number)
                    found.append(row)
        return found

    def earliest_and_latest(self) -> tuple[int, int]:
        """As the broker finds them: names of the oldest and of the newest object."""
        listed = self.listed()
        oldest = min(listed, key=lambda meta: (meta.last_modified_ms, meta.key))
        newest = min(listed, key=lambda meta: (-meta.last_modified_ms, meta.key))
        names = [int(meta.key.rpartition("/")[2].partition(".")[0]) for meta in (oldest, newest)]
        return names[0], names[1]


def a_bucket(batches: Iterable[Batch], **fields: Any) -> Bucket:
    store, root = open_store(f"memory://buckets-{next(_numbers)}/data")
    bucket = Bucket(store, root, **fields)
    bucket.put_metadata()
    bucket.produce(*batches)
    return bucket


@dataclass
class Once:
    """What a `FaultyStore` asks; it does something right before the first call of this method about an
    object whose key has this in it."""

    method: str
    action: Callable[[], object]
    of: str = ""
    is_done: bool = False

    def __call__(self, _: int, call: Call) -> None:
        if not self.is_done and call.method == self.method and self.of in call.key:
            self.is_done = True
            self.action()


class Timed(WrappedStore):
    """A store on a clock that each write moves on by a millisecond, whose times are told in steps."""

    def __init__(self, clock: ManualClock, step_ms: int) -> None:
        super().__init__(MemoryStore(clock))
        self._clock, self._step_ms = clock, step_ms

    def around(self, call: Call, action: Callable[[], ResultT]) -> ResultT:
        if call.method in ("put", "create", "replace", "commit"):
            self._clock.advance_s(0.001)
        return action()

    def list(self, prefix: str) -> Iterator[ObjectMeta]:
        return map(self._told, super().list(prefix))

    def folder(self, prefix: str) -> FolderListing:
        found = super().folder(prefix)
        return replace(found, objects=tuple(map(self._told, found.objects)))

    def head(self, key: str) -> ObjectMeta:
        return self._told(super().head(key))

    def get_with_meta(self, key: str) -> tuple[bytes, ObjectMeta]:
        data, meta = super().get_with_meta(key)
        return data, self._told(meta)

    def _told(self, meta: ObjectMeta) -> ObjectMeta:
        return replace(meta, last_modified_ms=meta.last_modified_ms // self._step_ms * self._step_ms)


def a_timed_store(monkeypatch: pytest.MonkeyPatch, clock: ManualClock, step_ms: int) -> Timed:
    """One that tasks find, too; where they wait, its clock moves on."""
    store = Timed(clock, step_ms)
    monkeypatch.setattr(
        "lithify.datasets.kafka.cleaning.tasks.open_store", lambda url, options=None: (store, "")
    )
    for module in ("buckets.publishing", "buckets.copying"):
        monkeypatch.setattr(f"lithify.datasets.kafka.{module}.SystemClock", lambda: clock)
    return store


def a_timed_bucket(monkeypatch: pytest.MonkeyPatch, step_ms: int, batches: Iterable[Batch]) -> Bucket:
    """A bucket in such a store."""
    clock = ManualClock(NOW_MS)
    bucket = Bucket(a_timed_store(monkeypatch, clock, step_ms), "data", clock)
    bucket.put_metadata()
    bucket.produce(*batches)
    return bucket
