"""Tables of a fleet: one catalog for all of them, in one process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event

import pytest
import requests
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog

from lithify.api import wiring
from lithify.base import concurrency
from lithify.base.errors import StoreUnavailable
from lithify.config.model import Config
from lithify.datasets.iceberg.io import catalogs
from lithify.datasets.iceberg.io.catalog_requests import catalog_url
from lithify.datasets.iceberg.io.closed_catalogs import closed_catalog
from lithify.fleet.catalog.model import DatasetRule
from lithify.store.resilience.waiting import WaitPolicy
from lithify.store.urls import known_of
from tests.datasets.iceberg.tables import SCHEMA, new_catalog
from tests.engine.waiting import wait_until

TABLES = 20
SHARED = WaitPolicy(max_s=1.0, dataset="iceberg://lake", comes_back=True, is_shared=True)


@pytest.fixture
def lake(tmp_path: Path) -> SqlCatalog:
    catalog = new_catalog(tmp_path, name="lake")
    for number in range(TABLES):
        catalog.create_table(f"db.t{number}", SCHEMA)
    return catalog


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(store_options={"uri": f"sqlite:///{tmp_path}/catalog.db"})


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Catalog]:
    """All catalogs that PyIceberg has opened."""
    made: list[Catalog] = []

    def load(name: str, given: Mapping[str, str]) -> Catalog:
        made.append(closed_catalog(name, given))
        return made[-1]

    monkeypatch.setattr(catalogs, "closed_catalog", load)
    return made


def found(config: Config) -> list[str]:
    return wiring.find_datasets(DatasetRule("iceberg://lake/db.*"), config, SHARED)


def test_all_tables_of_a_catalog_and_their_discovery_share_it(
    lake: SqlCatalog, config: Config, opened: list[Catalog]
) -> None:
    urls = found(config)
    assert len(urls) == TABLES
    open_one = partial(wiring.open_dataset, config=config, waiting=SHARED)
    datasets = concurrency.all_of((partial(open_one, url) for url in urls), 16)
    assert all(dataset.snapshot() is not None for dataset in datasets)
    assert found(config) == urls
    assert len(opened) <= 2, "the first was nobody's any more when the tables were opened"
    open_alone = partial(wiring.open_dataset, config=config)
    assert open_alone(urls[0]).snapshot() is not None
    assert len(opened) <= 3, "who has one table has a catalog of its own"


def test_new_tables_are_found_and_dropped_ones_are_not(
    lake: SqlCatalog, config: Config, opened: list[Catalog]
) -> None:
    held = wiring.open_dataset("iceberg://lake/db.t0", config, waiting=SHARED)
    lake.create_table("db.new", SCHEMA)
    lake.drop_table("db.t1")
    urls = found(config)
    assert "iceberg://lake/db.new" in urls
    assert "iceberg://lake/db.t1" not in urls
    assert len(opened) == 1
    assert held.url == "iceberg://lake/db.t0"


def test_a_catalog_that_is_away_is_found_out_once(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    is_back = Event()

    def load(name: str, given: Mapping[str, str]) -> object:
        asked.append(name)
        if is_back.is_set():
            return None
        raise requests.ConnectTimeout("no answer")

    monkeypatch.setattr(catalogs, "closed_catalog", load)
    away = replace(SHARED, max_s=0.5, dataset="iceberg://away")

    def fails() -> None:
        with pytest.raises(StoreUnavailable):
            catalogs.open_catalog("away", {"uri": "x"}, away)

    fails()
    first = len(asked)
    for _ in range(200):
        fails()
    assert len(asked) < first + 100, "not by these; something else looks now and then whether it is back"
    is_back.set()
    known = known_of(catalog_url("away"), {"uri": "x"})
    wait_until(lambda: not known.is_given_up)
