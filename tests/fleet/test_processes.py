"""The processes of a fleet, with Spark, over databases of the official client: killed, frozen, left alone.

Work is slow (`tests.fleet.slowly`), so that what is done to a process happens while it runs.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import lithify
from lithify.planning.fleet.pending_tasks import SMALL_BYTES
from lithify.protocol.model import CompactionState
from tests.compacting import dataset_at
from tests.engine.waiting import wait_until
from tests.fleet.slowly import FILTER
from tests.judge.official import Admin, Put, copy_database, open_db
from tests.judge.rows import read_database, visible_rows
from tests.processes.history import latest
from tests.processes.nodes import Nodes, Process, nodes_in

KEYS = 20
FLUSHES = 5
LARGE_BYTES = SMALL_BYTES * 9 // 8
AFTER_THAW_S = 25.0
"""Two signs of life of a coordinator, and some time."""
COMMON = {
    "LITHIFY_SERVICE__WORKER_HEARTBEAT_TIMEOUT": "8s",
    "LITHIFY_SERVICE__WORKER__HEARTBEAT_INTERVAL": "1s",
    "LITHIFY_SERVICE__WORKER__HEARTBEAT_BYTES": "0",  # work this slow moves no bytes
    "LITHIFY_LOG__FORMAT": "json",
    "LITHIFY_FLEET__RULES_MAY_SET": json.dumps({"slatedb.compaction_filter": FILTER}),
    "PYTHONPATH": os.pathsep.join(filter(None, (str(Path.cwd()), os.environ.get("PYTHONPATH")))),
}


class World:
    """A fleet and its processes."""

    def __init__(self, folder: Path, nodes: Nodes) -> None:
        self.folder = folder
        listed = {"fleet.rules_may_set.slatedb.compaction_filter": FILTER}
        self.fleet = lithify.Fleet(str(folder / "fleet"), settings=listed)
        self.fleet.init()
        self.fleet.add(str(folder / "data" / "*"), settings={"slatedb.compaction_filter": FILTER})
        self._nodes = nodes

    def databases(self, count: int, keys: int = KEYS, value_bytes: int = 1) -> list[Path]:
        """Each with work of some seconds."""
        template = self.folder / "template"
        self.write(template, keys, value_bytes)
        return [copy_database(template, self.folder / "data" / f"d{n:02}") for n in range(count)]

    def write(self, path: Path, keys: int = KEYS, value_bytes: int = 1) -> None:
        """So much that there is work."""
        for n in range(FLUSHES):
            with open_db(path) as database:
                value = (b"%d" % n) * value_bytes
                database.write_batch([Put(b"%03d" % key, value) for key in range(keys)])
                database.flush()

    def rows(self) -> dict[bytes, bytes]:
        return visible_rows(read_database(self.folder / "template"))

    def coordinator(self, *options: str) -> Process:
        return self._nodes.command("fleet", "coordinator", *options, self.fleet.url, environment=COMMON)

    def worker(self, *options: str, cores: int = 2) -> Process:
        given = {
            **COMMON,
            "LITHIFY_SPARK__MASTER": f"local[{cores}]",
            "LITHIFY_SERVICE__WORKER__MAX_CONCURRENT_COMPACTIONS": str(cores),
        }
        return self._nodes.command("fleet", "worker", *options, self.fleet.url, environment=given)

    def states(self, paths: list[Path]) -> Counter[CompactionState]:
        """Of all that their ledgers have."""
        ledgers = [ledger for path in paths if (ledger := latest(path)) is not None]
        return Counter(compaction.state for ledger in ledgers for compaction in ledger.compactions)

    def check(self, paths: list[Path]) -> None:
        """Each was compacted once, and shows what it did before."""
        assert self.states(paths) == {CompactionState.COMPLETED: len(paths)}
        rows = self.rows()
        for path in paths:
            (tree,) = Admin(path).trees()
            assert (len(tree.l0), len(tree.runs)) == (0, 1)
            assert visible_rows(read_database(path)) == rows
        for process in self._nodes.all:
            assert "Traceback" not in process.errors


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with nodes_in(tmp_path / "logs") as nodes:
        yield World(tmp_path, nodes)


def test_twenty_that_run_when_their_coordinator_is_killed_commit_once(world: World) -> None:
    """That a minute is enough `test_official` shows, by a clock that no other process slows."""
    paths = world.databases(20, keys=200)
    world.worker(cores=20)
    coordinator = world.coordinator()
    wait_until(lambda: world.states(paths)[CompactionState.RUNNING] == len(paths))
    coordinator.kill()
    world.coordinator()
    wait_until(lambda: world.states(paths)[CompactionState.COMPLETED] == len(paths))
    world.check(paths)


@pytest.mark.whole
def test_what_is_small_is_claimed_while_what_is_large_fills_all_cores(world: World) -> None:
    """How long it waits `benchmarks.fleet_beside` measures."""
    small = world.folder / "data" / "small"
    open_db(small).close()
    large = world.databases(2, keys=250, value_bytes=LARGE_BYTES // (250 * FLUSHES))
    world.fleet.set_queue("default", reserved_slots=1)
    world.worker()
    world.coordinator("--set", "slatedb.l0_max_ssts=10000")  # so no stall is near
    wait_until(lambda: world.states(large)[CompactionState.RUNNING] > 0)
    world.write(small)
    world.fleet.wake(str(small))
    wait_until(lambda: world.states([small])[CompactionState.RUNNING] == 1)
    assert world.states(large) == {CompactionState.RUNNING: 1, CompactionState.SCHEDULED: 1}, (
        "the other slot is reserved"
    )
    wait_until(lambda: world.states([small])[CompactionState.COMPLETED] == 1)
    wait_until(lambda: world.states(large)[CompactionState.COMPLETED] == len(large))
    (tree,) = Admin(small).trees()
    assert (len(tree.l0), len(tree.runs)) == (0, 1)
    world.check(large)


def test_what_a_killed_worker_had_is_resumed(world: World) -> None:
    (path,) = world.databases(1, keys=60)
    first = world.worker()
    world.coordinator()
    wait_until(lambda: first.events("Claimed"))
    second = world.worker()
    wait_until(lambda: len(world.fleet.status().members) == 3)
    first.kill()
    wait_until(lambda: world.states([path])[CompactionState.COMPLETED] == 1)
    assert len(second.events("Claimed")) == 1
    world.check([path])


@pytest.mark.whole
def test_workers_of_a_deleted_queue_end_with_0_and_their_work_goes_on(world: World) -> None:
    paths = world.databases(2, keys=250)
    world.fleet.create_queue("small", largest_bytes=1 << 30)
    small, other = world.worker("--queue", "small"), world.worker("--queue", "default")
    world.coordinator()
    wait_until(lambda: len(small.events("Claimed")) == 2)
    wait_until(lambda: len(world.fleet.status().members) == 3)
    world.fleet.delete_queue("small")
    assert small.wait() == 0
    wait_until(lambda: world.states(paths)[CompactionState.COMPLETED] == 2)
    assert len(other.events("Claimed")) >= 1
    world.check(paths)


def test_a_coordinator_that_was_frozen_takes_nothing_back_when_it_thaws(world: World) -> None:
    paths = world.databases(8)
    world.worker()
    coordinators = [world.coordinator(), world.coordinator()]
    wait_until(lambda: all(coordinator.events("EpochTaken") for coordinator in coordinators))
    coordinators[0].freeze()
    wait_until(lambda: world.states(paths)[CompactionState.COMPLETED] == len(paths))
    # What the databases say: an epoch that was taken right before the freeze may be logged only after it.
    taken = [dataset_at(path).snapshot().compactor_epoch for path in paths]
    coordinators[0].thaw()
    time.sleep(AFTER_THAW_S)
    assert [dataset_at(path).snapshot().compactor_epoch for path in paths] == taken
    assert all(coordinator.exit_code is None for coordinator in coordinators)
    epochs = Counter(
        event["dataset"] for coordinator in coordinators for event in coordinator.events("EpochTaken")
    )
    assert max(epochs.values()) <= 2, "no ping-pong"
    world.check(paths)


def test_one_that_is_told_to_end_the_moment_it_thaws_ends(world: World) -> None:
    coordinator = world.coordinator()
    wait_until(lambda: world.fleet.status().members)
    coordinator.freeze()
    coordinator.thaw()
    assert coordinator.terminate() == 0
