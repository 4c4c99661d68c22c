"""Requests to catalogs that fail and hang: what is made again, what is told, and what never is repeated."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import ForbiddenError
from pyiceberg.table import Table
from requests import exceptions as http
from sqlalchemy.exc import OperationalError

from lithify.base.errors import DatasetNotFound, StoreError, StoreUnavailable
from lithify.base.events import Event, StoreBack, WaitingForStore
from lithify.datasets.iceberg.errors import translated
from lithify.datasets.iceberg.io import catalog_requests
from lithify.datasets.iceberg.io.catalogs import load_table, open_catalog
from lithify.store.resilience import hedging
from lithify.store.resilience.waiting import WaitPolicy
from tests.datasets.iceberg.rest import serve_rest
from tests.datasets.iceberg.running import Steps, dataset_of
from tests.datasets.iceberg.tables import NAME, append, check, files_of, make_rows, new_table
from tests.store.flaky import Asked, Choose, Fault, first, proxy

FAULTS = [fault for fault in Fault if fault is not Fault.NONE]


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """What hangs is noticed soon."""
    monkeypatch.setattr(catalog_requests, "READ_S", 1.5)
    monkeypatch.setattr(catalog_requests, "COMMIT_S", 1.5)
    monkeypatch.setattr(hedging, "LOOK_S", 0.1)


@contextmanager
def far(
    catalog: SqlCatalog, choose: Choose, asked: list[Asked] | None = None, waiting: WaitPolicy | None = None
) -> Iterator[Catalog]:
    """The catalog, as a REST catalog behind a network that fails."""
    with serve_rest(catalog) as rest, proxy(rest.uri, choose, asked) as uri:
        yield open_catalog("far", {"type": "rest", "uri": uri}, waiting)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("within", ["/config", "/tables/"])
def test_what_is_read_survives(catalog: SqlCatalog, fault: Fault, within: str) -> None:
    table, asked = new_table(catalog), list[Asked]()
    with far(catalog, first(2, fault, "GET", within), asked) as rest:
        assert load_table(rest, NAME).metadata == table.metadata
    assert len([request for request in asked if within in request.path]) == 3


@pytest.mark.parametrize("fault", FAULTS)
def test_a_commit_survives_and_is_made_once(catalog: SqlCatalog, fault: Fault) -> None:
    table, asked = new_table(catalog), list[Asked]()
    rows = append(table, make_rows(10)) + append(table, make_rows(10))
    with far(catalog, first(1, fault, "POST", "/tables/"), asked) as rest:
        steps = Steps(dataset_of(table, catalog=rest))
        steps.schedule()
        steps.execute()
        assert steps.commit().committed
    assert len(files_of(table)) == 1
    check(table, rows)
    took_effect = fault in (Fault.RESET_AFTER, Fault.RESET_WITHIN, Fault.CLOSE_WITHIN, Fault.HANG_WITHIN)
    commits = [request for request in asked if request.method == "POST"]
    assert len(commits) == (1 if took_effect else 2)


def test_what_the_catalog_has_decided_is_not_asked_again(catalog: SqlCatalog) -> None:
    catalog.create_namespace("none")
    asked = list[Asked]()
    with far(catalog, lambda _: Fault.NONE, asked) as rest, pytest.raises(DatasetNotFound):
        load_table(rest, ("none", "such"))
    assert [request.path.rpartition("/")[2] for request in asked].count("such") == 1


def test_nobody_listens_and_that_is_told_and_the_cause_named_at_the_end() -> None:
    told: list[Event] = []
    properties = {"type": "rest", "uri": "http://127.0.0.1:1"}
    with pytest.raises(
        StoreUnavailable, match=r"catalog gone: connection refused.*waited for the store for \d s"
    ):
        open_catalog("gone", properties, WaitPolicy(4.5, "table", told.append))
    assert isinstance(told[0], WaitingForStore)
    assert (told[0].url, told[0].cause) == ("catalog gone", "connection refused")


def test_who_comes_back_waits_for_a_catalog_once_and_finds_it_back(catalog: SqlCatalog) -> None:
    new_table(catalog)
    is_away, is_back = threading.Event(), threading.Event()
    is_away.set()

    def tell(event: Event) -> None:
        if isinstance(event, StoreBack):
            is_back.set()

    def choose(_: Asked) -> Fault:
        return Fault.BUSY if is_away.is_set() else Fault.NONE

    waiting = WaitPolicy(4.5, "table", tell, comes_back=True)
    with serve_rest(catalog) as rest, proxy(rest.uri, choose) as uri:
        properties = {"type": "rest", "uri": uri}
        with pytest.raises(StoreUnavailable, match="waited for the store"):
            open_catalog("far", properties, waiting)
        with pytest.raises(StoreUnavailable, match=r"catalog far has been unavailable for \d s: 503"):
            open_catalog("far", properties, waiting)
        is_away.clear()
        assert is_back.wait(20)
        assert load_table(open_catalog("far", properties, waiting), NAME).name() == NAME


class Locked(SqlCatalog):
    """Fails some times when a table is to be loaded."""

    errors: list[Exception]
    loads = 0

    def load_table(self, identifier: str | tuple[str, ...]) -> Table:
        self.loads += 1
        if self.errors:
            raise self.errors.pop()
        return super().load_table(identifier)


@contextmanager
def locked(catalog: SqlCatalog, *errors: Exception, told: list[Event] | None = None) -> Iterator[Locked]:
    told = [] if told is None else told
    implementation = f"{__name__}.{Locked.__name__}"
    properties = {"py-catalog-impl": implementation, "uri": catalog.properties["uri"]}
    found = open_catalog("test", properties, WaitPolicy(60.0, "table", told.append))
    assert type(found).__name__ == Locked.__name__
    found.errors = list(errors)  # type: ignore[attr-defined]
    yield found  # type: ignore[misc]


def failed(said: str) -> OperationalError:
    return OperationalError("SELECT 1", {}, Exception(said))


def test_a_database_that_is_locked_or_away_is_asked_again(catalog: SqlCatalog) -> None:
    new_table(catalog)
    said = ("database is locked", "could not connect: Connection refused", "server closed the connection")
    with locked(catalog, *map(failed, said)) as found:
        assert load_table(found, NAME).name() == NAME
        assert found.loads == 4


def test_what_a_database_has_decided_is_not_asked_again(catalog: SqlCatalog) -> None:
    new_table(catalog)
    with locked(catalog, failed("no such table: iceberg_tables")) as found:
        with pytest.raises(StoreError, match="no such table"):
            load_table(found, NAME)
        assert found.loads == 1


def test_a_file_that_was_waited_for_is_not_waited_for_again(catalog: SqlCatalog) -> None:
    new_table(catalog)
    with locked(catalog, StoreUnavailable("metadata.json: away", "away")) as found:
        with pytest.raises(StoreUnavailable, match=r"metadata\.json"):
            load_table(found, NAME)
        assert found.loads == 1


def test_an_outage_is_told_until_it_is_over(catalog: SqlCatalog) -> None:
    new_table(catalog)
    told: list[Event] = []

    def choose(_: Asked) -> Fault:
        return Fault.NONE if told else Fault.BUSY

    with far(catalog, choose, None, WaitPolicy(60.0, "table", told.append)) as rest:
        assert load_table(rest, NAME).name() == NAME
    assert [type(event) for event in told] == [WaitingForStore, StoreBack]


@pytest.mark.parametrize(
    ("error", "is_doubtful"),
    [
        (http.SSLError("certificate verify failed"), True),
        (http.ConnectionError("Failed to resolve 'nowhere'"), True),
        (http.ConnectTimeout("slow"), False),
        (ForbiddenError("no"), None),
    ],
)
def test_which_errors_pass(error: Exception, is_doubtful: bool | None) -> None:
    with pytest.raises(StoreError) as caught, translated("x"):
        raise error
    found = caught.value.is_doubtful if isinstance(caught.value, StoreUnavailable) else None
    assert found == is_doubtful
