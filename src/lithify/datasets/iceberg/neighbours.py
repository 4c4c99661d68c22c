"""Whether a place has files of one table only.

Nothing about a file that no metadata name says whose it is. So before any goes it must be sure that no other
table has files there:

1. Every other table of the catalog is looked at: where it lies, and where it writes data and metadata.
   One whose location is within the place, and that writes nowhere else in it, has a part of the place for
   itself, which is left alone. Of any other that shares the place, with this table or with what is under it,
   nobody can tell the files apart: `Refused`. The catalog is listed again until it has none that was not
   looked at: one that is renamed meanwhile is found under its new name.
2. The same goes for tables that the catalog does not know (any more) and whose metadata files lie in the
   place: they say themselves where the table lies.
   And for tables of Delta Lake and Hudi, which have a folder of their own there.
3. Metadata files of the table's own that it does not come from, by its log and theirs, were left by commits
   that failed, or a second catalog has the table too and goes its own way. What they name is named, however
   old they are: the second may not have changed for long.

Places that may be the same (`places`) count as the same. What another table
wrote to the place before it was told to write elsewhere cannot be seen, nor files that another table has
added without writing them (`add_files`).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil

from lithify.datasets.iceberg.catalogs import each_asked
from lithify.datasets.iceberg.errors import said, translated
from lithify.datasets.iceberg.listing import MAX_READERS
from lithify.datasets.iceberg.old_metadata import HEAD_BYTES, uuid_in
from lithify.datasets.iceberg.places import is_within, place_of
from lithify.datasets.iceberg.table_properties import WRITE_PATHS, properties_of
from lithify.errors import CorruptObject, Refused
from lithify.store.keys import url_of
from lithify.store.objects import ObjectMeta, ObjectStore

FOREIGN = {"_delta_log": "Delta Lake", ".hoodie": "Hudi"}
"""Folders of other formats, each beside the data of a table."""
MAX_LISTINGS = 10
"""Of the tables of a catalog, until there is none that was not looked at."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Another table, and where it has files; paths as `places.place_of` gives them."""

    name: str
    location: str
    writes: tuple[str, ...]


def neighbour(name: str, location: str, properties: Mapping[str, Any]) -> Neighbour:
    """Another table by what its metadata say."""
    root = location.rstrip("/")
    paths = [f"{root}/data", f"{root}/metadata"]
    paths += [str(properties[key]) for key in WRITE_PATHS if properties.get(key)]
    return Neighbour(name, place_of(root), tuple(dict.fromkeys(map(place_of, paths))))


def not_ours(place: str, others: Iterable[Neighbour], url: str) -> frozenset[str]:
    """Folders within the place that are other tables' alone (pure). `Refused` where one shares more."""
    found = set()
    for other in others:
        has_own = other.location != place and is_within(other.location, place)
        for path in other.writes:
            is_apart = not is_within(path, place) and not is_within(place, path)
            if not is_apart and not (has_own and is_within(path, other.location)):
                raise Refused(
                    f"{url}: {other.name} has its files in /{path}, and this table lies in /{place}; nobody "
                    "can tell whose a file is that no metadata name, so none is deleted"
                )
        if has_own:
            found.add(other.location)
    return frozenset(found)


def others_in(catalog: Catalog, own: tuple[str, ...]) -> Iterator[Neighbour]:
    """All other tables of a catalog. `Refused` where they cannot be looked at."""

    def load(identifier: tuple[str, ...]) -> Neighbour | None:
        name = ".".join(identifier)
        try:
            with translated(f"table {name}"):
                table = _none_if_gone(catalog, identifier)
        except Exception as error:
            raise Refused(
                f"table {name} of the same catalog cannot be read, so nobody can tell whether it has files "
                f"in the same place: {said(error)}"
            ) from error
        return None if table is None else neighbour(name, table.location, properties_of(table))

    seen = {own}
    for _ in range(MAX_LISTINGS):
        names = [name for name in _tables(catalog) if name not in seen]
        if not names:
            return
        loaded = each_asked(catalog, (partial(load, name) for name in names), MAX_READERS)
        for name, found in zip(names, loaded, strict=True):
            if found is not None:
                seen.add(name)
                yield found
    raise Refused(
        f"tables of the same catalog came and went {MAX_LISTINGS} times while they were looked at, so nobody "
        "can tell whether one has files in the same place; try again later"
    )


