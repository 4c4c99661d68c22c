"""Comparison of keys in memory, eight bytes at a time.

Keys order as bytes, a prefix before its extensions. Reads may go past the ends of keys; the surplus bytes are
masked off.
"""

from __future__ import annotations

import numpy as np

from lithify.kernel.cache import inlined
from lithify.kernel.memory import load_u64, load_u64_be, trailing_zeros, unsigned

_NO_DIFFERENCE = np.uint64(0)


@inlined
def common_length(left: int, right: int, limit: int) -> int:
    """Return how many of the first `limit` bytes two keys share."""
    position = 0
    while position < limit:
        difference = load_u64(left + position) ^ load_u64(right + position)
        if difference != _NO_DIFFERENCE:
            position += trailing_zeros(difference) >> 3
            return min(position, limit)
        position += 8
    return limit


@inlined
def compare_keys(left: int, left_len: int, right: int, right_len: int) -> int:
    """Return -1, 0 or 1 if the left key is less than, equal to or greater than the right one."""
    shorter = min(left_len, right_len)
    position = 0
    while position < shorter:
        a = load_u64_be(left + position)
        b = load_u64_be(right + position)
        if a != b:
            rest = shorter - position
            if rest < 8:
                spare_bits = unsigned((8 - rest) * 8)
                a >>= spare_bits
                b >>= spare_bits
                if a == b:
                    break
            return -1 if a < b else 1
        position += 8
    if left_len == right_len:
        return 0
    return -1 if left_len < right_len else 1
