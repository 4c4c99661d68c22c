"""Hashes of keys, and a filter of hashes (a Bloom filter in blocks of 64 bits).

1. The hash of a key is made column by column: `mix_words` for numbers, `mix_texts` for bytes.
2. A hash sets four bits of one word of the filter. A hash that was added is always found; of others, about
   one in 300 is found with 20 bits per key, one in 60 with 10.

Hashes only select rows that may match: keys are compared by their values afterwards.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lithify.kernel.cache import entry, inlined
from lithify.kernel.memory import load_i64, load_u8, unsigned

U64 = np.uint64
Words = npt.NDArray[np.uint64]

_FIRST, _SECOND = U64(0xBF58476D1CE4E5B9), U64(0x94D049BB133111EB)
_STEP = U64(0x9E3779B97F4A7C15)
_27, _30, _31, _40, _6, _BITS, _ONE = U64(27), U64(30), U64(31), U64(40), U64(6), U64(63), U64(1)


@inlined
def _mixed(word: U64) -> U64:
    """Return a word every bit of which depends on every bit of `word` (SplitMix64)."""
    word += _STEP
    word = (word ^ (word >> _30)) * _FIRST
    word = (word ^ (word >> _27)) * _SECOND
    return word ^ (word >> _31)


@entry
def mix_words(values: int, hashes: Words) -> None:
    """Mix each 64-bit number, at the address `values`, into the hash of its row."""
    for row in range(len(hashes)):
        hashes[row] = _mixed(hashes[row] ^ unsigned(load_i64(values + 8 * row)))


@entry
def mix_texts(offsets: int, data: int, hashes: Words) -> None:
    """Mix each row's bytes into its hash. At the address `offsets` are 64-bit numbers: where each row's bytes
    begin, from the address `data`, and where the last one's end."""
    for row in range(len(hashes)):
        position = data + load_i64(offsets + 8 * row)
        end = data + load_i64(offsets + 8 * row + 8)
        word = _mixed(hashes[row] ^ unsigned(end - position))
        while end - position >= 8:
            word = _mixed(word ^ unsigned(load_i64(position)))
            position += 8
        rest = U64(0)
        while position < end:
            rest = (rest << U64(8)) | unsigned(load_u8(position))
            position += 1
        hashes[row] = _mixed(word ^ rest)


@inlined
def _bits(word: U64) -> U64:
    chosen, left = U64(0), word >> _40
    for _ in range(4):
        chosen |= _ONE << (left & _BITS)
        left >>= _6
    return chosen


@entry
def add_hashes(words: Words, hashes: Words) -> None:
    """Add hashes to a filter. The number of its words is a power of two."""
    last = U64(len(words) - 1)
    for word in hashes:
        words[word & last] |= _bits(word)


@entry
def find_hashes(words: Words, hashes: Words, found: npt.NDArray[np.bool_]) -> None:
    """Set for each hash whether it may have been added to a filter."""
    last = U64(len(words) - 1)
    for row in range(len(hashes)):
        bits = _bits(hashes[row])
        found[row] = words[hashes[row] & last] & bits == bits
