"""Writing a snapshot that replaces data files by others with the same rows.

1. Removed files become DELETED entries; their manifests are rewritten with the remaining entries. Other
   manifests are reused, except those without a live file.
2. Added files get the data sequence number of the snapshot whose rows they have, not that of the commit: an
   equality delete that was committed in between has a higher one and still applies.
3. Dangling delete files and deletion vectors are removed too (`obsolete_deletes`).
4. In format version 3, added files have no first row id: their rows have ids of their own, or get them from
   the list (`manifest_list`). Entries that are written again have the id that they had inherited.

`write` writes manifests and their list without calling the catalog, and returns the commit for `publish`.
Nothing refers to these files before that.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from types import MappingProxyType

from pyiceberg.io import OutputFile
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriter,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import Record

from lithify.base.concurrency import all_of
from lithify.datasets.iceberg.errors import translated
from lithify.datasets.iceberg.format.entry_order import schema_for
from lithify.datasets.iceberg.format.listing import Listing, referenced_path
from lithify.datasets.iceberg.format.manifest_list import WrittenList, write_list
from lithify.datasets.iceberg.format.manifest_writer import SpecManifestWriter
from lithify.datasets.iceberg.format.manifests import ENTRY_VERSION, ContentKey, counted, is_vector, key_of
from lithify.datasets.iceberg.format.ownership import manifest_prefix, mark_of
from lithify.datasets.iceberg.format.partitions import Place, is_unpartitioned, place_of
from lithify.datasets.iceberg.format.publish import PreparedSnapshot, prepare
from lithify.datasets.iceberg.format.summary import replace_summary
from lithify.datasets.iceberg.format.table_properties import locations_of
from lithify.datasets.iceberg.model import NewFile

MAX_WRITERS = 8
"""The most manifests that are written concurrently."""


@dataclass(frozen=True, slots=True)
class Added:
    file: DataFile
    sequence_number: int | None
    """`None` for delete files that get the sequence number of the commit."""


@dataclass(slots=True)
class Replacement:
    removed: dict[ContentKey, ManifestEntry] = field(default_factory=dict)
    """Data files, delete files and deletion vectors. Only contents that the head lists once."""
    added: list[Added] = field(default_factory=list)


def data_file_of(new: NewFile, spec_id: int, partition: Record) -> DataFile:
    """Return the manifest's entry for a task's output."""
    file = DataFile.from_args(
        ENTRY_VERSION,
        content=DataFileContent.DATA,
        file_path=new.path,
        file_format=FileFormat.PARQUET,
        partition=partition,
        record_count=new.rows,
        file_size_in_bytes=new.size_bytes,
        column_sizes=dict(new.column_sizes),
        value_counts=dict(new.value_counts),
        null_value_counts=dict(new.null_value_counts),
        nan_value_counts=dict(new.nan_value_counts),
        lower_bounds=dict(new.lower_bounds),
        upper_bounds=dict(new.upper_bounds),
        key_metadata=None,
        split_offsets=list(new.split_offsets),
        equality_ids=None,
        sort_order_id=new.sort_order_id,
    )
    file.spec_id = spec_id
    return file


def obsolete_deletes(listing: Listing, replacement: Replacement) -> dict[ContentKey, ManifestEntry]:
    """Return the delete files that dangle once the replacement is committed.

    An equality delete file applies to data files of a lower sequence number, a position delete file also to
    those of the same one. If every data file it could apply to is newer, it is obsolete. No position delete
    can refer to an added file. A position delete file for a single data file is removed only with that file:
    readers apply it by path, in any partition. A deletion vector is obsolete if the table does not have its
    data file. A delete file that is listed more than once is kept: removing its path would remove every copy.
    """
    removed = replacement.removed
    deletes = list(listing.findable(DataFileContent.POSITION_DELETES, DataFileContent.EQUALITY_DELETES))
    if not deletes:
        return {}
    referenced = {referenced_path(entry.data_file) for entry in deletes}
    kept_referenced: set[str] = set()

    def kept() -> Iterator[tuple[DataFile, int]]:
        for entry in listing.entries(DataFileContent.DATA):
            file = entry.data_file
            if file.file_path in removed:
                continue
            if file.file_path in referenced:
                kept_referenced.add(file.file_path)
            yield file, entry.sequence_number or 0

    oldest_kept = _Oldest(kept())
    oldest = oldest_kept.and_also((added.file, added.sequence_number or 0) for added in replacement.added)
    specs = listing.metadata.specs()
    obsolete: dict[ContentKey, ManifestEntry] = {}
    for entry in deletes:
        file, number = entry.data_file, entry.sequence_number or 0
        if key_of(file) in listing.repeated:
            continue
        if file.content == DataFileContent.POSITION_DELETES:
            only = referenced_path(file)
            is_obsolete = only in removed or (
                only not in kept_referenced
                and (is_vector(file) or oldest_kept.in_partition_of(file) > number)
            )
        elif is_unpartitioned(specs[file.spec_id]):
            is_obsolete = oldest.anywhere() >= number
        else:
            is_obsolete = oldest.in_partition_of(file) >= number
        if is_obsolete:
            obsolete[key_of(file)] = entry
    return obsolete


class _Oldest:
    """The lowest sequence number of data files; infinite if there are none."""

    def __init__(
        self, files: Iterable[tuple[DataFile, int]], known: Mapping[Place, float] = MappingProxyType({})
    ) -> None:
        self._by_partition = dict(known)
        for file, number in files:
            key = place_of(file)
            self._by_partition[key] = min(self._by_partition.get(key, inf), number)

    def and_also(self, files: Iterable[tuple[DataFile, int]]) -> _Oldest:
        return _Oldest(files, self._by_partition)

    def in_partition_of(self, file: DataFile) -> float:
        return self._by_partition.get(place_of(file), inf)

    def anywhere(self) -> float:
        return min(self._by_partition.values(), default=inf)


def write(
    table: Table,
    branch: str,
    head: Listing,
    replacement: Replacement,
    properties: Mapping[str, str],
    now_ms: int,
) -> PreparedSnapshot:
    """Write the manifests of a snapshot on top of `head`; `properties` are added to its summary."""
    metadata = table.metadata
    writer = SnapshotWriter(table)
    with translated(f"writing a snapshot of {'.'.join(table.name())}"):
        writer.add(replacement.added)
        writer.remove(replacement.removed.values())
        for manifest, entries in head.manifests:
            writer.keep(manifest, entries, replacement.removed)
        for manifest in head.untouched:
            if manifest.has_added_files() or manifest.has_existing_files():
                writer.keep_whole(manifest)
        listed = writer.manifest_list(head.snapshot)
    summary = replace_summary(
        metadata,
        [entry.data_file for entry in replacement.removed.values()],
        [added.file for added in replacement.added],
        _files_after(head, replacement),
        properties,
    )
    written, snapshot_id = writer.written, writer.snapshot_id
    return prepare(table, branch, head.snapshot, snapshot_id, listed, summary, now_ms, written, written)


class SnapshotWriter:
    """Writes the manifests of one snapshot concurrently."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._metadata = table.metadata
        self._locations = locations_of(table.metadata, table.io.properties)
        self._name = manifest_prefix(mark_of(table.metadata), uuid.uuid4().hex)
        self.snapshot_id = table.metadata.new_snapshot_id()
        self.written: list[str] = []
        self._manifests: list[Callable[[], ManifestFile]] = []
        """In the order of the manifest list."""

    def new_path(self, suffix: str) -> str:
        path = self._locations.new_metadata_location(f"{self._name}-{suffix}.avro")
        self.written.append(path)
        return path

    def add(self, files: Sequence[Added]) -> None:
        groups: dict[tuple[int, ManifestContent], list[ManifestEntry]] = defaultdict(list)
        for added in files:
            groups[added.file.spec_id, _content_of(added.file)].append(
                ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED,
                    snapshot_id=self.snapshot_id,
                    sequence_number=added.sequence_number,
                    file_sequence_number=None,
                    data_file=added.file,
                )
            )
        for (spec, content), entries in groups.items():
            self._write(spec, content, entries)

    def remove(self, entries: Iterable[ManifestEntry]) -> None:
        groups: dict[tuple[int, ManifestContent], list[ManifestEntry]] = defaultdict(list)
        for entry in entries:
            deleted = _with_status(entry, ManifestEntryStatus.DELETED, self.snapshot_id)
            groups[entry.data_file.spec_id, _content_of(entry.data_file)].append(deleted)
        for (spec, content), removed in groups.items():
            self._write(spec, content, removed)

    def keep(
        self, manifest: ManifestFile, entries: Sequence[ManifestEntry], removed: Container[ContentKey]
    ) -> None:
        """Keep a manifest's entries that are not removed."""
        rest = [entry for entry in entries if key_of(entry.data_file) not in removed]
        if rest and len(rest) == len(entries):
            self.keep_whole(manifest)
        elif rest:
            existing = [_with_status(e, ManifestEntryStatus.EXISTING, e.snapshot_id) for e in rest]
            self._write(manifest.partition_spec_id, manifest.content, existing)

    def keep_whole(self, manifest: ManifestFile) -> None:
        self._manifests.append(partial(counted, self._table.io, manifest, self._metadata.format_version))

    def manifest_list(self, parent: Snapshot) -> WrittenList:
        """Write the manifests and their list."""
        manifests = all_of(self._manifests, MAX_WRITERS)
        path = self.new_path(f"snap-{self.snapshot_id}")
        output = self._table.io.new_output(path)
        return write_list(self._metadata, output, self.snapshot_id, parent.snapshot_id, manifests)

    def _write(self, spec_id: int, content: ManifestContent, entries: Sequence[ManifestEntry]) -> None:
        output = self._table.io.new_output(self.new_path(f"m{len(self.written)}"))

        def write() -> ManifestFile:
            with self._open(content, self._metadata.specs()[spec_id], output) as writer:
                for entry in entries:
                    writer.add_entry(entry)
            return writer.to_manifest_file()

        self._manifests.append(write)

    def _open(self, content: ManifestContent, spec: PartitionSpec, output: OutputFile) -> ManifestWriter:
        schema = schema_for(self._metadata, spec) or self._metadata.schema()
        version = self._metadata.format_version
        return SpecManifestWriter(content, spec, schema, output, self.snapshot_id, version)


def _content_of(file: DataFile) -> ManifestContent:
    return ManifestContent.DATA if file.content == DataFileContent.DATA else ManifestContent.DELETES


def _with_status(entry: ManifestEntry, status: ManifestEntryStatus, snapshot_id: int | None) -> ManifestEntry:
    return ManifestEntry.from_args(
        status=status,
        snapshot_id=snapshot_id,
        sequence_number=entry.sequence_number,
        file_sequence_number=entry.file_sequence_number,
        data_file=entry.data_file,
    )


def _files_after(head: Listing, replacement: Replacement) -> Iterable[DataFile]:
    for entry in head.entries(*DataFileContent):
        if key_of(entry.data_file) not in replacement.removed:
            yield entry.data_file
    yield from (added.file for added in replacement.added)
