"""Wall-clock and monotonic time as a port.

Only the outermost modules create a clock; all others get a `Clock` passed in. Production uses `SystemClock`;
tests and the simulator use `lithify.testing.ManualClock`.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of time."""

    def now_ms(self) -> int:
        """Return wall-clock milliseconds since the Unix epoch; may jump."""
        ...

    def monotonic_s(self) -> float:
        """Return seconds since an arbitrary start; never goes back."""
        ...

    def sleep_s(self, duration_s: float) -> None:
        """Block the calling thread for `duration_s` seconds."""
        ...


def monotonic_ms(clock: Clock) -> int:
    """Return milliseconds since an arbitrary start, to measure durations: a wall clock may jump."""
    return round(clock.monotonic_s() * 1000)


class SystemClock:
    """The clock of the machine."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()

    def sleep_s(self, duration_s: float) -> None:
        time.sleep(duration_s)
