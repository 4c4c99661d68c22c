"""A pool over workers that a test has made, for tests of the loops around it."""

from __future__ import annotations

from datetime import timedelta

from lithify.base.clock import Clock, SystemClock
from lithify.config.model import ServiceSettings, WorkerSettings
from lithify.service.slots import WorkerSlots
from lithify.service.worker import Worker, WorkerOptions
from lithify.service.worker_pool import UrlList, WorkerPool
from lithify.testing.engine import InlineEngine


def every(seconds: float) -> ServiceSettings:
    """Settings of loops that wait so long, whatever for."""
    pause = timedelta(seconds=seconds)
    return ServiceSettings(
        poll_interval=pause,
        commit_compacted_interval=pause,
        worker=WorkerSettings(compactions_poll_interval=pause),
    )


def pool_of(*workers: Worker, clock: Clock | None = None) -> WorkerPool:
    """A pool over these workers, each with the room that it has."""
    by_name = {f"{number}: {worker.url}": worker for number, worker in enumerate(workers)}
    return WorkerPool(
        UrlList(list(by_name)),
        lambda name, _: by_name[name],
        WorkerSlots(InlineEngine(), WorkerOptions()),
        clock if clock is not None else SystemClock(),
    )
