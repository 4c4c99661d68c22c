"""The dashboard's datasets (named ones and those of a fleet), the parts that each page shows, and their
cached values.

A dataset's id in paths is a hash of its URL: the same in every process, without secrets. Requests can only
name datasets of this dashboard.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from urllib.parse import parse_qs, unquote, urlsplit

from lithify.api.client import Dataset
from lithify.api.fleets import Fleet
from lithify.base.clock import Clock
from lithify.web.facts import DATASETS, FLEET, HISTORY, LAST, PLAN, STATUS, FleetDatasets, Rules
from lithify.web.readers import CachedPart, PagePart, PageReaders, PageSource

PER_PAGE = 100
MAX_QUERY_CHARS = 200
FIRST_PATIENCE_S = 0.1
"""How long a list of at most `FEW` datasets waits for parts that were never read; then it shows the parts
that are there, and is refreshed. A longer list does not wait: reading would compete with drawing it."""
FEW = 8
PATIENCE_S = 5.0
TABS: Mapping[str, tuple[str, tuple[PagePart, ...]]] = {
    "": ("Dataset", (STATUS, PLAN)),
    "running": ("Running", (STATUS,)),
    "plan": ("Plan", (PLAN,)),
    "history": ("History", (HISTORY,)),
    "failures": ("Failures", (STATUS,)),
}
"""The pages of a dataset: name and parts by the end of their path."""


@dataclass(frozen=True, slots=True)
class PageRequest:
    """The parts that a page shows, and how long it waits for them."""

    parts: list[tuple[PageSource, PagePart]]
    patience_s: float


@dataclass(frozen=True, slots=True)
class Listed:
    """One page of the list of datasets."""

    urls: Sequence[str]
    total: int
    page: int
    pages: int
    rules: Rules
    problem: str


class Dashboard:
    """The datasets and their cached parts."""

    def __init__(
        self,
        urls: Sequence[str],
        open_dataset: Callable[[str], Dataset],
        fleet: Fleet | None,
        clock: Clock,
        *,
        acted_on: Callable[[str], Dataset] | None = None,
    ) -> None:
        """`acted_on` opens a dataset for actions if `open_dataset` opens it only to read."""
        self.clock = clock
        self.fleet = fleet
        self._open = open_dataset
        self._acted_on = acted_on
        self._urls = {id_of(url): url for url in urls}
        self._of_fleet: tuple[Rules, dict[str, str]] = {}, {}
        """The fleet's datasets, and their URLs by id."""
        self._readers = PageReaders(clock)

    async def look(self, wanted: PageRequest) -> list[CachedPart | None]:
        """Return the cached parts, refreshed where that is due."""
        return await self._readers.look(wanted.parts, wanted.patience_s)

    def source(self, url: str) -> PageSource:
        open_to_act = None if self._acted_on is None else partial(self._acted_on, url)
        return self._readers.source(url, partial(self._open, url), Dataset.close, open_to_act)

    @property
    def fleet_source(self) -> PageSource:
        """The source of the fleet, which must exist."""
        fleet = self.fleet
        assert fleet is not None, "there is no fleet"
        return self._readers.source(None, lambda: fleet)

    async def url_of(self, dataset_id: str) -> str | None:
        """Return the URL of the dataset with that id, or `None`."""
        if dataset_id in self._urls or self.fleet is None:
            return self._urls.get(dataset_id)
        rules, _ = await self._rules()
        if rules is not self._of_fleet[0]:
            self._of_fleet = rules, {id_of(url): url for url in rules}
        return self._of_fleet[1].get(dataset_id)

    async def listed(self, query: str, page: int) -> Listed:
        """Return a page of the datasets whose URL contains `query`, ignoring case."""
        rules, problem = await self._rules()
        urls = list(dict.fromkeys([*self._urls.values(), *rules]))
        found = [url for url in urls if query.lower() in url.lower()]
        pages = max(1, -(-len(found) // PER_PAGE))
        page = min(max(page, 1), pages)
        shown = found[(page - 1) * PER_PAGE : page * PER_PAGE]
        return Listed(shown, len(found), page, pages, rules, problem)

    async def _rules(self) -> tuple[Rules, str]:
        if self.fleet is None:
            return {}, ""
        (seen,) = await self.look(PageRequest([(self.fleet_source, DATASETS)], PATIENCE_S))
        if seen is None:
            return {}, "the datasets of the fleet are still being listed"
        if not isinstance(seen.value, FleetDatasets):
            return {}, seen.error
        return seen.value.rules, seen.error or seen.value.problems

    # Parts of pages

    def wanted_of_list(self, listed: Listed) -> PageRequest:
        sources = [self.source(url) for url in listed.urls]
        patience_s = FIRST_PATIENCE_S if len(sources) <= FEW else 0.0
        return PageRequest([(s, part) for part in (STATUS, LAST) for s in sources], patience_s)

    def wanted_of_dataset(self, url: str, tab: str) -> PageRequest:
        source = self.source(url)
        return PageRequest([(source, part) for part in TABS[tab][1]], PATIENCE_S)

    def wanted_of_fleet(self) -> PageRequest:
        return PageRequest([(self.fleet_source, FLEET)], PATIENCE_S)

    async def wanted_at(self, address: str) -> PageRequest | None:
        """Return the parts for the page at this path and query; `None` if no page there is kept up to
        date."""
        try:
            parts = urlsplit(address)
        except ValueError:
            return None
        match [unquote(word) for word in parts.path.strip("/").split("/")]:
            case [""] | ["datasets"]:
                return self.wanted_of_list(await self.listed(*asked_of_list(parse_qs(parts.query))))
            case ["datasets", dataset_id, *tab] if len(tab) <= 1 and "".join(tab) in TABS:
                url = await self.url_of(dataset_id)
                return None if url is None else self.wanted_of_dataset(url, "".join(tab))
            case ["fleet"] | ["queues", _] if self.fleet is not None:
                return self.wanted_of_fleet()
            case _:
                return None

    def close(self) -> None:
        self._readers.close()


def id_of(url: str) -> str:
    return hashlib.sha256(url.encode("utf-8", "surrogatepass")).hexdigest()[:20]


def version_of(seen: Sequence[CachedPart | None]) -> str:
    """Return the version of all parts that a page shows."""
    told = "\n".join("–" if s is None else f"{s.version} {s.error}" for s in seen)
    return hashlib.sha256(told.encode("utf-8", "replace")).hexdigest()[:16]


def asked_of_list(query: Mapping[str, list[str]]) -> tuple[str, int]:
    """Return text and page number of a query for the list; an invalid page number counts as 1."""
    text = query.get("q", [""])[0][:MAX_QUERY_CHARS]
    number = query.get("page", ["1"])[0]
    return text, int(number) if number.isascii() and number.isdigit() and len(number) < 9 else 1
