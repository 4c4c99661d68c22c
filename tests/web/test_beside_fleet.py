"""The dashboard beside a coordinator of a fleet shows what that reads anyway, without a request."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from pyiceberg.utils.config import Config

import lithify
from lithify.api.fleets import WatchedFleet
from lithify.base.clock import SystemClock
from lithify.base.errors import StoreUnavailable
from lithify.fleet.fleet_mirror import SharedFleet
from lithify.mirror.dataset_mirror import BESIDE_S
from lithify.testing import ManualClock
from lithify.web.dashboard import TABS
from tests.datasets.iceberg.tables import append, make_rows, new_catalog, new_table
from tests.web.dashboards import page_of, write_database
from tests.web.fleets import SETTINGS, kept
from tests.web.test_beside import TABLE, document, get, lasting, until


@pytest.fixture
def urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two databases and a table."""
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    append(new_table(new_catalog(tmp_path, name="lake")), make_rows(5))
    return [*(write_database(tmp_path / "tenants" / name / "db") for name in ("red", "green")), TABLE]


def is_committed(where: str, url: str) -> bool:
    return bool(document(where, url, "history").get("commits"))


def test_who_watches_a_fleet_makes_no_request_of_its_own(
    urls: list[str], tmp_path: Path, asked: Counter[str], always_due: None
) -> None:
    """Every page of the fleet and its datasets, again and again, each time rendered anew: all requests are
    those of the threads that are there without anybody who watches."""
    paths = ["/", "/fleet", "/queues/default", "/api/fleet", "/api/fleet/datasets"]
    paths += [page_of(url, tab) for url in urls for tab in TABS]
    with kept(tmp_path) as (_, where):
        until(lambda: urls[0] in get(where, "/"))
        for url in urls[:2]:
            until(partial(is_committed, where, url))
        until(lambda: "coordinator" in get(where, "/fleet"))
        for _ in range(3):
            for path in paths:
                assert "cannot be read" not in get(where, path), path
    assert asked.total() > 0
    assert not [thread for thread in asked if "AnyIO" in thread or thread.startswith("lithify-web")]


def test_what_it_shows_is_what_the_commands_print(
    urls: list[str], tmp_path: Path, always_due: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lithify.mirror.dataset_mirror.BESIDE_S", 0.2)
    with kept(tmp_path) as (_, where):
        until(lambda: urls[0] in get(where, "/"))
        for url in urls[:2]:
            until(partial(is_committed, where, url))
        for url in urls:
            with lithify.open(url, settings=SETTINGS) as opened:
                for part, of in (("status", opened.show_status), ("history", opened.show_history)):
                    until(
                        lambda url=url, part=part, of=of: (  # type: ignore[misc]
                            lasting(document(where, url, part)) == lasting(of().document)
                        )
                    )


def test_what_is_done_there_shows_at_once(urls: list[str], tmp_path: Path) -> None:
    with kept(tmp_path, works=False) as (watched, where):
        until(lambda: urls[0] in get(where, "/"))
        until(lambda: watched.shared.of(urls[0]).was_read_beside)
        with watched.acted_on(urls[0]) as acting, watched.watched(urls[0]) as looking:
            (submitted,) = acting.submit(full=True).ids
            assert submitted in {c.id for c in looking.status().compactions}


def test_one_that_cannot_be_opened_is_not_first_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lithify.fleet.fleet_mirror.MOST_BESIDE_PER_S", 1)
    clock, urls = ManualClock(), ["memory://m/a", "memory://m/b"]
    fleet = SharedFleet(clock)
    fleet.keep(urls)
    for url in urls:
        fleet.of(url).saw_ledger(None)
        fleet.of(url).saw_snapshot(object())
    assert [shared.url for shared in fleet.due()] == urls[:1]
    fleet.of(urls[0]).missed_beside()
    assert [shared.url for shared in fleet.due()] == urls[1:]
    clock.advance_s(BESIDE_S)
    fleet.of(urls[0]).saw_snapshot(object())
    fleet.of(urls[1]).missed_beside()
    assert [shared.url for shared in fleet.due()] == urls[:1], "what has changed is tried again"


def test_what_another_coordinator_watches_is_read_for_who_looks(tmp_path: Path, asked: Counter[str]) -> None:
    """As soon as it is this one's it is not any more, and shows nothing before that has read it."""
    fleet = lithify.Fleet(str(tmp_path / "fleet"))
    fleet.init()
    fleet.add(str(tmp_path / "db"))
    url, shared = write_database(tmp_path / "db"), SharedFleet(SystemClock())
    shared.saw_datasets(*fleet.datasets())
    watched = WatchedFleet(fleet.url, shared)
    with watched.watched(url) as looking:
        asked.clear()
        assert looking.status().url.endswith(url)
        assert (looking.history(), asked.total() > 0) == ((), True)
        shared.keep([url])
        asked.clear()
        with pytest.raises(StoreUnavailable, match="not read it yet"):
            looking.status()
        assert asked.total() == 0
    with pytest.raises(StoreUnavailable, match="not read it yet"):
        watched.watched(url)
    with pytest.raises(lithify.Refused, match="not a dataset of this fleet"):
        watched.watched(str(tmp_path / "none"))
