"""Compiles or loads the kernel before the first listing of a very large table and the first match of keys, by
scanning a block with one number and matching one key."""

from __future__ import annotations

import numpy as np

from lithify.datasets.iceberg.kernel.avro import locate
from lithify.datasets.iceberg.kernel.keys import add_hashes, find_hashes, mix_texts, mix_words
from lithify.datasets.iceberg.kernel.layout import NUMBER

_BLOCK = bytes([2])
"""The number 1 in Avro's encoding."""


def warm_up() -> None:
    """Compile the kernel, or load it from the cache; further calls in a process cost almost nothing."""
    program, found = np.array([[NUMBER, 0, 0]], np.int64), np.empty((2, 1), np.int64)
    locate(np.frombuffer(_BLOCK, np.uint8).ctypes.data, 0, len(_BLOCK), program, found)
    numbers, hashes, words = np.zeros(2, np.int64), np.zeros(1, np.uint64), np.zeros(1, np.uint64)
    address = numbers.ctypes.data
    mix_words(address, hashes)
    mix_texts(address, address, hashes)
    add_hashes(words, hashes)
    find_hashes(words, hashes, np.zeros(1, np.bool_))
