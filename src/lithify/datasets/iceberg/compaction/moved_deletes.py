"""Deletes that came to a compaction's inputs after its plan: at the commit they are moved to its outputs.

1. Position delete files and deletion vectors that apply to an input at the head, and did not in the planned
   snapshot, are read. Where one that did apply is gone, all that apply are read, and they must delete the
   same rows and perhaps more: a vector was replaced by a larger one, or delete files were merged. Otherwise
   deleted rows have come back, and the input must not be replaced.
2. The row maps of the outputs (`row_map`) give the positions of these rows there. Rows that the compaction
   itself has dropped have none.
3. Each output gets one position delete file, or in format version 3 one deletion vector. They are added in
   the snapshot that adds the outputs, and inherit its sequence number.

Later equality deletes are not moved: outputs have the sequence number of the planned snapshot, so they apply
to them. A map that is lost, damaged or of another attempt is a conflict of its component; the inputs stay in
the table and are compacted again. The new delete files have unique names and count only once the commit has
succeeded. Each attempt to commit moves deletes afresh.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntry
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record

from lithify.base.concurrency import all_of
from lithify.base.errors import LithifyError
from lithify.datasets.iceberg.compaction.conflict_groups import Component
from lithify.datasets.iceberg.compaction.row_map import read_row_map, rows_of
from lithify.datasets.iceberg.compaction.support_checks import Refusals
from lithify.datasets.iceberg.compaction.task import SourceFile, without_statistics
from lithify.datasets.iceberg.compaction.writer import path_in_partition
from lithify.datasets.iceberg.deletes.deleted_rows import DeletedPositions, DeletedRows
from lithify.datasets.iceberg.deletes.position_deletes import MAX_READERS, Positions, write
from lithify.datasets.iceberg.deletes.vectors import DeletionVector, NewVector, write_vectors
from lithify.datasets.iceberg.errors import translated
from lithify.datasets.iceberg.format.listing import Listing
from lithify.datasets.iceberg.format.manifests import key_of
from lithify.datasets.iceberg.format.ownership import manifest_prefix, mark_of
from lithify.datasets.iceberg.format.table_properties import locations_of, properties_of
from lithify.datasets.iceberg.format.write_options import delete_options
from lithify.datasets.iceberg.model import NewFile

_ROWS_AT_ONCE = 1 << 22
_MODES = ("write.delete.mode", "write.update.mode", "write.merge.mode")
_ADDED = ("added-position-delete-files", "added-dvs")

Rows = npt.NDArray[np.int64]


def may_come(metadata: TableMetadata, listing: Listing) -> bool:
    """Return whether rows may be deleted by position while a compaction of the listed snapshot runs: the
    table asks its writers for it, has deletes, since those by key may be rewritten (`rewrite_equality`), or
    had some in a snapshot that it still has."""
    properties = properties_of(metadata)
    if any(properties.get(mode, "").lower() == "merge-on-read" for mode in _MODES):
        return True
    kinds = (DataFileContent.POSITION_DELETES, DataFileContent.EQUALITY_DELETES)
    if next(listing.entries(*kinds), None) is not None:
        return True
    summaries = (s.summary.additional_properties for s in metadata.snapshots if s.summary is not None)
    return any(summary.get(name, "0") != "0" for summary in summaries for name in _ADDED)


class Unmovable(LithifyError):
    """Deletes that cannot be moved, so that the inputs must be kept."""


@dataclass(frozen=True, slots=True)
class _Change:
    """An input to which other deletes apply at the head than in the planned snapshot."""

    number: int
    """The number of the input among all."""
    rows: int
    gone: SourceFile | None
    """The input with the deletes that no longer apply, if any."""
    why_unread: str | None
    """Why the deletes cannot be read ("they …")."""
    source: SourceFile
    """The input with the deletes to move."""


class DeletesSincePlan:
    """The deletes of one compaction's inputs that came after its plan."""

    def __init__(self, table: Table, base: Listing, head: Listing, inputs: Sequence[str]) -> None:
        """`base` is the planned snapshot, and `inputs` are all of the compaction, in order."""
        self._table = table
        refusals = Refusals(table.metadata, table.io.properties)
        changes = (_change(base, head, refusals, number, path) for number, path in enumerate(inputs))
        self._changes = {change.source.file.file_path: change for change in changes if change is not None}
        self._gone = DeletedRows(table.io, [c.gone for c in self._changes.values() if c.gone is not None])
        self._found = DeletedRows(table.io, [c.source for c in self._changes.values()])

    def of(self, part: Component) -> dict[str, Rows]:
        """Return the deleted rows of a component's outputs, by the path of each output that has some. Raise
        `Unmovable`, or another `LithifyError` when something cannot be read."""
        deleted: dict[int, DeletedPositions] = {}
        for path in part.inputs:
            change = self._changes.get(path)
            found = None if change is None else self._deleted(path, change)
            if change is not None and found is not None:
                deleted[change.number] = found
        outputs = [
            output
            for output in part.outputs
            if output.sources is None or not deleted.keys().isdisjoint(output.sources)
        ]
        if not deleted:
            return {}
        first = next(path for path in part.inputs if path in self._changes)
        if any(output.row_map is None for output in outputs):
            raise Unmovable(f"rows of {first} were deleted meanwhile")
        delete_options(properties_of(self._table.metadata))
        moving = (partial(self._moved, first, output, deleted) for output in outputs)
        moved = zip(outputs, all_of(moving, MAX_READERS), strict=True)
        return {output.path: rows for output, rows in moved if len(rows)}

    def _deleted(self, path: str, change: _Change) -> DeletedPositions | None:
        """Return an input's deleted positions; `None` if there are none."""
        if change.why_unread is not None:
            raise Unmovable(f"rows of {path} were deleted meanwhile by deletes that {change.why_unread}")
        found = self._found.of(change.source)
        if change.gone is not None and not _has_all(found, self._gone.of(change.gone), change.rows):
            raise Unmovable(f"rows of {path} that were deleted have come back meanwhile")
        has_any = any(len(found.between(*part)) for part in _parts(change.rows))
        return found if has_any else None

    def _moved(self, first: str, output: NewFile, deleted: Mapping[int, DeletedPositions]) -> Rows:
        try:
            content = read_row_map(self._table.io, output)
        except LithifyError as error:
            error.add_note(f"rows of {first} were deleted meanwhile")
            raise
        return rows_of(content, deleted)


