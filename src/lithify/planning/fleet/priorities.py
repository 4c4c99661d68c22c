"""Priority classes: four classes that never overlap, and priorities inside them.

| class | meaning |
|---|---|
| `STALL` | the writer is stalled, or will be within `NEAR_STALL_MS` |
| `ASKED` | an operator requested it |
| `OVER_LIMIT` | more waits than the dataset's limit, though no writer is known to be stalled |
| `NORMAL` | all other work |

Invariant: whatever the priorities (0 to 1), work of a better class ranks before work of a worse one. An
unknown limit (0) is never exceeded: else all ordinary work would rank before operators' requests.
"""

from __future__ import annotations

from enum import IntEnum

NEAR_STALL_MS = 60_000
"""A writer that stalls within this time counts as stalled: about as long as a small compaction takes."""
_WIDTH = 0.999
"""The width of a class, as a part of the distance between two classes."""


class PriorityClass(IntEnum):
    """Priority classes, the most urgent first. The numbers are part of the format of boards."""

    STALL = 0
    ASKED = 1
    OVER_LIMIT = 2
    NORMAL = 3


def band_of(*, stall_ms: int | None, waiting: int, limit: int) -> PriorityClass:
    """Return the priority class of work that nobody has requested, for a unit with `waiting` of at most
    `limit` things that may wait, whose writer stalls in `stall_ms` (`None`: not, or unknown)."""
    if stall_ms is not None and stall_ms <= NEAR_STALL_MS:
        return PriorityClass.STALL
    if 0 < limit <= waiting:
        return PriorityClass.OVER_LIMIT
    return PriorityClass.NORMAL


def rank(band: PriorityClass, priority: float) -> float:
    """Return class and priority as one number from 0 (may wait) to 1 (urgent)."""
    return (PriorityClass.NORMAL - band + _WIDTH * priority) / len(PriorityClass)
