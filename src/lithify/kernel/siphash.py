"""SipHash-1-3 with a zero key, over a key in memory: a hash of 64 bits, or one of 128.

1. The state starts as the four constants of the paper.
2. Each eight-byte word is mixed in with one round.
3. The last word holds the remaining bytes and the length modulo 256; three rounds finish.
4. For 128 bits one constant differs at the start; what 64 bits end with is the first half, and three more
   rounds give the second.

Up to seven bytes behind the key are read and masked off.
"""

from __future__ import annotations

import numpy as np

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
    """The state after all bytes and their number."""
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
    """The hash of `length` bytes at `address`."""
    v0, v1, v2, v3 = _absorb(address, length, _START_1)
    v2 ^= _FINISH
    for _ in range(_FINAL_ROUNDS):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return v0 ^ v1 ^ v2 ^ v3


@inlined
def siphash_128(address: int, length: int) -> tuple[U64, U64]:
    """The hash of 128 bits of `length` bytes at `address`: both halves."""
    v0, v1, v2, v3 = _absorb(address, length, _START_1 ^ _WIDE)
    v2 ^= _WIDE
    for _ in range(_FINAL_ROUNDS):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    first = v0 ^ v1 ^ v2 ^ v3
    v1 ^= _SECOND_HALF
    for _ in range(_FINAL_ROUNDS):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return first, v0 ^ v1 ^ v2 ^ v3
