"""When a run refuses to start, since another coordinator may be alive."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from lithify.base.errors import CoordinatorAlive, Fenced
from lithify.testing import Call, Crash, FaultyStore, ManualClock, StoreFault
from tests.compacting import compact, dataset_at
from tests.engine.waiting import wait_until
from tests.judge.official import (
    Admin,
    CloneSource,
    Database,
    compact_officially,
    compactor_settings,
    copy_database,
    open_db,
)

WITH_COORDINATOR = {"compactor_options": compactor_settings()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "db"
    with open_db(path) as database:
        for n in range(5):
            database.put(b"k%d" % n, b"v")
            database.flush()
    return path


def files(path: Path) -> list[str]:
    return sorted(str(p) for p in path.rglob("*"))


def test_an_official_coordinator_that_may_be_alive_is_not_disturbed(path: Path) -> None:
    compact_officially(path)
    with open_db(path) as database:
        for n in range(5):
            database.put(b"more%d" % n, b"v")
            database.flush()
    before = files(path)
    with pytest.raises(CoordinatorAlive, match=r"--take-over.*lithify worker"):
        compact(dataset_at(path))
    assert files(path) == before

    assert compact(dataset_at(path), take_over=True).committed
    assert not compact(dataset_at(path)).started
    with open_db(path) as database:
        assert len(database.scan()) == 10


def test_a_clone_has_its_parents_epoch_but_no_coordinator(path: Path, tmp_path: Path) -> None:
    compact_officially(path)
    ours, official = tmp_path / "ours", tmp_path / "official"
    for clone in (ours, official):
        Admin(clone).clone_from(CloneSource(path))
        assert dataset_at(clone).snapshot().compactor_epoch
    assert compact(dataset_at(ours)).committed
    compact_officially(official)
    with open_db(official) as database:
        database.put(b"more", b"v")
        database.flush()
    with pytest.raises(CoordinatorAlive):
        compact(dataset_at(official))
    with open_db(ours) as database:
        assert len(database.scan()) == 5


def test_a_run_that_is_overtaken_stops_before_it_commits(path: Path) -> None:
    from lithify.base import events

    dataset = dataset_at(path)

    def overtake(event: events.Event) -> None:
        if isinstance(event, events.RangeFinished):
            dataset_at(path).take_epoch()

    with pytest.raises(Fenced):
        compact(dataset, observer=overtake)
    with open_db(path) as database:
        assert len(database.scan()) == 5
    result = compact(dataset_at(path), take_over=True)
    assert len(result.committed) == 1


def test_a_coordinator_that_opens_while_the_leadership_is_taken_is_not_closed(path: Path) -> None:
    """It opens the database between the announcement and the epoch."""
    opened: list[Database] = []

    with ExitStack() as stack:

        def open_meanwhile(_number: int, call: Call) -> None:
            if call.method == "create" and call.key.endswith(".manifest") and not opened:
                opened.append(stack.enter_context(open_db(path, settings=WITH_COORDINATOR)))
                wait_until(lambda: dataset_at(path).snapshot().compactor_epoch == 1)

        with pytest.raises(CoordinatorAlive, match="has just started"):
            compact(dataset_at(path, wrap=lambda store: FaultyStore(store, open_meanwhile)))
        goes_on(path, opened[0], 1)


def goes_on(path: Path, database: Database, epoch: int) -> None:
    """Nobody raised its epoch, which would close it, and it can be written."""
    assert dataset_at(path).snapshot().compactor_epoch == epoch
    database.put(b"later", b"v")
    database.flush()
    assert database.get(b"later") == b"v"


@pytest.mark.parametrize("last", [StoreFault.CRASH_BEFORE, StoreFault.CRASH_AFTER])
def test_a_run_that_dies_beside_its_epoch_leaves_no_doubt(
    path: Path, tmp_path: Path, last: StoreFault
) -> None:
    """Whether its write landed shows; and whether it was its own."""

    def decide(_number: int, call: Call) -> StoreFault | None:
        return last if call.method == "create" and call.key.endswith(".manifest") else None

    clock = ManualClock(int(time.time() * 1000))
    with pytest.raises(Crash):
        compact(dataset_at(path, wrap=lambda store: FaultyStore(store, decide), clock=clock), clock=clock)
    epoch = dataset_at(path).snapshot().compactor_epoch
    assert epoch == (0 if last is StoreFault.CRASH_BEFORE else 1)
    ours = copy_database(path, tmp_path / "ours")
    assert compact(dataset_at(ours, clock=clock), clock=clock).committed
    with open_db(path, settings=WITH_COORDINATOR) as database:
        wait_until(lambda: dataset_at(path).snapshot().compactor_epoch == epoch + 1)
        with pytest.raises(CoordinatorAlive):
            compact(dataset_at(path, clock=clock), clock=clock)
        goes_on(path, database, epoch + 1)
    assert compact(dataset_at(path, clock=clock), clock=clock, take_over=True).committed
