"""Which failures of a task are final, and which are left to Spark to retry."""

from __future__ import annotations

import signal
import time
import traceback
from pathlib import Path

import pytest

from lithify.base.errors import CorruptObject, EngineError, StoreError
from lithify.engine.task import Limits, decode_outcome, encode_request, run_attempt
from tests.engine import tasks

LIMITS = Limits(max_attempts=3, time_limit_s=60)


def test_result() -> None:
    assert decode_outcome(run_attempt(encode_request(tasks.double, 4, LIMITS), 0)) == 8


def test_a_timer_of_the_process_goes_on_after_a_task() -> None:
    """The watchdog of a test runner is one."""
    rang: list[int] = []
    previous = signal.signal(signal.SIGALRM, lambda number, _: rang.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        run_attempt(encode_request(tasks.double, 4, LIMITS), 0)
        deadline_s = time.monotonic() + 10
        while not rang and time.monotonic() < deadline_s:
            time.sleep(0.01)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert rang == [signal.SIGALRM]


@pytest.mark.parametrize("attempt", [0, 1, 2])
def test_final_error_is_an_outcome_on_every_attempt(tmp_path: Path, attempt: int) -> None:
    outcome = run_attempt(encode_request(tasks.fail_corrupt, str(tmp_path), LIMITS), attempt)
    with pytest.raises(CorruptObject):
        decode_outcome(outcome)


def test_store_error_is_raised_until_the_last_attempt(tmp_path: Path) -> None:
    request = encode_request(tasks.fail_store_always, str(tmp_path), LIMITS)
    for attempt in (0, 1):
        with pytest.raises(StoreError):
            run_attempt(request, attempt)
    outcome = run_attempt(request, 2)
    with pytest.raises(StoreError):
        decode_outcome(outcome)


def test_foreign_error_is_raised_until_the_last_attempt() -> None:
    request = encode_request(tasks.fail_foreign, "odd", LIMITS)
    with pytest.raises(EngineError, match="ValueError: odd") as caught:
        run_attempt(request, 1)
    assert any("fail_foreign" in note for note in caught.value.__notes__)
    outcome = run_attempt(request, 2)
    with pytest.raises(EngineError, match=r"^ValueError: odd"):
        decode_outcome(outcome)


def test_what_spark_logs_of_a_failed_attempt_shows_no_secret() -> None:
    """It writes the error with its causes and notes to the log of the executor."""
    request = encode_request(tasks.fail_with_cause, "http://user:hunter2-canary@host", LIMITS)
    with pytest.raises(StoreError, match="@host") as caught:
        run_attempt(request, 0)
    shown = "".join(traceback.format_exception(caught.value))
    assert "fail_with_cause" in shown
    assert "hunter2-canary" not in shown


def local_function(value: int) -> int:
    return value


local_function.__module__ = "__main__"


@pytest.mark.parametrize("function", [lambda value: value, local_function, "text".upper])
def test_only_importable_functions_travel(function: object) -> None:
    with pytest.raises(EngineError, match="top-level function"):
        encode_request(function, 1, LIMITS)  # type: ignore[arg-type]  # a table