def _none_if_gone(catalog: Catalog, identifier: tuple[str, ...]) -> TableMetadata | None:
    try:
        return catalog.load_table(identifier).metadata
    except NoSuchTableError:
        return None


def _tables(catalog: Catalog) -> Iterator[tuple[str, ...]]:
    with translated("listing the tables of the catalog"):
        level = {tuple(name) for name in catalog.list_namespaces()}
        seen: set[tuple[str, ...]] = set()
        while level:
            seen |= level
            below: set[tuple[str, ...]] = set()
            asked = (partial(_inside, catalog, namespace) for namespace in sorted(level))
            for tables, namespaces in each_asked(catalog, asked, MAX_READERS):
                yield from tables
                below.update(namespaces)
            level = below - seen


def _inside(
    catalog: Catalog, namespace: tuple[str, ...]
) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """The tables and the namespaces directly in a namespace; none of what is not there (any more). A catalog
    may know no namespaces below others, and have tables all the same."""
    tables: list[tuple[str, ...]] = []
    try:
        tables += (tuple(name) for name in catalog.list_tables(namespace))
        return tables, [tuple(name) for name in catalog.list_namespaces(namespace)]
    except NoSuchNamespaceError:
        return tables, []


def foreign_table(path: str) -> Neighbour | None:
    """The table of another format that a file belongs to, by the folders it is in (pure)."""
    parts = path.split("/")
    for n, part in enumerate(parts[:-1]):
        if part in FOREIGN:
            root = "/".join(parts[:n])
            return Neighbour(f"a table of {FOREIGN[part]}", root, (root,))
    return None


# Metadata files


def is_metadata(key: str) -> bool:
    """Whether it is named like a metadata file of a table, or is a part of what tells which is the newest."""
    name = key.rpartition("/")[2]
    return ".metadata.json" in name or name.startswith("version-hint")


def is_whole_metadata(key: str) -> bool:
    """Whether it is named like a metadata file that can be read."""
    name = key.rpartition("/")[2]
    return name.endswith((".metadata.json", ".metadata.json.gz")) and not name.startswith(".")


def uuid_of(store: ObjectStore, meta: ObjectMeta) -> str:
    """Of which table a metadata file is, in one small request where that does. `CorruptObject` when it is
    none."""
    uuid = uuid_in(store.get_range(meta.key, 0, min(meta.size, HEAD_BYTES)))
    return uuid if uuid is not None else str(fields_of(store, meta.key).get("table-uuid"))


def log_of(store: ObjectStore, key: str) -> list[str]:
    """The metadata files that came before one, the oldest first. `CorruptObject` when it does not decode."""
    log = fields_of(store, key).get("metadata-log") or []
    try:
        return [str(entry["metadata-file"]) for entry in log]
    except (TypeError, KeyError) as error:
        raise CorruptObject(key, _what(error)) from error


def fields_of(store: ObjectStore, key: str) -> Mapping[str, Any]:
    """A metadata file. `CorruptObject` when it does not decode."""
    return _decoded(store, key)[1]


def metadata_of(store: ObjectStore, key: str) -> TableMetadata:
    """The same as PyIceberg reads it."""
    text, _ = _decoded(store, key)
    try:
        return TableMetadataUtil.parse_raw(text)
    except Exception as error:  # PyIceberg checks little of what it reads
        raise CorruptObject(key, _what(error)) from error


def _decoded(store: ObjectStore, key: str) -> tuple[str, Mapping[str, Any]]:
    data = store.get(key)
    try:
        text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode()
        fields = json.loads(text)
        if not isinstance(fields, dict):
            raise ValueError("it is no JSON object")
        return text, fields
    except (ValueError, OSError, EOFError, RecursionError) as error:
        raise CorruptObject(key, _what(error)) from error


def _what(error: Exception) -> str:
    return (
        f"does not decode as metadata of a table, so nobody can tell what it names: {said(error)}; delete it "
        "if nobody needs it"
    )


def stranger(store: ObjectStore, meta: ObjectMeta) -> Neighbour:
    """The table that a metadata file is of. It has, besides what it says, the folder that the file is in."""
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
