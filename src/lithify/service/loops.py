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

import random
from collections.abc import Callable
from threading import Event
from typing import TypeVar

from lithify.base.errors import StoreUnavailable
from lithify.config.model import ServiceSettings
from lithify.coordination.leadership import Leadership
from lithify.service.coordinator import Coordinator
from lithify.service.managed_dataset import JITTER, Collector, CoordinationPolicy, ManagedDataset
from lithify.service.once_logger import OnceLogger
from lithify.service.worker import Worker
from lithify.service.worker_pool import WorkerPool

ResultT = TypeVar("ResultT")


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
    policy = CoordinationPolicy(
        settings.commit_compacted_interval_s, settings.poll_interval_s, stop.wait, rng, take_over=take_over
    )
    managed = ManagedDataset(coordinator, leadership, policy, worker=worker, collector=collector)
    if once_back(managed.lead, stop, settings) is None:
        return
    with managed:
        while not stop.is_set():
            managed.round()
            managed.rest()


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
