"""Killing a coordinator at each write of a commit."""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

from benchmarks.data import copy_for_a_run

from lithify.base.clock import SystemClock
from lithify.base.ids import RandomIds
from lithify.coordination.leadership import Term
from lithify.protocol.model import CompactionState
from lithify.service.coordinator import Coordinator
from tests.compacting import check_state_files, dataset_at
from tests.engine.waiting import wait_until
from tests.judge.official import Admin, open_db
from tests.processes.databases import Model, write_some
from tests.processes.history import check_protocol, history, latest
from tests.processes.node import NodeOptions
from tests.processes.nodes import Process, nodes_in

MAX_WRITES = 20


def kill_at_each_write(
    database: Path, original: Model, folder: Path, keys: int
) -> Iterator[tuple[Path, Model]]:
    """A coordinator is killed on copies of `database`, where the first compaction waits for its commit,
    after its first write, after its second, and so on until it lives to see the commit. A client writes
    to the copy, the next coordinator finishes. Yields each copy, closed, and what it must show: the rows
    of `original` and what was written."""
    left_behind: list[tuple[int, CompactionState]] = []
    for write in range(1, MAX_WRITES):
        path = copy_for_a_run(database, folder / f"{write}" / "db")
        model = dict(original)
        compaction_id = _first(path)[0]
        with open_db(path) as writer, nodes_in(folder / f"{write}" / "logs") as nodes:
            manifests = len(Admin(path).list_manifests())
            coordinator = nodes.node(NodeOptions("coordinator", str(path), die_after_writes=write))
            if not _dies(coordinator):
                break
            assert coordinator.exit_code == -signal.SIGKILL, coordinator.errors
            left_behind.append((len(Admin(path).list_manifests()) - manifests, _first(path)[1]))
            write_some(writer, model, random.Random(write), list(range(0, keys, 7)), 10)
            writer.flush()
            _finish(path)
        assert _first(path) == (compaction_id, CompactionState.COMPLETED)
        check_protocol(history(path))
        check_state_files(dataset_at(path), path)
        yield path, model
        shutil.rmtree(path)
    # Epoch taken; outputs published and inputs pinned, but not yet called Completed; all done.
    for found in (
        (1, CompactionState.COMPACTED),
        (2, CompactionState.COMPACTED),
        (2, CompactionState.COMPLETED),
    ):
        assert found in left_behind


def _first(path: Path) -> tuple[str, CompactionState]:
    ledger = latest(path)
    assert ledger is not None
    return ledger.compactions[0].id, ledger.compactions[0].state


def _dies(coordinator: Process) -> bool:
    """Whether it was killed before its commit was done."""
    wait_until(lambda: coordinator.exit_code is not None or coordinator.events("Committed"))
    return not coordinator.events("Committed")


def _finish(path: Path) -> None:
    """What the next coordinator does."""
    coordinator = Coordinator(dataset_at(path), SystemClock(), RandomIds())
    coordinator.start(Term(dataset_at(path).take_epoch()))
    coordinator.tick()
