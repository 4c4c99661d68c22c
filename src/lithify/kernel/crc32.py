"""CRC-32 (ISO-HDLC, as in zlib) of bytes in memory, computed with `crc`.

The method is chosen at compilation, for the processor it runs on, so no unknown instruction is executed.
"""

from __future__ import annotations

import numpy as np

from lithify.kernel.cache import called, entry
from lithify.kernel.crc import (
    ALL_ONES,
    LANE_BYTES,
    NARROW,
    NARROW_MIN_BYTES,
    WIDE,
    WIDE_MIN_BYTES,
    has_carryless_multiply,
    has_wide_carryless_multiply,
    make_tables,
    update_by_folding,
    update_by_tables,
)
from lithify.kernel.memory import signed

_POLYNOMIAL = 0xEDB88320
_TABLES = make_tables(_POLYNOMIAL)
_update_narrow = update_by_folding(_POLYNOMIAL, NARROW)
_update_wide = update_by_folding(_POLYNOMIAL, WIDE)


@called
def crc32_by_tables(address: int, length: int) -> int:
    """Return the checksum of `length` bytes at `address`, on any processor."""
    return signed(update_by_tables(_TABLES, ALL_ONES, address, length) ^ ALL_ONES)


@called
def crc32_by_folding(address: int, length: int) -> int:
    """Return the checksum, on a processor with PCLMULQDQ."""
    register = ALL_ONES
    if length >= NARROW_MIN_BYTES:
        whole = length & ~(LANE_BYTES - 1)
        register = _update_narrow(register, address, whole)
        address += whole
        length -= whole
    return signed(update_by_tables(_TABLES, register, address, length) ^ ALL_ONES)


@called
def crc32_by_wide_folding(address: int, length: int) -> int:
    """Return the checksum, on a processor with VPCLMULQDQ."""
    if length < WIDE_MIN_BYTES:
        return crc32_by_folding(address, length)
    whole = length & ~(LANE_BYTES - 1)
    register = _update_wide(ALL_ONES, address, whole)
    return signed(update_by_tables(_TABLES, register, address + whole, length - whole) ^ ALL_ONES)


_FOLDING = crc32_by_folding if has_carryless_multiply() else crc32_by_tables

crc32 = crc32_by_wide_folding if has_wide_carryless_multiply() else _FOLDING
"""The checksum of `length` bytes at `address`, by the fastest method of this processor."""


@entry
def checksum(address: int, length: int, method: int) -> int:
    """Return the checksum, for Python callers: by tables (0), by narrow folding if available (1), or by the
    kernel's method (2)."""
    if method == 0:
        return crc32_by_tables(address, length)
    return _FOLDING(address, length) if method == 1 else crc32(address, length)


def crc32_of(data: memoryview) -> int:
    """Return the checksum of contiguous bytes, ten times as fast as `zlib.crc32`."""
    return checksum(np.frombuffer(data, np.uint8).ctypes.data, len(data), 2)
