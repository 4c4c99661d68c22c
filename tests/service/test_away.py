"""A service over two databases, one of whose stores is away."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import lithify
from lithify import events
from lithify.events import Event
from lithify.testing.engine import InlineEngine
from lithify.testing.s3 import Outage, S3Server
from tests.flaky import FAIR, Site
from tests.judge.official import Put, open_db

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
