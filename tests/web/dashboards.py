"""The dashboard as tests use it: in this process, without a server; and what it shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from unittest.mock import patch

from starlette.testclient import TestClient

import lithify
from lithify.api.client import Dataset
from lithify.base.clock import SystemClock
from lithify.base.ids import RandomIds
from lithify.coordination.leadership import Leadership
from lithify.testing import ManualClock
from lithify.web.app import application
from lithify.web.dashboard import PATIENCE_S, Dashboard, id_of
from tests.compacting import dataset_at
from tests.judge.official import Put, open_db
from tests.ledgers import take_epoch

TOKEN = "correct-horse-battery-staple"
BEARER = {"authorization": f"Bearer {TOKEN}"}
ORIGIN = {"origin": "http://localhost"}
NOW_MS = 1_700_000_000_000


def write_database(path: Path, flushes: int = 3) -> str:
    """A database with a few L0 SSTs that Lithify has coordinated once; its URL."""
    with open_db(path) as database:
        for n in range(flushes):
            database.write_batch([Put(b"k%02d" % k, b"%d" % n) for k in range(20)])
            database.flush()
    take_epoch(dataset_at(path))
    with Leadership(dataset_at(path), SystemClock(), RandomIds()).acquire(take_over=True):
        pass
    return str(path)


@contextmanager
def shown(
    urls: Sequence[str],
    *,
    token: str = "",
    fleet: lithify.Fleet | None = None,
    open_dataset: Callable[[str], Dataset] = lithify.open,
    acted_on: Callable[[str], Dataset] | None = None,
    clock: ManualClock | None = None,
) -> Iterator[TestClient]:
    """A dashboard of these, and a client of it that follows no redirects. It waits for what it lists, however
    busy the machine is."""
    clock = clock if clock is not None else ManualClock(NOW_MS)
    dashboard = Dashboard(urls, open_dataset, fleet, clock, acted_on=acted_on)
    client = TestClient(application(dashboard, token), base_url="http://localhost", follow_redirects=False)
    with (
        client,
        patch("lithify.web.dashboard.FIRST_PATIENCE_S", PATIENCE_S),
        patch("lithify.web.dashboard.PATIENCE_S", 6 * PATIENCE_S),
    ):
        yield client


def page_of(url: str, tab: str = "") -> str:
    """The path of a page of a dataset."""
    return f"/datasets/{id_of(url)}" + (f"/{tab}" if tab else "")


class _Reader(HTMLParser):
    """Tags with their attributes, and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def read(html: str) -> Any:
    """A page as tags and text."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    reader.text = " ".join(reader.text.split())
    return reader
