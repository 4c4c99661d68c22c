"""Garbage collection beside a coordinator: its thread ends with it, and its failures stay its own."""

from __future__ import annotations

import threading

import pytest

from lithify.collection import collecting
from lithify.errors import StoreError

TIMEOUT_S = 30


class Scripted:
    """A collector whose ticks raise what they are told to."""

    def __init__(self, *script: Exception | None) -> None:
        self._script = list(script)
        self.done = threading.Event()
        self.thread: threading.Thread | None = None

    def tick(self) -> float:
        self.thread = threading.current_thread()
        step = self._script.pop(0)
        if not self._script:
            self.done.set()
        if step is not None:
            raise step
        return self.wait_s()

    def wait_s(self) -> float:
        return 0.0 if self._script else float("inf")


def test_failures_are_logged_and_the_next_tick_comes(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lithify.collection.MIN_WAIT_S", 0.0)
    collector = Scripted(StoreError("the store is away"), ValueError("a mistake"), None)
    with collecting(collector):
        assert collector.done.wait(TIMEOUT_S)
    assert collector.thread is not None
    assert collector.thread is not threading.current_thread()
    assert not collector.thread.is_alive()
    assert "the store is away" in caplog.text
    assert "a mistake" in caplog.text


def test_the_thread_ends_with_the_block_however_long_it_would_wait() -> None:
    collector = Scripted(None)
    with collecting(collector):
        assert collector.done.wait(TIMEOUT_S)
    assert collector.thread is not None
    assert not collector.thread.is_alive()


def test_no_collector_needs_no_thread() -> None:
    before = threading.active_count()
    with collecting(None):
        assert threading.active_count() == before
