"""The process that forks Spark's Python workers (`spark.python.daemon.module`).

1. Decide how memory is got (`lithify.base.allocator`) before anything starts a thread: the heap that a
   thread was given then would be inherited by all workers and used by theirs.
2. Import what every task needs before the first worker is forked, so that workers start at once
   and share the memory of it.
3. Call the functions that `LITHIFY_PRELOAD` names (`package.module:function`, separated by commas), which
   load what this package may not know of, such as compiled kernels.
4. If that has started a thread, begin again in the same process without it. No thread survives the
   fork, so a library that relies on one (such as the runtime of an object store's client) would
   wait for ever in every worker.
5. Take everything that is loaded by now out of the garbage collector's sight. PySpark collects after every
   task, which would walk through all of it for tens of milliseconds and copy its memory to each worker.
6. Be PySpark's own daemon.

Invariants: a failing preload only makes the first task slower, it never stops the daemon. Nothing
but PySpark writes to standard output, where Spark reads the daemon's port.
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
    """The module search path without the zipped PySpark, where the package that the zip belongs to
    can be imported itself: a zip is compiled again by every process, which takes half a second."""
    folders = {Path(entry).resolve() for entry in path if entry}

    def is_copy(entry: str) -> bool:
        package = Path(entry).resolve().parents[2] if Path(entry).parts[-3:] == _ARCHIVE.parts else None
        return package is not None and (package / "worker.py").is_file() and package.parent in folders

    return [entry for entry in path if not is_copy(entry)]


def preload(hooks: str | None) -> bool:
    """Import the common modules and call the hooks. Failures are written to standard error.
    `False` when a hook has started threads, after which workers must not be forked."""
    for module in _MODULES:
        _attempt(f"import {module}", partial(import_module, module))
    before = _threads()
    for hook in filter(None, (hooks or "").split(",")):
        _attempt(f"preload {hook}", partial(_call, hook))
    return _threads() <= before


def _threads() -> int:
    """Threads of this process; those that Python did not start are counted on Linux only."""
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
    """Send what is printed meanwhile, by Python or not, to standard error."""
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
        print(f"lithify: preload {hooks} started threads and is left out", file=sys.stderr, flush=True)
        os.execv(sys.executable, [sys.executable, "-m", DAEMON_MODULE, *sys.argv[1:]])
    from pyspark.daemon import manager

    gc.freeze()
    manager()


if __name__ == "__main__":
    main()
