"""Listing a table: every live file of one snapshot with its bounds, its sequence number and its deletes.

1. Read the manifest list, then every manifest that is not in the cache: neither ever changes.
2. Assign position delete files to data files by path bounds, partition and sequence number, and equality
   delete files by partition and sequence number (`equality_deletes`), as readers do. A data file with a
   deletion vector has no other position deletes.
3. A path may be listed more than once, if a file was registered twice. Readers return its rows as often, and
   removing the path removes every copy. So such files are kept apart and never replaced.
4. If a table has more entries than the cache keeps, those of data files are not held: they are read slim at
   each iteration (`manifest_scan`), and decoded whole for the paths that a caller needs. Delete files are few
   and are listed whole.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property, partial

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table
from pyiceberg.table.delete_file_index import PATH_FIELD_ID, DeleteFileIndex
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import Record

from lithify.base.concurrency import all_of
from lithify.base.errors import CorruptObject
from lithify.datasets.iceberg.deletes.equality_deletes import EqualityDeletes
from lithify.datasets.iceberg.errors import translated
from lithify.datasets.iceberg.format.fetching import MAX_READERS
from lithify.datasets.iceberg.format.manifest_scan import NO_COLUMN, ManifestScan, WholeManifest
from lithify.datasets.iceberg.format.manifests import (
    ContentKey,
    ManifestKey,
    is_vector,
    key_of,
    live_entries,
    manifest_key,
    manifests_of,
    referenced_data_file,
)
from lithify.datasets.iceberg.format.partitions import place_of

MAX_CACHED_ENTRIES = 100_000
"""Manifest entries kept between listings; each takes a few kilobytes."""
MAX_CACHED_LISTS = 8
"""Manifest lists kept between listings: those of the head and of the planned snapshots."""

ListingKey = tuple[str, int]
"""A metadata file of the table, and the id of one of its snapshots."""


class ManifestCache:
    """A thread-safe LRU cache of live entries by manifest path, and the latest manifest lists and
    listings."""

    def __init__(self, max_entries: int = MAX_CACHED_ENTRIES) -> None:
        self.max_entries = max_entries
        self._kept: OrderedDict[ManifestKey, Sequence[ManifestEntry]] = OrderedDict()
        self._entries = 0
        self._lists: OrderedDict[str, Sequence[ManifestFile]] = OrderedDict()
        self._listings: OrderedDict[ListingKey, Listing] = OrderedDict()
        self._lock = threading.Lock()

    def manifests(self, io: FileIO, snapshot: Snapshot) -> Sequence[ManifestFile]:
        path = snapshot.manifest_list
        with self._lock:
            found = self._lists.get(path)
        if found is None:
            found = tuple(manifests_of(io, snapshot))
        with self._lock:
            self._lists[path] = found
            self._lists.move_to_end(path)
            while len(self._lists) > MAX_CACHED_LISTS:
                self._lists.popitem(last=False)
        return found

    def listing(self, key: ListingKey) -> Listing | None:
        with self._lock:
            return self._listings.get(key)

    def keep(self, key: ListingKey, listing: Listing) -> None:
        """Keep a listing. All kept listings together have at most `max_entries` entries, unless the newest
        alone has more."""
        with self._lock:
            self._listings[key] = listing
            kept = sum(map(_entries_in, self._listings.values()))
            while len(self._listings) > 1 and kept > self.max_entries:
                _, forgotten = self._listings.popitem(last=False)
                kept -= _entries_in(forgotten)

    def forget_list(self, snapshot: Snapshot) -> None:
        with self._lock:
            self._lists.pop(snapshot.manifest_list, None)

    def read(
        self, io: FileIO, manifests: Sequence[ManifestFile], specs: Mapping[int, PartitionSpec]
    ) -> list[Sequence[ManifestEntry]]:
        with self._lock:
            kept = {manifest_key(m): self._kept.get(manifest_key(m)) for m in manifests}
        missing = [m for m in manifests if kept[manifest_key(m)] is None]
        fetched: dict[ManifestKey, Sequence[ManifestEntry]] = {}
        if missing:
            reading = (partial(live_entries, io, m, specs[m.partition_spec_id]) for m in missing)
            read = all_of(reading, MAX_READERS)
            fetched = {manifest_key(m): entries for m, entries in zip(missing, read, strict=True)}
        found = {key: fetched[key] if entries is None else entries for key, entries in kept.items()}
        with self._lock:
            for key, entries in found.items():
                self._keep(key, entries)
        return [found[manifest_key(m)] for m in manifests]

    def _keep(self, key: ManifestKey, entries: Sequence[ManifestEntry]) -> None:
        if key not in self._kept:
            self._entries += len(entries)
        self._kept[key] = entries
        self._kept.move_to_end(key)
        while self._entries > self.max_entries and len(self._kept) > 1:
            _, forgotten = self._kept.popitem(last=False)
            self._entries -= len(forgotten)


def _entries_in(listing: Listing) -> int:
    return sum(len(entries) for _, entries in listing.manifests)


@dataclass(frozen=True)
class Listing:
    """All live entries of one snapshot."""

    metadata: TableMetadata
    snapshot: Snapshot
    manifests: Sequence[WholeManifest]
    """The manifests whose entries are held."""
    scan: ManifestScan | None = None
    """The other manifests, all of data files."""
    finds_scanned: bool = True
    """Whether entries of the scan can be found by path."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)
    """PyIceberg's index of deletes sorts itself at its first use."""

    def entries(self, *contents: DataFileContent) -> Iterator[ManifestEntry]:
        """Yield the live entries of these kinds; those of the scan are slim."""
        yield from self._held(*contents)
        if self.scan is not None and DataFileContent.DATA in contents:
            yield from self.scan

    def findable(self, *contents: DataFileContent) -> Iterator[ManifestEntry]:
        """Yield the live entries of these kinds that can be found by path."""
        return self.entries(*contents) if self.finds_scanned else self._held(*contents)

    def _held(self, *contents: DataFileContent) -> Iterator[ManifestEntry]:
        for _, entries in self.manifests:
            for entry in entries:
                if entry.data_file.content in contents:
                    yield entry

    @property
    def untouched(self) -> Sequence[ManifestFile]:
        """Manifests that are not among `manifests`, because no file in them was requested."""
        return () if self.scan is None else self.scan.manifests

    def only(self, paths: Set[str]) -> Listing:
        """Return a listing of these data files and of all deletes, perhaps of more files, whose entries are
        whole."""
        if self.scan is None:
            return self
        decoded, _ = self.scan.decode(self._with_deletes(paths))
        chosen = ((m, [e for e in entries if e.data_file.file_path in paths]) for m, entries in decoded)
        return Listing(self.metadata, self.snapshot, (*self.manifests, *chosen))

    def around(self, paths: Set[str]) -> Listing:
        """Return a listing of the same files in which these paths, and those of deletes, can be found, and
        all entries of their manifests are whole."""
        if self.scan is None:
            return self
        decoded, others = self.scan.decode(self._with_deletes(paths))
        manifests = (*self.manifests, *decoded)
        return Listing(self.metadata, self.snapshot, manifests, others, finds_scanned=False)

    def _with_deletes(self, paths: Set[str]) -> Set[str]:
        # A path may be listed as a delete file and as a data file.
        return paths | {entry.data_file.file_path for entry in self._held(*DataFileContent)}

    @cached_property
    def repeated(self) -> frozenset[ContentKey]:
        """Paths, and vectors, that are listed more than once, as any kind of file."""
        counts = Counter(key_of(entry.data_file) for entry in self.findable(*DataFileContent))
        return frozenset(key for key, count in counts.items() if count > 1)

    @cached_property
    def data(self) -> dict[str, ManifestEntry]:
        """The data files that can be named by their paths, by path."""
        entries = self.findable(DataFileContent.DATA)
        return {e.data_file.file_path: e for e in entries if e.data_file.file_path not in self.repeated}

    @cached_property
    def repeated_data(self) -> dict[str, Sequence[ManifestEntry]]:
        """The other data files, by path."""
        found: dict[str, list[ManifestEntry]] = {}
        for entry in self.findable(DataFileContent.DATA):
            if entry.data_file.file_path in self.repeated:
                found.setdefault(entry.data_file.file_path, []).append(entry)
        return dict(found)

    def has_data(self, path: str) -> bool:
        return path in self.data or path in self.repeated_data

    @cached_property
    def position_deletes(self) -> DeleteFileIndex:
        index = DeleteFileIndex()
        for entry in self.entries(DataFileContent.POSITION_DELETES):
            if not is_vector(entry.data_file):
                index.add_delete_file(entry, _partition(entry.data_file))
        return index

    @cached_property
    def vectors(self) -> Mapping[str, Sequence[ManifestEntry]]:
        """The deletion vectors, by the path of their data file, which may have only one."""
        found: dict[str, list[ManifestEntry]] = {}
        for entry in self.entries(DataFileContent.POSITION_DELETES):
            path = referenced_data_file(entry.data_file) if is_vector(entry.data_file) else None
            if path is not None:
                found.setdefault(path, []).append(entry)
        return found

    @cached_property
    def equality_deletes(self) -> EqualityDeletes:
        deletes = self.entries(DataFileContent.EQUALITY_DELETES)
        return EqualityDeletes(self.metadata, deletes, lambda: self.entries(DataFileContent.DATA))

    def deletes_of(self, entry: ManifestEntry) -> Collection[DataFile]:
        """Return the position delete files that apply to a data file, or its deletion vector, with which
        readers ignore them. Several vectors are returned only if it has several."""
        # PyIceberg calls files equal that have the same path, and so all vectors of a Puffin file.
        number, vectors = entry.sequence_number or 0, self.vectors.get(entry.data_file.file_path, ())
        applied = tuple(v.data_file for v in vectors if (v.sequence_number or 0) >= number)
        if applied:
            return applied
        with self._lock:
            return self.position_deletes.for_data_file(number, entry.data_file, _partition(entry.data_file))

    @cached_property
    def delete_file_count(self) -> int:
        kinds = (DataFileContent.POSITION_DELETES, DataFileContent.EQUALITY_DELETES)
        return sum(1 for _ in self.entries(*kinds))

    @staticmethod
    def is_only_for(delete_file: DataFile, data_file: DataFile) -> bool:
        """Return whether a file deletes only this data file's rows, by its reference or path bounds."""
        return referenced_path(delete_file) == data_file.file_path


