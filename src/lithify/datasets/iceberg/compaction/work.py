"""Conversion of a compaction to the work of its tasks, which only small values describe.

1. Each part of the spec is cut into ranges of time (`split`), and each range has the inputs with rows in it.
   A part of inputs without a place on the axis is divided into ranges of whole inputs.
2. A compaction of one part has a task for each range. If it has many small parts, one task processes several
   of them in sequence, up to `range_bytes`: every file counts `OPEN_BYTES` more than its size, since opening
   a file takes as long as reading that many bytes. A task's size does not grow further with the number of
   parts, except for the statistics of its outputs (`MAX_STATISTICS`).
3. Ranges that an earlier attempt recorded are reused unchanged.

Only the inputs of the compaction are processed, however many files the table has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import NestedField

from lithify.base.errors import CorruptObject, Refused
from lithify.base.ids import Ulid
from lithify.coordination.sidecar import Reporting
from lithify.datasets.iceberg.compaction.delete_inputs import Sources
from lithify.datasets.iceberg.compaction.dictionary_columns import repeating_columns
from lithify.datasets.iceberg.compaction.split import split, split_packs
from lithify.datasets.iceberg.compaction.task import RewriteBatch, RewriteTask, SourceFile, slim
from lithify.datasets.iceberg.format.listing import Listing
from lithify.datasets.iceberg.format.manifest_scan import id_of
from lithify.datasets.iceberg.format.ownership import data_prefix, mark_of
from lithify.datasets.iceberg.format.sorting import sort_fields
from lithify.datasets.iceberg.model import ChunkSpec, SpecPart, TimeRange, WorkRange
from lithify.planning.timeline.model import Interval, TimelineFile

OPEN_BYTES = 256 * 1024
"""The bytes that can be read in the time of opening a file."""
MAX_STATISTICS = 5_000
"""The maximum number of columns in all outputs of a task of several parts, so that its result stays small."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The values common to all tasks of a compaction."""

    compaction_id: Ulid
    spec: ChunkSpec
    metadata: TableMetadata
    io: FileIO
    column: NestedField | None
    """The time column; `None` if the table has no order."""
    target_bytes: int
    buffer_bytes: int
    range_bytes: int
    store_url: str
    store_options: Mapping[str, str]
    state_url: str = ""
    state_options: Mapping[str, str] = field(default_factory=dict)
    has_row_maps: bool = False


