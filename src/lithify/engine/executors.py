"""Detects that a standalone cluster has forgotten an application.

A restarted master knows no application unless it is configured to keep them, and its workers end their
executors. The driver is not informed: its jobs wait for executors that never come. So:

1. Every `LOOK_EVERY_S` a thread reads the number of executors.
2. When an application that had executors has none for `LIMIT_S`, it is stopped: its calls end, and the caller
   can open another session.

An application that has never had an executor may wait for its turn without limit. With dynamic allocation
Spark itself may remove all executors for long, so such an application is not watched.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from lithify.base.clock import Clock, SystemClock

LOOK_EVERY_S = 5.0
LIMIT_S = 60.0
_log = logging.getLogger("lithify")


@dataclass(slots=True)
class Patience:
    """Decides from the number of executors whether to give up."""

    limit_s: float = LIMIT_S
    _had_some: bool = False
    _none_since_s: float | None = None

    def ends(self, executors: int, now_s: float) -> bool:
        """Record the current number, and return whether to give up. Call this repeatedly."""
        if executors:
            self._had_some, self._none_since_s = True, None
            return False
        if self._none_since_s is None:
            self._none_since_s = now_s
        return self._had_some and now_s - self._none_since_s >= self.limit_s


class ExecutorWatch:
    """Calls `stop` when patience ends. `count` returns the number of executors, and raises if the JVM has
    ended."""

    def __init__(
        self,
        count: Callable[[], int],
        stop: Callable[[], None],
        *,
        limit_s: float = LIMIT_S,
        every_s: float = LOOK_EVERY_S,
        clock: Clock | None = None,
    ) -> None:
        self._count = count
        self._stop = stop
        self._patience = Patience(limit_s)
        self._every_s = every_s
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="lithify-executors", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_over.set()

    def join(self, limit_s: float) -> None:
        self._thread.join(limit_s)
        assert not self._thread.is_alive(), "still watching"

    def _watch(self) -> None:
        while not self._is_over.wait(self._every_s):
            try:
                executors = self._count()
            except Exception:  # a JVM that has died is reported where it is used
                return
            if self._patience.ends(executors, self._clock.monotonic_s()):
                limit_s = self._patience.limit_s
                _log.warning("Spark has had no executor for %g s; its application is abandoned", limit_s)
                self._stop()
                return
