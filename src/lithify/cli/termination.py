"""SIGTERM ends a command as Ctrl-C does, so that the command releases what it holds.

The handler raises `Terminated` wherever the main thread is, and some places are bad:

1. In the import system, for example between taking its lock and the `try` that releases it. There the handler
   raises nothing; the signal is sent again a moment later.
2. Where Python ignores exceptions: finalizers, callbacks of weak references. An ignored exception is freed,
   so if the last one is gone and the command still runs, the handler raises again.

Therefore the first signal starts a thread that sends it again until the command has ended. The handler raises
only if no exception that it raised is still alive, so a command is interrupted once. SIGKILL ends a command
that takes too long.

Also, the handler may not be called at all. The system delivers a signal to any thread if the main thread has
another one pending, as in a process that was suspended and continues. Python calls handlers in the main
thread only, and does not do so while that thread waits for a lock. A thread that is notified of every signal
wakes the main thread.
"""

from __future__ import annotations

import _thread  # starts a thread without a lock that the interrupted code may hold
import signal
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

AGAIN_S = 0.1
_WAKING = signal.SIGURG
"""Has no meaning, and nothing else here sends it."""
_IMPORTS = "<frozen importlib"


class Terminated(KeyboardInterrupt):
    """SIGTERM was received."""


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Raise `Terminated` in the block when SIGTERM comes. Has no effect outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with _heard():
        teller = _Teller()
        before = signal.signal(signal.SIGTERM, teller.handle)
        try:
            yield
        finally:
            teller.end()
            signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)


class _Teller:
    def __init__(self) -> None:
        self._main = threading.get_ident()
        self._raised: weakref.ref[Terminated] | None = None
        self._sends = False
        self._is_over = False
        self._lock = threading.Lock()
        """Held while sending, so that nothing is sent once the handler is replaced."""

    def handle(self, _: int, frame: FrameType | None) -> None:
        if not self._sends:
            self._sends = True
            _thread.start_new_thread(self._send, ())
        is_on_its_way = self._raised is not None and self._raised() is not None
        if self._is_over or is_on_its_way or _is_importing(frame):
            return
        error = Terminated()
        self._raised = weakref.ref(error)
        try:
            raise error
        finally:
            del error  # the exception refers to this frame, so a variable here would keep it alive

    def end(self) -> None:
        self._is_over = True  # from here on the handler raises nothing, so the lock is released
        with self._lock:
            pass

    def _send(self) -> None:
        while True:
            time.sleep(AGAIN_S)
            with self._lock:
                if self._is_over:
                    return
                signal.pthread_kill(self._main, signal.SIGTERM)


@contextmanager
def _heard() -> Iterator[None]:
    """Have handlers of signals called at once, whichever thread the system delivers a signal to."""
    told, telling = socket.socketpair()
    telling.setblocking(False)
    main = threading.get_ident()

    def wake() -> None:
        while numbers := told.recv(256):
            if any(number != _WAKING for number in numbers):
                signal.pthread_kill(main, _WAKING)

    thread = threading.Thread(target=wake, name="lithify-signals", daemon=True)
    handled = signal.signal(_WAKING, lambda *_: None)
    before = signal.set_wakeup_fd(telling.fileno(), warn_on_full_buffer=False)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        telling.close()
        thread.join()
        told.close()
        signal.signal(_WAKING, handled if handled is not None else signal.SIG_DFL)


def _is_importing(frame: FrameType | None) -> bool:
    """Return whether the interrupted code is the import system's own, not that of a module it runs."""
    return frame is not None and frame.f_code.co_filename.startswith(_IMPORTS)
