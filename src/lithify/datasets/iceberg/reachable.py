"""Which files the snapshots of a table name, and which of them may be deleted once nothing names them.

1. A snapshot names its manifest list, that its manifests, those their live data and delete files. Statistics
   files are named by the table, for a snapshot.
2. Two paths count as the same file when they are alike but for the scheme, the bucket, percent signs, `//`
   and `..`, or when they are for the local file system and lead to the same place through links. A path also
   counts as what PyIceberg makes of it: it cuts at `#` and `?` and leaves tabs and line ends out. What lies
   outside the table's location under some name keeps every file of that last name, since a folder may have
   two names. One file too many is kept rather than one too few.
3. A file is the table's to delete when it lies under the table's location, outside Lithify's own folder, or
   when its name proves that Lithify wrote it for this table (`ownership`). What lies elsewhere may be another
   table's: a data path can be shared, and files can be added from anywhere.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from urllib.parse import unquote

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFileContent, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from lithify.datasets.iceberg.listing import MAX_READERS
from lithify.datasets.iceberg.manifests import live_entries, manifests_of
from lithify.datasets.iceberg.ownership import OWN_FOLDER, mark_of, parse_name
from lithify.store.together import each_of
from lithify.store.urls import split_scheme


class FileKind(StrEnum):
    """What of a table is deleted, by the names that Iceberg's procedure has for the counts."""

    DATA = "data_files"
    POSITION_DELETES = "position_delete_files"
    EQUALITY_DELETES = "equality_delete_files"
    MANIFEST = "manifest_files"
    MANIFEST_LIST = "manifest_lists"
    STATISTICS = "statistics_files"


_NOT_PLAIN = re.compile(r"[#?*\[\x00-\x1f]")
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
    size_bytes: int


def key_of(path: str) -> str:
    """What two paths of the same file have in common (pure)."""
    scheme, rest = split_scheme(path)
    if scheme not in (None, "file"):
        rest = rest.removeprefix("//").partition("/")[2]
    return posixpath.normpath(f"/{unquote(rest)}").lstrip("/")


def is_plain(path: str) -> bool:
    """Whether a path names the one file that it seems to name (pure). PyIceberg takes paths for URLs, and
    fsspec takes them for patterns."""
    return _NOT_PLAIN.search(path) is None


def is_deletable(path: str, metadata: TableMetadata) -> bool:
    """Whether a file is surely the table's own, and can be deleted by its path (pure)."""
    if not is_plain(path):
        return False
    own = parse_name(path)
    if own is not None and own.mark == mark_of(metadata):
        return True
    root, key = key_of(metadata.location), key_of(path)
    inside = path.startswith(f"{metadata.location.rstrip('/')}/") and key.startswith(f"{root}/")
    return inside and not key.startswith(f"{root}/{OWN_FOLDER}/")


class Names:
    """The files that are needed, whatever other names they have."""

    def __init__(self, location: str) -> None:
        """`location` is the table's."""
        self._root = f"{location.rstrip('/')}/"
        self._keys: set[str] = set()
        self._elsewhere: set[str] = set()
        """The last parts of paths outside the location."""

    def add(self, path: str) -> None:
        self._keys |= keys_of(path)
        if not path.startswith(self._root):
            self._elsewhere |= {posixpath.basename(key) for key in keys_of(path)}

    def has(self, path: str) -> bool:
        keys = keys_of(path)
        return not keys.isdisjoint(self._keys) or any(posixpath.basename(k) in self._elsewhere for k in keys)


def keys_of(path: str) -> set[str]:
    """All keys that a path may be of."""
    shortened = re.sub(r"[\t\r\n]", "", re.split("[#?]", path, maxsplit=1)[0]).strip()
    keys = {key_of(path), key_of(shortened)}
    scheme, rest = split_scheme(path)
    if scheme in (None, "file"):
        for name in (rest, split_scheme(shortened)[1]):
            keys.add(key_of(os.path.realpath(f"/{name.lstrip('/')}")))
    return keys


