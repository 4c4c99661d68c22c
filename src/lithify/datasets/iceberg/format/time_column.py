"""Finds the time column of a table, and converts its values and bounds to microseconds.

Times outside the planner's calendar (timestamps reach 292,000 years from the epoch, dates millions) are
planned as its first or last instant (`bounded`). Rows keep theirs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import (
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    YearTransform,
)
from pyiceberg.types import (
    DateType,
    NestedField,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
)

from lithify.base.errors import Refused, Unsupported
from lithify.planning.timeline.calendar import MAX_US, MIN_US
from lithify.planning.timeline.model import Interval

MICROSECONDS_PER_DAY = 86_400_000_000
NO_TIME = np.iinfo(np.int64).min
"""Marks a row without a time."""
_DATE_BYTES, _TIMESTAMP_BYTES = 4, 8
"""Sizes of bounds (Iceberg format: binary single-value serialization)."""
_MIN_DAY, _MAX_DAY = MIN_US // MICROSECONDS_PER_DAY, MAX_US // MICROSECONDS_PER_DAY
Times = npt.NDArray[np.int64]
TimeType = TimestampType | TimestamptzType | TimestampNanoType | TimestamptzNanoType | DateType

_NANO_TYPES = (TimestampNanoType, TimestamptzNanoType)
_TIME_TYPES = (TimestampType, TimestamptzType, *_NANO_TYPES, DateType)
_OF_TIME = (IdentityTransform, HourTransform, DayTransform, MonthTransform, YearTransform)


def find_axis(
    metadata: TableMetadata, axis: str, wanted: str | None, url: str
) -> tuple[NestedField | None, tuple[str, ...]]:
    """Return the time column of a table's axis, `None` if its files have no order, and notes about that.
    Raise `Refused` when the policy requires a time column that is not found, `Unsupported` when it is of
    another type."""
    if axis == "none":
        return None, ()
    if axis == "time" or wanted is not None:
        return find_time_column(metadata, wanted, url), ()
    candidates = _time_columns(metadata)
    found = _preferred(metadata, candidates)
    if found is None and candidates:
        names = ", ".join(field.name for field in candidates.values())
        return None, (
            f"files are compacted by size and not by time, because the table has several time columns "
            f"({names}); to compact by time, name one in the table property lithify.time-column",
        )
    return found, ()


def find_time_column(metadata: TableMetadata, wanted: str | None, url: str) -> NestedField:
    """Return the column `wanted`; else the first of time type in the sort order, then in the partition spec;
    else the schema's only one. Raise `Refused` if none is found, `Unsupported` if `wanted` has another
    type."""
    if wanted is not None:
        return _named(metadata.schema(), wanted, url)
    candidates = _time_columns(metadata)
    found = _preferred(metadata, candidates)
    if found is not None:
        return found
    names = ", ".join(field.name for field in candidates.values())
    raise Refused(
        f"{url}: the time column is ambiguous ({names or 'no timestamp and no date column'}); name it in "
        "the table property lithify.time-column"
    )


def _time_columns(metadata: TableMetadata) -> dict[int, NestedField]:
    return {
        field.field_id: field
        for field in metadata.schema().fields
        if isinstance(field.field_type, _TIME_TYPES)
    }


def _preferred(metadata: TableMetadata, candidates: dict[int, NestedField]) -> NestedField | None:
    order = [field.source_id for field in metadata.sort_order().fields]
    order += [field.source_id for field in metadata.spec().fields if isinstance(field.transform, _OF_TIME)]
    for source_id in order:
        if source_id in candidates:
            return candidates[source_id]
    if len(candidates) == 1:
        return next(iter(candidates.values()))
    return None


def _named(schema: Schema, wanted: str, url: str) -> NestedField:
    found = next((field for field in schema.fields if field.name == wanted), None)
    if found is None:
        nested = "." in wanted and wanted in schema.column_names
        state = "is nested in a struct" if nested else "does not exist"
        raise Refused(
            f"{url}: the time column {wanted!r} {state}; lithify.time-column names a top-level column"
        )
    if not isinstance(found.field_type, _TIME_TYPES):
        raise Unsupported(
            f"{url}: the time column {wanted!r} is of type {found.field_type}; "
            "it must be timestamp, timestamptz, timestamp_ns, timestamptz_ns or date"
        )
    return found


def bounded(start_us: int, end_us: int) -> Interval:
    """Return the interval from start to end (exclusive), limited to the calendar."""
    if MIN_US <= start_us < end_us <= MAX_US:  # fast path: runs for every file
        return Interval(start_us, end_us)
    start_us = min(max(start_us, MIN_US), MAX_US - 1)
    return Interval(start_us, min(max(end_us, start_us + 1), MAX_US))


def bound_us(kind: Any, bound: bytes | None) -> int | None:
    """Return a file's bound in microseconds, rounded down; upper bounds are inclusive, a date is its
    midnight. `None` if it is missing or has the wrong size."""
    is_date = isinstance(kind, DateType)
    if bound is None or len(bound) != (_DATE_BYTES if is_date else _TIMESTAMP_BYTES):
        return None
    value = int.from_bytes(bound, "little", signed=True)
    if isinstance(kind, _NANO_TYPES):
        return value // 1000
    return value * MICROSECONDS_PER_DAY if is_date else value


def times_us(column: pa.Array) -> Times:
    """Return a time column in microseconds, rounded down; `NO_TIME` for nulls."""
    if pa.types.is_date(column.type):
        days = pc.fill_null(column.cast(pa.int32()).cast(pa.int64()), NO_TIME).to_numpy()
        return np.where(days == NO_TIME, NO_TIME, np.clip(days, _MIN_DAY, _MAX_DAY) * MICROSECONDS_PER_DAY)
    numbers = column.cast(pa.int64())
    values: Times = pc.fill_null(numbers, NO_TIME).to_numpy()
    if column.type.unit != "ns":
        return values
    micros = values // 1000
    if numbers.null_count:
        micros[numbers.is_null().to_numpy(zero_copy_only=False)] = NO_TIME
    return micros
