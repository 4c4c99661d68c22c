"""A catalog with one table in memory.

Metadata are PyIceberg's, and PyIceberg applies what is committed; requirements are checked and updates
applied in one step, as any catalog does. Left out is only that PyIceberg copies all metadata in depth after
each commit. A manifest list is a sequence of manifests, a manifest a sequence of data files, a data file a
name: nothing reads their bytes. Former metadata files are kept as values.

There are two catalogs. The *exact* one checks requirements of any type (as those of PyIceberg do that write
the table's metadata themselves); the other one is a server behind the REST protocol, which knows Iceberg's
requirements only and, as Iceberg's own, passes over snapshots to be removed that are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.manifest import DataFileContent
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, SnapshotLogEntry, Summary
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    RemoveSnapshotsUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
    _apply_table_update,
    _TableMetadataUpdateContext,
    _update_table_metadata_log,
)
from pyiceberg.typedef import Identifier
from pyiceberg.types import LongType, NestedField

from lithify.base.ids import Ids
from simulator.core.fibers import FiberClock

IDENTIFIER = ("db", "t")
ROOT = "db/t"
"""Of the table, in the store."""
LOCATION = f"memory://lake/{ROOT}"
FIRST_SNAPSHOT = 1
_SCHEMA = Schema(NestedField(1, "id", LongType(), required=False))

ResultT = TypeVar("ResultT")


class Caller(Protocol):
    """A process, as far as it calls catalog and files."""

    clock: FiberClock
    files: FilesView

    @property
    def began_ms(self) -> int:
        """When what it does now began, by the right clock."""

    @property
    def now_ms(self) -> int:
        """By the right clock."""

    def call(self, what: str, action: Callable[[], ResultT]) -> ResultT: ...

    def commit(self, what: str, action: Callable[[], ResultT]) -> ResultT: ...

    def deletes(self, path: str) -> None:
        """Tell that it is about to delete a file."""

    def has_committed(
        self, began_ms: int, before: TableMetadata, after: TableMetadata, updates: tuple[TableUpdate, ...]
    ) -> None:
        """Tell that its commit took effect."""


class DataFile(NamedTuple):
    """What a manifest says of a data file."""

    file_path: str
    file_size_in_bytes: int = 1
    content: DataFileContent = DataFileContent.DATA


class Entry(NamedTuple):
    data_file: DataFile


class Manifest(NamedTuple):
    """What a manifest list says of a manifest."""

    manifest_path: str
    manifest_length: int = 1


@dataclass
class Files:
    """All files of the table by their paths."""

    lists: dict[str, tuple[Manifest, ...]] = field(default_factory=dict)
    manifests: dict[str, tuple[Entry, ...]] = field(default_factory=dict)
    data: set[str] = field(default_factory=set)
    former: dict[str, TableMetadata] = field(default_factory=dict)
    """Metadata files."""

    def names_of(self, list_path: str) -> frozenset[str]:
        """All that a manifest list names, itself included."""
        manifests = self.lists[list_path]
        data = (e.data_file.file_path for m in manifests for e in self.manifests[m.manifest_path])
        return frozenset((list_path, *(m.manifest_path for m in manifests), *data))

    def has(self, path: str) -> bool:
        return path in self.data or path in self.manifests or path in self.lists

    def remove(self, path: str) -> None:
        if not self.has(path):
            raise FileNotFoundError(path)
        self.lists.pop(path, None)
        self.manifests.pop(path, None)
        self.data.discard(path)


class Lake:
    """The table and its files, as they are."""

    def __init__(self, ids: Ids) -> None:
        self.files = Files()
        self.ids = ids
        self.metadata: TableMetadata = None  # type: ignore[assignment]  # until `create`
        self.location = ""
        self._version = 0

    def create(self, properties: dict[str, str], now_ms: int) -> None:
        """The table, of format version 2, with one snapshot in which there is nothing."""
        empty = new_table_metadata(
            _SCHEMA,
            UNPARTITIONED_PARTITION_SPEC,
            UNSORTED_SORT_ORDER,
            LOCATION,
            {"format-version": "2", **properties},
            table_uuid=self.ids.uuid(),
        )
        path = f"{LOCATION}/metadata/snap-first.avro"
        self.files.lists[path] = ()
        first = new_snapshot(empty, None, FIRST_SNAPSHOT, path, now_ms)
        updates = (AddSnapshotUpdate(snapshot=first), set_ref(MAIN_BRANCH, FIRST_SNAPSHOT))
        self.metadata = empty
        self._apply(updates, now_ms)

    def commit(
        self,
        caller: Caller,
        began_ms: int,
        requirements: Sequence[TableRequirement],
        updates: tuple[TableUpdate, ...],
        now_ms: int,
        *,
        is_exact: bool,
    ) -> None:
        """`began_ms`: when the caller began what has come to this."""
        for requirement in requirements:
            requirement.validate(self.metadata)
        if not is_exact:
            updates = tuple(self._of_those_there(update) for update in updates)
        before = self.metadata
        self._apply(updates, now_ms)
        caller.has_committed(began_ms, before, self.metadata, updates)

    def _of_those_there(self, update: TableUpdate) -> TableUpdate:
        if not isinstance(update, RemoveSnapshotsUpdate):
            return update
        there = {snapshot.snapshot_id for snapshot in self.metadata.snapshots}
        return RemoveSnapshotsUpdate.model_validate(
            {"snapshot-ids": [s for s in update.snapshot_ids if s in there]}
        )

    def _apply(self, updates: Sequence[TableUpdate], now_ms: int) -> None:
        old, new, context = self.metadata, self.metadata, _TableMetadataUpdateContext()
        for update in updates:
            new = _apply_table_update(update, new, context)
        if self.location:
            new = _update_table_metadata_log(new, self.location, old.last_updated_ms)
        if not any(isinstance(update, AddSnapshotUpdate) for update in updates):
            new = _at(new, old, now_ms)
        self._version += 1
        self.metadata = new
        self.location = f"{LOCATION}/metadata/{self._version:05}-{self.ids.uuid()}.metadata.json"
        self.files.former[self.location] = new


def _at(new: TableMetadata, old: TableMetadata, now_ms: int) -> TableMetadata:
    """Metadata as changed at a time of the simulation: PyIceberg asks the machine."""
    now_ms = max(now_ms, old.last_updated_ms)
    log = list(new.snapshot_log)
    if new.current_snapshot_id != old.current_snapshot_id:
        log[-1] = SnapshotLogEntry.model_validate(
            {"snapshot-id": log[-1].snapshot_id, "timestamp-ms": now_ms}
        )
    return new.model_copy(update={"last_updated_ms": now_ms, "snapshot_log": log})


def new_snapshot(
    metadata: TableMetadata, parent: int | None, snapshot_id: int, manifest_list: str, at_ms: int
) -> Snapshot:
    """A snapshot to be added."""
    return Snapshot.model_validate(
        {
            "snapshot-id": snapshot_id,
            "parent-snapshot-id": parent,
            "sequence-number": metadata.next_sequence_number(),
            "timestamp-ms": at_ms,
            "manifest-list": manifest_list,
            "summary": Summary(Operation.APPEND),
            "schema-id": metadata.current_schema_id,
        }
    )


def set_ref(
    name: str, snapshot_id: int, *, is_tag: bool = False, rules: Mapping[str, int | None] | None = None
) -> SetSnapshotRefUpdate:
    """A branch or a tag; `rules` are its own, by their names in JSON."""
    kind = SnapshotRefType.TAG if is_tag else SnapshotRefType.BRANCH
    return SetSnapshotRefUpdate.model_validate(
        {"ref-name": name, "type": kind, "snapshot-id": snapshot_id, **(rules or {})}
    )


class FilesView(FileIO):
    """The files as one process reaches them."""

    def __init__(self, files: Files, process: Caller) -> None:
        super().__init__()
        self.files = files
        self.process = process

    def new_input(self, location: str) -> InputFile:
        raise AssertionError(f"{location}: nothing reads bytes")

    def new_output(self, location: str) -> OutputFile:
        raise AssertionError(f"{location}: nothing writes bytes")

    def delete(self, location: str | InputFile | OutputFile) -> None:
        assert isinstance(location, str)
        process = self.process

        def remove() -> None:
            process.deletes(location)
            self.files.remove(location)

        process.call(f"delete {location}", remove)

    def manifests_of(self, snapshot: Snapshot) -> list[Manifest]:
        path = snapshot.manifest_list
        return list(self.process.call(f"read {path}", lambda: _found(self.files.lists, path)))

    def live_entries(self, manifest: Manifest) -> list[Entry]:
        path = manifest.manifest_path
        return list(self.process.call(f"read {path}", lambda: _found(self.files.manifests, path)))

    def read_data(self, path: str) -> None:
        """`FileNotFoundError` when it is gone."""

        def look() -> None:
            if path not in self.files.data:
                raise FileNotFoundError(path)

        self.process.call(f"read {path}", look)

    def metadata_in(self, path: str) -> TableMetadata:
        return self.process.call(f"read {path}", lambda: _found(self.files.former, path))


def _found(files: dict[str, ResultT], path: str) -> ResultT:
    if path not in files:
        raise FileNotFoundError(path)
    return files[path]


class CatalogView(NoopCatalog):
    """The catalog as one process reaches it."""

    is_exact = False

    def __init__(self, lake: Lake, process: Caller) -> None:
        super().__init__("lake")
        self._lake = lake
        self._process = process

    def load_table(self, identifier: str | Identifier) -> Table:
        lake = self._lake

        def load() -> Table:
            return Table(IDENTIFIER, lake.metadata, lake.location, self._process.files, self)

        return self._process.call("load the table", load)

    def list_namespaces(self, namespace: str | Identifier = ()) -> list[Identifier]:
        return [] if namespace else [IDENTIFIER[:1]]

    def list_tables(self, namespace: str | Identifier) -> list[Identifier]:
        return self._process.call("list the tables", lambda: [IDENTIFIER])

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        process, lake = self._process, self._lake
        now_ms = process.clock.now_ms() if self.is_exact else process.now_ms
        began_ms = process.began_ms

        def commit() -> CommitTableResponse:
            lake.commit(process, began_ms, requirements, updates, now_ms, is_exact=self.is_exact)
            return CommitTableResponse.model_construct(
                metadata=lake.metadata, metadata_location=lake.location
            )

        what = ", ".join(update.action for update in updates)
        return process.commit(f"commit {what}", commit)


class ExactCatalogView(CatalogView, MetastoreCatalog):
    """The catalog that checks requirements in the process that commits."""

    is_exact = True


def catalog_of(lake: Lake, process: Caller, *, is_exact: bool) -> CatalogView:
    return (ExactCatalogView if is_exact else CatalogView)(lake, process)
