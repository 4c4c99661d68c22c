"""The tables that match a pattern: `iceberg://catalog/namespace.*`.

The catalog gets one request for each namespace up to the first `*`, and one for each namespace below if
another level follows. Names that cannot be part of a URL are matched in their encoded form.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import partial
from urllib.parse import quote

from pyiceberg.catalog import Catalog

from lithify.base.errors import DatasetNotFound
from lithify.config.model import Config
from lithify.datasets.iceberg.io.catalog_requests import asked_catalog
from lithify.datasets.iceberg.io.catalogs import TableUrl, each_asked, open_catalog, parse_url
from lithify.store.resilience.waiting import WaitPolicy

MAX_READERS = 16
"""The number of namespaces that are listed concurrently."""


def tables(pattern: str, config: Config, waiting: WaitPolicy) -> list[str]:
    """Return the URLs of the matching tables, in order."""
    parsed = parse_url(pattern)
    catalog = open_catalog(parsed.catalog, config.store_options_of(pattern.partition("*")[0]), waiting)
    *levels, last = parsed.identifier
    found = _inside(catalog, _namespaces(catalog, levels), last, is_table=True)
    return sorted(str(TableUrl(parsed.catalog, tuple(map(_quoted, names)))) for names in found)


def _namespaces(catalog: Catalog, levels: Iterable[str]) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = [()]
    for level in levels:
        if "*" not in level:
            found = [(*namespace, level) for namespace in found]
            continue
        found = _inside(catalog, found, level, is_table=False)
    return found


def _inside(
    catalog: Catalog, namespaces: Sequence[tuple[str, ...]], pattern: str, *, is_table: bool
) -> list[tuple[str, ...]]:
    """List the direct children of these namespaces with matching names."""
    fits = _fits(pattern)
    asked = (partial(_names, catalog, namespace, is_table=is_table) for namespace in namespaces)
    names = zip(namespaces, each_asked(catalog, asked, MAX_READERS), strict=True)
    return [(*namespace, name) for namespace, found in names for name in found if fits.fullmatch(name)]


def _names(catalog: Catalog, namespace: tuple[str, ...], *, is_table: bool) -> list[str]:
    """List the direct children of a namespace, without the namespace's own name."""
    ask = catalog.list_tables if is_table else catalog.list_namespaces
    try:
        what = f"namespace {'.'.join(namespace) or 'of all'}"
        found = asked_catalog(catalog, what, lambda: list(ask(namespace)))
    except DatasetNotFound:  # the namespace
        return []
    return [names[-1] for names in found if len(names) == len(namespace) + 1]


def _fits(name: str) -> re.Pattern[str]:
    return re.compile(".+".join(re.escape(part) for part in name.split("*")))


def _quoted(name: str) -> str:
    return quote(name, safe="").replace(".", "%2E")
