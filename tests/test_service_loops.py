"""What the loops do around the ticks: in which turn, with which pauses, and what they let go of at the end.
The parts are stand-ins that note their calls."""

from __future__ import annotations

import logging
import random
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, cast

import pytest

from lithify.base.errors import CorruptObject, Fenced, LostOwnership, Refused, StoreError, StoreUnavailable
from lithify.base.ids import RandomIds
from lithify.config.model import ServiceSettings, WorkerSettings
from lithify.coordination.leadership import Term
from lithify.protocol.lease import LOOK_AFTER_MS
from lithify.protocol.model import Compaction, Ledger
from lithify.protocol.proposal import Plan
from lithify.protocol.transitions import AnyCompaction
from lithify.service.coordinator import TickResult
from lithify.service.coordinator_view import CoordinatorView
from lithify.service.loops import run_coordinator, run_workers
from lithify.service.options import WorkerOptions
from lithify.service.slots import WorkerSlots
from lithify.testing.engine import InlineEngine
from tests.pools import pool_of

if TYPE_CHECKING:
    from lithify.base.clock import Clock
    from lithify.coordination.leadership import Leadership
    from lithify.service.coordinator import Coordinator
    from lithify.service.worker import Worker

SETTINGS = ServiceSettings(
    poll_interval=timedelta(seconds=5),
    commit_compacted_interval=timedelta(seconds=2),
    worker=WorkerSettings(compactions_poll_interval=timedelta(seconds=7)),
)


@dataclass
class Notes(threading.Event):
    """What was called, in order. As an event it notes each wait, does not wait, and is set in the end."""

    waits: int
    calls: list[str] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.calls.append("wait")
        self.waits_s.append(timeout)
        if len(self.waits_s) == self.waits:
            self.set()
        return self.is_set()


@dataclass
class NotedClock:
    """Sleeps as little as the event waits, and notes it there."""

    notes: Notes

    def monotonic_s(self) -> float:
        return float(sum(self.notes.waits_s))

    def sleep_s(self, duration_s: float) -> None:
        self.notes.wait(duration_s)


@dataclass
class SomeWorker:
    notes: Notes
    id: str
    is_busy: bool = False
    changes: int = 0
    """In how many ticks something changes."""
    error: BaseException | None = None
    """What every tick, and giving back, ends with."""
    room: WorkerSlots = field(default_factory=lambda: WorkerSlots(InlineEngine(), WorkerOptions()))

    @property
    def url(self) -> str:
        return f"memory:///{self.id}"

    @property
    def pending(self) -> tuple[()]:
        return ()

    @property
    def has_work(self) -> bool:
        return False

    def look(self, seen: CoordinatorView | None = None) -> bool:
        self.notes.calls.append(f"{self.id} ticks")
        if self.error is not None:
            raise self.error
        self.changes -= 1
        return self.changes >= 0

    tick = look

    def take_failures(self) -> tuple[()]:
        return ()

    def wait(self, timeout_s: float) -> None:
        self.notes.wait(timeout_s)

    def release(self) -> None:
        self.notes.calls.append(f"{self.id} gives back")
        if self.error is not None:
            raise self.error


@dataclass
class SomeCoordinator:
    notes: Notes
    active: list[bool]
    is_refused: bool = False
    error: BaseException | None = None
    """What every other tick ends with, the first one among them."""

    def start(self, term: Term) -> None:
        self.notes.calls.append(f"starts with epoch {term.epoch} after {term.predecessor}")
        if self.is_refused:
            raise Refused("not this one")

    def tick(self, *, is_known: bool = False) -> TickResult:
        self.notes.calls.append("tick")
        if self.error is not None and self.notes.calls.count("tick") % 2:
            raise self.error
        compaction: AnyCompaction = Compaction(RandomIds().ulid(1), "spec")
        return TickResult(CoordinatorView(Ledger(3, (compaction,) * self.active.pop(0)), None), Plan())


@dataclass
class SomeLeadership:
    notes: Notes

    @contextmanager
    def acquire(self, **policy: object) -> Iterator[Term]:
        self.notes.calls.append("acquires")
        try:
            yield Term(3, "the one before")
        finally:
            self.notes.calls.append("resigns")

    def renew(self) -> None:
        self.notes.calls.append("renews")