class Work:
    """The tasks of one compaction."""

    def __init__(self, terms: Terms, listing: Listing, files: Mapping[str, TimelineFile]) -> None:
        """`files` are the inputs, by path."""
        self._terms = terms
        self._listing = listing
        self._files = files
        spec = terms.spec
        self._slim = slim(terms.metadata, terms.io.properties)
        positions = {path: n for n, path in enumerate(spec.inputs)}
        self._sources = Sources(listing, terms.column, positions)
        self._sorted_by = [field.source_id for field in sort_fields(terms.metadata, spec.sort_order_id)]
        self._repeating: dict[int, tuple[int, ...]] = {}

    def cost_bytes(self, tasks: Sequence[RewriteTask]) -> int:
        """Estimate the bytes that these tasks read: for each input, the share of its time that is read, as if
        its rows were distributed evenly."""
        shares = (
            source.file.file_size_in_bytes * _share(self._files[source.file.file_path], task.range)
            for task in tasks
            for source in task.sources
        )
        return round(sum(shares))

    def ranges(self) -> Iterator[tuple[WorkRange, tuple[RewriteTask, ...]]]:
        """Yield the ranges of a compaction without recorded ranges, each with its rewrites."""
        if len(self._terms.spec.parts) == 1:
            yield from (((one,), (task,)) for one, task in self._single_ranges())
            return
        most_parts = max(1, MAX_STATISTICS // max(1, len(self._slim.schema().fields)))
        taken: list[tuple[TimeRange, RewriteTask]] = []
        taken_bytes = 0
        for one, task in self._single_ranges():
            weight = self.cost_bytes([task]) + OPEN_BYTES * len(task.sources)
            is_full = taken_bytes + weight > self._terms.range_bytes or len(taken) >= most_parts
            if taken and is_full:
                yield _together(taken)
                taken, taken_bytes = [], 0
            taken.append((one, task))
            taken_bytes += weight
        if taken:
            yield _together(taken)

    def tasks_of(self, work: WorkRange) -> tuple[RewriteTask, ...]:
        """Return the rewrites of a recorded range. Raise `CorruptObject` when it is not a range of the
        spec."""
        if any(one.part >= len(self._terms.spec.parts) for one in work):
            raise CorruptObject(
                f"compaction {self._terms.compaction_id}", "records a range that belongs to none of its parts"
            )
        for one in work:
            self._check(one)
        return tuple(self._task(one, self._sources_of(one)) for one in work)

    def _check(self, one: TimeRange) -> None:
        """Raise when a recorded range is not one of this table, as it is now."""
        what = f"compaction {self._terms.compaction_id}"
        if one.inputs is not None:
            if one.inputs[1] > len(self._terms.spec.parts[one.part].inputs):
                raise CorruptObject(what, "records a range of more inputs than it has")
        elif self._terms.column is None and (one.start_us, one.end_us) != (None, None):
            raise Refused(f"{what} was divided by a time column that the table no longer has; plan again")

    def batch(self, index: int, tasks: tuple[RewriteTask, ...], reporting: Reporting | None) -> RewriteBatch:
        """Return the argument of the task for the range with this index."""
        terms = self._terms
        prefix = data_prefix(mark_of(self._slim), terms.compaction_id, index)
        return RewriteBatch(
            tasks=tuple(replace(task, name_prefix=prefix) for task in tasks),
            is_whole=len(terms.spec.parts) == 1,
            reporting=reporting,
            store_url=terms.store_url,
            store_options=terms.store_options,
            state_url=terms.state_url,
            state_options=terms.state_options,
        )

    def _single_ranges(self) -> Iterator[tuple[TimeRange, RewriteTask]]:
        terms = self._terms
        for number, part in enumerate(terms.spec.parts):
            files = [self._files[path] for path in part.inputs]
            if any(isinstance(file.times, Interval) for file in files):
                cuts = split(files, part.cuts, terms.target_bytes, terms.range_bytes)
            else:
                cuts = split_packs(files, terms.target_bytes, terms.range_bytes)
            for cut in cuts:
                one = replace(cut, part=number)
                sources = self._sources.of(files, one)
                if sources:
                    yield one, self._task(one, sources)

    def _sources_of(self, one: TimeRange) -> tuple[SourceFile, ...]:
        part = self._terms.spec.parts[one.part]
        return self._sources.of([self._files[path] for path in part.inputs], one)

    def _task(self, one: TimeRange, sources: tuple[SourceFile, ...]) -> RewriteTask:
        terms, part = self._terms, self._terms.spec.parts[one.part]
        return RewriteTask(
            metadata=self._slim,
            io=terms.io,
            sources=sources,
            range=one,
            spec_id=part.lane.spec_id,
            time_field_id=id_of(terms.column),
            sort_order_id=terms.spec.sort_order_id,
            target_bytes=terms.target_bytes,
            buffer_bytes=terms.buffer_bytes,
            equality_deletes=self._sources.equality_deletes(sources),
            repeating=self._repeating_of(one.part, part),
            has_row_maps=terms.has_row_maps,
        )

    def _repeating_of(self, number: int, part: SpecPart) -> tuple[int, ...]:
        found = self._repeating.get(number)
        if found is None:
            data: Iterator[DataFile] = (self._listing.data[path].data_file for path in part.inputs)
            found = repeating_columns(self._slim.schema(), data, self._sorted_by)
            self._repeating[number] = found
        return found


def _share(file: TimelineFile, part: TimeRange) -> float:
    """Return the share of a file's time that is in a range; 1 for files without times."""
    times = file.times
    if not isinstance(times, Interval):
        return 1.0
    start = times.start_us if part.start_us is None else max(times.start_us, part.start_us)
    end = times.end_us if part.end_us is None else min(times.end_us, part.end_us)
    return max(end - start, 0) / (times.end_us - times.start_us)


def _together(
    taken: Sequence[tuple[TimeRange, RewriteTask]],
) -> tuple[WorkRange, tuple[RewriteTask, ...]]:
    return tuple(one for one, _ in taken), tuple(task for _, task in taken)
