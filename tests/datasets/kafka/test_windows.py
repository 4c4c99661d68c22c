"""Topics in a broker's bucket, compacted in their place while the broker is stopped."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

import pytest

from lithify.base.errors import Refused
from lithify.datasets.kafka.buckets import publishing
from lithify.datasets.kafka.format.codecs import BatchCodec
from lithify.datasets.kafka.layouts import objects
from lithify.datasets.kafka.settings import KafkaSettings
from lithify.store.wrapped import Call
from lithify.testing.faulty import Crash, FaultyStore, StoreFault
from tests.datasets.kafka import logs
from tests.datasets.kafka.buckets import NOW_MS, Bucket, Once, a_bucket
from tests.datasets.kafka.folders import latest
from tests.datasets.kafka.logs import Batch
from tests.parts import in_parts


def some(count: int = 30) -> list[Batch]:
    """Three keys that are written again and again, and one of each batch alone."""
    return [
        logs.data(3 * n, (f"k{n % 3}", f"v{n}"), (f"only {n}", "x"), (f"k{(n + 1) % 3}", f"w{n}"))
        for n in range(count)
    ]


def soon(**settings: str) -> KafkaSettings:
    return KafkaSettings.model_validate({"quiet_period": "0s", "delete_retention": "1s", **settings})


def test_small_objects_become_one_and_the_latest_map_and_offsets_stay() -> None:
    bucket = a_bucket(some())
    before, last = bucket.rows(), bucket.store.get(bucket.key(87))
    summary = bucket.compact()
    assert not summary.failures
    assert not summary.refused
    assert bucket.bases() == [0, 87]
    assert bucket.store.get(bucket.key(87)) == last
    after = bucket.rows()
    assert latest(after) == latest(before)
    assert [row for row in before if row in set(after)] == after
    assert len(after) == 35
    assert bucket.earliest_and_latest() == (0, 87)
    assert [row[0] for row in bucket.rows(start=50)] == [row[0] for row in after if row[0] >= 50]


def test_a_second_run_does_nothing() -> None:
    bucket = a_bucket(some())
    assert bucket.compact().started
    there = bucket.listed()
    assert not bucket.compact().started
    assert bucket.listed() == there
    found = bucket.opened()
    (note,) = found.propose(found.snapshot(), found.ledger()).notes  # type: ignore[arg-type]
    assert note == "orders-0: is compacted, and has not changed since"


def test_what_comes_later_is_compacted_with_the_rest() -> None:
    bucket = a_bucket(some(10))
    bucket.compact()
    bucket.produce(*some(40)[10:])
    before = bucket.rows()
    bucket.compact()
    assert bucket.bases() == [0, 117]
    assert latest(bucket.rows()) == latest(before)
    assert bucket.earliest_and_latest() == (0, 117)


@pytest.mark.parametrize("codec", list(BatchCodec))
def test_codecs(codec: BatchCodec) -> None:
    bucket = a_bucket([logs.data(n, ("a", f"{n}"), codec=codec) for n in range(20)])
    bucket.compact()
    assert bucket.bases() == [18 - 18, 19]
    data = bucket.store.get(bucket.key(0))
    assert data[22] & 7 == codec
    assert [row[0] for row in bucket.rows()] == [18, 19]


def test_merged_objects_are_no_larger_than_a_fetch_bears(monkeypatch: pytest.MonkeyPatch) -> None:
    """And pieces, chunks and tasks end wherever they do: the rows are the same."""
    monkeypatch.setattr(objects.ObjectTopic, "target_bytes", 700)
    monkeypatch.setattr(objects, "PIECE_BYTES", 900)
    monkeypatch.setattr(objects, "CHUNK_BYTES", 2500)
    bucket = a_bucket(some(60))
    before = bucket.rows()
    bucket.compact()
    assert 4 < len(bucket.listed()) < 30
    assert all(meta.size <= 760 for meta in bucket.listed())
    assert latest(bucket.rows()) == latest(before)
    assert bucket.earliest_and_latest() == (0, 177)


def test_objects_of_which_nothing_is_left_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ones, too: the log begins where something is left."""
    monkeypatch.setattr(objects, "CHUNK_OBJECTS", 5)
    bucket = a_bucket(logs.data(n, ("a", f"{n}")) for n in range(16))
    bucket.compact()
    assert bucket.bases() == [10, 15]
    assert [row[0] for row in bucket.rows()] == [14, 15]
    assert bucket.earliest_and_latest() == (10, 15)


