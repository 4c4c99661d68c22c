"""Bounds of columns and pages: which are right, how they are compared, and how they are merged.

1. A bound is used only if its order is defined: `min_value` and `max_value` where the footer says that their
   order is the type's, the deprecated `min` and `max` only where they were always compared as signed numbers.
2. Merged bounds are the lowest and highest of all parts that have values. If one of those lacks a bound,
   there is none: too narrow bounds would hide rows. A truncated bound stays one, and says so.
3. Nulls are counted by levels, and NaN by values, never taken from a file. A column with NaN has no bounds:
   readers disagree about what they would mean. Bounds of floating-point numbers are taken from the values
   where these are seen; a zero is -0.0 below and 0.0 above.
4. Counts of distinct values cannot be merged, and are left out.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from lithify.parquet.thrift import BINARY, BOOL, I64, STRUCT, Struct, bytes_at, flag_of

BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE, BYTE_ARRAY, FIXED = range(8)
WIDTHS: Final = {INT32: 4, INT64: 8, INT96: 12, FLOAT: 4, DOUBLE: 8}
"""The bytes of a value, by physical type."""

Order = Callable[[bytes], Any]
"""Return what a bound is compared by. Raise `ValueError` or `struct.error` for one that is none."""


@dataclass(frozen=True, slots=True)
class ValueBounds:
    low: bytes
    high: bytes
    is_low_exact: bool | None = None
    is_high_exact: bool | None = None
    """`None` if it is not known."""


def _unpacked(code: str) -> Order:
    unpack = struct.Struct(code).unpack
    return lambda bound: unpack(bound)[0]


def _number(code: str) -> Order:
    unpack = struct.Struct(code).unpack

    def order(bound: bytes) -> float:
        value: float = unpack(bound)[0]
        if math.isnan(value):
            raise ValueError
        return value

    return order


def _text(bound: bytes) -> bytes:
    return bound


def _signed_big_endian(bound: bytes) -> int:
    if not bound:
        raise ValueError
    return int.from_bytes(bound, "big", signed=True)


_SIGNED: Final[dict[int, Order]] = {
    BOOLEAN: _unpacked("<?"),
    INT32: _unpacked("<i"),
    INT64: _unpacked("<q"),
    FLOAT: _number("<f"),
    DOUBLE: _number("<d"),
}
_UNSIGNED: Final[dict[int, Order]] = {INT32: _unpacked("<I"), INT64: _unpacked("<Q")}

_LOGICAL_STRING, _ENUM, _DECIMAL, _DATE, _TIME, _TIMESTAMP = 1, 4, 5, 6, 7, 8
_INTEGER, _NULL, _JSON, _BSON, _UUID, _FLOAT16 = 10, 11, 12, 13, 14, 15
_ORDERED_TEXTS = {_LOGICAL_STRING, _ENUM, _JSON, _BSON, _UUID}


def order_of(physical: int, annotation: tuple[Any, ...] | None) -> tuple[Order | None, bool]:
    """Return how bounds of a type are compared, `None` if that is undefined, and whether the deprecated ones
    were compared so. The annotation is the logical type's number and attributes."""
    logical = annotation[0] if annotation else 0
    if physical in (BYTE_ARRAY, FIXED):
        if logical == _DECIMAL:
            return _signed_big_endian, False
        if logical == _FLOAT16:
            return _number("<e"), False
        return (_text if not logical or logical in _ORDERED_TEXTS else None), False
    if logical == _INTEGER and annotation is not None and not annotation[2]:
        return _UNSIGNED.get(physical), False
    if logical in (0, _INTEGER, _DECIMAL, _DATE, _TIME, _TIMESTAMP):
        return _SIGNED.get(physical), True
    return None, False


def bounds_of(
    stored: Struct, order: Order | None, *, is_deprecated_right: bool, has_order: bool
) -> ValueBounds | None:
    """Return the bounds that stored statistics have; `None` if none is right."""
    if order is None:
        return None
    low, high = (bytes_at(stored, 6), bytes_at(stored, 5)) if has_order else (None, None)
    exact = flag_of(stored, 8), flag_of(stored, 7)
    if (low is None or high is None) and is_deprecated_right:
        low, high, exact = bytes_at(stored, 2), bytes_at(stored, 1), (None, None)
    if low is None or high is None:
        return None
    return valid_bounds(ValueBounds(low, high, *exact), order)


def valid_bounds(bounds: ValueBounds, order: Order) -> ValueBounds | None:
    """Return the bounds if they are in order."""
    try:
        return bounds if order(bounds.low) <= order(bounds.high) else None
    except (ValueError, struct.error):
        return None


def merged(parts: Iterable[ValueBounds | None], order: Order | None) -> ValueBounds | None:
    """Return the bounds of all parts; `None` if one part has none."""
    low = high = None
    for part in parts:
        if part is None or order is None:
            return None
        if low is None or high is None:
            low = high = part
            continue
        if order(part.low) < order(low.low):
            low = part
        if order(part.high) > order(high.high):
            high = part
    if low is None or high is None:
        return None
    return ValueBounds(low.low, high.high, low.is_low_exact, high.is_high_exact)


def with_signed_zeros(bounds: ValueBounds, physical: int) -> ValueBounds:
    """Return bounds of floating-point numbers whose zeros include both."""
    if physical not in (FLOAT, DOUBLE):
        return bounds
    code = "<f" if physical == FLOAT else "<d"
    low, high = struct.unpack(code, bounds.low)[0], struct.unpack(code, bounds.high)[0]
    return ValueBounds(struct.pack(code, low or -0.0), struct.pack(code, high or 0.0), *_exact(bounds))


def _exact(bounds: ValueBounds) -> tuple[bool | None, bool | None]:
    return bounds.is_low_exact, bounds.is_high_exact


def statistics_struct(bounds: ValueBounds | None, nulls: int, *, with_deprecated: bool) -> Struct:
    """Return the statistics of a column chunk."""
    fields: Struct = {3: (I64, nulls)}
    if bounds is not None:
        fields |= {5: (BINARY, bounds.high), 6: (BINARY, bounds.low)}
        if with_deprecated:
            fields |= {1: (BINARY, bounds.high), 2: (BINARY, bounds.low)}
        if bounds.is_high_exact is not None:
            fields[7] = (BOOL, bounds.is_high_exact)
        if bounds.is_low_exact is not None:
            fields[8] = (BOOL, bounds.is_low_exact)
    return fields


TYPE_ORDER: Final[Struct] = {1: (STRUCT, {})}
