"""Topics in a broker's bucket, compacted in their place while the broker runs."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from contextlib import suppress

import pytest

from lithify.base.errors import Refused
from lithify.base.ids import RandomIds
from lithify.coordination.leadership import Leadership
from lithify.datasets.kafka.buckets import publishing
from lithify.datasets.kafka.buckets.live_topic import LiveTopic, build_order, check_live
from lithify.datasets.kafka.kind import LogKind
from lithify.datasets.kafka.layouts import objects
from lithify.datasets.kafka.settings import KafkaSettings
from lithify.datasets.options import CommandArgs
from lithify.protocol.model import Ledger
from lithify.protocol.run_summary import RunSummary
from lithify.service import one_shot
from lithify.store.wrapped import Call
from lithify.testing.engine import InlineEngine
from lithify.testing.faulty import Crash, FaultyStore, StoreFault
from tests.datasets.kafka import logs
from tests.datasets.kafka.buckets import Bucket, a_bucket
from tests.datasets.kafka.folders import latest
from tests.datasets.kafka.logs import Batch
from tests.datasets.kafka.test_windows import replayed, some, soon
from tests.parts import in_parts

BUILD = "0.7.0-pre.1"


def live(bucket: Bucket, **settings: str) -> LiveTopic:
    places = (bucket.store, bucket.topic), (bucket.store, f"{bucket.root}/clusters/c/lithify/orders")
    return LiveTopic("kafka+memory://x", *places, bucket.clock, RandomIds(), of(**settings))


def of(**settings: str) -> KafkaSettings:
    known = {"live": "true", "broker_build": BUILD, "delete_retention": "1s", **settings}
    return KafkaSettings.model_validate(known)


def compact(bucket: Bucket, **settings: str) -> RunSummary:
    return bucket.compact(live(bucket, **settings))


def during(
    monkeypatch: pytest.MonkeyPatch,
    decide: Callable[[int, Call], StoreFault | None],
    run: Callable[[], object],
) -> None:
    """With every call of who publishes seen before it is made."""
    publish = publishing._Publication

    def publication(task, store, own, movements, clock):  # type: ignore[no-untyped-def]
        return publish(task, FaultyStore(store, decide), own, movements, clock)

    with monkeypatch.context() as patched:
        patched.setattr(publishing, "_Publication", publication)
        run()


def test_all_but_the_first_and_the_last_four_objects_are_merged() -> None:
    bucket = a_bucket(some())
    before, contents = bucket.rows(), bucket.contents()
    summary = compact(bucket)
    assert not summary.failures
    assert bucket.bases() == [0, 3, 78, 81, 84, 87]
    assert all(bucket.store.get(bucket.key(n)) == contents[bucket.key(n)] for n in (0, 78, 81, 84, 87))
    assert latest(bucket.rows()) == latest(before)
    assert bucket.earliest_and_latest() == (0, 87)
    assert not compact(bucket).started


def test_a_producer_that_writes_throughout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before every put and listing, broker and producers write: metadata, watermarks, objects."""
    bucket, left = a_bucket(some(40)), some(80)[40:]

    def decide(_: int, call: Call) -> None:
        if call.method in ("replace", "list") and left:
            bucket.put_metadata()
            bucket.produce(left.pop(0))

    during(monkeypatch, decide, lambda: compact(bucket))
    produced = 80 - len(left)
    assert produced > 40
    assert bucket.bases()[:3] == [0, 3, 3 * 36]
    assert bucket.bases()[3:] == [3 * n for n in range(37, produced)]
    assert latest(bucket.rows()) == latest(logs.expected_rows(some(produced)))
    assert bucket.earliest_and_latest()[0] == 0
    # What was put last was the producer's, or the newest object.
    assert bucket.earliest_and_latest()[1] >= 3 * 39
    # The next run takes what came meanwhile, and then all is as it would have been.
    bucket.produce(*left)
    compact(bucket, min_cleanable_dirty_ratio="0")
    assert bucket.bases() == [0, 3, *(3 * n for n in range(76, 80))]
    assert latest(bucket.rows()) == latest(logs.expected_rows(some(80)))
    assert bucket.earliest_and_latest() == (0, 3 * 79)


