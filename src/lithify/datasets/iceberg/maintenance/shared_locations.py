"""Checks whether a place has files of one table only.

Before unnamed files are deleted, it must be certain that they are not another table's:

1. The locations and write paths of all other tables of the catalog are read. A table whose location is within
   the place, and that writes nowhere else in it, has a folder of its own, which is left alone. Files of any
   other table that shares the place, or a folder in it, cannot be told from this table's: `Refused`. So is a
   table that cannot be read, unless the operator declares it unrelated (`iceberg.unrelated_tables`). The
   catalog is listed again until every table in it has been read, so a table renamed meanwhile is found under
   its new name.
2. The same applies to tables outside the catalog whose metadata files, which contain the location, lie in the
   place; and to tables of Delta Lake and Hudi, which have a folder of their own there.
3. Metadata files of the table that are in neither its log nor the logs of earlier ones were left by failed
   commits, or by a second catalog that continues the table separately. The files that they name are needed,
   however old: the second table may not have changed for long.

| run                                          | does                                                        |
|----------------------------------------------|-------------------------------------------------------------|
| removal of orphans                           | 1 to 3, all tables read anew                                |
| expiry, before it deletes files              | 1, with tables cached for up to `KNOWN_S`                   |
| collection of garbage, before it deletes     | 1, but only for a second name of the table: files of other  |
| files                                        | tables have other marks (`ownership`)                       |

The tables of a catalog are cached per process (`CatalogTables`): expiry runs every ten minutes, on catalogs
with thousands of tables. Names are listed anew nearly every time (`LISTED_S`), so a new table or second name
is read at once.

Places that may be the same (`places`) count as the same. Undetectable are files that another table wrote to
the place before its write path changed, or added without writing them (`add_files`).
"""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil

from lithify.base.clock import Clock
from lithify.base.errors import CorruptObject, Refused, StoreError, StoreUnavailable
from lithify.datasets.iceberg.errors import said, translated
from lithify.datasets.iceberg.format.fetching import MAX_READERS
from lithify.datasets.iceberg.format.old_metadata import HEAD_BYTES, uuid_in
from lithify.datasets.iceberg.format.table_properties import WRITE_PATHS, properties_of
from lithify.datasets.iceberg.io.catalogs import each_asked
from lithify.datasets.iceberg.io.places import is_within, place_of
from lithify.store.keys import url_of
from lithify.store.objects import ObjectMeta, ObjectStore

FOREIGN = {"_delta_log": "Delta Lake", ".hoodie": "Hudi"}
"""Folders that mark a table of another format."""
MAX_LISTINGS = 10
"""Maximum listings of a catalog until every table in it has been read."""
KNOWN_S = 3_600.0
"""How long another table's places are cached for an expiry; its files wait as long by default."""
UNREADABLE_S = 600.0
"""How long the failure to read a table is cached."""
LISTED_S = 60.0
"""How long the list of all tables is cached for an expiry."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Another table and its places, as paths of `places.place_of`."""

    name: str
    location: str
    writes: tuple[str, ...]
    uuid: str = ""


def neighbour(name: str, location: str, properties: Mapping[str, Any], uuid: str = "") -> Neighbour:
    """Return another table's places by its metadata."""
    root = location.rstrip("/")
    paths = [f"{root}/data", f"{root}/metadata"]
    paths += [str(properties[key]) for key in WRITE_PATHS if properties.get(key)]
    return Neighbour(name, place_of(root), tuple(dict.fromkeys(map(place_of, paths))), uuid)


def not_ours(place: str, others: Iterable[Neighbour], url: str) -> frozenset[str]:
    """Return folders in the place that only other tables use (pure). Raise `Refused` if one shares more."""
    found = set()
    for other in others:
        has_own = other.location != place and is_within(other.location, place)
        for path in other.writes:
            is_apart = not is_within(path, place) and not is_within(place, path)
            if not is_apart and not (has_own and is_within(path, other.location)):
                raise Refused(
                    f"{url}: {other.name} has its files in /{path}, and this table is in /{place}, so it is "
                    "unknown to which of the two a file belongs, and nothing is deleted; give each table "
                    "its own location, or drop the unused one from the catalog, without its files"
                )
        if has_own:
            found.add(other.location)
    return frozenset(found)


def check_one_name(place: str, uuid: str, others: Iterable[Neighbour], url: str) -> None:
    """Raise `Refused` if the catalog has the table under a second name (pure)."""
    for other in others:
        if other.uuid == uuid and other.location == place:
            raise Refused(
                f"{url}: {other.name} is the same table under a second name, and may need files that this "
                "one no longer refers to, so nothing is deleted; drop one of them from the catalog, without "
                "its files"
            )


