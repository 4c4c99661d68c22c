"""A fleet over databases that the official client has written, and reads when all is done. On a manual clock,
without Spark.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import MappingProxyType

import pytest

import lithify
from lithify.api import wiring
from lithify.base import events
from lithify.datasets.registry import config_type
from lithify.datasets.slatedb.dataset import SlateDataset
from lithify.datasets.slatedb.hooks import Drop, FilterDecision, Keep, Row
from lithify.datasets.slatedb.kernel.warm_up import warm_up
from lithify.datasets.slatedb.kind import SlateKind
from lithify.fleet.catalog import changes
from lithify.fleet.catalog.model import Coordinates, DatasetRule
from lithify.fleet.discovery import LOOK_EVERY_S
from lithify.protocol.model import CompactionState
from lithify.service import control
from lithify.store.resilience.waiting import WaitPolicy
from tests.cli.invoking import invoke_json
from tests.fleet.playing import ALL, Play, playing
from tests.judge.official import (
    Admin,
    Put,
    compact_officially,
    compactor_settings,
    copy_database,
    open_db,
)
from tests.judge.rows import read_database, visible_rows

KEYS = 20
DAY_S = 86_400


def fill(path: Path, flushes: int, size: int = 1) -> Path:
    for n in range(flushes):
        with open_db(path) as database:
            database.write_batch([Put(b"%02d" % key, bytes([n]) + os.urandom(size)) for key in range(KEYS)])
            database.flush()
    return path


def rows(path: Path) -> dict[bytes, bytes]:
    return visible_rows(read_database(path))


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five L0 SSTs: there is something to do."""
    warm_up()
    return fill(tmp_path_factory.mktemp("busy") / "db", 5)


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("idle") / "db", 2)


