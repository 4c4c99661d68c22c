"""An engine without Spark, for tests and for the simulator.

1. `submit` queues the call. Unless `stepped`, the call runs at once, in the calling thread.
2. A stepped engine runs one queued call at each `step`. The seed chooses the call, so that every order of
   completion is possible and reproducible.
3. Before a call runs, `faults` returns its fault.
4. Functions, arguments and results are checked and pickled exactly as for Spark, so that whatever Spark could
   not send fails here too, and no state is shared by accident.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from typing import Any

from lithify.base.errors import Cancelled, EngineDown, EngineError, LithifyError
from lithify.engine.ports import ArgumentT, ResultT
from lithify.engine.task import Limits, decode_outcome, encode_request, run_attempt

_LIMITS = Limits(max_attempts=1, time_limit_s=3600.0)


class TaskFault(Enum):
    """A fault of one call."""

    NONE = "none"
    FAIL_BEFORE = "fail before"
    """The task never runs; the future ends with `EngineError`."""
    FAIL_AFTER = "fail after"
    """The task runs to its end, but its result is lost; the future ends with `EngineError`."""
    ENGINE_DOWN = "engine down"
    """The engine is lost while it runs the call; the future ends with `EngineDown`, and the next call
    runs."""
    RUN_TWICE = "run twice"
    """The task runs twice, as after a lost executor; the second result is delivered."""


@dataclass(frozen=True, slots=True)
class SubmittedCall:
    job: str
    function: Callable[[Any], Any]
    argument: Any


def no_faults(call: SubmittedCall) -> TaskFault:
    return TaskFault.NONE


class InlineEngine:
    """Runs calls in this process (`lithify.engine.ports.Engine`)."""

    def __init__(
        self,
        slots: int = 2,
        *,
        stepped: bool = False,
        seed: int = 0,
        faults: Callable[[SubmittedCall], TaskFault] = no_faults,
    ) -> None:
        self._slots = slots
        self._stepped = stepped
        self._random = random.Random(seed)
        self._faults = faults
        self._waiting: list[tuple[SubmittedCall, bytes, Future[Any]]] = []
        self._is_closed = False
        self.failure: LithifyError | None = None
        """Set this to end every call with it."""
        self.submitted: list[SubmittedCall] = []
        """Every call ever submitted, in order."""
        self.cancelled: list[str] = []
        """Every job ever cancelled, in order."""

    @property
    def slots(self) -> int:
        return self._slots

    def check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def start(self) -> None:
        """Do nothing."""

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def submit(
        self, job: str, function: Callable[[ArgumentT], ResultT], argument: ArgumentT
    ) -> Future[ResultT]:
        if self._is_closed:
            raise EngineError(f"the engine is closed and runs no call of {job}")
        call = SubmittedCall(job, function, argument)
        self.submitted.append(call)
        future: Future[ResultT] = Future()
        try:
            request = encode_request(function, argument, _LIMITS)
        except EngineError as error:
            future.set_exception(error)
            return future
        self._waiting.append((call, request, future))
        if not self._stepped:
            self.run_all()
        return future

    def step(self) -> bool:
        """Run one waiting call. Return `False` if there is none."""
        if not self._waiting:
            return False
        call, request, future = self._waiting.pop(self._random.randrange(len(self._waiting)))
        if future.set_running_or_notify_cancel():
            try:
                result = self._run(call, request)
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(result)
        return True

    def run_all(self) -> None:
        while self.step():
            pass

    def cancel(self, job: str) -> None:
        self.cancelled.append(job)
        gone = [entry for entry in self._waiting if entry[0].job == job]
        self._waiting = [entry for entry in self._waiting if entry[0].job != job]
        for _, _, future in gone:
            if future.set_running_or_notify_cancel():
                future.set_exception(Cancelled(f"{job} was cancelled"))

    def close(self) -> None:
        self._is_closed = True
        for job in {call.job for call, _, _ in self._waiting}:
            self.cancel(job)

    def _run(self, call: SubmittedCall, request: bytes) -> Any:
        if self.failure is not None:
            raise self.failure
        fault = self._faults(call)
        if fault is TaskFault.ENGINE_DOWN:
            raise EngineDown(f"injected: the engine was lost while it ran a task of {call.job}")
        if fault is TaskFault.FAIL_BEFORE:
            raise EngineError(f"injected: a task of {call.job} never started")
        outcome = run_attempt(request, 0)
        if fault is TaskFault.FAIL_AFTER:
            raise EngineError(f"injected: the result of a task of {call.job} was lost")
        if fault is TaskFault.RUN_TWICE:
            outcome = run_attempt(request, 1)
        return decode_outcome(outcome)