def test_records_without_keys_stay() -> None:
    """Such a broker takes them, other than Kafka, whatever the policy of the topic."""
    bucket = a_bucket(logs.data(n, (None, f"{n}")) for n in range(20))
    bucket.compact()
    assert [row[0] for row in bucket.rows()] == list(range(20))
    assert bucket.bases() == [0, 19]


@pytest.mark.parametrize("policy", [None, "delete"])
def test_a_topic_that_is_no_map_is_refused(policy: str | None) -> None:
    bucket = a_bucket(some(), configs={} if policy is None else {"cleanup.policy": policy})
    before = bucket.contents()
    with pytest.raises(Refused, match=r"cleanup\.policy delete"):
        bucket.compact()
    assert bucket.contents() == before


def test_the_topics_own_settings_go_before_ours() -> None:
    bucket = a_bucket(
        [
            *some(3),
            logs.data(9, ("k0", None), time=NOW_MS - 1000),
            *[logs.data(10 + n, ("z", "1")) for n in range(20)],
        ],
        configs={"cleanup.policy": "compact", "min.compaction.lag.ms": "0", "delete.retention.ms": "5000"},
    )
    bucket.compact(
        bucket.opened(KafkaSettings.model_validate({"quiet_period": "0s", "min_compaction_lag": "9d"}))
    )
    assert bucket.bases() == [0, 29]
    assert b"k0" in [row[2] for row in bucket.rows()]
    bucket.clock.advance_s(6)
    bucket.compact()
    assert b"k0" not in [row[2] for row in bucket.rows()]


def test_a_tombstone_goes_in_a_later_run_than_what_it_deletes() -> None:
    bucket = a_bucket([logs.data(0, ("a", "1"), ("b", "1")), logs.data(2, ("a", None)), *some(20)[1:]])
    bucket.compact(bucket.opened(soon()))
    assert [row[3] for row in bucket.rows() if row[2] == b"a"] == [None]
    assert not bucket.compact(bucket.opened(soon())).started
    bucket.clock.advance_s(2)
    bucket.compact(bucket.opened(soon()))
    assert [row for row in bucket.rows() if row[2] == b"a"] == []
    assert [row[3] for row in bucket.rows() if row[2] == b"b"] == [b"1"]


def test_timestamps_survive_the_delete_horizon() -> None:
    bucket = a_bucket([logs.data(0, ("a", "1"), ("b", "1")), logs.data(2, ("a", None)), *some(20)[1:]])
    before = {row[0]: row[1] for row in bucket.rows()}
    bucket.compact()
    assert bucket.store.get(bucket.key(0))[22] & logs.HORIZON
    assert all(before[row[0]] == row[1] for row in bucket.rows())


def test_aborted_rows_go_and_committed_ones_stay_over_many_objects_interleaved() -> None:
    """What stays is in no transaction any more, markers go."""
    bucket = a_bucket(
        [
            logs.in_transaction(0, ("a", "committed"), id=1),
            logs.in_transaction(1, ("a", "aborted"), ("b", "aborted"), id=2),
            logs.in_transaction(3, ("c", "committed"), id=1),
            logs.marker(4, id=2, commit=False),
            logs.marker(5, id=1, commit=True),
            *[logs.data(6 + n, ("z", "1")) for n in range(20)],
        ]
    )
    bucket.compact()
    assert bucket.bases() == [0, 25]
    assert not bucket.store.get(bucket.key(0))[22] & logs.TRANSACTIONAL
    assert [row[3] for row in bucket.rows()] == [b"committed", b"committed", b"1", b"1"]


def test_an_open_transaction_bounds_the_run() -> None:
    """What lies above it, and the object before it, where the stable part ends, stay byte for byte. The
    broker knows of it before its objects are there."""
    epoch = {"state": "Begin", "produces": {"orders": {"0": {"offset_start": 20, "offset_end": 20}}}}
    bucket = a_bucket(
        (logs.data(n, ("a", f"{n}")) for n in range(40)),
        transactions={"tx": {"producer": 7, "epochs": {"0": epoch}}},
    )
    before = bucket.contents()
    bucket.compact()
    assert bucket.bases() == [0, *range(19, 40)]
    assert all(bucket.store.get(bucket.key(n)) == before[bucket.key(n)] for n in range(19, 40))
    assert bucket.earliest_and_latest() == (0, 39)


