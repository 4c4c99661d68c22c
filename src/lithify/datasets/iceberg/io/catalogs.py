"""Tables by URL: `iceberg://CATALOG/NAMESPACE.TABLE`.

CATALOG is a name in PyIceberg's own configuration (`.pyiceberg.yaml` or the environment variables
`PYICEBERG_CATALOG__NAME__…`), so Lithify reaches all catalogs that PyIceberg reaches, in the same way.
Additional properties override those of the configuration.

Lithify's own state of a table is under the table's location, accessed through Lithify's own object store
with the settings of the table's file access.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import quote, unquote, urlsplit
from weakref import WeakValueDictionary

import pyiceberg
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchPropertyException
from pyiceberg.table import Table
from pyiceberg.typedef import Properties

from lithify.base.concurrency import each_of
from lithify.base.errors import CorruptObject, Refused
from lithify.datasets.iceberg.errors import said
from lithify.datasets.iceberg.io.azure_accounts import of_account
from lithify.datasets.iceberg.io.catalog_requests import asked_catalog, catalog_url, opened
from lithify.datasets.iceberg.io.closed_catalogs import check_signing, closed_catalog
from lithify.datasets.iceberg.io.fileio import forget_metadata, lend, let_wait, waiting_of
from lithify.datasets.iceberg.io.reach import check_reach
from lithify.datasets.iceberg.io.vended import VendedCredentials, vended
from lithify.store.aws_profiles import PROFILE_OPTION
from lithify.store.objects import ObjectStore
from lithify.store.resilience.waiting import StoreOutage, WaitPolicy
from lithify.store.urls import (
    TOKEN_OPTION,
    known_of,
    open_store,
    settled_endpoint,
    split_scheme,
    split_url,
    with_wait,
)

SCHEME = "iceberg://"
TESTED_PYICEBERG = "0.12."
"""The tested version of PyIceberg. Manifests are read and written through parts that a new minor version may
change."""

_STORE_OPTIONS = {
    "s3.endpoint": "aws_endpoint",
    "s3.access-key-id": "aws_access_key_id",
    "s3.secret-access-key": "aws_secret_access_key",
    "s3.session-token": "aws_session_token",
    "s3.region": "aws_region",
    "s3.anonymous": "aws_skip_signature",
    "s3.profile-name": PROFILE_OPTION,
    "s3.force-virtual-addressing": "aws_virtual_hosted_style_request",
    "s3.proxy-uri": "proxy_url",
    "gcs.service.host": "google_base_url",
    "gcs.oauth2.token": TOKEN_OPTION,
    "adls.account-name": "azure_storage_account_name",
    "adls.account-key": "azure_storage_account_key",
    "adls.sas-token": "azure_storage_sas_key",
    "adls.tenant-id": "azure_storage_tenant_id",
    "adls.client-id": "azure_storage_client_id",
    "adls.client-secret": "azure_storage_client_secret",
}
"""PyIceberg's settings of file access, and obstore's names for them."""
_FALLBACKS = {
    "s3.access-key-id": "client.access-key-id",
    "s3.secret-access-key": "client.secret-access-key",
    "s3.session-token": "client.session-token",
    "s3.region": "client.region",
    "s3.profile-name": "client.profile-name",
}
"""PyIceberg's fallback properties, common to file access and catalog."""
_TIMES_S = {"s3.connect-timeout": "connect_timeout", "s3.request-timeout": "timeout"}
_ALLOW_HTTP = ("allow_http", "aws_allow_http", "google_allow_http", "azure_allow_http")
_PREFIXES = {
    "s3": "s3.",
    "s3a": "s3.",
    "s3n": "s3.",
    "gs": "gcs.",
    "az": "adls.",
    "abfs": "adls.",
    "abfss": "adls.",
}


AnswerT = TypeVar("AnswerT")

_FOR_THREADS = tuple(f"pyiceberg.catalog.{kind}" for kind in ("rest", "sql", "glue", "dynamodb"))
"""Catalogs whose clients are thread-safe; Hive's is not, and others are unknown."""


@dataclass(frozen=True, slots=True)
class _Gate:
    """A lock for opening one catalog, so that concurrent callers open it one at a time."""

    known: StoreOutage
    """The outage of the catalog, kept so that later callers know that it is unavailable."""
    lock: threading.Lock = field(default_factory=threading.Lock)


