"""How urgent a kind of work is: four bands that never overlap, and priorities inside them.

| band | what |
|---|---|
| `STALL` | its writer stands still, or will within `NEAR_STALL_MS` |
| `ASKED` | a person asked for it |
| `OVER_LIMIT` | more waits than the dataset's limit, though nobody is known to stand still |
| `NORMAL` | everything else |

Invariant: whatever the priorities (0 to 1), work of a better band ranks before work of a worse one. A limit
that is not known (0) is never exceeded: else all ordinary work would rank before what people ask for.
"""

from __future__ import annotations

from enum import IntEnum

NEAR_STALL_MS = 60_000
"""A writer that stalls within this time counts as stalled: about as long as a small compaction takes."""
_WIDTH = 0.999
"""Of a band, as a part of the distance of two."""


class PriorityClass(IntEnum):
    """The most urgent first. The numbers stand on boards."""

    STALL = 0
    ASKED = 1
    OVER_LIMIT = 2
    NORMAL = 3


def band_of(*, stall_ms: int | None, waiting: int, limit: int, is_asked: bool = False) -> PriorityClass:
    """The band of work for a unit with so much waiting of so much that may wait, whose writer stalls in
    `stall_ms` (`None`: not, or unknown)."""
    if stall_ms is not None and stall_ms <= NEAR_STALL_MS:
        return PriorityClass.STALL
    if is_asked:
        return PriorityClass.ASKED
    if 0 < limit <= waiting:
        return PriorityClass.OVER_LIMIT
    return PriorityClass.NORMAL


def rank(band: PriorityClass, priority: float) -> float:
    """Band and priority as one number from 0 (may wait) to 1 (urgent)."""
    return (PriorityClass.NORMAL - band + _WIDTH * priority) / len(PriorityClass)
