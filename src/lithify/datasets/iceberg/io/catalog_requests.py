"""Requests to a catalog, retried like those to a store (`lithify.store.resilience.requests`).

PyIceberg sends each request only once, without a timeout: its REST client repeats only requests that were not
authorised, its SQL client none. (Its Glue and DynamoDB clients are botocore's, which retry by themselves.)
So:

1. Reads are retried for as long as other reads, and the retries are logged. Reads of a REST catalog are also
   hedged, and cancelled after `READ_S`. Other catalogs read the table's metadata file within the same call,
   which is retried as a file (`fileio`); if that gives up, the call is not retried here.
2. A commit is sent once. The response of a REST catalog is awaited for at most `COMMIT_S`; after that the
   commit may still take effect, as when a response is lost. The committing code has to check (`commit`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.utils.config import Config, merge_config

from lithify.base.errors import StoreUnavailable
from lithify.datasets.iceberg.errors import translated
from lithify.store.resilience.requests import Requests
from lithify.store.resilience.waiting import WaitPolicy
from lithify.store.urls import known_of

READ_S = 30.0
COMMIT_S = 60.0
_OWN = "lithify.catalog-requests"
"""The key of the requests among a catalog's properties in this process."""

_T = TypeVar("_T")


def catalog_url(name: str) -> str:
    """Return the name of a catalog in place of a store's URL."""
    return f"catalog {name}"


def opened(
    name: str, properties: Mapping[str, str], waiting: WaitPolicy, open_it: Callable[[], Catalog]
) -> Catalog:
    """Return the result of `open_it`, which requests the configuration of the catalog with that name. From
    then on, `asked_catalog` and `asked_commit` retry or wait for its requests."""
    url = catalog_url(name)

    def probe() -> None:
        with translated(url):
            open_it()

    known = known_of(url, properties)
    requests = Requests(url, waiting, limit_s=READ_S, probe=probe, known=known)
    catalog = _asked(requests, url, open_it, is_rest=is_rest(configuration_of(name, properties)))
    catalog.properties[_OWN] = requests
    return catalog


def asked_catalog(catalog: Catalog, what: str, call: Callable[[], _T]) -> _T:
    """Return the result of `call`, which changes nothing. Errors are Lithify's."""
    requests = _requests(catalog)
    if requests is None:
        with translated(what):
            return call()
    return _asked(requests, what, call, is_rest=isinstance(catalog, RestCatalog))


def asked_commit(catalog: Catalog, what: str, call: Callable[[], _T]) -> _T:
    """Return the result of `call`, which is called once. After `StoreUnavailable`, it is unknown whether it
    took effect or will."""
    requests = _requests(catalog)

    def once() -> _T:
        with translated(what):
            return call()

    if requests is None or not isinstance(catalog, RestCatalog):
        return once()
    return requests.once(once, COMMIT_S)


def configuration_of(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the operator's configuration of a catalog; `given` overrides PyIceberg's configuration."""
    return dict(merge_config(Config().get_catalog_config(name) or {}, dict(given)))


def is_rest(configured: Mapping[str, Any]) -> bool:
    """Return whether PyIceberg opens a REST catalog with this configuration (pure)."""
    kind = configured.get("type")
    if "py-catalog-impl" in configured:
        return False
    return kind == "rest" or (not kind and str(configured.get("uri", "")).startswith("http"))


def without_requests(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return a catalog's properties without the entry of this process."""
    return {name: value for name, value in properties.items() if name != _OWN}


def _asked(requests: Requests, what: str, call: Callable[[], _T], *, is_rest: bool) -> _T:
    def ask() -> tuple[_T | None, StoreUnavailable | None]:
        with translated(what):
            try:
                return call(), None
            except StoreUnavailable as error:  # of a file, which was already retried
                return None, error

    answer, error = requests.read(ask) if is_rest else requests.repeated(ask)
    if error is not None:
        raise error
    return answer  # type: ignore[return-value]


def _requests(catalog: Catalog) -> Requests | None:
    found: Any = catalog.properties.get(_OWN)
    assert found is None or isinstance(found, Requests)
    return found
