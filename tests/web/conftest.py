"""Counts of requests, and a dashboard that reads whenever it may."""

from __future__ import annotations

import math
import threading
from collections import Counter
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from lithify.base import concurrency
from lithify.store.local import LocalStore
from lithify.web.readers import PageSource

REQUESTS = (
    "get",
    "get_with_meta",
    "get_range",
    "get_range_into",
    "get_buffer",
    "head",
    "list",
    "stream",
    "folder",
    "create",
    "put",
    "replace",
    "delete",
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many requests each thread has made: of any store, and of catalogs; and how often it had others make
    some."""
    counted: Counter[str] = Counter()

    def count(of: type[Any], name: str) -> None:
        method = getattr(of, name)

        def counting(self: Any, *given: Any, **named: Any) -> Any:
            counted[threading.current_thread().name] += 1
            return method(self, *given, **named)

        monkeypatch.setattr(of, name, counting)

    for name in REQUESTS:
        count(LocalStore, name)
    count(SqlCatalog, "load_table")
    start = concurrency.Background.start

    def starting(self: Any, action: Any) -> Any:
        counted[threading.current_thread().name] += 1
        return start(self, action)

    monkeypatch.setattr(concurrency.Background, "start", starting)
    return counted


@pytest.fixture
def always_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks has it read and rendered anew."""
    look = PageSource.look

    def look_anew(source: PageSource, *given: Any) -> Any:
        source._seen = {name: (-math.inf, 0.0, seen) for name, (_, _, seen) in source._seen.items()}
        return look(source, *given)

    monkeypatch.setattr(PageSource, "look", look_anew)
