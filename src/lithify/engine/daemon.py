"""The process that forks Spark's Python workers (`spark.python.daemon.module`).

1. Configure memory allocation (`lithify.base.allocator`) before any thread starts: all workers would inherit
   the heap that the allocator gave to the thread.
2. Import the modules that every task needs before the first worker is forked, so that workers start at once
   and share their memory.
3. Call the functions in `LITHIFY_PRELOAD` (`package.module:function`, separated by commas). They load modules
   that this package must not depend on, such as compiled kernels.
4. If a function has started a thread, restart this process without them. No thread survives a fork, so a
   library that relies on one (such as the runtime of an object store's client) would hang in every worker.
5. Exclude all loaded objects from garbage collection. PySpark collects after every task; that would traverse
   all of them for tens of milliseconds and copy their memory to each worker.
6. Run PySpark's own daemon.

Invariants: a failing preload only makes the first task slower, and never stops the daemon. Only PySpark
writes to standard output, where Spark reads the daemon's port.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path

from lithify.base.allocator import keep_freed_memory
from lithify.engine.settings import DAEMON_MODULE, PRELOAD_VARIABLE

_MODULES = ("pyspark.worker", "pyarrow", "numba")
_ARCHIVE = Path("python", "lib", "pyspark.zip")


def prefer_unpacked_pyspark(path: list[str]) -> list[str]:
    """Return the module search path without a zipped PySpark whose unpacked package is on the path too. Every
    process would compile the zip again, for half a second."""
    folders = {Path(entry).resolve() for entry in path if entry}

    def is_copy(entry: str) -> bool:
        package = Path(entry).resolve().parents[2] if Path(entry).parts[-3:] == _ARCHIVE.parts else None
        return package is not None and (package / "worker.py").is_file() and package.parent in folders

    return [entry for entry in path if not is_copy(entry)]


def preload(hooks: str | None) -> bool:
    """Import the common modules and call the hooks. Failures are written to standard error. Return `False` if
    a hook has started threads: then workers must not be forked."""
    for module in _MODULES:
        _attempt(f"import {module}", partial(import_module, module))
    before = _threads()
    for hook in filter(None, (hooks or "").split(",")):
        _attempt(f"preload {hook}", partial(_call, hook))
    return _threads() <= before


def _threads() -> int:
    """Return the number of threads of this process; on Linux this includes those not started by Python."""
    try:
        return len(list(Path("/proc/self/task").iterdir()))
    except OSError:
        return threading.active_count()


def _call(hook: str) -> None:
    module, separator, function = hook.partition(":")
    if not separator:
        raise ValueError("expected package.module:function")
    getattr(import_module(module), function)()


def _attempt(what: str, action: Callable[[], object]) -> None:
    try:
        action()
    except Exception:
        print(f"lithify: {what} failed, workers will start more slowly", file=sys.stderr)
        traceback.print_exc()


@contextlib.contextmanager
def _output_kept_for_spark() -> Iterator[None]:
    """Redirect standard output to standard error within the block, for other code than Python's too."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def main() -> None:
    """Preload, then serve until Spark closes standard input."""
    keep_freed_memory()
    sys.path[:] = prefer_unpacked_pyspark(sys.path)
    with _output_kept_for_spark():
        hooks = os.environ.pop(PRELOAD_VARIABLE, None)
        can_fork = preload(hooks)
    if not can_fork:
        print(f"lithify: preload {hooks} started threads and is skipped", file=sys.stderr, flush=True)
        os.execv(sys.executable, [sys.executable, "-m", DAEMON_MODULE, *sys.argv[1:]])
    from pyspark.daemon import manager

    gc.freeze()
    manager()


if __name__ == "__main__":
    main()
