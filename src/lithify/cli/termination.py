"""SIGTERM ends a command as Ctrl-C does, so that it gives back what it holds.

The handler raises `Terminated` wherever the main thread is, and that can be a bad place:

1. Within the import system: between taking its lock and the `try` that gives it back, for one. Nothing is
   raised there; the signal is sent again a moment later.
2. Where Python ignores whatever is raised: finalizers, callbacks of weak references. What is ignored is let
   go of, so an exception that is gone, while the command still goes on, is raised again.

So one thread, begun by the first signal, sends it again and again until the command has ended, and the
handler raises only where nothing that it raised is still on its way: a command is told once. Whoever cannot
wait for the end of that sends SIGKILL.

And it may not be called at all. The system gives a signal to any thread where the main thread has another
pending, as a process has that was suspended and goes on; Python calls handlers in the main thread only, which
learns nothing of it while it waits for a lock. A thread that is told of every signal wakes it.
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
"""Means nothing, and nothing else here sends it."""
_IMPORTS = "<frozen importlib"


class Terminated(KeyboardInterrupt):
    """SIGTERM has come."""


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """`Terminated` is raised in here when SIGTERM comes. Only the main thread can be told."""
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
        """Between the end and the thread that sends: nothing is sent once the handler is another."""

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
            del error  # or this frame, which it remembers, would keep it

    def end(self) -> None:
        self._is_over = True  # from here on the handler raises nothing, so the lock is given back
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
    """Handlers of signals are called at once, whichever thread the system gives a signal to."""
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
    """Whether the code that is interrupted is the import system's own, not that of a module it runs."""
    return frame is not None and frame.f_code.co_filename.startswith(_IMPORTS)
