"""The value that planning looks at, drawn from a listing.

1. The time interval of each data file is that of its bounds. Where the manifest has none (the table's
   metrics are off for the column), it is taken from the footer of the file.
2. Where the table has a name mapping, it may have files that were not written for Iceberg. Their footers
   are read in any case: they say whether a rewrite can be right.
3. A file in which no row has a time goes to the bucket of such files.
4. A file that cannot be rewritten (`refusals`), or is listed more than once, counts as one of unknown times:
   the planner leaves it alone and still counts it, so that the totals are those of the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyiceberg.manifest import DataFile, ManifestEntry
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.typedef import Record
from pyiceberg.types import NestedField

from lithify.datasets.iceberg.footers import Footers
from lithify.datasets.iceberg.listing import Listing
from lithify.datasets.iceberg.model import Lane, NewFile, TableState
from lithify.datasets.iceberg.ownership import parse_name
from lithify.datasets.iceberg.partitions import Place, partition_path, place_of
from lithify.datasets.iceberg.policy import TablePolicy
from lithify.datasets.iceberg.refusals import count_notes, table_notes, why_left_alone
from lithify.datasets.iceberg.replace import data_file_of
from lithify.datasets.iceberg.timecolumn import bound_us, bounded
from lithify.planning.timeline.model import Bucket, Interval, TimelineFile
from lithify.planning.timeline.state import ChunkStates

_UNKNOWN_TIMES = "have no bounds of the time column, neither in the manifest nor in the file"
_REPEATED = (
    "are listed more than once, so that readers give their rows as often; if that was a mistake, remove the "
    "path and add it once"
)


def draw_state(
    table: Table,
    listing: Listing | None,
    policy: TablePolicy,
    time_column: NestedField,
    footers: Footers,
    states: ChunkStates,
) -> TableState:
    """The table as the planner sees it."""
    files: list[TimelineFile] = []
    left_alone: list[str] = []
    if listing is not None:
        reasons = {
            path: why_left_alone(entry.data_file, table.metadata, listing.equality_deletes.apply_to(entry))
            for path, entry in listing.data.items()
        }
        times = _times(table, listing, reasons, time_column, footers)  # and more reasons
        lanes = _Lanes(table)
        for path, entry in listing.data.items():
            reason = reasons[path]
            if reason is None and times[path] is Bucket.UNKNOWN:
                reason = _UNKNOWN_TIMES
            if reason is not None:
                left_alone.append(reason)
            files.append(_timeline_file(entry, times[path], lanes.of(entry.data_file), listing))
        for path, entries in listing.repeated_data.items():
            left_alone.append(_REPEATED)
            files.append(_repeated_file(path, entries, lanes.of(entries[0].data_file)))
    return TableState(
        uuid=str(table.metadata.table_uuid),
        snapshot_id=listing.snapshot.snapshot_id if listing is not None else None,
        timestamp_ms=listing.snapshot.timestamp_ms if listing is not None else 0,
        sort_order_id=table.metadata.default_sort_order_id,
        files=tuple(files),
        delete_files=listing.delete_file_count if listing is not None else 0,
        policy=policy,
        notes=(*count_notes(left_alone), *table_notes(table.metadata)),
        states=states,
        source=listing,
    )


def _timeline_file(
    entry: ManifestEntry, times: Interval | Bucket, lane: Lane, listing: Listing
) -> TimelineFile:
    file = entry.data_file
    deletes = listing.deletes_of(entry)
    return TimelineFile(
        id=file.file_path,
        times=times,
        size_bytes=file.file_size_in_bytes,
        rows=file.record_count,
        deleted_rows=min(
            file.record_count, sum(d.record_count for d in deletes if listing.is_only_for(d, file))
        ),
        deletes=len(deletes),
        version=entry.sequence_number or 0,
        group=lane.group,
    )


def _repeated_file(path: str, entries: Sequence[ManifestEntry], lane: Lane) -> TimelineFile:
    """A path that stands for several files. What is deleted from which of them does not matter here."""
    return TimelineFile(
        id=path,
        times=Bucket.UNKNOWN,
        size_bytes=sum(entry.data_file.file_size_in_bytes for entry in entries),
        rows=sum(entry.data_file.record_count for entry in entries),
        version=max(entry.sequence_number or 0 for entry in entries),
        group=lane.group,
    )


def written_file(new: NewFile, lane: Lane, sequence_number: int, column: NestedField) -> TimelineFile:
    """An output as the next listing will show it once it is committed."""
    return TimelineFile(
        id=new.path,
        times=times_of(data_file_of(new, lane.spec_id, Record()), column),
        size_bytes=new.size_bytes,
        rows=new.rows,
        version=sequence_number,
        group=lane.group,
    )


def _times(
    table: Table,
    listing: Listing,
    reasons: dict[str, str | None],
    column: NestedField,
    footers: Footers,
) -> Mapping[str, Interval | Bucket]:
    """The times of all files; unknown for those that there is a reason to leave alone. Reasons that
    footers give are added."""
    known = {
        path: Bucket.UNKNOWN if reasons[path] is not None else times_of(entry.data_file, column)
        for path, entry in listing.data.items()
    }
    names = table.metadata.name_mapping()
    asked = {
        path: listing.data[path].data_file.file_size_in_bytes
        for path, times in known.items()
        if reasons[path] is None
        and (times is Bucket.UNKNOWN or (names is not None and parse_name(path) is None))
    }
    found = footers.read(table.io, asked, table.metadata.schema(), column.field_id, names)
    for path, footer in found.items():
        reasons[path] = footer.unfit
        if footer.unfit is not None or known[path] is Bucket.UNKNOWN:
            times = footer.times
            known[path] = bounded(times.start_us, times.end_us) if isinstance(times, Interval) else times
    return known


def times_of(file: DataFile, column: NestedField) -> Interval | Bucket:
    """What the manifest says about a file's times."""
    low = bound_us(column.field_type, (file.lower_bounds or {}).get(column.field_id))
    high = bound_us(column.field_type, (file.upper_bounds or {}).get(column.field_id))
    if low is not None and high is not None and low <= high:
        return bounded(low, high + 1)
    nulls = (file.null_value_counts or {}).get(column.field_id)
    if nulls is not None and nulls >= file.record_count:
        return Bucket.NULL
    return Bucket.UNKNOWN


class _Lanes:
    """Lanes by partition; naming one costs more than looking it up."""

    def __init__(self, table: Table) -> None:
        self._schema: Schema = table.metadata.schema()
        self._specs: Mapping[int, PartitionSpec] = table.metadata.specs()
        self._known: dict[Place, Lane] = {}

    def of(self, file: DataFile) -> Lane:
        key = place_of(file)
        lane = self._known.get(key)
        if lane is None:
            name = partition_path(self._specs[file.spec_id], file.partition, self._schema)
            lane = self._known[key] = Lane(file.spec_id, name)
        return lane
