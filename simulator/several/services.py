"""Coordinators and pools of workers, run by their real loops, and what each of them tells the judge."""

from __future__ import annotations

from lithify.base.errors import EngineDown
from lithify.coordination.leadership import Leadership
from lithify.service.coordinator import Coordinator
from lithify.service.coordinator_view import CoordinatorView
from lithify.service.loops import run_coordinator, run_workers
from lithify.service.options import CoordinatorOptions
from lithify.service.slots import WorkerSlots
from lithify.service.worker import Worker
from lithify.service.worker_pool import UrlList, WorkerPool
from simulator.core.fibers import Killed
from simulator.core.waiting import StopAt
from simulator.several import rules
from simulator.several.engine import ToyEngine
from simulator.several.judge import Judge
from simulator.several.places import Place
from simulator.several.pools import Pool
from simulator.several.scenario import HEARTBEAT_INTERVAL_MS, HEARTBEAT_TIMEOUT_MS, LOOPS
from simulator.several.world import World

_RESTART_MS = 2_000


def run_coordinators(world: World, place: Place) -> None:
    """The coordinator of one dataset. It starts again when it could not start because of its dataset."""
    while True:
        dataset = place.open(f"coordinator of {place.name}")
        leadership = Leadership(dataset, world.clock, world.ids)
        coordinator = Coordinator(
            dataset,
            world.clock,
            world.ids,
            options=CoordinatorOptions(HEARTBEAT_TIMEOUT_MS, world.scenario.max_attempts),
            observer=world.observer(f"coordinator of {place.name}"),
        )
        try:
            run_coordinator(coordinator, leadership, StopAt(world.scheduler), world.rng, LOOPS)
        except Exception as error:
            text = f"the coordinator of {place.name} ends: {type(error).__name__}: {error}"
            raise world.fail(rules.SURVIVES, text) from error


class _JudgedWorker(Worker):
    """Tells the judge how its looks and claims end."""

    judge: Judge
    pool: Pool
    place: str

    def look(self, seen: CoordinatorView | None = None) -> bool:
        self.judge.looks(self.pool, self.place)
        try:
            changed = super().look(seen)
        except Exception:
            self.judge.look_failed(self.pool, self.place)
            raise
        self.judge.looked(self.pool, self.place)
        return changed

    def offer(self, *, is_contested: bool = False) -> float | None:
        try:
            return super().offer(is_contested=is_contested)
        except Exception:
            self.judge.look_failed(self.pool, self.place)
            raise

    def claim(self) -> bool:
        try:
            return super().claim()
        except Exception:
            self.judge.look_failed(self.pool, self.place)
            raise


class PoolSeat:
    """The processes with a pool that follow each other: one ends with its engine, the next starts."""

    def __init__(self, world: World, judge: Judge, places: dict[str, Place], number: int) -> None:
        self._world = world
        self._judge = judge
        self._places = {place.url: place for place in places.values()}
        self._number = number
        self._count = 0
        self._name = ""
        self.engine: ToyEngine | None = None

    def run(self) -> None:
        """One process after the other."""
        while True:
            self._count += 1
            self._name = f"pool-{self._number}-{self._count}"
            self._live(self._name)
            self._world.scheduler.sleep_ms(self._world.rng.randint(1, _RESTART_MS))

    def kill(self) -> None:
        """What runs here is gone; the process ends at its next call of a store and gives nothing back."""
        if self.engine is not None and self.engine.failure is None:
            self._world.log(self._name, "is killed")
            self._world.killed.add(self._name)
            self.engine.kill()

    def _live(self, name: str) -> None:
        world, judge = self._world, self._judge
        pool = Pool(name, world.scenario.slots, world.now_ms)
        self.engine = engine = ToyEngine(
            world, name, lambda jobs: judge.went_down(pool, jobs), lambda: judge.calls_changed(pool)
        )
        pool.engine = engine

        def open_worker(url: str, room: WorkerSlots) -> Worker:
            place = self._places[url]
            observer = world.observer(name, lambda event: judge.told(pool, place.name, event))
            worker = _JudgedWorker(place.open(name), engine, world.clock, name, room=room, observer=observer)
            worker.judge, worker.pool, worker.place = judge, pool, place.name
            return worker

        workers = WorkerPool(
            UrlList(list(self._places)),
            open_worker,
            WorkerSlots(engine, world.scenario.worker),
            world.clock,
            heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
            observer=world.observer(name),
        )
        judge.pools[name] = pool
        try:
            run_workers(workers, StopAt(world.scheduler), world.rng, LOOPS)
        except Killed:
            if name not in world.killed:
                raise  # it is the simulation that ends
            world.count("fault: process killed")
        except EngineDown as error:
            if engine.failure is None:
                raise world.fail(rules.SURVIVES, f"{name} ends though its engine is up: {error}") from error
            world.count("event: pool ended with its engine")
        except Exception as error:
            raise world.fail(rules.SURVIVES, f"{name} ends: {type(error).__name__}: {error}") from error
        finally:
            del judge.pools[name]
