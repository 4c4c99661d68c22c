"""The inputs of a task: which files overlap its range, and which deletes apply to them. Values common to
several tasks are the same objects, so a message with several of these tasks contains them once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyiceberg.manifest import DataFile
from pyiceberg.types import NestedField

from lithify.datasets.iceberg.compaction.task import SourceFile, without_statistics
from lithify.datasets.iceberg.deletes.equality_deletes import EqualityDelete
from lithify.datasets.iceberg.format.listing import Listing
from lithify.datasets.iceberg.format.manifests import ContentKey, first_row_id, key_of
from lithify.datasets.iceberg.model import TimeRange
from lithify.planning.timeline.model import Interval, TimelineFile


class Sources:
    """The inputs of one compaction, as tasks read them."""

    def __init__(self, listing: Listing, column: NestedField | None, positions: Mapping[str, int]) -> None:
        """`column` has the time of a row, if there is one; `positions` are those of all inputs, by path."""
        self._listing = listing
        self._column = column
        self._positions = positions
        self._files: dict[ContentKey, DataFile] = {}
        self._equality: dict[str, EqualityDelete] = {}

    def of(self, files: Sequence[TimelineFile], part: TimeRange) -> tuple[SourceFile, ...]:
        """Return the inputs of a lane that have, or may have, rows of the range."""
        found = []
        for file in files if part.inputs is None else files[slice(*part.inputs)]:
            entry = self._listing.data[file.id]
            is_inside = self._is_inside(file, entry.data_file, part)
            if is_inside is not None:
                deletes = sorted(self._listing.deletes_of(entry), key=lambda d: d.file_path)
                slim_deletes = tuple(map(self._without_statistics, deletes))
                slim_file = self._without_statistics(entry.data_file)
                found.append(
                    SourceFile(
                        self._positions[file.id],
                        slim_file,
                        slim_deletes,
                        is_inside,
                        number=entry.sequence_number or 0,
                        first_row_id=first_row_id(entry.data_file),
                    )
                )
        return tuple(found)

    def _is_inside(self, file: TimelineFile, data_file: DataFile, part: TimeRange) -> bool | None:
        """Return whether all rows of a file are of the range; `None` if none is."""
        if part.inputs is not None:
            return True if data_file.record_count else None
        may_have_nulls = _may_have_nulls(data_file, self._column)
        if _meets(file, part) or (part.with_nulls and may_have_nulls):
            return _lies_inside(file, part) and (part.with_nulls or not may_have_nulls)
        return None

    def equality_deletes(self, sources: Sequence[SourceFile]) -> tuple[EqualityDelete, ...]:
        """Return the equality delete files that apply to any of the sources, which belong to one partition:
        those that apply to the oldest source."""
        if not sources:
            return ()
        oldest = min(sources, key=lambda source: source.number)
        found = self._listing.equality_deletes.of(self._listing.data[oldest.file.file_path])
        return tuple(map(self._slim, found))

    def _slim(self, delete: EqualityDelete) -> EqualityDelete:
        known = self._equality.get(delete.path)
        if known is None or known.number != delete.number:
            known = replace(delete, file=self._without_statistics(delete.file))
            self._equality[delete.path] = known
        return known

    def _without_statistics(self, file: DataFile) -> DataFile:
        key = key_of(file)
        known = self._files.get(key)
        if known is None:
            known = self._files[key] = without_statistics(file)
        return known


def _meets(file: TimelineFile, part: TimeRange) -> bool:
    times = file.times
    if not isinstance(times, Interval):
        return False
    return (part.end_us is None or times.start_us < part.end_us) and (
        part.start_us is None or part.start_us < times.end_us
    )


def _lies_inside(file: TimelineFile, part: TimeRange) -> bool:
    times = file.times
    if not isinstance(times, Interval):
        return part.with_nulls
    return (part.start_us is None or part.start_us <= times.start_us) and (
        part.end_us is None or times.end_us <= part.end_us
    )


def _may_have_nulls(file: DataFile, column: NestedField | None) -> bool:
    """Return whether a file may have rows without a time. Without a time column, every row is one."""
    if not file.record_count:
        return False
    if column is None:
        return True
    if column.required:
        return False
    return (file.null_value_counts or {}).get(column.field_id) != 0
