"""The metrics mode of each column in entries of outputs, by the rules of Java's writer.

1. `write.metadata.metrics.default` is the mode of every column, also inside structs. Its default is
   `truncate(16)`, but only for the first `write.metadata.metrics.max-inferred-column-defaults` columns of a
   table, a struct's own values before nested ones; the others have no metrics.
2. A column of the sort order has bounds if its transform preserves order.
3. `write.metadata.metrics.column.<name>` has precedence. The name is the table's; files may have another.
4. An invalid mode counts as the default: only speed depends on it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import Final

from pyiceberg.io.pyarrow import MetricModeTypes, MetricsMode, match_metrics_mode
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import SortOrder
from pyiceberg.types import IcebergType, ListType, MapType, PrimitiveType, StructType

from lithify.datasets.iceberg.format.properties import MAX_INT, whole_number
from lithify.datasets.iceberg.format.row_ids import LAST_UPDATED, ROW_ID
from lithify.datasets.iceberg.format.table_properties import properties_of

DEFAULT_KEY: Final = "write.metadata.metrics.default"
COLUMN_PREFIX: Final = "write.metadata.metrics.column."
MAX_INFERRED_KEY: Final = "write.metadata.metrics.max-inferred-column-defaults"
MAX_INFERRED: Final = 100
_DEFAULT = MetricsMode(MetricModeTypes.TRUNCATE, 16)
FULL = MetricsMode(MetricModeTypes.FULL)
NONE = MetricsMode(MetricModeTypes.NONE)

Modes = Mapping[int, MetricsMode]
"""Metrics modes by field id."""
ROW_ID_MODES: Final[Modes] = {ROW_ID.field_id: FULL, LAST_UPDATED.field_id: FULL}
"""The modes of the columns of rows' identity."""


def metrics_modes(metadata: TableMetadata) -> Modes:
    """Return the modes of all leaves of the current schema. Raise `Refused` if the limit is not a number."""
    schema, properties = metadata.schema(), properties_of(metadata)
    default, inferred = _default(schema, properties)
    names = {n: schema.find_column_name(n) for n in _leaves(schema.as_struct())}
    modes = {n: _DEFAULT if n in inferred else default for n in names}
    kept = _DEFAULT if default.type in (MetricModeTypes.NONE, MetricModeTypes.COUNTS) else default
    modes |= {n: kept for n in _sorted_by(metadata.sort_order()) if n in modes}
    for n, name in names.items():
        text = properties.get(f"{COLUMN_PREFIX}{name}")
        if text is not None:
            modes[n] = _parsed(text, default)
    return modes


def _default(schema: Schema, properties: Mapping[str, str]) -> tuple[MetricsMode, Collection[int]]:
    """Return the default mode, and the columns that have `_DEFAULT` instead."""
    text = properties.get(DEFAULT_KEY)
    if text is not None:
        return _parsed(text, _DEFAULT), ()
    limit = whole_number(properties, MAX_INFERRED_KEY, MAX_INFERRED, -MAX_INT - 1, MAX_INT)
    limit = MAX_INFERRED if limit < 0 else limit
    columns = schema.as_struct()
    if _weight(columns) <= limit:
        return _DEFAULT, ()
    return NONE, frozenset(islice(_leaves(columns), limit))


def _parsed(text: str, otherwise: MetricsMode) -> MetricsMode:
    try:
        return match_metrics_mode(text)
    except ValueError:
        return otherwise


def _sorted_by(order: SortOrder) -> Iterator[int]:
    return (field.source_id for field in order.fields if field.transform.preserves_order)


def _leaves(kind: IcebergType) -> Iterator[int]:
    """Yield the ids of a type's values, a struct's own before nested ones."""
    for field_id, part in _parts(kind):
        if isinstance(part, PrimitiveType):
            yield field_id
    for _, part in _parts(kind):
        yield from _leaves(part)


def _weight(kind: IcebergType) -> int:
    """Return how many columns Java counts: a nested struct is one more; a map with nested values does not
    count keys."""
    inside = sum(_weight(part) for _, part in _parts(kind))
    match kind:
        case StructType():
            return inside + sum(isinstance(part, PrimitiveType | StructType) for _, part in _parts(kind))
        case ListType():
            return inside + isinstance(kind.element_type, PrimitiveType)
        case MapType():
            return inside + 2 * isinstance(kind.value_type, PrimitiveType)
        case _:
            return 0


def _parts(kind: IcebergType) -> list[tuple[int, IcebergType]]:
    match kind:
        case StructType():
            return [(field.field_id, field.field_type) for field in kind.fields]
        case ListType():
            return [(kind.element_id, kind.element_type)]
        case MapType():
            return [(kind.key_id, kind.key_type), (kind.value_id, kind.value_type)]
        case _:
            return []
