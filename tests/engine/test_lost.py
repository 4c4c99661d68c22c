"""Cancelling while one session has been lost and the next is being opened."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from lithify.base.errors import Cancelled, EngineDown
from lithify.engine import spark
from lithify.engine.session import Session
from lithify.engine.spark import SparkEngine
from tests.engine.waiting import wait_until

LIMIT_S = 120.0


class Doomed:
    """A session with a place for two calls; each ends with the session when it is told to."""

    max_attempts = 1

    def __init__(self) -> None:
        self.ends = [threading.Event(), threading.Event()]
        self._left = iter(self.ends)

    def slots(self) -> int:
        return 2

    def run(self, request: bytes, *, tag: str, pool: str, description: str) -> bytes:
        assert next(self._left).wait(LIMIT_S)
        raise EngineDown("it is gone")

    def interrupt(self, tag: str) -> None: ...

    def is_over(self) -> bool:
        return True

    def close(self) -> None: ...


def test_a_cancellation_does_not_end_with_the_failure_of_another_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    doomed, is_cancelling = Doomed(), threading.Event()

    def sessions() -> Iterator[Session]:
        yield doomed
        assert is_cancelling.wait(LIMIT_S)
        raise EngineDown("no master answers")

    opened = sessions()
    with SparkEngine("local[2]") as engine, ThreadPoolExecutor(1) as thread:
        monkeypatch.setattr(engine, "_open", lambda: next(opened))
        calls = [engine.submit("job", abs, -n) for n in range(2)]
        wait_until(lambda: all(call.running() for call in calls))
        doomed.ends[0].set()
        wait_until(lambda: any(call.done() for call in calls))
        engine.start()
        cancelling = thread.submit(engine.cancel, "job")
        is_cancelling.set()
        wait_until(lambda: engine.failure is not None)
        doomed.ends[1].set()
        cancelling.result(LIMIT_S)
        assert {type(call.exception(LIMIT_S)) for call in calls} == {EngineDown, Cancelled}


def test_who_closes_waits_only_so_long_for_a_session_that_never_starts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As one that imports what a signal has interrupted the import of."""
    never = threading.Event()
    monkeypatch.setattr(spark, "CLOSE_LIMIT_S", 0.1)
    engine = SparkEngine("local[1]")
    monkeypatch.setattr(engine, "_open", lambda: never.wait(LIMIT_S))
    call = engine.submit("job", abs, -1)
    with caplog.at_level("WARNING", logger="lithify"):
        engine.close()
    assert "has not started within" in caplog.text
    with pytest.raises(Cancelled):
        call.result(LIMIT_S)
    never.set()
