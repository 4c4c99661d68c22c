"""What one seed plays: which datasets and members there are, and what goes wrong.

Each seed draws its own mixture; in one of ten no call goes wrong. Some datasets are idle all the time, one is
often hot: as soon as something of it is committed, more arrives. One may be poison (all its tasks fail), one
damaged for good, and one worker may fail whatever it tries. In peace one more thing happens (`Drill`), and it
alone, so that can be judged by the second.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from enum import Enum

from lithify.config.model import ServiceSettings
from lithify.service.options import CoordinatorOptions, WorkerOptions
from simulator.core.processes import CallFaults

BUSY_MS = 120_000
"""How long work arrives and things go wrong."""
SETTLE_MS = 180_000
"""Then nothing goes wrong any more. By the end of this time all know who is alive, and pauses are over."""
REST_S = 60.0
"""In place of ten minutes: so long a coordinator keeps a leadership without work."""
KEEP_MS = 20_000
TRUNCATE_EVERY_S = 10.0
FORGOTTEN_AFTER_MS = 90_000
"""In place of a day, five minutes and an hour."""
COLLECT_AFTER_MS, COLLECT_FIRST_MS, COLLECT_EVERY_MS = 20_000, 60_000, 150_000
"""In place of ten minutes, an hour and a day."""
SWEEP_MS = 300_000
"""The longest time between two looks at a dataset of which nothing is known."""
FAILOVER_MS = 45_000
QUIET_MS = 300_000
"""So long nothing is written in the end."""
LOOPS = ServiceSettings()
COORDINATOR = CoordinatorOptions()
WORKER = WorkerOptions(
    heartbeat_interval_ms=5_000, heartbeat_bytes=0, first_retry_pause_ms=1_000, max_retry_pause_ms=16_000
)
LARGE_BYTES, SMALL_BYTES = 1 << 27, 100
"""Of what arrives at a dataset."""
SMALL_QUEUE, SMALL_QUEUE_BYTES = "small", 50_000
TENANT = "blue"
MIN_SOURCES, MAX_SOURCES = 3, 8


class Trouble(Enum):
    """What can be wrong with a dataset."""

    DAMAGED = "it does not decode"
    DEFECT = "it raises what nobody foresaw"
    AWAY = "its part of the store does not answer"


class Drill(Enum):
    """What happens in peace."""

    NOTHING = "nothing"
    JOIN = "a coordinator joins"
    LEAVE = "a coordinator leaves"
    KILL = "a coordinator is killed"
    FREEZE = "a coordinator is frozen, and thaws"
    KILL_WORKER = "a worker is killed"
    PAUSE = "the small queue is paused"


class Anew(Enum):
    """What takes the place of a dataset that is deleted."""

    ANOTHER = "another one"
    BESIDE = "another one, beside what Lithify left"
    BACKUP = "a backup"


@dataclass(frozen=True, slots=True)
class ShelfPlan:
    """One dataset."""

    name: str
    units: int
    source_bytes: int
    tenant: str | None = None
    is_hot: bool = False
    is_idle: bool = False
    is_poisoned: bool = False
    is_damaged: bool = False
    """For good."""
    pause_ms: int = 20_000
    """Mean time between two arrivals, where it is not hot."""
    is_foreign: bool = False
    """An owner coordinates it, which works until nothing goes wrong any more, and is gone then."""
    trouble: tuple[Trouble, int, int] | None = None
    """Its kind, when it begins and when it ends."""

    @property
    def is_healthy(self) -> bool:
        """Whether all its work can be done."""
        return not (self.is_poisoned or self.is_damaged or self.is_foreign)


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """One seat of workers."""

    slots: int
    queues: tuple[str, ...] = ()
    """By name; all where there is none."""
    is_sick: bool = False
    """All its tasks fail, and fast."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What one seed plays."""

    shelves: tuple[ShelfPlan, ...]
    coordinators: int
    workers: tuple[WorkerPlan, ...]
    max_task_ms: int
    largest_share: float
    """Of the slots of a queue that one dataset may have."""
    longest_backlog: int
    reserved_slots: int
    """Of each queue."""
    most_running: int | None
    """The cap of `TENANT`; `None`: it has none."""
    looks_at_once: int
    vandal_pause_ms: int
    """0: nobody deletes boards, bells, memories, wakes and members."""
    person_pause_ms: int
    """0: nobody changes the catalog."""
    coming_pause_ms: int
    """0: members come and go only when they are killed."""
    drill: Drill
    faults: CallFaults

    @property
    def slots(self) -> int:
        """Of healthy workers that serve all queues."""
        return sum(worker.slots for worker in self.workers if not (worker.is_sick or worker.queues))

    def patience_ms(self) -> int:
        """How long all that is healthy takes in peace, at most.

        1. A sweep until all has been looked at, and `SETTLE_MS` until nobody holds anything up.
        2. A *turn* is a task, and what passes between a commit and the next claim: a look of the coordinator,
           the board, a question of the worker, a pause of a hint that is meant for another.
        3. At the worst all units, each with something new while it was compacted, have their turns one after
           another in the slots of the workers that serve all queues, but the reserve and those beyond the
           tenant's cap, and the hot dataset one for each.
        """
        units = sum(shelf.units for shelf in self.shelves)
        turn_ms = self.max_task_ms + 20_000
        slots = max(1, min(self.slots - self.reserved_slots, self.most_running or self.slots))
        return SWEEP_MS + SETTLE_MS + 3 * units * turn_ms // slots

    @classmethod
    def draw(cls, rng: random.Random) -> Scenario:
        """The scenario of a seed."""
        sick = rng.random() < 0.4
        workers = [WorkerPlan(rng.choice((1, 2, 3)))]
        workers += [
            WorkerPlan(rng.choice((1, 2)), rng.choice(((), (SMALL_QUEUE,), ("default",))))
            for _ in range(rng.choice((0, 1, 2)))
        ]
        if sick:
            workers.append(WorkerPlan(rng.choice((1, 4)), is_sick=True))
        return cls(
            shelves=_shelves(rng),
            coordinators=rng.choice((1, 2, 2, 3)),
            workers=tuple(workers),
            max_task_ms=rng.choice((1_000, 4_000, 12_000)),
            largest_share=rng.choice((0.5, 1.0, 1.0)),
            longest_backlog=rng.choice((2, 4, 1_000)),
            reserved_slots=0 if sick else rng.choice((0, 1)),
            most_running=rng.choice((None, 1, 2)),
            looks_at_once=rng.choice((1, 4)),
            vandal_pause_ms=rng.choice((0, 4_000, 15_000)),
            person_pause_ms=rng.choice((0, 8_000, 20_000)),
            coming_pause_ms=rng.choice((0, 0, 30_000)),
            drill=rng.choice(tuple(Drill)),
            faults=_faults(rng),
        )


