"""The work of one Spark task: rewrite the rows of one range of time, or of several small partitions.

These are the small picklable values that travel between driver and task. Rows are read and written by
the task itself, through PyIceberg's file access.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table.metadata import TableMetadata

from lithify.coordination.sidecar import Reporting
from lithify.datasets.iceberg.deletes.equality_deletes import EqualityDelete
from lithify.datasets.iceberg.format.table_properties import writing_properties
from lithify.datasets.iceberg.model import Output, TimeRange

MIB = 1024 * 1024
DEFAULT_BUFFER_BYTES = 512 * MIB


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One input: a data file, without its statistics, and the position delete files that apply to it."""

    position: int
    """Among the inputs of the compaction."""
    file: DataFile
    delete_files: tuple[DataFile, ...]
    is_inside: bool
    """Whether all its rows belong to the range, so that none has to be filtered out."""
    number: int
    """Its data sequence number: equality deletes of a higher one apply to it."""


@dataclass(frozen=True, slots=True)
class RewriteTask:
    """Everything that rewriting one range takes."""

    metadata: TableMetadata
    """Of the planned snapshot, without its history."""
    io: FileIO
    sources: tuple[SourceFile, ...]
    range: TimeRange
    spec_id: int
    """The partition spec of all sources and all outputs."""
    time_field_id: int
    sort_order_id: int
    """0 sorts by time."""
    target_bytes: int
    """Outputs are about even in size and not larger than this."""
    name_prefix: str = ""
    """Of the names of outputs; each attempt adds something of its own."""
    equality_deletes: tuple[EqualityDelete, ...] = ()
    """All that apply to any source, of the planned snapshot."""
    repeating: tuple[int, ...] = ()
    """Field ids of texts that are carried as dictionaries."""
    buffer_bytes: int = DEFAULT_BUFFER_BYTES
    """Rows held in memory before they are put on the local disk, in Arrow's format."""


@dataclass(frozen=True, slots=True)
class RewriteBatch:
    """What one task does, one rewrite after the other."""

    tasks: tuple[RewriteTask, ...]
    is_whole: bool = True
    """Whether the compaction has nothing beside it that goes on when this cannot be done."""
    done: tuple[Output, ...] = ()
    """Outputs that an earlier attempt finished and recorded; then there is nothing left to do."""
    reporting: Reporting | None = None
    """Where to say how many bytes have moved, in the store of `state_url`; nowhere by default."""
    store_url: str = ""
    store_options: Mapping[str, str] = field(default_factory=dict)
    state_url: str = ""
    """Empty: that of `store_url`."""
    state_options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What one task did. Only this travels back to the driver."""

    outputs: tuple[Output, ...]
    """In order of time, those of one part after the other."""
    rows: int
    bytes_read: int
    """Estimate: of each source, its size by the share of its rows that belongs to the range."""
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
    """Return metadata without history and with the properties that are used, in a few kilobytes: what reading
    and writing need. `configured` are the properties of the table's file access."""
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
    """A data or delete file as reading needs it."""
    slim_file = DataFile.from_args(
        content=file.content,
        file_path=file.file_path,
        file_format=file.file_format,
        partition=file.partition,
        record_count=file.record_count,
        file_size_in_bytes=file.file_size_in_bytes,
    )
    slim_file.spec_id = file.spec_id
    return slim_file
