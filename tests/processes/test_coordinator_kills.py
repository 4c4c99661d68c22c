"""A coordinator is killed at each of its writes, those of a commit above all, while the official client
writes: the next one finishes what it finds, once."""

from __future__ import annotations

from pathlib import Path

from lithify.base.clock import SystemClock
from lithify.base.ids import RandomIds
from lithify.coordination.leadership import Term
from lithify.protocol.model import CompactionState
from lithify.service.coordinator import Coordinator
from lithify.service.worker import Worker
from lithify.testing.engine import InlineEngine
from tests.compacting import dataset_at
from tests.judge.official import Admin
from tests.processes.coordinator_kills import kill_at_each_write
from tests.processes.databases import check_rows, make_database
from tests.processes.history import latest

KEYS = 600


def test_killed_at_each_write_of_a_commit(tmp_path: Path) -> None:
    path = tmp_path / "db"
    original = make_database(path, keys=KEYS, value_bytes=20)
    let_it_wait_for_its_commit(path)
    for copy, model in kill_at_each_write(path, original, tmp_path, KEYS):
        assert len(Admin(copy).trees()[0].runs) == 1
        check_rows(copy, model)


def let_it_wait_for_its_commit(path: Path) -> None:
    coordinator = Coordinator(dataset_at(path), SystemClock(), RandomIds())
    coordinator.start(Term(dataset_at(path).take_epoch()))
    coordinator.tick()
    worker = Worker(dataset_at(path), InlineEngine(), SystemClock(), "worker")
    worker.tick()
    worker.tick()
    ledger = latest(path)
    assert ledger is not None
    assert [c.state for c in ledger.compactions] == [CompactionState.COMPACTED]
