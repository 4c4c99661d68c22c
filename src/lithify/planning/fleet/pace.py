"""How fast work goes, and so how many seconds of it wait: what an autoscaler goes by.

1. A compaction costs what it reads and `FIXED_BYTES` besides: its claim, its job and its commit take about as
   long as that.
2. The *pace* of a slot is what it worked off in a second, of late: each compaction that finished counts
   `FADING` times as much as the next one. Before the first one it is `FIRST_BYTES_PER_S`.
3. The *backlog* in seconds is how long one slot would take for all that waits. It does not depend on how
   many slots there are, so an autoscaler that changes their number does not chase its own changes: it wants
   backlog / (seconds that may be waited) slots.
"""

from __future__ import annotations

from collections.abc import Iterable

FIXED_BYTES = 16 << 20
FIRST_BYTES_PER_S = 32 << 20
FADING = 0.9


class SlotPace:
    """Of the slots of one process. May be lost."""

    def __init__(self) -> None:
        self._bytes = 0.0
        self._seconds = 0.0

    def finished(self, cost_bytes: int, seconds: float) -> None:
        """A compaction that costs so much took so long in its slot."""
        self._bytes = self._bytes * FADING + cost_bytes + FIXED_BYTES
        self._seconds = self._seconds * FADING + max(0.0, seconds)

    @property
    def bytes_per_s(self) -> int:
        """0 while nothing has finished."""
        return round(self._bytes / self._seconds) if self._seconds > 0 else 0


def mean_pace(paces: Iterable[int]) -> int:
    """Of several processes; those that know none do not count. 0 when nobody knows one."""
    known = [pace for pace in paces if pace > 0]
    return sum(known) // len(known) if known else 0


def backlog_ms(count: int, cost_bytes: int, bytes_per_s: int) -> int:
    """How long one slot would take for so many compactions that read so much together."""
    return (count * FIXED_BYTES + cost_bytes) * 1000 // (bytes_per_s or FIRST_BYTES_PER_S)
