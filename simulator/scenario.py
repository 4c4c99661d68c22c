"""What one seed plays: who takes part, what they do, and what goes wrong how often.

Each seed draws its own mixture (swarm testing): where one fault is frequent and others are absent,
the system gets into states that an even mixture never reaches. Every rate is a probability for one
store call, task or round, as its name says. One seed in ten is calm: nothing goes wrong at all.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

MAX_SKEW_MS = 1_500
"""No clock is further off than this, in either direction, but for those of `LOOSE_KINDS`."""
HOUR_MS = 3_600_000
LOOSE_KINDS = ("coordinator", "collector")
"""Processes of these kinds may have clocks that are off by up to an hour, until the world is calm."""
HEARTBEAT_TIMEOUT_MS = 8_000
HEARTBEAT_INTERVAL_MS = 2_000
RANGE_START_TIMEOUT_MS = 5_000
LEASE_MS = 10_000
LOOK_AFTER_MS = 3_000
RENEW_AFTER_MS = 20_000
"""Of the coordinator's lease; shorter than in production, because here coordinators die every few seconds."""
CHECKPOINT_LIFETIME_S = 15
MAX_GC_MIN_AGE_MS = 6_000
MAX_PAUSE_MS = 30_000
"""How long a zombie is asleep at most."""
SLOW_LATENCY_MS = 1_500
CALM_SHARE = 0.1
L0_MAX_SSTS = 8


@dataclass(frozen=True, slots=True)
class Faults:
    """Probabilities of what goes wrong, and bounds of how long things take."""

    crash_per_call: float = 0.0
    failure_per_call: float = 0.0
    lost_answer_per_call: float = 0.0
    delay_per_call: float = 0.0
    pause_per_call: float = 0.0
    failure_per_task: float = 0.0
    lost_result_per_task: float = 0.0
    hang_per_task: float = 0.0
    twin_per_task: float = 0.0
    orphan_per_task: float = 0.0
    """A task goes on for a while after it was cancelled or its driver died."""
    late_flush_per_flush: float = 0.0
    """A writer takes long between the upload of an L0 SST and its publication."""
    skew_ms: int = 0
    max_latency_ms: int = 10
    """Of an ordinary store call."""
    slow_kind: str = ""
    """Processes of this kind take up to `SLOW_LATENCY_MS` for each call."""

    @property
    def disturbances(self) -> bool:
        """Whether anything can go wrong with a store call."""
        return bool(
            self.crash_per_call
            or self.failure_per_call
            or self.lost_answer_per_call
            or self.delay_per_call
            or self.pause_per_call
        )


@dataclass(frozen=True, slots=True)
class Scenario:
    """What one seed plays."""

    faults: Faults
    chaos_ms: int
    """How long things go wrong; afterwards everything must come to rest."""
    workers: int
    embedded_worker: bool
    segments: tuple[bytes, ...]
    """Prefixes of the segments; none: everything is in the root tree."""
    keys_per_segment: int
    min_compaction_sources: int
    rows_per_sst: int
    keys_per_range: int
    put_pause_ms: int
    """Mean time between two batches of rows."""
    meddling: bool
    """Whether a person submits compactions, sensible or not, cancels and tries again."""
    max_task_ms: int
    gc_min_age_ms: int
    gc_pause_ms: int
    """Mean time between two collections."""
    slatedb_pause_ms: int
    """Mean time between two processes of SlateDB's that have a coordinator inside; 0: there are none."""
    second_pause_ms: int
    """Mean time between two starts of a coordinator of Lithify's although there is one; 0: nobody does."""

    @classmethod
    def draw(cls, rng: random.Random) -> Scenario:
        """The scenario of a seed."""
        is_calm = rng.random() < CALM_SHARE
        return cls(
            faults=Faults() if is_calm else _faults(rng),
            chaos_ms=rng.choice((20_000, 30_000, 50_000)),
            workers=rng.randint(1, 3),
            embedded_worker=rng.random() < 0.3,
            segments=(b"a", b"b") if rng.random() < 0.4 else (),
            keys_per_segment=rng.choice((3, 6, 12)),
            min_compaction_sources=rng.randint(2, 4),
            rows_per_sst=rng.choice((3, 6, 50)),
            keys_per_range=rng.choice((2, 4, 100)),
            put_pause_ms=rng.choice((300, 600)),
            meddling=rng.random() < 0.4,
            max_task_ms=rng.choice((300, 3_000, 6_000)),
            gc_pause_ms=rng.choice((500, 5_000, 5_000)),
            gc_min_age_ms=rng.choice((0, 2_000, MAX_GC_MIN_AGE_MS)),
            slatedb_pause_ms=0 if is_calm else rng.choice((0, 0, 2_000, 8_000)),
            second_pause_ms=0 if is_calm else rng.choice((0, 0, 10_000)),
        )


def _faults(rng: random.Random) -> Faults:
    def sometimes(*rates: float) -> float:
        return rng.choice((0.0, *rates))

    return Faults(
        crash_per_call=sometimes(0.003, 0.02),
        failure_per_call=sometimes(0.005, 0.05),
        lost_answer_per_call=sometimes(0.01, 0.1),
        delay_per_call=sometimes(0.01, 0.05),
        pause_per_call=sometimes(0.002, 0.006),
        failure_per_task=sometimes(0.02, 0.4),
        lost_result_per_task=sometimes(0.05, 0.2),
        hang_per_task=sometimes(0.05, 0.2),
        twin_per_task=sometimes(0.1),
        orphan_per_task=sometimes(0.5, 1.0),
        late_flush_per_flush=sometimes(0.2),
        skew_ms=rng.choice((0, MAX_SKEW_MS)),
        max_latency_ms=rng.choice((10, 40, 150)),
        slow_kind=rng.choice(("", "", "collector", "coordinator", "worker", "writer")),
    )
