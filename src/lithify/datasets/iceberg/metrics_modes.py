"""Which statistics of which column the entries of outputs keep: the rules of Java's writer.

1. `write.metadata.metrics.default` is the mode of every column, also inside structs; without it, that is
   `truncate(16)`.
2. A column of the sort order whose transform keeps its order has bounds, whatever the default.
3. `write.metadata.metrics.column.<name>` wins.
4. A mode that does not exist counts as the default: nothing but speed depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyiceberg.io.pyarrow import (
    MetricModeTypes,
    MetricsMode,
    match_metrics_mode,
    parquet_path_to_id_mapping,
)
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import SortOrder

DEFAULT_KEY: Final = "write.metadata.metrics.default"
COLUMN_PREFIX: Final = "write.metadata.metrics.column."
_DEFAULT = MetricsMode(MetricModeTypes.TRUNCATE, 16)
FULL = MetricsMode(MetricModeTypes.FULL)

Modes = Mapping[int, MetricsMode]
"""By field id."""


def metrics_modes(metadata: TableMetadata) -> Modes:
    """The modes of all leaves of the table's current schema."""
    schema, properties = metadata.schema(), metadata.properties
    default = _parsed(properties.get(DEFAULT_KEY, ""), _DEFAULT)
    modes = dict.fromkeys(parquet_path_to_id_mapping(schema).values(), default)
    has_bounds = default.type not in (MetricModeTypes.NONE, MetricModeTypes.COUNTS)
    modes |= dict.fromkeys(
        _sorted_by(metadata.sort_order()) & modes.keys(), default if has_bounds else _DEFAULT
    )
    for n in modes:
        text = properties.get(f"{COLUMN_PREFIX}{schema.find_column_name(n)}")
        if text is not None:
            modes[n] = _parsed(text, default)
    return modes


def _sorted_by(order: SortOrder) -> set[int]:
    return {field.source_id for field in order.fields if field.transform.preserves_order}


def _parsed(text: str, otherwise: MetricsMode) -> MetricsMode:
    try:
        return match_metrics_mode(text)
    except ValueError:
        return otherwise
