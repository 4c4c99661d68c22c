"""The Bloom filters of outputs, by the table's properties `write.parquet.bloom-filter-…`.

1. `enabled.column.<name>` requests a filter for a column; the name is the table's. A name that is no column
   requests nothing, as in Java.
2. A filter begins with the greatest size that `max-bytes` allows. Arrow halves it while the share of false
   positives remains below `fpp.column.<name>`, so small row groups have small filters. All filters of a row
   group together begin with at most `_MOST_BYTES`.
3. Booleans have no filter, because Parquet defines none. Neither have floating-point numbers: SQL treats 0.0
   and -0.0 as equal and a filter does not, so it would hide rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final

from pyiceberg.schema import Schema
from pyiceberg.types import BooleanType, DoubleType, FloatType, IcebergType, PrimitiveType

from lithify.base.errors import Refused
from lithify.datasets.iceberg.format.properties import MAX_INT, whole_number

ENABLED_PREFIX: Final = "write.parquet.bloom-filter-enabled.column."
RATE_PREFIX: Final = "write.parquet.bloom-filter-fpp.column."
MAX_BYTES_KEY: Final = "write.parquet.bloom-filter-max-bytes"
MAX_BYTES: Final = 1 << 20
MAX_RATE: Final = 0.01
"""The default share of false positives."""
_LEAST_BYTES, _MOST_BYTES = 32, 128 << 20
"""The limits of one of Arrow's filters."""
_BITS_PER_VALUE = 8
"""The number of bits that a value sets in a filter (Parquet format: split block Bloom filters)."""
_MAX_SHOWN_CHARS = 40

ArrowFilter = Mapping[str, float]
"""Arrow's options of one column's filter."""


def bloom_filters(properties: Mapping[str, str], schema: Schema) -> dict[int, ArrowFilter]:
    """Return the filters by field id. Raise `Refused` for a number that cannot be used."""
    limit = whole_number(properties, MAX_BYTES_KEY, MAX_BYTES, most=MAX_INT)
    rates = {
        schema.find_field(name).field_id: _rate(properties, name)
        for name in _requested(properties)
        if _has_filter(_type_of(schema, name))
    }
    limit = max(_LEAST_BYTES, min(limit, _MOST_BYTES // max(len(rates), 1)))
    size = 1 << limit.bit_length() - 1
    return {field_id: _arrow_filter(size, rate) for field_id, rate in rates.items()}


def without_filters(properties: Mapping[str, str], schema: Schema) -> tuple[str, ...]:
    """Return the sorted names of columns that get no filter because of their type, although the table
    requests it."""
    kinds = {name: _type_of(schema, name) for name in _requested(properties)}
    return tuple(
        sorted(n for n, kind in kinds.items() if isinstance(kind, PrimitiveType) and not _has_filter(kind))
    )


def _requested(properties: Mapping[str, str]) -> Iterator[str]:
    for key, text in properties.items():
        if key.startswith(ENABLED_PREFIX) and text.lower() == "true":
            yield key.removeprefix(ENABLED_PREFIX)


def _type_of(schema: Schema, name: str) -> IcebergType | None:
    try:
        return schema.find_type(name)
    except ValueError:
        return None


def _has_filter(kind: IcebergType | None) -> bool:
    return isinstance(kind, PrimitiveType) and not isinstance(kind, BooleanType | FloatType | DoubleType)


def _rate(properties: Mapping[str, str], name: str) -> float:
    key = f"{RATE_PREFIX}{name}"
    text = properties.get(key)
    if text is None:
        return MAX_RATE
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 < rate < 1:
        raise Refused(
            f"the table's property {key} is {text[:_MAX_SHOWN_CHARS]!r}; it must be a number between 0 and 1"
        )
    return rate


def _arrow_filter(size_bytes: int, rate: float) -> ArrowFilter:
    """Return the options with which Arrow begins a filter of this size, whatever the rate."""
    bits = 8 * size_bytes
    least_rate = (-math.expm1(-_BITS_PER_VALUE / bits)) ** _BITS_PER_VALUE
    rate = max(rate, least_rate)
    bits_per_value = -_BITS_PER_VALUE / math.log1p(-(rate ** (1 / _BITS_PER_VALUE)))
    return {"ndv": max(1, int(bits / bits_per_value)), "fpp": rate}