_gates: dict[tuple[str, frozenset[tuple[str, str]]], _Gate] = {}
_gates_lock = threading.Lock()
_catalogs: WeakValueDictionary[tuple[str, frozenset[tuple[str, str]], WaitPolicy], Catalog] = (
    WeakValueDictionary()
)


@dataclass(frozen=True, slots=True)
class TableUrl:
    """The parts of `iceberg://CATALOG/NAMESPACE.TABLE`."""

    catalog: str
    identifier: tuple[str, ...]

    def __str__(self) -> str:
        return f"{SCHEME}{self.catalog}/{'.'.join(self.identifier)}"


def parse_url(url: str) -> TableUrl:
    """Return the catalog and the identifier in a URL."""
    parts = split_url(url, url)
    names = tuple(unquote(name) for name in parts.path.strip("/").split("."))
    if f"{parts.scheme}://" != SCHEME or not parts.netloc or len(names) < 2 or not all(names):
        raise Refused(f"{url}: is not of the form {SCHEME}CATALOG/NAMESPACE.TABLE")
    return TableUrl(parts.netloc, names)


def open_catalog(
    name: str, properties: Mapping[str, str] | None = None, waiting: WaitPolicy | None = None
) -> Catalog:
    """Open the catalog of that name in PyIceberg's configuration. `properties` override the configuration;
    they may have the names of database options (`aws_endpoint`). `waiting` sets how requests to the catalog
    and to its tables' files are retried, and whether all callers that open it in the same way share one
    instance, which many threads may then use."""
    if not pyiceberg.__version__.startswith(TESTED_PYICEBERG):
        raise Refused(
            f"PyIceberg {pyiceberg.__version__} is installed, but Lithify was tested with "
            f"{TESTED_PYICEBERG}x only; install that version"
        )
    given = as_properties(properties or {})
    waiting = waiting if waiting is not None else WaitPolicy()
    return _shared(name, given, waiting) if waiting.is_shared else _new(name, given, waiting)


def _shared(name: str, given: dict[str, str], waiting: WaitPolicy) -> Catalog:
    """Return the catalog's shared instance, which may serve thousands of tables. While it is being opened,
    other callers wait, so only the first spends the time to find out that a catalog is unavailable."""
    settings = frozenset(given.items())
    with _gates_lock:
        gate = _gates.setdefault((name, settings), _Gate(known_of(catalog_url(name), given)))
    key = name, settings, waiting
    with gate.lock:
        catalog = _catalogs.get(key)
        if catalog is None:
            catalog = _new(name, given, waiting)
            if _is_for_threads(catalog):
                _catalogs[key] = catalog
        return catalog


def each_asked(catalog: Catalog, questions: Iterable[Callable[[], AnswerT]], most: int) -> Iterator[AnswerT]:
    """Yield the catalog's response to each request, in order, with at most `most` concurrent requests; one at
    a time if its client is not thread-safe, since two threads could get each other's responses."""
    return each_of(questions, most if _is_for_threads(catalog) else 1)


def _is_for_threads(catalog: Catalog) -> bool:
    return type(catalog).__module__ in _FOR_THREADS


def _new(name: str, given: dict[str, str], waiting: WaitPolicy) -> Catalog:
    try:
        catalog = opened(name, given, waiting, lambda: closed_catalog(name, given))
        _settle_endpoints(catalog)
        let_wait(catalog, waiting)
        _lend_warehouse(catalog)
        return catalog
    except (ValueError, NoSuchPropertyException) as error:
        raise Refused(
            f"catalog {name} cannot be opened; describe it in .pyiceberg.yaml, in PYICEBERG_CATALOG__"
            f"{re.sub('[^A-Z0-9]', '_', name.upper())}__URI, or give its properties: {error}"
        ) from error


def _lend_warehouse(catalog: Catalog) -> None:
    """Lend the store of the warehouse, so that the metadata of most tables need not be read through PyArrow
    first. A store that cannot be opened raises no error here; opening a table in it does."""
    root = "/".join(str(catalog.properties.get("warehouse", "")).split("/", 3)[:3])
    if root.startswith("s3"):
        with suppress(Refused):
            store, _ = open_place(root, catalog.properties)
            lend(store, catalog.properties)


def _settle_endpoints(catalog: Catalog) -> None:
    """Make PyIceberg and Lithify's own store use the same endpoints, and no forbidden ones, before the first
    object is read: PyIceberg knows neither the variables nor `allow_http`."""
    for root, key in (("s3://-", "s3.endpoint"), ("gs://-", "gcs.service.host"), ("az://-", None)):
        try:
            endpoint = settled_endpoint(root, store_options(root, catalog.properties))
        except Refused as error:
            raise Refused(f"catalog {catalog.name}: {error}") from error
        if key is not None and endpoint is not None:
            catalog.properties.setdefault(key, endpoint)


