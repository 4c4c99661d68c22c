"""32-bit CRCs for any polynomial, given bit-reflected.

1. With carry-less multiplication (PCLMULQDQ of x86-64), whole 16-byte groups of a run are folded: four lanes
   at a time, then one, then to 32 bits by Barrett reduction. Folding a lane over a distance multiplies its
   halves by powers of x modulo the polynomial.
2. With wider registers (VPCLMULQDQ), long runs are first folded in lanes of 512 bits (AVX-512) or 256 bits
   (AVX2), and those into one of 128.
3. The rest, and everything on other processors, uses eight tables, eight bytes per step.

A *register* is the remainder so far, before the final inversion.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import llvmlite.binding
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from lithify.kernel.cache import called
from lithify.kernel.memory import load_u8, load_u64, unsigned

U64 = np.uint64
ALL_ONES = U64(0xFFFFFFFF)
LANE_BYTES = 16
NARROW = 2
"""Words of a lane."""
_LANES = 4
NARROW_MIN_BYTES = _LANES * NARROW * 8
_MULTIPLY = {
    NARROW: "llvm.x86.pclmulqdq",
    2 * NARROW: "llvm.x86.pclmulqdq.256",
    4 * NARROW: "llvm.x86.pclmulqdq.512",
}
"""The instruction by the lane's number of words."""
_BYTE_MASK = U64(0xFF)
_DEGREE = 32