def test_what_a_producer_writes_between_two_steps_does_not_end_the_round() -> None:
    """A round is about what was there when it was planned, also in a service, which looks each time."""
    bucket = a_bucket(some(30))

    class Busy(LiveTopic):
        def _read_snapshot(self):  # type: ignore[no-untyped-def]
            found = super()._read_snapshot()
            n = len(bucket.bases()) if not found.state.rounds else 0
            if n and n < 50:
                bucket.produce(some(n + 1)[-1])
            return found

    places = (bucket.store, bucket.topic), (bucket.store, f"{bucket.root}/clusters/c/lithify/orders")
    busy = Busy("kafka+memory://x", *places, bucket.clock, RandomIds(), of())
    summary = bucket.compact(busy)
    assert not summary.failures
    assert not summary.refused
    assert bucket.bases()[:2] == [0, 3]
    assert len(bucket.bases()) < 30


def test_a_run_ends_though_producers_do_not() -> None:
    """It makes one round of each partition; a service goes on."""
    bucket, new = a_bucket(some(30)), iter(some(400)[30:])

    class Busy(LiveTopic):
        def _read_snapshot(self):  # type: ignore[no-untyped-def]
            bucket.produce(next(new))
            return super()._read_snapshot()

    places = (bucket.store, bucket.topic), (bucket.store, f"{bucket.root}/clusters/c/lithify/orders")
    busy = Busy("kafka+memory://x", *places, bucket.clock, RandomIds(), of())
    leadership = Leadership(busy, bucket.clock, RandomIds())
    planner = LogKind().planner(busy, CommandArgs(), bucket.clock)
    summary = one_shot.run(busy, InlineEngine(), bucket.clock, RandomIds(), leadership, planner=planner)
    assert len(summary.committed) == 4
    assert bucket.bases()[:2] == [0, 3]
    assert "newer records wait for the next one" in summary.plan.notes[0]


def test_a_key_in_the_first_object_which_is_untouched_never_comes_back() -> None:
    """What deletes it stays."""
    rest = some(30)[2:]
    bucket = a_bucket([logs.data(0, ("a", "1")), logs.data(1, ("b", "1"), ("a", None), ("b", None)), *rest])
    expected = latest(bucket.rows())
    for _ in range(3):
        compact(bucket)
        bucket.clock.advance_s(2)
    assert [(row[2], row[3]) for row in bucket.rows()][:2] == [(b"a", b"1"), (b"a", None)]
    assert not [row for row in bucket.rows() if row[2] == b"b"]
    assert latest(bucket.rows()) == expected


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_that_began_in_the_first_object(commit: bool) -> None:
    """Its marker stays, or what it decides would be open for ever. Such a broker shows aborted rows, so what
    deletes them stays as well."""
    tombstones = [logs.data(1, ("a", "2"), ("a", None)), logs.data(3, ("c", "1"), ("c", None))]
    marker = logs.marker(5, id=7, commit=commit)
    first = logs.in_transaction(0, ("a", "1"), id=7)
    rest = [logs.data(3 * n, *[(f"k{n % 2}", f"v{n}")] * 3) for n in range(2, 30)]
    bucket = a_bucket([first, *tombstones, marker, *rest])
    for _ in range(3):
        compact(bucket)
        bucket.clock.advance_s(2)
    assert bucket.bases()[:2] == [0, 1]
    assert 5 in bucket.bases()
    assert len(bucket.bases()) < 10
    rows = [(row[2], row[3]) for row in bucket.rows() if row[2] in (b"a", b"c")]
    assert rows == [(b"a", b"1"), (b"a", None)] + ([] if commit else [(b"c", None)])
    assert not [one for one in bucket.rows() if one[3] == b"2"]


def test_an_open_transaction_bounds_the_round() -> None:
    epoch = {"state": "Begin", "produces": {"orders": {"0": {"offset_start": 30, "offset_end": 30}}}}
    bucket = a_bucket(
        (logs.data(n, ("a", f"{n}")) for n in range(50)),
        transactions={"tx": {"producer": 7, "epochs": {"0": epoch}}},
    )
    compact(bucket)
    assert bucket.bases() == [0, 1, *range(29, 50)] or bucket.bases() == [0, *range(29, 50)]
    assert bucket.earliest_and_latest() == (0, 49)


