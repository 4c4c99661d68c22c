"""A dataset that is deleted, made anew at its URL or restored from a backup under a service that coordinates
it and works on it; and between two commands. Written and read by the official client.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import lithify
from lithify.base import events
from lithify.base.clock import SystemClock
from lithify.base.errors import CoordinatorAlive
from lithify.coordination.leases import ObjectLease
from lithify.datasets.slatedb.dataset import SlateDataset
from lithify.protocol.lease import EpochClaim, Lease
from lithify.testing.engine import InlineEngine
from lithify.testing.s3 import S3Server
from tests.cli.invoking import invoke
from tests.compacting import compact, dataset_at
from tests.flaky import Site
from tests.fleet.test_made_anew import put_back
from tests.judge.official import Put, compactor_settings, open_db
from tests.judge.rows import read_database, visible_rows
from tests.processes.lakes import Lake
from tests.service.test_away import LIMIT_S, SETTINGS, Seen, committed, know


def fill(target: str | Path, name: bytes, flushes: int = 5, **options: object) -> dict[bytes, bytes]:
    """The rows that it has then."""
    rows: dict[bytes, bytes] = {}
    with open_db(target, **options) as database:  # type: ignore[arg-type]
        for n in range(flushes):
            written = {b"%02d" % key: b"%s %d" % (name, n) for key in range(20)}
            database.write_batch([Put(key, value) for key, value in written.items()])
            database.flush()
            rows |= written
    return rows


def rows(path: Path) -> dict[bytes, bytes]:
    return visible_rows(read_database(path))


@contextmanager
def running(*urls: str | Path) -> Iterator[tuple[Seen, threading.Thread]]:
    seen, stop = Seen(), threading.Event()
    service = lithify.Service(urls, settings=SETTINGS, engine=InlineEngine(), on_event=seen)
    thread = threading.Thread(target=service.run, args=(stop,))
    thread.start()
    try:
        yield seen, thread
    finally:
        stop.set()
        thread.join(LIMIT_S)
    assert not thread.is_alive()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker notices within a second."""
    monkeypatch.setattr("lithify.service.worker.CONFIRM_EVERY_S", 0.5)


def remove(path: Path) -> None:
    """Whatever is written there meanwhile."""
    while path.exists():
        shutil.rmtree(path, ignore_errors=True)


def wait_for_a_second(seen: Seen, path: str) -> None:
    assert seen.wait_for(lambda event: isinstance(event, events.MadeAnew) and event.dataset.endswith(path))
    is_committed = committed(path)
    assert seen.wait_for(lambda _: sum(map(is_committed, seen.events)) >= 2)


@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.parametrize("gap", [False, True])
def test_a_service_goes_on_with_what_is_there(tmp_path: Path, others: int, gap: bool) -> None:
    """And the new database's own writer never notices."""
    path, neighbours = tmp_path / "db", [tmp_path / f"well{n}" for n in range(others)]
    for one in (path, *neighbours):
        fill(one, b"old")
    with running(path, *neighbours) as (seen, _):
        assert seen.wait_for(committed("db"))
        remove(path)
        if gap:
            assert seen.wait_for(lambda event: isinstance(event, events.MadeAnew))
        with open_db(path) as database:
            for n in range(5):
                database.write_batch([Put(b"k", b"new %d" % n)])
                database.flush()
            wait_for_a_second(seen, "db")
            database.write_batch([Put(b"k", b"newest")])
            database.flush()
    assert rows(path) == {b"k": b"newest"}


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_service_goes_on_with_a_backup(tmp_path: Path, is_alone: bool) -> None:
    path = tmp_path / "db"
    before = fill(path, b"old")
    put_back(path, tmp_path / "backup")
    fill(path, b"lost", flushes=3)
    urls = [path] if is_alone else [path, tmp_path / "other"]
    fill(tmp_path / "other", b"other")
    with running(*urls) as (seen, _):
        assert seen.wait_for(committed("db"))
        remove(path)
        put_back(tmp_path / "backup", path)
        wait_for_a_second(seen, "db")
    assert rows(path) == before


def test_a_service_goes_on_without_its_folder(tmp_path: Path) -> None:
    """Another program takes it for garbage."""
    path = tmp_path / "db"
    fill(path, b"old")
    with running(path) as (seen, _):
        assert seen.wait_for(committed("db"))
        remove(path / "lithify")
        before = fill(path, b"new")
        is_committed = committed("db")
        assert seen.wait_for(lambda _: sum(map(is_committed, seen.events)) >= 2)
    assert rows(path) == before


