"""Compiles or loads the kernel, by a few numbers."""

from __future__ import annotations

import numpy as np

from lithify.kernel.buffers import bytes_of, new_bytes
from lithify.parquet.kernel import pages


def warm_up() -> None:
    """Compile the kernel, or load it from the cache; further calls in a process cost almost nothing."""
    numbers, wide = np.zeros(1, np.int32), np.zeros(1, np.int64)
    data, target = bytes_of(b"\2\0\0\0\0"), new_bytes(64)
    base = data.ctypes.data
    pages.encode_hybrid(numbers, 1, target.ctypes.data)
    pages.decode_hybrid(base, 2, 1, 2, numbers)
    pages.find_ends(base + 1, 4, wide)
    pages.gather(base + 1, wide, numbers, target.ctypes.data)
    pages.decode_delta(base, 1, wide)
    pages.are_prefixes(wide, wide, 1)
