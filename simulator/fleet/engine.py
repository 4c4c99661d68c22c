"""An engine whose tasks take virtual time, and fail where their dataset is poison or their worker sick."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from lithify.base.errors import Cancelled, EngineError, LithifyError
from lithify.engine.ports import ArgumentT, ResultT
from simulator.fleet.shelves import Task
from simulator.fleet.world import World

_MIN_TASK_MS = 300
_SICK_MS = 200


@dataclass(slots=True, eq=False)
class _Call:
    job: str
    future: Future[Any]


class ToyEngine:
    """The engine of one worker (`lithify.engine.ports.Engine`)."""

    def __init__(self, world: World, slots: int, *, is_sick: bool) -> None:
        self._world = world
        self._slots = slots
        self._is_sick = is_sick
        self._calls: list[_Call] = []

    @property
    def slots(self) -> int:
        return self._slots

    @property
    def failure(self) -> LithifyError | None:
        return None

    def check(self) -> None:
        """It is always there."""

    def start(self) -> None:
        """There is nothing to start."""

    def submit(
        self, job: str, function: Callable[[ArgumentT], ResultT], argument: ArgumentT
    ) -> Future[ResultT]:
        assert isinstance(argument, Task)
        call = _Call(job, Future())
        self._calls.append(call)
        most_ms = _SICK_MS if self._is_sick else self._world.scenario.max_task_ms
        duration_ms = self._world.rng.randint(min(_MIN_TASK_MS, most_ms), most_ms)
        self._world.scheduler.spawn(lambda: self._end(call, argument), duration_ms)
        return call.future

    def cancel(self, job: str) -> None:
        for call in [call for call in self._calls if call.job == job]:
            self._calls.remove(call)
            call.future.set_exception(Cancelled(f"{job} was cancelled"))

    def close(self) -> None:
        for job in {call.job: None for call in self._calls}:
            self.cancel(job)

    def _end(self, call: _Call, task: Task) -> None:
        if call not in self._calls:
            return
        self._calls.remove(call)
        place = self._world.places[task.shelf]
        if self._is_sick or place.plan.is_poisoned:
            self._world.count("event: task failed")
            call.future.set_exception(EngineError("it fails always"))
        else:
            number = self._world.rng.randrange(1 << 30)
            call.future.set_result(place.made(task, number))