def test_a_transaction_without_a_marker_is_open_whatever_the_broker_says() -> None:
    bucket = a_bucket(
        [
            *[logs.data(n, ("a", f"{n}")) for n in range(20)],
            logs.in_transaction(20, ("t", "1"), id=3),
            *[logs.data(21 + n, ("a", f"{n}")) for n in range(9)],
        ]
    )
    before = bucket.contents()
    bucket.compact()
    assert bucket.contents() == before


def test_a_late_object_in_a_hole() -> None:
    """Nothing is merged over a hole, so what comes late lies in no span, and counts."""
    batches = [logs.data(n, ("a", f"{n}")) for n in range(30)]
    late = logs.data(10, ("b", "late"))
    bucket = a_bucket(batch for batch in batches if batch.first != 10)
    bucket.compact()
    assert bucket.bases() == [11, 29]
    bucket.produce(late)
    assert [row[0] for row in bucket.rows()] == [10, 28, 29]
    bucket.produce(*[logs.data(n, ("a", f"{n}")) for n in range(30, 60)])
    bucket.compact()
    assert (10, b"late") in [(row[0], row[3]) for row in bucket.rows()]
    assert latest(bucket.rows())[b"a"][0] == 59


@pytest.mark.parametrize("seed", range(6))
def test_random_histories(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two producers with transactions, every position, several runs; an independent replay agrees."""
    rng = random.Random(seed)
    monkeypatch.setattr(objects, "PIECE_BYTES", rng.choice((1, 700, 1 << 20)))
    monkeypatch.setattr(objects, "CHUNK_OBJECTS", rng.choice((3, 11, 1000)))
    monkeypatch.setattr(objects.ObjectTopic, "target_bytes", rng.choice((1, 800, 900_000)))
    history = logs.random_history(rng)
    bucket = a_bucket(history)
    expected = replayed(history)
    newest = history[-1].last
    for _ in range(3):
        bucket.compact(bucket.opened(soon(min_cleanable_dirty_ratio="0")))
        rows = bucket.rows()
        assert latest(rows) == expected
        assert [row[0] for row in rows] == sorted({row[0] for row in rows})
        for start in rng.sample(range(newest + 1), 10):
            assert bucket.rows(start) == [row for row in rows if row[0] >= start]
        assert bucket.earliest_and_latest() == (bucket.bases()[0], newest)
        bucket.clock.advance_s(60)
    assert all(row[3] is not None for row in rows if row[0] < newest)


def replayed(history: list[Batch]) -> dict[bytes, tuple[int, int, bytes | None, bytes | None]]:
    """The latest map that a reader of committed rows has."""
    committed, waiting = [], {}  # type: ignore[var-annotated]
    for batch in history:
        if batch.control:
            rows = waiting.pop(batch.producer[0], [])
            committed += rows if batch.records[0].key == b"\0\0\0\1" else []
            continue
        rows = logs.expected_rows([batch])
        if batch.transactional:
            waiting.setdefault(batch.producer[0], []).extend(rows)
        else:
            committed += rows
    return latest(sorted(committed))


def dying(
    monkeypatch: pytest.MonkeyPatch, bucket: Bucket, number: int, fault: StoreFault | None
) -> list[Call]:
    """Compact, and kill the one who publishes at its call of this number; the calls."""
    calls: list[Call] = []
    publish = publishing._Publication

    def decide(_: int, call: Call) -> StoreFault | None:
        calls.append(call)
        return fault if len(calls) == number else None

    def publication(task, store, own, movements, clock):  # type: ignore[no-untyped-def]
        return publish(task, FaultyStore(store, decide), own, movements, clock)

    with monkeypatch.context() as patched:
        patched.setattr(publishing, "_Publication", publication)
        with suppress(Crash):
            bucket.compact(bucket.opened(soon(min_cleanable_dirty_ratio="0")))
    return calls


@in_parts(3)
def test_killed_at_every_call_of_a_publication(monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    """Each put leaves a log that has the same latest map; the next run finishes, to the same objects. The
    tombstone that is dropped had its older value removed in the run before."""
    monkeypatch.setattr(objects, "CHUNK_OBJECTS", 8)

    def a_topic() -> Bucket:
        bucket = a_bucket([logs.data(0, ("a", "1"), ("b", "1")), logs.data(2, ("a", None)), *some(20)[1:]])
        bucket.compact(bucket.opened(soon()))
        assert b"a" in [row[2] for row in bucket.rows()]
        bucket.clock.advance_s(2)
        bucket.produce(*some(44)[20:])
        return bucket

    rehearsed = a_topic()
    calls = dying(monkeypatch, rehearsed, 0, None)
    expected, bases = rehearsed.rows(), rehearsed.bases()
    assert b"a" not in [row[2] for row in expected]
    writes = [n for n, call in enumerate(calls, 1) if call.method in ("replace", "delete")]
    assert len(writes) > 20
    some_reads = [n for n in range(1, len(calls) + 1) if n not in writes][::9]
    for number in sorted({*writes, *some_reads})[part::3]:
        bucket = a_topic()
        dying(monkeypatch, bucket, number, StoreFault.CRASH_AFTER if number % 2 else StoreFault.CRASH_BEFORE)
        assert latest(bucket.rows()) == latest(expected), f"killed at call {number}"
        bucket.compact(bucket.opened(soon()))
        assert bucket.rows() == expected, f"killed at call {number}"
        assert bucket.bases() == bases
        assert bucket.earliest_and_latest() == (bases[0], bases[-1])


@pytest.mark.parametrize("seed", range(8))
def test_killed_again_and_again_while_the_log_grows(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Between two runs the broker was up and has written more: holes, transactions, tombstones."""
    rng = random.Random(seed)
    monkeypatch.setattr(objects, "PIECE_BYTES", rng.choice((1, 700, 1 << 20)))
    monkeypatch.setattr(objects, "CHUNK_OBJECTS", rng.choice((3, 7, 20)))
    monkeypatch.setattr(objects.ObjectTopic, "target_bytes", rng.choice((400, 900_000)))
    history = [batch for batch in logs.random_history(rng) if batch.control or rng.random() < 0.95]
    bucket, written = a_bucket(history[:30]), 30
    while written < len(history):
        fault = rng.choice((StoreFault.CRASH_BEFORE, StoreFault.CRASH_AFTER, StoreFault.FAIL_AFTER, None))
        dying(monkeypatch, bucket, rng.randrange(1, 60), fault)
        bucket.produce(*history[written : written + 5])
        written += 5
        bucket.clock.advance_s(2)
    bucket.compact(bucket.opened(soon(min_cleanable_dirty_ratio="0")))
    rows = bucket.rows()
    assert latest(rows) == replayed(history)
    assert [row[0] for row in rows] == sorted({row[0] for row in rows})
    assert bucket.earliest_and_latest() == (bucket.bases()[0], history[-1].last)


def test_killed_at_any_call_beside_the_topic() -> None:
    """Nothing of the topic has changed, or all of it."""
    rehearsed = a_bucket(some(20))
    rehearsal = FaultyStore.scripted(rehearsed.store, {})
    rehearsed.compact(rehearsed.opened(store=rehearsal))
    expected, last = rehearsed.rows(), rehearsed.bases()[-1]
    for number in range(1, len(rehearsal.calls) + 1, 3):
        bucket = a_bucket(some(20))
        dying = FaultyStore.crash_at(bucket.store, number, after=number % 2 == 0)
        with suppress(Crash):
            bucket.compact(bucket.opened(store=dying))
        assert latest(bucket.rows()) == latest(expected)
        bucket.compact()
        assert bucket.rows() == expected, f"killed at call {number}"
        assert bucket.earliest_and_latest() == (0, last)
        assert not bucket.compact().started


def interrupted(
    monkeypatch: pytest.MonkeyPatch, bucket: Bucket, before: str, action: Callable[[], None]
) -> None:
    """Compact, and do something right before the first such call of the one who publishes."""
    publish, decide = publishing._Publication, Once(before, action)

    def publication(task, store, own, movements, clock):  # type: ignore[no-untyped-def]
        return publish(task, FaultyStore(store, decide), own, movements, clock)

    with monkeypatch.context() as patched:
        patched.setattr(publishing, "_Publication", publication)
        bucket.compact(bucket.opened(soon()))
    assert decide.is_done


def test_a_topic_deleted_and_made_again_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """At any moment: nothing of the new topic is touched, and the next run compacts that one.

    But for the deletes that are under way just then: stores have no conditional delete for all of us, so an
    object of the new topic that came between a look and its delete goes. They go one at a time here, so it
    is one object.
    """
    monkeypatch.setattr(publishing, "REQUESTS", 1)
    for before in ("get_with_meta", "list", "replace", "delete"):
        bucket = a_bucket(some())
        new = [logs.data(n, ("new", f"{n}")) for n in range(40)]

        def made_again(bucket: Bucket = bucket, new: list[Batch] = new) -> None:
            for meta in bucket.listed():
                bucket.store.delete(meta.key)
            bucket.id = "two"
            bucket.put_metadata()
            bucket.produce(*new)

        interrupted(monkeypatch, bucket, before, made_again)
        lost = {*range(40)} - {*bucket.bases()}
        assert len(lost) == (before == "delete"), before
        # What is half done of the old topic touches nothing else of the new one, which has all its rows.
        assert [row[3] for row in bucket.rows()] == [b"%d" % n for n in range(40) if n not in lost], before
        bucket.compact()
        assert [row[0] for row in bucket.rows()] == [38, 39], before


def test_an_object_that_another_has_changed_is_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = a_bucket(some())
    other = logs.data(30, ("k1", "someone else's"), ("b", "2"), ("c", "3"))
    interrupted(monkeypatch, bucket, "list", lambda: bucket.produce(other))
    assert bucket.bases() == list(range(0, 90, 3))
    bucket.compact()
    assert bucket.bases() == [0, 87]
    assert (31, b"b", b"2") in [(row[0], row[2], row[3]) for row in bucket.rows()]


@pytest.mark.parametrize("before", ["list", "replace"])
def test_an_object_that_another_has_changed_where_something_merged_was_to_go(
    monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    """Nothing that it would have covered goes. What was put already is kept, and what that covers goes; the
    rest is looked at anew."""
    monkeypatch.setattr(objects, "CHUNK_OBJECTS", 7)
    bucket = a_bucket(some())
    other = logs.data(63, ("k1", "someone else's"), ("b", "2"), ("c", "3"))
    expected = some()
    expected[21] = other
    interrupted(monkeypatch, bucket, before, lambda: bucket.produce(other))
    assert latest(bucket.rows()) == latest(logs.expected_rows(expected))
    bucket.compact()
    assert len(bucket.bases()) < 8
    assert latest(bucket.rows()) == latest(logs.expected_rows(expected))


def test_an_object_that_comes_before_it_is_published_is_read_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may hold what a tombstone deletes that was to go."""
    batches = [logs.data(n, ("a", f"{n}")) for n in range(30)]
    bucket = a_bucket(batch for batch in batches if batch.first != 10)
    interrupted(monkeypatch, bucket, "list", lambda: bucket.produce(logs.data(10, ("b", "late"))))
    assert len(bucket.bases()) == 30
    bucket.compact()
    assert bucket.bases() == [0, 29]
    assert (10, b"late") in [(row[0], row[3]) for row in bucket.rows()]


def test_leftovers_that_nobody_knows_of_any_more() -> None:
    """Somebody died after the first put, and what Lithify kept beside the topic is gone."""
    bucket = a_bucket(some(20))
    originals = bucket.contents()
    bucket.compact()
    rows = bucket.rows()
    for n in (3, 9, 54):
        bucket.store.put(bucket.key(n), originals[bucket.key(n)])
    for meta in list(bucket.store.list(f"{bucket.root}/clusters/c/lithify")):
        bucket.store.delete(meta.key)
    assert bucket.bases() == [0, 3, 9, 54, 57]
    bucket.compact(bucket.opened(soon(min_cleanable_dirty_ratio="0")))
    assert bucket.bases() == [0, 57]
    assert bucket.rows() == rows
    assert bucket.earliest_and_latest() == (0, 57)


@pytest.mark.parametrize("ahead_ms", [0, 3_600_000, -3_600_000])
@pytest.mark.parametrize("what", ["meta.json", "watermark.json"])
def test_refused_while_the_broker_writes(monkeypatch: pytest.MonkeyPatch, what: str, ahead_ms: int) -> None:
    """Also where the task's clock is ahead of the coordinator's, or behind."""
    bucket = a_bucket(some())
    before = bucket.contents()

    class Writing:
        def now_ms(self) -> int:
            return NOW_MS + ahead_ms

        def sleep_s(self, duration_s: float) -> None:
            if what == "meta.json":
                bucket.put_metadata()
            else:
                bucket.produce(logs.data(90, ("k", "new")))

    with monkeypatch.context() as patched:
        patched.setattr(publishing, "SystemClock", Writing)
        settings = KafkaSettings.model_validate({"quiet_period": "10s"})
        summary = bucket.compact(bucket.opened(settings))
    assert "the broker is writing" in summary.failures[0].reason
    after = bucket.contents()
    assert {key: after[key] for key in before if key.endswith(".batch")} == {
        key: data for key, data in before.items() if key.endswith(".batch")
    }
    bucket.compact()
    assert bucket.bases()[0] == 0
    assert len(bucket.bases()) < 4
