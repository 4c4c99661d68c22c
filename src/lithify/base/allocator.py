"""glibc's memory allocation in task processes: keep freed memory.

A task that reads and writes over a network allocates and frees some megabytes a hundred times a second, in
many threads. By default glibc maps and unmaps each such piece, so that the system clears every page for every
use, which took up to half of a task's CPU time; and each thread has its own heap, whose gaps add up to
hundreds of megabytes.

1. Pieces of up to `MAX_PIECE_BYTES` come from one heap for all threads. Heaps that threads already have
   remain in use, so call this before any thread is started.
2. The heap returns free memory at its end to the system only beyond the amount to keep.

glibc's environment variables take precedence. Other C libraries are not changed.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache

MAX_PIECE_BYTES = 32 << 20
"""The maximum of glibc."""
KEPT_BYTES = 256 << 20
"""Kept by a task for the next one."""
ALL_BYTES = (1 << 31) - 1
"""The maximum that can be kept."""
_GROWTH_BYTES = 16 << 20
"""The least by which the heap grows."""

# malloc.h
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

_VARIABLES = ("MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_")
_TUNABLES = "GLIBC_TUNABLES"


@cache
def keep_freed_memory(kept_bytes: int = KEPT_BYTES) -> bool:
    """Keep freed memory from now on, in this process and its forks. Return whether this took effect."""
    is_decided = any(name in os.environ for name in _VARIABLES)
    if is_decided or "glibc.malloc" in os.environ.get(_TUNABLES, ""):
        return False
    try:
        libc = ctypes.CDLL(None)
        libc.gnu_get_libc_version  # noqa: B018  # other libraries may have mallopt with other numbers
        mallopt = libc.mallopt
    except (AttributeError, OSError, TypeError):
        return False
    wanted = (
        (_M_ARENA_MAX, 1),
        (_M_MMAP_THRESHOLD, MAX_PIECE_BYTES),
        (_M_TRIM_THRESHOLD, kept_bytes),
        (_M_TOP_PAD, _GROWTH_BYTES),
    )
    return all(mallopt(parameter, value) == 1 for parameter, value in wanted)
