"""The identity of rows in tables of format version 3 (Iceberg format: row lineage).

1. Every row has an id, `_row_id`, and the sequence number of its last change,
   `_last_updated_sequence_number`. Files store them in columns of reserved ids, which may be missing or null.
2. A missing id is the first row id of the data file plus the row's position in the file, before deletes; a
   missing number is the data sequence number of the file. So a row that moves to another file needs both in
   the columns.
3. In a file without a first row id, which no commit since the upgrade of the table has assigned, both are
   null, whatever the columns contain.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from lithify.base.errors import Unsupported

ROW_ID: Final = NestedField(2147483540, "_row_id", LongType(), required=False)
LAST_UPDATED: Final = NestedField(2147483539, "_last_updated_sequence_number", LongType(), required=False)
ROW_ID_COLUMNS: Final = 2

Positions = npt.NDArray[np.int64]


def check_names(schema: Schema, url: str) -> None:
    """Raise `Unsupported` if a column has the name of rows' identity."""
    taken = {field.name for field in schema.fields} & {ROW_ID.name, LAST_UPDATED.name}
    if taken:
        raise Unsupported(f"{url}: format version 3 reserves the name of column {min(taken)}; rename it")


def with_row_ids(schema: Schema) -> Schema:
    """Return the schema with the columns of rows' identity at the end."""
    return Schema(
        *schema.fields,
        ROW_ID,
        LAST_UPDATED,
        schema_id=schema.schema_id,
        identifier_field_ids=schema.identifier_field_ids,
    )


class RowIds:
    """The identity of the rows of one data file."""

    def __init__(self, first: int | None, number: int) -> None:
        """`first` is the file's first row id, and `number` its data sequence number."""
        self._first = first
        self._number = number

    def fill(self, batch: pa.RecordBatch, positions: Positions) -> pa.RecordBatch:
        """Return the batch with the identity of each row in its last two columns, which have the stored one.
        `positions` are those of the rows in the file."""
        *columns, ids, numbers = batch.columns
        if self._first is None:
            ids, numbers = (pa.nulls(batch.num_rows, pa.int64()) for _ in range(2))
        else:
            if ids.null_count:
                inherited = pa.array(positions + self._first)
                ids = inherited if ids.null_count == len(ids) else pc.coalesce(ids, inherited)
            numbers = pc.fill_null(numbers, self._number)
        return pa.RecordBatch.from_arrays([*columns, ids, numbers], schema=batch.schema)
