"""The times of data files whose manifest entries have no bounds, from the footers of the files.

A table whose metrics are switched off for the time column has no bounds in its manifests, but Parquet
keeps them anyway. A footer that was read is remembered, since data files never change.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.table.name_mapping import NameMapping

from lithify.datasets.iceberg.foreign import translated
from lithify.datasets.iceberg.timecolumn import MICROSECONDS_PER_DAY
from lithify.planning.timeline.model import Bucket, Interval

MAX_CACHED = 100_000
"""Files remembered; each takes some hundred bytes."""
MAX_READERS = 16
"""Footers read at once."""


class Footers:
    """The times of files by path. Safe to share between threads."""

    def __init__(self, max_cached: int = MAX_CACHED) -> None:
        self._max_cached = max_cached
        self._kept: OrderedDict[tuple[str, int], Interval | Bucket] = OrderedDict()
        self._lock = threading.Lock()

    def times(
        self, io: FileIO, paths: Iterable[str], field_id: int, names: NameMapping | None
    ) -> dict[str, Interval | Bucket]:
        """What the column `field_id` covers in each of the files; `Bucket.UNKNOWN` when the footer does
        not say."""
        wanted = list(paths)
        with self._lock:
            found = {path: self._kept[path, field_id] for path in wanted if (path, field_id) in self._kept}
        missing = [path for path in wanted if path not in found]
        if missing:
            with ThreadPoolExecutor(min(MAX_READERS, len(missing))) as pool:
                read = pool.map(lambda path: read_times(io, path, field_id, names), missing)
                found |= dict(zip(missing, read, strict=True))
        with self._lock:
            for path in wanted:
                self._kept[path, field_id] = found[path]
                self._kept.move_to_end((path, field_id))
            while len(self._kept) > self._max_cached:
                self._kept.popitem(last=False)
        return found


def read_times(io: FileIO, path: str, field_id: int, names: NameMapping | None) -> Interval | Bucket:
    """What the statistics of the row groups say about one column."""
    with translated(f"reading the footer of {path}"), io.new_input(path).open() as stream:
        file = pq.ParquetFile(stream)
        schema, metadata = file.schema_arrow, file.metadata
    try:
        name = pyarrow_to_schema(schema, names, downcast_ns_timestamp_to_us=True).find_column_name(field_id)
    except ValueError:  # neither ids in the file nor a mapping of names
        return Bucket.UNKNOWN
    if name is None:  # the column was added after the file was written
        return Bucket.NULL
    return interval_of(metadata, schema, range(metadata.num_row_groups), name)


def interval_of(
    metadata: pq.FileMetaData, schema: pa.Schema, groups: Iterable[int], name: str
) -> Interval | Bucket:
    """What a top-level column covers in some row groups of a file."""
    columns = [metadata.schema.column(n).path for n in range(metadata.num_columns)]
    if name not in columns:
        return Bucket.UNKNOWN
    index = columns.index(name)
    statistics = [metadata.row_group(group).column(index).statistics for group in groups]
    return _interval(statistics, schema.field(name).type)


def _interval(statistics: list[Any], kind: pa.DataType) -> Interval | Bucket:
    low: list[int] = []
    high: list[int] = []
    for group in statistics:
        if group is None:
            return Bucket.UNKNOWN
        if group.has_min_max:
            low.append(_floor_us(group.min_raw, kind))
            high.append(_floor_us(group.max_raw, kind))
        elif not group.has_null_count or group.num_values:
            return Bucket.UNKNOWN
    return Interval(min(low), max(high) + 1) if low else Bucket.NULL


def _floor_us(raw: int, kind: pa.DataType) -> int:
    if pa.types.is_date(kind):
        return raw * MICROSECONDS_PER_DAY
    unit = kind.unit
    return raw // 1000 if unit == "ns" else raw * {"s": 1_000_000, "ms": 1000, "us": 1}[unit]
