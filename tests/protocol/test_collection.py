"""Garbage is collected, without any minimum age, while a compaction is under way: by the official collector
beside a worker of ours, and by ours beside an official worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from lithify.base.clock import SystemClock
from lithify.base.ids import RandomIds
from lithify.coordination.leadership import Term
from lithify.protocol.model import CompactionState
from lithify.service.coordinator import Coordinator
from lithify.service.worker import Worker, WorkerOptions
from lithify.testing.engine import InlineEngine
from tests.compacting import check_state_files, dataset_at
from tests.datasets.slatedb.collecting import gc, names
from tests.engine.waiting import wait_until
from tests.judge.official import Admin, compactor_settings, copy_database, open_db, open_reader
from tests.protocol.rig import Template

Collect = Callable[[Path], object]
MAX_TRIES = 20


def officially(path: Path) -> None:
    Admin(path).run_gc(min_age_ms=0)


@pytest.mark.parametrize("collect", [officially, gc], ids=["official", "ours"])
def test_nothing_of_a_slow_worker_is_collected(
    plain_template: Template, tmp_path: Path, collect: Collect
) -> None:
    """Its outputs are older than the newest L0, and most are recorded nowhere when they are looked at."""
    path = copy_database(plain_template.path, tmp_path / "db")
    checkpoint = Admin(path).create_checkpoint(name="kept")
    model = dict(plain_template.model)
    dataset = dataset_at(path, max_sst_size=5000)
    coordinator = Coordinator(dataset, SystemClock(), RandomIds())
    engine = InlineEngine(slots=10, stepped=True)
    slow = WorkerOptions(heartbeat_min_interval_ms=3_600_000)
    worker = Worker(dataset, engine, SystemClock(), "slow", options=slow)
    coordinator.start(Term(dataset.take_epoch()))
    coordinator.tick()
    worker.tick()
    assert engine.waiting > 2
    with open_db(path) as database:
        while engine.step():
            model[b"late"] = b"%d" % engine.waiting
            time.sleep(0.002)  # ids count milliseconds
            database.put(b"late", model[b"late"])
            database.flush()
            collect(path)
        worker.tick()
        collect(path)
        coordinator.tick()
        collect(path)
        assert dict(database.scan()) == model
    (tree,) = Admin(path).trees()
    assert tree.runs
    with open_reader(path, checkpoint=checkpoint) as reader:
        assert dict(reader.scan()) == plain_template.model
    with open_db(path) as database:
        assert dict(database.scan()) == model


def test_nothing_of_an_official_worker_is_collected(plain_template: Template, tmp_path: Path) -> None:
    """As often as it takes until outputs were there, and recorded nowhere, when it was collected."""
    for n in range(MAX_TRIES):
        path = copy_database(plain_template.path, tmp_path / str(n))
        if collected_beside_an_official_worker(path, plain_template.model):
            return
    pytest.fail(f"never were there outputs while it was collected, in {MAX_TRIES} compactions")


def collected_beside_an_official_worker(path: Path, model: Mapping[bytes, bytes]) -> bool:
    """Whether some of its outputs were there when they could have been taken for garbage."""
    dataset, found = dataset_at(path), set[str]()
    compactor = compactor_settings(max_sst_size=1000, max_subcompactions=1, scheduler={})

    def is_done() -> bool:
        found.update(names(path, "compacted"))
        gc(path)
        ledger = dataset.ledger()
        return ledger is not None and [c.state for c in ledger.compactions] == [CompactionState.COMPLETED]

    with open_db(path, settings={"compactor_options": compactor}) as database:
        wait_until(is_done)
        gc(path)
        assert dict(database.scan()) == model
    outputs = {f"{view.sst_id}.sst" for run in Admin(path).trees()[0].runs for view in run.views}
    check_state_files(dataset, path)
    with open_db(path) as database:
        assert dict(database.scan()) == model
    return len(found & outputs) > 3