def test_a_service_goes_on_with_a_database_made_anew_in_a_bucket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with S3Server() as server:
        server.create_bucket("b")
        site = Site(server, "b")
        for name, value in site.options.items():
            monkeypatch.setenv(name.upper(), value)
        url = site.url("db")
        fill(url, b"old", store_options=site.options)
        with running(url) as (seen, _):
            assert seen.wait_for(committed("db"))
            store = dataset_at(url, store_options=site.options).store
            for meta in list(store.list("db")):
                store.delete(meta.key)
            before = fill(url, b"new", store_options=site.options)
            wait_for_a_second(seen, "db")
        with open_db(url, store_options=site.options) as database:
            assert {key: database.get(key) for key in before} == before


def test_workers_alone_go_on(tmp_path: Path) -> None:
    """Their pool opens it anew."""
    path = tmp_path / "db"
    fill(path, b"old")
    stop, seen = threading.Event(), Seen()
    parts = [
        lithify.Service([path], settings=SETTINGS, on_event=seen, works=False),
        lithify.Service(
            [path], settings=SETTINGS, on_event=seen, coordinates=False, works=True, engine=InlineEngine()
        ),
    ]
    threads = [threading.Thread(target=part.run, args=(stop,)) for part in parts]
    for thread in threads:
        thread.start()
    try:
        assert seen.wait_for(committed("db"))
        remove(path)
        before = fill(path, b"new")
        wait_for_a_second(seen, "db")
    finally:
        stop.set()
        for thread in threads:
            thread.join(LIMIT_S)
    assert rows(path) == before


# Between two commands


@pytest.mark.parametrize("keeps_lithify", [False, True])
def test_between_two_runs(tmp_path: Path, keeps_lithify: bool) -> None:
    path = tmp_path / "db"
    fill(path, b"old")
    assert len(compact(dataset_at(path)).committed) == 1
    for child in path.iterdir():
        if not (keeps_lithify and child.name == "lithify"):
            shutil.rmtree(child)
    before = fill(path, b"new")
    assert len(compact(dataset_at(path)).committed) == 1
    assert rows(path) == before


def test_between_what_could_be_deleted_and_deleting_it(tmp_path: Path) -> None:
    path = tmp_path / "db"
    fill(path, b"old")
    compact(dataset_at(path))
    assert invoke("gc", "--min-age", "0s", path).exit_code == 0
    shutil.rmtree(path)
    before = fill(path, b"new")
    assert invoke("gc", "--delete", "--min-age", "0s", path).exit_code == 0
    assert rows(path) == before
    with open_db(path) as database:
        assert database.get(b"07") == before[b"07"]


def test_a_lease_that_was_left_behind_proves_nothing(tmp_path: Path) -> None:
    """Whatever epoch it says: a coordinator of SlateDB may be alive in the new database."""
    path = tmp_path / "db"
    fill(path, b"new")
    with open_db(path, settings={"compactor_options": compactor_settings()}):
        pass
    dataset = dataset_at(path)
    epoch, (latest, _) = dataset.snapshot().compactor_epoch, dataset.latest_manifest()
    assert epoch == 1
    lease = ObjectLease(dataset.store, dataset.paths.own_folder, SystemClock())
    taking = EpochClaim(epoch, latest + 1, "00" * 16)
    lease.write(Lease("lithify-1", taken=epoch, taking=taking, is_ended=True), None)
    assert isinstance(dataset, SlateDataset)
    assert dataset_at(path).why_held(epoch, lease.read().lease)  # type: ignore[union-attr]
    with pytest.raises(CoordinatorAlive):
        compact(dataset_at(path))


# Tables


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_table_that_is_dropped_and_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_alone: bool
) -> None:
    lake = Lake(tmp_path)
    lake.add()
    know(monkeypatch, lake.environment)
    fill(tmp_path / "other", b"other")
    urls = [lake.url] if is_alone else [lake.url, tmp_path / "other"]
    with running(*urls) as (seen, _):
        assert seen.wait_for(committed("events"))
        lake.make_anew()
        lake.add()
        wait_for_a_second(seen, "events")
    assert lake.is_compacted
    lake.check()
