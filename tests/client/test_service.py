"""`lithify.Service`: several datasets of several kinds in one process, without Spark."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
from pyiceberg.table import Table
from pyiceberg.utils.config import Config

import lithify
from lithify.api import serving
from lithify.base import events
from lithify.base.backoff import GrowingPause
from lithify.testing.engine import InlineEngine
from tests.datasets.iceberg.tables import append, fresh, make_rows, new_catalog, new_table, read
from tests.judge.official import Put, open_db
from tests.judge.rows import read_database, visible_rows

LIMIT_S = 100.0
TABLE = "iceberg://lake/db.events"


class Place:
    """Databases and a table in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings = {
            "service.poll_interval": "100ms",
            "service.commit_compacted_interval": "100ms",
            "service.worker.compactions_poll_interval": "100ms",
        }

    def database(self, name: str) -> str:
        for n in range(5):
            self.flush(name, b"%d" % n)
        return str(self.folder / name)

    def flush(self, name: str, value: bytes) -> None:
        with open_db(self.folder / name) as database:
            database.write_batch([Put(b"k%02d" % k, value) for k in range(20)])
            database.flush()

    def table(self) -> Table:
        properties = {"lithify.min-saved-files": "1", "lithify.allowed-lateness-seconds": "0"}
        table = new_table(new_catalog(self.folder, name="lake"), properties=properties)
        for _ in range(4):
            append(table, make_rows(5))
        return table


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Where the catalog is, PyIceberg's own settings say."""
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    return Place(tmp_path)


class Watch:
    """Events, and how to wait for them."""

    def __init__(self) -> None:
        self.seen: list[events.Event] = []

    def __call__(self, event: events.Event) -> None:
        self.seen.append(event)

    def of(self, kind: type[events.Event], url: str) -> int:
        return sum(isinstance(event, kind) and event.dataset.endswith(url) for event in self.seen)


def until(holds: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.02)


@contextmanager
def running(service: lithify.Service, stop: threading.Event) -> Iterator[list[BaseException]]:
    """In a thread; what it ended with."""
    ended: list[BaseException] = []

    def run() -> None:
        try:
            service.run(stop)
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield ended
    finally:
        stop.set()
        thread.join()


def test_two_databases_and_a_table_in_one_process(place: Place) -> None:
    one, two, table = place.database("one"), place.database("two"), place.table()
    rows = sorted(read(table))
    before = [visible_rows(read_database(Path(url))) for url in (one, two)]
    watch, stop, urls = Watch(), threading.Event(), [one, two, TABLE]
    service = lithify.Service(urls, settings=place.settings, on_event=watch, engine=InlineEngine())
    with service, running(service, stop) as ended:
        until(lambda: all(watch.of(events.Committed, url) for url in urls), "one of them has no commit")
    assert not ended
    assert [visible_rows(read_database(Path(url))) for url in (one, two)] == before
    assert sorted(read(fresh(table))) == rows
    taken = Counter(type(event) for event in watch.seen)
    assert taken[events.EpochTaken] == 3
    with lithify.open(one, settings=place.settings) as db:
        holder = db.status().coordinator.holder
    claimed = [e for e in watch.seen if isinstance(e, events.Claimed) and e.dataset.endswith(one)]
    assert {event.worker for event in claimed} == {holder}, "who starts after a crash takes back what it held"


def test_who_is_fenced_ends_and_the_others_go_on(place: Place) -> None:
    one, two = place.database("one"), place.database("two")
    watch, stop = Watch(), threading.Event()
    service = lithify.Service([one, two], settings=place.settings, on_event=watch, engine=InlineEngine())
    with service, running(service, stop) as ended:
        until(lambda: all(watch.of(events.Committed, url) for url in (one, two)), "no commit")
        with lithify.open(one, settings=place.settings, engine=InlineEngine()) as db:
            place.flush("one", b"later")
            db.compact(full=True, take_over=True)
        commits = watch.of(events.Committed, two)
        for n in range(5):
            place.flush("two", b"again %d" % n)
        until(lambda: watch.of(events.Committed, two) > commits, "the other one has stopped")
        assert not ended
    (error,) = ended
    assert isinstance(error, lithify.Fenced)


def test_where_one_is_coordinated_already_nothing_is_started(place: Place) -> None:
    one, two = place.database("one"), place.database("two")
    watch, stop = Watch(), threading.Event()
    first = lithify.Service([one], settings=place.settings, on_event=watch, engine=InlineEngine())
    with first, running(first, stop) as ended:
        until(lambda: bool(watch.of(events.Committed, one)), "no commit")
        second = lithify.Service([two, one], settings=place.settings, engine=InlineEngine())
        with second, pytest.raises(lithify.CoordinatorAlive):
            second.run(threading.Event())
        assert not ended


@pytest.mark.parametrize("junk", [b"junk", b"\0\2" + bytes(40)], ids=["no format", "a known format"])
@pytest.mark.parametrize("what", ["manifest", "compactions"])
def test_one_that_is_damaged_from_the_start_holds_up_none_of_the_others(
    place: Place, what: str, junk: bytes
) -> None:
    one, two = place.database("one"), place.database("two")
    folder = place.folder / "two" / what
    newest = max(folder.iterdir()) if folder.is_dir() else folder / f"{1:020}.{what}"
    sound = newest.read_bytes() if newest.exists() else None
    newest.parent.mkdir(exist_ok=True)
    newest.write_bytes(junk)
    watch, stop = Watch(), threading.Event()
    service = lithify.Service([two, one], settings=place.settings, on_event=watch, engine=InlineEngine())
    with service, running(service, stop) as ended:
        until(lambda: bool(watch.of(events.Committed, one)), "the sound one has no commit")
        assert not ended
        assert not watch.of(events.EpochTaken, two), "a manifest was written for each try"
        if sound is None:
            newest.unlink()
        else:
            newest.write_bytes(sound)
        until(lambda: bool(watch.of(events.Committed, two)), "the restored one has no commit")
    assert not ended


