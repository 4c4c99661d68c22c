"""A catalog and the metadata of its tables in memory, and a program that adds files to a table.

The catalog checks the requirements of a commit and applies its updates, as any does. Manifests and manifest
lists are kept as values instead of Avro files (`manifests_in_memory`), which takes a hundredth of the time.
Data files are never read, so there are none: a manifest entry with bounds is all there is of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.conversions import to_bytes
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    _inherit_from_manifest,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import MetadataLogEntry, Operation, Snapshot, SnapshotLogEntry, Summary
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.typedef import Identifier, Record
from pyiceberg.types import LongType, NestedField, TimestamptzType

from lithify.datasets.iceberg.format import listing as listing_module
from lithify.datasets.iceberg.format import manifest_list as manifest_list_module
from lithify.datasets.iceberg.format import replace as replace_module
from lithify.datasets.iceberg.format.listing import ManifestCache, read_listing
from lithify.datasets.iceberg.format.replace import Added, Replacement

TIME_FIELD = 1
_TIME = TimestamptzType()
_SCHEMA = Schema(
    NestedField(TIME_FIELD, "event_time", _TIME, required=False),
    NestedField(2, "id", LongType(), required=False),
)
_UNASSIGNED = -1
"""Sequence number of a manifest that is in no list yet."""


class Lake(NoopCatalog):
    """The catalog, with everything that lies in it."""

    def __init__(self) -> None:
        super().__init__("lake")
        self.files = MemoryFiles()
        self._tables: dict[tuple[str, ...], tuple[TableMetadata, int]] = {}

    def create(self, identifier: tuple[str, ...], properties: Mapping[str, str], now_ms: int) -> Table:
        """A table of format version 2 with one snapshot, in which there is nothing."""
        location = "memory://lake/" + "/".join(identifier)
        properties = {"format-version": "2", **properties}
        empty = new_table_metadata(
            _SCHEMA, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, location, properties
        )
        path = f"{location}/metadata/snap-0.avro"
        self.files.lists[path] = ()
        first = Snapshot.model_validate(
            {
                "snapshot-id": 1,
                "sequence-number": 1,
                "timestamp-ms": now_ms,
                "manifest-list": path,
                "summary": Summary(Operation.APPEND),
                "schema-id": empty.current_schema_id,
            }
        )
        self._tables[identifier] = _with_snapshot(empty, first, ""), 1
        return self.load_table(identifier)

    def load_table(self, identifier: str | Identifier) -> Table:
        name = self.identifier_to_tuple(identifier)
        if name not in self._tables:
            raise NoSuchTableError(f"{name} does not exist")
        metadata, version = self._tables[name]
        return Table(name, metadata, _metadata_file(metadata, version), self.files, self)

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        metadata, version = self._tables[table.name()]
        for requirement in requirements:
            requirement.validate(metadata)
        before = _metadata_file(metadata, version)
        (snapshot,) = (update.snapshot for update in updates if isinstance(update, AddSnapshotUpdate))
        updated = _with_snapshot(metadata, snapshot, before)
        self._tables[table.name()] = updated, version + 1
        return CommitTableResponse.model_construct(
            metadata=updated, metadata_location=_metadata_file(updated, version + 1)
        )


def _metadata_file(metadata: TableMetadata, version: int) -> str:
    return f"{metadata.location}/metadata/{version:05}.metadata.json"


def _with_snapshot(metadata: TableMetadata, snapshot: Snapshot, before: str) -> TableMetadata:
    """The next state of a table. PyIceberg's own way copies all of it in depth, history included."""
    number = snapshot.sequence_number or 0
    log = list(metadata.metadata_log)
    if before:
        known = {"metadata-file": before, "timestamp-ms": metadata.last_updated_ms}
        log.append(MetadataLogEntry.model_validate(known))
    named = {"snapshot-id": snapshot.snapshot_id}
    head = SnapshotRef.model_validate({**named, "type": SnapshotRefType.BRANCH})
    entry = SnapshotLogEntry.model_validate({**named, "timestamp-ms": snapshot.timestamp_ms})
    return metadata.model_copy(
        update={
            "snapshots": [*metadata.snapshots, snapshot],
            "current_snapshot_id": snapshot.snapshot_id,
            "refs": {MAIN_BRANCH: head},
            "last_sequence_number": number,
            "last_updated_ms": snapshot.timestamp_ms,
            "snapshot_log": [*metadata.snapshot_log, entry],
            "metadata_log": log,
        }
    )


def add_files(table: Table, files: Sequence[DataFile], now_ms: int) -> None:
    """Append data files, in one snapshot."""
    head = read_listing(table, MAIN_BRANCH, ManifestCache())
    assert head is not None, "a table begins with a snapshot"
    number = table.metadata.next_sequence_number()
    replacement = Replacement(added=[Added(file, number) for file in files])
    prepared = replace_module.write(table, MAIN_BRANCH, head, replacement, {}, now_ms)
    table.catalog.commit_table(table, prepared.requirements, prepared.updates)


