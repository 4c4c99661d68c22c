"""The pace of work, and the seconds of work that wait: the input of an autoscaler.

1. A compaction costs the bytes it reads plus `FIXED_BYTES`: its claim, its job and its commit take about as
long as that.
2. The *pace* of a slot is the cost it has recently worked off per second: each finished compaction counts
`FADING` times as much as the next one. Before the first one it is `FIRST_BYTES_PER_S`.
3. The *backlog* in seconds is the time one slot would need for all waiting work. It does not depend on the
number of slots, so an autoscaler that changes this number does not chase its own changes: it wants backlog /
(seconds that work may wait) slots.
"""

from __future__ import annotations

from collections.abc import Iterable

FIXED_BYTES = 16 << 20
FIRST_BYTES_PER_S = 32 << 20
FADING = 0.9


class SlotPace:
    """The pace of the slots of one process. May be lost."""

    def __init__(self) -> None:
        self._bytes = 0.0
        self._seconds = 0.0

    def finished(self, cost_bytes: int, seconds: float) -> None:
        """Record that a compaction of this cost took `seconds` in its slot."""
        self._bytes = self._bytes * FADING + cost_bytes + FIXED_BYTES
        self._seconds = self._seconds * FADING + max(0.0, seconds)

    @property
    def bytes_per_s(self) -> int:
        """Return the pace; 0 while no compaction has finished."""
        return round(self._bytes / self._seconds) if self._seconds > 0 else 0


def mean_pace(paces: Iterable[int]) -> int:
    """Return the mean pace of several processes; those without one do not count. 0 if none has one."""
    known = [pace for pace in paces if pace > 0]
    return sum(known) // len(known) if known else 0


def backlog_ms(count: int, cost_bytes: int, bytes_per_s: int) -> int:
    """Return how long one slot would need for `count` compactions that read `cost_bytes` in total."""
    return (count * FIXED_BYTES + cost_bytes) * 1000 // (bytes_per_s or FIRST_BYTES_PER_S)