def _shelves(rng: random.Random) -> tuple[ShelfPlan, ...]:
    shelves = []
    count = rng.choice((4, 6, 9))
    hot = rng.choice((0, 0, None))
    for number in range(count):
        start_ms = rng.randint(5_000, BUSY_MS // 2)
        trouble = (rng.choice(tuple(Trouble)), start_ms, start_ms + rng.randint(5_000, 50_000))
        shelf = ShelfPlan(
            name=f"shelf-{number}",
            units=rng.choice((1, 1, 2, 3)),
            source_bytes=rng.choice((SMALL_BYTES, LARGE_BYTES)),
            tenant=rng.choice((None, TENANT)),
            is_hot=number == hot,
            pause_ms=rng.choice((10_000, 30_000)),
            trouble=trouble if rng.random() < 0.2 else None,
        )
        shelves.append(replace(shelf, units=6) if shelf.is_hot else shelf)
    shelves[1] = replace(shelves[1], is_idle=True, units=1, trouble=None)
    if rng.random() < 0.4:
        # It holds one of its tenant's slots between its attempts, for many minutes.
        shelves[2] = replace(shelves[2], is_poisoned=True, units=1, trouble=None, tenant=None)
    elif rng.random() < 0.5:
        shelves[2] = replace(shelves[2], is_damaged=True, trouble=None)
    if not shelves[3].is_hot and shelves[3].units == 1:
        shelves[3] = replace(shelves[3], is_foreign=True, trouble=None)
    return tuple(shelves)


def _faults(rng: random.Random) -> CallFaults:
    skew_ms = rng.choice((0, 2_000, 3_600_000))
    if rng.random() < 0.1:
        return CallFaults(skew_ms=skew_ms)
    return CallFaults(
        crash_per_call=rng.choice((0.0, 0.0005, 0.002)),
        failure_per_call=rng.choice((0.0, 0.003, 0.01)),
        lost_answer_per_call=rng.choice((0.0, 0.003, 0.01)),
        repeated_per_call=rng.choice((0.0, 0.003, 0.01)),
        delay_per_call=rng.choice((0.0, 0.01, 0.05)),
        pause_per_call=rng.choice((0.0, 0.0005, 0.002)),
        skew_ms=skew_ms,
        jumps_per_minute=rng.choice((0.0, 0.0, 0.5)),
    )
