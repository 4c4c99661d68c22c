"""Decompression of LZ4's block format: sequences of a literal and a copy of earlier output.

Every length and offset is checked against the rest of input and output. (The library compresses.)
"""

from __future__ import annotations

from lithify.datasets.slatedb.kernel.snappy import copy_literal, copy_match
from lithify.kernel.cache import called, inlined
from lithify.kernel.memory import load_u8, load_u16

MAX_RATIO = 255
"""One byte can lengthen a copy by at most 255."""

_LONG = 15
_MIN_MATCH = 4
_CORRUPT = -1


@inlined
def _read_length(source: int, end: int, length: int) -> tuple[int, int]:
    """Return a length that starts with four bits of the token, and the position after it."""
    if length < _LONG:
        return length, source
    while source < end:
        byte = load_u8(source)
        source += 1
        length += byte
        if byte < 255:
            return length, source
    return _CORRUPT, source


@called
def decompress(source: int, length: int, target: int, capacity: int) -> int:
    """Decompress into `target`. Return the uncompressed length, or -1 for corrupt data."""
    end = source + length
    position = target
    target_end = target + capacity
    while source < end:
        token = load_u8(source)
        count, source = _read_length(source + 1, end, token >> 4)
        if count < 0 or count > end - source or count > target_end - position:
            return _CORRUPT
        copy_literal(position, source, count)
        source += count
        position += count
        if source == end:
            return position - target
        if end - source < 2:
            return _CORRUPT
        offset = load_u16(source)
        count, source = _read_length(source + 2, end, token & _LONG)
        if count < 0:
            return _CORRUPT
        count += _MIN_MATCH
        if offset == 0 or offset > position - target or count > target_end - position:
            return _CORRUPT
        copy_match(position, offset, count)
        position += count
    return _CORRUPT