def load_table(catalog: Catalog, identifier: tuple[str, ...]) -> Table:
    """Load the table in its current state. Raise `CorruptObject` when its metadata cannot be decoded;
    PyIceberg checks little of them."""
    try:
        return _loaded(catalog, identifier)
    except CorruptObject:
        forget_metadata(catalog.properties)  # the operator may repair them
        raise


def _loaded(catalog: Catalog, identifier: tuple[str, ...]) -> Table:
    what = f"table {'.'.join(identifier)}"
    try:
        return asked_catalog(catalog, what, lambda: catalog.load_table(identifier))
    except (ValueError, TypeError, AttributeError, ArithmeticError, LookupError, RecursionError) as error:
        raise CorruptObject(
            what, f"its metadata do not decode: {type(error).__name__}: {said(error)}"
        ) from error


def store_of(table: Table) -> tuple[ObjectStore, str]:
    """Return Lithify's own store for the table's location, and the key of the table's root in it."""
    check_signing(table)
    return open_place(table.location(), table.io.properties, vended(table))


def open_place(
    location: str, properties: Properties, credentials: VendedCredentials | None = None
) -> tuple[ObjectStore, str]:
    """Return the store of a table's location, and the location's key in it. `credentials` are requested
    repeatedly and replace those in the properties, which may expire.

    Iceberg's locations are not URLs: a percent sign is a literal percent sign.
    """
    check_reach(location, properties)
    if "?" in location or "#" in location:
        raise Refused(f"{location}: PyIceberg cuts a location off at '?' and '#'; move the table to another")
    scheme, rest = split_scheme(location)
    if scheme is None and not location.startswith("/"):
        raise Refused(f"{location}: is relative, so it is another place for each process; move the table")
    if scheme == "file" and rest.startswith("//") and not rest.startswith("///"):
        raise Refused(f"{location}: names a host, which PyIceberg takes for a folder; write file:///path")
    url = location if scheme is None else f"{scheme}:{quote(rest, safe='/@:')}"
    return open_store(url, store_options(location, properties), waiting_of(properties), credentials)


def task_options(location: str, properties: Properties) -> dict[str, str]:
    """Return `store_options` for a task, with its time limits for waiting."""
    return with_wait(store_options(location, properties), waiting_of(properties))


def store_options(location: str, properties: Properties) -> dict[str, str]:
    """Return the options with which `open_store` reaches the same location as PyIceberg."""
    prefix = _PREFIXES.get(urlsplit(location).scheme)
    if prefix is None:
        return {}
    properties = of_account(location, properties)

    def value(key: str) -> str | None:
        found = properties.get(key) or properties.get(_FALLBACKS.get(key, ""))
        return str(found) if found else None

    options = {
        name: given
        for key, name in _STORE_OPTIONS.items()
        if key.startswith(prefix) and (given := value(key)) is not None
    }
    options |= {
        name: f"{round(float(given) * 1000)}ms"
        for key, name in _TIMES_S.items()
        if key.startswith(prefix) and (given := value(key)) is not None
    }
    options |= {name: str(properties[name]) for name in _ALLOW_HTTP if properties.get(name)}
    if prefix == "adls." and (endpoint := _azure_endpoint(properties)) is not None:
        options["azure_storage_endpoint"] = endpoint
    if "://" not in options.get("aws_endpoint", "://"):
        options["aws_endpoint"] = f"https://{options['aws_endpoint']}"  # as PyIceberg reads it
    return options


def _azure_endpoint(properties: Properties) -> str | None:
    """Return the endpoint to which PyIceberg (that is, Arrow) sends requests for Azure, if not to Azure."""
    authority, account = properties.get("adls.blob-storage-authority"), properties.get("adls.account-name")
    if not authority:
        return None
    scheme = properties.get("adls.blob-storage-scheme") or "https"
    path = f"{account}{authority}" if authority.startswith(".") else f"{authority}/{account}"
    return f"{scheme}://{path}"


def as_properties(options: Mapping[str, str]) -> dict[str, str]:
    """Rename options of a database's store to PyIceberg's properties; keep other options as they are."""
    names = {name: key for key, name in _STORE_OPTIONS.items()}
    return {names.get(name.lower(), name): value for name, value in options.items()}
