"""Compilation of kernels, and the cache of their machine code.

1. `inlined` and `called` mark functions for other compiled code; they are not stored by themselves. Inlining
   the code of every row makes the merge 1.5 times as fast; inlining the rest only slows compilation.
2. `entry` marks a function that Python calls. Its machine code, including everything it calls, is stored in
   the cache folder for later processes.
3. The folder's name has a hash of everything the code depends on (`fingerprint`): numba itself checks only
   the function's own file, not imported modules. All kinds share the folder, so a change of any kernel makes
   a new one.
4. Without a writable folder, every process compiles in memory. A read-only folder, which root made for all
   users of a machine, is copied for the process.
5. Folders that no process has used for a long time are removed.

Machine code is loaded from pickles, which can execute anything. So a folder that other users could change, or
with a file of theirs, is not used, and a warning is logged (`lithify.base.permissions`).

Invariant: nothing fails because of the cache. Concurrent processes are safe: files are put in place by
rename, every entry has exactly one signature, and numba recreates a removed folder.
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
"""A copy of a read-only folder, kept as long as the process."""


def _folder() -> str | None:
    """Return the folder of machine code; `None` if there is none."""
    try:
        folder = kernel_folder(os.environ)
        check_contents(make_private(folder))
        mark_used(folder)
        remove_unused(folder.parent, "kernel-*", time.time())
        return str(folder) if _is_writable(folder) else _copied(folder)
    except PermissionError as error:
        if error.errno == errno.EPERM:
            _log.warning(
                "compiled code is not cached, and every process compiles it again: %s; revoke other users' "
                "right to write there, or set %s to a folder that only this user can write",
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
    """Record that the whole kernel has been compiled."""
    mark_compiled(_FOLDER, what)


def inlined(function: Function) -> Function:
    """Inline `function` into its compiled callers: for the code of every row."""
    return cast(Function, numba.njit(nogil=True, error_model="numpy", forceinline=True)(function))


def called(function: Function) -> Function:
    """Compile `function` once for its compiled callers: for the code of every block, or rare code."""
    return cast(Function, numba.njit(nogil=True, error_model="numpy")(function))


def entry(function: Function) -> Function:
    """Compile `function` for Python callers and store its machine code on disk."""
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
