"""Lithify's own processes: coordinators, workers and garbage collectors, run by their real loops.

These loops survive whatever a round ends with. Here a round may only end with what a faulty store, another
coordinator or the engine can cause: anything else is a violation.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from unittest import mock

from lithify.base import events
from lithify.base.clock import Clock
from lithify.base.errors import CorruptObject, EngineError, Fenced, LithifyError, StoreError, Unexpected
from lithify.base.ids import Ulid
from lithify.config.model import ServiceSettings, WorkerSettings
from lithify.coordination.leadership import Leadership
from lithify.datasets.slatedb.dataset import SlateDataset
from lithify.datasets.slatedb.garbage.collection import GarbageOptions, collect
from lithify.protocol.transitions import AnyCompaction, AnyLedger
from lithify.service import one_shot
from lithify.service.coordinator import Coordinator, TickResult
from lithify.service.coordinator_view import CoordinatorView
from lithify.service.loops import run_coordinator, run_workers
from lithify.service.options import CoordinatorOptions, WorkerOptions
from lithify.service.slots import WorkerSlots
from lithify.service.worker import Worker
from lithify.service.worker_pool import UrlList, WorkerPool
from simulator import rules
from simulator.core.waiting import StopAt
from simulator.engine import SimulatedEngine
from simulator.replaced import simulated_dataset
from simulator.scenario import (
    HEARTBEAT_INTERVAL_MS,
    HEARTBEAT_TIMEOUT_MS,
    RANGE_START_TIMEOUT_MS,
)
from simulator.world import Process

_LOOPS = ServiceSettings(
    poll_interval=timedelta(seconds=2),
    commit_compacted_interval=timedelta(seconds=1),
    worker=WorkerSettings(compactions_poll_interval=timedelta(seconds=2)),
)
_WORKER = WorkerOptions(
    heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
    heartbeat_min_interval_ms=500,
    heartbeat_bytes=1,
    range_start_timeout_ms=RANGE_START_TIMEOUT_MS,
    first_retry_pause_ms=500,
    max_retry_pause_ms=4_000,
)
_MAX_STOP_MS = 60_000
_MAX_ATTEMPTS = 3
"""So few that some seeds give a compaction up."""


def _stop(process: Process) -> StopAt:
    """Half of the processes are asked to stop some time."""
    world = process.world
    is_calm = world.faults.crash_per_call == 0
    if is_calm or process.rng.random() < 0.5:
        return StopAt(world.scheduler)
    return StopAt(world.scheduler, world.now_ms + process.rng.randint(1, _MAX_STOP_MS))


def _observer(process: Process) -> events.Observer:
    def observe(event: events.Event) -> None:
        name = type(event).__name__
        process.world.count(f"event: {name}")
        if process.world.is_traced:
            fields = [
                n for cls in type(event).__mro__ for n in getattr(cls, "__slots__", ()) if n != "dataset"
            ]
            text = " ".join(f"{field}={getattr(event, field)}" for field in fields)
            process.log(f"{name} {text}")

    return observe


@contextmanager
def _sound(process: Process, *legal: type[LithifyError]) -> Iterator[None]:
    """A block that may end with `legal` errors only."""
    try:
        yield
    except legal:
        raise
    except Exception as error:
        raise process.world.fail(rules.SOUND, f"{process.name}: {type(error).__name__}: {error}") from error


class _SoundWorker(Worker):
    """Its rounds, and its attempts, end with nothing unforeseen."""

    process: Process

    def look(self, seen: CoordinatorView | None = None) -> bool:
        with _sound(self.process, StoreError, EngineError):
            return super().look(seen)

    def finished(self, ledger: AnyLedger) -> tuple[AnyCompaction, ...]:
        with _sound(self.process):
            found = super().finished(ledger)
        self.process.handed_over = {c.id: (ledger.get(c.id), c) for c in found}
        return found

    def offer(self, *, is_contested: bool = False) -> float | None:
        with _sound(self.process, StoreError):
            return super().offer(is_contested=is_contested)

    def claim(self) -> bool:
        with _sound(self.process, StoreError, EngineError):
            return super().claim()

    def take_failures(self) -> tuple[tuple[Ulid, Exception], ...]:
        failures = super().take_failures()
        for _, error in failures:
            if isinstance(error, Unexpected):
                raise self.process.world.fail(rules.SOUND, f"{self.process.name}: {error}") from error
        return failures


class _SoundCoordinator(Coordinator):
    """Its rounds end with nothing unforeseen."""

    process: Process

    def settle(self) -> None:
        with _sound(self.process, StoreError, Fenced):
            super().settle()

    def tick(self, *, is_known: bool = False) -> TickResult:
        with _sound(self.process, StoreError, Fenced):
            return super().tick(is_known=is_known)


def _worker(
    process: Process, engine: SimulatedEngine, dataset: SlateDataset, room: WorkerSlots | None = None
) -> Worker:
    process.worker_ids.add(engine.worker_id)
    worker = _SoundWorker(
        dataset,
        engine,
        process.clock,
        engine.worker_id,
        options=_WORKER if room is None else None,
        room=room,
        observer=_observer(process),
    )
    worker.process = process
    return worker


def run_worker_process(process: Process) -> None:
    """A worker until it is killed or told to stop."""
    engine = SimulatedEngine(process.world, process)
    process.on_death = engine.kill
    pool = WorkerPool(
        UrlList(["the database"]),
        lambda _, room: _worker(process, engine, simulated_dataset(process), room),
        WorkerSlots(engine, _WORKER),
        process.clock,
        heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
        observer=_observer(process),
    )
    run_workers(pool, _stop(process), process.rng, _LOOPS)


def run_coordinator_process(process: Process, *, take_over: bool) -> None:
    """A coordinator, perhaps with an embedded worker, until it is killed, fenced or told to stop."""
    process.takes_over = take_over
    dataset = simulated_dataset(process)
    leadership = Leadership(dataset, process.clock, process.ids)
    worker = None
    if process.world.scenario.embedded_worker:
        engine = SimulatedEngine(process.world, process)
        engine.worker_id = leadership.holder
        process.on_death = engine.kill
        worker = _worker(process, engine, dataset)
    coordinator = _SoundCoordinator(
        dataset,
        process.clock,
        process.ids,
        options=CoordinatorOptions(HEARTBEAT_TIMEOUT_MS, _MAX_ATTEMPTS),
        companion=worker,
        observer=_observer(process),
    )
    coordinator.process = process
    process.coordinator = coordinator
    run_coordinator(
        coordinator, leadership, _stop(process), process.rng, _LOOPS, take_over=take_over, worker=worker
    )


def run_once_process(process: Process) -> None:
    """A one-shot run, until nothing is left to do or it is killed."""
    dataset = simulated_dataset(process)
    leadership = Leadership(dataset, process.clock, process.ids)
    engine = SimulatedEngine(process.world, process)
    engine.worker_id = leadership.holder
    process.on_death = engine.kill
    one_shot.run(
        dataset,
        engine,
        process.clock,
        process.ids,
        leadership,
        options=_WORKER,
        coordinator_options=CoordinatorOptions(HEARTBEAT_TIMEOUT_MS, _MAX_ATTEMPTS),
        observer=_observer(process),
    )
    process.world.count("event: one-shot run ended well")


@contextmanager
def replaced_in_runs() -> Iterator[None]:
    """One-shot runs have these in place of their coordinators and workers, as long as this lasts."""
    with (
        mock.patch.object(one_shot, "Worker", _worker_of_a_run),
        mock.patch.object(one_shot, "Coordinator", _coordinator_of_a_run),
    ):
        yield


def _worker_of_a_run(
    dataset: SlateDataset, engine: SimulatedEngine, clock: Clock, worker_id: str, **options: Any
) -> Worker:
    engine.driver.worker_ids.add(worker_id)
    worker = _SoundWorker(dataset, engine, clock, worker_id, **options)
    worker.process = engine.driver
    return worker


def _coordinator_of_a_run(*ports: Any, companion: _SoundWorker, **options: Any) -> Coordinator:
    coordinator = _SoundCoordinator(*ports, companion=companion, **options)
    coordinator.process = companion.process
    coordinator.process.coordinator = coordinator
    return coordinator


def run_collector_process(process: Process) -> None:
    """A garbage collector until it is killed."""
    options = GarbageOptions(min_age_ms=process.world.scenario.gc_min_age_ms, dry_run=False)
    dataset = simulated_dataset(process)
    while True:
        process.clock.sleep_s(process.rng.randint(1, 2 * process.world.scenario.gc_pause_ms) / 1000)
        try:
            report = collect(
                process.store, dataset.paths, process.clock, options, ids=process.ids, rng=process.rng
            )
        except (StoreError, CorruptObject) as error:
            process.world.count(f"event: collection ended by {type(error).__name__}")
            process.log(f"collection failed: {error}")
            continue
        for kind, count in report.counts.items():
            process.world.counts[f"collected: {kind.value}"] += count.deletable