_Name = tuple[str, ...]


class CatalogTables:
    """A cache of the tables of one catalog. Thread-safe: one thread reads, and others, which need the same
    answer, wait for it instead of reading the catalog too."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listed: tuple[float, list[_Name]] | None = None
        self._read: dict[_Name, tuple[float, Neighbour | Refused]] = {}

    def others(self, catalog: Catalog, own: _Name, clock: Clock, apart: Sequence[str]) -> list[Neighbour]:
        """Return all tables except `own`. Raise `Refused` if one cannot be read."""
        with self._lock:
            now_s = clock.monotonic_s()
            fresh = {name: one for name, (at_s, one) in self._read.items() if now_s - at_s < _kept_s(one)}
            listed = self._listed
            names = listed[1] if listed is not None and now_s - listed[0] < LISTED_S else None
            found, now_listed = _read_all(catalog, own, apart, fresh, names)
            if now_listed is not names:
                self._listed = now_s, now_listed
            self._read = {
                name: self._read[name] if fresh.get(name) is one else (now_s, one)
                for name, one in found.items()
            }
            return _readable(found, own)


def _kept_s(one: Neighbour | Refused) -> float:
    return KNOWN_S if isinstance(one, Neighbour) else UNREADABLE_S


_known: WeakKeyDictionary[Catalog, CatalogTables] = WeakKeyDictionary()
_known_lock = threading.Lock()


def known_in(catalog: Catalog) -> CatalogTables:
    """Return this process's cache of a catalog's tables."""
    with _known_lock:
        return _known.setdefault(catalog, CatalogTables())


def others_in(catalog: Catalog, own: _Name, apart: Sequence[str] = ()) -> list[Neighbour]:
    """Return all other tables of a catalog except those in `apart`, without the cache. Raise `Refused` if one
    cannot be read."""
    found, _ = _read_all(catalog, own, apart, {}, None)
    return _readable(found, own)


def _readable(found: Mapping[_Name, Neighbour | Refused], own: _Name) -> list[Neighbour]:
    others = []
    for name, one in found.items():
        if name == own:
            continue
        if isinstance(one, Refused):
            raise one
        others.append(one)
    return others


def _read_all(
    catalog: Catalog,
    own: _Name,
    apart: Sequence[str],
    known: Mapping[_Name, Neighbour | Refused],
    names: list[_Name] | None,
) -> tuple[dict[_Name, Neighbour | Refused], list[_Name]]:
    """Return every table, and the names in the catalog. Tables in `known` are not read again, and `own` is
    included only if it is among them. `names` is a recent listing, or `None`."""
    found: dict[_Name, Neighbour | Refused] = {}
    for _ in range(MAX_LISTINGS):
        if names is None:
            names = list(_tables(catalog, apart))
        found |= {name: known[name] for name in names if name in known}
        new = [name for name in names if name not in found and name != own]
        if not new:
            there = set(names)
            return {name: one for name, one in found.items() if name in there}, names
        loaded = each_asked(catalog, (partial(_load, catalog, name) for name in new), MAX_READERS)
        found |= {name: one for name, one in zip(new, loaded, strict=True) if one is not None}
        names = None
    raise Refused(
        f"tables of the same catalog were created or dropped {MAX_LISTINGS} times while they were read, so "
        "it is unknown whether one has files at the same location; try again later"
    )


def _load(catalog: Catalog, identifier: _Name) -> Neighbour | Refused | None:
    name = ".".join(identifier)
    try:
        with translated(f"table {name}"):
            table = _none_if_gone(catalog, identifier)
    except Exception as error:  # whatever the error, the table cannot be read
        return Refused(
            f"table {name} of the same catalog cannot be read, so it is unknown whether it has files at the "
            f"same location; repair or drop it, or name it in iceberg.unrelated_tables: {said(error)}"
        )
    if table is None:
        return None
    return neighbour(name, table.location, properties_of(table), str(table.table_uuid))


def _is_apart(name: Sequence[str], apart: Sequence[str]) -> bool:
    return any(fnmatchcase(".".join(name), pattern) for pattern in apart)


def _none_if_gone(catalog: Catalog, identifier: tuple[str, ...]) -> TableMetadata | None:
    try:
        return catalog.load_table(identifier).metadata
    except NoSuchTableError:
        return None


def _tables(catalog: Catalog, apart: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the names of all tables, without listing namespaces that are wholly in `apart`."""
    wholly = [pattern.removesuffix(".*") for pattern in apart if pattern.endswith(".*")]
    try:
        with translated("listing the tables of the catalog"):
            level = {tuple(name) for name in catalog.list_namespaces()}
            seen: set[tuple[str, ...]] = set()
            while level:
                seen |= level
                below: set[tuple[str, ...]] = set()
                listed = sorted(name for name in level if not _is_apart(name, wholly))
                asked = (partial(_inside, catalog, namespace) for namespace in listed)
                for tables, namespaces in each_asked(catalog, asked, MAX_READERS):
                    yield from (name for name in tables if not _is_apart(name, apart))
                    below.update(namespaces)
                level = below - seen
    except StoreUnavailable:
        raise
    except StoreError as error:
        raise Refused(
            "the tables of the catalog cannot be listed, so it is unknown whether another one has files at "
            "the same location; name those that need not be listed in iceberg.unrelated_tables (other.*): "
            f"{error}"
        ) from error


