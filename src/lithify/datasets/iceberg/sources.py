"""What a task has to read: which inputs meet its range, and with what deletes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyiceberg.manifest import DataFile
from pyiceberg.types import NestedField

from lithify.datasets.iceberg.equality_deletes import EqualityDelete
from lithify.datasets.iceberg.listing import Listing
from lithify.datasets.iceberg.model import TimeRange
from lithify.datasets.iceberg.task import SourceFile, without_statistics
from lithify.planning.timeline.model import Interval, TimelineFile


def sources_of(
    listing: Listing,
    files: Sequence[TimelineFile],
    part: TimeRange,
    column: NestedField,
    positions: Mapping[str, int],
) -> tuple[SourceFile, ...]:
    """The inputs that have, or may have, rows of the range; `positions` are theirs among all, by path."""
    found = []
    for file in files:
        entry = listing.data[file.id]
        may_have_nulls = _may_have_nulls(entry.data_file, column)
        if _meets(file, part) or (part.with_nulls and may_have_nulls):
            is_inside = _lies_inside(file, part) and (part.with_nulls or not may_have_nulls)
            deletes = sorted(listing.deletes_of(entry), key=lambda d: d.file_path)
            slim_deletes = tuple(without_statistics(delete) for delete in deletes)
            slim_file = without_statistics(entry.data_file)
            number = entry.sequence_number or 0
            found.append(SourceFile(positions[file.id], slim_file, slim_deletes, is_inside, number))
    return tuple(found)


def equality_deletes_of(listing: Listing, sources: Sequence[SourceFile]) -> tuple[EqualityDelete, ...]:
    """The equality delete files that apply to any of the sources, which are of one partition: those that
    apply to the oldest."""
    if not sources:
        return ()
    oldest = min(sources, key=lambda source: source.number)
    found = listing.equality_deletes.of(listing.data[oldest.file.file_path])
    return tuple(replace(delete, file=without_statistics(delete.file)) for delete in found)


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


def _may_have_nulls(file: DataFile, column: NestedField) -> bool:
    if column.required:
        return False
    return (file.null_value_counts or {}).get(column.field_id) != 0
