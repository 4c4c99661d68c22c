"""The engine on a classic local session."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from pathlib import Path

import pytest

from lithify.base.errors import Cancelled, CorruptObject, EngineError, LithifyError, StoreError
from lithify.engine.spark import SparkEngine
from lithify.engine.task import MAX_MESSAGE_BYTES
from tests.engine import tasks
from tests.engine.waiting import LIMIT_S, is_alive, noted_pids, wait_until


def test_results_come_back_to_their_own_futures(spark_engine: SparkEngine) -> None:
    futures = [spark_engine.submit(f"job-{i % 3}", tasks.double, i) for i in range(20)]
    assert [future.result(LIMIT_S) for future in futures] == [2 * i for i in range(20)]


def test_tasks_run_in_other_processes_that_are_used_again(spark_engine: SparkEngine) -> None:
    pids = {spark_engine.submit("where", tasks.process_of, i).result(LIMIT_S) for i in range(4)}
    assert len(pids) <= spark_engine.slots
    assert all(is_alive(pid) for pid in pids)


def test_final_error_comes_back_as_itself_after_one_attempt(
    spark_engine: SparkEngine, tmp_path: Path
) -> None:
    with pytest.raises(CorruptObject, match="bad checksum") as caught:
        spark_engine.submit("corrupt", tasks.fail_corrupt, str(tmp_path)).result(LIMIT_S)
    assert caught.value.name == "db/manifest/1"
    assert tasks.attempts(tmp_path) == 1
    assert any("fail_corrupt" in note for note in caught.value.__notes__)


def test_store_error_is_retried(spark_engine: SparkEngine, tmp_path: Path) -> None:
    future = spark_engine.submit("blink", tasks.fail_store_once, str(tmp_path))
    assert future.result(LIMIT_S) == "second attempt"


def test_store_error_of_the_last_attempt_comes_back_as_itself(
    spark_engine: SparkEngine, tmp_path: Path
) -> None:
    with pytest.raises(StoreError, match="the bucket is gone"):
        spark_engine.submit("gone", tasks.fail_store_always, str(tmp_path)).result(LIMIT_S)
    assert tasks.attempts(tmp_path) == 4


@pytest.mark.parametrize(
    ("function", "argument", "message"),
    [
        (tasks.fail_foreign, "no such colour", r"^ValueError: no such colour"),
        (tasks.fail_unpicklable, "holds a lock", r"^holds a lock"),
        (tasks.a_lock, 0, r"the result of .*a_lock cannot be pickled"),
        (tasks.many_bytes, MAX_MESSAGE_BYTES, r"the result of .*many_bytes has \d+ bytes"),
    ],
)
def test_other_failures_become_an_engine_error_of_one_sentence(
    spark_engine: SparkEngine, function: object, argument: object, message: str
) -> None:
    with pytest.raises(LithifyError, match=message) as caught:
        spark_engine.submit("foreign", function, argument).result(LIMIT_S)  # type: ignore[arg-type]  # a table
    assert type(caught.value) is EngineError
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("function", "argument", "message"),
    [
        (lambda value: value, 1, "top-level function"),
        (tasks.double, threading.Lock(), "cannot be pickled"),
        (tasks.many_bytes, b"x" * MAX_MESSAGE_BYTES, "make the range smaller"),
    ],
)
def test_what_should_not_travel_is_refused(
    spark_engine: SparkEngine, function: object, argument: object, message: str
) -> None:
    with pytest.raises(EngineError, match=message):
        spark_engine.submit("refused", function, argument).result(LIMIT_S)  # type: ignore[arg-type]  # a table


def test_task_whose_process_is_killed_runs_again(spark_engine: SparkEngine, tmp_path: Path) -> None:
    future = spark_engine.submit("killed", tasks.kill_worker_once, str(tmp_path))
    assert future.result(LIMIT_S) == "survived"
    assert tasks.attempts(tmp_path) == 2


def test_task_whose_process_always_dies_is_given_up(spark_engine: SparkEngine, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="crashed") as caught:
        spark_engine.submit("poison", tasks.kill_worker_always, str(tmp_path)).result(LIMIT_S)
    assert tasks.attempts(tmp_path) == 4
    assert "\n" not in str(caught.value)
    assert spark_engine.submit("after", tasks.double, 1).result(LIMIT_S) == 2


@pytest.mark.parametrize("in_kernel", [False, True])
def test_cancel_stops_running_and_queued_calls_of_one_job(
    spark_engine: SparkEngine, tmp_path: Path, in_kernel: bool
) -> None:
    doomed: list[Future[int]] = [
        spark_engine.submit("doomed", tasks.spin_in_kernel, str(tmp_path))
        if in_kernel
        else spark_engine.submit("doomed", tasks.sleep_noted, (str(tmp_path), 120.0))
        for _ in range(6)
    ]
    wait_until(lambda: len(noted_pids(tmp_path)) == spark_engine.slots)
    other = spark_engine.submit("other", tasks.double, 21)

    spark_engine.cancel("doomed")

    assert all(future.done() for future in doomed)
    for future in doomed:
        with pytest.raises(Cancelled):
            future.result(0)
    assert other.result(LIMIT_S) == 42
    wait_until(lambda: not any(is_alive(pid) for pid in noted_pids(tmp_path)))
    # The same name may be used again, as when a released compaction is claimed once more.
    assert spark_engine.submit("doomed", tasks.double, 3).result(LIMIT_S) == 6


def test_cancel_right_after_submit_reaches_calls_spark_has_not_seen_yet(
    spark_engine: SparkEngine, tmp_path: Path
) -> None:
    for round_number in range(3):
        futures = [
            spark_engine.submit(f"early-{round_number}", tasks.sleep_noted, (str(tmp_path), 120.0))
            for _ in range(3)
        ]
        time.sleep(0.01 * round_number)
        spark_engine.cancel(f"early-{round_number}")
        for future in futures:
            with pytest.raises(Cancelled):
                future.result(0)


def test_cancel_of_an_unknown_job_does_nothing(spark_engine: SparkEngine) -> None:
    spark_engine.cancel("never submitted")


def test_small_job_is_not_stuck_behind_a_large_one(spark_engine: SparkEngine, tmp_path: Path) -> None:
    large = [spark_engine.submit("large", tasks.sleep_noted, (str(tmp_path), 0.2)) for _ in range(30)]
    small = spark_engine.submit("small", tasks.double, 4)
    assert small.result(LIMIT_S) == 8
    assert sum(future.done() for future in large) < len(large) / 2
    spark_engine.cancel("large")


def test_nothing_is_started_before_the_first_call() -> None:
    engine = SparkEngine("local[3]", conf={"spark.driver.memory": "no such size"})
    assert engine.slots == 3
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.submit("late", tasks.double, 1)
    engine.close()


def test_second_classic_session_in_a_process_is_refused(spark_engine: SparkEngine) -> None:
    spark_engine.submit("first", tasks.double, 1).result(LIMIT_S)
    with SparkEngine("local[1]") as second, pytest.raises(EngineError, match="already has a Spark context"):
        second.submit("second", tasks.double, 1).result(LIMIT_S)
    assert spark_engine.submit("first", tasks.double, 2).result(LIMIT_S) == 4


def test_every_call_fails_where_spark_cannot_start() -> None:
    with SparkEngine("sc://:1") as engine:
        for _ in range(3):
            with pytest.raises(EngineError, match="is not a Spark Connect URL"):
                engine.submit("job", tasks.double, 1).result(LIMIT_S)
