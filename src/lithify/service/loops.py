"""Coordinators and workers that run until they are told to stop: the loops around their ticks.

A loop ticks, waits, and ticks again. Waiting is short while there is something to follow and one poll
interval otherwise, spread by chance so that many processes do not read the store in step.

When `stop` is set, a worker cancels its tasks and gives its compactions back at once, so that others
need not wait for its heartbeats to time out. A coordinator just ends: all its state is in the ledger.
A round that fails, for whatever reason, is reported once and the loop goes on after a pause; a pool of
workers goes on with the other datasets (`lithify.service.worker_pool`). What was in progress is covered by
the protocol. What nobody foresaw is an error like any other here (`lithify.defects`). Only `Fenced` ends a
coordinator for good.
A table that cannot be compacted as it is now (`Refused`) may be tomorrow: that is said once, and looked at
again.
"""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass
from threading import Event

from lithify.coordination.leadership import Leadership
from lithify.defects import contained
from lithify.errors import Fenced, LithifyError
from lithify.service.coordinator import Coordinator
from lithify.service.garbage_loop import Collector, collecting
from lithify.service.seen import Seen
from lithify.service.worker import Worker
from lithify.service.worker_pool import WorkerPool, release

_log = logging.getLogger("lithify")


@dataclass(frozen=True, slots=True)
class LoopOptions:
    """How often the loops look. Names are SlateDB's."""

    poll_interval_s: float = 5.0
    """Between two ticks of a coordinator without active compactions."""
    commit_compacted_interval_s: float = 1.0
    """Between two ticks of a coordinator with active compactions."""
    compactions_poll_interval_s: float = 5.0
    """Between two looks of an idle worker."""
    jitter: float = 0.1
    """Each wait is longer by up to this share."""


def run_workers(pool: WorkerPool, stop: Event, rng: random.Random, options: LoopOptions) -> None:
    """Work on all datasets of `pool` until `stop` is set; then give back what is unfinished."""
    try:
        pool.start()
        while not stop.is_set():
            changed = pool.round()
            if pool.is_busy:
                pool.wait(options.commit_compacted_interval_s)
            elif not changed:  # else there may be room again, for what was looked at before there was
                stop.wait(options.compactions_poll_interval_s * (1 + rng.uniform(0, options.jitter)))
    finally:
        pool.release()


class _Trouble:
    """What goes wrong in one round after the other. The same is not said again every few seconds."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._said = ""

    def say(self, error: LithifyError) -> None:
        if str(error) != self._said:
            _log.error("%s: %s", self._what, error)
        self._said = str(error)

    def is_over(self) -> None:
        self._said = ""


def run_coordinator(
    coordinator: Coordinator,
    leadership: Leadership,
    stop: Event,
    rng: random.Random,
    options: LoopOptions,
    *,
    take_over: bool = False,
    worker: Worker | None = None,
    collector: Collector | None = None,
) -> None:
    """Coordinate until `stop` is set or another coordinator takes over (`Fenced`); `worker` is an
    embedded one, which takes turns with the coordinator in this thread; `collector` collects garbage in
    a thread of its own. `CoordinatorAlive` when another coordinator may be at work, unless told to
    `take_over`."""
    if worker is not None:
        worker.room.check_master()  # before anything is written
    with leadership.acquire(take_over=take_over) as term:
        try:
            coordinator.start(term)
            with collecting(collector):
                _coordinate(coordinator, leadership, stop, rng, options, worker)
        finally:
            if worker is not None:
                release(worker)


def _coordinate(
    coordinator: Coordinator,
    leadership: Leadership,
    stop: Event,
    rng: random.Random,
    options: LoopOptions,
    worker: Worker | None,
) -> None:
    trouble = _Trouble("the coordinator could not finish a round and tries again")
    workers_trouble = _Trouble("the embedded worker could not finish a round and tries again")
    while not stop.is_set():
        wait_s = options.poll_interval_s
        seen: Seen | None = None
        try:
            with contained("a round of the coordinator"):
                leadership.renew()
                tick = coordinator.tick()
        except Fenced:
            raise
        except LithifyError as error:
            trouble.say(error)
        else:
            trouble.is_over()
            seen = tick.seen
            if tick.ledger.active() or tick.refused:
                wait_s = options.commit_compacted_interval_s
        if worker is not None:
            worker.room.check_engine()
        changed = worker is not None and _tick_worker(worker, workers_trouble, seen)
        if worker is not None and worker.is_busy:
            worker.wait(wait_s)
        elif not changed:
            stop.wait(wait_s * (1 + rng.uniform(0, options.jitter)))


def _tick_worker(worker: Worker, trouble: _Trouble, seen: Seen | None) -> bool:
    try:
        with contained(f"a round over {worker.url}"):
            changed = worker.tick(seen)
    except LithifyError as error:
        trouble.say(error)
        return False
    trouble.is_over()
    worker.take_failures()  # their events have told of them
    return changed
