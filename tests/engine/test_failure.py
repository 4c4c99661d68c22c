"""One sentence out of Spark's error messages."""

from __future__ import annotations

import pytest

from lithify.engine.failure import MAX_CAUSE_CHARS, essential_cause

PYTHON = """An error occurred while calling o41.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times, \
most recent failure: Lost task 0.3 in stage 1.0 (TID 4) (localhost executor driver): \
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()
  File "task.py", line 9, in run
    raise KeyError(1)
KeyError: 1

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "task.py", line 11, in run
    raise ValueError("no such colour")
ValueError: no such colour

\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)
\t... 3 more

Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.fail(DAGScheduler.scala:1)
Caused by: java.lang.Error: not this
"""
LOST = """An error occurred while calling o41.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times, \
most recent failure: Lost task 0.3 in stage 1.0 (TID 4) (10.0.0.7 executor 3): \
ExecutorLostFailure (executor 3 exited \
caused by one of the running tasks) Reason: Command exited with code 137
Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.fail(DAGScheduler.scala:1)
"""
MISSING = """Traceback (most recent call last):
  File "serializers.py", line 1, in loads
ModuleNotFoundError: No module named 'lithify'
"""


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (PYTHON, "ValueError: no such colour"),
        (
            LOST,
            "ExecutorLostFailure (executor 3 exited caused by one of the running tasks) "
            "Reason: Command exited with code 137",
        ),
        (
            MISSING,
            "ModuleNotFoundError: No module named 'lithify' "
            "(install the package that holds lithify where Spark runs its tasks)",
        ),
        ("\n\n  Connection refused \nmore\n", "Connection refused"),
        ("", "Spark gave no reason"),
        ("Traceback (most recent call last):\n", "Traceback (most recent call last):"),
    ],
)
def test_essential_cause(message: str, expected: str) -> None:
    assert essential_cause(message) == expected


def test_cause_is_short() -> None:
    assert len(essential_cause("x" * 10_000)) == MAX_CAUSE_CHARS
