"""A coordinator is killed at each of its writes, those of a commit above all, while the official client
writes: the next one finishes what it finds, once."""

from __future__ import annotations

import itertools
import random
import shutil
import signal
from pathlib import Path

import pytest

from lithify.clock import SystemClock
from lithify.compaction.model import State
from lithify.coordinator import Coordinator
from lithify.ids import RandomIds
from lithify.testing.engine import InlineEngine
from lithify.worker import Worker
from tests.compacting import check_state_files, dataset_at
from tests.engine.waiting import wait_until
from tests.judge.official import Admin, open_db
from tests.service.databases import Model, check_rows, make_database, write_some
from tests.service.history import check_protocol, history, latest
from tests.service.node import NodeOptions
from tests.service.nodes import Process, nodes_in

KEYS = 600
Database = tuple[Path, Model]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Database:
    """A database with a compaction that waits for its commit."""
    path = tmp_path_factory.mktemp("template") / "db"
    model = make_database(path, keys=KEYS, value_bytes=20)
    coordinator = Coordinator(dataset_at(path), SystemClock(), RandomIds())
    coordinator.start()
    coordinator.tick()
    worker = Worker(dataset_at(path), InlineEngine(), SystemClock(), "worker")
    worker.tick()
    worker.tick()
    assert states(path) == [State.COMPACTED]
    return path, model


def states(path: Path) -> list[State]:
    ledger = latest(path)
    return [c.state for c in ledger.compactions] if ledger is not None else []


def dies(coordinator: Process) -> bool:
    """Whether it was killed before its commit was done."""
    wait_until(lambda: coordinator.exit_code is not None or coordinator.events("Committed"))
    return not coordinator.events("Committed")


def finish(path: Path) -> None:
    """What the next coordinator does."""
    coordinator = Coordinator(dataset_at(path), SystemClock(), RandomIds())
    coordinator.start()
    coordinator.tick()


def test_killed_at_each_write_of_a_commit(template: Database, tmp_path: Path) -> None:
    source, original = template
    left_behind: list[tuple[int, list[State]]] = []
    for write in itertools.count(1):
        path = Path(shutil.copytree(source, tmp_path / f"db{write}"))
        model = dict(original)
        with open_db(path) as writer, nodes_in(tmp_path / f"logs{write}") as nodes:
            manifests = len(Admin(path).list_manifests())
            coordinator = nodes.node(NodeOptions("coordinator", str(path), die_after_writes=write))
            if not dies(coordinator):
                break
            assert coordinator.exit_code == -signal.SIGKILL, coordinator.errors
            left_behind.append((len(Admin(path).list_manifests()) - manifests, states(path)))
            write_some(writer, model, random.Random(write), list(range(0, KEYS, 7)), 10)
            writer.flush()
            finish(path)
        assert states(path) == [State.COMPLETED]
        check_protocol(history(path))
        check_state_files(dataset_at(path), path)
        assert len(Admin(path).trees()[0].runs) == 1
        check_rows(path, model)
    # Epoch taken; inputs pinned; outputs published but not yet called Completed; all done.
    for manifests, state in ((1, State.COMPACTED), (2, State.COMPACTED), (3, State.COMPACTED)):
        assert (manifests, [state]) in left_behind
    assert left_behind[-1] == (3, [State.COMPLETED])
