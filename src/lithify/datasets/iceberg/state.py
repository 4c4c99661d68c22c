"""The value that planning looks at, drawn from a listing.

1. The time interval of each data file is that of its bounds. Where the manifest has none (the table's
   metrics are off for the column), it is taken from the footer of the file.
2. Where the table has a name mapping, it may have files that were not written for Iceberg. Their footers
   are read in any case: they say whether a rewrite can be right.
3. A file in which no row has a time goes to the bucket of such files.
4. Rows that delete files hide by position are counted where such a file is for one data file only. Those that
   equality deletes hide are estimated (`equality_deletes`), if the policy wants to know: each commit of such
   deletes changes the estimate of every older file.
5. A file that cannot be rewritten (`refusals`), or is listed more than once, counts as one of unknown times:
   the planner leaves it alone and still counts it, so that the totals are those of the table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntry
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.typedef import Record
from pyiceberg.types import NestedField

from lithify.datasets.iceberg.equality_deletes import NO_BURDEN, Burden
from lithify.datasets.iceberg.footers import Footers
from lithify.datasets.iceberg.listing import Listing
from lithify.datasets.iceberg.model import Lane, NewFile, TableState
from lithify.datasets.iceberg.ownership import parse_name
from lithify.datasets.iceberg.partitions import Place, partition_path, place_of
from lithify.datasets.iceberg.policy import TablePolicy
from lithify.datasets.iceberg.refusals import Refusals, count_notes, table_notes
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
    drawn = _Drawn(table, listing, time_column, policy) if listing is not None else None
    if drawn is not None:
        drawn.read_footers(footers)
    return TableState(
        uuid=str(table.metadata.table_uuid),
        snapshot_id=listing.snapshot.snapshot_id if listing is not None else None,
        timestamp_ms=listing.snapshot.timestamp_ms if listing is not None else 0,
        sort_order_id=table.metadata.default_sort_order_id,
        files=() if drawn is None else (*drawn.files.values(), *drawn.repeated.values()),
        delete_files=listing.delete_file_count if listing is not None else 0,
        policy=policy,
        notes=(*count_notes(() if drawn is None else drawn.left_alone()), *table_notes(table.metadata)),
        states=states,
        source=listing,
    )


class _Drawn:
    """The files of a listing, which is gone through once: there may be very many."""

    def __init__(self, table: Table, listing: Listing, column: NestedField, policy: TablePolicy) -> None:
        self._table = table
        self._column = column
        self._names = table.metadata.name_mapping()
        self.files: dict[str, TimelineFile] = {}
        """Those that can be named by their paths, by path."""
        self.repeated: dict[str, TimelineFile] = {}
        """Paths that are listed more than once: each stands for several files."""
        self._reasons: dict[str, str] = {}
        """By path, why a file is left alone."""
        self._asked: dict[str, int] = {}
        """Sizes of the files whose footers have to be read, by path."""
        self._refusals = Refusals(table.metadata, table.io.properties)
        self._estimates_deletes = bool(policy.max_deleted_percent)
        lanes, has_deletes = _Lanes(table), bool(listing.delete_file_count)
        for entry in listing.entries(DataFileContent.DATA):
            file = self._file(entry, listing, lanes, has_deletes=has_deletes)
            if file.id not in self.files and file.id not in self.repeated:
                self.files[file.id] = file
            else:
                self._repeat(self.repeated.get(file.id) or self.files.pop(file.id), file)
        if has_deletes:
            self._repeat_deletes(listing)

    def _file(
        self, entry: ManifestEntry, listing: Listing, lanes: _Lanes, *, has_deletes: bool
    ) -> TimelineFile:
        file = entry.data_file
        burden = listing.equality_deletes.burden(entry)
        deletes = listing.deletes_of(entry) if has_deletes else frozenset[DataFile]()
        reason = self._refusals.why_left_alone(file, burden.why_unfit, deletes)
        times = Bucket.UNKNOWN if reason is not None else times_of(file, self._column)
        if reason is not None:
            self._reasons[file.file_path] = reason
        elif times is Bucket.UNKNOWN or (self._names is not None and parse_name(file.file_path) is None):
            self._asked[file.file_path] = file.file_size_in_bytes
        known = burden if self._estimates_deletes else NO_BURDEN
        return _timeline_file(entry, times, lanes.of(file), deletes, known)

    def _repeat(self, before: TimelineFile, file: TimelineFile) -> None:
        """What is deleted from which of the files that a path stands for does not matter here."""
        self._reasons.pop(file.id, None)
        self._asked.pop(file.id, None)
        self.repeated[file.id] = TimelineFile(
            id=file.id,
            times=Bucket.UNKNOWN,
            size_bytes=before.size_bytes + file.size_bytes,
            rows=before.rows + file.rows,
            version=max(before.version, file.version),
            group=before.group,
        )

    def _repeat_deletes(self, listing: Listing) -> None:
        """A path that is that of a delete file too is no data file's alone."""
        of_deletes = listing.entries(DataFileContent.POSITION_DELETES, DataFileContent.EQUALITY_DELETES)
        for path in sorted({entry.data_file.file_path for entry in of_deletes} & self.files.keys()):
            file = self.files.pop(path)
            self._reasons.pop(path, None)
            self._asked.pop(path, None)
            self.repeated[path] = replace(file, times=Bucket.UNKNOWN, deletes=0, deleted_rows=0)

    def read_footers(self, footers: Footers) -> None:
        """Times that no manifest has, and what else only a file itself says."""
        schema = self._table.metadata.schema()
        found = footers.read(self._table.io, self._asked, schema, self._column.field_id, self._names)
        for path, footer in found.items():
            file, times = self.files[path], footer.times
            if footer.unfit is not None:
                self._reasons[path] = footer.unfit
            elif file.times is not Bucket.UNKNOWN:
                continue
            elif times is Bucket.UNKNOWN:
                self._reasons[path] = _UNKNOWN_TIMES
            known = bounded(times.start_us, times.end_us) if isinstance(times, Interval) else times
            self.files[path] = replace(file, times=known)

    def left_alone(self) -> Iterator[str]:
        """Of each file that is left alone, why."""
        yield from self._reasons.values()
        yield from (_REPEATED for _ in self.repeated)


