"""Wall-clock and monotonic time as a port.

Nothing below the edge reads the time by itself: a `Clock` is passed in. Production uses
`SystemClock`; tests and the simulator use `lithify.testing.ManualClock`.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Source of time. Wall-clock times are milliseconds since the Unix epoch."""

    def now_ms(self) -> int:
        """Wall-clock milliseconds since the Unix epoch; may jump."""
        ...

    def monotonic_s(self) -> float:
        """Seconds from an arbitrary start; never goes back."""
        ...

    def sleep_s(self, duration_s: float) -> None:
        """Block the calling thread for `duration_s` seconds."""
        ...


def monotonic_ms(clock: Clock) -> int:
    """Milliseconds from an arbitrary start, for how long something takes: a wall clock may jump meanwhile."""
    return round(clock.monotonic_s() * 1000)


class SystemClock:
    """The clock of the machine."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()

    def sleep_s(self, duration_s: float) -> None:
        time.sleep(duration_s)
