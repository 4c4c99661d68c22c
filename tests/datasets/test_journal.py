"""The journal as objects: what is written is read, what is foreign or cut short counts as absent."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lithify.base.ids import MAX_ULID_MS, RandomIds
from lithify.coordination.sidecar import MAX_NOTE_BYTES, REPORT_INTERVAL_S, MovementReporter, ObjectJournal
from lithify.protocol.attempts import MAX_FAILURES, Attempt, FailedAttempt, Movement
from lithify.store.keys import join
from lithify.testing import CountingStore, FaultyStore, ManualClock, MemoryStore, StoreFault, Verb

CLOCK = ManualClock()
IDS = RandomIds(random.Random(1))
ID, OTHER = sorted(IDS.ulid(CLOCK.now_ms()) for _ in range(2))


def journal_of(store: MemoryStore | CountingStore, root: str = "db") -> ObjectJournal:
    return ObjectJournal(store, join(root, "lithify"), CLOCK, IDS)


@pytest.mark.parametrize("root", ["", "db", "a/b"])
def test_entries_lie_under_the_folder_that_no_other_program_knows(root: str) -> None:
    store = MemoryStore()
    journal = journal_of(store, root)
    journal.add_attempt(ID, Attempt("w", "broke", 1))
    journal.add_failure(FailedAttempt(ID, "broke", 1, 1, "spec"))
    journal.note_finished(ID, "w", ["x"])
    MovementReporter(journal.reporting(ID, 0, "w", 1), store, CLOCK, IDS).report(1, 2)
    keys = [meta.key for meta in store.list("")]
    assert len(keys) == 4
    assert all(key.startswith(f"{root}/lithify/".lstrip("/")) for key in keys)


@given(st.text(), st.text(), st.integers(0, MAX_ULID_MS))
def test_what_is_written_is_read(worker: str, reason: str, at_ms: int) -> None:
    store = MemoryStore()
    journal = journal_of(store)
    journal.add_attempt(ID, Attempt(worker, reason, at_ms))
    journal.add_failure(FailedAttempt(ID, reason, 3, at_ms, "spec"))
    journal.note_finished(ID, worker, ["b", "a"])
    journal.note_finished(ID, worker, ["b", "a", "c"])
    journal.note_finished(ID, worker + "'", ["d"])
    fresh = journal_of(store)
    assert fresh.attempts() == {ID: (Attempt(worker, reason, at_ms),)}
    assert fresh.failures() == (FailedAttempt(ID, reason, 3, at_ms, "spec"),)
    assert fresh.finished(ID) == {"a", "b", "c", "d"}
    assert fresh.finished(OTHER) == frozenset()


def test_attempts_are_counted_by_compaction_oldest_first() -> None:
    journal = journal_of(MemoryStore())
    for at_ms in (3, 1, 2):
        journal.add_attempt(ID, Attempt("w", "broke", at_ms))
    journal.add_attempt(OTHER, Attempt("w", "broke", 9))
    attempts = journal.attempts()
    assert [a.at_ms for a in attempts[ID]] == [1, 2, 3]
    assert len(attempts[OTHER]) == 1


def test_what_is_written_once_is_read_once() -> None:
    store = CountingStore(MemoryStore())
    journal = journal_of(store)
    journal.add_attempt(ID, Attempt("w", "broke", 1))
    journal.attempts()
    before = store.requests[Verb.GET]
    assert len(journal.attempts()[ID]) == 1
    assert store.requests[Verb.GET] == before


def test_clearing_takes_all_of_one_compaction_but_its_failure() -> None:
    store = MemoryStore()
    journal = journal_of(store)
    for compaction in (ID, OTHER):
        journal.add_attempt(compaction, Attempt("w", "broke", 1))
        journal.note_finished(compaction, "w", ["x"])
        MovementReporter(journal.reporting(compaction, 0, "w", 1), store, CLOCK, IDS).report(1, 2)
    journal.add_failure(FailedAttempt(ID, "broke", 1, 1, "spec"))
    assert journal.compactions() == {ID, OTHER}
    journal.clear(ID)
    assert journal.compactions() == {OTHER}
    assert (journal.movements(ID), journal.finished(ID), journal.attempts().get(ID)) == (
        {},
        frozenset(),
        None,
    )
    assert [failure.compaction for failure in journal.failures()] == [ID]
    journal.forgive(ID)
    assert journal.failures() == ()


def test_only_the_newest_failures_are_kept() -> None:
    journal = journal_of(MemoryStore())
    ids = [IDS.ulid(CLOCK.now_ms()) for _ in range(MAX_FAILURES + 3)]
    for at_ms, compaction in enumerate(ids):
        journal.add_failure(FailedAttempt(compaction, "broke", 1, at_ms, "spec"))
    assert [failure.compaction for failure in journal.failures()] == ids[3:]


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"1", b'{"index": "x"}', b"\xff", b"[" * 100_000])
def test_what_cannot_be_read_counts_as_absent(data: bytes) -> None:
    store = MemoryStore()
    journal = journal_of(store)
    for name in (f"progress/{ID}/0-x.json", f"progress/{ID}/finished-x.json", f"attempts/{ID}/x.json"):
        store.put(f"db/lithify/{name}", data)
    store.put(f"db/lithify/failures/{ID}.json", data)
    store.put("db/lithify/attempts/no-ulid/x.json", b'{"worker": "w", "reason": "r", "at_ms": 1}')
    assert (journal.movements(ID), journal.finished(ID)) == ({}, frozenset())
    assert (journal.attempts(), journal.failures()) == ({}, ())
    assert journal.compactions() == {ID}


NOTES = (
    (
        f"progress/{ID}/0-x.json",
        {"index": 0, "worker": "w", "claimed_at_ms": 1, "bytes_read": 2, "bytes_written": 3, "at_ms": 4},
    ),
    (f"attempts/{ID}/x.json", {"worker": "w", "reason": "r", "at_ms": 1, "recorded": 0}),
    (f"failures/{ID}.json", {"compaction": ID, "reason": "r", "attempts": 1, "at_ms": 1, "spec": "s"}),
)
NO_NUMBERS = ("1e999", "-1e999", "NaN", "-1", "1.5", '"1"', "true", "null", "[]", "9" * 300, str(1 << 63))


@pytest.mark.parametrize("number", NO_NUMBERS)
@pytest.mark.parametrize(
    ("name", "field"),
    [(name, field) for name, note in NOTES for field, value in note.items() if isinstance(value, int)],
)
def test_a_number_that_nobody_counts_to_makes_a_note_absent(name: str, field: str, number: str) -> None:
    store = MemoryStore()
    note = dict(NOTES)[name]
    store.put(f"db/lithify/{name}", json.dumps(note).encode())
    fresh = journal_of(store)
    assert len(fresh.movements(ID)) + len(fresh.attempts()) + len(fresh.failures()) == 1
    store.put(f"db/lithify/{name}", json.dumps(note | {field: "here"}).replace('"here"', number).encode())
    fresh = journal_of(store)
    assert (fresh.movements(ID), fresh.attempts(), fresh.failures()) == ({}, {}, ())


def test_half_a_character_can_be_shown() -> None:
    store = MemoryStore()
    store.put(f"db/lithify/attempts/{ID}/x.json", rb'{"worker": "w", "reason": "\ud800", "at_ms": 1}')
    ((attempt,),) = journal_of(store).attempts().values()
    assert attempt.reason == "\ufffd"


def test_a_huge_object_is_not_read() -> None:
    store = CountingStore(MemoryStore())
    journal = journal_of(store)
    journal.add_attempt(ID, Attempt("w", "broke", 1))
    store.put(f"db/lithify/attempts/{OTHER}/x.json", bytes(MAX_NOTE_BYTES + 1))
    before = store.requests[Verb.GET]
    assert list(journal.attempts()) == [ID]
    assert store.requests[Verb.GET] == before + 1


def test_movements_are_written_at_once_and_then_only_while_bytes_move() -> None:
    store, clock = CountingStore(MemoryStore()), ManualClock()
    journal = journal_of(store)
    reporter = MovementReporter(journal.reporting(ID, 7, "w", 5), store, clock, IDS)

    def reported() -> list[tuple[int, int]]:
        return [(m.bytes_read, m.bytes_written) for m in journal.movements(ID).values()]

    assert reporter.is_due()
    reporter.report(0, 0)
    assert reported() == [(0, 0)]
    assert not reporter.is_due()
    clock.advance_s(REPORT_INTERVAL_S)
    assert reporter.is_due()
    reporter.report(10, 5)
    writes = store.requests[Verb.PUT]
    clock.advance_s(REPORT_INTERVAL_S)
    reporter.report(10, 5)
    assert store.requests[Verb.PUT] == writes
    ((name, movement),) = journal.movements(ID).items()
    assert name.startswith("7-")
    assert movement == Movement(7, "w", 5, 10, 5, movement.at_ms)
    reporter.close()
    assert journal.movements(ID) == {}


def test_two_runs_of_one_task_report_apart() -> None:
    store = MemoryStore()
    journal = journal_of(store)
    for read in (1, 2):
        MovementReporter(journal.reporting(ID, 0, "w", 5), store, CLOCK, IDS).report(read, 0)
    assert sorted(m.bytes_read for m in journal.movements(ID).values()) == [1, 2]


def test_a_report_that_fails_is_made_up_for_by_the_next() -> None:
    inner = MemoryStore()
    journal = journal_of(inner)
    store = FaultyStore.scripted(inner, {1: StoreFault.FAIL_BEFORE})
    reporter = MovementReporter(journal.reporting(ID, 0, "w", 5), store, CLOCK, IDS)
    reporter.report(4, 0)
    assert journal.movements(ID) == {}
    reporter.report(4, 0)
    assert len(journal.movements(ID)) == 1
