"""The input of planning, derived from a listing.

1. The time interval of each data file is that of its bounds. If the manifest has none (the table's metrics
   are off for the column), it is read from the file's footer.
2. A table with a name mapping may have files that were not written for Iceberg. Their footers are always
   read: they show whether a rewrite can be correct.
3. A file without rows, or without a time in any row, has no place on the axis. In a table without a time
   column no file has one.
4. Rows hidden by position are counted if the delete file applies to a single data file. Rows hidden by
   equality deletes are estimated (`equality_deletes`) if the policy needs it: each commit of such deletes
   changes the estimate of every older file.
5. A file that cannot be rewritten (`refusals`), or is listed more than once, is treated as having unknown
   times: the planner skips it but counts it, so that the totals are those of the table. The same applies to
   every file of a table whose data cannot be compacted (`draw_refused`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntry
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.typedef import Record
from pyiceberg.types import NestedField

from lithify.datasets.iceberg.compaction.support_checks import Refusals, table_notes
from lithify.datasets.iceberg.deletes.equality_deletes import NO_BURDEN, Burden
from lithify.datasets.iceberg.format.footers import Footers
from lithify.datasets.iceberg.format.listing import Listing
from lithify.datasets.iceberg.format.manifest_scan import id_of
from lithify.datasets.iceberg.format.ownership import parse_name
from lithify.datasets.iceberg.format.partitions import Place, partition_paths, place_of
from lithify.datasets.iceberg.format.replace import data_file_of
from lithify.datasets.iceberg.format.time_column import bound_us, bounded
from lithify.datasets.iceberg.model import EqualityCost, Lane, LeftFiles, NewFile, TableState
from lithify.datasets.iceberg.policy import TablePolicy
from lithify.planning.timeline.model import ChunkBucket, Interval, TimelineFile
from lithify.planning.timeline.state import ChunkStates

_UNKNOWN_TIMES = "have no bounds of the time column, neither in the manifest nor in the file"
_MISCOUNTED = "have rows, although their manifest states that they have none; remove them and add them again"
_REPEATED = (
    "are listed more than once, so readers return their rows more than once; if that was a mistake, remove "
    "the path and add it once"
)


def draw_state(
    table: Table,
    listing: Listing | None,
    policy: TablePolicy,
    time_column: NestedField | None,
    footers: Footers,
    states: ChunkStates,
    refused: Mapping[str, str] = MappingProxyType({}),
    notes: Sequence[str] = (),
) -> TableState:
    """Return the table's state for the planner. `refused` are the parts of maintenance, other than data, that
    cannot be done. Without a time column files have no order."""
    drawn = _Drawn(table, listing, time_column, policy) if listing is not None else None
    if drawn is not None:
        drawn.read_footers(footers)
    left = () if drawn is None else drawn.left_alone()
    return TableState(
        uuid=str(table.metadata.table_uuid),
        snapshot_id=listing.snapshot.snapshot_id if listing is not None else None,
        timestamp_ms=listing.snapshot.timestamp_ms if listing is not None else 0,
        sort_order_id=table.metadata.default_sort_order_id,
        files=() if drawn is None else (*drawn.files.values(), *drawn.repeated.values()),
        delete_files=listing.delete_file_count if listing is not None else 0,
        policy=policy,
        equality=EqualityCost() if listing is None else cost_of(listing),
        is_timed=time_column is not None,
        notes=(*notes, *(files.note for files in left), *table_notes(table.metadata)),
        left_alone=left,
        refused=refused,
        states=states,
        source=listing,
    )


def draw_files(
    table: Table,
    listing: Listing,
    paths: Iterable[str],
    policy: TablePolicy,
    time_column: NestedField | None,
    footers: Footers,
) -> Mapping[str, TimelineFile]:
    """Return only these data files, by path; each must be identified by its path."""
    drawn = _Drawn(table, listing, time_column, policy, [listing.data[path] for path in paths])
    drawn.read_footers(footers)
    return drawn.files


def draw_refused(
    table: Table,
    listing: Listing | None,
    policy: TablePolicy,
    refused: Mapping[str, str],
    states: ChunkStates,
) -> TableState:
    """Return the state of a table whose data cannot be compacted: its files are counted, and none has a
    time."""
    lanes = _PartitionLanes(table)
    files: dict[str, TimelineFile] = {}
    for entry in () if listing is None else listing.entries(DataFileContent.DATA):
        file = _timeline_file(entry, ChunkBucket.UNKNOWN, lanes.of(entry.data_file), (), NO_BURDEN)
        known = files.get(file.id)
        files[file.id] = file if known is None else _together(known, file)
    return TableState(
        uuid=str(table.metadata.table_uuid),
        snapshot_id=listing.snapshot.snapshot_id if listing is not None else None,
        timestamp_ms=listing.snapshot.timestamp_ms if listing is not None else 0,
        sort_order_id=table.metadata.default_sort_order_id,
        files=tuple(files.values()),
        delete_files=listing.delete_file_count if listing is not None else 0,
        policy=policy,
        equality=EqualityCost() if listing is None else cost_of(listing),
        notes=(refused["data"],),
        refused=refused,
        states=states,
        source=listing,
    )


def cost_of(listing: Listing) -> EqualityCost:
    """Return what a snapshot's equality deletes cost readers."""
    deletes = [entry.data_file for entry in listing.entries(DataFileContent.EQUALITY_DELETES)]
    if not deletes:
        return EqualityCost()
    burdens = (listing.equality_deletes.burden(entry) for entry in listing.entries(DataFileContent.DATA))
    paid = [(burden.rows, burden.size_bytes) for burden in burdens if burden.files]
    return EqualityCost(
        files=len(deletes),
        keys=sum(file.record_count for file in deletes),
        size_bytes=sum(file.file_size_in_bytes for file in deletes),
        scan_keys=sum(keys for keys, _ in paid),
        scan_bytes=sum(size_bytes for _, size_bytes in paid),
    )


