"""What one seed plays: how much history the table keeps, who takes part, and what goes wrong.

Each seed draws its own mixture; in one of ten nothing goes wrong at all.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from simulator.core.processes import CallFaults

BUSY_MS = 400_000
"""How long things happen and go wrong."""
SETTLE_MS = 200_000
"""How long everybody has to end what is begun, once nothing goes wrong any more."""
HOUR_MS = 3_600_000
MAX_BACK_MS = 20_000
"""How far the times of the table may go back from one snapshot to the next."""
MAX_LATE_MS = 90_000
"""How long after its answer was given up a commit may still take effect."""


@dataclass(frozen=True, slots=True)
class Faults(CallFaults):
    """How often something goes wrong with a call of the store, or of the catalog."""

    trouble_per_commit: float = 0.0
    """The commit fails, its answer is lost, it takes effect later, or the process dies, before or after."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What one seed plays."""

    is_exact: bool
    """Whether the catalog checks in its process that refs and rules are as they were seen. Otherwise it knows
    no requirement but Iceberg's (REST)."""
    max_age_ms: int
    min_kept: int
    max_log: int
    """Metadata files that the table's log names."""
    grace_ms: int
    lease_ms: int
    writers: int
    writer_pause_ms: int
    back_ms: int
    """How far writers let time go back."""
    writer_skew_ms: int
    coordinators: int
    run_pause_ms: int
    streams: int
    stream_pause_ms: int
    holders: int
    hold_pause_ms: int
    ref_pause_ms: int
    """0: nobody makes branches and tags."""
    by_hand_pause_ms: int
    """0: nobody runs `expire` by hand."""
    compaction_pause_ms: int
    """0: nothing is compacted."""
    faults: Faults
    removal: str = ""
    """How Lithify's folder is removed once, by another program or a person: wholly, by age, or not at all."""

    @classmethod
    def draw(cls, rng: random.Random) -> Scenario:
        """The scenario of a seed."""
        is_exact = rng.random() < 0.7
        faults = _faults(rng)
        # Where time goes back, a short log does not tell that a table is the one it was: it is left alone.
        max_log = 1_000 if faults.skew_ms else rng.choice((1_000, 5))
        is_short = max_log == 5
        # Two writers whose clocks are far apart, and a table that keeps little of its own accord: what is
        # made of a snapshot that is held may be older than it, and only the hold keeps it.
        goes_back = not is_short and rng.random() < 0.25
        return cls(
            is_exact=is_exact,
            max_age_ms=5_000 if goes_back else rng.choice((5_000, 20_000, 60_000)),
            min_kept=1 if goes_back else rng.choice((1, 1, 1, 2, 3)),
            max_log=max_log,
            grace_ms=rng.choice((0, 20_000, 60_000)),
            lease_ms=30_000 if goes_back else rng.choice((10_000, 10_000, 30_000)),
            writers=2 if goes_back else rng.choice((1, 1, 2)),
            writer_pause_ms=rng.choice((4_000, 10_000)),
            back_ms=MAX_BACK_MS if goes_back else 0 if is_short else rng.choice((0, 1_000, MAX_BACK_MS)),
            writer_skew_ms=MAX_BACK_MS
            if goes_back
            else 0
            if is_short
            else rng.choice((0, 1_500, MAX_BACK_MS)),
            coordinators=2,
            run_pause_ms=rng.choice((5_000, 15_000)),
            streams=rng.choice((0, 0, 1, 2)),
            stream_pause_ms=rng.choice((3_000, 15_000)),
            holders=rng.choice((1, 2, 2)),
            hold_pause_ms=rng.choice((5_000, 15_000)),
            ref_pause_ms=rng.choice((0, 4_000, 15_000)),
            by_hand_pause_ms=rng.choice((0, 40_000)),
            compaction_pause_ms=rng.choice((0, 15_000)),
            faults=faults,
            removal=rng.choice(("", "", "whole", "by age")),
        )


def _faults(rng: random.Random) -> Faults:
    if rng.random() < 0.1:
        return Faults()
    return Faults(
        crash_per_call=rng.choice((0.0, 0.001, 0.004)),
        failure_per_call=rng.choice((0.0, 0.003, 0.01)),
        lost_answer_per_call=rng.choice((0.0, 0.003, 0.01)),
        repeated_per_call=rng.choice((0.0, 0.003, 0.02)),
        delay_per_call=rng.choice((0.0, 0.02, 0.1)),
        delay_per_write=rng.choice((0.0, 0.5)),
        pause_per_call=rng.choice((0.0, 0.0, 0.002, 0.005)),
        trouble_per_commit=rng.choice((0.0, 0.05, 0.2)),
        max_latency_ms=rng.choice((20, 20, 300)),
        skew_ms=rng.choice((0, 1_500, HOUR_MS)),
        jumps_per_minute=rng.choice((0.0, 0.0, 0.5)),
    )
