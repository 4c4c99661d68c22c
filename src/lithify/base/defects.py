"""Converts unexpected exceptions into `LithifyError`s.

An exception that is not a `LithifyError` is a defect of Lithify, even if damaged data caused it. It must not
affect more than one compaction, one round over one dataset, or one command. Code that can go on without that
unit runs it inside `contained`, and handles the result like any other `LithifyError`:

1. A `LithifyError` passes unchanged.
2. A full disk becomes `NoRoom`, because an operator can do something about it.
3. Any other `Exception`, including a lack of memory, becomes `Unexpected`. Its message has the operation, the
   exception, and the place in Lithify. The same is done with a panic of a Rust library, which is not an
   `Exception`, and with `SystemExit` in any thread but the main one, which would end silently.
4. All other exceptions pass: interrupts and the end of the process are not defects.

The traceback is logged at DEBUG and is the error's cause. No other code in Lithify may catch `Exception` in
order to go on, except

- the engine, whose tasks end in other processes, and which calls a Spark that may be gone;
- code that is about to raise another error and cleans up (`base.concurrency`, the writers of Iceberg's
  files).

Code that catches an exception in order to raise it is allowed: in the waiting thread, after compiled code has
returned (`datasets.slatedb.kernel.libraries`); or as a clearer error, if a library checks little of what it
reads (`datasets.iceberg.format.manifests`, `datasets.iceberg.maintenance.shared_locations`) or if the
function is the user's (`datasets.slatedb.hooks`).
"""

from __future__ import annotations

import errno
import logging
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePath

from lithify.base.errors import LithifyError, NoRoom, Unexpected

_MAX_CAUSE_CHARS = 300
_FULL = (errno.ENOSPC, errno.EDQUOT)
_PANIC = "PanicException"
"""What pyo3 raises for a panic; each library has a class of its own by that name."""

_log = logging.getLogger("lithify.base.defects")


@contextmanager
def contained(what: str) -> Iterator[None]:
    """Run a block that does `what`; only a `LithifyError` comes out of it."""
    try:
        yield
    except LithifyError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and not _ends_a_thread(error) and type(error).__name__ != _PANIC:
            raise
        raise unexpected(what, error) from error


def _ends_a_thread(error: BaseException) -> bool:
    """Whether it would end this thread without a word. In the main thread it is how a process ends, of a
    signal for example."""
    return isinstance(error, SystemExit) and threading.current_thread() is not threading.main_thread()


def unexpected(what: str, error: BaseException) -> NoRoom | Unexpected:
    """What was raised while `what` was done, as an error of ours; of a defect the traceback is logged."""
    cause = " ".join(str(error).split())[:_MAX_CAUSE_CHARS]
    if isinstance(error, OSError) and error.errno in _FULL:
        return NoRoom(
            f"{what} ended because a disk is full ({cause}): free space on it; if it has the temporary "
            "files, TMPDIR can name a folder on another disk"
        )
    _log.debug("%s ended with a defect", what, exc_info=error)
    return Unexpected(
        f"{what} ended with {type(error).__name__}{_place(error)}{f': {cause}' if cause else ''}. This is a "
        "defect of Lithify, or damaged data that it does not recognise: please report it with the traceback "
        "that `lithify --verbose` shows"
    )


def _place(error: BaseException) -> str:
    """The innermost line of Lithify's own that the error came through."""
    own = [f for f in traceback.extract_tb(error.__traceback__) if "lithify" in PurePath(f.filename).parts]
    return f" in {PurePath(own[-1].filename).name}, line {own[-1].lineno}" if own else ""
