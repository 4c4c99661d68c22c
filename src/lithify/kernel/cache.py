"""Compilation of kernels: which functions are compiled, and where machine code is kept.

1. `inlined` and `called` mark functions for other compiled code. They are never stored by themselves.
   Inlining what runs for every row makes the merge half as fast again; inlining all would only make
   compilation slow.
2. `entry` marks a function that Python calls. Its machine code, with everything it calls linked in,
   is stored in the cache folder, so that later processes load it instead of compiling.
3. The name of the cache folder holds a hash of all that the code depends on (`fingerprint`). numba itself
   only looks at the file of the function in question and would go on using stale code when an imported
   module changes. All kinds share the folder: a change of any kernel makes a new one.
4. Where no folder can be written, everything is compiled in memory, in every process anew. What was compiled
   in a folder that can only be read, as root does for all users of a machine, is copied for the process.
5. Folders that no process has used for long are removed: each change of the kernel leaves one.

Machine code is loaded from pickles, which execute what they say: a folder that other users could change, or
one with a file of theirs in it, is not used, and that is logged (`lithify.base.permissions`).

Invariant: nothing here may fail because of the cache. Concurrent processes are safe since files are
put in place by rename and every entry has exactly one signature; numba makes a folder again that was
removed under it.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

import numba

from lithify.base.errors import LithifyError
from lithify.base.permissions import check_contents, make_private
from lithify.base.scratch import Scratch
from lithify.base.usercache import CACHE_VARIABLE, mark_used, remove_unused
from lithify.kernel.fingerprint import kernel_folder, mark_compiled

_log = logging.getLogger("lithify")

Function = TypeVar("Function", bound=Callable[..., object])


_copy: Scratch | None = None
"""Of a folder that can only be read; kept as long as the process."""


def _folder() -> str | None:
    """Where machine code is loaded from, and kept; `None` when there is no such place."""
    try:
        folder = kernel_folder(os.environ)
        check_contents(make_private(folder))
        mark_used(folder)
        remove_unused(folder.parent, "kernel-*", time.time())
        return str(folder) if _is_writable(folder) else _copied(folder)
    except PermissionError as error:
        if error.errno == errno.EPERM:
            _log.warning(
                "compiled code is not kept, and every process compiles anew: %s; take the right to write "
                "from others, or let %s name a folder of this user's own",
                error.strerror,
                CACHE_VARIABLE,
            )
        return None
    except (LithifyError, OSError, RuntimeError):
        return None


def _is_writable(folder: Path) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _copied(folder: Path) -> str:
    global _copy
    _copy = Scratch()
    shutil.copytree(folder, _copy.path / folder.name)
    return str(_copy.path / folder.name)


_FOLDER = _folder()


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
