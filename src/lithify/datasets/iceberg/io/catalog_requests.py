"""Requests to a catalog, which are waited for like those to a store (`lithify.store.resilience.requests`).

PyIceberg itself asks each catalog but once, without any limit in time: its REST client repeats only what was
not authorised, its SQL client nothing. (Its Glue and DynamoDB clients are botocore's, which repeat by
themselves.) So:

1. What is read is repeated, for as long as other reads are, and told of. Of a REST catalog it is hedged too,
   and cut off after `READ_S`. Other catalogs read the table's metadata file within the same call, which is
   waited for as a file is (`fileio`); what that gives up is not repeated here.
2. A commit is asked once. Of a REST catalog its answer is waited for `COMMIT_S` at the most; it may take
   effect yet, like one whose answer was lost. Who commits has to look (`commit`).
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
"""Among the properties of a catalog in this process."""

_T = TypeVar("_T")


def catalog_url(name: str) -> str:
    """What a catalog is called where the URL of a store would stand."""
    return f"catalog {name}"


def opened(
    name: str, properties: Mapping[str, str], waiting: WaitPolicy, open_it: Callable[[], Catalog]
) -> Catalog:
    """What `open_it` gives, which asks the catalog of that name for its configuration. From then on
    `asked_catalog` and `asked_commit` wait for it."""
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
    """What `call` gives, which changes nothing. Errors are Lithify's."""
    requests = _requests(catalog)
    if requests is None:
        with translated(what):
            return call()
    return _asked(requests, what, call, is_rest=isinstance(catalog, RestCatalog))


def asked_commit(catalog: Catalog, what: str, call: Callable[[], _T]) -> _T:
    """Return what `call` gives, which is called once. After `StoreUnavailable` it is not known whether it
    took effect, or will."""
    requests = _requests(catalog)

    def once() -> _T:
        with translated(what):
            return call()

    if requests is None or not isinstance(catalog, RestCatalog):
        return once()
    return requests.once(once, COMMIT_S)


def configuration_of(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return how the operator has configured a catalog; `given` wins over PyIceberg's configuration."""
    return dict(merge_config(Config().get_catalog_config(name) or {}, dict(given)))


def is_rest(configured: Mapping[str, Any]) -> bool:
    """Whether PyIceberg opens a REST catalog with this configuration (pure)."""
    kind = configured.get("type")
    if "py-catalog-impl" in configured:
        return False
    return kind == "rest" or (not kind and str(configured.get("uri", "")).startswith("http"))


def without_requests(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Properties of a catalog as others know them."""
    return {name: value for name, value in properties.items() if name != _OWN}


def _asked(requests: Requests, what: str, call: Callable[[], _T], *, is_rest: bool) -> _T:
    def ask() -> tuple[_T | None, StoreUnavailable | None]:
        with translated(what):
            try:
                return call(), None
            except StoreUnavailable as error:  # of a file, which has been waited for
                return None, error

    answer, error = requests.read(ask) if is_rest else requests.repeated(ask)
    if error is not None:
        raise error
    return answer  # type: ignore[return-value]


def _requests(catalog: Catalog) -> Requests | None:
    found: Any = catalog.properties.get(_OWN)
    assert found is None or isinstance(found, Requests)
    return found
