"""The files that a table's snapshots name, and whether they may be deleted once nothing names them.

1. A snapshot names its manifest list, the list its manifests, and these their live data and delete files. The
   table names statistics files, for a snapshot.
2. A file is needed if a named file may be the same (`places`). A name outside the table's location keeps
   every file with the same last part, since a folder may have two names. Names are held as hashes
   (`key_set`). Both may keep a file too many, but never lose one.
3. A file may be deleted if it surely lies under the table's location and outside Lithify's own folder, or if
   its name proves that Lithify wrote it for this table (`ownership`). Other files may be another table's:
   data paths can be shared, and files added from anywhere.
4. Manifests are decoded one by one, so memory grows by a few bytes with every file of a table.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import chain

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFileContent, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from lithify.base.documents import Count
from lithify.datasets.iceberg.deletes.key_set import KeySet
from lithify.datasets.iceberg.format.fetching import fetched_lists, fetched_manifests
from lithify.datasets.iceberg.format.manifest_scan import NO_COLUMN, slim_reader
from lithify.datasets.iceberg.format.manifests import ManifestLists, entries_in
from lithify.datasets.iceberg.format.ownership import OWN_FOLDER, marks_of, parse_name
from lithify.datasets.iceberg.io.places import canonical, followed_by_folder, is_inside, is_plain, keys_of


class FileKind(StrEnum):
    """Kinds of deleted files; the values are those of Iceberg's procedure for its counts."""

    DATA = "data_files"
    POSITION_DELETES = "position_delete_files"
    EQUALITY_DELETES = "equality_delete_files"
    MANIFEST = "manifest_files"
    MANIFEST_LIST = "manifest_lists"
    STATISTICS = "statistics_files"


_KINDS = {
    DataFileContent.DATA: FileKind.DATA,
    DataFileContent.POSITION_DELETES: FileKind.POSITION_DELETES,
    DataFileContent.EQUALITY_DELETES: FileKind.EQUALITY_DELETES,
}


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A file that metadata name."""

    path: str
    kind: FileKind
    size_bytes: Count


def is_deletable(path: str, metadata: TableMetadata) -> bool:
    """Return whether a file is surely the table's own, and can be deleted by its path (pure)."""
    if not is_plain(path):
        return False
    own = parse_name(path)
    if own is not None and own.mark in marks_of(metadata):
        return True
    location = metadata.location
    return is_inside(path, location) and not is_inside(path, f"{location.rstrip('/')}/{OWN_FOLDER}")


class Names:
    """The needed files, by any of their names. Short-lived: it caches the targets of local links."""

    def __init__(self, location: str) -> None:
        """`location` is the table's."""
        self._location = location.rstrip("/")
        self._root = f"{self._location}/"
        self._keys = KeySet()
        self._elsewhere = KeySet()
        """The last parts of paths outside the location."""
        self._follow = followed_by_folder()

    def add(self, path: str) -> None:
        keys = keys_of(path, self._follow)
        for key in keys:
            self._keys.add(key)
        if not path.startswith(self._root) and not is_inside(path, self._location):
            for key in keys:
                self._elsewhere.add(posixpath.basename(key))

    def has(self, path: str) -> bool:
        keys = keys_of(path, self._follow)
        return any(key in self._keys or posixpath.basename(key) in self._elsewhere for key in keys)


class Reached:
    """The files that a table's snapshots name; each snapshot is read once."""

    def __init__(self, location: str) -> None:
        """`location` is the table's."""
        self.names = Names(location)
        """All named files."""
        self._snapshots: set[int] = set()
        self._manifests: set[str] = set()

    def add(self, table: Table) -> None:
        """Read the snapshots that were not read before."""
        new = [s for s in table.metadata.snapshots if s.snapshot_id not in self._snapshots]
        manifests = {m.manifest_path: m for m in manifests_in(table.io, new)}
        unread = [manifest for path, manifest in manifests.items() if path not in self._manifests]
        for path in (*manifests, *(snapshot.manifest_list for snapshot in new)):
            self.names.add(path)
        for file in chain(files_in(table.io, unread), (file for _, file in statistics_in(table.metadata))):
            self.names.add(file.path)
        self._manifests.update(manifests)
        self._snapshots.update(snapshot.snapshot_id for snapshot in new)


