"""Catalogs that fall away and come back: a REST catalog behind a network, and one in a database that another
keeps for itself."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass

from tests.datasets.iceberg.rest import serve_rest
from tests.processes.lakes import Lake
from tests.store.flaky import Asked, Fault, proxy

VARIABLE = "PYICEBERG_CATALOG__LAKE__"


@dataclass(frozen=True)
class AwayCatalog:
    """The catalog of a lake."""

    environment: Mapping[str, str]
    """With which a process knows it."""
    fall_away: Callable[[], object]
    come_back: Callable[[], object]


@contextmanager
def _rest(lake: Lake, fault: Fault) -> Iterator[AwayCatalog]:
    is_away = threading.Event()

    def choose(_: Asked) -> Fault:
        return fault if is_away.is_set() else Fault.NONE

    with serve_rest(lake.catalog) as rest, proxy(rest.uri, choose) as uri:
        given = {f"{VARIABLE}TYPE": "rest", f"{VARIABLE}URI": uri}
        try:
            yield AwayCatalog({**lake.environment, **given}, is_away.set, is_away.clear)
        finally:
            is_away.clear()


@contextmanager
def _sql(lake: Lake) -> Iterator[AwayCatalog]:
    uri = str(lake.catalog.properties["uri"])
    path = uri.removeprefix("sqlite:///")
    # PyIceberg takes a database that is locked for one without tables first, and SQLite waits by itself.
    environment = {**lake.environment, f"{VARIABLE}URI": f"{uri}?timeout=0.2"}
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=60)) as other:

        def come_back() -> None:
            if other.in_transaction:
                other.rollback()

        try:
            yield AwayCatalog(environment, lambda: other.execute("BEGIN EXCLUSIVE"), come_back)
        finally:
            come_back()


HOW: Mapping[str, Callable[[Lake], AbstractContextManager[AwayCatalog]]] = {
    "REST, overloaded": lambda lake: _rest(lake, Fault.BUSY),
    "REST, hanging": lambda lake: _rest(lake, Fault.HANG),
    "SQL, locked": _sql,
}
"""Ways to be away."""
