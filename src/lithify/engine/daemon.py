"""The process that forks Spark's Python workers (`spark.python.daemon.module`).

1. Import what every task needs before the first worker is forked, so that workers start at once
   and share the memory of it.
2. Call the function that `LITHIFY_PRELOAD` names (`package.module:function`), which loads what this
   package may not know of, such as compiled kernels. It must start no thread: none would survive
   the fork.
3. Be PySpark's own daemon.

Invariants: a failing preload only makes the first task slower, it never stops the daemon. Nothing
but PySpark writes to standard output, where Spark reads the daemon's port.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path

from lithify.engine.settings import PRELOAD_VARIABLE

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


def preload(hook: str | None) -> None:
    """Import the common modules and call the hook. Failures are written to standard error."""
    for module in _MODULES:
        _attempt(f"import {module}", partial(import_module, module))
    if hook:
        _attempt(f"preload {hook}", lambda: _call(hook))


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
    sys.path[:] = prefer_unpacked_pyspark(sys.path)
    with _output_kept_for_spark():
        preload(os.environ.get(PRELOAD_VARIABLE))
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
