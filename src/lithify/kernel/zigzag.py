"""Zigzag varints: the sign in the lowest bit, then seven bits per byte, low bits first, the top bit set on
all but the last byte. Numbers of 32 bits take at most five bytes, of 64 bits ten.

Reading returns the number and the address after it, or address 0 if the number is cut off, too long or too
large. Reading at address 0 returns 0 again, so a caller may check several numbers at once.
"""

from __future__ import annotations

import numpy as np

from lithify.kernel.cache import called, inlined
from lithify.kernel.memory import load_u8, signed, store_u8, unsigned

U64 = np.uint64
INVALID = 0
_MAX_BYTES_32 = 5
_MAX_BYTES_64 = 10
_GREATEST_32 = U64(0xFFFFFFFF)
_ONE = U64(1)
_LOW_BITS = U64(0x7F)
_MORE = U64(0x80)
_SEVEN = U64(7)


@called
def _read_long(position: int, end: int, max_bytes: int) -> tuple[int, int]:
    value = U64(0)
    shift = U64(0)
    stop = min(end, position + max_bytes)
    while position < stop:
        byte = unsigned(load_u8(position))
        position += 1
        value |= (byte & _LOW_BITS) << shift
        if byte < _MORE:
            if (max_bytes == _MAX_BYTES_32 and value > _GREATEST_32) or (shift == U64(63) and byte > _ONE):
                return 0, INVALID
            return signed((value >> _ONE) ^ (U64(0) - (value & _ONE))), position
        shift += _SEVEN
    return 0, INVALID


@inlined
def _read(position: int, end: int, max_bytes: int) -> tuple[int, int]:
    if position == INVALID or position >= end:
        return 0, INVALID
    byte = load_u8(position)
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    if position + 1 < end:
        second = load_u8(position + 1)
        if second < 0x80:
            number = (byte & 0x7F) | (second << 7)
            return (number >> 1) ^ -(number & 1), position + 2
    return _read_long(position, end, max_bytes)


@inlined
def read_varint(position: int, end: int) -> tuple[int, int]:
    """Return a number of 32 bits and the address after it."""
    return _read(position, end, _MAX_BYTES_32)


@inlined
def read_varlong(position: int, end: int) -> tuple[int, int]:
    """Return a number of 64 bits and the address after it."""
    return _read(position, end, _MAX_BYTES_64)


@inlined
def _zigzag(value: int) -> U64:
    word: U64 = unsigned(value << 1) ^ unsigned(value >> 63)
    return word


@inlined
def write_varlong(position: int, value: int) -> int:
    """Write the number, of 32 or 64 bits. Return the address after it."""
    left = _zigzag(value)
    while left >= _MORE:
        store_u8(position, signed((left & _LOW_BITS) | _MORE))
        position += 1
        left >>= _SEVEN
    store_u8(position, signed(left))
    return position + 1


@inlined
def varlong_len(value: int) -> int:
    """Return the number's encoded length."""
    left = _zigzag(value)
    length = 1
    while left >= _MORE:
        left >>= _SEVEN
        length += 1
    return length
