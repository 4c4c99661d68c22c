"""Ctrl-C for the main thread, sent by another one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_NUDGE = signal.SIGURG
"""Ignored where nobody handles it."""
_PAUSE_S = 0.1


@contextmanager
def interrupting() -> Iterator[Callable[[], None]]:
    """What interrupts the main thread, when another thread calls it; it returns at the end of the block.

    Python notices a signal that comes just before a lock is waited for only when that wait ends, or when
    another signal comes: so others follow, which do nothing else.
    """
    is_over = threading.Event()
    main = threading.main_thread().ident or 0

    def interrupt() -> None:
        signal.pthread_kill(main, signal.SIGINT)
        while not is_over.wait(_PAUSE_S):
            signal.pthread_kill(main, _NUDGE)

    before = signal.signal(_NUDGE, lambda *_: None)
    try:
        yield interrupt
    finally:
        is_over.set()
        signal.signal(_NUDGE, before)