def has_features(*names: str) -> bool:
    """Return whether this processor is an x86-64 with all these features."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    features = llvmlite.binding.get_host_cpu_features()
    return all(features.get(name, False) for name in names)


def has_carryless_multiply() -> bool:
    return has_features("pclmul", "sse4.1")


def has_wide_carryless_multiply() -> bool:
    return has_carryless_multiply() and has_features("vpclmulqdq", "avx2")


WIDE = 4 * NARROW if has_features("avx512f") else 2 * NARROW
"""Words of the widest lane, if there is more than one width."""
WIDE_MIN_BYTES = _LANES * WIDE * 8


def _power(exponent: int, polynomial: int) -> int:
    """Return x to the power of `exponent` modulo the polynomial, bit-reflected and shifted for a product."""
    remainder = 1 << 31  # the polynomial 1
    for _ in range(exponent):
        remainder = (remainder >> 1) ^ (polynomial if remainder & 1 else 0)
    return remainder << 1


def _reflected(number: int) -> int:
    """Return a polynomial of degree 32 with its bits reversed."""
    return int(f"{number:0{_DEGREE + 1}b}"[::-1], 2)


def _quotient(polynomial: int) -> int:
    """Return x^64 divided by the polynomial, bit-reflected."""
    divisor, rest, quotient = _reflected(polynomial << 1 | 1), 1 << (2 * _DEGREE), 0
    for shift in range(_DEGREE, -1, -1):
        if rest >> (shift + _DEGREE) & 1:
            rest ^= divisor << shift
            quotient |= 1 << shift
    return _reflected(quotient)


def make_tables(polynomial: int) -> npt.NDArray[np.uint64]:
    """Return the tables that update the remainder by eight bytes at once."""
    tables = np.zeros((8, 256), np.uint64)
    for byte in range(256):
        remainder = byte
        for _ in range(8):
            remainder = (remainder >> 1) ^ (polynomial if remainder & 1 else 0)
        tables[0, byte] = remainder
    for row in range(1, 8):
        for byte in range(256):
            before = int(tables[row - 1, byte])
            tables[row, byte] = (before >> 8) ^ int(tables[0, before & 0xFF])
    return tables


@called
def update_by_tables(tables: npt.NDArray[np.uint64], register: U64, address: int, length: int) -> U64:
    """Return the register after `length` more bytes, on any processor."""
    while length >= 8:
        word = load_u64(address) ^ register
        register = (
            tables[7, word & _BYTE_MASK]
            ^ tables[6, (word >> U64(8)) & _BYTE_MASK]
            ^ tables[5, (word >> U64(16)) & _BYTE_MASK]
            ^ tables[4, (word >> U64(24)) & _BYTE_MASK]
            ^ tables[3, (word >> U64(32)) & _BYTE_MASK]
            ^ tables[2, (word >> U64(40)) & _BYTE_MASK]
            ^ tables[1, (word >> U64(48)) & _BYTE_MASK]
            ^ tables[0, word >> U64(56)]
        )
        address += 8
        length -= 8
    while length > 0:
        register = tables[0, (register ^ unsigned(load_u8(address))) & _BYTE_MASK] ^ (register >> U64(8))
        address += 1
        length -= 1
    return register


class _Folding:
    """Emits the instructions that fold one run of bytes."""

    def __init__(self, builder: Any, polynomial: int) -> None:
        self.builder = builder
        self.polynomial = polynomial
        self.word = ir.IntType(64)
        self.wide = ir.IntType(128)

    def lane(self, words: int) -> Any:
        return ir.VectorType(self.word, words)

    def constant(self, low: int, high: int, words: int = NARROW) -> Any:
        return ir.Constant(self.lane(words), [self.word(low), self.word(high)] * (words // 2))

    def distance(self, size_bytes: int) -> tuple[int, int]:
        """Return the factors by which a lane's halves are folded over that distance."""
        bits = 8 * size_bytes
        return _power(bits + _DEGREE, self.polynomial), _power(bits - _DEGREE, self.polynomial)

    def product(self, left: Any, right: Any, halves: int) -> Any:
        lane = left.type
        name = _MULTIPLY[lane.count]
        module = self.builder.module
        kind = ir.FunctionType(lane, [lane, lane, ir.IntType(8)])
        multiply = module.globals.get(name) or ir.Function(module, kind, name)
        return self.builder.call(multiply, [left, right, ir.IntType(8)(halves)])

    def load(self, address: Any, offset: int, words: int) -> Any:
        place = self.builder.add(address, self.word(offset))
        return self.builder.load(self.builder.inttoptr(place, self.lane(words).as_pointer()), align=1)

    def fold(self, lane: Any, distance_bytes: int, added: Any) -> Any:
        factors = self.constant(*self.distance(distance_bytes), lane.type.count)
        low, high = self.product(lane, factors, 0x00), self.product(lane, factors, 0x11)
        return self.builder.xor(self.builder.xor(low, high), added)

    def fold_all(self, lanes: list[Any], distance_bytes: int) -> Any:
        """Fold neighbouring lanes into one."""
        lane = lanes[0]
        for following in lanes[1:]:
            lane = self.fold(lane, distance_bytes, following)
        return lane

    def shift_right(self, lane: Any, count_bytes: int) -> Any:
        shifted = self.builder.lshr(self.builder.bitcast(lane, self.wide), self.wide(8 * count_bytes))
        return self.builder.bitcast(shifted, lane.type)

    def fold_while(self, address: Any, left: Any, lanes: list[Any]) -> tuple[Any, Any, list[Any]]:
        """Emit a loop that folds all lanes over their common size while enough bytes are left."""
        builder, words = self.builder, lanes[0].type.count
        step = 8 * words * len(lanes)
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
        folded = [self.fold(x, step, self.load(at, 8 * words * i, words)) for i, x in enumerate(current)]
        after = [builder.add(at, self.word(step)), builder.sub(rest, self.word(step)), *folded]
        for phi, value in zip(state, after, strict=True):
            phi.add_incoming(value, builder.block)
        builder.branch(head)
        builder.position_at_end(done)
        return at, rest, current

    def narrowed(self, lane: Any) -> list[Any]:
        """Split a wide lane into narrow ones."""
        index = ir.IntType(32)
        picks = [
            ir.Constant(ir.VectorType(index, NARROW), [index(NARROW * i), index(NARROW * i + 1)])
            for i in range(lane.type.count // NARROW)
        ]
        return [self.builder.shuffle_vector(lane, lane, pick) for pick in picks]

    def reduce(self, lane: Any) -> Any:
        """Reduce a narrow lane to the 32-bit register."""
        builder = self.builder
        low_half = self.constant(0xFFFFFFFF, 0xFFFFFFFF)
        barrett = self.constant(self.polynomial << 1 | 1, _quotient(self.polynomial))
        one_lane = self.constant(*self.distance(LANE_BYTES))
        x = builder.xor(self.shift_right(lane, 8), self.product(lane, one_lane, 0x10))
        half_lane = self.constant(_power(2 * _DEGREE, self.polynomial), 0)
        folded = self.product(builder.and_(x, low_half), half_lane, 0x00)
        x = builder.xor(folded, self.shift_right(x, 4))
        quotient = builder.and_(self.product(builder.and_(x, low_half), barrett, 0x10), low_half)
        x = builder.xor(x, self.product(quotient, barrett, 0x00))
        return builder.lshr(builder.extract_element(x, ir.IntType(32)(0)), self.word(32))

    def run(self, register: Any, address: Any, length: Any, words: int) -> Any:
        """Return the register after a run of whole narrow lanes, at least four lanes of `words` long."""
        builder = self.builder
        lanes = [self.load(address, 8 * words * i, words) for i in range(_LANES)]
        nothing = self.constant(0, 0, words)
        lanes[0] = builder.xor(lanes[0], builder.insert_element(nothing, register, ir.IntType(32)(0)))
        address = builder.add(address, self.word(8 * words * _LANES))
        left = builder.sub(length, self.word(8 * words * _LANES))
        address, left, lanes = self.fold_while(address, left, lanes)
        lane = self.fold_all(lanes, 8 * words)
        if words > NARROW:
            address, left, (lane,) = self.fold_while(address, left, [lane])
            lane = self.fold_all(self.narrowed(lane), LANE_BYTES)
        _, _, (lane,) = self.fold_while(address, left, [lane])
        return self.reduce(lane)


def update_by_folding(polynomial: int, words: int) -> Callable[[Any, int, int], Any]:
    """Return a function of register, address and length, for processors with the instruction. It returns the
    register after whole 16-byte lanes, at least four lanes of `words`."""

    @intrinsic  # type: ignore[untyped-decorator]
    def update(_typing: Any, register: Any, address: Any, length: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            register, address, length = arguments
            return _Folding(builder, polynomial).run(register, address, length, words)

        return types.uint64(types.uint64, types.int64, types.int64), generate

    return update  # type: ignore[no-any-return]
