"""CRC-32C (Castagnoli) of bytes in memory.

1. Where the processor has an instruction for it (x86-64 with SSE 4.2), eight bytes a step.
2. Everything else, and all of it on other processors, goes through eight tables, eight bytes a step.

The choice is made when the kernel is compiled for the processor it runs on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from lithify.kernel.cache import called, entry
from lithify.kernel.crc32 import has_features, make_tables, update_by_tables
from lithify.kernel.memory import load_u64, signed

U64 = np.uint64
_POLYNOMIAL = 0x82F63B78
_ALL_ONES = U64(0xFFFFFFFF)
_TABLES = make_tables(_POLYNOMIAL)


@intrinsic  # type: ignore[untyped-decorator]
def _step(_typing: Any, register: Any, word: Any) -> Any:
    """The register after eight more bytes."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        number = ir.IntType(64)
        name = "llvm.x86.sse42.crc32.64.64"
        kind = ir.FunctionType(number, [number, number])
        step = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        return builder.call(step, arguments)

    return types.uint64(types.uint64, types.uint64), generate


@called
def crc32c_by_tables(address: int, length: int) -> int:
    """The checksum of `length` bytes at `address`, on any processor."""
    return signed(update_by_tables(_TABLES, _ALL_ONES, address, length) ^ _ALL_ONES)


@called
def crc32c_by_instruction(address: int, length: int) -> int:
    """The same on a processor with SSE 4.2."""
    register = _ALL_ONES
    while length >= 8:
        register = _step(register, load_u64(address))
        address += 8
        length -= 8
    return signed(update_by_tables(_TABLES, register, address, length) ^ _ALL_ONES)


crc32c = crc32c_by_instruction if has_features("sse4.2") else crc32c_by_tables
"""The checksum of `length` bytes at `address`, the fastest way this processor can."""


@entry
def checksum(address: int, length: int, by_tables: bool) -> int:
    """The checksum for callers in Python: by tables, or the way the kernel does it."""
    return crc32c_by_tables(address, length) if by_tables else crc32c(address, length)
