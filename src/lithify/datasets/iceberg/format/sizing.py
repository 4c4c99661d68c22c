"""Converts a table's limits in bytes to rows: for files, row groups and batches of values.

Arrow cuts row groups by rows and checks the size of a page or dictionary once per batch. A table's properties
limit bytes, as Java's writer counts them: a row group by its size in the file.
"""

from __future__ import annotations

from math import ceil

import pyarrow as pa

MIN_GROUP_ROWS = 100
"""The least rows of a row group, however wide, as in Java."""
MAX_SHRINK = 16
"""A row group has at least 1/`MAX_SHRINK` of the rows that it would have if they were of average size."""
BATCHES_PER_PAGE = 8
"""The least number of batches; a page or dictionary exceeds its limit by at most one batch."""
MIN_BATCH_VALUES = 16
MAX_BATCH_VALUES = 1024
"""Arrow's default. Larger batches save nothing, and batches of fewer than 16 values are slow."""


def even_rows(rows: int, bytes_per_row: float, target_bytes: int) -> int:
    """Return the rows of each part, for the fewest parts of about equal size within the target."""
    parts = max(1, ceil(rows * bytes_per_row / target_bytes))
    return max(1, ceil(rows / parts))


def batch_values(table: pa.Table, page_bytes: int) -> int:
    """Return how many values to write before Arrow checks the size of a page or dictionary: those of the
    widest column take a small part of a page."""
    widest = max(column.nbytes for column in table.columns) / max(table.num_rows, 1)
    values = int(page_bytes / BATCHES_PER_PAGE / max(widest, 1))
    return max(MIN_BATCH_VALUES, min(MAX_BATCH_VALUES, values))


class RowGroups:
    """The sizes of one file's row groups: about equal, and within the limits.

    Rows are estimated by the previous row group. If the next rows are wider in memory, the row group gets
    fewer.
    """

    def __init__(self, max_bytes: int, max_rows: int, bytes_per_row: float) -> None:
        """`bytes_per_row` estimates the size of a row in the file, for the first row group."""
        self._max_bytes, self._max_rows = max_bytes, max_rows
        self._bytes_per_row = bytes_per_row
        self._memory_bytes_per_row = 0.0

    def rows(self, table: pa.Table, rows_left: int) -> int:
        """Return how many rows of `table` come next; `rows_left` counts to the end of the file."""
        rows = max(even_rows(rows_left, self._bytes_per_row, self._max_bytes), MIN_GROUP_ROWS)
        rows = min(rows, rows_left, self._max_rows, int(table.num_rows))
        if not self._memory_bytes_per_row:
            self._memory_bytes_per_row = table.nbytes / table.num_rows
        compression = self._bytes_per_row / max(self._memory_bytes_per_row, 1)
        least = max(1, rows // MAX_SHRINK, min(rows, MIN_GROUP_ROWS))
        while rows > least and table.slice(0, rows).nbytes * compression > self._max_bytes:
            rows = max(least, rows * 3 // 4)
        return rows

    def add(self, part: pa.Table, stored_bytes: int) -> None:
        """Record the size of a written row group in the file."""
        self._bytes_per_row = stored_bytes / part.num_rows
        self._memory_bytes_per_row = part.nbytes / part.num_rows
