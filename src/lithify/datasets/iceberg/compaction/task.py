"""The work of one Spark task: rewrite the rows of one range of time, or of several small partitions.

These small picklable values are sent between driver and task. Rows are read and written by the task itself,
through PyIceberg's file access.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata

from lithify.coordination.sidecar import Reporting
from lithify.datasets.iceberg.deletes.equality_deletes import EqualityDelete
from lithify.datasets.iceberg.format import nano_defaults as nano_defaults
from lithify.datasets.iceberg.format.columns import stored_schema
from lithify.datasets.iceberg.format.manifests import FILE_FIELDS
from lithify.datasets.iceberg.format.row_ids import with_row_ids
from lithify.datasets.iceberg.format.table_properties import writing_properties
from lithify.datasets.iceberg.model import Output, TimeRange

MIB = 1024 * 1024
_READ = frozenset(map(FILE_FIELDS.index, (134, 100, 101, 102, 103, 104, 143, 144, 145)))
"""The places of the fields that reading needs: content, path, format, partition, rows, size, and a deletion
vector's data file and place."""
DEFAULT_BUFFER_BYTES = 512 * MIB


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One input: a data file, without its statistics, and the position deletes that apply to it: delete
    files, or a deletion vector."""

    position: int
    """The position among the compaction's inputs."""
    file: DataFile
    delete_files: tuple[DataFile, ...]
    is_inside: bool
    """Whether all its rows belong to the range, so that no filter is needed."""
    number: int
    """The data sequence number: equality deletes with a higher one apply to it."""
    first_row_id: int | None = None
    """The id of its first row; `None` if its rows have none."""


@dataclass(frozen=True, slots=True)
class RewriteTask:
    """All values needed to rewrite one range."""

    metadata: TableMetadata
    """The metadata of the planned snapshot, without history."""
    io: FileIO
    sources: tuple[SourceFile, ...]
    range: TimeRange
    spec_id: int
    """The partition spec of all sources and all outputs."""
    time_field_id: int
    """The time column; `NO_COLUMN` without one."""
    sort_order_id: int
    """0 sorts by time, or not at all without a time column."""
    target_bytes: int
    """The maximum size of outputs, which have roughly equal sizes."""
    name_prefix: str = ""
    """The prefix of outputs' names; each attempt adds its own suffix."""
    equality_deletes: tuple[EqualityDelete, ...] = ()
    """The planned snapshot's deletes that apply to any source."""
    repeating: tuple[int, ...] = ()
    """Field ids of text columns that are processed as dictionaries."""
    buffer_bytes: int = DEFAULT_BUFFER_BYTES
    """The size of rows held in memory before they are written to the local disk, in Arrow's format."""
    has_row_maps: bool = False
    """Whether outputs get row maps, since inputs' rows may be deleted before the commit."""

    @property
    def has_row_ids(self) -> bool:
        """Return whether outputs have the identity of rows, since a source has."""
        return any(source.first_row_id is not None for source in self.sources)

    @property
    def schema(self) -> Schema:
        """Return the schema of the outputs, with the table's column names."""
        schema = stored_schema(self.metadata.schema())
        return with_row_ids(schema) if self.has_row_ids else schema


@dataclass(frozen=True, slots=True)
class RewriteBatch:
    """The work of one task: rewrites that run in sequence."""

    tasks: tuple[RewriteTask, ...]
    is_whole: bool = True
    """Whether the compaction has no other part that can continue when this one fails."""
    done: tuple[Output, ...] = ()
    """Outputs that an earlier attempt finished and recorded; then no work is left."""
    reporting: Reporting | None = None
    """Where to report the bytes read and written, in the store of `state_url`; by default nowhere."""
    store_url: str = ""
    store_options: Mapping[str, str] = field(default_factory=dict)
    state_url: str = ""
    """The URL of the store with Lithify's state; empty if it is `store_url`."""
    state_options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The result of one task: all that is sent back to the driver."""

    outputs: tuple[Output, ...]
    """The outputs in order of time, grouped by part."""
    rows: int
    bytes_read: int
    """An estimate: each source's size, multiplied by the share of its rows in the range."""
    bytes_written: int
    spilled_bytes: int
    cpu_s: float
    peak_memory_bytes: int

    def __add__(self, other: TaskResult) -> TaskResult:
        return TaskResult(
            self.outputs + other.outputs,
            self.rows + other.rows,
            self.bytes_read + other.bytes_read,
            self.bytes_written + other.bytes_written,
            self.spilled_bytes + other.spilled_bytes,
            self.cpu_s + other.cpu_s,
            max(self.peak_memory_bytes, other.peak_memory_bytes),
        )


def slim(metadata: TableMetadata, configured: Mapping[str, Any]) -> TableMetadata:
    """Return metadata reduced to the values that reading and writing need, in a few kilobytes: without
    history, and with only the properties that are used. `configured` are the properties of the table's file
    access."""
    return metadata.model_copy(
        update={
            "snapshots": [],
            "snapshot_log": [],
            "metadata_log": [],
            "statistics": [],
            "partition_statistics": [],
            "refs": {},
            "current_snapshot_id": None,
            "properties": writing_properties(metadata, configured),
        }
    )


def without_statistics(file: DataFile) -> DataFile:
    """Return a data or delete file with only the fields that reading needs."""
    values = file._data
    kept = (values[n] if n in _READ and n < len(values) else None for n in range(len(FILE_FIELDS)))
    slim_file = DataFile(*kept)
    slim_file.spec_id = file.spec_id
    return slim_file
