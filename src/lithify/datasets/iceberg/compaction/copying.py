"""Rewriting a task's files by copying their Parquet pages, where no row changes its place.

1. Rows keep their order: the table has no time column and no sort order. All rows of all sources are wanted:
   none is deleted or outside the range, and none needs its identity written.
2. All sources have exactly the columns of the outputs, as for reading without a projection.
3. Consecutive sources become files of about equal size within the target, with the codec, page sizes
   and Bloom filters of the table. A compression level that it requires is given to every page.

All else, also a file whose pages cannot be copied, is decoded: the reason is logged, and outputs already
begun are deleted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from math import ceil

import pyarrow.parquet as pq

from lithify.base.ids import Ids
from lithify.base.peak_memory import peak_memory_bytes
from lithify.datasets.iceberg.compaction.reader import RangeReader
from lithify.datasets.iceberg.compaction.task import RewriteTask, SourceFile, TaskResult
from lithify.datasets.iceberg.compaction.writer import DataWriter
from lithify.datasets.iceberg.errors import translated
from lithify.datasets.iceberg.format.floats import NanColumns
from lithify.datasets.iceberg.format.manifest_scan import NO_COLUMN
from lithify.parquet.copier import ParquetInput
from lithify.parquet.errors import CannotMerge

_log = logging.getLogger("lithify")


def copied_rewrite(
    task: RewriteTask, reader: RangeReader, ids: Ids, report: Callable[[float, int], None]
) -> TaskResult | None:
    """Rewrite a task's files by copying pages; `None` if they must be decoded. `report` is called with the
    bytes read and written."""
    if _must_decode(task):
        return None
    started_s = time.process_time()
    writer = DataWriter(task, reader.file_schema, ids.uuid().hex, NanColumns(reader.file_schema))
    rows = bytes_read = 0
    opened = _opened(task, reader)

    def inputs(sources: Sequence[SourceFile]) -> Iterator[ParquetInput]:
        nonlocal bytes_read
        for source in sources:
            one, _ = next(opened)
            yield one
            bytes_read += source.file.file_size_in_bytes
            report(bytes_read, writer.written_bytes)

    try:
        first = next(opened)
        opened = chain([first], opened)
        for sources in _divided(task.sources, task.target_bytes / first[1]):
            writer.sources = tuple(sorted(source.position for source in sources))
            file = writer.open_copy()
            with translated(f"merging {len(sources)} files into {file.output.location}"):
                copied = file.fill(inputs(sources), writer.merge_options)
            if copied != sum(source.file.record_count for source in sources):
                raise CannotMerge("the files have another number of rows than the table says")
            rows += copied
            writer.finish(file, 0)
        writer.finish_uploads(lambda: report(bytes_read, writer.written_bytes))
    except BaseException as error:
        writer.abandon(error)
        if not isinstance(error, CannotMerge):
            raise
        _log.info("rows are decoded, because pages cannot be copied: %s", error)
        return None
    return TaskResult(
        outputs=tuple(writer.finished),
        rows=rows,
        bytes_read=bytes_read,
        bytes_written=sum(file.size_bytes for file in writer.finished),
        spilled_bytes=0,
        cpu_s=time.process_time() - started_s,
        peak_memory_bytes=peak_memory_bytes(),
    )


def _must_decode(task: RewriteTask) -> bool:
    newest_delete = max((delete.number for delete in task.equality_deletes), default=-1)
    return (
        task.time_field_id != NO_COLUMN
        or task.sort_order_id != 0
        or task.has_row_ids
        or any(
            source.delete_files
            or newest_delete > source.number
            or not source.is_inside
            or source.file.file_size_in_bytes > task.target_bytes
            for source in task.sources
        )
    )


def _opened(task: RewriteTask, reader: RangeReader) -> Iterator[tuple[ParquetInput, float]]:
    """Yield the sources, opened, each with the share of its bytes that are not its footer. Raise
    `CannotMerge` for one whose columns are not those of the outputs."""
    files = reader.opened_ahead()
    for source in task.sources:
        path, size = source.file.file_path, source.file.file_size_in_bytes
        with translated(f"reading {path}"):
            stream = files.take()
            file = pq.ParquetFile(stream)
        schema = file.schema
        if not reader.has_columns(file):
            raise CannotMerge(f"{path}: its columns are not those of the table")
        if any(schema.column(n).physical_type == "INT96" for n in range(len(schema))):
            raise CannotMerge(f"{path}: a column has timestamps of 12 bytes")
        yield ParquetInput(path, stream, size), max(0.1, 1 - file.metadata.serialized_size / max(size, 1))


def _divided(sources: Sequence[SourceFile], target_bytes: float) -> Iterator[Sequence[SourceFile]]:
    """Yield the sources of each output: the fewest of about equal size within the target."""
    total = sum(source.file.file_size_in_bytes for source in sources)
    share = total / max(1, ceil(total / target_bytes))
    taken: list[SourceFile] = []
    taken_bytes = 0
    for source in sources:
        size = source.file.file_size_in_bytes
        if taken and (taken_bytes >= share or taken_bytes + size > target_bytes):
            yield taken
            taken, taken_bytes = [], 0
        taken.append(source)
        taken_bytes += size
    yield taken
