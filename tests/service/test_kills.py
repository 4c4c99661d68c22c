"""Real processes are killed, frozen and stopped in the middle of a compaction: nothing is lost, and only
what was not finished runs again. The official client writes meanwhile, and judges."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from itertools import dropwhile
from pathlib import Path

import pytest

from lithify.compaction.model import State
from tests.engine.waiting import wait_until
from tests.judge.official import Admin, open_db
from tests.service.databases import Model, check_rows, make_database, write_some
from tests.service.history import Version, check_protocol, history, latest, lives, owner, recorded
from tests.service.node import NodeOptions
from tests.service.nodes import Nodes, Process, nodes_in

KEYS = 8_000
VALUE_BYTES = 1000
ENOUGH = 6
"""Ranges that are recorded when something happens; there are about ten times as many."""
LIMIT_S = 60.0
Database = tuple[Path, Model]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Database:
    path = tmp_path_factory.mktemp("template") / "db"
    return path, make_database(path, keys=KEYS, value_bytes=VALUE_BYTES)


@pytest.fixture
def database(template: Database, tmp_path: Path) -> Database:
    source, model = template
    return Path(shutil.copytree(source, tmp_path / "db")), dict(model)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with nodes_in(tmp_path / "logs") as nodes:
        yield nodes


def the_compaction(path: Path) -> str:
    """The id of the only compaction there is."""
    ledger = latest(path)
    assert ledger is not None
    (compaction,) = ledger.compactions
    return compaction.id


def recorded_ranges(path: Path) -> frozenset[int]:
    ledger = latest(path)
    return recorded(ledger.compactions[0]) if ledger is not None and ledger.compactions else frozenset()


def in_the_middle(path: Path) -> None:
    """Wait until some ranges are finished and recorded, and many are not."""
    wait_until(lambda: len(recorded_ranges(path)) >= ENOUGH, LIMIT_S)


def completed(path: Path) -> bool:
    ledger = latest(path)
    return ledger is not None and [c.state for c in ledger.compactions] == [State.COMPLETED]


def is_owned_by(worker: str, version: Version) -> bool:
    return any(owner(compaction) == worker for compaction in version.ledger.compactions)


def wrote(process: Process) -> set[int]:
    """The ranges for which a worker wrote anything."""
    return {event["index"] for event in process.events("RangeFinished") if event["bytes_written"]}


def check_only_the_rest_ran(second: Process, before: frozenset[int]) -> None:
    """The worker that took over ran every range but those that were recorded `before`."""
    (prepared,) = second.events("Prepared")
    again = wrote(second)
    print(f"{prepared['ranges']} ranges, {len(before)} finished before, {len(again)} run by the second")
    assert again == set(range(prepared["ranges"])) - before


def check(path: Path, model: Model) -> None:
    check_protocol(history(path))
    assert len(Admin(path).trees()[0].runs) == 1
    check_rows(path, model)


def test_of_a_killed_worker_only_the_unfinished_ranges_run_again(database: Database, nodes: Nodes) -> None:
    path, model = database
    timeout_ms = 2_000
    nodes.node(NodeOptions("coordinator", str(path), worker_heartbeat_timeout_ms=timeout_ms))
    first = nodes.node(NodeOptions("worker", str(path), name="first"))
    with open_db(path) as writer:
        in_the_middle(path)
        first.kill()
        before = recorded_ranges(path)
        second = nodes.node(NodeOptions("worker", str(path), name="second"))
        write_some(writer, model, random.Random(2), list(range(0, KEYS, 50)), 10)
        writer.flush()
        wait_until(lambda: completed(path), LIMIT_S)
    check_only_the_rest_ran(second, before)
    versions = history(path)
    last_sign_s = max(v.written_s for v in versions if is_owned_by("first", v))
    reclaimed_s = min(v.written_s for v in versions if v.written_s > last_sign_s)
    print(f"reclaimed {reclaimed_s - last_sign_s:.2f} s after the last heartbeat")
    assert reclaimed_s - last_sign_s > timeout_ms / 1000 - 0.1
    steps = lives(versions)[the_compaction(path)]
    after_first = list(dropwhile(lambda step: step != (State.RUNNING, "first"), steps))
    assert after_first == [
        (State.RUNNING, "first"),
        (State.SCHEDULED, None),
        (State.RUNNING, "second"),
        (State.COMPACTED, "second"),
        (State.COMPLETED, "second"),
    ]
    check(path, model)


def test_a_frozen_worker_that_wakes_up_changes_nothing(database: Database, nodes: Nodes) -> None:
    path, model = database
    coordinator = nodes.node(NodeOptions("coordinator", str(path), worker_heartbeat_timeout_ms=1_500))
    first = nodes.node(NodeOptions("worker", str(path), name="first"))
    second = nodes.node(NodeOptions("worker", str(path), name="second"))
    in_the_middle(path)
    if not first.events("Claimed"):
        first, second = second, first
    first.freeze()
    before = recorded_ranges(path)
    wait_until(lambda: coordinator.events("Reclaimed"), LIMIT_S)
    wait_until(lambda: wrote(second), LIMIT_S)
    first.thaw()
    wait_until(lambda: first.events("Lost"), LIMIT_S)
    wait_until(lambda: completed(path), LIMIT_S)
    check_only_the_rest_ran(second, before)
    assert not first.events("Compacted")
    assert first.terminate() == 0
    assert not first.errors
    check(path, model)


def test_a_worker_that_is_told_to_stop_gives_back_at_once(database: Database, nodes: Nodes) -> None:
    path, model = database
    # So long a timeout that nothing can be reclaimed.
    coordinator = nodes.node(NodeOptions("coordinator", str(path), worker_heartbeat_timeout_ms=600_000))
    first = nodes.node(NodeOptions("worker", str(path), name="first"))
    in_the_middle(path)
    assert first.terminate() == 0
    ledger = latest(path)
    assert ledger is not None
    assert [(c.state, c.worker) for c in ledger.compactions] == [(State.SCHEDULED, None)]
    before = recorded_ranges(path)
    assert before == wrote(first)
    second = nodes.node(NodeOptions("worker", str(path), name="second"))
    wait_until(lambda: completed(path), LIMIT_S)
    check_only_the_rest_ran(second, before)
    assert not coordinator.events("Reclaimed")
    check(path, model)
