"""`lithify fleet run` and its halves: databases and tables of several tenants, with real clocks, without
Spark.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import pytest
from pyiceberg.utils.config import Config

import lithify
from lithify.api import wiring
from lithify.base import events
from lithify.fleet.coordinator import FleetCoordinator
from lithify.fleet.members import FleetRole
from lithify.fleet.worker import FleetWorker
from lithify.testing.engine import InlineEngine
from tests.cli.invoking import invoke
from tests.client.test_service import TABLE, Place, Watch, until
from tests.datasets.iceberg.tables import fresh, read
from tests.judge.rows import read_database, visible_rows


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Where the catalog is, PyIceberg's own settings say."""
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    return Place(tmp_path)


@pytest.fixture
def fleet(place: Place) -> lithify.Fleet:
    """Of three tenants' databases and a namespace of tables."""
    made = lithify.Fleet(str(place.folder / "fleet"), settings=place.settings)
    made.init()
    made.add(str(place.folder / "tenants" / "*" / "db"), tenant="*")
    made.add("iceberg://lake/db.*", tenant="lake")
    return made


@contextmanager
def served(fleet: lithify.Fleet, watch: Watch, *, keeps: bool = True, works: bool = True) -> Iterator[None]:
    """By a process of its own, as far as the store can tell."""
    stop, ended = threading.Event(), []

    def serve() -> None:
        try:
            fleet.run(stop, keeps=keeps, works=works, engine=InlineEngine(), on_event=watch)
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not ended


def test_databases_and_tables_of_several_tenants(place: Place, fleet: lithify.Fleet) -> None:
    databases = [place.database(f"tenants/{tenant}/db") for tenant in ("red", "green", "blue")]
    table, urls = place.table(), [*databases, TABLE]
    rows, before = sorted(read(table)), [visible_rows(read_database(Path(url))) for url in databases]
    (place.folder / "tenants" / "none").mkdir()
    watch = Watch()
    with served(fleet, watch):
        until(lambda: all(watch.of(events.Committed, url) for url in urls), "one of them has no commit")
        status = fleet.status()
        assert {member.seen.role for member in status.members} == set(FleetRole)
        until(lambda: all(not q.hints for q in fleet.status().queues), "a hint stays for ever")
    assert [visible_rows(read_database(Path(url))) for url in databases] == before
    assert sorted(read(fresh(table))) == rows
    assert fleet.status().members == (), "they have left"
    for url in urls:
        with lithify.open(url, settings=place.settings) as dataset:
            assert dataset.is_coordinated() is False, "and have resigned"
            assert [c.bytes_read > 0 for c in dataset.history()] == [True] * watch.of(events.Committed, url)
    assert watch.of(events.Quarantined, "none/db") == 0


def test_a_coordinator_and_two_workers_apart(place: Place, fleet: lithify.Fleet) -> None:
    fleet.create_queue("small", largest_bytes=1 << 30)
    url = place.database("tenants/red/db")
    watch = Watch()
    with served(fleet, watch, keeps=False), served(fleet, watch, keeps=False):
        until(lambda: len(fleet.status().members) == 2, "the workers do not show")
        assert not watch.seen
        with served(fleet, watch, works=False):
            until(lambda: bool(watch.of(events.Committed, url)), "no commit")
    assert watch.of(events.Committed, url) >= 1


def test_what_cannot_work_ends_before_anything_is_written(place: Place, fleet: lithify.Fleet) -> None:
    stop = threading.Event()
    with pytest.raises(lithify.Refused, match="there is no queue 'none'"):
        fleet.run(stop, queues=["none"], engine=InlineEngine())
    with pytest.raises(lithify.Refused, match="must coordinate, work, or do both"):
        fleet.run(stop, keeps=False, works=False)
    nowhere = lithify.Fleet(str(place.folder / "nowhere"))
    with pytest.raises(lithify.DatasetNotFound, match="lithify fleet init"):
        nowhere.run(stop, engine=InlineEngine())
    assert fleet.status().members == ()
    assert not (place.folder / "nowhere").exists()


def test_a_batch_pool_ends_when_there_is_nothing_to_do(fleet: lithify.Fleet) -> None:
    fleet.run(threading.Event(), keeps=False, exit_when_idle_s=0.2, engine=InlineEngine())
    assert fleet.status().members == ()


def test_that_both_live_is_said_beside_their_rounds(
    fleet: lithify.Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lithify.api.fleet_serving.PULSE_LOOK_S", 0.01)
    threads: dict[type, set[str]] = {FleetCoordinator: set(), FleetWorker: set()}
    for kind in threads:
        monkeypatch.setattr(
            kind, "beat", lambda self: threads[type(self)].add(threading.current_thread().name)
        )
    with served(fleet, Watch()):
        until(lambda: all(threads.values()), "one of them is never said to live")
    assert threads == {FleetCoordinator: {"lithify-pulse"}, FleetWorker: {"lithify-pulse"}}


def test_workers_of_a_deleted_queue_end(fleet: lithify.Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lithify.fleet.worker.BEAT_EVERY_MS", 100)
    fleet.create_queue("small", largest_bytes=1_000)
    ended = threading.Event()

    def serve() -> None:
        fleet.run(threading.Event(), queues=["small"], keeps=False, engine=InlineEngine())
        ended.set()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    until(lambda: len(fleet.status().members) == 1, "the worker does not show")
    fleet.delete_queue("small")
    assert ended.wait(60)
    assert fleet.status().members == ()


@pytest.mark.parametrize("command", ["run", "coordinator", "worker"])
def test_the_commands(command: str, fleet: lithify.Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()
    monkeypatch.setattr(wiring, "stop_on_signals", lambda: nullcontext(stop))
    monkeypatch.setattr(wiring, "spark_engine", lambda *_: nullcontext(InlineEngine()))
    seen: set[FleetRole] = set()

    def watch() -> None:
        with suppress(AssertionError):
            until(lambda: bool(fleet.status().members), "nobody shows")
        seen.update(member.seen.role for member in fleet.status().members)
        stop.set()

    thread = threading.Thread(target=watch)
    thread.start()
    result = invoke("fleet", command, "--web-port", "0", fleet.url)
    thread.join()
    assert result.exit_code == 0, result.stderr
    assert "the dashboard is served" in result.stderr
    assert (
        seen
        <= {"run": set(FleetRole), "coordinator": {FleetRole.COORDINATOR}, "worker": {FleetRole.WORKER}}[
            command
        ]
    )
    assert seen


def test_a_command_that_ends_when_idle(fleet: lithify.Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wiring, "stop_on_signals", lambda: nullcontext(threading.Event()))
    monkeypatch.setattr(wiring, "spark_engine", lambda *_: nullcontext(InlineEngine()))
    assert invoke("fleet", "worker", "--exit-when-idle", "100ms", fleet.url).exit_code == 0
    assert invoke("fleet", "worker", "--queue", "none", fleet.url).exit_code == 2
