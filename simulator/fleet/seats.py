"""Coordinators and workers: one process after the other in each seat, with the loops of
`lithify.api.fleet_serving`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from lithify.api.fleet_serving import LEAST_PAUSE_S, PAUSE_S, PULSE_LOOK_S
from lithify.base.errors import LithifyError
from lithify.coordination.leadership import Leadership
from lithify.datasets.kind import DatasetPort
from lithify.fleet.catalog.model import DatasetRule
from lithify.fleet.coordinator import FleetCoordinator, FleetCoordinatorPorts
from lithify.fleet.members import FleetRole, new_member_name
from lithify.fleet.watched_dataset import WatchPorts
from lithify.fleet.worker import FleetWorker, FleetWorkerPorts, NoSource
from lithify.protocol.attempts import Attempt
from lithify.protocol.proposal import Plan
from lithify.protocol.transitions import AnyCompaction
from lithify.service.coordinator import Coordinator, CountAttempts
from lithify.service.slots import WorkerSlots
from lithify.service.worker import Worker
from lithify.service.worker_pool import WorkerPool
from lithify.testing.faulty import Crash
from simulator.fleet import rules
from simulator.fleet.admission_rules import JudgedChoice, JudgedQueues
from simulator.fleet.engine import ToyEngine
from simulator.fleet.judge import Judge
from simulator.fleet.scenario import COORDINATOR, LOOPS, WORKER, WorkerPlan
from simulator.fleet.shelves import Shelf
from simulator.fleet.world import Process, World

_RESTART_MS = 10_000
_WAIT_MS = 1_000


class Seat:
    """Processes of one kind that follow each other."""

    kind: str

    def __init__(self, world: World, judge: Judge) -> None:
        self._world = world
        self._judge = judge
        self.process: Process | None = None
        """The one that lives."""
        self.is_wanted = True
        """Else the one that lives leaves, and none follows until it is."""

    def run(self) -> None:
        """One process after the other."""
        world = self._world
        while True:
            if not self.is_wanted:
                world.scheduler.sleep_ms(_WAIT_MS)
                continue
            process = self.process = world.process_of(self.kind)
            try:
                self._live(process)
                world.count(f"event: {self.kind} leaves")
            except Crash:
                pass
            except Exception as error:
                text = f"{process.name} ends: {type(error).__name__}: {error}"
                raise world.fail(rules.SURVIVES, text) from error
            finally:
                process.is_dead, self.process = True, None
            world.scheduler.sleep_ms(world.rng.randint(1, _RESTART_MS))

    def kill(self) -> None:
        """It dies at its next call, and tells nobody."""
        if self.process is not None:
            self.process.log("is killed")
            self.process.is_dead = True

    def _live(self, process: Process) -> None:
        raise NotImplementedError

    def _named(self, process: Process, role: FleetRole) -> str:
        process.member = new_member_name(role, process.ids.ulid(process.clock.now_ms()))
        process.log(f"is {process.member}")
        return process.member

    def _beat_beside(self, process: Process, beat: Callable[[], None]) -> None:
        """Let it say that it lives beside its rounds, for as long as it does."""

        def loop() -> None:
            with suppress(Crash):
                while not process.is_dead:
                    process.clock.sleep_s(PULSE_LOOK_S)
                    try:
                        beat()
                    except LithifyError as error:
                        process.log(f"cannot say that it lives: {error}")

        self._world.scheduler.spawn(loop)

    def _made(self, process: Process, make: Callable[[], Any]) -> Any:
        """As soon as the store lets it start."""
        while True:
            try:
                return make()
            except LithifyError as error:
                process.log(f"cannot start: {error}")
                process.clock.sleep_s(PAUSE_S)


class CoordinatorSeat(Seat):
    """Coordinators."""

    kind = "coordinator"

    def _live(self, process: Process) -> None:
        coordinator: FleetCoordinator = self._made(process, lambda: self._coordinator(process))
        self._judge.coordinators[process.member] = coordinator
        self._judge.processes[process.member] = process
        self._beat_beside(process, coordinator.beat)
        while self.is_wanted:
            self._judge.ticks[process.member] += 1
            try:
                pause_s = max(LEAST_PAUSE_S, coordinator.tick())
            except LithifyError as error:
                process.log(f"{type(error).__name__}: {error}")
                pause_s = PAUSE_S
            process.clock.sleep_s(pause_s)
        try:
            coordinator.close()
        except LithifyError as error:
            process.log(f"cannot leave in order: {error}")

    def _coordinator(self, process: Process) -> FleetCoordinator:
        name = self._named(process, FleetRole.COORDINATOR)
        coordinator = FleetCoordinator(name, self._ports(process, name))
        coordinator._queues = JudgedQueues(
            name, process.clock, self._judge.fail, partial(self._judge.check_owner, name)
        )
        return coordinator

    def _ports(self, process: Process, name: str) -> FleetCoordinatorPorts:
        world, judge = self._world, self._judge

        def opened(url: str, rule: DatasetRule) -> Shelf:
            return world.by_url[url].open(process)

        def coordinator(
            dataset: DatasetPort, rule: DatasetRule, admit: Callable[[Plan], Plan], counts: CountAttempts
        ) -> Coordinator:
            def judged(compaction: AnyCompaction, attempts: Sequence[Attempt]) -> int:
                counted = counts(compaction, attempts)
                judge.counted(process, dataset.url, attempts, counted)
                return counted

            return Coordinator(
                dataset,
                process.clock,
                process.ids,
                admit=admit,
                counts=judged,
                options=COORDINATOR,
                observer=world.observer(process.name),
            )

        done: list[tuple[str, int | None]] = []

        def collect(url: str, rule: DatasetRule) -> None:
            world.count("event: collects")
            judge.collected(url)
            done.append((url, None))

        def take_done() -> tuple[tuple[str, int | None], ...]:
            ended = tuple(done)
            done.clear()
            return ended

        watch = WatchPorts(
            opened,
            coordinator,
            lambda dataset: Leadership(dataset, process.clock, process.ids, name),
            process.clock,
            LOOPS,
            world.observer(process.name),
        )
        return FleetCoordinatorPorts(
            process.files,
            watch,
            lambda rule: list(world.by_url),
            collect,
            process.clock,
            "host",
            "0.1.0",
            looks_at_once=world.scenario.looks_at_once,
            collected=take_done,
        )


class WorkerSeat(Seat):
    """Workers."""

    kind = "worker"

    def __init__(self, world: World, judge: Judge, plan: WorkerPlan) -> None:
        super().__init__(world, judge)
        self.plan = plan

    def _live(self, process: Process) -> None:
        engine = ToyEngine(self._world, self.plan.slots, is_sick=self.plan.is_sick)
        try:
            self._work(process, engine)
        finally:
            engine.close()

    def _work(self, process: Process, engine: ToyEngine) -> None:
        ports = self._ports(process, engine)
        worker: FleetWorker = self._made(process, lambda: self._begun(process, ports))
        self._judge.workers[process.member] = worker
        self._judge.processes[process.member] = process
        self._judge.plans[process.member] = self.plan
        self._beat_beside(process, worker.beat)
        while self.is_wanted and not worker.is_over:
            pause_s = LEAST_PAUSE_S
            try:
                if not worker.tick():
                    pause_s = max(LEAST_PAUSE_S, worker.due_in_s())
                self._judge.ticked(worker)
            except LithifyError as error:
                process.log(f"{type(error).__name__}: {error}")
                pause_s = PAUSE_S
            if worker.idle_s:
                process.clock.sleep_s(pause_s)
            else:
                worker.wait(min(pause_s, LOOPS.commit_compacted_interval_s))
        try:
            worker.close()
        except LithifyError as error:
            process.log(f"cannot leave in order: {error}")

    def _begun(self, process: Process, ports: FleetWorkerPorts) -> FleetWorker:
        worker, judge = FleetWorker(process.member, ports, self.plan.queues), self._judge
        worker._choice = JudgedChoice(
            process.member,
            self.plan.slots,
            judge.fail,
            partial(judge.reserved, process.member),
            partial(judge.may_lose, self.plan),
            judge.tally,
        )
        worker.start()
        return worker

    def _ports(self, process: Process, engine: ToyEngine) -> FleetWorkerPorts:
        world = self._world
        name = self._named(process, FleetRole.WORKER)

        def open_worker(url: str, room: WorkerSlots) -> Worker:
            dataset = world.by_url[url].open(process)
            return Worker(
                dataset, engine, process.clock, name, room=room, observer=world.observer(process.name)
            )

        pool = WorkerPool(
            NoSource(),
            open_worker,
            WorkerSlots(engine, WORKER),
            process.clock,
            heartbeat_interval_ms=WORKER.heartbeat_interval_ms,
            observer=world.observer(process.name),
        )
        return FleetWorkerPorts(process.files, pool, process.clock, "host", "0.1.0")