def only_named_by(table: Table, going: Iterable[int]) -> Iterator[NamedFile]:
    """Yield each file that nothing names once these snapshots are gone, once. A missing manifest is skipped:
    another program deleted it, and probably its files."""
    gone = set(going)
    metadata = table.metadata
    leaving = [s for s in metadata.snapshots if s.snapshot_id in gone]
    staying = [s for s in metadata.snapshots if s.snapshot_id not in gone]
    kept = {m.manifest_path: m for m in manifests_in(table.io, staying)}
    sizes, lost = dict[str, int](), dict[str, ManifestFile]()
    for snapshot, size_bytes, found_in in _lists_in(table.io, leaving, may_miss=True):
        sizes[snapshot.manifest_list] = size_bytes
        lost |= {m.manifest_path: m for m in found_in if m.manifest_path not in kept}
    lists = (NamedFile(path, FileKind.MANIFEST_LIST, size_bytes) for path, size_bytes in sizes.items())
    manifests = (NamedFile(m.manifest_path, FileKind.MANIFEST, m.manifest_length) for m in lost.values())
    of_lost = files_in(table.io, lost.values(), may_miss=True)
    statistics = [file for snapshot_id, file in statistics_in(metadata) if snapshot_id in gone]
    named = Names(metadata.location)
    for path in (*kept, *(s.manifest_list for s in staying)):
        named.add(path)
    for snapshot_id, file in statistics_in(metadata):
        if snapshot_id not in gone:
            named.add(file.path)
    first = next(of_lost, None)
    if first is not None:
        for file in files_in(table.io, kept.values()):
            named.add(file.path)
    found = KeySet()
    for file in chain(() if first is None else (first,), of_lost, manifests, lists, statistics):
        if canonical(file.path) not in found and not named.has(file.path):
            found.add(canonical(file.path))
            yield file


def with_all_they_name(io: FileIO, files: Sequence[NamedFile]) -> list[NamedFile]:
    """Return these files, and all that the manifest lists among them name."""
    lists = [file.path for file in files if file.kind is FileKind.MANIFEST_LIST]
    manifests = {m.manifest_path: m for m in manifests_in(io, map(_with_list, lists), may_miss=True)}
    of_lists = files_in(io, list(manifests.values()), may_miss=True)
    named = (NamedFile(m.manifest_path, FileKind.MANIFEST, m.manifest_length) for m in manifests.values())
    return list({file.path: file for file in (*of_lists, *named, *files)}.values())


def _with_list(path: str) -> Snapshot:
    return Snapshot.model_validate(
        {"snapshot-id": 0, "sequence-number": 0, "timestamp-ms": 0, "manifest-list": path}
    )


def manifests_in(
    io: FileIO, snapshots: Iterable[Snapshot], *, may_miss: bool = False
) -> Iterator[ManifestFile]:
    """Yield the manifests of these snapshots; shared ones repeatedly. The caller must not change them."""
    for _, _, manifests in _lists_in(io, snapshots, may_miss=may_miss):
        yield from manifests


def _lists_in(
    io: FileIO, snapshots: Iterable[Snapshot], *, may_miss: bool
) -> Iterator[tuple[Snapshot, int, Sequence[ManifestFile]]]:
    """Yield each snapshot with the size of its manifest list in bytes, and its manifests."""
    lists = ManifestLists()
    for snapshot, fetched in fetched_lists(io, snapshots):
        try:
            data = fetched()
        except FileNotFoundError:
            if not may_miss:
                raise
            continue
        yield snapshot, len(data), lists.manifests(snapshot.manifest_list, data)


def files_in(io: FileIO, manifests: Iterable[ManifestFile], *, may_miss: bool = False) -> Iterator[NamedFile]:
    """Yield the live files of these manifests."""
    for manifest, fetched in fetched_manifests(io, manifests):
        try:
            data = fetched()
        except FileNotFoundError:
            if not may_miss:
                raise
            continue
        for entry in entries_in(manifest, data, reader_of=partial(slim_reader, column=NO_COLUMN)):
            file = entry.data_file
            yield NamedFile(file.file_path, _KINDS[file.content], file.file_size_in_bytes)


def statistics_in(metadata: TableMetadata) -> Iterator[tuple[int, NamedFile]]:
    """Yield statistics files, each with its snapshot's id."""
    for file in (*metadata.statistics, *metadata.partition_statistics):
        named = NamedFile(file.statistics_path, FileKind.STATISTICS, file.file_size_in_bytes)
        yield file.snapshot_id, named