def work(notes: Notes, *workers: SomeWorker) -> None:
    pool = pool_of(*cast("list[Worker]", workers), clock=cast("Clock", NotedClock(notes)))
    run_workers(pool, notes, random.Random(1), SETTINGS)


def coordinate(
    notes: Notes,
    active: list[bool],
    worker: SomeWorker | None = None,
    error: BaseException | None = None,
    *,
    is_refused: bool = False,
    settings: ServiceSettings = SETTINGS,
) -> None:
    run_coordinator(
        cast("Coordinator", SomeCoordinator(notes, active, is_refused, error)),
        cast("Leadership", SomeLeadership(notes)),
        notes,
        random.Random(1),
        settings,
        worker=cast("Worker", worker),
    )


@dataclass
class AwayAtFirst(SomeLeadership):
    """Its store is away, for the first tries."""

    tries: int

    @contextmanager
    def acquire(self, **policy: object) -> Iterator[Term]:
        self.tries -= 1
        if self.tries >= 0:
            raise StoreUnavailable(f"refused after {self.tries} ms", "connection refused")
        with super().acquire(**policy) as term:
            yield term


@pytest.mark.parametrize("waits", [2, 4])
def test_a_store_that_is_away_at_the_start_is_waited_for(
    waits: int, caplog: pytest.LogCaptureFixture
) -> None:
    notes = Notes(waits)
    coordinator = cast("Coordinator", SomeCoordinator(notes, [False] * 9))
    leadership = cast("Leadership", AwayAtFirst(notes, 3))
    run_coordinator(coordinator, leadership, notes, random.Random(1), SETTINGS)
    assert notes.waits_s[: min(waits, 3)] == [SETTINGS.poll_interval_s] * min(waits, 3)
    assert ("resigns" in notes.calls) == (waits > 3)
    assert len(caplog.records) == 1


def test_an_outage_is_said_once_however_its_errors_differ(caplog: pytest.LogCaptureFixture) -> None:
    class Away(SomeCoordinator):
        def tick(self, *, is_known: bool = False) -> TickResult:
            self.notes.calls.append("tick")
            raise StoreUnavailable(f"after {len(self.notes.calls)} ms", "connection refused")

    notes = Notes(5)
    leadership = cast("Leadership", SomeLeadership(notes))
    run_coordinator(cast("Coordinator", Away(notes, [])), leadership, notes, random.Random(1), SETTINGS)
    assert notes.calls.count("tick") == 5
    assert len(caplog.records) == 1


def test_each_round_begins_with_another_dataset() -> None:
    notes = Notes(3)
    work(notes, SomeWorker(notes, "a"), SomeWorker(notes, "b"))
    a, b = "a ticks", "b ticks"
    assert notes.calls == [a, b, "wait", b, a, "wait", a, b, "wait", "b gives back", "a gives back"]
    assert all(7 <= wait_s <= 7.7 for wait_s in notes.waits_s)
    assert len(set(notes.waits_s)) == 3


def test_what_was_full_looks_again_at_once_when_there_is_room() -> None:
    notes = Notes(1)
    work(notes, SomeWorker(notes, "a"), SomeWorker(notes, "b", changes=1))
    a, b = "a ticks", "b ticks"
    assert notes.calls == [a, b, b, a, "wait", "a gives back", "b gives back"]


def test_a_busy_worker_looks_as_often_as_work_is_committed() -> None:
    notes = Notes(2)
    work(notes, SomeWorker(notes, "a", is_busy=True), SomeWorker(notes, "b"))
    assert notes.waits_s == [2, 2]


def test_a_coordinator_holds_its_lease_and_looks_more_often_while_something_is_active() -> None:
    notes = Notes(4)
    coordinate(notes, [False, True, True, False])
    rounds = ["renews", "tick", "wait"] * 4
    start = ["acquires", "starts with epoch 3 after the one before"]
    assert notes.calls == [*start, *rounds, "resigns"]
    expected = [5, 2, 2, 5]
    assert all(low <= wait_s <= low * 1.1 for low, wait_s in zip(expected, notes.waits_s, strict=True))
    assert all(len(set(pair)) == 2 for pair in ((notes.waits_s[0], notes.waits_s[3]), notes.waits_s[1:3]))


