"""The dashboard's datasets (named ones and those of a fleet), the parts that each page shows, and their
cached values.

The list counts and sorts all datasets by what was last read of each, which is kept for all of them
(`Known`). While a list is open, those that it does not show are read too, the stalest first, `SWEEP_PER_S`
a second.

A dataset's id in paths is a hash of its URL: the same in every process, without secrets. Requests can only
name datasets of this dashboard.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

from lithify.api.client import CommitRecord, Dataset
from lithify.api.fleets import Fleet
from lithify.base.clock import Clock
from lithify.base.errors import LithifyError, Refused
from lithify.datasets.registry import all_registered, registered_for
from lithify.fleet.catalog.model import Coordinates
from lithify.web.facts import (
    DATASETS,
    FLEET,
    HISTORY,
    LAST,
    PLAN,
    STATUS,
    FleetDatasets,
    FleetFacts,
    Rendered,
    Rules,
    Summary,
    summary_of,
)
from lithify.web.readers import CachedPart, PagePart, PageReaders, PageSource
from lithify.web.verdicts import UNREAD, DatasetLevel, DatasetVerdict, unreadable

PER_PAGE = 100
MAX_QUERY_CHARS = 200
FIRST_PATIENCE_S = 0.1
"""How long a list of at most `FEW` datasets waits for parts that were never read; then it shows the parts
that are there, and is refreshed. A longer list does not wait: reading would compete with drawing it."""
FEW = 8
PATIENCE_S = 5.0
SWEEP_PER_S = 5
"""How many datasets a second are read for the figures of an open list, besides those that it shows."""
SHARED_SWEEP_PER_S = 50
"""The same where the service in this process has read them already."""
SWEEP_AGE_MS = 20_000
"""The age from which on they are read again."""
TABS: Mapping[str, tuple[str, tuple[PagePart, ...]]] = {
    "": ("Dataset", (STATUS, PLAN, LAST)),
    "running": ("Running", (STATUS,)),
    "plan": ("Plan", (PLAN,)),
    "history": ("History", (HISTORY,)),
    "failures": ("Failures", (STATUS,)),
}
"""The pages of a dataset: name and parts by the end of their path."""


ATTENTION = "attention"
SORTS: Mapping[str, str] = {
    "": "as listed",
    "severity": "worst first",
    "name": "name",
    "work": "most work first",
    "backlog": "fullest backlog first",
    "age": "longest without a commit first",
}
"""The orders of the list, and their names."""
KINDS = tuple(kind.noun for kind in all_registered())


@dataclass(frozen=True, slots=True)
class ListQuery:
    """A query for the list: all parts are in its URL, which can be saved."""

    q: str = ""
    """A text that URLs contain, ignoring case."""
    state: str = ""
    """A `DatasetLevel`, or `attention` for all with a concern."""
    kind: str = ""
    tenant: str = ""
    sort: str = ""
    page: int = 1

    def path(self, *, page: int = 1, **changes: Any) -> str:
        """Return the path of the query, changed; without a new page, of its first page."""
        changed = replace(self, page=page, **changes)
        given = {name: getattr(changed, name) for name in ("q", "state", "kind", "tenant", "sort")}
        asked = {name: value for name, value in given.items() if value}
        if changed.page > 1:
            asked["page"] = str(changed.page)
        return "/datasets" + (f"?{urlencode(asked, errors='replace')}" if asked else "")


@dataclass(frozen=True, slots=True)
class Known:
    """A dataset as it was last read."""

    url: str
    tenant: str | None = None
    summary: Summary | None = None
    """`None` if it was never read."""
    verdict: DatasetVerdict = UNREAD
    error: str = ""
    read_ms: int = 0
    """The time of these facts; 0 for none."""
    tried_ms: int = 0
    """When it was last read, or a read failed."""
    last: CommitRecord | None = None
    """Its newest commit."""

    @property
    def id(self) -> str:
        return id_of(self.url)

    @property
    def last_ms(self) -> int | None:
        return None if self.last is None else self.last.at_ms

    @property
    def needs_attention(self) -> bool:
        return bool(self.verdict.concerns)


@dataclass(frozen=True, slots=True)
class PageRequest:
    """The parts that a page shows, and how long it waits for them."""

    parts: list[tuple[PageSource, PagePart]]
    patience_s: float
    swept: tuple[tuple[PageSource, PagePart], ...] = ()
    """Parts that are read for the figures of the list."""
    is_list: bool = False
    """Whether the page shows facts of all datasets."""


@dataclass(frozen=True, slots=True)
class Listed:
    """One page of the list of datasets."""

    shown: Sequence[Known]
    total: int
    """Of all pages."""
    page: int
    pages: int
    everything: Sequence[Known]
    """All datasets, whatever the query."""
    problem: str

    @property
    def attention(self) -> list[Known]:
        """The datasets with concerns, the most severe first."""
        return sorted((one for one in self.everything if one.needs_attention), key=_severity)

    def count(self, level: DatasetLevel) -> int:
        return sum(one.verdict.level is level for one in self.everything)

    def failing_tenants(self) -> list[tuple[str, int, int]]:
        """Return the tenants with failing or unreadable datasets, and how many, the most first."""
        found: dict[str, list[int]] = {one.tenant: [0, 0] for one in self.everything if one.tenant}
        for one in self.everything:
            if one.tenant:
                found[one.tenant][0] += one.verdict.level is DatasetLevel.FAILING
                found[one.tenant][1] += one.verdict.level is DatasetLevel.UNREADABLE
        bad = [(tenant, failing, away) for tenant, (failing, away) in found.items() if failing or away]
        return sorted(bad, key=lambda one: (-one[1], -one[2], one[0]))


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
        self._readers = PageReaders(clock, self._saw)
        self._known: dict[str, Known] = {}
        self._swept_s = clock.monotonic_s()

    async def look(self, wanted: PageRequest) -> list[CachedPart | None]:
        """Return the cached parts, refreshed where that is due."""
        if wanted.swept:
            await self._readers.look(list(wanted.swept), 0.0)
        return await self._readers.look(wanted.parts, wanted.patience_s)

    def version(self, wanted: PageRequest, seen: Sequence[CachedPart | None]) -> str:
        """Return the version of a page that shows these parts."""
        if not wanted.is_list:
            return version_of(seen)
        levels = "\n".join(f"{url} {known.verdict.level}" for url, known in self._known.items())
        return version_of(seen, levels)

    def _saw(self, url: str | None, part: PagePart, seen: CachedPart) -> None:
        """Record what the list shows of a dataset."""
        if url is None or part not in (STATUS, LAST):
            return
        known = self._known.get(url, Known(url))
        if part is LAST:
            self._known[url] = replace(known, last=seen.value)
            return
        rule = self._of_fleet[0].get(url)
        is_fleets = self.fleet is not None and rule is not None and rule.coordinates is Coordinates.FLEET
        summary = known.summary
        if isinstance(seen.value, Rendered):
            summary = summary_of(url, seen.value.facts, self.fleet.url if self.fleet and is_fleets else "")
        verdict = UNREAD if summary is None else summary.verdict
        if seen.error and not seen.is_pending:
            verdict = unreadable(url, seen.error, seen.at_ms)
        self._known[url] = replace(
            known,
            tenant=None if rule is None else rule.tenant_of(url),
            summary=summary,
            verdict=verdict,
            error="" if seen.is_pending else seen.error,
            read_ms=seen.at_ms,
            tried_ms=self.clock.now_ms(),
        )

    def known(self, url: str) -> Known:
        """Return what was last read of a dataset."""
        return self._known.get(url, Known(url))

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
        await self._rules()
        return self._of_fleet[1].get(dataset_id)

    async def listed(self, query: ListQuery) -> Listed:
        """Return a page of the datasets that match the query."""
        rules, problems = await self._rules()
        urls = dict.fromkeys([*self._urls.values(), *rules])
        for gone in self._known.keys() - urls.keys():
            del self._known[gone]
        everything = [self._known.get(url) or self._unread(url, rules) for url in urls]
        found = [one for one in everything if _matches(one, query)]
        if query.sort in _ORDERS:
            found.sort(key=_ORDERS[query.sort])
        pages = max(1, -(-len(found) // PER_PAGE))
        page = min(max(query.page, 1), pages)
        shown = found[(page - 1) * PER_PAGE : page * PER_PAGE]
        return Listed(shown, len(found), page, pages, everything, problems)

    def refreshed(self, listed: Listed) -> Listed:
        """Return the same page with what was read since."""
        shown = [self._known.get(one.url, one) for one in listed.shown]
        everything = [self._known.get(one.url, one) for one in listed.everything]
        return replace(listed, shown=shown, everything=everything)

    def _unread(self, url: str, rules: Rules) -> Known:
        rule = rules.get(url)
        self._known[url] = Known(url, None if rule is None else rule.tenant_of(url))
        return self._known[url]

    async def _rules(self) -> tuple[Rules, str]:
        """Return the datasets of the fleet, and what is wrong with them."""
        if self.fleet is None:
            return {}, ""
        (seen,) = await self.look(PageRequest([(self.fleet_source, DATASETS)], PATIENCE_S))
        if seen is None:
            return {}, "the datasets of the fleet are still being listed"
        if not isinstance(seen.value, FleetDatasets):
            return {}, seen.error
        rules = seen.value.rules
        if rules is not self._of_fleet[0]:
            self._of_fleet = rules, {id_of(url): url for url in rules}
        return rules, seen.error or seen.value.says

    def fleet_facts(self) -> tuple[FleetFacts | None, Mapping[str, LithifyError], Rules]:
        """Return the cached state of the fleet and of its datasets; `None` and empty if there is none."""
        if self.fleet is None:
            return None, {}, {}
        fleet, datasets = self.fleet_source.known(FLEET), self.fleet_source.known(DATASETS)
        status = fleet.value.facts if fleet is not None and fleet.value is not None else None
        found = datasets.value if datasets is not None else None
        return status, found.problems if found is not None else {}, found.rules if found is not None else {}

    # Parts of pages

    def wanted_of_list(self, listed: Listed) -> PageRequest:
        sources = [self.source(one.url) for one in listed.shown]
        patience_s = FIRST_PATIENCE_S if len(sources) <= FEW else 0.0
        parts = [(source, part) for part in (STATUS, LAST) for source in sources]
        if self.fleet is not None:
            parts.append((self.fleet_source, FLEET))
        return PageRequest(parts, patience_s, self._sweep(listed), is_list=True)

    def _sweep(self, listed: Listed) -> tuple[tuple[PageSource, PagePart], ...]:
        """Return the parts of the stalest other datasets, as many as are due since the last call."""
        now_s, now_ms = self.clock.monotonic_s(), self.clock.now_ms()
        per_s = SWEEP_PER_S if self._acted_on is None else SHARED_SWEEP_PER_S
        due = min(int((now_s - self._swept_s) * per_s), 4 * per_s)
        if not due:
            return ()
        self._swept_s = now_s
        shown = {one.url for one in listed.shown}
        stale = (one for one in listed.everything if now_ms - one.tried_ms > SWEEP_AGE_MS)
        others = sorted((one for one in stale if one.url not in shown), key=lambda one: one.tried_ms)
        return tuple((self.source(one.url), part) for one in others[:due] for part in (STATUS, LAST))

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
                return self.wanted_of_list(await self.listed(asked_of_list(parse_qs(parts.query))))
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


def version_of(seen: Sequence[CachedPart | None], more: str = "") -> str:
    """Return the version of all parts that a page shows, and of `more` facts."""
    told = "\n".join(["–" if s is None else f"{s.version} {s.error}" for s in seen] + [more])
    return hashlib.sha256(told.encode("utf-8", "replace")).hexdigest()[:16]


def asked_of_list(query: Mapping[str, list[str]]) -> ListQuery:
    """Return a query for the list; an invalid page number counts as 1, and other unknown values as none."""

    def given(name: str) -> str:
        return query.get(name, [""])[0][:MAX_QUERY_CHARS]

    number, state, kind, sort = given("page") or "1", given("state"), given("kind"), given("sort")
    return ListQuery(
        q=given("q"),
        state=state if state in (*DatasetLevel, ATTENTION) else "",
        kind=kind if kind in KINDS else "",
        tenant=given("tenant"),
        sort=sort if sort in SORTS else "",
        page=int(number) if number.isascii() and number.isdigit() and len(number) < 9 else 1,
    )


def kind_of(url: str) -> str:
    """Return the noun for the kind of a dataset; empty if its URL is of no kind."""
    try:
        return registered_for(url).noun
    except Refused:
        return ""


def _matches(one: Known, query: ListQuery) -> bool:
    return (
        query.q.lower() in one.url.lower()
        and (query.state in ("", one.verdict.level) or (query.state == ATTENTION and one.needs_attention))
        and (not query.tenant or query.tenant == one.tenant)
        and (not query.kind or query.kind == kind_of(one.url))
    )


def _severity(one: Known) -> tuple[int, bool, str]:
    return list(DatasetLevel).index(one.verdict.level), not one.needs_attention, one.url


def _fullness(one: Known) -> float:
    found = one.summary
    return 0.0 if found is None or not found.limit else (found.waiting or 0) / found.limit


_ORDERS: Mapping[str, Callable[[Known], Any]] = {
    "severity": _severity,
    "name": lambda one: one.url,
    "work": lambda one: -(one.summary.work_bytes if one.summary is not None else 0),
    "backlog": lambda one: -_fullness(one),
    "age": lambda one: one.last_ms or 0,
}
