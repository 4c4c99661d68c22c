"""Records of commits: what is read is what was written, by whomever, and what is old goes."""

from __future__ import annotations

import json
import random

import pytest

from lithify.base.ids import RandomIds
from lithify.coordination.commit_records import CommitRecord, CommitRecords
from lithify.testing import ManualClock, MemoryStore

IDS = RandomIds(random.Random(5))
A, B, C = sorted(IDS.ulid(1_000 + n) for n in range(3))
COMMIT = CommitRecord(
    A,
    1_700_000_000_000,
    True,
    unit="root",
    reason="8 L0 SSTs",
    workers=("here",),
    bytes_read=100,
    bytes_written=40,
    rows={"rows_in": 10, "rows_out": 7, "superseded": 3},
    ranges=2,
    seconds=1.5,
    cpu_seconds=1.25,
    requests={"GET": 3, "PUT": 2},
)
WORK = CommitRecord(
    A, 1_699_999_999_000, False, workers=("there",), bytes_read=50, rows={"rows_in": 5}, ranges=1, seconds=2
)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(ManualClock())


@pytest.fixture
def records(store: MemoryStore) -> CommitRecords:
    return CommitRecords(store, "db/lithify")


def commit(at_ms: int, compaction: str = B) -> CommitRecord:
    return CommitRecord(RandomIds(random.Random(at_ms)).ulid(at_ms), at_ms, True, unit=compaction)


def test_what_was_written_is_read(records: CommitRecords) -> None:
    assert records.newest() == ()
    records.add(COMMIT)
    records.add(COMMIT)
    assert records.newest() == (COMMIT,)


def test_what_others_did_for_a_commit_is_added_to_it(records: CommitRecords) -> None:
    records.add(WORK)
    assert records.newest() == (), "it was not committed"
    records.add(COMMIT)
    (found,) = records.newest()
    assert (found.workers, found.bytes_read, found.ranges, found.seconds) == (("here", "there"), 150, 3, 3.5)
    assert found.rows == {"rows_in": 15, "rows_out": 7, "superseded": 3}
    assert (found.reason, found.at_ms) == (COMMIT.reason, COMMIT.at_ms)


def test_the_newest_and_those_since_a_time(records: CommitRecords) -> None:
    for at_ms in (5_000, 1_000, 4_000, 2_000, 3_000):
        records.add(commit(at_ms))
    assert [c.at_ms for c in records.newest()] == [1_000, 2_000, 3_000, 4_000, 5_000]
    assert [c.at_ms for c in records.newest(2)] == [4_000, 5_000]
    assert [c.at_ms for c in records.newest(since_ms=3_000)] == [3_000, 4_000, 5_000]
    assert [c.at_ms for c in records.newest(1, since_ms=3_000)] == [5_000]
    assert records.newest(0) == ()


def test_what_is_old_goes_and_nothing_else(records: CommitRecords, store: MemoryStore) -> None:
    for at_ms in (1_000, 2_000, 3_000):
        records.add(commit(at_ms))
    store.put("db/lithify/history/notes.txt", b"somebody's")
    assert records.sweep(2_000) == 1
    assert [c.at_ms for c in records.newest()] == [2_000, 3_000]
    assert store.get("db/lithify/history/notes.txt") == b"somebody's"


@pytest.mark.parametrize(
    "change",
    [
        {"bytes_read": -1},
        {"bytes_read": "many"},
        {"rows": {"rows_in": 1 << 70}},
        {"rows": []},
        {"workers": None},
        {"workers": [7]},
        {"seconds": -1},
        {"seconds": float("nan")},
        {"reason": 5},
        None,
    ],
)
def test_what_anybody_else_has_written_counts_as_absent(
    records: CommitRecords, store: MemoryStore, change: dict[str, object] | None
) -> None:
    records.add(COMMIT)
    (meta,) = store.list("db/lithify/history")
    fields = json.loads(store.get(meta.key))
    store.put(meta.key, json.dumps([] if change is None else fields | change).encode())
    assert records.newest() == ()
    store.put(meta.key, b"{" * 100_000)
    assert records.newest() == ()
    store.put(f"db/lithify/history/{9 * 10**12}-{A}-commit.json", b"{}")
    store.put("db/lithify/history/x.json", b"{}")
    assert records.newest() == ()