class Fleet(Play):
    """All databases in one folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.clock.jump_s(time.time() - self.clock.now_ms() / 1000)
        self.folder = folder
        listed = {"slatedb.compaction_filter": f"{__name__}:drop_even, {__name__}:drop_odd"}
        self.config = config_type().model_validate({"fleet": {"rules_may_set": listed}})
        self.change(partial(changes.remove_rules, patterns=[ALL]))
        self.add("*")

    def add(self, pattern: str, queue: str | None = None, owner: bool = False, **settings: str) -> None:
        given = MappingProxyType({name.replace("__", "."): value for name, value in settings.items()})
        who = Coordinates.OWNER if owner else Coordinates.FLEET
        rule = DatasetRule(str(self.folder / pattern), who, queue, settings=given)
        self.change(lambda catalog: changes.add_rules(catalog, [rule]))

    def put(self, template: Path, *names: str) -> list[Path]:
        return [copy_database(template, self.folder / name) for name in names]

    def find(self, rule: DatasetRule) -> list[str]:
        return wiring.find_datasets(rule, self.config)

    def open(self, url: str, rule: DatasetRule) -> SlateDataset:
        self.opened[url] += 1
        config = wiring.config_of(rule, self.config, str(self.folder))
        return SlateKind().open(url, config, self.clock, self.ids, lambda store: store, WaitPolicy())

    def is_compacted(self, path: Path) -> bool:
        (tree,) = Admin(path).trees()
        return not tree.l0 and len(tree.runs) == 1

    def times(self, kind: type[events.Event], path: Path) -> int:
        return sum(count for url, count in self.seen(kind).items() if url.endswith(str(path)))

    def workers_of(self, path: Path) -> set[str]:
        claims = [event for event in self.events if isinstance(event, events.Claimed)]
        return {event.worker for event in claims if event.dataset.endswith(str(path))}

    def compact_all(self, paths: list[Path], seconds: int = 120) -> int:
        return self.until(lambda: all(self.times(events.Committed, path) for path in paths), seconds)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with playing(Fleet(tmp_path)) as made:
        yield made


def drop_even(row: Row) -> FilterDecision:
    return Drop() if int(row.key) % 2 == 0 else Keep()


def drop_odd(row: Row) -> FilterDecision:
    return Keep() if int(row.key) % 2 == 0 else Drop()


def test_of_two_queues_by_size_each_worker_takes_its_own(fleet: Fleet, busy: Path) -> None:
    small = fleet.put(busy, "a", "b")
    large = fill(fleet.folder / "large", 5, size=2_000)
    before = {path: rows(path) for path in (*small, large)}
    fleet.queue("small", 100_000)
    workers = fleet.worker("small"), fleet.worker("default")
    fleet.coordinator()
    fleet.compact_all([*small, large])
    assert [fleet.workers_of(path) for path in small] == [{workers[0].name}] * 2
    assert fleet.workers_of(large) == {workers[1].name}
    assert all(fleet.is_compacted(path) and rows(path) == was for path, was in before.items())


DATABASES = 200


def test_two_hundred_databases_in_two_queues_have_the_filter_of_their_own_rule(
    fleet: Fleet, busy: Path
) -> None:
    """And what has none keeps all it has, although the same worker works on it."""
    before = rows(busy)
    of: dict[str, list[Path]] = {
        name: fleet.put(busy, *(f"{name}-{n}" for n in range(DATABASES // 2))) for name in ("even", "odd")
    }
    of["plain"] = fleet.put(busy, "plain-0", "plain-1")
    fleet.change(partial(changes.remove_rules, patterns=[str(fleet.folder / "*")]))
    for place, name in enumerate(("even", "odd")):
        fleet.queue(name, 1 + place)
        fleet.add(f"{name}-*", name, slatedb__compaction_filter=f"{__name__}:drop_{name}")
    fleet.add("plain-*", "even")
    for name in ("even", "odd"):
        fleet.worker(name, slots=16)
    fleet.coordinator()
    fleet.compact_all([path for paths in of.values() for path in paths])
    left = {
        "even": {key: value for key, value in before.items() if int(key) % 2},
        "odd": {key: value for key, value in before.items() if not int(key) % 2},
        "plain": before,
    }
    assert {name: {tuple(rows(path).items()) for path in paths} for name, paths in of.items()} == {
        name: {tuple(kept.items())} for name, kept in left.items()
    }


def test_a_queue_that_is_deleted_at_work_ends_its_worker_and_the_next_one_goes_on(
    fleet: Fleet, busy: Path
) -> None:
    (path,) = fleet.put(busy, "a")
    fleet.queue("small", 1_000_000)
    worker = fleet.worker("small", stepped=True)
    fleet.coordinator()
    fleet.until(lambda: bool(fleet.times(events.Claimed, path)), 60)
    small = fleet.files.catalog.read().catalog.queue("small").id
    fleet.change(lambda catalog: changes.delete_queue(catalog, small))
    fleet.until(lambda: worker.is_over, 20)
    worker.close()
    fleet.workers.remove(worker)
    other = fleet.worker()
    fleet.compact_all([path])
    assert fleet.workers_of(path) == {worker.name, other.name}
    assert fleet.times(events.Committed, path) == 1
    assert rows(path) == rows(busy)


def test_what_a_killed_worker_had_is_resumed(fleet: Fleet, busy: Path) -> None:
    (path,) = fleet.put(busy, "a")
    worker = fleet.worker(stepped=True)
    fleet.coordinator()
    fleet.until(lambda: bool(fleet.times(events.Claimed, path)), 60)
    fleet.workers.remove(worker)
    other = fleet.worker()
    fleet.compact_all([path])
    assert fleet.workers_of(path) == {worker.name, other.name}
    assert (fleet.times(events.Reclaimed, path), fleet.times(events.Committed, path)) == (1, 1)
    assert fleet.is_compacted(path)
    assert rows(path) == rows(busy)


def test_twenty_that_run_when_their_coordinator_is_killed_commit_once_within_a_minute(
    fleet: Fleet, busy: Path
) -> None:
    paths = fleet.put(busy, *(f"d{n}" for n in range(20)))
    worker = fleet.worker(slots=20, stepped=True)
    fleet.coordinator()
    fleet.until(lambda: all(fleet.times(events.Claimed, path) for path in paths), 90)
    fleet.coordinators.clear()
    fleet.engines[worker.name].run_all()
    fleet.coordinator()
    assert fleet.compact_all(paths, 60) <= 60
    fleet.run(60)
    assert [fleet.times(events.Committed, path) for path in paths] == [1] * 20
    assert all(rows(path) == rows(busy) for path in paths)


def test_wants_vanish_when_somebody_else_has_done_the_work(fleet: Fleet, busy: Path) -> None:
    (path,) = fleet.put(busy, "a")
    coordinator = fleet.coordinator()
    fleet.run(30)
    assert len(coordinator.watched[str(path)].demand.wants) == 1
    compact_officially(path)
    fleet.files.wakes.wake(str(path))
    fleet.run(10)
    assert coordinator.watched[str(path)].demand.wants == ()
    fleet.worker()
    fleet.run(60)
    assert fleet.times(events.Claimed, path) == 0
    assert rows(path) == rows(busy)


def test_flushes_between_want_and_admission_are_compacted_with_it(fleet: Fleet, busy: Path) -> None:
    (path,) = fleet.put(busy, "a")
    fleet.coordinator()
    fleet.run(30)
    fill(path, 3)
    before = rows(path)
    fleet.worker()
    fleet.compact_all([path])
    assert fleet.is_compacted(path)
    assert rows(path) == before
    (done,) = [event for event in fleet.events if isinstance(event, events.Submitted)]
    assert done.reason.startswith("8 L0 SSTs")


def test_a_database_that_slatedb_coordinates_is_served_and_never_fenced(fleet: Fleet, busy: Path) -> None:
    (path,) = fleet.put(busy, "a")
    fleet.add("a", owner=True)
    options = compactor_settings(scheduler={"min_compaction_sources": "4"})
    settings = {"compactor_options": {**options, "worker": None, "worker_heartbeat_timeout": "600s"}}
    with open_db(path, settings=settings) as database:
        fleet.coordinator()
        fleet.worker()
        deadline_s = time.monotonic() + 60
        while not fleet.is_compacted(path):
            assert time.monotonic() < deadline_s
            fleet.run(1)
            time.sleep(0.02)
        epoch = fleet.open(str(path), DatasetRule(str(path))).ledger()
        fleet.run(120)
        database.write_batch([Put(b"99", b"later")])
        database.flush()
    assert rows(path) == {**rows(busy), b"99": b"later"}
    after = fleet.open(str(path), DatasetRule(str(path))).ledger()
    assert epoch is not None
    assert after is not None
    assert after.epoch == epoch.epoch == 1
    assert fleet.times(events.EpochTaken, path) == 0
    assert not (path / "lithify" / "coordinator.json").exists()


def files(path: Path) -> dict[Path, int]:
    return {file: file.stat().st_mtime_ns for file in path.rglob("*")}


def test_folders_come_and_go_and_some_are_no_databases(fleet: Fleet, busy: Path, idle: Path) -> None:
    gone, _ = fleet.put(idle, "gone", "stays")
    (fleet.folder / "none").mkdir()
    coordinator = fleet.coordinator()
    fleet.worker()
    fleet.run(30)
    assert set(coordinator.watched) == {str(fleet.folder / name) for name in ("gone", "stays", "none")}
    (new,) = fleet.put(busy, "new and late")
    shutil.rmtree(gone)
    fleet.until(lambda: fleet.is_compacted(new), 400)
    fleet.run(10)
    assert set(coordinator.watched) == {str(fleet.folder / name) for name in (new.name, "stays", "none")}
    assert rows(new) == rows(busy)
    assert list((fleet.folder / "none").iterdir()) == []
    assert coordinator.quarantined == {}


def test_one_corrupt_database_stops_no_other(fleet: Fleet, busy: Path) -> None:
    bad, *others = fleet.put(busy, "bad", "x", "y")
    newest = max((bad / "manifest").iterdir())
    newest.write_bytes(newest.read_bytes()[:40])
    before = files(bad)
    coordinator = fleet.coordinator()
    fleet.worker()
    fleet.compact_all(others)
    fleet.run(60)
    assert list(coordinator.quarantined) == [str(bad)]
    assert files(bad) == before
    assert fleet.seen(events.Quarantined).total() == 1
    assert all(rows(path) == rows(busy) for path in others)


def test_what_a_person_submits_is_done_and_what_is_cancelled_is_not(fleet: Fleet, busy: Path) -> None:
    (asked,) = fleet.put(busy, "asked")
    coordinator = fleet.coordinator()
    first = fleet.worker()
    fleet.compact_all([asked])
    fleet.workers.remove(first)
    with open_db(asked) as database:
        database.write_batch([Put(b"99", b"later")])
        database.flush()
    (stopped,) = fleet.put(busy, "stopped")
    fleet.add("stopped")
    worker = fleet.worker(stepped=True)
    fleet.until(lambda: bool(fleet.times(events.Claimed, stopped)), 60)
    dataset = fleet.open(str(stopped), DatasetRule(str(stopped)))
    ledger = dataset.ledger()
    assert ledger is not None
    (running,) = ledger.active()
    control.cancel(dataset, fleet.clock, [running.id])
    dataset = fleet.open(str(asked), DatasetRule(str(asked)))
    plan = dataset.planner(full=True)(dataset.snapshot(), dataset.ledger())
    control.submit(dataset, fleet.clock, fleet.ids, [proposal.spec for proposal in plan.proposals])
    fleet.files.wakes.wake(str(asked))

    def is_done() -> bool:
        fleet.engines[worker.name].run_all()
        return fleet.is_compacted(asked)

    fleet.until(is_done, 60)
    fleet.run(30)
    after = fleet.open(str(stopped), DatasetRule(str(stopped))).ledger()
    assert after is not None
    found = after.get(running.id)
    assert found is not None
    assert found.state is CompactionState.FAILED
    assert (rows(asked), rows(stopped)) == ({**rows(busy), b"99": b"later"}, rows(busy))
    assert coordinator.quarantined == {}


def test_what_runs_is_told_as_the_ledgers_have_it(fleet: Fleet, busy: Path) -> None:
    paths = fleet.put(busy, "a", "b", "c")
    worker = fleet.worker(slots=2, stepped=True)
    fleet.coordinator()
    fleet.until(lambda: sum(fleet.times(events.Claimed, path) for path in paths) == 2, 60)
    fleet.run(12)
    url = f"{fleet.memory.url}/fleet"
    in_ledgers = set()
    for path in paths:
        ledger = fleet.open(str(path), DatasetRule(str(path))).ledger()
        for one in () if ledger is None else ledger.active():
            if one.state is CompactionState.RUNNING and one.worker is not None:
                in_ledgers.add((str(path), str(one.id), one.worker.id))
    assert len(in_ledgers) == 2
    for options in ([], ["--exact"]):
        told = invoke_json("fleet", "running", *options, url)["running"]
        assert {(one["url"], one["compaction"], one["worker"]) for one in told} == in_ledgers
    assert {worker for _, _, worker in in_ledgers} == {worker.name}
    assert lithify.Fleet(url).running(exact=True)[1] == {}


WATCHED = 10_000
PART = 800
MOST_BYTES = 1 << 30
OWN_BYTES = 256 << 20
"""Of a process that watches none."""


def resident_bytes() -> int:
    """Memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class SameDatabase(Fleet):
    """One that has many names: each is opened, looked at and remembered by itself."""

    def find(self, rule: DatasetRule) -> list[str]:
        return self.names

    def open(self, url: str, rule: DatasetRule) -> SlateDataset:
        return super().open(str(self.folder / "db"), rule)


@pytest.mark.skipif(sys.platform != "linux", reason="where memory is told is Linux's")
def test_ten_thousand_are_watched_within_a_gigabyte(tmp_path: Path, idle: Path) -> None:
    """Counted on a part of them, after a first one."""
    with playing(SameDatabase(tmp_path)) as fleet:
        fleet.put(idle, "db")
        coordinator = fleet.coordinator()
        fleet.names = [str(tmp_path / "first")]
        fleet.run(1)
        before = resident_bytes()
        fleet.names += [str(tmp_path / f"tenant-{n:05}" / "database") for n in range(PART)]
        fleet.clock.advance_s(LOOK_EVERY_S)
        fleet.run(1)
        assert all(watched.is_known for watched in coordinator.watched.values())
        assert len(coordinator.watched) == PART + 1
        each_bytes = (resident_bytes() - before) / PART
        assert WATCHED * each_bytes <= MOST_BYTES - OWN_BYTES, f"{each_bytes} bytes each"
