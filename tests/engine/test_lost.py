"""Cancelling while one session has been lost and the next is being opened."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from lithify.base.errors import Cancelled, EngineDown, EngineError
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
        self.closed = threading.Event()

    def slots(self) -> int:
        return 2

    def run(self, request: bytes, *, tag: str, pool: str, description: str) -> bytes:
        assert next(self._left).wait(LIMIT_S)
        raise EngineDown("it is gone")

    def interrupt(self, tag: str) -> None: ...

    def is_over(self) -> bool:
        return True

    def close(self) -> None:
        self.closed.set()


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
    never, late = threading.Event(), Doomed()

    def open_late() -> Session:
        assert never.wait(LIMIT_S)
        return late

    monkeypatch.setattr(spark, "CLOSE_LIMIT_S", 0.1)
    engine = SparkEngine("local[1]")
    monkeypatch.setattr(engine, "_open", open_late)
    call = engine.submit("job", abs, -1)
    with caplog.at_level("WARNING", logger="lithify"):
        engine.close()
    assert "has not started within" in caplog.text
    with pytest.raises(Cancelled):
        call.result(LIMIT_S)
    never.set()
    assert late.closed.wait(LIMIT_S), "if it starts after all, it is closed"


def test_a_closed_engine_opens_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for a call either that was taken before, and lost its session."""
    opened: list[Session] = []

    def open_session() -> Session:
        opened.append(Doomed())
        return opened[-1]

    engine = SparkEngine("local[1]")
    monkeypatch.setattr(engine, "_open", open_session)
    engine.close()
    engine.start()
    assert isinstance(engine._start().exception(LIMIT_S), EngineError)
    assert not opened


def test_a_call_that_waits_for_the_next_session_is_cancelled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    doomed, is_over = Doomed(), threading.Event()

    def sessions() -> Iterator[Session]:
        yield doomed
        assert is_over.wait(LIMIT_S)
        raise EngineDown("no master answers")

    opened = sessions()
    with SparkEngine("local[1]") as engine:
        monkeypatch.setattr(engine, "_open", lambda: next(opened))
        first = engine.submit("first", abs, -1)
        wait_until(first.running)
        doomed.ends[0].set()
        assert isinstance(first.exception(LIMIT_S), EngineDown)
        second = engine.submit("second", abs, -1)
        wait_until(second.running)
        engine.cancel("second")
        assert second.done()
        assert isinstance(second.exception(), Cancelled)
        is_over.set()


def test_a_call_that_does_not_end_is_not_said_to_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark, "_CANCEL_ATTEMPTS", 2)
    doomed = Doomed()
    with SparkEngine("local[1]") as engine:
        monkeypatch.setattr(engine, "_open", lambda: doomed)
        call = engine.submit("job", abs, -1)
        wait_until(call.running)
        engine._lose(doomed, "it is gone")
        with pytest.raises(EngineError, match="still runs"):
            engine.cancel("job")
        doomed.ends[0].set()
        assert isinstance(call.exception(LIMIT_S), Cancelled)


def test_all_jobs_are_cancelled_at_the_end_though_one_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark, "_CANCEL_ATTEMPTS", 2)
    doomed = Doomed()

    def close() -> None:
        for end in doomed.ends:
            end.set()

    monkeypatch.setattr(doomed, "close", close)
    engine = SparkEngine("local[1]")
    monkeypatch.setattr(engine, "_open", lambda: doomed)
    calls = [engine.submit("stuck", abs, -1) for _ in range(2)]
    wait_until(lambda: all(call.running() for call in calls))
    calls += [engine.submit(job, abs, -1) for job in ("stuck", "other")]
    with pytest.raises(EngineError, match="still runs"):
        engine.close()
    assert all(isinstance(call.exception(LIMIT_S), Cancelled) for call in calls)
