"""Records of commits are kept beside the work: from the events alone, and whatever becomes of the store."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Iterator

import pytest

from lithify.base import events
from lithify.base.errors import StoreError
from lithify.base.ids import RandomIds
from lithify.coordination.commit_records import CommitRecord, CommitRecords
from lithify.mirror import commit_recording
from lithify.mirror.commit_recording import Recorder
from lithify.store.metered import RequestOutcome, Verb
from lithify.testing import ManualClock, MemoryStore, WrappedStore

URL = "s3://bucket/db"
C, D = (RandomIds(random.Random(n)).ulid(n) for n in (1, 2))
DAY_MS = 86_400_000


def finished(compaction: str = C, read: int = 100) -> events.Event:
    return events.RangeFinished(URL, compaction, 0, read, read, 40, 1, 1, 0.5, {"rows_in": 9, "expired": 2})


class Bench:
    """A recorder, and what it has written once it is closed."""

    def __init__(self, *, coordinates: bool = True, store: MemoryStore | WrappedStore | None = None) -> None:
        self.clock = ManualClock(1_700_000_000_000)
        self.store = store if store is not None else MemoryStore(self.clock)
        self.records = CommitRecords(self.store, "db/lithify")
        self.recorder = Recorder(self.clock, keep_ms=10 * DAY_MS)
        self.recorder.follow(URL, self.records, coordinates=coordinates, counted_as="given")

    def play(self, *happened: events.Event) -> None:
        for event in happened:
            self.recorder(event)
            self.clock.advance_s(1)

    def written(self) -> tuple[CommitRecord, ...]:
        self.recorder.close()
        return self.records.newest()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.recorder.close()


def test_a_commit_with_all_that_it_took(bench: Bench) -> None:
    count = bench.recorder.counting("given")
    for verb in (Verb.GET, Verb.GET, Verb.PUT):
        count(verb, RequestOutcome.OK)
    bench.play(
        events.Submitted(URL, C, "8 L0 SSTs", 200, "root"),
        events.Claimed(URL, C, "w"),
        finished(),
        events.AttemptFailed(URL, C, "disk on fire"),
        events.Claimed(URL, C, "w"),
        finished(),
        events.Compacted(URL, C, 2),
        events.Committed(URL, C, "root"),
        events.Committed("s3://other/db", D, "root"),
    )
    (found,) = bench.written()
    assert found == CommitRecord(
        C,
        1_700_000_007_000,
        True,
        unit="root",
        reason="8 L0 SSTs",
        workers=("w",),
        bytes_read=200,
        bytes_written=80,
        rows={"rows_in": 18, "expired": 4},
        ranges=2,
        seconds=4.0,
        cpu_seconds=1.0,
        requests={"GET": 2, "PUT": 1},
    )


def test_who_works_elsewhere_leaves_what_it_did_for_who_commits() -> None:
    store = MemoryStore(ManualClock())
    there = Bench(coordinates=False, store=store)
    there.play(events.Claimed(URL, C, "w"), finished(), events.GivenBack(URL, C, "w", 3))
    there.play(events.Claimed(URL, D, "w"), events.Lost(URL, D, "w"))
    assert there.written() == ()
    assert len(list(store.list("db/lithify/history"))) == 1, "nothing was done for the other"
    here = Bench(store=store)
    here.clock.advance_s(60)
    here.play(events.Committed(URL, C, "root"), events.Committed(URL, D, "root"))
    first, second = sorted(here.written(), key=lambda record: record.compaction)
    assert (first.workers, first.bytes_read, first.seconds, first.unit) == (("w",), 100, 2.0, "root")
    assert (second.workers, second.bytes_read, second.reason) == ((), 0, "")


def test_a_dataset_that_is_forgotten_is_followed_anew(bench: Bench) -> None:
    """Of a fleet many come and go."""
    recorder = Recorder(bench.clock, keep_ms=10 * DAY_MS)
    recorder.follow(URL, bench.records, coordinates=True)
    recorder.counting(URL)(Verb.GET, RequestOutcome.OK)
    recorder.forget(URL)
    recorder.forget("s3://bucket/never followed")
    recorder(events.Committed(URL, C, "all"))
    recorder.follow(URL, bench.records, coordinates=True)
    recorder.counting(URL)(Verb.PUT, RequestOutcome.OK)
    recorder(events.Committed(URL, D, "all"))
    recorder.close()
    assert [(r.compaction, r.requests) for r in bench.records.newest()] == [(D, {"PUT": 1})]


def test_what_is_refused_or_given_up_leaves_nothing(bench: Bench) -> None:
    bench.play(
        events.Claimed(URL, C, "w"), finished(), events.CompactionRefused(URL, C, "its inputs are gone")
    )
    bench.play(events.Claimed(URL, D, "w"), finished(D), events.Failed(URL, D, 5, "disk on fire"))
    assert list(bench.store.list("db")) == []
    assert bench.written() == ()


def test_what_is_too_old_goes_with_the_first_and_then_once_a_day(bench: Bench) -> None:
    now_ms = bench.clock.now_ms()
    for age_days in (9, 11):
        bench.records.add(CommitRecord(D, now_ms - age_days * DAY_MS, True))
    swept = threading.Event()
    sweep = bench.records.sweep

    def told(before_ms: int) -> int:
        found = sweep(before_ms)
        swept.set()
        return found

    bench.records.sweep = told  # type: ignore[method-assign]
    bench.play(events.Committed(URL, C, "root"))
    assert swept.wait(10)
    assert [record.at_ms for record in bench.records.newest()] == [now_ms - 9 * DAY_MS, now_ms]


class Broken(WrappedStore):
    """Cannot be written, or hangs for ever."""

    def __init__(self, clock: ManualClock, hangs: threading.Event | None = None) -> None:
        super().__init__(MemoryStore(clock))
        self.hangs = hangs

    def put(self, key: str, data: bytes) -> None:
        if self.hangs is not None:
            self.hangs.wait(60)
        raise StoreError("access denied")


def test_a_store_that_cannot_be_written_disturbs_nobody_and_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(store=Broken(ManualClock()))
    with caplog.at_level(logging.WARNING):
        bench.play(events.Committed(URL, C, "root"), events.Committed(URL, D, "root"))
        assert bench.written() == ()
    assert [record.getMessage() for record in caplog.records] == [
        "records of commits cannot be written: access denied"
    ]


def test_a_store_that_hangs_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_recording, "MAX_WAITING", 3)
    hangs = threading.Event()
    bench = Bench(store=Broken(ManualClock(), hangs))
    for _ in range(10):
        bench.play(events.Committed(URL, C, "root"))
    assert len(bench.recorder._waiting) <= 3
    bench.recorder.close(limit_s=0.01)
    hangs.set()


def test_what_is_remembered_is_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_recording, "MAX_KNOWN", 2)
    ids = RandomIds()
    for n in range(5):
        bench.recorder(events.Claimed(URL, ids.ulid(n), "w"))
    assert len(bench.recorder._known) == 2
