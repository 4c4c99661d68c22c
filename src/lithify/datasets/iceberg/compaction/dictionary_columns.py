"""Which columns of text repeat their values so much that a task carries them as dictionaries.

A Parquet file keeps such a column as numbers and a dictionary. Read, sorted and written in that form it
costs a fraction of what the texts would. The rows are the same either way.

A column counts as repeating when its values take at most `MAX_BYTES_PER_VALUE` each in the inputs, after
compression. Inputs without that statistic do not count; if none has it, the column is carried as it is.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.types import ListType, StringType

MAX_BYTES_PER_VALUE = 2.0


def repeating_columns(schema: Schema, files: Iterable[DataFile], excluded: Iterable[int]) -> tuple[int, ...]:
    """Field ids of the text columns, and of texts in lists, that repeat; none of `excluded`."""
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
