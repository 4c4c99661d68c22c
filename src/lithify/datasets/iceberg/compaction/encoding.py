"""Which columns of numbers are worth a dictionary in the outputs.

Parquet writers begin every column with a dictionary and drop it when it has grown too large. For numbers that
hardly repeat that is wasted twice: work to find out, and larger files, because the numbers that stand for
values compress worse than the values.

1. Estimate how many different values a column has, from those whose hash falls into one part of many.
2. Measure what a value takes in a file without a dictionary, from a sample of consecutive rows.
3. With a dictionary, every different value takes that much once, and every row the bits of a number. The
   column goes without when that is more.

Texts are left to the writer: those that repeat are found elsewhere (`repeating`), others overflow the
dictionary soon. So are columns of nested types, nulls and few rows. Values are the same either way.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

MIN_ROWS = 4096
"""Fewer rows are not worth a look."""
SAMPLE_ROWS = 32 * 1024
PARTS_BITS = 4
"""One part of 16 is counted."""
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
"""2^64 divided by the golden ratio: spreads neighbouring values over all bits of the product."""

StoredBytes = Callable[[pa.Table], int]
"""How long a file of these rows is without dictionaries."""


def without_dictionary(table: pa.Table, stored_bytes: StoredBytes) -> frozenset[str]:
    """Names of the columns that are to have no dictionary."""
    if table.num_rows < MIN_ROWS:
        return frozenset()
    return frozenset(
        field.name
        for number, field in enumerate(table.schema)
        if _is_of_numbers(field.type) and not _pays(table.select([number]), stored_bytes)
    )


def _is_of_numbers(kind: pa.DataType) -> bool:
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_temporal)
    return any(is_kind(kind) for is_kind in kinds) and int(kind.bit_width) in (32, 64)


def _pays(table: pa.Table, stored_bytes: StoredBytes) -> bool:
    column = table.column(0)
    if column.null_count:
        return True
    rows: int = table.num_rows
    values = distinct(column.combine_chunks())
    index_bits = max(1, (values - 1).bit_length())
    sampled = min(rows, SAMPLE_ROWS)
    value_bytes = stored_bytes(table.slice((rows - sampled) // 2, sampled)) / sampled
    return values / rows * value_bytes + index_bits / 8 < value_bytes


def distinct(array: pa.Array) -> int:
    """About how many different values there are, at least 1."""
    width = array.type.bit_width // 8
    data = np.frombuffer(array.buffers()[1], dtype=f"u{width}", count=len(array), offset=array.offset * width)
    spread = _spread(data.astype(np.uint64))
    part = spread[spread < np.uint64(1 << (64 - PARTS_BITS))]
    return max(1, min(len(array), len(np.unique(part)) << PARTS_BITS))


def _spread(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    return (values ^ (values >> np.uint64(32))) * _MULTIPLIER
