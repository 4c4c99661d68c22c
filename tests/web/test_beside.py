"""The dashboard beside a service shows what the service reads anyway: who watches costs no request."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.utils.config import Config

import lithify
from lithify.api import wiring
from lithify.api.client import Dataset, settled
from lithify.base.clock import SystemClock
from lithify.base.errors import StoreUnavailable
from lithify.base.ids import Ulid
from lithify.datasets.slatedb.model import KeyRange
from lithify.mirror.dataset_mirror import BESIDE_S, DatasetMirror
from lithify.protocol import transitions
from lithify.protocol.attempts import Movement
from lithify.protocol.model import CompactionState, Progress, RangeProgress
from lithify.testing import ManualClock
from lithify.testing.engine import InlineEngine
from lithify.web import serving
from lithify.web.dashboard import TABS
from tests.cli.invoking import invoke
from tests.compacting import dataset_at
from tests.datasets.iceberg.tables import append, make_rows, new_catalog, new_table
from tests.datasets.kafka.test_commands import make_log
from tests.judge.official import Put, open_db
from tests.web.dashboards import BEARER, NOW_MS, ORIGIN, TOKEN, page_of, read, shown, write_database

LIMIT_S = 110.0  # the first one on a machine compiles the kernel
TABLE = "iceberg://lake/db.events"


@pytest.fixture
def urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A database, a table and a log."""
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    append(new_table(new_catalog(tmp_path, name="lake")), make_rows(5))
    log = f"kafka+file://{make_log(tmp_path / 'backup' / 'orders-0')}"
    return [write_database(tmp_path / "db"), TABLE, log]


def get(where: str, path: str) -> str:
    request = urllib.request.Request(where.rstrip("/") + path, headers=BEARER)
    with urllib.request.urlopen(request, timeout=20) as answer:
        found: str = answer.read().decode()
        return found


@contextmanager
def in_service(
    urls: list[str], *, coordinates: bool = True, works: bool = True, **given: Any
) -> Iterator[str]:
    """A service of these with its dashboard, which rounds several times a second; where that is."""
    settings = {
        "service.poll_interval": "50ms",
        "service.commit_compacted_interval": "50ms",
        "service.worker.compactions_poll_interval": "50ms",
        "web.port": 0,
        "web.token": TOKEN,
        **given,
    }
    stop, config = threading.Event(), settled(settings)
    with lithify.Service(
        urls,
        settings=config,
        engine=InlineEngine(),
        take_over=coordinates,
        coordinates=coordinates,
        works=works,
    ) as service:
        thread = threading.Thread(target=service.run, args=(stop,), name="service")
        with serving.served(urls, None, config, service) as where:
            thread.start()
            try:
                yield where
            finally:
                stop.set()
                thread.join(LIMIT_S)


def until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def document(where: str, url: str, part: str) -> Any:
    """What a command prints of it; an empty one before it was read."""
    try:
        return json.loads(get(where, f"/api{page_of(url, part)}"))
    except urllib.error.HTTPError as error:
        if error.code != 503:
            raise
        return {}


def is_led(where: str, url: str) -> bool:
    found: bool = document(where, url, "status").get("coordinator", {}).get("presence") == "alive"
    return found


def test_who_watches_a_service_makes_no_request_of_its_own(
    urls: list[str], asked: Counter[str], always_due: None
) -> None:
    """Every page of a database, a table and a log, again and again, each time rendered anew: all requests are
    those of the threads that are there without anybody who watches."""
    with in_service(urls) as where:
        for url in urls:
            until(partial(is_led, where, url))
        begun = asked.copy()
        paths = ["/", *(page_of(url, tab) for url in urls for tab in TABS)]
        paths += [f"/api{page_of(url, part)}" for url in urls for part in ("status", "plan", "history")]
        for _ in range(3):
            for path in paths:
                html = get(where, path)
                assert "cannot be read" not in html, path
        until(lambda: (asked - begun).total() > 100)  # the service goes on all the while
    assert not [thread for thread in asked if "AnyIO" in thread or thread.startswith("lithify-web")]


