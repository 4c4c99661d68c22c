"""What one seed plays: how many copies and readers, how long a tombstone stays at least, what goes wrong.

Each seed draws its own mixture; in one of ten no call goes wrong.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from simulator.core.processes import CallFaults

BUSY_MS = 90_000
"""How long things happen and go wrong."""
SETTLE_MS = 150_000
"""How long everybody has at most to catch up, once nothing goes wrong any more."""
AWAY_MS = (5_000, 40_000)
"""How long a copy may be away."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What one seed plays."""

    copies: int
    """Beside the one that producers write to."""
    written_before: int
    """How often producers have written before the group was made. Each copy has some of it."""
    begins_within_ms: int
    """When the processes of a copy begin, at the latest."""
    keys: int
    """How many are written to at a time. They move on: what became of an old one is not written over."""
    produce_pause_ms: int
    transactions: float
    """How many of the batches belong to one."""
    keeps_transactions: bool
    """Whether committed rows stay part of their transaction, as in segments."""
    copy_pause_ms: int
    compact_pause_ms: int
    whole_rounds: float
    """How many rounds clean and resolve all there is; others do a part."""
    one_track: tuple[float, float]
    """How many of the others clean only, and resolve only."""
    publish_pause_ms: int
    readers: int
    read_pause_ms: int
    scanners: int
    retention_ms: int
    person_pause_ms: int
    """0: nobody adds, removes or restores a copy, or rewinds a reader."""
    overreach_pause_ms: int
    """0: nobody publishes thresholds that are too high."""
    faults: CallFaults

    @classmethod
    def draw(cls, rng: random.Random) -> Scenario:
        """The scenario of a seed."""
        return cls(
            copies=rng.choice((1, 2, 2, 3)),
            written_before=rng.choice((0, 3, 8)),
            begins_within_ms=rng.choice((0, 5_000, 40_000)),
            keys=rng.choice((2, 4)),
            produce_pause_ms=rng.choice((1_000, 3_000)),
            transactions=rng.choice((0.0, 0.3, 0.6)),
            keeps_transactions=rng.random() < 0.6,
            copy_pause_ms=rng.choice((500, 2_000, 6_000)),
            compact_pause_ms=rng.choice((1_000, 3_000)),
            whole_rounds=rng.choice((0.1, 0.8)),
            one_track=rng.choice(((0.3, 0.3), (0.8, 0.1))),
            publish_pause_ms=rng.choice((500, 2_000)),
            readers=rng.choice((0, 1, 2)),
            read_pause_ms=rng.choice((1_000, 4_000)),
            scanners=rng.choice((0, 2)),
            retention_ms=rng.choice((0, 0, 5_000, 20_000)),
            person_pause_ms=rng.choice((0, 4_000, 8_000)),
            overreach_pause_ms=rng.choice((0, 0, 8_000)),
            faults=_faults(rng),
        )


def _faults(rng: random.Random) -> CallFaults:
    if rng.random() < 0.1:
        return CallFaults()
    return CallFaults(
        crash_per_call=rng.choice((0.0, 0.002, 0.006)),
        failure_per_call=rng.choice((0.0, 0.005, 0.02)),
        lost_answer_per_call=rng.choice((0.0, 0.005, 0.02)),
        repeated_per_call=rng.choice((0.0, 0.005, 0.02)),
        delay_per_call=rng.choice((0.0, 0.02, 0.1)),
        pause_per_call=rng.choice((0.0, 0.002, 0.006)),
        max_latency_ms=rng.choice((20, 20, 200)),
    )
