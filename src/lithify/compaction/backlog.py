"""What waits for compaction, and how long its writer can wait."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pressure:
    """How close a writer that waits for compaction is to a stall: the backlog of one LSM tree."""

    unit: str
    l0_ssts: int
    l0_bytes: int
    """What waits to be compacted for the first time."""
    runs: int
    size_bytes: int
    l0_max_ssts: int
    flushes_per_s: float | None
    """Recent rate; unknown without two flushes to tell it from."""
    stall_ms: int | None
    """Until the writer stalls if nothing is compacted meanwhile: 0 when it does, `None` when it does
    not write or that is unknown."""
