"""Garbage collection beside a coordinator: its thread ends with it, and its failures stay its own."""

from __future__ import annotations

import random
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from lithify.base.clock import SystemClock
from lithify.base.errors import StoreError
from lithify.base.events import Event, GarbageCollected
from lithify.base.ids import RandomIds
from lithify.config.sections import CollectionSettings
from lithify.datasets.slatedb.garbage.collector import garbage_collector
from lithify.datasets.slatedb.settings import GarbageCollectorSettings
from lithify.service.coordinator import Coordinator
from lithify.service.loops import run_coordinator
from lithify.service.managed_dataset import collecting
from tests.compacting import check_state_files, dataset_at
from tests.engine.waiting import wait_until
from tests.judge.official import open_db
from tests.test_service import QUICK, leadership_on, running, worker_on, write_and_wait

TIMEOUT_S = 120


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
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, defects: list[str]
) -> None:
    monkeypatch.setattr("lithify.service.managed_dataset.MIN_WAIT_S", 0.0)
    collector = Scripted(StoreError("the store is away"), ValueError("a mistake"), None)
    with collecting(collector):
        assert collector.done.wait(TIMEOUT_S)
    assert collector.thread is not None
    assert collector.thread is not threading.current_thread()
    assert not collector.thread.is_alive()
    assert "the store is away" in caplog.text
    assert "a mistake" in caplog.text
    assert "ValueError" in defects.pop()


def test_the_thread_ends_with_the_block_however_long_it_would_wait() -> None:
    collector = Scripted(None)
    with collecting(collector):
        assert collector.done.wait(TIMEOUT_S)
    assert collector.thread is not None
    assert not collector.thread.is_alive()


def test_no_collector_needs_no_thread() -> None:
    with collecting(None):
        assert "lithify-gc" not in {thread.name for thread in threading.enumerate()}


def test_nothing_is_lost_when_a_coordinator_collects_at_once_what_it_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lithify.service.managed_dataset.MIN_WAIT_S", 0.01)
    path = tmp_path / "db"
    at_once = CollectionSettings(interval=timedelta(milliseconds=20), min_age=timedelta(0))
    settings = GarbageCollectorSettings(
        manifest_options=at_once,
        wal_options=at_once,
        compacted_options=at_once,
        compactions_options=at_once,
        detach_options=at_once,
        lithify_options=at_once,
    )
    events: list[Event] = []
    dataset = dataset_at(path)
    collector = garbage_collector(
        dataset, SystemClock(), RandomIds(), settings=settings, observer=events.append
    )

    def serve(stop: threading.Event) -> None:
        run_coordinator(
            Coordinator(dataset_at(path, checkpoint_lifetime_s=1), SystemClock(), RandomIds()),
            leadership_on(path),
            stop,
            random.Random(1),
            QUICK,
            worker=worker_on(path),
            collector=collector,
        )

    model: dict[bytes, bytes] = {}
    with open_db(path) as database:
        database.put(b"first", b"row")
        model[b"first"] = b"row"
        database.flush()
        with running(serve):
            for _ in range(3):
                model |= write_and_wait(database, path)
                assert dict(database.scan()) == model
            wait_until(lambda: len(list((path / "manifest").glob("*.manifest"))) == 1)
        assert database.get_many(model) == model
    deleted = [e.deleted for e in events if isinstance(e, GarbageCollected) and not e.dry_run]
    assert sum(counts["compactions"] for counts in deleted) > 5
    assert sum(counts["wal"] for counts in deleted) > 5
    assert sum(counts["compacted"] for counts in deleted) > 5
    check_state_files(dataset_at(path), path)
    with open_db(path) as database:
        assert dict(database.scan()) == model
