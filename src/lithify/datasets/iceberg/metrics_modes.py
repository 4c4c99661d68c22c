"""Which statistics of which column the entries of outputs keep: the rules of Java's writer.

1. `write.metadata.metrics.default` is the mode of every column, also inside structs; without it, that is
   `truncate(16)`.
2. `write.metadata.metrics.column.<name>` wins.
3. A mode that does not exist counts as the default: nothing but speed depends on it.
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
from pyiceberg.schema import Schema

DEFAULT_KEY: Final = "write.metadata.metrics.default"
COLUMN_PREFIX: Final = "write.metadata.metrics.column."
_DEFAULT = MetricsMode(MetricModeTypes.TRUNCATE, 16)
FULL = MetricsMode(MetricModeTypes.FULL)

Modes = Mapping[int, MetricsMode]
"""By field id."""


def metrics_modes(schema: Schema, properties: Mapping[str, str]) -> Modes:
    """The modes of all leaves of a schema."""
    default = _parsed(properties.get(DEFAULT_KEY, ""), _DEFAULT)
    modes = dict.fromkeys(parquet_path_to_id_mapping(schema).values(), default)
    for n in modes:
        text = properties.get(f"{COLUMN_PREFIX}{schema.find_column_name(n)}")
        if text is not None:
            modes[n] = _parsed(text, default)
    return modes


def _parsed(text: str, otherwise: MetricsMode) -> MetricsMode:
    try:
        return match_metrics_mode(text)
    except ValueError:
        return otherwise
