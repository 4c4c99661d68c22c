"""Compilation of kernels: which functions are compiled, and where machine code is kept.

1. `inlined` and `called` mark functions for other compiled code. They are never stored by themselves.
   Inlining what runs for every row makes the merge half as fast again; inlining all would only make
   compilation slow.
2. `entry` marks a function that Python calls. Its machine code, with everything it calls linked in,
   is stored in the cache folder, so that later processes load it instead of compiling.
3. The name of the cache folder holds a hash of all that the code depends on (`fingerprint`). numba itself
   only looks at the file of the function in question and would go on using stale code when an imported
   module changes. All kinds share the folder: a change of any kernel makes a new one.
4. Where no folder can be written, everything is compiled in memory, in every process anew.
5. Folders that no process has used for long are removed: each change of the kernel leaves one.

Invariant: nothing here may fail because of the cache. Concurrent processes are safe since files are
put in place by rename and every entry has exactly one signature; numba makes a folder again that was
removed under it.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from typing import TypeVar, cast

import numba

from lithify.kernel.fingerprint import kernel_folder, mark_compiled
from lithify.usercache import mark_used, remove_unused

Function = TypeVar("Function", bound=Callable[..., object])


def _writable_folder() -> str | None:
    try:
        folder = kernel_folder(os.environ)
        root = folder.parent
        folder.mkdir(parents=True, exist_ok=True)
        mark_used(folder)
        remove_unused(root, "kernel-*", time.time())
        with tempfile.TemporaryFile(dir=folder):
            return str(folder)
    except (OSError, RuntimeError):
        return None


_FOLDER = _writable_folder()


def all_is_compiled(what: str) -> None:
    """To be called once every function of this kernel has been compiled."""
    mark_compiled(_FOLDER, what)


def inlined(function: Function) -> Function:
    """Compile `function` into its compiled callers: what is done for every row."""
    return cast(Function, numba.njit(nogil=True, error_model="numpy", forceinline=True)(function))


def called(function: Function) -> Function:
    """Compile `function` once for its compiled callers: what is done for every block, or seldom."""
    return cast(Function, numba.njit(nogil=True, error_model="numpy")(function))


def entry(function: Function) -> Function:
    """Compile `function` for callers in Python and keep its machine code on disk."""
    if _FOLDER is None:
        return called(function)
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = _FOLDER
    try:
        return cast(Function, numba.njit(nogil=True, error_model="numpy", cache=True)(function))
    except RuntimeError:  # numba found no place for the cache of this function
        return called(function)
    finally:
        numba.config.CACHE_DIR = before