def test_bad_urls_hold_up_none_of_the_others(place: Place) -> None:
    one, bad = place.database("one"), [str(place.folder / "nothing"), "iceberg://lake/db.nothing"]
    watch, stop = Watch(), threading.Event()
    service = lithify.Service([*bad, one], settings=place.settings, on_event=watch, engine=InlineEngine())
    with service, running(service, stop) as ended:
        until(lambda: bool(watch.of(events.Committed, one)), "the sound one has no commit")
        assert not ended
    assert not ended
    served = lithify.Service(bad, settings=place.settings, engine=InlineEngine())
    with served, pytest.raises(lithify.Refused, match="nothing"):
        served.run(threading.Event())
    with pytest.raises(lithify.Refused, match="s4"):
        lithify.Service(["s4://bucket/db", one], settings=place.settings, engine=InlineEngine())


def test_one_that_others_coordinate_once_it_is_sound_holds_up_none_of_the_others(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "QUARANTINE_PAUSE", GrowingPause(first_ms=3_000, max_ms=3_000))
    one, two = place.database("one"), place.database("two")
    newest = max((place.folder / "two" / "manifest").iterdir())
    sound = newest.read_bytes()
    newest.write_bytes(b"junk")
    watch, stop = Watch(), threading.Event()
    service = lithify.Service([two, one], settings=place.settings, on_event=watch, engine=InlineEngine())
    with service, running(service, stop) as ended:
        until(lambda: bool(watch.of(events.Committed, one)), "the sound one has no commit")
        newest.write_bytes(sound)
        others, leaves = Watch(), threading.Event()
        second = lithify.Service([two], settings=place.settings, on_event=others, engine=InlineEngine())
        with second, running(second, leaves):
            until(lambda: bool(others.of(events.Committed, two)), "no commit")
            time.sleep(3.5)
            assert not ended
            assert not watch.of(events.EpochTaken, two)
        for n in range(5):
            place.flush("two", b"again %d" % n)
        until(lambda: bool(watch.of(events.Committed, two)), "it was not taken up when the others left")
    assert not ended


def test_a_coordinator_and_a_worker_apart(place: Place) -> None:
    one, two = place.database("one"), place.database("two")
    watch, stop = Watch(), threading.Event()
    coordinator = lithify.Service([one, two], settings=place.settings, on_event=watch, works=False)
    worker = lithify.Service([one, two], settings=place.settings, coordinates=False, engine=InlineEngine())
    with coordinator, running(coordinator, stop) as ended:
        until(lambda: all(watch.of(events.Submitted, url) for url in (one, two)), "nothing is planned")
        assert not any(watch.of(events.Committed, url) for url in (one, two))
        with worker, running(worker, stop):
            until(lambda: all(watch.of(events.Committed, url) for url in (one, two)), "no commit")
    assert not ended


def test_metrics_are_served_where_the_settings_say_so(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    one = place.database("one")
    watch, stop = Watch(), threading.Event()
    settings = {**place.settings, "metrics.port": 0}
    service = lithify.Service([one], settings=settings, on_event=watch, engine=InlineEngine())
    with caplog.at_level("INFO", "lithify"), service, running(service, stop) as ended:
        until(lambda: bool(watch.of(events.Committed, one)), "no commit")
        (record,) = (r for r in caplog.records if r.message == "metrics are served")
        with urlopen(vars(record)["fields"]["url"], timeout=LIMIT_S) as answer:
            assert b"lithify_committed_total" in answer.read()
    assert not ended


def test_the_dashboard_is_served_where_the_settings_say_so(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    one, stop = place.database("one"), threading.Event()
    settings = {**place.settings, "web.port": 0}
    service = lithify.Service([one], settings=settings, engine=InlineEngine())
    with caplog.at_level("INFO", "lithify"), service, running(service, stop) as ended:
        until(lambda: any(r.message == "the dashboard is served" for r in caplog.records), "it is not served")
        (record,) = (r for r in caplog.records if r.message == "the dashboard is served")
        with urlopen(vars(record)["fields"]["url"], timeout=LIMIT_S) as answer:
            assert one in answer.read().decode()
    assert not ended


def test_a_fleet_says_that_it_serves_no_dashboard(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fleet = lithify.Fleet(str(tmp_path / "fleet"), settings={"web.port": 0})
    fleet.init()
    stop = threading.Event()
    stop.set()
    fleet.run(stop, works=False)
    (said,) = (r.getMessage() for r in caplog.records if "web.port" in r.getMessage())
    assert f"lithify web --fleet {fleet.url}" in said


def test_what_is_left_alone_is_told(place: Place) -> None:
    one, two = place.database("one"), place.database("two")
    stop = threading.Event()
    service = lithify.Service([one, two], settings=place.settings, coordinates=False, engine=InlineEngine())
    (place.folder / "two" / "compactions").mkdir(exist_ok=True)
    (place.folder / "two" / "compactions" / f"{1:020}.compactions").write_bytes(b"junk")
    assert service.findings() == ()
    with service, running(service, stop) as ended:
        until(lambda: bool(service.findings()), "nothing is told")
        (finding,) = service.findings()
        assert two in finding.says
        assert f"lithify doctor {two}" in finding.do
    assert not ended


def test_a_service_of_nothing_is_refused(place: Place) -> None:
    with pytest.raises(lithify.Refused, match="at least one"):
        lithify.Service([])
    with pytest.raises(lithify.Refused, match="must coordinate, work, or"):
        lithify.Service([place.database("one")], coordinates=False, works=False)