def _together(before: TimelineFile, file: TimelineFile) -> TimelineFile:
    """Combine the files that a repeated path stands for."""
    return TimelineFile(
        id=file.id,
        times=ChunkBucket.UNKNOWN,
        size_bytes=before.size_bytes + file.size_bytes,
        rows=before.rows + file.rows,
        version=max(before.version, file.version),
        group=before.group,
    )


class _Drawn:
    """The files of a listing, which is iterated only once because it may be very long."""

    def __init__(
        self,
        table: Table,
        listing: Listing,
        column: NestedField | None,
        policy: TablePolicy,
        chosen: Iterable[ManifestEntry] | None = None,
    ) -> None:
        """Use only the data files in `chosen`, or all."""
        self._table = table
        self._column = column
        self._names = table.metadata.name_mapping()
        self.files: dict[str, TimelineFile] = {}
        """Files that are identified by their paths, by path."""
        self.repeated: dict[str, TimelineFile] = {}
        """Paths that are listed more than once: each stands for several files."""
        self._reasons: dict[str, str] = {}
        """Why a file is skipped, by path."""
        self._stuck: set[str] = set()
        """The skipped files that have more deletes than can be applied."""
        self._asked: dict[str, int] = {}
        """Sizes of the files whose footers have to be read, by path."""
        self._refusals = Refusals(table.metadata, table.io.properties)
        self._estimates_deletes = bool(policy.max_deleted_percent)
        lanes, has_deletes = _PartitionLanes(table), bool(listing.delete_file_count)
        for entry in listing.entries(DataFileContent.DATA) if chosen is None else chosen:
            file = self._file(entry, listing, lanes, has_deletes=has_deletes)
            if file.id not in self.files and file.id not in self.repeated:
                self.files[file.id] = file
            else:
                self._repeat(self.repeated.get(file.id) or self.files.pop(file.id), file)
        if has_deletes and chosen is None:
            self._repeat_deletes(listing)

    def _file(
        self, entry: ManifestEntry, listing: Listing, lanes: _PartitionLanes, *, has_deletes: bool
    ) -> TimelineFile:
        file = entry.data_file
        burden = listing.equality_deletes.burden(entry)
        deletes = listing.deletes_of(entry) if has_deletes else frozenset[DataFile]()
        reason = self._refusals.why_left_alone(file, burden.why_unfit, deletes)
        times = ChunkBucket.UNKNOWN if reason is not None else times_of(file, self._column)
        if reason is not None:
            self._reasons[file.file_path] = reason
            if burden.is_too_much:
                self._stuck.add(file.file_path)
        elif (
            times is ChunkBucket.UNKNOWN
            or not file.record_count
            or (self._names is not None and parse_name(file.file_path) is None)
        ):
            self._asked[file.file_path] = file.file_size_in_bytes
        known = burden if self._estimates_deletes else NO_BURDEN
        return _timeline_file(entry, times, lanes.of(file), deletes, known)

    def _repeat(self, before: TimelineFile, file: TimelineFile) -> None:
        """Record a repeated path. Which of its files the deletes apply to does not matter here."""
        self._reasons.pop(file.id, None)
        self._asked.pop(file.id, None)
        self.repeated[file.id] = _together(before, file)

    def _repeat_deletes(self, listing: Listing) -> None:
        """Record data files whose path is also that of a delete file as repeated."""
        of_deletes = listing.entries(DataFileContent.POSITION_DELETES, DataFileContent.EQUALITY_DELETES)
        for path in sorted({entry.data_file.file_path for entry in of_deletes} & self.files.keys()):
            file = self.files.pop(path)
            self._reasons.pop(path, None)
            self._asked.pop(path, None)
            self.repeated[path] = replace(file, times=ChunkBucket.UNKNOWN, deletes=0, deleted_rows=0)

    def read_footers(self, footers: Footers) -> None:
        """Read times missing in manifests, and other facts that only the files contain."""
        schema = self._table.metadata.schema()
        found = footers.read(self._table.io, self._asked, schema, id_of(self._column), self._names)
        for path, footer in found.items():
            file, times = self.files[path], footer.times
            if footer.unfit is not None:
                self._reasons[path] = footer.unfit
            elif not file.rows and footer.has_rows:
                self._reasons[path] = _MISCOUNTED
                times = ChunkBucket.UNKNOWN
            elif file.times is not ChunkBucket.UNKNOWN:
                continue
            elif times is ChunkBucket.UNKNOWN:
                self._reasons[path] = _UNKNOWN_TIMES
            known = bounded(times.start_us, times.end_us) if isinstance(times, Interval) else times
            self.files[path] = replace(file, times=known)

    def left_alone(self) -> tuple[LeftFiles, ...]:
        """Return the skipped files, for each reason."""
        found: dict[tuple[str, bool], list[TimelineFile]] = {}
        for path, reason in self._reasons.items():
            found.setdefault((reason, path in self._stuck), []).append(self.files[path])
        if self.repeated:
            found[_REPEATED, False] = list(self.repeated.values())
        return tuple(
            LeftFiles(why, len(files), sum(f.size_bytes for f in files), sum(f.rows for f in files), is_stuck)
            for (why, is_stuck), files in sorted(found.items())
        )


