"""The loops of coordinators and workers that run until `stop` is set.

A loop ticks, waits, and ticks again. It waits briefly while something is active, otherwise for one poll
interval, with jitter so that many processes do not read the store in step. A coordinator checks its lease
even while it waits.

When `stop` is set, a worker cancels its tasks and releases its compactions at once, so that other workers
need not wait for its heartbeats to time out. A coordinator just ends: all its state is in the ledger.

A failed round is reported once, and the loop continues after a pause; a pool of workers continues with the
other datasets (`lithify.service.worker_pool`). The protocol covers work in progress. An unexpected exception
is an error like any other (`lithify.base.defects`). Only `Fenced` ends a coordinator for good.

A store that is away ends nothing: a loop waits only a few seconds for its requests
(`lithify.datasets.waiting`) and retries for as long as it takes, also when it starts.

A table that cannot be compacted now may become compactable: that is reported once (`CannotCompact`), checked
again at each poll, and all other work on it continues.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from threading import Event
from typing import TypeVar

from lithify.base.defects import contained
from lithify.base.errors import Fenced, LithifyError, StoreUnavailable
from lithify.config.model import ServiceSettings
from lithify.coordination.leadership import Leadership
from lithify.service.coordinator import Coordinator
from lithify.service.coordinator_view import CoordinatorView
from lithify.service.garbage_loop import Collector, collecting
from lithify.service.once_logger import OnceLogger
from lithify.service.worker import Worker
from lithify.service.worker_pool import WorkerPool, release

MAX_REST_S = 6.0
"""Longest wait of a coordinator without checking its lease, however rarely it polls the dataset: a process
that asks whether it is alive waits `LEASE_MS` for the answer."""

JITTER = 0.1
"""Each wait of a loop is longer by up to this share."""

ResultT = TypeVar("ResultT")

_log = logging.getLogger("lithify")


def run_workers(pool: WorkerPool, stop: Event, rng: random.Random, settings: ServiceSettings) -> None:
    """Work on all datasets of `pool` until `stop` is set; then release unfinished compactions."""
    try:
        pool.start()
        while not stop.is_set():
            changed = pool.round()
            if pool.is_busy:
                pool.wait(settings.commit_compacted_interval_s)
            elif not changed:  # else slots may have become free for datasets polled earlier
                stop.wait(settings.worker.compactions_poll_interval_s * (1 + rng.uniform(0, JITTER)))
    finally:
        pool.release()


def run_coordinator(
    coordinator: Coordinator,
    leadership: Leadership,
    stop: Event,
    rng: random.Random,
    settings: ServiceSettings,
    *,
    take_over: bool = False,
    worker: Worker | None = None,
    collector: Collector | None = None,
) -> None:
    """Coordinate until `stop` is set or another coordinator takes over (`Fenced`). `worker` is an embedded
    worker, whose ticks alternate with the coordinator's in this thread; `collector` collects garbage in a
    thread of its own. Raise `CoordinatorAlive` when another coordinator may be alive, unless `take_over` is
    set."""
    if worker is not None:
        worker.room.check_master()  # before anything is written
    with ExitStack() as stack:
        acquiring = partial(leadership.acquire, take_over=take_over)
        term = once_back(lambda: stack.enter_context(acquiring()), stop, settings)
        if term is None:
            return
        try:
            coordinator.start(term)
            with collecting(collector):
                _coordinate(coordinator, leadership, stop, rng, settings, worker)
        finally:
            if worker is not None:
                release(worker)


def once_back(action: Callable[[], ResultT], stop: Event, settings: ServiceSettings) -> ResultT | None:
    """Return the result of `action` once the store answers; `None` if `stop` is set first."""
    trouble = OnceLogger("the coordinator cannot start yet and retries")
    while True:
        try:
            return action()
        except StoreUnavailable as error:
            trouble.say(error)
        if stop.wait(settings.poll_interval_s):
            return None


def _coordinate(
    coordinator: Coordinator,
    leadership: Leadership,
    stop: Event,
    rng: random.Random,
    settings: ServiceSettings,
    worker: Worker | None,
) -> None:
    trouble = OnceLogger("the coordinator could not finish a round and retries")
    workers_trouble = OnceLogger("the embedded worker could not finish a round and retries")
    while not stop.is_set():
        wait_s = settings.poll_interval_s
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
                wait_s = settings.commit_compacted_interval_s
        if worker is not None:
            worker.room.check_engine()
        changed = worker is not None and _tick_worker(worker, workers_trouble, seen)
        if worker is not None and worker.is_busy:
            worker.wait(min(wait_s, MAX_REST_S))
        elif not changed:
            _rest(leadership, stop, wait_s * (1 + rng.uniform(0, JITTER)), trouble)


def _rest(leadership: Leadership, stop: Event, wait_s: float, trouble: OnceLogger) -> None:
    """Wait, and renew the lease meanwhile."""
    while wait_s > MAX_REST_S and not stop.wait(MAX_REST_S):
        wait_s -= MAX_REST_S
        try:
            with contained("a check of the lease"):
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
    worker.take_failures()  # events have reported them
    return changed
