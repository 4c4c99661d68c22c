"""One coordinator and several workers at once, on a store in memory and on Spark, with a row filter."""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lithify.base.clock import SystemClock
from lithify.base.events import Claimed, Committed, Event
from lithify.base.ids import RandomIds
from lithify.coordination.leadership import Term
from lithify.datasets.slatedb.dataset import SlateDataset
from lithify.datasets.slatedb.format.ledger import decode_ledger
from lithify.datasets.slatedb.hooks import Drop, FilterDecision, Keep, Row
from lithify.engine.ports import Engine
from lithify.engine.spark import SparkEngine
from lithify.protocol.model import CompactionState
from lithify.service.coordinator import Coordinator
from lithify.service.loops import run_workers
from lithify.service.worker import Worker, WorkerOptions
from lithify.store.urls import open_store
from lithify.testing.engine import InlineEngine
from tests.compacting import dataset_at
from tests.judge.official import open_db
from tests.pools import every, pool_of
from tests.protocol.rig import Template

QUICK = every(0.05)
FILTER = f"{__name__}:no_multiples_of_three"
LIMIT_S = 140.0


def is_kept(key: bytes) -> bool:
    return int(key[1:]) % 3 != 0


def no_multiples_of_three(row: Row) -> FilterDecision:
    return Keep() if is_kept(row.key) else Drop()


@contextmanager
def working(dataset_of: Callable[[], SlateDataset], engines: list[Engine]) -> Iterator[list[Event]]:
    """A worker for each engine, in a thread of its own."""
    stop, events = threading.Event(), list[Event]()
    workers = [
        Worker(
            dataset_of(),
            engine,
            SystemClock(),
            f"w{n}",
            options=WorkerOptions(spare_claim_delay_ms=0),
            observer=events.append,
        )
        for n, engine in enumerate(engines)
    ]
    threads = [
        threading.Thread(target=run_workers, args=(pool_of(worker), stop, random.Random(n), QUICK))
        for n, worker in enumerate(workers)
    ]
    for thread in threads:
        thread.start()
    try:
        yield events
    finally:
        stop.set()
        for thread in threads:
            thread.join(LIMIT_S)


def coordinate_until_idle(dataset: SlateDataset) -> list[Event]:
    events: list[Event] = []
    coordinator = Coordinator(dataset, SystemClock(), RandomIds(), observer=events.append)
    coordinator.start(Term(dataset.take_epoch()))
    deadline_s = time.monotonic() + LIMIT_S
    while not coordinator.tick().is_idle:
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    return events


def check_filtered(path: Path, template: Template) -> None:
    with open_db(path, segment_prefix_len=template.segment_prefix_len) as database:
        assert dict(database.scan()) == {k: v for k, v in template.model.items() if is_kept(k)}


@pytest.mark.parametrize("count", [1, 3])
def test_workers_on_a_store_in_memory(segmented_template: Template, tmp_path: Path, count: int) -> None:
    url = f"memory://protocol-{count}-{RandomIds().ulid(1)}/db"
    store, root = open_store(url)
    for file in sorted(f for f in segmented_template.path.rglob("*") if f.is_file()):
        store.put(f"{root}/{file.relative_to(segmented_template.path)}", file.read_bytes())

    def dataset() -> SlateDataset:
        return dataset_at(url, compaction_filter=FILTER, max_sst_size=1000)

    engines: list[Engine] = [InlineEngine() for _ in range(count)]
    with working(dataset, engines) as events:
        coordinated = coordinate_until_idle(dataset())
    committed = [e.compaction for e in coordinated if isinstance(e, Committed)]
    claimed = [e.compaction for e in events if isinstance(e, Claimed)]
    assert len(committed) == len(set(committed)) == 6
    assert sorted(claimed) == sorted(committed)
    path = tmp_path / "db"
    shutil.rmtree(path, ignore_errors=True)
    for meta in list(store.list(root)):
        target = path / meta.key.removeprefix(f"{root}/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(store.get(meta.key))
    check_filtered(path, segmented_template)


def test_several_compactions_at_once_on_one_spark_session(
    segmented_template: Template, tmp_path: Path, spark_engine: SparkEngine
) -> None:
    path = Path(shutil.copytree(segmented_template.path, tmp_path / "db"))

    def dataset() -> SlateDataset:
        return dataset_at(path, compaction_filter=FILTER)

    with working(dataset, [spark_engine]):
        events = coordinate_until_idle(dataset())
    assert len([e for e in events if isinstance(e, Committed)]) == 6
    files = sorted(f for f in (path / "compactions").iterdir() if "#" not in f.name)
    versions = [decode_ledger(file.read_bytes(), file.name) for file in files]
    at_once = max(sum(c.state is CompactionState.RUNNING for c in ledger.compactions) for ledger in versions)
    assert at_once == 4
    check_filtered(path, segmented_template)
