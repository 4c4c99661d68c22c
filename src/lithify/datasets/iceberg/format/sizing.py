"""The rows of a file, of its row groups and of a batch of values, by the bytes that a table asks for.

Arrow cuts row groups by rows and looks at the size of a page or a dictionary once for each batch of values.
A table's properties ask for bytes, as Java's writer counts them: row groups by what they take in the file.
"""

from __future__ import annotations

from math import ceil

import pyarrow as pa

MIN_GROUP_ROWS = 100
"""A row group has so many rows, however wide they are, as with Java."""
MAX_SHRINK = 16
"""A row group has this part of the rows that average ones would give it, at least."""
BATCHES_PER_PAGE = 8
"""At least: a page or dictionary exceeds its limit by one batch at most."""
MIN_BATCH_VALUES = 16
MAX_BATCH_VALUES = 1024
"""What Arrow takes. More save nothing, and fewer than 16 cost time."""


def even_rows(rows: int, bytes_per_row: float, target_bytes: int) -> int:
    """Return the rows for each of the fewest parts of about equal size that stay within the target."""
    parts = max(1, ceil(rows * bytes_per_row / target_bytes))
    return max(1, ceil(rows / parts))


def batch_values(table: pa.Table, page_bytes: int) -> int:
    """Return how many values are written before Arrow looks at the size of a page or a dictionary: those of
    the widest column take a small part of it."""
    widest = max(column.nbytes for column in table.columns) / max(table.num_rows, 1)
    values = int(page_bytes / BATCHES_PER_PAGE / max(widest, 1))
    return max(MIN_BATCH_VALUES, min(MAX_BATCH_VALUES, values))


class RowGroups:
    """The sizes of one file's row groups: about equal, and within the limits.

    A row is estimated to take what it took in the row group before. Where the next rows are wider, which
    their size in memory shows, the row group has fewer of them.
    """

    def __init__(self, max_bytes: int, max_rows: int, bytes_per_row: float) -> None:
        """`bytes_per_row`: an estimate for the first row group, in the file."""
        self._max_bytes, self._max_rows = max_bytes, max_rows
        self._bytes_per_row = bytes_per_row
        self._memory_bytes_per_row = 0.0

    def rows(self, table: pa.Table, rows_left: int) -> int:
        """Return how many rows of `table` come next; `rows_left`: until the file ends."""
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
        """Note what a row group took in the file."""
        self._bytes_per_row = stored_bytes / part.num_rows
        self._memory_bytes_per_row = part.nbytes / part.num_rows
