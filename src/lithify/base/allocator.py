"""How the C library of a task's process gets memory, and whether it keeps what is freed.

A task that reads and writes over a network takes and frees some megabytes a hundred times a second, in many
threads. By default glibc maps each such piece anew and gives it back at once, so that the system clears every
page for every use, which took up to half of a task's CPU time; and each thread has a heap of its own, whose
gaps add up to hundreds of megabytes.

1. Pieces of up to `MAX_PIECE_BYTES` come from the heap, and there is one heap for all threads. Heaps that
   threads have had before stay, and other threads get them: so this comes before anything that starts one.
2. The heap gives back to the system what is free at its end when that is more than is to be kept.

Who has set any of this by glibc's environment variables has decided. Other C libraries are left as they are.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache

MAX_PIECE_BYTES = 32 << 20
"""The most that glibc allows."""
KEPT_BYTES = 256 << 20
"""By a task, for the next one."""
ALL_BYTES = (1 << 31) - 1
"""The most that can be kept."""
_GROWTH_BYTES = 16 << 20
"""By which the heap grows at least."""

# malloc.h
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

_VARIABLES = ("MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_")
_TUNABLES = "GLIBC_TUNABLES"


@cache
def keep_freed_memory(kept_bytes: int = KEPT_BYTES) -> bool:
    """From now on, in this process and those forked from it. Whether it is so."""
    is_decided = any(name in os.environ for name in _VARIABLES)
    if is_decided or "glibc.malloc" in os.environ.get(_TUNABLES, ""):
        return False
    try:
        libc = ctypes.CDLL(None)
        libc.gnu_get_libc_version  # noqa: B018  # others may have the next one, with other numbers
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
