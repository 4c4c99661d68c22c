"""Tables by URL: `iceberg://CATALOG/NAMESPACE.TABLE`.

CATALOG is a name in PyIceberg's own configuration (`.pyiceberg.yaml` or the environment variables
`PYICEBERG_CATALOG__NAME__…`), so Lithify reaches all catalogs that PyIceberg reaches, in the same way.
Additional properties override those of the configuration.

Lithify's own state of a table is under the table's location, accessed through Lithify's own object store
with the settings of the table's file access.
"""

from __future__ import annotations

import difflib
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import unquote
from weakref import WeakValueDictionary

import pyiceberg
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchPropertyException
from pyiceberg.table import Table

from lithify.base.concurrency import each_of
from lithify.base.errors import CorruptObject, DatasetNotFound, Refused, Unsupported
from lithify.datasets.iceberg.errors import said, undecoded
from lithify.datasets.iceberg.format import nano_defaults as nano_defaults
from lithify.datasets.iceberg.io.catalog_requests import asked_catalog, catalog_url, opened
from lithify.datasets.iceberg.io.closed_catalogs import check_signing, closed_catalog
from lithify.datasets.iceberg.io.fileio import let_wait
from lithify.datasets.iceberg.io.stores import as_properties, forget_metadata, open_place, store_options
from lithify.datasets.iceberg.io.vended import vended
from lithify.store.objects import ObjectStore
from lithify.store.resilience.waiting import StoreOutage, WaitPolicy
from lithify.store.urls import known_of, settled_endpoint, split_url

SCHEME = "iceberg://"
TESTED_PYICEBERG = "0.12."
"""The tested version of PyIceberg. Manifests are read and written through parts that a new minor version may
change."""

_NAMES_SHOWN = 5

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
        raise Refused(f"{url}: does not have the form {SCHEME}CATALOG/NAMESPACE.TABLE")
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
        return catalog
    except (ValueError, NoSuchPropertyException) as error:
        variable = f"PYICEBERG_CATALOG__{re.sub('[^A-Z0-9]', '_', name.upper())}__URI"
        where = f"with --store-option uri=…, in {variable}, or in .pyiceberg.yaml"
        if str(error).startswith("URI missing"):
            raise Refused(f"catalog {name} is not configured: give its URI {where}") from error
        raise Refused(f"catalog {name} cannot be opened; give its properties {where}: {error}") from error


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
    except (CorruptObject, Unsupported):
        forget_metadata(catalog.properties)  # the operator may repair them
        raise


def _loaded(catalog: Catalog, identifier: tuple[str, ...]) -> Table:
    what = f"table {'.'.join(identifier)}"
    try:
        return asked_catalog(catalog, what, lambda: catalog.load_table(identifier))
    except DatasetNotFound as error:
        raise DatasetNotFound(f"{error}; {_names_beside(catalog, identifier)}") from error
    except (ValueError, TypeError, AttributeError, ArithmeticError, LookupError, RecursionError) as error:
        reason = f"its metadata do not decode: {type(error).__name__}: {said(error)}"
        raise undecoded(what, error, reason) from error


def _names_beside(catalog: Catalog, identifier: tuple[str, ...]) -> str:
    """Return the names of a catalog that the operator may have meant in place of a missing table."""
    *namespace, name = identifier
    try:
        parents = [".".join(found) for found in catalog.list_namespaces(tuple(namespace[:-1]))]
        if ".".join(namespace) not in parents:
            known = _listed(parents, namespace[-1])
            return f"catalog {catalog.name} has no namespace {'.'.join(namespace)}, but {known}"
        tables = [found[-1] for found in catalog.list_tables(tuple(namespace))]
    except Exception:  # advice about an error that counts more; catalogs raise anything here
        return "check the URL"
    return f"namespace {'.'.join(namespace)} of catalog {catalog.name} has {_listed(tables, name)}"


def _listed(names: Sequence[str], wanted: str) -> str:
    """Return a few of the names, those most like `wanted` first."""
    near = difflib.get_close_matches(wanted, names, _NAMES_SHOWN)
    shown = list(dict.fromkeys([*near, *sorted(names)]))[:_NAMES_SHOWN]
    more = f" and {len(names) - len(shown):,} more" if len(names) > len(shown) else ""
    return f"{', '.join(shown)}{more}" if shown else "none"


def store_of(table: Table) -> tuple[ObjectStore, str]:
    """Return Lithify's own store for the table's location, and the key of the table's root in it."""
    check_signing(table)
    return open_place(table.location(), table.io.properties, vended(table))
