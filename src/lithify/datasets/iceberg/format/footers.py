"""Reads from the footers of data files what their manifest entries lack. Footers are cached, because data
files never change; one of a missing file is not, as the file may be restored.

- The time interval, if the entry has no bounds of the time column: Parquet has them even if the table's
  metrics are off.
- Whether a file may be rewritten (`columns.why_unfit`). A damaged, missing or encrypted one may not.
- Whether a file really has no rows if its entry has none.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.conversions import to_bytes
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import NameMapping
from pyiceberg.types import NestedField, PrimitiveType

from lithify.base.concurrency import all_of
from lithify.datasets.iceberg.errors import translated
from lithify.datasets.iceberg.format.columns import columns_of, open_file, why_unfit
from lithify.datasets.iceberg.format.time_column import MICROSECONDS_PER_DAY, bound_us
from lithify.datasets.iceberg.io.prefetch import DataPath, PrefetchExtent
from lithify.planning.timeline.model import ChunkBucket, Interval

MAX_CACHED = 100_000
"""Cached footers; each takes some hundred bytes."""
MAX_READERS = 16
"""The most footers that are read concurrently."""


@dataclass(frozen=True, slots=True)
class Footer:
    times: Interval | ChunkBucket
    """The interval of the time column; `ChunkBucket.UNKNOWN` if the footer does not have it."""
    unfit: str | None = None
    """Why the file must not be rewritten ("they …")."""
    has_rows: bool = True
    is_there: bool = True
    """Whether the file exists."""


class Footers:
    """A thread-safe cache of footers, by path and by everything of the table that they depend on."""

    def __init__(self, max_cached: int = MAX_CACHED) -> None:
        self._max_cached = max_cached
        self._kept: OrderedDict[tuple[str, int, int, str], Footer] = OrderedDict()
        self._lock = threading.Lock()

    def read(
        self, io: FileIO, sizes: Mapping[str, int], schema: Schema, field_id: int, names: NameMapping | None
    ) -> dict[str, Footer]:
        """Return the footers by path. `sizes` are those in manifests; `schema` and `names` are the table's;
        `field_id` is the time column's."""
        mapping = "" if names is None else names.model_dump_json()
        keys = {path: (path, field_id, schema.schema_id, mapping) for path in sizes}
        with self._lock:
            found = {path: self._kept[key] for path, key in keys.items() if key in self._kept}
        missing = [path for path in keys if path not in found]
        if missing:
            files = [DataPath(path, sizes[path], PrefetchExtent.FOOTER) for path in missing]
            asked = (partial(read_footer, io, file, schema, field_id, names) for file in files)
            found |= dict(zip(missing, all_of(asked, MAX_READERS), strict=True))
        with self._lock:
            for path, key in keys.items():
                if found[path].is_there:
                    self._kept[key] = found[path]
                    self._kept.move_to_end(key)
            while len(self._kept) > self._max_cached:
                self._kept.popitem(last=False)
        return found


def read_footer(
    io: FileIO, path: DataPath, schema: Schema, field_id: int, names: NameMapping | None
) -> Footer:
    with translated(f"reading the footer of {path.path}"):
        try:
            with path.open(io) as stream:
                file = open_file(stream)
        except FileNotFoundError:
            return Footer(ChunkBucket.UNKNOWN, "no longer exist", is_there=False)
        except pa.ArrowInvalid as error:
            return Footer(ChunkBucket.UNKNOWN, f"cannot be read: {error}")
    if not file.metadata.num_rows:
        return Footer(ChunkBucket.NULL, has_rows=False)
    unfit = why_unfit(file, schema, names)
    if unfit is not None:
        return Footer(ChunkBucket.UNKNOWN, unfit)
    columns = columns_of(file.schema_arrow, names)
    name = next((column.name for column in columns if column.field_id == field_id), None)
    if name is None:  # the file is older than the column, or its partition has the value
        return Footer(_default_time(schema.find_field(field_id)))
    metadata = file.metadata
    return Footer(interval_of(metadata, file.schema_arrow, range(metadata.num_row_groups), name))


def _default_time(column: NestedField) -> Interval | ChunkBucket:
    """Return the time of rows in files that lack the time column."""
    kind, default = column.field_type, column.initial_default
    if default is None or not isinstance(kind, PrimitiveType):
        return ChunkBucket.NULL
    start_us = bound_us(kind, to_bytes(kind, default))
    return ChunkBucket.UNKNOWN if start_us is None else Interval(start_us, start_us + 1)


def interval_of(
    metadata: pq.FileMetaData, schema: pa.Schema, groups: Iterable[int], name: str
) -> Interval | ChunkBucket:
    """Return the interval of a top-level column in some row groups of a file."""
    columns = [metadata.schema.column(n).path for n in range(metadata.num_columns)]
    if name not in columns:
        return ChunkBucket.UNKNOWN
    index = columns.index(name)
    statistics = [metadata.row_group(group).column(index).statistics for group in groups]
    return _interval(statistics, schema.field(name).type)


def _interval(statistics: list[Any], kind: pa.DataType) -> Interval | ChunkBucket:
    low: list[int] = []
    high: list[int] = []
    for group in statistics:
        if group is None:
            return ChunkBucket.UNKNOWN
        if group.has_min_max:
            low.append(_floor_us(group.min_raw, kind))
            high.append(_floor_us(group.max_raw, kind))
        elif not group.has_null_count or group.num_values:
            return ChunkBucket.UNKNOWN
    return Interval(min(low), max(high) + 1) if low else ChunkBucket.NULL


def _floor_us(raw: int, kind: pa.DataType) -> int:
    if pa.types.is_date(kind):
        return raw * MICROSECONDS_PER_DAY
    unit = kind.unit
    return raw // 1000 if unit == "ns" else raw * {"s": 1_000_000, "ms": 1000, "us": 1}[unit]