def test_with_a_hundred_who_watch_it_costs_the_same(tmp_path: Path, asked: Counter[str]) -> None:
    """The same rounds over equal databases, with nobody and with a hundred looks after each."""

    def requests(folder: Path, looks: int) -> int:
        clock, config, shared = ManualClock(NOW_MS), settled(None), DatasetMirror("db", ManualClock(NOW_MS))
        url = write_database(folder / "db")
        dataset = wiring.open_dataset(url, config, shared=shared)
        leadership = wiring.leadership(dataset)
        watched = Dataset(url, config, state_of=shared.state, commits=shared.newest)
        coordinator = wiring.coordinator(dataset, config, lambda event: None)
        asked.clear()
        with leadership.acquire(take_over=True) as term:
            coordinator.start(term)
            for _ in range(5):
                coordinator.tick()
                shared.read_beside(dataset, wiring.commit_records(dataset))
                with shown([url], open_dataset=lambda url: watched, clock=clock) as client:
                    for _ in range(looks):
                        clock.advance_s(60)
                        for tab in TABS:
                            assert client.get(page_of(url, tab)).status_code == 200
        return asked.total()

    assert requests(tmp_path / "one", looks=0) == requests(tmp_path / "two", looks=20) > 0


def test_what_it_shows_is_what_the_commands_print(urls: list[str], always_due: None) -> None:
    """After a commit of its own: by the lease that it holds, with what was committed, and who holds what."""
    settings: dict[str, Any] = {"slatedb.scheduler_options.min_compaction_sources": 3}
    with in_service(urls, **settings) as where:
        until(lambda: len(document(where, urls[0], "history").get("commits", ())) == 1)
        for url in urls:
            with lithify.open(url, settings=settings) as opened:
                printed = {
                    "status": opened.show_status,
                    "plan": lambda opened=opened: opened.plan().shown,
                    "history": opened.show_history,
                }
                for part, of in printed.items():
                    until(
                        lambda url=url, part=part, of=of: (  # type: ignore[misc]
                            lasting(document(where, url, part)) == lasting(of().document)
                        )
                    )
            assert is_led(where, url)