def test_a_coordinator_that_looks_rarely_keeps_its_lease_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lithify.service.managed_dataset.JITTER", 0.0)
    notes = Notes(100)
    coordinate(notes, [False] * 20, settings=ServiceSettings(poll_interval=timedelta(seconds=50)))
    assert 0.08 < notes.calls.count("tick") / len(notes.waits_s) < 0.13
    assert notes.calls[2:6] == ["renews", "tick", "wait", "renews"]
    assert max(notes.waits_s) * 1000 < LOOK_AFTER_MS
    assert sum(notes.waits_s[:9]) == 50


def test_an_embedded_worker_gives_back_before_the_lease_ends() -> None:
    notes = Notes(1)
    coordinate(notes, [False], SomeWorker(notes, "w"))
    assert notes.calls[2:] == [
        "renews",
        "tick",
        "w ticks",
        "wait",
        "w gives back",
        "resigns",
    ]


def test_a_coordinator_that_cannot_start_resigns() -> None:
    notes = Notes(1)
    with pytest.raises(Refused):
        coordinate(notes, [], SomeWorker(notes, "w"), is_refused=True)
    assert notes.calls[2:] == ["w gives back", "resigns"]


FORESEEN = [
    CorruptObject("manifest/1", "is damaged"),
    Refused("no"),
    StoreError("gone"),
    LostOwnership("late"),
]
UNFORESEEN = [
    OverflowError("int too large"),
    KeyError("x"),
    AssertionError(),
    MemoryError(),
    struct.error("short"),
]


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What is said without asking for more."""
    return [record.getMessage() for record in caplog.records if record.levelno > logging.DEBUG]


@pytest.mark.parametrize("error", [*FORESEEN, *UNFORESEEN], ids=lambda error: type(error).__name__)
def test_what_one_dataset_ends_a_round_with_does_not_keep_the_others(
    error: Exception, defects: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    notes = Notes(2)
    work(notes, SomeWorker(notes, "a"), SomeWorker(notes, "b", error=error))
    a, b = "a ticks", "b ticks"
    assert notes.calls == [a, b, "wait", b, a, "wait", "a gives back", "b gives back"]
    (said,) = told(caplog)
    assert "could not release" in said
    assert len(defects) == (3 if error in UNFORESEEN else 0)
    assert all("Traceback" in text for text in defects)
    defects.clear()


@pytest.mark.parametrize("error", [*FORESEEN, *UNFORESEEN], ids=lambda error: type(error).__name__)
def test_what_ends_every_round_of_an_embedded_worker_is_said_once(
    error: Exception, defects: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    notes = Notes(4)
    coordinate(notes, [False] * 4, SomeWorker(notes, "w", error=error))
    assert notes.calls.count("tick") == notes.calls.count("w ticks") == 4
    failed, not_given_back = told(caplog)
    assert "retries" in failed
    assert "could not release" in not_given_back
    defects.clear()


@pytest.mark.parametrize("error", [*FORESEEN, *UNFORESEEN], ids=lambda error: type(error).__name__)
def test_a_coordinator_tries_again_whatever_a_round_ends_with(
    error: Exception, defects: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    notes = Notes(4)
    coordinate(notes, [False, True], error=error)
    assert notes.calls[2:] == [*["renews", "tick", "wait"] * 4, "resigns"]
    assert len(told(caplog)) == 2
    assert len(defects) == (2 if error in UNFORESEEN else 0)
    defects.clear()


def test_a_fenced_coordinator_ends() -> None:
    notes = Notes(4)
    with pytest.raises(Fenced):
        coordinate(notes, [], error=Fenced("another one"))
    assert notes.calls[-2:] == ["tick", "resigns"]


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), SystemExit(3)], ids=lambda error: type(error).__name__
)
def test_an_interrupt_is_no_error_to_go_on_after(error: BaseException) -> None:
    notes = Notes(2)
    with pytest.raises(type(error)):
        work(notes, SomeWorker(notes, "b", error=error))
    with pytest.raises(type(error)):
        coordinate(Notes(2), [], error=error)
