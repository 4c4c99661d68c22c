"""Several processes at once: workers that fight and die, and a writer that sleeps through it all."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from lithify.base.clock import SystemClock
from lithify.base.ids import RandomIds
from lithify.coordination.leadership import Term
from lithify.datasets.slatedb.format.ledger import SlateCompaction
from lithify.datasets.slatedb.format.paths import DatabasePaths
from lithify.datasets.slatedb.garbage.collection import GarbageKind, GarbageOptions, collect
from lithify.protocol.model import CompactionState
from lithify.service.coordinator import Coordinator
from lithify.service.worker import Worker
from lithify.store.urls import open_store
from lithify.testing.engine import InlineEngine
from tests.compacting import dataset_at
from tests.engine.waiting import wait_until
from tests.judge.official import Admin, Put, open_db
from tests.processes.databases import Model
from tests.processes.history import check_protocol, history, latest, lives
from tests.processes.node import INLINE, NodeOptions
from tests.processes.nodes import nodes_in
from tests.processes.sleeper import rows_of

SEGMENTS = 20
WORKERS = 4
KILLS = 6
LIMIT_S = 200.0


@pytest.mark.whole
def test_each_of_many_compactions_is_committed_once_though_workers_are_killed(tmp_path: Path) -> None:
    path, model, rng = tmp_path / "db", Model(), random.Random(1)
    with open_db(path, segment_prefix_len=2) as database, nodes_in(tmp_path / "logs") as nodes:
        for flush in range(4):
            rows = {b"%02d%04d" % (n % SEGMENTS, n): rng.randbytes(400) for n in range(flush, 6000, 3)}
            database.write_batch([Put(key, value) for key, value in rows.items()])
            database.flush()
            model |= rows
        options = NodeOptions("worker", str(path), master=INLINE, max_sst_size=16 * 1024)
        workers = [nodes.node(options) for _ in range(WORKERS)]
        coordinator = nodes.node(NodeOptions("coordinator", str(path)))
        for _ in range(KILLS):
            victim = workers.pop(rng.randrange(WORKERS))
            wait_until(lambda: latest(path) is not None)
            time.sleep(rng.uniform(0.3, 0.8))
            victim.kill()
            workers.append(nodes.node(options))
        wait_until(lambda: len(coordinator.events("Committed")) >= SEGMENTS, LIMIT_S)
        wait_until(lambda: all(c.state is CompactionState.COMPLETED for c in ledger_of(path)), LIMIT_S)
        assert dict(database.scan()) == model
        for process in nodes.all:
            process.end()
    versions = history(path)
    check_protocol(versions)
    for steps in lives(versions).values():
        # Of those committed together the ledger keeps the newest only.
        assert [state for state, _ in steps].count(CompactionState.COMPLETED) <= 1
    committed = [event["compaction"] for event in coordinator.events("Committed")]
    assert len(committed) == len(set(committed)) == SEGMENTS
    with open_db(path, segment_prefix_len=2) as database:
        assert dict(database.scan()) == model


def ledger_of(path: Path) -> tuple[SlateCompaction, ...]:
    ledger = latest(path)
    return ledger.compactions if ledger is not None else ()


def test_a_writer_that_slept_through_commits_and_a_collection_takes_no_number_again(tmp_path: Path) -> None:
    path = tmp_path / "db"
    with nodes_in(tmp_path / "logs") as nodes:
        sleeper = nodes.module("tests.processes.sleeper", str(path))
        wait_until(lambda: len(sleeper.lines()) > 8, LIMIT_S)
        sleeper.freeze()
        # The same steps as a coordinator, a worker and a collector, while the writer stands still.
        coordinator = Coordinator(dataset_at(path), SystemClock(), RandomIds())
        worker = Worker(dataset_at(path), InlineEngine(), SystemClock(), "worker")
        coordinator.start(Term(dataset_at(path).take_epoch()))
        for _ in range(4):
            coordinator.tick()
            worker.tick()
        store, root = open_store(str(path))
        paths = DatabasePaths(root)
        report = collect(store, paths, SystemClock(), GarbageOptions(min_age_ms=0, dry_run=False))
        assert report.counts[GarbageKind.MANIFEST].deletable > 4
        boundary = int(store.get(paths.manifest_boundary))
        assert boundary > 0
        pinned = {c.manifest_id for c in Admin(path).list_checkpoints()}
        before = len(sleeper.lines())
        sleeper.thaw()
        wait_until(lambda: len(sleeper.lines()) > before + 5, LIMIT_S)
        left = {int(file.stem) for file in (path / "manifest").glob("*.manifest")}
        assert {number for number in left if number <= boundary} <= pinned
        sleeper.kill()
        durable = len(sleeper.lines())
    model = Model()
    for batch in range(durable):
        model |= rows_of(batch)
    with open_db(path) as database:
        shown = dict(database.scan())
    # The batch that was being written may be there as well.
    assert shown in (model, model | rows_of(durable))