class Reached:
    """What snapshots of a table name, read once however often it is asked."""

    def __init__(self, location: str) -> None:
        """`location` is the table's."""
        self.names = Names(location)
        """All files that are named."""
        self._snapshots: set[int] = set()
        self._manifests: set[str] = set()

    def add(self, table: Table) -> None:
        """Read the snapshots that were not read before."""
        new = [s for s in table.metadata.snapshots if s.snapshot_id not in self._snapshots]
        manifests = {m.manifest_path: m for m in manifests_in(table.io, new)}
        unread = [manifest for path, manifest in manifests.items() if path not in self._manifests]
        for path in (*manifests, *(snapshot.manifest_list for snapshot in new)):
            self.names.add(path)
        for file in files_in(table.io, unread):
            self.names.add(file.path)
        for _, file in statistics_in(table.metadata):
            self.names.add(file.path)
        self._manifests.update(manifests)
        self._snapshots.update(snapshot.snapshot_id for snapshot in new)


def only_named_by(table: Table, going: Iterable[int]) -> list[NamedFile]:
    """What nothing will name once these snapshots are gone. Files of a manifest that is missing are not
    known: somebody deleted it, and probably them."""
    gone = set(going)
    metadata = table.metadata
    leaving = [s for s in metadata.snapshots if s.snapshot_id in gone]
    staying = [s for s in metadata.snapshots if s.snapshot_id not in gone]
    kept = {m.manifest_path: m for m in manifests_in(table.io, staying)}
    lost = {m.manifest_path: m for m in manifests_in(table.io, leaving, may_miss=True)}
    lost = {path: manifest for path, manifest in lost.items() if path not in kept}
    lists = (NamedFile(s.manifest_list, FileKind.MANIFEST_LIST, 0) for s in leaving)
    manifests = (NamedFile(m.manifest_path, FileKind.MANIFEST, m.manifest_length) for m in lost.values())
    of_lost = list(files_in(table.io, list(lost.values()), may_miss=True))
    statistics = [file for snapshot_id, file in statistics_in(metadata) if snapshot_id in gone]
    named = Names(metadata.location)
    for path in (*kept, *(s.manifest_list for s in staying)):
        named.add(path)
    for snapshot_id, file in statistics_in(metadata):
        if snapshot_id not in gone:
            named.add(file.path)
    if of_lost:
        for file in files_in(table.io, list(kept.values())):
            named.add(file.path)
    found = {file.path: file for file in (*of_lost, *manifests, *lists, *statistics)}
    return [file for file in found.values() if not named.has(file.path)]


def manifests_in(
    io: FileIO, snapshots: Sequence[Snapshot], *, may_miss: bool = False
) -> Iterator[ManifestFile]:
    """The manifests of these snapshots, those of several more than once."""

    def read(snapshot: Snapshot) -> list[ManifestFile]:
        try:
            return manifests_of(io, snapshot)
        except FileNotFoundError:
            if not may_miss:
                raise
            return []

    for found in each_of((partial(read, snapshot) for snapshot in snapshots), MAX_READERS):
        yield from found


def files_in(io: FileIO, manifests: Sequence[ManifestFile], *, may_miss: bool = False) -> Iterator[NamedFile]:
    """The live files of these manifests."""

    def read(manifest: ManifestFile) -> list[NamedFile]:
        try:
            entries = live_entries(io, manifest)
        except FileNotFoundError:
            if not may_miss:
                raise
            return []
        files = (entry.data_file for entry in entries)
        return [NamedFile(f.file_path, _KINDS[f.content], f.file_size_in_bytes) for f in files]

    for found in each_of((partial(read, manifest) for manifest in manifests), MAX_READERS):
        yield from found


def statistics_in(metadata: TableMetadata) -> Iterator[tuple[int, NamedFile]]:
    """Statistics files, with the snapshot that each is for."""
    for file in (*metadata.statistics, *metadata.partition_statistics):
        named = NamedFile(file.statistics_path, FileKind.STATISTICS, file.file_size_in_bytes)
        yield file.snapshot_id, named
