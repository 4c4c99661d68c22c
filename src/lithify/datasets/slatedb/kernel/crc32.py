"""CRC-32 (ISO-HDLC, the one of zlib) of bytes in memory.

1. Where the processor multiplies without carries (x86-64 with PCLMULQDQ), all whole 16-byte groups of
   a run of at least 64 bytes are folded: four 128-bit lanes at a time, then one, then to 32 bits by
   Barrett reduction. The constants are powers of x modulo the polynomial, bit-reflected.
2. Everything else, and all of it on other processors, goes through eight tables, eight bytes a step.

The choice is made when the kernel is compiled for the processor it runs on, so no instruction is ever
met by a processor that lacks it.
"""

from __future__ import annotations

import platform
from typing import Any

import llvmlite.binding
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from lithify.datasets.slatedb.kernel.cache import called, entry
from lithify.datasets.slatedb.kernel.memory import load_u8, load_u64, signed, unsigned

U64 = np.uint64
_POLYNOMIAL = 0xEDB88320
_ALL_ONES = U64(0xFFFFFFFF)
_BYTE_MASK = U64(0xFF)
_LANES_BYTES = 64
_LANE_BYTES = 16

_FOLD_FOUR = (0x154442BD4, 0x1C6E41596)
_FOLD_ONE = (0x1751997D0, 0x0CCAA009E)
_FOLD_HALF = (0x163CD6124, 0)
_BARRETT = (0x1DB710641, 0x1F7011641)