def _inside(
    catalog: Catalog, namespace: tuple[str, ...]
) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """Return the tables and namespaces directly in a namespace; none if it does not exist. A catalog without
    nested namespaces may still have tables."""
    tables: list[tuple[str, ...]] = []
    try:
        tables += (tuple(name) for name in catalog.list_tables(namespace))
        return tables, [tuple(name) for name in catalog.list_namespaces(namespace)]
    except NoSuchNamespaceError:
        return tables, []


def foreign_table(path: str) -> Neighbour | None:
    """Return the table of another format that a file belongs to, by its folders (pure)."""
    parts = path.split("/")
    for n, part in enumerate(parts[:-1]):
        if part in FOREIGN:
            root = "/".join(parts[:n])
            return Neighbour(f"a {FOREIGN[part]} table", root, (root,))
    return None


# Metadata files


def is_metadata(key: str) -> bool:
    """Return whether a file is named like metadata of a table, or like a part of its version hints."""
    name = key.rpartition("/")[2]
    return ".metadata.json" in name or name.startswith("version-hint")


def is_whole_metadata(key: str) -> bool:
    """Return whether a file is named like a readable metadata file."""
    name = key.rpartition("/")[2]
    return name.endswith((".metadata.json", ".metadata.json.gz")) and not name.startswith(".")


def uuid_of(store: ObjectStore, meta: ObjectMeta) -> str:
    """Return the UUID of a metadata file's table, with one small request if possible. Raise `CorruptObject`
    if the file is no metadata file."""
    uuid = uuid_in(store.get_range(meta.key, 0, min(meta.size, HEAD_BYTES)))
    return uuid if uuid is not None else str(fields_of(store, meta.key).get("table-uuid"))


def log_of(store: ObjectStore, key: str) -> list[str]:
    """Return the log of a metadata file, the oldest first. Raise `CorruptObject` if it does not decode."""
    log = fields_of(store, key).get("metadata-log") or []
    try:
        return [str(entry["metadata-file"]) for entry in log]
    except (TypeError, KeyError) as error:
        raise CorruptObject(key, _what(error)) from error


def fields_of(store: ObjectStore, key: str) -> Mapping[str, Any]:
    """Return a metadata file's fields. Raise `CorruptObject` if it does not decode."""
    return _decoded(store, key)[1]


def metadata_of(store: ObjectStore, key: str) -> TableMetadata:
    """Return a metadata file parsed by PyIceberg. Raise `CorruptObject` if it does not decode."""
    text, _ = _decoded(store, key)
    try:
        return TableMetadataUtil.parse_raw(text)
    except Exception as error:  # PyIceberg hardly validates its input
        raise CorruptObject(key, _what(error)) from error


def _decoded(store: ObjectStore, key: str) -> tuple[str, Mapping[str, Any]]:
    data = store.get(key)
    try:
        text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode()
        fields = json.loads(text)
        if not isinstance(fields, dict):
            raise ValueError("it is not a JSON object")
        return text, fields
    except (ValueError, OSError, EOFError, RecursionError) as error:
        raise CorruptObject(key, _what(error)) from error


def _what(error: Exception) -> str:
    return (
        f"does not decode as metadata of a table, so it is unknown which files it refers to: {said(error)}; "
        "delete it if it is not needed"
    )


def stranger(store: ObjectStore, meta: ObjectMeta) -> Neighbour:
    """Return the table of a metadata file. Its places include the folder of that file."""
    fields = fields_of(store, meta.key)
    location = fields.get("location")
    if not isinstance(location, str) or not location:
        raise CorruptObject(meta.key, _what(ValueError("it has no location")))
    properties = fields.get("properties")
    found = neighbour(
        f"a table whose metadata are in {meta.key}",
        location,
        properties if isinstance(properties, dict) else {},
    )
    folder = place_of(url_of(store.url, meta.key.rpartition("/")[0]))
    return Neighbour(found.name, found.location, (*found.writes, folder))
