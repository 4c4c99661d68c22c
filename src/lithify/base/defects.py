"""What nobody foresaw becomes an error of ours, at this one place.

An exception that is no `LithifyError` is a defect of Lithify, whatever bytes led to it. It must not hurt more
than what it happened in: one compaction, one round over one dataset, one command. Whoever can go on without
that runs it inside `contained`, and treats what comes out like any other `LithifyError`.

1. A `LithifyError` passes as it is.
2. That a disk is full becomes `NoRoom`: somebody can do something about it.
3. Any other `Exception`, a lack of memory among them, becomes `Unexpected`: it says what was being done, what
   was raised, and where in Lithify. So does a panic of a library written in Rust, which is no `Exception`,
   and `SystemExit` in any thread but the main one, which it would end in silence.
4. Everything else passes: an interrupt and the end of the process are no defects.

The traceback is logged at DEBUG, and stays with the error as its cause. Nothing else in Lithify may catch
`Exception` to go on, apart from

- the engine, whose tasks end in other processes, and which asks a Spark that may be gone;
- who is about to raise another error already, and ends what was begun beside it (`base.concurrency`, the
  writers of Iceberg's files).

Who catches it to raise it is no exception: in the thread that waits for it, once compiled code has returned
(`datasets.slatedb.kernel.libraries`), or as an error that says more, where a library checks little of what it
reads (`datasets.iceberg.manifests`, `neighbours`) or a function is the user's (`datasets.slatedb.hooks`).
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
            f"{what} ended because a disk is full ({cause}): make room there, or let TMPDIR name a folder "
            "that has some if it is the one for temporary files"
        )
    _log.debug("%s ended with a defect", what, exc_info=error)
    return Unexpected(
        f"{what} ended with {type(error).__name__}{_place(error)}{f': {cause}' if cause else ''}. This is a "
        "defect of Lithify, or damage that it does not recognise: please report it with the traceback that "
        "`lithify --verbose` shows"
    )


def _place(error: BaseException) -> str:
    """The innermost line of Lithify's own that the error came through."""
    own = [f for f in traceback.extract_tb(error.__traceback__) if "lithify" in PurePath(f.filename).parts]
    return f" in {PurePath(own[-1].filename).name}, line {own[-1].lineno}" if own else ""