def _timeline_file(
    entry: ManifestEntry,
    times: Interval | Bucket,
    lane: Lane,
    deletes: Collection[DataFile],
    burden: Burden,
) -> TimelineFile:
    file = entry.data_file
    found = TimelineFile(
        id=file.file_path,
        times=times,
        size_bytes=file.file_size_in_bytes,
        rows=file.record_count,
        version=entry.sequence_number or 0,
        group=lane.group,
    )
    if not deletes and not burden.files:
        return found
    deleted_rows = _deleted_rows(file, deletes, burden)
    return replace(found, deletes=len(deletes) + burden.files, deleted_rows=deleted_rows)


def _deleted_rows(file: DataFile, deletes: Collection[DataFile], burden: Burden) -> int:
    """Rows of a file that are hidden; 0 if there are any and nobody knows how many. What equality deletes
    hide is estimated, and never all that is left: that would be a file without rows."""
    rows = file.record_count
    by_position = min(rows, sum(d.record_count for d in deletes if Listing.is_only_for(d, file)))
    if not burden.files or (deletes and not by_position):
        return by_position
    return max(by_position, min(rows - 1, by_position + max(1, round(burden.share * rows))))


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
    """Lanes by partition; naming one costs more than looking it up, and that more than to see that a file has
    the very partition of the one before, as most have that are listed together."""

    def __init__(self, table: Table) -> None:
        self._schema: Schema = table.metadata.schema()
        self._specs: Mapping[int, PartitionSpec] = table.metadata.specs()
        self._known: dict[Place, Lane] = {}
        self._last: tuple[int, Record, Lane] | None = None

    def of(self, file: DataFile) -> Lane:
        spec_id, partition, last = file.spec_id, file.partition, self._last
        if last is not None and last[1] is partition and last[0] == spec_id:
            return last[2]
        lane = self._look_up(file)
        self._last = spec_id, partition, lane
        return lane

    def _look_up(self, file: DataFile) -> Lane:
        key = place_of(file)
        lane = self._known.get(key)
        if lane is None:
            name = partition_path(self._specs[file.spec_id], file.partition, self._schema)
            lane = self._known[key] = Lane(file.spec_id, name)
        return lane
