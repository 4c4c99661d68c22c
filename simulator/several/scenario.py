"""What one seed plays: which datasets there are, what arrives when, and what goes wrong.

Each seed draws its own mixture. One dataset is often hot: as soon as something of it is committed, new work
arrives. In some datasets most units are poisoned: every task of theirs fails.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum

from lithify.base.backoff import GrowingPause
from lithify.config.model import ServiceSettings, WorkerSettings
from lithify.planning.turns import AGEING_TURNS
from lithify.service.options import WorkerOptions

LOOPS = ServiceSettings(
    poll_interval=timedelta(seconds=4),
    commit_compacted_interval=timedelta(seconds=3),
    worker=WorkerSettings(compactions_poll_interval=timedelta(seconds=4)),
)
HEARTBEAT_INTERVAL_MS = 5_000
HEARTBEAT_TIMEOUT_MS = 20_000
FIRST_RETRY_MS, MAX_RETRY_MS = 1_000, 16_000
L0_MAX_SSTS = 8
"""The writer stalls there."""
MAX_LATENCY_MS = 20
ROUND_MS = 7_000
"""Longest time between two looks of whoever is well: its longest wait and what a round takes."""
SPREAD_TURNS = 3
"""So many turns outweigh what priorities of one dataset differ by: with `L0_MAX_SSTS` and `MAX_FILES` at
most."""
MAX_FILES = 12
"""No more arrive in a chunk before some are compacted."""
BUSY_MS = 100_000
"""How long work arrives and things go wrong."""


class Kind(Enum):
    """Kinds of datasets."""

    DATABASE = "database"
    TABLE = "table"


class Trouble(Enum):
    """What can be wrong with a dataset for a while."""

    DAMAGED = "its ledger does not decode"
    AWAY = "its store does not answer"
    DEFECT = "its snapshot raises what nobody foresaw"


@dataclass(frozen=True, slots=True)
class Period:
    """A time of trouble, after the start."""

    trouble: Trouble
    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class DatasetPlan:
    """One dataset."""

    name: str
    kind: Kind
    units: int
    poisoned: frozenset[int]
    is_hot: bool
    pause_ms: int
    """Mean time between two arrivals where it is not hot."""
    planner_slots: int
    """How many compactions its planner has active at once."""
    max_queued: int
    """Of a table: tasks that its queue holds; more are deferred. At least as many as may be active: what is
    offered goes through the queue."""
    max_batch: int
    """Sources that arrive at once, at most."""
    troubles: tuple[Period, ...]


@dataclass(frozen=True, slots=True)
class Scenario:
    """What one seed plays."""

    datasets: tuple[DatasetPlan, ...]
    pools: int
    slots: int
    """Compactions at once in each pool."""
    is_spare: bool
    """Whether one of these is more than the engine runs at once."""
    max_task_ms: int
    max_ranges: int
    max_attempts: int
    engine_ends_ms: tuple[int, ...]
    """When an engine goes down for good; the process of its pool ends, and a successor starts."""
    engine_stumbles_ms: tuple[int, ...]
    """When an engine goes down and can be opened again."""
    kill_ms: tuple[int, ...]
    """When a process with a pool is killed: it gives nothing back, and a successor starts."""
    failed_notes: float
    """Probability that the answer to the note of an attempt is lost."""
    failed_returns: float
    """Probability that the ledger write right after such a note fails."""
    person_pause_ms: int
    """Mean time between two cancellations; 0: nobody cancels."""

    @property
    def worker(self) -> WorkerOptions:
        return WorkerOptions(
            max_concurrent_compactions=self.slots,
            heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
            heartbeat_min_interval_ms=1_000,
            heartbeat_bytes=0,
            spare_claim_delay_ms=3_000 if self.is_spare else 0,
            first_retry_pause_ms=FIRST_RETRY_MS,
            max_retry_pause_ms=MAX_RETRY_MS,
        )

    @property
    def retry_pause(self) -> GrowingPause:
        return GrowingPause(FIRST_RETRY_MS, MAX_RETRY_MS)

    def patience_ms(self, plan: DatasetPlan) -> int:
        """How long a healthy unit of a dataset may wait at most for its commit, once it has work.

        1. A *turn* is a claim and all until its slot is free again: a task and a look. At the worst one
           slot after the other is given to others.
        2. In its dataset the unit waits for `SPREAD_TURNS` + M - 1 claims of the M compactions that the
           planner has active: what arrives is never so much that priorities differ by more. Each of these
           claims, and its own, waits for AGEING_TURNS + N - 1 claims of others among N datasets, and for a
           rest where units are poisoned.
        3. Before it is planned, all other units of the dataset may have had the planner's slots once; a
           poisoned one for `max_attempts` attempts.
        4. The commit takes two looks of a coordinator.
        """
        turn_ms = self.max_task_ms + ROUND_MS
        own_claims = SPREAD_TURNS + plan.planner_slots
        pause_ms = MAX_RETRY_MS if plan.poisoned else 0
        claim_ms = own_claims * ((AGEING_TURNS + len(self.datasets)) * turn_ms // self.slots + pause_ms)
        attempts = self.max_attempts if plan.poisoned else 1
        rounds = -(-(plan.units - 1) // plan.planner_slots) * attempts
        return (1 + rounds) * claim_ms + 2 * ROUND_MS

    @classmethod
    def draw(cls, rng: random.Random) -> Scenario:
        """The scenario of a seed."""
        third = rng.choice(tuple(Kind))
        kinds = [Kind.DATABASE, Kind.TABLE, third]
        rng.shuffle(kinds)
        hot = rng.choice((0, 0, 0, 1, 2, None))
        poisoned: tuple[int, ...] = rng.choice(((), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2)))
        troubled = rng.choice((None, 0, 1, 2))
        end_share = rng.random()
        return cls(
            datasets=tuple(
                _dataset(rng, f"{kind.value}-{n}", kind, n == hot, n in poisoned, n == troubled)
                for n, kind in enumerate(kinds)
            ),
            pools=rng.choice((1, 1, 2)),
            slots=rng.choice((1, 2, 3)),
            is_spare=rng.random() < 0.2,
            max_task_ms=rng.choice((3_000, 6_000, 12_000)),
            max_ranges=rng.choice((1, 1, 2)),
            max_attempts=rng.choice((2, 3)),
            engine_ends_ms=(rng.randint(20_000, BUSY_MS),) if end_share < 0.3 else (),
            engine_stumbles_ms=(rng.randint(10_000, BUSY_MS),) if end_share > 0.7 else (),
            kill_ms=(rng.randint(10_000, BUSY_MS),) if 0.4 < end_share < 0.6 else (),
            failed_notes=rng.choice((0.0, 0.0, 0.3)),
            failed_returns=rng.choice((0.0, 0.0, 0.5)),
            person_pause_ms=rng.choice((0, 0, 40_000)),
        )


def _dataset(
    rng: random.Random, name: str, kind: Kind, is_hot: bool, is_poisoned: bool, is_troubled: bool
) -> DatasetPlan:
    units = rng.choice((2, 4, 6))
    count = rng.randint(1, units - 1) if is_poisoned else 0
    troubles: tuple[Period, ...] = ()
    if is_troubled:
        start_ms = rng.randint(10_000, BUSY_MS // 2)
        troubles = (Period(rng.choice(tuple(Trouble)), start_ms, start_ms + rng.randint(5_000, 60_000)),)
    slots = rng.choice((1, 2, 3))
    return DatasetPlan(
        name=name,
        kind=kind,
        units=units,
        poisoned=frozenset(rng.sample(range(units), count)),
        is_hot=is_hot,
        pause_ms=rng.choice((10_000, 30_000)),
        planner_slots=slots,
        max_queued=rng.choice((slots, slots, slots + 1, 1000)),
        max_batch=rng.choice((3, 6)),
        troubles=troubles,
    )
