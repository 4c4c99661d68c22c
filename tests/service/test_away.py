"""A service one of whose stores or catalogs is away."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from pyiceberg.utils.config import Config

import lithify
from lithify.base import events
from lithify.base.errors import Refused
from lithify.base.events import Event
from lithify.datasets.iceberg.io import catalog_requests
from lithify.testing.engine import InlineEngine
from lithify.testing.s3 import Outage, S3Server
from tests.away import HOW
from tests.cli.invoking import invoke
from tests.flaky import FAIR, Site
from tests.judge.official import Put, open_db
from tests.outages import notice_soon
from tests.processes.lakes import Lake, s3_properties

SETTINGS = {
    "service.poll_interval": "200ms",
    "service.commit_compacted_interval": "100ms",
    "service.worker.compactions_poll_interval": "200ms",
    "slatedb.scheduler_options.min_compaction_sources": 4,
}
LIMIT_S = 60.0


class Seen:
    """The events so far; any thread may wait for one."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._changed = threading.Condition()

    def __call__(self, event: Event) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def wait_for(self, what: Callable[[Event], bool]) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: any(map(what, self.events)), LIMIT_S)


def committed(url: str) -> Callable[[Event], bool]:
    return lambda event: isinstance(event, events.Committed) and event.dataset.endswith(url)


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """What hangs is noticed and cut off soon."""
    notice_soon(monkeypatch)
    monkeypatch.setattr(catalog_requests, "READ_S", 2.0)
    monkeypatch.setenv("AWS_READ_TIMEOUT", "2s")


@pytest.fixture
def site() -> Iterator[Site]:
    with S3Server() as server:
        server.create_bucket("b")
        yield Site(server, "b")


def test_one_store_that_is_away_holds_up_nothing_but_its_own_dataset(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in site.options.items():
        monkeypatch.setenv(name.upper(), value)
    model = site.write("away")
    with open_db(tmp_path / "well") as database:
        for n in range(5):
            database.write_batch([Put(b"k", b"%d" % n)])
            database.flush()
    site.server.weather = replace(FAIR, outage=Outage.HANG)
    seen, stop = Seen(), threading.Event()
    urls = [site.url("away"), str(tmp_path / "well")]
    service = lithify.Service(urls, settings=SETTINGS, engine=InlineEngine(), on_event=seen)
    thread = threading.Thread(target=service.run, args=(stop,))
    thread.start()
    try:
        assert seen.wait_for(committed("well"))
        assert not any(map(committed("away"), seen.events))
        assert seen.wait_for(lambda event: isinstance(event, events.WaitingForStore))
        site.server.weather = FAIR
        assert seen.wait_for(lambda event: isinstance(event, events.StoreBack))
        assert seen.wait_for(committed("away"))
    finally:
        site.server.weather = FAIR
        stop.set()
        thread.join(LIMIT_S)
    assert not thread.is_alive()
    assert not [event for event in seen.events if isinstance(event, events.Quarantined)]
    assert site.read("away") == model


def known_lake(site: Site, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """A table in the site's store whose catalog this process knows."""
    lake = Lake(folder, site.url("warehouse"), s3_properties(site.options))
    know(monkeypatch, lake.environment)
    return lake


def know(monkeypatch: pytest.MonkeyPatch, environment: Mapping[str, str]) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # it reads that but once


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_table_whose_store_is_away_at_the_start_is_opened_when_it_is_back(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_alone: bool
) -> None:
    lake = known_lake(site, tmp_path, monkeypatch)
    lake.add()
    with open_db(tmp_path / "well") as database:
        for n in range(5):
            database.write_batch([Put(b"k", b"%d" % n)])
            database.flush()
    site.server.weather = replace(FAIR, outage=Outage.SLOW_DOWN)
    seen, stop = Seen(), threading.Event()
    urls = [lake.url] if is_alone else [lake.url, str(tmp_path / "well")]
    service = lithify.Service(urls, settings=SETTINGS, engine=InlineEngine(), on_event=seen)
    thread = threading.Thread(target=service.run, args=(stop,))
    thread.start()
    try:
        assert is_alone or seen.wait_for(committed("well"))
        assert seen.wait_for(lambda event: isinstance(event, events.WaitingForStore))
        site.server.weather = FAIR
        assert seen.wait_for(committed("events"))
    finally:
        site.server.weather = FAIR
        stop.set()
        thread.join(LIMIT_S)
    assert not thread.is_alive()
    assert not [event for event in seen.events if isinstance(event, events.Quarantined)]
    assert lake.is_compacted
    lake.check()


def of_the_catalog(event: Event) -> bool:
    return isinstance(event, events.WaitingForStore) and event.url == "catalog lake"


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("is_away_at_the_start", [True, False])
def test_a_catalog_that_is_away_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, is_away_at_the_start: bool
) -> None:
    """From the start on, or from when the rows are about to be rewritten."""
    lake = Lake(tmp_path)
    lake.add()
    seen, stop = Seen(), threading.Event()
    with HOW[how](lake) as catalog:
        know(monkeypatch, catalog.environment)

        def observe(event: Event) -> None:
            is_first = not any(isinstance(one, events.Claimed) for one in seen.events)
            if isinstance(event, events.Claimed) and is_first and not is_away_at_the_start:
                catalog.fall_away()
            seen(event)

        if is_away_at_the_start:
            catalog.fall_away()
        service = lithify.Service([lake.url], settings=SETTINGS, engine=InlineEngine(), on_event=observe)
        thread = threading.Thread(target=service.run, args=(stop,))
        thread.start()
        try:
            assert seen.wait_for(of_the_catalog)
            assert thread.is_alive()
            catalog.come_back()
            assert seen.wait_for(committed("events"))
        finally:
            catalog.come_back()
            stop.set()
            thread.join(LIMIT_S)
        assert not thread.is_alive()
    assert not [event for event in seen.events if isinstance(event, events.Quarantined)]
    assert lake.is_compacted
    lake.check()


@pytest.mark.parametrize("how", HOW)
def test_a_command_waits_for_a_catalog_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    lake = Lake(tmp_path)
    lake.add()
    with HOW[how](lake) as catalog:
        know(monkeypatch, catalog.environment)
        catalog.fall_away()
        is_back = threading.Timer(4.0, catalog.come_back)
        is_back.start()
        found = invoke("plan", lake.url)
        is_back.join()
    assert found.exit_code == 0, found.stderr
    assert re.search(r"waiting for catalog lake for \d+ s \(at most 30 s\): ", found.stderr)
    assert "catalog lake is available again" in found.stderr


def test_a_malformed_url_is_refused_at_once_though_another_store_is_away(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = known_lake(site, tmp_path, monkeypatch)
    site.server.weather = replace(FAIR, outage=Outage.SLOW_DOWN)
    with pytest.raises(Refused, match="nonsense"):
        lithify.Service([lake.url, "nonsense://lake/db.events"], engine=InlineEngine())
