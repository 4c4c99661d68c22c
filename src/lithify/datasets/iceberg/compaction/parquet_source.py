"""Reading a Parquet file whose columns are exactly those of the outputs.

1. The columns are the same when names, types, nullability, field ids and order are, also inside nested types
   (`has_columns`). A file that differs needs a projection and is not read here.
2. Row groups without a row of the range, by the statistics in the footer, are skipped.
3. The others are read in sequence, each in batches, and rows outside the range are dropped.

Memory is bounded by the compressed bytes of a row group and a few batches. All work is done in the calling
thread: tasks already run concurrently, and handing small columns to other threads costs more than decoding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from lithify.datasets.iceberg.format.footers import interval_of
from lithify.datasets.iceberg.format.time_column import NO_TIME, times_us
from lithify.datasets.iceberg.model import TimeRange
from lithify.planning.timeline.model import Interval

BATCH_ROWS = 128 * 1024


def with_small_offsets(schema: pa.Schema) -> pa.Schema:
    """Return the schema with 32-bit offsets in texts, bytes and lists, as most files are read."""
    return pa.schema([_small_field(field) for field in schema], schema.metadata)


def _small_field(field: pa.Field) -> pa.Field:
    return field.with_type(_small(field.type))


def _small(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_large_list(kind):
        return pa.list_(_small_field(kind.value_field))
    if pa.types.is_struct(kind):
        return pa.struct([_small_field(field) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_small_field(kind.key_field), _small_field(kind.item_field))
    return kind


def has_columns(file: pq.ParquetFile, schemas: Iterable[pa.Schema]) -> bool:
    """Return whether a file's columns are those of one of the schemas."""
    stored: pa.Schema = file.schema_arrow.remove_metadata()
    return any(stored.equals(schema.remove_metadata(), check_metadata=True) for schema in schemas)


def batches_near_range(
    file: pq.ParquetFile, time_name: str | None, wanted: TimeRange | None
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield all rows of the row groups that may have rows of the range, each batch after the position of its
    first row in the file. `time_name` is the time column's name in the file; `None` if it has none."""
    start = 0
    for group in range(file.num_row_groups):
        end = start + file.metadata.row_group(group).num_rows
        if wanted is None or time_name is None or may_meet(file, group, time_name, wanted):
            for batch in file.iter_batches(BATCH_ROWS, row_groups=[group], use_threads=False):
                yield start, batch
                start += batch.num_rows
        start = end


def rows_in_range(
    batch: pa.RecordBatch, time_name: str, wanted: TimeRange | None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows whose time is in the range, or all; nothing if there are none."""
    chosen = None if wanted is None else _is_in(times_us(batch.column(time_name)), wanted)
    if chosen is None or chosen.all():
        if batch.num_rows:
            yield batch
    elif chosen.any():
        yield batch.filter(pa.array(chosen))


def may_meet(file: pq.ParquetFile, group: int, time_name: str, wanted: TimeRange) -> bool:
    """Return whether a row group may have rows of the range; `time_name` is the time column's name in the
    file."""
    if wanted.with_nulls:
        return True
    times = interval_of(file.metadata, file.schema_arrow, [group], time_name)
    return not isinstance(times, Interval) or (
        (wanted.end_us is None or times.start_us < wanted.end_us)
        and (wanted.start_us is None or wanted.start_us < times.end_us)
    )


def _is_in(times: npt.NDArray[np.int64], wanted: TimeRange) -> npt.NDArray[np.bool_]:
    has_no_time = times == NO_TIME
    inside: npt.NDArray[np.bool_] = ~has_no_time
    if wanted.start_us is not None:
        inside &= times >= wanted.start_us
    if wanted.end_us is not None:
        inside &= times < wanted.end_us
    if wanted.with_nulls:
        inside |= has_no_time
    return inside
