"""A clock that moves only when a test advances it."""

from __future__ import annotations

import threading

DEFAULT_NOW_MS = 1_700_000_000_000


class ManualClock:
    """Time as a variable: `sleep_s` returns at once and advances the time.

    The wall clock and the monotonic one move together, except in `jump_s`.
    """

    def __init__(self, now_ms: int = DEFAULT_NOW_MS) -> None:
        self._lock = threading.Lock()
        self._wall_ns = now_ms * 1_000_000
        self._monotonic_ns = 0

    def now_ms(self) -> int:
        with self._lock:
            return self._wall_ns // 1_000_000

    def monotonic_s(self) -> float:
        with self._lock:
            return self._monotonic_ns / 1e9

    def sleep_s(self, duration_s: float) -> None:
        self.advance_s(duration_s)

    def advance_s(self, duration_s: float) -> None:
        """Let time pass."""
        if duration_s < 0:
            raise ValueError(f"time cannot pass backwards ({duration_s} s); use jump_s")
        with self._lock:
            self._wall_ns += round(duration_s * 1e9)
            self._monotonic_ns += round(duration_s * 1e9)

    def jump_s(self, duration_s: float) -> None:
        """Set the wall clock forwards or backwards while no time passes."""
        with self._lock:
            self._wall_ns += round(duration_s * 1e9)