def test_a_coordinator_and_a_worker_apart_show_the_same_and_reading_it_costs_nothing(
    urls: list[str], asked: Counter[str], always_due: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker, which reads no snapshots and has no lease, says who coordinates all the same."""
    monkeypatch.setattr("lithify.mirror.dataset_mirror.BESIDE_S", 0.2)
    settings: dict[str, Any] = {"slatedb.scheduler_options.min_compaction_sources": 3}
    with (
        in_service(urls, works=False, **settings) as one,
        in_service(urls, coordinates=False, **settings) as other,
    ):
        for where in (one, other):
            until(lambda where=where: len(document(where, urls[0], "history").get("commits", ())) == 1)  # type: ignore[misc]
            for url in urls:
                until(partial(is_led, where, url))
                for part in ("status", "history"):
                    with lithify.open(url, settings=settings) as opened:
                        printed = opened.show_status if part == "status" else opened.show_history
                        until(
                            lambda where=where, url=url, part=part, printed=printed: (  # type: ignore[misc]
                                lasting(document(where, url, part)) == lasting(printed().document)
                            )
                        )
    assert not [thread for thread in asked if "AnyIO" in thread or thread.startswith("lithify-web")]


def lasting(document: Mapping[str, Any]) -> dict[str, Any]:
    """Without what depends on when it is asked."""
    passing = ("at_ms", "stall_ms", "pressure", "remaining_ms", "heartbeat_age_ms", "lease_ends_ms")
    found = json.loads(json.dumps(document), object_hook=lambda d: {k: d[k] for k in d if k not in passing})
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("command", ["run", "coordinator", "worker"])
def test_the_commands(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    stop, answers = threading.Event(), list[str]()
    monkeypatch.setattr(wiring, "stop_on_signals", lambda: nullcontext(stop))
    monkeypatch.setattr(wiring, "spark_engine", lambda *_: nullcontext(InlineEngine()))

    def ask() -> None:
        deadline_s = time.monotonic() + LIMIT_S
        while not answers and time.monotonic() < deadline_s:
            with suppress(OSError):
                answers.append(get(f"http://127.0.0.1:{port}", "/healthz"))
            time.sleep(0.05)
        stop.set()

    thread = threading.Thread(target=ask)
    thread.start()
    result = invoke(command, "--web-port", str(port), write_database(tmp_path / "db"))
    thread.join()
    assert (result.exit_code, answers) == (0, ["ok\n"]), result.stderr


def test_what_is_done_there_shows_at_once(tmp_path: Path) -> None:
    """A cancellation is in the list of failures before the next round."""
    url = write_database(tmp_path / "db")
    config, clock = settled(None), SystemClock()
    shared = DatasetMirror(url, clock)
    dataset = wiring.open_dataset(url, config, shared=shared)
    dataset.glance()

    def acted_on(wanted: str) -> Dataset:
        return Dataset(wanted, config, observer=shared)

    def watched(wanted: str) -> Dataset:
        return Dataset(wanted, config, state_of=shared.state, commits=shared.newest)

    with shown([url], token=TOKEN, open_dataset=watched, acted_on=acted_on) as client:
        headers = {**BEARER, **ORIGIN}
        api = f"/api{page_of(url, '')}".rstrip("/")
        (submitted,) = client.post(f"{api}/submit", json={}, headers=headers).json()["submitted"]
        found = client.get(f"{api}/status", headers=headers).json()
        assert [c["id"] for c in found["compactions"]] == [submitted]
        client.post(f"{api}/cancel", json={"compactions": [submitted]}, headers=headers)
        found = client.get(f"{api}/status", headers=headers).json()
        assert (found["compactions"], [f["compaction"] for f in found["failures"]]) == ([], [submitted])
        client.post(f"{api}/retry", json={"compactions": [submitted]}, headers=headers)
        found = client.get(f"{api}/status", headers=headers).json()
        assert (len(found["compactions"]), found["failures"]) == (1, [])


def test_a_running_compaction_is_as_far_as_its_worker_has_looked(tmp_path: Path) -> None:
    """Bytes that tasks report, ranges that are finished, since when, at what pace."""
    url, clock, config = write_database(tmp_path / "db"), ManualClock(NOW_MS), settled(None)
    shared = DatasetMirror(url, clock)
    dataset = dataset_at(tmp_path / "db")
    dataset.observers.add(shared)
    watched = Dataset(url, config, clock=clock, state_of=shared.state, commits=shared.newest)
    with lithify.open(url, clock=clock) as opened:
        (compaction,) = opened.submit(full=True).ids
    dataset.glance()
    dataset.update_ledger(lambda latest: transitions.schedule(latest, Ulid(compaction)))
    dataset.update_ledger(lambda latest: transitions.claim(latest, Ulid(compaction), "w", clock.now_ms()))
    clock.advance_s(10)
    (found,) = watched.status().compactions
    assert (found.state, found.worker, found.done_bytes, found.since_ms) == (
        CompactionState.RUNNING,
        "w",
        0,
        NOW_MS,
    )
    ranges = tuple(RangeProgress(KeyRange(low, high)) for low, high in ((None, b"k10"), (b"k10", None)))
    progress = Progress(ranges, horizon=1)
    dataset.update_ledger(
        lambda latest: transitions.heartbeat(latest, Ulid(compaction), "w", clock.now_ms(), progress)
    )
    moved = Movement(0, "w", NOW_MS, found.cost_bytes // 4, 0, clock.now_ms())
    key = f"{dataset.paths.own_folder}/progress/{compaction}/0-x.json"
    dataset.store.put(key, json.dumps(asdict(moved)).encode())
    clock.advance_s(10)
    (found,) = watched.status().compactions
    assert found.done_bytes == 0, "nobody has looked"
    dataset.journal.movements(Ulid(compaction))
    (found,) = watched.status().compactions
    assert found.done_bytes == found.cost_bytes // 4
    assert [round(share, 2) for share in found.range_shares] == [0.5, 0.0]
    assert found.bytes_per_s == round(found.done_bytes / 10)
    dataset.journal.clear(Ulid(compaction))
    (found,) = watched.status().compactions
    assert found.done_bytes == 0


def test_facts_of_an_earlier_poll_are_shown_with_their_age(tmp_path: Path) -> None:
    url, clock = write_database(tmp_path / "db"), ManualClock(NOW_MS)
    shared = DatasetMirror(url, clock)

    def watched(wanted: str) -> Dataset:
        return Dataset(wanted, settled(None), clock=clock, state_of=shared.state, commits=shared.newest)

    with shown([url], open_dataset=watched, clock=clock) as client:
        assert "1 of 1 are not read yet" in read(client.get("/").text).text, "it is not called unreadable"
        dataset = dataset_at(tmp_path / "db")
        dataset.observers.add(shared)
        dataset.glance()
        clock.advance_s(300)
        assert "5m before this page was made" in read(client.get(page_of(url)).text).text
        clock.advance_s(300)
        dataset.glance()
        assert "before this page was made" not in client.get(page_of(url)).text


def test_before_it_was_read_and_after_it_is_another_processs_that_is_said(tmp_path: Path) -> None:
    url, clock = write_database(tmp_path / "db"), ManualClock(NOW_MS)
    shared = DatasetMirror(url, clock)
    watched = Dataset(url, settled(None), state_of=shared.state)
    with pytest.raises(StoreUnavailable, match="has not read it yet"):
        watched.status()
    dataset = dataset_at(tmp_path / "db")
    dataset.observers.add(shared)
    dataset.glance()
    assert watched.status().url.endswith(url)
    shared.end("it is coordinated elsewhere")
    with pytest.raises(StoreUnavailable, match="elsewhere"):
        watched.status()


def test_what_stands_beside_is_read_seldom(tmp_path: Path, asked: Counter[str]) -> None:
    url, clock = write_database(tmp_path / "db"), ManualClock(NOW_MS)
    shared = DatasetMirror(url, clock)
    dataset = dataset_at(tmp_path / "db")
    dataset.observers.add(shared)
    records = wiring.commit_records(dataset)

    def reads() -> int:
        asked.clear()
        shared.read_beside(dataset, records)
        return asked.total()

    assert reads() == 0, "nothing is known of it"
    dataset.glance()
    assert (reads() > 0, reads()) == (True, 0)
    clock.advance_s(2 * BESIDE_S)
    assert reads() == 0, "nothing has changed"
    with open_db(tmp_path / "db") as database:
        database.write_batch([Put(b"k", b"v")])
        database.flush()
    dataset.glance()
    assert (reads() > 0, reads()) == (True, 0)
    with open_db(tmp_path / "db") as database:
        database.write_batch([Put(b"k", b"w")])
        database.flush()
    dataset.glance()
    assert reads() == 0, "a moment ago"
    clock.advance_s(BESIDE_S)
    assert reads() > 0


def test_pages_that_are_read_for_the_dashboard_cost_one_read_however_many_watch(
    tmp_path: Path, asked: Counter[str]
) -> None:
    """`lithify web`: by requests of the store."""
    url = write_database(tmp_path / "db")

    def requests(viewers: int) -> int:
        clock = ManualClock(NOW_MS)
        with shown([url], clock=clock) as client:
            asked.clear()
            for _ in range(3):
                for _ in range(viewers):
                    for path in ("/", *(page_of(url, tab) for tab in TABS)):
                        assert client.get(path).status_code == 200
                clock.advance_s(60)
        return asked.total()

    assert requests(1) == requests(20) > 0
    assert any("AnyIO" in thread for thread in asked), "what no thread of a service may be called"
