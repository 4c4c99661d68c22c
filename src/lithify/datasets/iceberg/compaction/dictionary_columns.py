"""Text columns with so many repeated values that a task processes them as dictionaries.

A Parquet file stores such a column as numbers and a dictionary. Reading, sorting and writing it in that form
costs a fraction of processing the texts. The rows are the same either way.

A column is repeating when its values take at most `MAX_BYTES_PER_VALUE` each in the inputs, after
compression. Inputs without that statistic do not count; if none has it, the column is processed as text.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.types import ListType, StringType

MAX_BYTES_PER_VALUE = 2.0


def repeating_columns(schema: Schema, files: Iterable[DataFile], excluded: Iterable[int]) -> tuple[int, ...]:
    """Return the field ids of repeating text columns, including lists of texts, without those in
    `excluded`."""
    sizes: dict[int, float] = {}
    values: dict[int, int] = {}
    for file in files:
        for field_id, size_bytes in (file.column_sizes or {}).items():
            count = (file.value_counts or {}).get(field_id)
            if count:
                sizes[field_id] = sizes.get(field_id, 0.0) + size_bytes
                values[field_id] = values.get(field_id, 0) + count
    candidates = set(_texts(schema)) - set(excluded)
    return tuple(sorted(n for n in candidates if n in values and sizes[n] <= MAX_BYTES_PER_VALUE * values[n]))


def _texts(schema: Schema) -> Iterable[int]:
    for column in schema.fields:
        kind = column.field_type
        if isinstance(kind, StringType):
            yield column.field_id
        elif isinstance(kind, ListType) and isinstance(kind.element_type, StringType):
            yield kind.element_id
