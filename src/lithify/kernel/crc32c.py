"""CRC-32C (Castagnoli) of bytes in memory.

1. With carry-less multiplication, long runs are folded (`crc`).
2. The rest is processed eight bytes per step by the CRC-32C instruction (x86-64 with SSE 4.2). Each step
   waits for the previous one, so the instruction alone has a tenth of the speed.
3. Other processors use eight tables, eight bytes per step.

The method is chosen when the kernel is compiled for the processor it runs on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from lithify.kernel.cache import called, entry
from lithify.kernel.crc import (
    ALL_ONES,
    LANE_BYTES,
    NARROW,
    NARROW_MIN_BYTES,
    WIDE,
    WIDE_MIN_BYTES,
    has_carryless_multiply,
    has_features,
    has_wide_carryless_multiply,
    make_tables,
    update_by_folding,
    update_by_tables,
)
from lithify.kernel.memory import load_u64, signed

U64 = np.uint64
_POLYNOMIAL = 0x82F63B78
_TABLES = make_tables(_POLYNOMIAL)
_update_narrow = update_by_folding(_POLYNOMIAL, NARROW)
_update_wide = update_by_folding(_POLYNOMIAL, WIDE)


@intrinsic  # type: ignore[untyped-decorator]
def _step(_typing: Any, register: Any, word: Any) -> Any:

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        number = ir.IntType(64)
        name = "llvm.x86.sse42.crc32.64.64"
        kind = ir.FunctionType(number, [number, number])
        step = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        return builder.call(step, arguments)

    return types.uint64(types.uint64, types.uint64), generate


@called
def _update_by_instruction(register: U64, address: int, length: int) -> U64:
    while length >= 8:
        register = _step(register, load_u64(address))
        address += 8
        length -= 8
    return update_by_tables(_TABLES, register, address, length)


@called
def crc32c_by_tables(address: int, length: int) -> int:
    """Return the checksum of `length` bytes at `address`, on any processor."""
    return signed(update_by_tables(_TABLES, ALL_ONES, address, length) ^ ALL_ONES)


@called
def crc32c_by_instruction(address: int, length: int) -> int:
    """Return the checksum, on a processor with SSE 4.2."""
    return signed(_update_by_instruction(ALL_ONES, address, length) ^ ALL_ONES)


@called
def crc32c_by_folding(address: int, length: int) -> int:
    """Return the checksum, on a processor with PCLMULQDQ."""
    register = ALL_ONES
    if length >= NARROW_MIN_BYTES:
        whole = length & ~(LANE_BYTES - 1)
        register = _update_narrow(register, address, whole)
        address += whole
        length -= whole
    return signed(_update_by_instruction(register, address, length) ^ ALL_ONES)


@called
def crc32c_by_wide_folding(address: int, length: int) -> int:
    """Return the checksum, on a processor with VPCLMULQDQ."""
    if length < WIDE_MIN_BYTES:
        return crc32c_by_folding(address, length)
    whole = length & ~(LANE_BYTES - 1)
    register = _update_wide(ALL_ONES, address, whole)
    return signed(_update_by_instruction(register, address + whole, length - whole) ^ ALL_ONES)


_INSTRUCTION = crc32c_by_instruction if has_features("sse4.2") else crc32c_by_tables
_FOLDING = crc32c_by_folding if has_carryless_multiply() and has_features("sse4.2") else _INSTRUCTION

crc32c = crc32c_by_wide_folding if has_wide_carryless_multiply() and has_features("sse4.2") else _FOLDING
"""The checksum of `length` bytes at `address`, by the fastest method of this processor."""


@entry
def checksum(address: int, length: int, method: int) -> int:
    """Return the checksum, for Python callers: by tables (0), by the instruction if available (1), by narrow
    folding if available (2), or by the kernel's method (3)."""
    if method == 0:
        return crc32c_by_tables(address, length)
    if method == 1:
        return _INSTRUCTION(address, length)
    return _FOLDING(address, length) if method == 2 else crc32c(address, length)
