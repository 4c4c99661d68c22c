"""Garbage beside a table: what Lithify wrote and nothing refers to any more. One collection.

1. Read the ledger. What a compaction that has not ended may yet publish is needed.
2. List the files that have Lithify's names, under the table's places for data and for metadata.
3. Read the table, and the manifests of every snapshot it has. What any of them names is needed.
4. Everything else of these files is garbage once it is older than the minimum age. That age protects
   what was written after step 1, and the manifests of a commit that is under way; a commit takes seconds.
5. Old versions of the ledger and of the memory of chunks are garbage too, the newest `KEPT_VERSIONS`
   apart, and so are notes about compactions that have ended.

Only names that Lithify gives are looked at: what other programs leave behind is for them to clean up. A data
file that a snapshot named and none names now, because it expired, is unreachable for everybody.

Invariant: the ledger is read before the listing and the table after it, so a file that is published or
planned meanwhile is either too young or found to be needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import unquote, urlsplit

from pyiceberg.table import Table

from lithify.clock import Clock
from lithify.datasets.iceberg.catalogs import store_options
from lithify.datasets.iceberg.dataset import IcebergDataset
from lithify.datasets.iceberg.listing import ManifestCache, list_snapshot
from lithify.datasets.iceberg.replace import FILE_PREFIX
from lithify.errors import Refused
from lithify.store.objects import ObjectMeta, ObjectStore
from lithify.store.urls import open_store
from lithify.store.versions import VersionedFiles

DEFAULT_MIN_AGE_MS = 3_600_000
KEPT_VERSIONS = 10
_COMPACTION_OF = re.compile(rf"{FILE_PREFIX}([0-9A-Z]{{26}})-")


class Kind(StrEnum):
    """What is collected."""

    DATA = "data files"
    MANIFEST = "manifests"
    VERSION = "versions of the ledger and of the memory of chunks"
    NOTE = "notes about ended compactions"


@dataclass(frozen=True, slots=True)
class Garbage:
    """One object that nothing needs."""

    kind: Kind
    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Report:
    """What a collection deleted, or would delete."""

    dry_run: bool
    garbage: tuple[Garbage, ...]


def collect(
    dataset: IcebergDataset, clock: Clock, *, min_age_ms: int = DEFAULT_MIN_AGE_MS, dry_run: bool = True
) -> Report:
    """Find what nothing needs, and delete it unless told otherwise."""
    if min_age_ms < 0:
        raise Refused(f"the minimum age is {min_age_ms} ms; it cannot be negative")
    before_ms = clock.now_ms() - min_age_ms
    found: list[Garbage] = []
    for kind, store, meta in _files(dataset, before_ms):
        found.append(Garbage(kind, _path(store, meta), meta.size))
        if not dry_run:
            store.delete(meta.key)
    for files in dataset.numbered_files:
        found += _versions(dataset.store, files, before_ms, dry_run)
    found += _notes(dataset, dry_run)
    return Report(dry_run, tuple(found))


class TableCollector:
    """Collects the garbage of one table again and again, beside a coordinator."""

    def __init__(self, dataset: IcebergDataset, clock: Clock, *, interval_s: float = 3600.0) -> None:
        self._dataset = dataset
        self._clock = clock
        self._interval_s = interval_s

    def tick(self) -> float:
        """Collect; seconds until the next time."""
        collect(self._dataset, self._clock, dry_run=False)
        return self._interval_s

    def wait_s(self) -> float:
        """Seconds until the next time."""
        return self._interval_s


def _files(dataset: IcebergDataset, before_ms: int) -> Iterator[tuple[Kind, ObjectStore, ObjectMeta]]:
    ledger = dataset.ledger()
    active = {c.id for c in ledger.active()} if ledger is not None else set()
    locations = dataset.load().location_provider()
    places = {Kind.DATA: locations.data_path, Kind.MANIFEST: locations.metadata_path}
    listed: list[tuple[Kind, ObjectStore, str, ObjectMeta]] = []
    for kind, place in places.items():
        store, prefix = open_store(place, store_options(place, dataset.load().io.properties))
        for meta in store.list(prefix):
            owner = _owner_of(meta.key)
            if owner is not None and meta.last_modified_ms < before_ms and owner not in active:
                listed.append((kind, store, urlsplit(place).netloc, meta))
    needed = {_place_of(path) for path in referenced(dataset.load())} if listed else set()
    for kind, store, bucket, meta in listed:
        if (bucket, meta.key) not in needed:
            yield kind, store, meta


def referenced(table: Table) -> Iterator[str]:
    """Paths of all manifest lists, manifests, data and delete files that any snapshot names."""
    cache = ManifestCache()
    for snapshot in table.metadata.snapshots:
        yield snapshot.manifest_list
        for manifest, entries in list_snapshot(table, snapshot, cache).manifests:
            yield manifest.manifest_path
            yield from (entry.data_file.file_path for entry in entries)


def _owner_of(key: str) -> str | None:
    """The compaction that a file of Lithify's belongs to, empty for manifests; `None` for others' files.

    Some locations have a hash and a dash before the name."""
    name = key.rpartition("/")[2]
    position = name.find(FILE_PREFIX)
    if position < 0 or (position > 0 and name[position - 1] != "-"):
        return None
    match = _COMPACTION_OF.match(name, position)
    return match[1] if match is not None else ""


def _path(store: ObjectStore, meta: ObjectMeta) -> str:
    root = store.url
    return f"{root}{'' if root.endswith('/') else '/'}{meta.key}"


def _place_of(path: str) -> tuple[str, str]:
    parts = urlsplit(path)
    return parts.netloc, unquote(parts.path).strip("/")


def _versions(store: ObjectStore, files: VersionedFiles, before_ms: int, dry_run: bool) -> Iterable[Garbage]:
    ids = files.ids()[:-KEPT_VERSIONS]
    aged = [(version_id, store.head(files.key(version_id))) for version_id in ids]
    old = [(version_id, meta) for version_id, meta in aged if meta.last_modified_ms < before_ms]
    if old and not dry_run:
        files.advance_boundary(old[-1][0])
        for _, meta in old:
            store.delete(meta.key)
    return [Garbage(Kind.VERSION, _path(store, m), m.size) for _, m in old]


def _notes(dataset: IcebergDataset, dry_run: bool) -> Iterable[Garbage]:
    noted = dataset.journal.compactions()
    ledger = dataset.ledger()
    active = {c.id for c in ledger.active()} if ledger is not None else set()
    ended = sorted(noted - active)
    if not dry_run:
        for compaction_id in ended:
            dataset.journal.clear(compaction_id)
    return [Garbage(Kind.NOTE, compaction_id, 0) for compaction_id in ended]
