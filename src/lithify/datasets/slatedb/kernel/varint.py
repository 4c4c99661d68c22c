"""LEB128 numbers of 32 bits: seven bits per byte, low bits first, the top bit set on all bytes but the
last."""

from __future__ import annotations

from lithify.kernel.cache import called, inlined
from lithify.kernel.memory import load_u8, store_u8

MAX_BYTES = 5
INVALID = -1
_MAX_VALUE = 0xFFFFFFFF


@called
def _read_long(position: int, end: int) -> tuple[int, int]:
    value = 0
    shift = 0
    stop = min(end, position + MAX_BYTES)
    while position < stop:
        byte = load_u8(position)
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value if value <= _MAX_VALUE else INVALID), position
        shift += 7
    return INVALID, position


@inlined
def read_varint(position: int, end: int) -> tuple[int, int]:
    """Return the number at `position` and the position after it. The number is `INVALID` if it runs past
    `end`, is longer than five bytes or exceeds 32 bits."""
    if position < end:
        byte = load_u8(position)
        if byte < 0x80:
            return byte, position + 1
        if position + 1 < end:
            second = load_u8(position + 1)
            if second < 0x80:
                return (byte & 0x7F) | second << 7, position + 2
    return _read_long(position, end)


@inlined
def write_varint(position: int, value: int) -> int:
    """Write the number. Return the position after it."""
    while value >= 0x80:
        store_u8(position, (value & 0x7F) | 0x80)
        position += 1
        value >>= 7
    store_u8(position, value)
    return position + 1


@inlined
def varint_len(value: int) -> int:
    """Return the number's encoded length."""
    length = 1
    while value >= 0x80:
        value >>= 7
        length += 1
    return length
