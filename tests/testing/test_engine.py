"""The engine without Spark."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

import pytest

from lithify.base.errors import Cancelled, CorruptObject, EngineError
from lithify.engine.ports import Engine
from lithify.testing.engine import InlineEngine, SubmittedCall, TaskFault
from tests.engine import tasks


def test_calls_run_at_once() -> None:
    engine: Engine = InlineEngine(slots=3)
    assert engine.slots == 3
    assert engine.submit("job", tasks.double, 4).result(0) == 8


def test_errors_are_those_of_spark(tmp_path: Path) -> None:
    engine = InlineEngine()
    with pytest.raises(CorruptObject):
        engine.submit("job", tasks.fail_corrupt, str(tmp_path)).result(0)
    with pytest.raises(EngineError, match="ValueError: odd"):
        engine.submit("job", tasks.fail_foreign, "odd").result(0)
    with pytest.raises(EngineError, match="top-level function"):
        engine.submit("job", lambda value: value, 1).result(0)


@pytest.mark.parametrize("seed", [1, 2])
def test_stepped_order_depends_on_the_seed_only(seed: int) -> None:
    def order() -> list[int]:
        engine = InlineEngine(stepped=True, seed=seed)
        futures = {i: engine.submit("job", tasks.double, i) for i in range(10)}
        done: list[int] = []
        while engine.step():
            done += [i for i, future in futures.items() if future.done() and i not in done]
        return done

    assert order() == order()
    assert sorted(order()) == list(range(10))
    assert order() != list(range(10))


def test_cancel_ends_waiting_calls_of_one_job() -> None:
    engine = InlineEngine(stepped=True)
    doomed: list[Future[int]] = [engine.submit("doomed", tasks.double, i) for i in range(3)]
    other = engine.submit("other", tasks.double, 5)
    engine.cancel("doomed")
    for future in doomed:
        with pytest.raises(Cancelled):
            future.result(0)
    engine.run_all()
    assert other.result(0) == 10
    assert engine.cancelled == ["doomed"]


@pytest.mark.parametrize(
    ("fault", "attempts", "fails"),
    [
        (TaskFault.NONE, 1, False),
        (TaskFault.FAIL_BEFORE, 0, True),
        (TaskFault.FAIL_AFTER, 1, True),
        (TaskFault.RUN_TWICE, 2, False),
    ],
)
def test_faults(tmp_path: Path, fault: TaskFault, attempts: int, fails: bool) -> None:
    seen: list[SubmittedCall] = []

    def faults(call: SubmittedCall) -> TaskFault:
        seen.append(call)
        return fault

    engine = InlineEngine(faults=faults)
    future = engine.submit("job", tasks.note_attempt, str(tmp_path))
    assert (future.exception(0) is not None) is fails
    assert tasks.attempts(tmp_path) == attempts
    assert seen == engine.submitted


def test_closed_engine_cancels_what_waits_and_takes_no_more() -> None:
    engine = InlineEngine(stepped=True)
    waiting = engine.submit("job", tasks.double, 1)
    engine.close()
    engine.close()
    with pytest.raises(Cancelled):
        waiting.result(0)
    with pytest.raises(EngineError, match="closed"):
        engine.submit("job", tasks.double, 1)