def _partition(file: DataFile) -> Record:
    """Return the partition as PyIceberg's index of deletes compares it."""
    return Record(*place_of(file)[1])


def referenced_path(delete_file: DataFile) -> str | None:
    """Return the only data file that a position delete file refers to; `None` if there may be several."""
    if (path := referenced_data_file(delete_file)) is not None:
        return path
    low = (delete_file.lower_bounds or {}).get(PATH_FIELD_ID)
    high = (delete_file.upper_bounds or {}).get(PATH_FIELD_ID)
    return low.decode() if low is not None and low == high else None


def read_listing(table: Table, branch: str, cache: ManifestCache, column: int = NO_COLUMN) -> Listing | None:
    """Return the live entries of the branch's head; `None` if it has no snapshot yet."""
    snapshot = table.metadata.snapshot_by_name(branch)
    return None if snapshot is None else list_snapshot(table, snapshot, cache, column)


def list_snapshot(table: Table, snapshot: Snapshot, cache: ManifestCache, column: int = NO_COLUMN) -> Listing:
    """Return the live entries of one snapshot; the same object for the same table while it is cached. Slim
    entries have the bounds of `column`."""
    key = table.metadata_location, snapshot.snapshot_id
    found = cache.listing(key)
    if found is not None:
        return found
    manifests, specs = listed_manifests(table, snapshot, cache), table.metadata.specs()
    what = f"listing {'.'.join(table.name())}"
    is_kept = _listed_entries(manifests) <= cache.max_entries
    held = [m for m in manifests if is_kept or m.content == ManifestContent.DELETES]
    with translated(what):
        whole = tuple(zip(held, cache.read(table.io, held, specs), strict=True))
    if is_kept:
        found = Listing(table.metadata, snapshot, whole)
        cache.keep(key, found)
        return found
    scanned = [m for m in manifests if m.content != ManifestContent.DELETES]
    return Listing(table.metadata, snapshot, whole, ManifestScan(what, table.io, specs, scanned, column))


