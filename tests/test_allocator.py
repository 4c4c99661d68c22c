"""Memory that is freed is used again, told by the pages that the system had to provide."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

PIECES, PIECE_BYTES = 50, 8 << 20
PAGES = PIECES * PIECE_BYTES // os.sysconf("SC_PAGE_SIZE")
PROGRAM = f"""
import ctypes, resource, threading
from lithify.base.allocator import keep_freed_memory

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]

def take_and_free():
    piece = libc.malloc({PIECE_BYTES})
    ctypes.memset(piece, 1, {PIECE_BYTES})
    libc.free(piece)

def pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range({PIECES}):
        thread = threading.Thread(target=take_and_free)
        thread.start()
        thread.join()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(keep_freed_memory())
print(keep_freed_memory())
pages()
print(pages())
"""
pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are left alone")


def run(variables: dict[str, str]) -> tuple[bool, int]:
    """What it said, both times, and how many pages were provided."""
    cleared = {
        name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))
    }
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=cleared | variables, capture_output=True, text=True, check=True)
    first, second, pages = done.stdout.split()
    assert first == second
    return first == "True", int(pages)


def test_freed_memory_is_used_again_by_other_threads() -> None:
    is_kept, pages = run({})
    assert is_kept
    assert pages < PAGES // 10


@pytest.mark.parametrize(
    "variables",
    [{"MALLOC_MMAP_THRESHOLD_": "131072"}, {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=131072"}],
    ids=lambda variables: next(iter(variables)),
)
def test_who_has_set_the_environment_has_decided(variables: dict[str, str]) -> None:
    is_kept, pages = run(variables)
    assert not is_kept
    assert pages > PAGES // 2
