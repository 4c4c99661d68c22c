"""Which files the snapshots of a table name, and which of them may be deleted once nothing names them.

1. A snapshot names its manifest list, that its manifests, those their live data and delete files. Statistics
   files are named by the table, for a snapshot.
2. Two paths count as the same file when they are alike but for the scheme, the bucket, percent signs, `//`
   and `..`, or when they are for the local file system and lead to the same place through links. A path also
   counts as what PyIceberg makes of it: it cuts at `#` and `?` and leaves tabs and line ends out. What lies
   outside the table's location under some name keeps every file of that last name, since a folder may have
   two names. One file too many is kept rather than one too few. So names are held as hashes (`key_set`):
   where two are alike, a file is kept that nobody needs, and none is lost.
3. A file is the table's to delete when it lies under the table's location, outside Lithify's own folder, or
   when its name proves that Lithify wrote it for this table (`ownership`). What lies elsewhere may be another
   table's: a data path can be shared, and files can be added from anywhere.
4. Lists and manifests are decoded one after the other, and of what they name only hashes are kept: so memory
   grows by a few bytes with every file of a table.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from urllib.parse import unquote

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFileContent, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from lithify.datasets.iceberg.fetching import fetched_lists, fetched_manifests
from lithify.datasets.iceberg.key_set import KeySet
from lithify.datasets.iceberg.manifests import ManifestLists, entries_in
from lithify.datasets.iceberg.ownership import OWN_FOLDER, mark_of, parse_name
from lithify.datasets.iceberg.slim_entries import NO_COLUMN, slim_reader
from lithify.store.urls import split_scheme


class FileKind(StrEnum):
    """What of a table is deleted, by the names that Iceberg's procedure has for the counts."""

    DATA = "data_files"
    POSITION_DELETES = "position_delete_files"
    EQUALITY_DELETES = "equality_delete_files"
    MANIFEST = "manifest_files"
    MANIFEST_LIST = "manifest_lists"
    STATISTICS = "statistics_files"


MAX_FOLDERS = 100_000
"""Local folders of which is remembered where they lead."""
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


Follow = Callable[[str], str]
"""Where a local path leads, through links."""


class Names:
    """The files that are needed, whatever other names they have. Short-lived: of local folders it remembers
    where they lead."""

    def __init__(self, location: str) -> None:
        """`location` is the table's."""
        self._root = f"{location.rstrip('/')}/"
        self._keys = KeySet()
        self._elsewhere = KeySet()
        """The last parts of paths outside the location."""
        self._follow = followed_by_folder()

    def add(self, path: str) -> None:
        keys = keys_of(path, self._follow)
        for key in keys:
            self._keys.add(key)
        if not path.startswith(self._root):
            for key in keys:
                self._elsewhere.add(posixpath.basename(key))

    def has(self, path: str) -> bool:
        keys = keys_of(path, self._follow)
        return any(key in self._keys or posixpath.basename(key) in self._elsewhere for key in keys)


def keys_of(path: str, follow: Follow = os.path.realpath) -> set[str]:
    """All keys that a path may be of."""
    shortened = path
    if not is_plain(path) or path != path.strip():
        shortened = re.sub(r"[\t\r\n]", "", re.split("[#?]", path, maxsplit=1)[0]).strip()
    keys = {key_of(name) for name in {path, shortened}}
    scheme, _ = split_scheme(path)
    if scheme in (None, "file"):
        for name in {path, shortened}:
            keys.add(key_of(follow(f"/{split_scheme(name)[1].lstrip('/')}")))
    return keys


def followed_by_folder() -> Follow:
    """As `os.path.realpath`, but looks at each folder only once."""
    real_folder = lru_cache(MAX_FOLDERS)(os.path.realpath)

    def follow(path: str) -> str:
        folder, name = os.path.split(path)
        if name in ("", ".", ".."):
            return os.path.realpath(path)
        real = f"{real_folder(folder)}/{name}"
        return os.path.realpath(path) if Path(real).is_symlink() else real

    return follow


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
        for file in chain(files_in(table.io, unread), (file for _, file in statistics_in(table.metadata))):
            self.names.add(file.path)
        self._manifests.update(manifests)
        self._snapshots.update(snapshot.snapshot_id for snapshot in new)


def only_named_by(table: Table, going: Iterable[int]) -> Iterator[NamedFile]:
    """What nothing will name once these snapshots are gone, each once. Files of a manifest that is missing
    are not known: somebody deleted it, and probably them."""
    gone = set(going)
    metadata = table.metadata
    leaving = [s for s in metadata.snapshots if s.snapshot_id in gone]
    staying = [s for s in metadata.snapshots if s.snapshot_id not in gone]
    kept = {m.manifest_path: m for m in manifests_in(table.io, staying)}
    lost = {m.manifest_path: m for m in manifests_in(table.io, leaving, may_miss=True)}
    lost = {path: manifest for path, manifest in lost.items() if path not in kept}
    lists = (NamedFile(s.manifest_list, FileKind.MANIFEST_LIST, 0) for s in leaving)
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
        if file.path not in found and not named.has(file.path):
            found.add(file.path)
            yield file


def with_all_they_name(io: FileIO, files: Sequence[NamedFile]) -> list[NamedFile]:
    """These files, and all that the manifest lists among them name."""
    lists = [file.path for file in files if file.kind is FileKind.MANIFEST_LIST]
    manifests = {m.manifest_path: m for m in manifests_in(io, map(_with_list, lists), may_miss=True)}
    of_lists = files_in(io, list(manifests.values()), may_miss=True)
    named = (NamedFile(m.manifest_path, FileKind.MANIFEST, m.manifest_length) for m in manifests.values())
    return list({file.path: file for file in (*of_lists, *named, *files)}.values())


def _with_list(path: str) -> Snapshot:
    """A snapshot of which nothing is known but its manifest list."""
    return Snapshot.model_validate(
        {"snapshot-id": 0, "sequence-number": 0, "timestamp-ms": 0, "manifest-list": path}
    )


def manifests_in(
    io: FileIO, snapshots: Iterable[Snapshot], *, may_miss: bool = False
) -> Iterator[ManifestFile]:
    """The manifests of these snapshots, those of several more than once. They are not to be changed."""
    lists = ManifestLists()
    for snapshot, fetched in fetched_lists(io, snapshots):
        try:
            data = fetched()
        except FileNotFoundError:
            if not may_miss:
                raise
            continue
        yield from lists.manifests(snapshot.manifest_list, data)


def files_in(io: FileIO, manifests: Iterable[ManifestFile], *, may_miss: bool = False) -> Iterator[NamedFile]:
    """The live files of these manifests."""
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
    """Statistics files, with the snapshot that each is for."""
    for file in (*metadata.statistics, *metadata.partition_statistics):
        named = NamedFile(file.statistics_path, FileKind.STATISTICS, file.file_size_in_bytes)
        yield file.snapshot_id, named
