"""An engine whose tasks take virtual time, fail where their unit is poisoned, and end when it goes down."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from lithify.base.errors import Cancelled, EngineDown, EngineError, LithifyError
from lithify.engine.ports import ArgumentT, ResultT
from simulator.several.places import ToyTask, toy
from simulator.several.world import World

_MIN_TASK_MS = 500


@dataclass(slots=True, eq=False)
class _Call:
    job: str
    future: Future[Any]


class ToyEngine:
    """The engine of one pool (`lithify.engine.ports.Engine`). `tell_down` is told of which compactions
    it ended tasks when it went down and none had failed before, `tell_calls` whenever their number has
    changed."""

    def __init__(
        self,
        world: World,
        name: str,
        tell_down: Callable[[frozenset[str]], None],
        tell_calls: Callable[[], None],
    ) -> None:
        self._world = world
        self._name = name
        self._tell_down = tell_down
        self._tell_calls = tell_calls
        self._calls: list[_Call] = []
        self._failed: set[str] = set()
        """Compactions with a task that failed."""
        self._failure: LithifyError | None = None
        self.ended_ms: int | None = None
        """When it went down for good."""

    @property
    def slots(self) -> int:
        return self._world.scenario.slots - self._world.scenario.is_spare

    @property
    def failure(self) -> LithifyError | None:
        return self._failure

    @property
    def running(self) -> frozenset[str]:
        """Compactions with tasks that have not ended."""
        return frozenset(call.job for call in self._calls)

    def check(self) -> None:
        """It is there when its process starts."""

    def start(self) -> None:
        """There is nothing to start."""

    def submit(
        self, job: str, function: Callable[[ArgumentT], ResultT], argument: ArgumentT
    ) -> Future[ResultT]:
        assert isinstance(argument, ToyTask)
        call = _Call(job, Future())
        if self._failure is not None:
            call.future.set_exception(self._failure)
            return call.future
        self._calls.append(call)
        self._failed.discard(job)
        self._tell_calls()
        duration_ms = self._world.rng.randint(_MIN_TASK_MS, self._world.scenario.max_task_ms)
        self._world.scheduler.spawn(lambda: self._end(call, argument), duration_ms)
        return call.future

    def cancel(self, job: str) -> None:
        for call in [call for call in self._calls if call.job == job]:
            self._calls.remove(call)
            call.future.set_exception(Cancelled(f"{job} was cancelled"))
        self._tell_calls()

    def close(self) -> None:
        for job in sorted(self.running):
            self.cancel(job)

    def kill(self) -> None:
        """Its process is gone, and its tasks with it; nobody is told."""
        self._calls = []

    def go_down(self, *, for_good: bool) -> None:
        """All that runs ends; for good, or until the next call opens it again."""
        error = EngineDown(f"the engine of {self._name} is gone")
        if for_good:
            self._failure, self.ended_ms = error, self._world.now_ms
        self._tell_down(self.running - self._failed)
        calls, self._calls = self._calls, []
        for call in calls:
            call.future.set_exception(error)
        self._tell_calls()

    def _end(self, call: _Call, task: ToyTask) -> None:
        if call not in self._calls:
            return
        self._calls.remove(call)
        if task.is_poisoned:
            self._failed.add(call.job)
            call.future.set_exception(EngineError("poison"))
        else:
            call.future.set_result(toy(task))
        self._tell_calls()
