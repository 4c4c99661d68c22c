"""Compilation of kernels: which functions are compiled, and where machine code is kept.

1. `inlined` and `called` mark functions for other compiled code. They are never stored by themselves.
   Inlining what runs for every row makes the merge half as fast again; inlining all would only make
   compilation slow.
2. `entry` marks a function that Python calls. Its machine code, with everything it calls linked in,
   is stored in the cache folder, so that later processes load it instead of compiling.
3. The name of the cache folder holds a hash of all kernel sources, of the versions of Python, numba
   and llvmlite, and of the processor and its features. numba itself only looks at the file of the
   function in question and would go on using stale code when an imported module changes. All kinds
   share the folder: a change of any kernel makes a new one.
4. Where no folder can be written, everything is compiled in memory, in every process anew.
5. Folders that no process has used for long are removed: each change of the kernel leaves one.

Invariant: nothing here may fail because of the cache. Concurrent processes are safe since files are
put in place by rename and every entry has exactly one signature; numba makes a folder again that was
removed under it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

import llvmlite
import llvmlite.binding
import numba

from lithify.usercache import cache_folder, mark_used, remove_unused

Function = TypeVar("Function", bound=Callable[..., object])


_PACKAGE = Path(__file__).parents[1]


def _sources() -> list[Path]:
    """Every module that holds compiled code for others: these, and those of the kinds."""
    return sorted([*_PACKAGE.glob("kernel/*.py"), *_PACKAGE.glob("datasets/*/kernel/*.py")])


def fingerprint() -> str:
    """A hash of everything that machine code depends on."""
    digest = hashlib.sha256()
    for source in _sources():
        digest.update(source.relative_to(_PACKAGE).as_posix().encode() + b"\0" + source.read_bytes())
    features: str = llvmlite.binding.get_host_cpu_features().flatten()
    facts = (
        sys.version,
        numba.__version__,
        llvmlite.__version__,
        platform.machine(),
        llvmlite.binding.get_host_cpu_name(),
        features,
    )
    digest.update("\0".join(facts).encode())
    return digest.hexdigest()[:20]


def _writable_folder() -> str | None:
    try:
        root = cache_folder(os.environ)
        folder = root / f"kernel-{fingerprint()}"
        folder.mkdir(parents=True, exist_ok=True)
        mark_used(folder)
        remove_unused(root, "kernel-*", time.time())
        with tempfile.TemporaryFile(dir=folder):
            return str(folder)
    except (OSError, RuntimeError):
        return None


_FOLDER = _writable_folder()


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