@pytest.mark.parametrize("count", [1, 3, 5, 6])
def test_too_few_objects(count: int) -> None:
    bucket = a_bucket(some(count))
    before = bucket.contents()
    summary = compact(bucket)
    assert not summary.started
    assert summary.plan.notes == (
        "orders-0: has too few objects: the first one, and the last 4, are not changed",
    )
    assert bucket.contents() == before


@pytest.mark.parametrize("seed", range(6))
def test_random_histories_that_grow(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transactions, holes, several runs, some of which die at some call; an independent replay agrees."""
    rng = random.Random(seed)
    monkeypatch.setattr(objects, "PIECE_BYTES", rng.choice((1, 700, 1 << 20)))
    monkeypatch.setattr(objects, "CHUNK_OBJECTS", rng.choice((3, 7, 1000)))
    monkeypatch.setattr(objects.ObjectTopic, "target_bytes", rng.choice((400, 900_000)))
    history = [batch for batch in logs.random_history(rng) if batch.control or rng.random() < 0.95]
    bucket, written = a_bucket(history[:20]), 20
    first = bucket.store.get(bucket.key(history[0].first))
    while written < len(history):
        dies_at, fault = (
            rng.randrange(1, 50),
            rng.choice((StoreFault.CRASH_BEFORE, StoreFault.CRASH_AFTER, None)),
        )

        def decide(
            number: int, call: Call, dies_at: int = dies_at, fault: StoreFault | None = fault
        ) -> StoreFault | None:
            return fault if number == dies_at else None

        def run() -> None:
            with suppress(Crash):
                compact(bucket, min_cleanable_dirty_ratio="0")

        during(monkeypatch, decide, run)
        bucket.produce(*history[written : written + 4])
        written += 4
        bucket.clock.advance_s(2)
    for _ in range(2):
        compact(bucket, min_cleanable_dirty_ratio="0")
        bucket.clock.advance_s(2)
        rows = committed(bucket, history)
        assert latest(rows) == replayed(history)
        assert [row[0] for row in rows] == sorted({row[0] for row in rows})
        earliest, told = bucket.earliest_and_latest()
        assert earliest == history[0].first
        assert told in bucket.bases()[-4:]  # where a producer writes several at once, the first of them
    assert bucket.store.get(bucket.key(history[0].first)) == first


def committed(bucket: Bucket, history: list[Batch]) -> list[tuple[int, int, bytes | None, bytes | None]]:
    """What a reader gets that is told which rows aborted, as this broker never tells: those of transactions
    that are not rewritten."""
    gone, waiting = set(), {}  # type: ignore[var-annotated]
    for batch in history:
        if batch.transactional and not batch.control:
            waiting.setdefault(batch.producer[0], []).extend(one.offset for one in batch.records)
        elif batch.control:
            offsets = waiting.pop(batch.producer[0], [])
            gone |= set(offsets) if batch.records[0].key != b"\0\0\0\1" else set()
    return [row for row in bucket.rows() if row[0] not in gone]


@in_parts(3)
def test_killed_at_every_write_of_a_publication(monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    """While producers go on between death and rerun. The same end state, but for what came."""
    monkeypatch.setattr(objects, "CHUNK_OBJECTS", 8)
    monkeypatch.setattr(objects.ObjectTopic, "target_bytes", 400)
    calls: list[Call] = []

    def note(_: int, call: Call) -> None:
        calls.append(call)

    rehearsed = a_bucket(some(30))
    during(monkeypatch, note, lambda: compact(rehearsed))
    expected = rehearsed.rows()
    writes = [n for n, call in enumerate(calls) if call.method in ("replace", "delete")]
    assert len(writes) > 20
    for at in writes[part::3]:
        for fault in (StoreFault.CRASH_BEFORE, StoreFault.CRASH_AFTER):
            bucket = a_bucket(some(30))
            during(
                monkeypatch,
                lambda n, call, at=at, fault=fault: fault if n == at + 1 else None,  # type: ignore[misc]
                lambda bucket=bucket: dies(bucket),  # type: ignore[misc]
            )
            assert latest(bucket.rows()) == latest(expected)
            bucket.produce(*some(33)[30:])
            compact(bucket)
            assert [row for row in bucket.rows() if row[0] < 90] == expected, (at, fault)
            assert bucket.earliest_and_latest()[1] >= 90  # what was produced, or where several were, a first


def dies(bucket: Bucket) -> None:
    with suppress(Crash):  # whether the last object is put once or twice depends on times
        compact(bucket)


def test_what_was_begun_live_is_finished_in_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = a_bucket(some(30))
    during(
        monkeypatch,
        lambda n, call: StoreFault.CRASH_AFTER if call.method == "replace" else None,
        lambda: dies(bucket),
    )
    assert len(bucket.bases()) == 30
    bucket.compact(bucket.opened(soon()))
    assert bucket.bases() == [0, 3, 78, 81, 84, 87]
    assert bucket.earliest_and_latest() == (0, 87)
    assert latest(bucket.rows()) == latest(logs.expected_rows(some(30)))


def test_what_was_begun_in_a_window_is_not_finished_live(monkeypatch: pytest.MonkeyPatch) -> None:
    """It rewrites the first object, too."""
    bucket = a_bucket(some(30))

    def window() -> None:
        with pytest.raises(Crash):
            bucket.compact(bucket.opened(soon()))

    during(monkeypatch, lambda n, call: StoreFault.CRASH_BEFORE if call.method == "replace" else None, window)
    before = bucket.contents()
    (refused,) = compact(bucket).refused
    assert "was planned in another mode" in refused.reason
    summary = compact(bucket)
    assert not summary.started
    assert "run without --live" in summary.plan.notes[0]
    assert bucket.contents() == before
    bucket.compact(bucket.opened(soon()))
    assert bucket.bases() == [0, 87]


def test_a_topic_deleted_and_made_again_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """At any moment: nothing of the new topic is touched."""
    for before in ("get_with_meta", "list", "replace", "delete"):
        bucket = a_bucket(some())
        new = [logs.data(n, ("new", f"{n}")) for n in range(40)]

        def made_again(
            _: int, call: Call, bucket: Bucket = bucket, new: list[Batch] = new, before: str = before
        ) -> None:
            if call.method == before and bucket.id == "one":
                for meta in bucket.listed():
                    bucket.store.delete(meta.key)
                bucket.id = "two"
                bucket.put_metadata()
                bucket.produce(*new)

        during(monkeypatch, made_again, lambda bucket=bucket: compact(bucket))  # type: ignore[misc]
        assert bucket.id == "two"
        assert latest(bucket.rows()) == {b"new": (39, 1039, b"new", b"39")}, before
        compact(bucket)
        assert len(bucket.bases()) < 8, before
        assert latest(bucket.rows()) == {b"new": (39, 1039, b"new", b"39")}, before


def test_an_object_that_another_has_changed_is_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = a_bucket(some())
    other = logs.data(30, ("k1", "someone else's"), ("b", "2"), ("c", "3"))
    done: list[Call] = []

    def changed(_: int, call: Call) -> None:
        if call.method == "list" and not done:
            done.append(call)
            bucket.produce(other)

    during(monkeypatch, changed, lambda: compact(bucket))
    assert bucket.bases() == list(range(0, 90, 3))
    compact(bucket)
    assert (31, b"b", b"2") in [(row[0], row[2], row[3]) for row in bucket.rows()]
    assert len(bucket.bases()) == 6


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"broker_build": None}, "needs --broker-build"),
        ({"broker_build": "0.6.0"}, "skips records of merged objects"),
        ({"broker_build": "0.7.0-pre.0"}, "skips records of merged objects"),
        ({"broker_build": "newest"}, "is not a version of the broker"),
        ({"group": "memory://g/x", "member": "eu"}, "belongs to a group"),
    ],
)
def test_refusals(settings: dict[str, str], reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        check_live("kafka+memory://x", of(**settings))


def test_builds_are_ordered() -> None:
    versions = ["0.6.0", "0.6.9", "0.7.0-pre.1", "0.7.0-pre.2", "0.7.0-pre.10", "0.7.0", "0.10.0", "1.0.0"]
    assert sorted(sorted(versions), key=build_order) == versions


def test_what_it_cannot_promise_is_said_before_anything_is_written(caplog: pytest.LogCaptureFixture) -> None:
    bucket = a_bucket(some())
    with caplog.at_level(logging.WARNING, "lithify"):
        dataset = live(bucket)
        plan = dataset.propose(dataset.snapshot(), Ledger())
        assert any("too low an end" in note for note in plan.notes)
        assert not caplog.messages
        bucket.compact(dataset)
    assert ["experimental" in message for message in caplog.messages] == [True] * 3
