"""The summary of a snapshot that replaces files, with the properties that Iceberg's own writers set.

`replace_summary` counts totals from the files after the commit: the previous summary's may be wrong or
missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import (
    CHANGED_PARTITION_COUNT_PROP,
    CHANGED_PARTITION_PREFIX,
    PARTITION_SUMMARY_PROP,
    Operation,
    Summary,
    UpdateMetrics,
)
from pyiceberg.utils.properties import property_as_int

from lithify.datasets.iceberg.format.manifests import content_bytes, is_vector
from lithify.datasets.iceberg.format.partitions import Place, partition_path, place_of
from lithify.datasets.iceberg.format.table_properties import properties_of

MOVED_ROWS = "lithify.moved-deletes"
"""The property with the number of rows that were deleted while compactions ran, and are deleted in their
outputs (`moved_deletes`)."""
KEPT_BYTES = "lithify.kept-bytes"
"""The property with the bytes of those outputs, which would else have been lost."""
_MAX_DIGITS = 19
"""Digits of the largest number of 64 bits."""


class SnapshotCounts(UpdateMetrics):
    """Counts as Java does, with deletion vectors: they count as delete files, and with their own sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.added_vectors = 0
        self.removed_vectors = 0

    def add_file(self, data_file: DataFile) -> None:
        if not is_vector(data_file):
            super().add_file(data_file)
            return
        self.added_vectors += 1
        self.added_delete_files += 1
        self.added_pos_deletes += data_file.record_count
        self.added_file_size += content_bytes(data_file)

    def remove_file(self, data_file: DataFile) -> None:
        if not is_vector(data_file):
            super().remove_file(data_file)
            return
        self.removed_vectors += 1
        self.removed_delete_files += 1
        self.removed_pos_deletes += data_file.record_count
        self.removed_file_size += content_bytes(data_file)

    def to_dict(self) -> dict[str, str]:
        vectors = {"added-dvs": self.added_vectors, "removed-dvs": self.removed_vectors}
        return super().to_dict() | {name: str(count) for name, count in vectors.items() if count}


@dataclass(frozen=True, slots=True)
class MovedTotals:
    """The compactions that were kept by moving deletes, as far as a table's history goes."""

    commits: int = 0
    rows: int = 0
    kept_bytes: int = 0


def moved_totals(metadata: TableMetadata) -> MovedTotals:
    """Return the totals of a table's snapshots."""
    summaries = [s.summary.additional_properties for s in metadata.snapshots if s.summary is not None]
    moved = [summary for summary in summaries if MOVED_ROWS in summary]
    rows, kept = (
        sum(_number(summary.get(name, "")) for summary in moved) for name in (MOVED_ROWS, KEPT_BYTES)
    )
    return MovedTotals(len(moved), rows, kept)


def _number(value: str) -> int:
    return int(value) if value.isdecimal() and len(value) <= _MAX_DIGITS else 0


def replace_summary(
    metadata: TableMetadata,
    removed: Iterable[DataFile],
    added: Iterable[DataFile],
    after: Iterable[DataFile],
    properties: Mapping[str, str],
) -> Summary:
    """Return the summary of a replacement. `after` has all files that the table then has; `properties` are
    the writer's own."""
    whole = SnapshotCounts()
    partitions: dict[Place, tuple[DataFile, SnapshotCounts]] = {}
    for files, count in ((added, SnapshotCounts.add_file), (removed, SnapshotCounts.remove_file)):
        for file in files:
            count(whole, file)
            count(partitions.setdefault(place_of(file), (file, SnapshotCounts()))[1], file)
    return Summary(
        operation=Operation.REPLACE,
        **whole.to_dict(),
        **_of_partitions(metadata, list(partitions.values())),
        **_totals(after),
        **properties,
    )


def deletes_summary(
    parent: Summary | None, removed: Iterable[DataFile], added: Iterable[DataFile]
) -> Summary:
    """Return the summary of a snapshot that replaces only delete files. As in Java, totals are the parent's
    plus the changes; one that the parent does not have, or that is certainly wrong, is left out."""
    counted = SnapshotCounts()
    change: Counter[str] = Counter()
    for files, count, sign in ((added, counted.add_file, 1), (removed, counted.remove_file, -1)):
        for file in files:
            count(file)
            for name, part in _totals([file]).items():
                change[name] += sign * int(part)
    known = parent.additional_properties if parent is not None else {}
    totals = {
        name: str(total)
        for name, value in known.items()
        if name.startswith("total-") and value.isdecimal() and len(value) <= _MAX_DIGITS
        if (total := int(value) + change[name]) >= 0
    }
    return Summary(operation=Operation.REPLACE, **counted.to_dict(), **totals)


def _of_partitions(
    metadata: TableMetadata, partitions: Sequence[tuple[DataFile, SnapshotCounts]]
) -> dict[str, str]:
    found = {CHANGED_PARTITION_COUNT_PROP: str(len(partitions))}
    most = property_as_int(properties_of(metadata), TableProperties.WRITE_PARTITION_SUMMARY_LIMIT, 0)
    if partitions and len(partitions) <= (most or 0):
        found[PARTITION_SUMMARY_PROP] = "true"
        for file, metrics in partitions:
            name = partition_path(metadata.specs()[file.spec_id], file.partition, metadata.schema())
            counted = ",".join(f"{key}={value}" for key, value in metrics.to_dict().items())
            found[f"{CHANGED_PARTITION_PREFIX}{name}"] = counted
    return found


def _totals(files: Iterable[DataFile]) -> dict[str, str]:
    count, rows, size_bytes = Counter[DataFileContent](), Counter[DataFileContent](), 0
    for file in files:
        count[file.content] += 1
        rows[file.content] += file.record_count
        size_bytes += content_bytes(file)
    totals = {
        "total-data-files": count[DataFileContent.DATA],
        "total-delete-files": count.total() - count[DataFileContent.DATA],
        "total-records": rows[DataFileContent.DATA],
        "total-files-size": size_bytes,
        "total-position-deletes": rows[DataFileContent.POSITION_DELETES],
        "total-equality-deletes": rows[DataFileContent.EQUALITY_DELETES],
    }
    return {name: str(total) for name, total in totals.items()}
