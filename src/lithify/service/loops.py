"""Coordinators and workers that run until they are told to stop: the loops around their ticks.

A loop ticks, waits, and ticks again. Waiting is short while there is something to follow and one poll
interval otherwise, spread by chance so that many processes do not read the store in step. A coordinator
looks at its lease even then.

When `stop` is set, a worker cancels its tasks and gives its compactions back at once, so that others
need not wait for its heartbeats to time out. A coordinator just ends: all its state is in the ledger.
A round that fails, for whatever reason, is reported once and the loop goes on after a pause; a pool of
workers goes on with the other datasets (`lithify.service.worker_pool`). What was in progress is covered by
the protocol. What nobody foresaw is an error like any other here (`lithify.base.defects`). Only `Fenced` ends
a coordinator for good.
A store that is away ends nothing: requests of a loop are waited for a few seconds only
(`lithify.datasets.waiting`), and the loop comes back for as long as it takes, also when it starts.
A table that cannot be compacted as it is now may be tomorrow: that is reported once (`CannotCompact`), read
again at each poll, and all else is done for it.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import TypeVar

from lithify.base.defects import contained
from lithify.base.errors import Fenced, LithifyError, StoreUnavailable
from lithify.coordination.leadership import Leadership
from lithify.service.coordinator import Coordinator
from lithify.service.coordinator_view import CoordinatorView
from lithify.service.garbage_loop import Collector, collecting
from lithify.service.once_logger import OnceLogger
from lithify.service.worker import Worker
from lithify.service.worker_pool import WorkerPool, release

MAX_REST_S = 6.0
"""A coordinator never rests for longer without looking at its lease, however rarely it looks at the dataset:
who asks whether it is alive waits `LEASE_MS` for the answer."""

ResultT = TypeVar("ResultT")

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
    with ExitStack() as stack:
        acquiring = partial(leadership.acquire, take_over=take_over)
        term = once_back(lambda: stack.enter_context(acquiring()), stop, options)
        if term is None:
            return
        try:
            coordinator.start(term)
            with collecting(collector):
                _coordinate(coordinator, leadership, stop, rng, options, worker)
        finally:
            if worker is not None:
                release(worker)


def once_back(action: Callable[[], ResultT], stop: Event, options: LoopOptions) -> ResultT | None:
    """What `action` gives, once the store answers; `None` when told to stop before."""
    trouble = OnceLogger("the coordinator cannot start yet and tries again")
    while True:
        try:
            return action()
        except StoreUnavailable as error:
            trouble.say(error)
        if stop.wait(options.poll_interval_s):
            return None


def _coordinate(
    coordinator: Coordinator,
    leadership: Leadership,
    stop: Event,
    rng: random.Random,
    options: LoopOptions,
    worker: Worker | None,
) -> None:
    trouble = OnceLogger("the coordinator could not finish a round and tries again")
    workers_trouble = OnceLogger("the embedded worker could not finish a round and tries again")
    while not stop.is_set():
        wait_s = options.poll_interval_s
        seen: CoordinatorView | None = None
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
            worker.wait(min(wait_s, MAX_REST_S))
        elif not changed:
            _rest(leadership, stop, wait_s * (1 + rng.uniform(0, options.jitter)), trouble)


def _rest(leadership: Leadership, stop: Event, wait_s: float, trouble: OnceLogger) -> None:
    """Wait, and keep the lease meanwhile."""
    while wait_s > MAX_REST_S and not stop.wait(MAX_REST_S):
        wait_s -= MAX_REST_S
        try:
            with contained("a look at the lease"):
                leadership.renew()
        except Fenced:
            raise
        except LithifyError as error:
            trouble.say(error)
    if not stop.is_set():
        stop.wait(wait_s)


def _tick_worker(worker: Worker, trouble: OnceLogger, seen: CoordinatorView | None) -> bool:
    try:
        with contained(f"a round over {worker.url}"):
            changed = worker.tick(seen)
    except LithifyError as error:
        trouble.say(error)
        return False
    trouble.is_over()
    worker.take_failures()  # their events have told of them
    return changed