def data_file(path: str, start_us: int, end_us: int, size_bytes: int, rows: int) -> DataFile:
    """A file with rows from `start_us` to `end_us`."""
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=rows,
        file_size_in_bytes=size_bytes,
        null_value_counts={TIME_FIELD: 0},
        lower_bounds={TIME_FIELD: bound(start_us)},
        upper_bounds={TIME_FIELD: bound(end_us - 1)},
    )
    file.spec_id = 0
    return file


def bound(time_us: int) -> bytes:
    """A time as manifests have it."""
    return to_bytes(_TIME, time_us)


# Manifests as values


class MemoryFiles(FileIO):
    """Manifests and manifest lists by their paths."""

    def __init__(self) -> None:
        super().__init__()
        self.manifests: dict[str, Sequence[ManifestEntry]] = {}
        self.lists: dict[str, Sequence[ManifestFile]] = {}

    def new_input(self, location: str) -> InputFile:
        raise AssertionError(f"{location}: nothing reads bytes")

    def new_output(self, location: str) -> OutputFile:
        return _Output(location, self)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        path = location if isinstance(location, str) else location.location
        self.manifests.pop(path, None)
        self.lists.pop(path, None)


class _Output(OutputFile):
    def __init__(self, location: str, files: MemoryFiles) -> None:
        super().__init__(location)
        self.files = files

    def __len__(self) -> int:
        return 0

    def exists(self) -> bool:
        return False

    def to_input_file(self) -> InputFile:
        raise AssertionError(f"{self.location}: nothing reads bytes")

    def create(self, overwrite: bool = False) -> Any:
        raise AssertionError(f"{self.location}: nothing writes bytes")


class _ManifestWriter:
    """A manifest that is kept as its entries."""

    def __init__(
        self,
        content: ManifestContent,
        spec: PartitionSpec,
        schema: Schema,
        output: _Output,
        snapshot_id: int,
        version: int,
    ) -> None:
        self._content, self._spec_id, self._output = content, spec.spec_id, output
        self._snapshot_id = snapshot_id
        self._entries: list[ManifestEntry] = []

    def __enter__(self) -> _ManifestWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._output.files.manifests[self._output.location] = tuple(self._entries)

    def add_entry(self, entry: ManifestEntry) -> None:
        self._entries.append(entry)

    def to_manifest_file(self) -> ManifestFile:
        counts = {status: [e for e in self._entries if e.status == status] for status in ManifestEntryStatus}
        numbers = [e.sequence_number for e in self._entries if e.sequence_number is not None]
        return ManifestFile.from_args(
            manifest_path=self._output.location,
            manifest_length=1,
            partition_spec_id=self._spec_id,
            content=self._content,
            sequence_number=_UNASSIGNED,
            min_sequence_number=min(numbers, default=_UNASSIGNED),
            added_snapshot_id=self._snapshot_id,
            added_files_count=len(counts[ManifestEntryStatus.ADDED]),
            existing_files_count=len(counts[ManifestEntryStatus.EXISTING]),
            deleted_files_count=len(counts[ManifestEntryStatus.DELETED]),
            added_rows_count=sum(e.data_file.record_count for e in counts[ManifestEntryStatus.ADDED]),
            existing_rows_count=sum(e.data_file.record_count for e in counts[ManifestEntryStatus.EXISTING]),
            deleted_rows_count=sum(e.data_file.record_count for e in counts[ManifestEntryStatus.DELETED]),
            partitions=[],
            key_metadata=None,
        )


class _ListWriter:
    def __init__(self, output: _Output, sequence_number: int) -> None:
        self._output, self._number = output, sequence_number

    def __enter__(self) -> _ListWriter:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def add_manifests(self, manifests: Sequence[ManifestFile]) -> None:
        for manifest in manifests:
            if manifest.sequence_number == _UNASSIGNED:
                manifest.sequence_number = self._number
        self._output.files.lists[self._output.location] = tuple(manifests)


def _write_list(
    version: int, output: _Output, snapshot_id: int, parent_id: int | None, sequence_number: int, codec: str
) -> _ListWriter:
    return _ListWriter(output, sequence_number)


def _manifests_of(files: MemoryFiles, snapshot: Snapshot) -> list[ManifestFile]:
    return list(files.lists[snapshot.manifest_list])


def _live_entries(files: MemoryFiles, manifest: ManifestFile, spec: object = None) -> list[ManifestEntry]:
    entries = files.manifests[manifest.manifest_path]
    return [
        _inherit_from_manifest(entry, manifest)
        for entry in entries
        if entry.status != ManifestEntryStatus.DELETED
    ]


@contextmanager
def manifests_in_memory() -> Iterator[None]:
    """Whoever reads or writes manifests uses `MemoryFiles`, for as long as the context lasts."""
    with ExitStack() as stack:
        for module, name, value in (
            (replace_module, "SpecManifestWriter", _ManifestWriter),
            (manifest_list_module, "write_manifest_list", _write_list),
            (listing_module, "manifests_of", _manifests_of),
            (listing_module, "live_entries", _live_entries),
        ):
            stack.enter_context(mock.patch.object(module, name, value))
        yield