def has_carryless_multiply() -> bool:
    """Whether this processor has PCLMULQDQ."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    return bool(llvmlite.binding.get_host_cpu_features().get("pclmul", False))


def _make_tables() -> npt.NDArray[np.uint64]:
    tables = np.zeros((8, 256), np.uint64)
    for byte in range(256):
        remainder = byte
        for _ in range(8):
            remainder = (remainder >> 1) ^ (_POLYNOMIAL if remainder & 1 else 0)
        tables[0, byte] = remainder
    for row in range(1, 8):
        for byte in range(256):
            before = int(tables[row - 1, byte])
            tables[row, byte] = (before >> 8) ^ int(tables[0, before & 0xFF])
    return tables


_TABLES = _make_tables()


@called
def _update_by_tables(register: U64, address: int, length: int) -> U64:
    while length >= 8:
        word = load_u64(address) ^ register
        register = (
            _TABLES[7, word & _BYTE_MASK]
            ^ _TABLES[6, (word >> U64(8)) & _BYTE_MASK]
            ^ _TABLES[5, (word >> U64(16)) & _BYTE_MASK]
            ^ _TABLES[4, (word >> U64(24)) & _BYTE_MASK]
            ^ _TABLES[3, (word >> U64(32)) & _BYTE_MASK]
            ^ _TABLES[2, (word >> U64(40)) & _BYTE_MASK]
            ^ _TABLES[1, (word >> U64(48)) & _BYTE_MASK]
            ^ _TABLES[0, word >> U64(56)]
        )
        address += 8
        length -= 8
    while length > 0:
        register = _TABLES[0, (register ^ unsigned(load_u8(address))) & _BYTE_MASK] ^ (register >> U64(8))
        address += 1
        length -= 1
    return register


class _Folding:
    """Emits the folding of one run of bytes: the instructions, not the computation itself."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder
        self.word = ir.IntType(64)
        self.lane = ir.VectorType(self.word, 2)
        self.wide = ir.IntType(128)
        kind = ir.FunctionType(self.lane, [self.lane, self.lane, ir.IntType(8)])
        name = "llvm.x86.pclmulqdq"
        self.multiply = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)

    def constant(self, low: int, high: int) -> Any:
        return ir.Constant(self.lane, [self.word(low), self.word(high)])

    def product(self, left: Any, right: Any, halves: int) -> Any:
        return self.builder.call(self.multiply, [left, right, ir.IntType(8)(halves)])

    def load(self, address: Any, offset: int) -> Any:
        place = self.builder.add(address, self.word(offset))
        return self.builder.load(self.builder.inttoptr(place, self.lane.as_pointer()), align=1)

    def fold(self, lane: Any, constant: Any, added: Any) -> Any:
        low, high = self.product(lane, constant, 0x00), self.product(lane, constant, 0x11)
        return self.builder.xor(self.builder.xor(low, high), added)

    def shift_right(self, lane: Any, count_bytes: int) -> Any:
        shifted = self.builder.lshr(self.builder.bitcast(lane, self.wide), self.wide(8 * count_bytes))
        return self.builder.bitcast(shifted, self.lane)

    def fold_while(
        self, address: Any, left: Any, lanes: list[Any], constant: Any
    ) -> tuple[Any, Any, list[Any]]:
        """A loop that folds `len(lanes)` lanes a step while enough bytes are left."""
        builder, step = self.builder, _LANE_BYTES * len(lanes)
        before = builder.block
        head, body, done = (builder.append_basic_block(name) for name in ("fold", "step", "folded"))
        builder.branch(head)
        builder.position_at_end(head)
        start = [address, left, *lanes]
        state = [builder.phi(value.type) for value in start]
        for phi, value in zip(state, start, strict=True):
            phi.add_incoming(value, before)
        at, rest, current = state[0], state[1], state[2:]
        builder.cbranch(builder.icmp_signed(">=", rest, self.word(step)), body, done)
        builder.position_at_end(body)
        folded = [self.fold(x, constant, self.load(at, _LANE_BYTES * i)) for i, x in enumerate(current)]
        after = [builder.add(at, self.word(step)), builder.sub(rest, self.word(step)), *folded]
        for phi, value in zip(state, after, strict=True):
            phi.add_incoming(value, builder.block)
        builder.branch(head)
        builder.position_at_end(done)
        return at, rest, current

    def reduce(self, lane: Any) -> Any:
        """A lane to the 32-bit register."""
        builder = self.builder
        low_half = self.constant(0xFFFFFFFF, 0xFFFFFFFF)
        barrett = self.constant(*_BARRETT)
        x = builder.xor(self.shift_right(lane, 8), self.product(lane, self.constant(*_FOLD_ONE), 0x10))
        folded = self.product(builder.and_(x, low_half), self.constant(*_FOLD_HALF), 0x00)
        x = builder.xor(folded, self.shift_right(x, 4))
        quotient = builder.and_(self.product(builder.and_(x, low_half), barrett, 0x10), low_half)
        x = builder.xor(x, self.product(quotient, barrett, 0x00))
        return builder.lshr(builder.extract_element(x, ir.IntType(32)(0)), self.word(32))

    def run(self, address: Any, length: Any, register: Any) -> Any:
        builder = self.builder
        lanes = [self.load(address, _LANE_BYTES * i) for i in range(4)]
        nothing = self.constant(0, 0)
        lanes[0] = builder.xor(lanes[0], builder.insert_element(nothing, register, ir.IntType(32)(0)))
        address = builder.add(address, self.word(_LANES_BYTES))
        left = builder.sub(length, self.word(_LANES_BYTES))
        address, left, lanes = self.fold_while(address, left, lanes, self.constant(*_FOLD_FOUR))
        one = self.constant(*_FOLD_ONE)
        lane = lanes[0]
        for following in lanes[1:]:
            lane = self.fold(lane, one, following)
        _, _, (lane,) = self.fold_while(address, left, [lane], one)
        return self.reduce(lane)


@intrinsic  # type: ignore[untyped-decorator]
def _update_by_folding(_typing: Any, register: Any, address: Any, length: Any) -> Any:
    """The register after `length` bytes, a multiple of 16 and at least 64."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        register, address, length = arguments
        return _Folding(builder).run(address, length, register)

    return types.uint64(types.uint64, types.int64, types.int64), generate


@called
def crc32_by_tables(address: int, length: int) -> int:
    """The checksum of `length` bytes at `address`, on any processor."""
    return signed(_update_by_tables(_ALL_ONES, address, length) ^ _ALL_ONES)


@called
def _crc32_by_folding(address: int, length: int) -> int:
    register = _ALL_ONES
    if length >= _LANES_BYTES:
        whole = length & ~(_LANE_BYTES - 1)
        register = _update_by_folding(register, address, whole)
        address += whole
        length -= whole
    return signed(_update_by_tables(register, address, length) ^ _ALL_ONES)


crc32 = _crc32_by_folding if has_carryless_multiply() else crc32_by_tables
"""The checksum of `length` bytes at `address`, the fastest way this processor can."""


@entry
def checksum(address: int, length: int, portable: bool) -> int:
    """The checksum for callers in Python: by tables if `portable`, else the way the kernel does it."""
    return crc32_by_tables(address, length) if portable else crc32(address, length)
