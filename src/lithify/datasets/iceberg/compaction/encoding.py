"""Selection of number columns that get a dictionary in the outputs.

Parquet writers begin every column with a dictionary and drop it when it has grown too large. For numbers that
rarely repeat, this costs time and makes files larger, because dictionary indices compress worse than the
values.

1. Estimate the number of distinct values of a column from the values whose hash is in one of many parts.
2. Measure the stored size of a value without a dictionary, in a sample of consecutive rows.
3. With a dictionary, every distinct value takes that size once, and every row the bits of an index. If that
   is more, the column gets no dictionary.

Text columns are left to the writer: repeating ones are found elsewhere (`repeating`), others soon overflow
the dictionary. So are nested types, nulls and tables with few rows. Values are the same either way.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

MIN_ROWS = 4096
"""The minimum number of rows to check."""
SAMPLE_ROWS = 32 * 1024
PARTS_BITS = 4
"""The bits of the hash that select a part: one part of 16 is counted."""
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
"""2^64 divided by the golden ratio: distributes neighbouring values over all bits of the product."""

StoredBytes = Callable[[pa.Table], int]
"""Return the size of a file with these rows and no dictionaries."""


def without_dictionary(table: pa.Table, stored_bytes: StoredBytes) -> frozenset[str]:
    """Return the names of the columns that get no dictionary."""
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
    """Estimate the number of distinct values, at least 1."""
    width = array.type.bit_width // 8
    data = np.frombuffer(array.buffers()[1], dtype=f"u{width}", count=len(array), offset=array.offset * width)
    spread = _spread(data.astype(np.uint64))
    part = spread[spread < np.uint64(1 << (64 - PARTS_BITS))]
    return max(1, min(len(array), len(np.unique(part)) << PARTS_BITS))


def _spread(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    return (values ^ (values >> np.uint64(32))) * _MULTIPLIER