def _timeline_file(
    entry: ManifestEntry,
    times: Interval | ChunkBucket,
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
    """Return the number of hidden rows of a file; 0 if it is unknown. The rows hidden by equality deletes are
    estimated, but never as all remaining rows: that would be a file without rows."""
    rows = file.record_count
    by_position = min(rows, sum(d.record_count for d in deletes if Listing.is_only_for(d, file)))
    if not burden.files or (deletes and not by_position):
        return by_position
    return max(by_position, min(rows - 1, by_position + max(1, round(burden.share * rows))))


def written_file(new: NewFile, lane: Lane, sequence_number: int, column: NestedField | None) -> TimelineFile:
    """Return an output as the next listing will show it after the commit."""
    return TimelineFile(
        id=new.path,
        times=times_of(data_file_of(new, lane.spec_id, Record()), column),
        size_bytes=new.size_bytes,
        rows=new.rows,
        version=sequence_number,
        group=lane.group,
    )


def times_of(file: DataFile, column: NestedField | None) -> Interval | ChunkBucket:
    """Return a file's times by the manifest. A file without rows has none; neither has one without a time
    column."""
    if column is None or not file.record_count:
        return ChunkBucket.NULL
    low = bound_us(column.field_type, (file.lower_bounds or {}).get(column.field_id))
    high = bound_us(column.field_type, (file.upper_bounds or {}).get(column.field_id))
    if low is not None and high is not None and low <= high:
        return bounded(low, high + 1)
    nulls = (file.null_value_counts or {}).get(column.field_id)
    if nulls is not None and nulls >= file.record_count:
        return ChunkBucket.NULL
    return ChunkBucket.UNKNOWN


class _PartitionLanes:
    """Lanes by partition. Computing a name costs more than looking it up, and looking it up costs more than
    comparing with the previous file's partition, which is usually the same."""

    def __init__(self, table: Table) -> None:
        self._schema: Schema = table.metadata.schema()
        self._specs: Mapping[int, PartitionSpec] = table.metadata.specs()
        self._names: dict[int, Callable[[Record], str]] = {}
        """Functions that return a partition's name, by spec."""
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
            lane = self._known[key] = Lane(file.spec_id, self._name_of(file))
        return lane

    def _name_of(self, file: DataFile) -> str:
        name = self._names.get(file.spec_id)
        if name is None:
            name = self._names[file.spec_id] = partition_paths(self._specs[file.spec_id], self._schema)
        return name(file.partition)
