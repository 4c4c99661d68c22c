"""SipHash-1-3 with a zero key: a hash of 64 or 128 bits of a key in memory.

1. The state starts as the paper's four constants.
2. Each eight-byte word is mixed in with one round.
3. The last word has the remaining bytes and the length modulo 256; three rounds finish.
4. For 128 bits one initial constant differs; the 64-bit result is the first half, and three more rounds give
   the second.

Up to seven bytes after the key are read and masked off.

`siphash_lanes` hashes several keys at once, each in a lane of vectors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from lithify.kernel.cache import inlined
from lithify.kernel.memory import load_u64, unsigned

U64 = np.uint64
_START_0 = U64(0x736F6D6570736575)
_START_1 = U64(0x646F72616E646F6D)
_START_2 = U64(0x6C7967656E657261)
_START_3 = U64(0x7465646279746573)
_FINISH = U64(0xFF)
_WIDE = U64(0xEE)
_SECOND_HALF = U64(0xDD)
_FINAL_ROUNDS = 3

LANES = 8
"""Keys that are hashed at once. A processor with shorter vectors uses several for one."""

_WORD = ir.IntType(64)
_VECTOR = ir.VectorType(_WORD, LANES)
_LENGTH_SHIFT = 56


@inlined
def _rotate(word: U64, bits: int) -> U64:
    return (word << U64(bits)) | (word >> U64(64 - bits))


@inlined
def _round(v0: U64, v1: U64, v2: U64, v3: U64) -> tuple[U64, U64, U64, U64]:
    v0 += v1
    v1 = _rotate(v1, 13) ^ v0
    v0 = _rotate(v0, 32)
    v2 += v3
    v3 = _rotate(v3, 16) ^ v2
    v0 += v3
    v3 = _rotate(v3, 21) ^ v0
    v2 += v1
    v1 = _rotate(v1, 17) ^ v2
    v2 = _rotate(v2, 32)
    return v0, v1, v2, v3


@inlined
def _absorb(address: int, length: int, start_1: U64) -> tuple[U64, U64, U64, U64]:
    """Return the state after all bytes and their number."""
    v0, v1, v2, v3 = _START_0, start_1, _START_2, _START_3
    last = unsigned(length) << U64(56)
    while length >= 8:
        word = load_u64(address)
        v3 ^= word
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0 ^= word
        address += 8
        length -= 8
    if length > 0:
        last |= load_u64(address) & ((U64(1) << unsigned(length * 8)) - U64(1))
    v3 ^= last
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return v0 ^ last, v1, v2, v3


@inlined
def siphash(address: int, length: int) -> U64:
    """Return the hash of `length` bytes at `address`."""
    v0, v1, v2, v3 = _absorb(address, length, _START_1)
    v2 ^= _FINISH
    for _ in range(_FINAL_ROUNDS):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return v0 ^ v1 ^ v2 ^ v3


@inlined
def siphash_128(address: int, length: int) -> tuple[U64, U64]:
    """Return both halves of the 128-bit hash of `length` bytes at `address`."""
    v0, v1, v2, v3 = _absorb(address, length, _START_1 ^ _WIDE)
    v2 ^= _WIDE
    for _ in range(_FINAL_ROUNDS):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    first = v0 ^ v1 ^ v2 ^ v3
    v1 ^= _SECOND_HALF
    for _ in range(_FINAL_ROUNDS):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return first, v0 ^ v1 ^ v2 ^ v3


class _HashLanes:
    """Emits the instructions that hash keys in lanes."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def constant(self, number: Any) -> Any:
        return ir.Constant(_VECTOR, [_WORD(int(number))] * LANES)

    def gather(self, keys: Any, stride: Any, offset: Any) -> Any:
        """Return the word at `offset` of every key."""
        builder = self.builder
        words = ir.Constant(_VECTOR, ir.Undefined)
        place = builder.add(keys, offset)
        for lane in range(LANES):
            word = builder.load(builder.inttoptr(place, _WORD.as_pointer()), align=1)
            words = builder.insert_element(words, word, ir.IntType(32)(lane))
            place = builder.add(place, stride)
        return words

    def rotate(self, lanes: Any, bits: int) -> Any:
        high = self.builder.shl(lanes, self.constant(bits))
        return self.builder.or_(high, self.builder.lshr(lanes, self.constant(64 - bits)))

    def round(self, v0: Any, v1: Any, v2: Any, v3: Any) -> tuple[Any, Any, Any, Any]:
        add, xor = self.builder.add, self.builder.xor
        v0 = add(v0, v1)
        v1 = xor(self.rotate(v1, 13), v0)
        v0 = self.rotate(v0, 32)
        v2 = add(v2, v3)
        v3 = xor(self.rotate(v3, 16), v2)
        v0 = add(v0, v3)
        v3 = xor(self.rotate(v3, 21), v0)
        v2 = add(v2, v1)
        v1 = xor(self.rotate(v1, 17), v2)
        v2 = self.rotate(v2, 32)
        return v0, v1, v2, v3

    def mix(self, state: Any, words: Any) -> tuple[Any, Any, Any, Any]:
        v0, v1, v2, v3 = state
        v0, v1, v2, v3 = self.round(v0, v1, v2, self.builder.xor(v3, words))
        return self.builder.xor(v0, words), v1, v2, v3

    def last_words(self, keys: Any, stride: Any, words: Any, lengths: Any) -> Any:
        """Return the remaining bytes and the length of every key."""
        builder = self.builder
        place = builder.inttoptr(lengths, _VECTOR.as_pointer())
        length = builder.load(place, align=1)
        bits = builder.shl(builder.and_(length, self.constant(7)), self.constant(3))
        mask = builder.sub(builder.shl(self.constant(1), bits), self.constant(1))
        rest = builder.and_(self.gather(keys, stride, builder.mul(words, _WORD(8))), mask)
        return builder.or_(rest, builder.shl(length, self.constant(_LENGTH_SHIFT)))

    def hash(self, keys: Any, stride: Any, words: Any, lengths: Any, target: Any) -> None:
        builder = self.builder
        starts = (_START_0, _START_1, _START_2, _START_3)
        slots = [cgutils.alloca_once_value(builder, self.constant(start)) for start in starts]
        with cgutils.for_range(builder, words) as loop:
            word = self.gather(keys, stride, builder.mul(loop.index, _WORD(8)))
            mixed = self.mix([builder.load(slot) for slot in slots], word)
            for slot, lanes in zip(slots, mixed, strict=True):
                builder.store(lanes, slot)
        last = self.last_words(keys, stride, words, lengths)
        v0, v1, v2, v3 = self.mix([builder.load(slot) for slot in slots], last)
        v2 = builder.xor(v2, self.constant(_FINISH))
        for _ in range(_FINAL_ROUNDS):
            v0, v1, v2, v3 = self.round(v0, v1, v2, v3)
        hashes = builder.xor(builder.xor(v0, v1), builder.xor(v2, v3))
        builder.store(hashes, builder.inttoptr(target, _VECTOR.as_pointer()), align=1)


@intrinsic  # type: ignore[untyped-decorator]
def siphash_lanes(_typing: Any, keys: Any, stride: Any, words: Any, lengths: Any, target: Any) -> Any:
    """Write the hashes of `LANES` keys to `target`. The keys are `stride` bytes apart and have `words` whole
    words each; their lengths are at `lengths`."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        _HashLanes(builder).hash(*arguments)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate
