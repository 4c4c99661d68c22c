"""The column statistics of a written Parquet file, from its footer, for its manifest entry.

1. Sizes and counts are sums over the row groups.
2. A bound is the lowest or highest of all row groups, truncated to the table's length. If a row group with
   values lacks bounds (Arrow omits those over 4 KiB), the column has none: too narrow bounds would hide rows
   from readers.
3. A floating-point column with bounds has a count of NaN. A column with NaN has no statistics in the footer;
   they are collected from the rows (`floats`).
4. Times and dates are read as stored numbers, because Python's end with year 9999. A bound that cannot be
   encoded, such as invalid Unicode, is left out.
5. Elements of lists and maps have counts and no bounds.

The table decides which columns have statistics, and how long bounds are (`metrics_modes`).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow.parquet as pq
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import MetricModeTypes, MetricsMode, parquet_path_to_id_mapping
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    PrimitiveType,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
)
from pyiceberg.utils.decimal import unscaled_to_decimal
from pyiceberg.utils.truncate import truncate_upper_bound_binary_string

from lithify.datasets.iceberg.format.floats import FloatMetrics
from lithify.datasets.iceberg.format.metrics_modes import Modes

_FIRST_SURROGATE, _LAST_SURROGATE = 0xD800, 0xDFFF
_STORED_AS_NUMBERS = (
    DateType,
    TimeType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
)


@dataclass(slots=True)
class ColumnStatistics:
    """Statistics of columns, by field id."""

    sizes: dict[int, int] = field(default_factory=dict)
    value_counts: dict[int, int] = field(default_factory=dict)
    null_counts: dict[int, int] = field(default_factory=dict)
    nan_counts: dict[int, int] = field(default_factory=dict)
    lower_bounds: dict[int, bytes] = field(default_factory=dict)
    upper_bounds: dict[int, bytes] = field(default_factory=dict)


def column_statistics(
    footer: pq.FileMetaData, schema: Schema, modes: Modes, nans: Mapping[int, FloatMetrics]
) -> ColumnStatistics:
    """Return the statistics of all leaf columns of a file with this schema. `nans` has those that the footer
    lacks, of floating-point columns, by field id."""
    found = ColumnStatistics()
    field_ids = parquet_path_to_id_mapping(schema)
    groups = [footer.row_group(n) for n in range(footer.num_row_groups)]
    for position in range(footer.num_columns):
        columns = [group.column(position) for group in groups]
        if columns:
            field_id = field_ids[columns[0].path_in_schema]
            kind = schema.find_type(field_id)
            assert isinstance(kind, PrimitiveType)
            is_element = footer.schema.column(position).max_repetition_level > 0
            leaf = _Leaf(field_id, kind, modes[field_id], is_element)
            _add(found, columns, leaf, nans.get(field_id))
    return found


def column_sizes(footer: pq.FileMetaData, field_ids: Mapping[str, int]) -> dict[int, int]:
    """Return each column's bytes in the file by field id; `field_ids` are by column path."""
    found = dict.fromkeys(field_ids.values(), 0)
    for n in range(footer.num_row_groups):
        for position in range(footer.num_columns):
            column = footer.row_group(n).column(position)
            found[field_ids[column.path_in_schema]] += column.total_compressed_size
    return found


def split_offsets(footer: pq.FileMetaData) -> tuple[int, ...]:
    """Return the offsets of the row groups."""
    firsts = [footer.row_group(n).column(0) for n in range(footer.num_row_groups)]
    offsets = (
        min(c.dictionary_page_offset, c.data_page_offset) if c.has_dictionary_page else c.data_page_offset
        for c in firsts
    )
    return tuple(sorted(offsets))


class _Leaf(NamedTuple):
    field_id: int
    kind: PrimitiveType
    mode: MetricsMode
    is_element: bool
    """Whether the column is inside a list or a map."""


def _add(found: ColumnStatistics, columns: Sequence[Any], leaf: _Leaf, nans: FloatMetrics | None) -> None:
    field_id, kind, mode, is_element = leaf
    if mode.type == MetricModeTypes.NONE:
        return
    found.sizes[field_id] = sum(column.total_compressed_size for column in columns)
    found.value_counts[field_id] = sum(column.num_values for column in columns)
    statistics = [column.statistics for column in columns]
    if nans is not None:
        found.null_counts[field_id], found.nan_counts[field_id] = nans.nulls, nans.nans
    elif any(group is None or not group.has_null_count for group in statistics):
        return
    else:
        found.null_counts[field_id] = sum(group.null_count for group in statistics)
        if isinstance(kind, FloatType | DoubleType):
            found.nan_counts[field_id] = 0
    if is_element or mode.type == MetricModeTypes.COUNTS:
        return
    bounds = _bounds(kind, statistics) if nans is None else nans.bounds
    if bounds is None:
        return
    length = mode.length if isinstance(kind, StringType | BinaryType) else None
    try:
        lower, upper = _lower(kind, bounds[0], length), _upper(kind, bounds[1], length)
    except UnicodeError:
        return
    found.lower_bounds[field_id] = lower
    if upper is not None:
        found.upper_bounds[field_id] = upper


def _bounds(kind: PrimitiveType, statistics: Sequence[Any]) -> tuple[Any, Any] | None:
    """Return the lowest and highest value, if each row group with values has them."""
    filled = [group for group in statistics if group.num_values]  # `num_values` excludes nulls
    if not filled or not all(group.has_min_max for group in filled):
        return None
    try:
        values = [_values(kind, group) for group in filled]
    except UnicodeError:
        return None
    return min(low for low, _ in values), max(high for _, high in values)


def _values(kind: PrimitiveType, group: Any) -> tuple[Any, Any]:
    if isinstance(kind, _STORED_AS_NUMBERS):
        return group.min_raw, group.max_raw
    if isinstance(kind, DecimalType) and isinstance(group.min_raw, int):
        low, high = group.min_raw, group.max_raw
        return unscaled_to_decimal(low, kind.scale), unscaled_to_decimal(high, kind.scale)
    return group.min, group.max


def _lower(kind: PrimitiveType, value: Any, length: int | None) -> bytes:
    return to_bytes(kind, value if length is None else value[:length])


def _upper(kind: PrimitiveType, value: Any, length: int | None) -> bytes | None:
    """Return the upper bound; `None` if none of that length exists."""
    if length is not None:
        cut = _text_above if isinstance(value, str) else truncate_upper_bound_binary_string
        value = cut(value, length)
    return None if value is None else to_bytes(kind, value)


def _text_above(text: str, length: int) -> str | None:
    """Return the least text of at most this many code points that is not below `text`; `None` if none is."""
    if len(text) <= length:
        return text
    for n in reversed(range(length)):
        following = ord(text[n]) + 1
        following = _LAST_SURROGATE + 1 if following == _FIRST_SURROGATE else following
        if following <= sys.maxunicode:
            return text[:n] + chr(following)
    return None