def _change(base: Listing, head: Listing, refusals: Refusals, number: int, path: str) -> _Change | None:
    planned, current = base.data.get(path), head.data.get(path)
    if planned is None or current is None:
        return None
    before, now = base.deletes_of(planned), head.deletes_of(current)
    keys_before, keys_now = set(map(key_of, before)), set(map(key_of, now))
    if keys_before == keys_now:
        return None
    gone = [file for file in before if key_of(file) not in keys_now]
    found = [file for file in now if gone or key_of(file) not in keys_before]
    return _Change(
        number,
        current.data_file.record_count,
        _source(number, planned, gone) if gone else None,
        refusals.why_left_alone(current.data_file, None, found),
        _source(number, current, found),
    )


def _source(number: int, entry: ManifestEntry, deletes: Sequence[DataFile]) -> SourceFile:
    slim = map(without_statistics, sorted(deletes, key=lambda file: file.file_path))
    sequence_number = entry.sequence_number or 0
    return SourceFile(number, without_statistics(entry.data_file), tuple(slim), True, sequence_number)


def _has_all(found: DeletedPositions, wanted: DeletedPositions, rows: int) -> bool:
    return all(np.isin(wanted.between(*part), found.between(*part)).all() for part in _parts(rows))


def _parts(rows: int) -> list[tuple[int, int]]:
    return [(start, min(start + _ROWS_AT_ONCE, rows)) for start in range(0, rows, _ROWS_AT_ONCE)]


@dataclass(frozen=True, slots=True)
class MovedDeletes:
    """The deleted rows of one output."""

    path: str
    rows: Rows
    """At least one."""
    spec_id: int
    partition: Record


def write_moved(table: Table, moved: Sequence[MovedDeletes], started: list[str]) -> list[DataFile]:
    """Write the deletes of outputs and return their descriptions for a manifest. The paths of new files are
    added to `started` before they are written."""
    prefix = manifest_prefix(mark_of(table.metadata), uuid.uuid4().hex)
    if table.metadata.format_version > 2 and moved:
        locations = locations_of(table.metadata, table.io.properties)
        path = locations.new_data_location(f"{prefix}-deletes-0.puffin")
        started.append(path)
        vectors = (NewVector(m.path, DeletionVector.of(m.rows), m.spec_id, m.partition) for m in moved)
        with translated(f"writing {path}"):
            return write_vectors(table.io, path, vectors)
    options = delete_options(properties_of(table.metadata))

    def writing(number: int, one: MovedDeletes) -> Callable[[], DataFile]:
        path = path_in_partition(table, f"{prefix}-deletes-{number}.parquet", one.spec_id, one.partition)
        started.append(path)
        rows = Positions([one.path], np.zeros(len(one.rows), np.int32), one.rows)

        def run() -> DataFile:
            with translated(f"writing {path}"):
                return write(table.io, path, rows, one.spec_id, one.partition, options)

        return run

    return all_of([writing(number, one) for number, one in enumerate(moved)], MAX_READERS)