def _listed_entries(manifests: Iterable[ManifestFile]) -> int:
    """Return how many live files the manifest list counts."""
    return sum((m.added_files_count or 0) + (m.existing_files_count or 0) for m in manifests)


def listed_manifests(table: Table, snapshot: Snapshot, cache: ManifestCache) -> Sequence[ManifestFile]:
    """Return the manifests of one snapshot. Raise `CorruptObject` if they contradict the table."""
    with translated(f"listing {'.'.join(table.name())}"):
        manifests = cache.manifests(table.io, snapshot)
        try:
            check_listed(table, snapshot, manifests)
        except CorruptObject:
            cache.forget_list(snapshot)  # an operator may repair it
            raise
    return manifests


def check_listed(table: Table, snapshot: Snapshot, manifests: Sequence[ManifestFile]) -> None:
    """Raise `CorruptObject` if the manifests of a snapshot contradict the table."""
    unknown = {m.partition_spec_id for m in manifests} - table.metadata.specs().keys()
    if unknown:
        says = f"names a partition spec {min(unknown)}, which the table does not have"
        raise CorruptObject(snapshot.manifest_list, says)
    newest, own = max((m.sequence_number for m in manifests), default=0), snapshot.sequence_number or 0
    if newest > own:
        # Outputs get the sequence number of the planned snapshot. Deletes with a higher number that are
        # already applied to the inputs would apply to the outputs again.
        says = f"has a manifest with the sequence number {newest}, but its snapshot has {own}"
        raise CorruptObject(snapshot.manifest_list, says)
