"""Rewriting one range: read, sort into pieces, write files of roughly equal size.

1. Read the rows of the range from every source and apply deletes. Meanwhile, the next files are opened
   (`opened_ahead`).
2. Sort them into the pieces of the range (`spill`), in bounded memory.
3. Sort each piece by the table's sort order, or by time if it has a time column, and write it to as few files
   of equal size as the target allows. A piece too large for the buffer is processed in parts that follow each
   other in time: if rows are sorted by time first, or not at all, files continue across the parts; with any
   other order each part has its own files, since a file must be sorted as a whole. Without a time column that
   would be many small files: files continue, and are recorded as not sorted.
4. Files of a piece name the sources that had a row in it, so that every source's rows can be traced. A file
   in a store is uploaded while the next file is written; the task waits for all uploads at the end.

The files count only once they are committed. On any error they are deleted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from lithify.base.clock import SystemClock
from lithify.base.defects import contained
from lithify.base.errors import LithifyError, NoRoom, StoreError, StoreUnavailable
from lithify.base.ids import Ids, RandomIds
from lithify.base.peak_memory import peak_memory_bytes
from lithify.coordination.reporting import reported
from lithify.datasets.iceberg.compaction.reader import RangeReader
from lithify.datasets.iceberg.compaction.spill import Pieces
from lithify.datasets.iceberg.compaction.task import RewriteBatch, RewriteTask, TaskResult
from lithify.datasets.iceberg.compaction.writer import DataWriter, RollingWriter
from lithify.datasets.iceberg.format.floats import NanColumns
from lithify.datasets.iceberg.format.sizing import even_rows
from lithify.datasets.iceberg.format.sorting import RowOrder, row_order, sort_rows
from lithify.datasets.iceberg.io.stores import lend
from lithify.datasets.iceberg.model import LeftAlone
from lithify.store.urls import open_store

Report = Callable[[float, int], None]

_SURELY_ONE = 0.6
"""Rows that took less than this share of the target size of a file or row group in the inputs fit into one,
however they compress."""


def execute_rewrites(batch: RewriteBatch) -> TaskResult:
    """Run a task in this process."""
    if batch.done:
        return TaskResult(batch.done, 0, 0, 0, 0, 0.0, peak_memory_bytes())
    ids = RandomIds()
    if not batch.store_url:
        return run_rewrites(batch, ids, _no_report)
    store, _ = open_store(batch.store_url, batch.store_options)
    for task in batch.tasks[:1]:
        lend(store, task.io.properties)
    if batch.state_url:
        store, _ = open_store(batch.state_url, batch.state_options)
    with reported(batch.reporting, store, SystemClock(), ids) as reporter:

        def report(bytes_read: float, bytes_written: int) -> None:
            if reporter is not None and reporter.is_due():
                reporter.report(round(bytes_read), bytes_written)

        return run_rewrites(batch, ids, report)


def run_rewrites(batch: RewriteBatch, ids: Ids, report: Report) -> TaskResult:
    """Run the rewrites in sequence. If other parts of the compaction can continue, inputs that cannot be
    rewritten are skipped. An unavailable store or a full disk is always raised, since the other parts would
    fail likewise."""
    done = TaskResult((), 0, 0, 0, 0, 0.0, 0)
    for task in batch.tasks:
        read, written = done.bytes_read, done.bytes_written

        def report_all(
            bytes_read: float, bytes_written: int, read: int = read, written: int = written
        ) -> None:
            report(read + bytes_read, written + bytes_written)

        try:
            with contained(f"rewriting {task.sources[0].file.file_path} and other files of its partition"):
                done += run_rewrite(task, ids, report_all)
        except (StoreUnavailable, NoRoom):
            raise
        except LithifyError as error:
            if batch.is_whole:
                raise
            done += _left_alone(task, str(error), ids)
    return done


def _left_alone(task: RewriteTask, reason: str, ids: Ids) -> TaskResult:
    name = f"{task.name_prefix}-{ids.uuid().hex}-left"
    sources = tuple(sorted(source.position for source in task.sources))
    return TaskResult((LeftAlone(name, sources, reason),), 0, 0, 0, 0, 0.0, peak_memory_bytes())


def run_rewrite(task: RewriteTask, ids: Ids, report: Report) -> TaskResult:
    """Rewrite one range; `ids` name the outputs, and `report` is called periodically with the number of bytes
    read and written."""
    started_s = time.process_time()
    reader = RangeReader(task)
    time_name = reader.column_name(task.time_field_id)
    nans = NanColumns(reader.file_schema)
    writer = DataWriter(task, reader.file_schema, ids.uuid().hex, nans)
    order = row_order(task.metadata, reader.file_schema, task.sort_order_id, time_name)
    bytes_read = 0.0
    try:
        with Pieces(task.range.cuts, time_name, task.buffer_bytes) as pieces:
            files = reader.opened_ahead()
            for source in task.sources:
                bytes_per_row = source.file.file_size_in_bytes / max(source.file.record_count, 1)
                for batch in reader.batches(source, files):
                    rows = pa.Table.from_batches([batch])
                    nans.look_at(rows)
                    pieces.add(rows, source.position)
                    bytes_read += bytes_per_row * batch.num_rows
                    report(bytes_read, 0)
            row_count = pieces.rows
            if not time_name and pieces.spilled_bytes:
                order = order.within_parts()
            stored_bytes_per_row = bytes_read / max(row_count, 1)
            for piece, tables in pieces.drain():
                writer.sources = tuple(sorted(piece.sources))
                _write_piece(writer, tables, piece.rows, stored_bytes_per_row, task.target_bytes, order)
                report(bytes_read, writer.written_bytes)
            spilled_bytes = pieces.spilled_bytes
        writer.finish_uploads(lambda: report(bytes_read, writer.written_bytes))
    except BaseException as error:
        try:
            writer.abandon(error)
        except StoreError as abandon_error:
            error.add_note(f"and its unfinished outputs could not be deleted: {abandon_error}")
        raise
    return TaskResult(
        outputs=tuple(writer.finished),
        rows=row_count,
        bytes_read=round(bytes_read),
        bytes_written=sum(file.size_bytes for file in writer.finished),
        spilled_bytes=spilled_bytes,
        cpu_s=time.process_time() - started_s,
        peak_memory_bytes=peak_memory_bytes(),
    )


def _no_report(_bytes_read: float, _bytes_written: int) -> None:
    """Ignore the progress."""


def _write_piece(
    writer: DataWriter,
    tables: Iterable[pa.Table],
    rows: int,
    input_bytes_per_row: float,
    target_bytes: int,
    order: RowOrder,
) -> None:
    rolling: RollingWriter | None = None
    for table in _sorted(tables, order):
        if rolling is None or not order.is_by_time:
            part_rows = rows if order.is_by_time else table.num_rows
            bytes_of_one = min(target_bytes, writer.options.row_group_bytes)
            if part_rows * input_bytes_per_row < _SURELY_ONE * bytes_of_one:
                bytes_per_row = input_bytes_per_row
            else:
                bytes_per_row = writer.stored_bytes_per_row(table)
            rows_per_file = even_rows(part_rows, bytes_per_row, target_bytes)
            rolling = RollingWriter(writer, rows_per_file, bytes_per_row, order.order_id)
        rolling.write(table)
        if not order.is_by_time:
            rolling.close()
    if rolling is not None:
        rolling.close()


def _sorted(tables: Iterable[pa.Table], order: RowOrder) -> Iterator[pa.Table]:
    for table in tables:
        yield sort_rows(table.combine_chunks(), order)
