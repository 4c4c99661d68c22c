"""Whole rounds over folders of segments: what is published, and that nothing else ever is."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta

import numpy as np
import pytest

from lithify.base.errors import CorruptObject, Refused
from lithify.base.ids import RandomIds, ulid_ms
from lithify.coordination.leadership import Leadership
from lithify.datasets.kafka.cleaning.index import index, match
from lithify.datasets.kafka.cleaning.retention import Rules, empty_to_retain, last_records, retention
from lithify.datasets.kafka.dataset import LogDataset
from lithify.datasets.kafka.format.codecs import BatchCodec
from lithify.datasets.kafka.format.kernel.layout import DELETE_HORIZON
from lithify.datasets.kafka.format.record_batches import decode, filtered
from lithify.datasets.kafka.format.transactions import fates, follow
from lithify.datasets.kafka.garbage import collect
from lithify.datasets.kafka.layouts.segments import read_folder
from lithify.datasets.kafka.settings import KafkaSettings
from lithify.protocol.model import Compaction, Ledger
from lithify.protocol.run_summary import RunSummary
from lithify.service import one_shot
from lithify.store.objects import ObjectStore
from lithify.store.urls import open_store
from lithify.testing import ManualClock
from lithify.testing.engine import InlineEngine
from lithify.testing.faulty import Crash, FaultyStore
from tests.datasets.kafka import logs
from tests.datasets.kafka.folders import latest, put_segments, read_rows
from tests.datasets.kafka.logs import Batch, encode_all
from tests.datasets.kafka.test_judged import decisions
from tests.judge.kafka_java import KafkaJava, kafka_java
from tests.parts import in_parts

NAME = "orders-0"
NOW_MS = 1_800_000_000_000
DAY_MS = 86_400_000
_numbers = itertools.count()


@pytest.fixture(scope="session")
def java() -> Iterator[KafkaJava]:
    judge = kafka_java()
    yield judge
    judge.close()


@dataclass
class Topic:
    """A partition in memory, and what is made of it."""

    store: ObjectStore
    root: str
    clock: ManualClock

    def opened(
        self,
        settings: KafkaSettings | None = None,
        source: str | None = None,
        store: ObjectStore | None = None,
    ) -> LogDataset:
        through = store or self.store
        places = (through, source or f"{self.root}/{NAME}"), (through, f"{self.root}/out")
        return LogDataset("kafka+memory://x", *places, self.clock, RandomIds(), settings or KafkaSettings())

    def compact(self, dataset: LogDataset) -> RunSummary:
        leadership = Leadership(dataset, self.clock, RandomIds())
        return one_shot.run(dataset, InlineEngine(), self.clock, RandomIds(), leadership)

    def everything(self) -> dict[str, bytes]:
        return {meta.key: self.store.get(meta.key) for meta in self.store.list(f"{self.root}/{NAME}")}


def a_topic(segments: Sequence[Sequence[Batch]]) -> Topic:
    store, root = open_store(f"memory://rounds-{next(_numbers)}/dataset")
    put_segments(store, f"{root}/{NAME}", segments)
    return Topic(store, root, ManualClock(NOW_MS))


def published(dataset: LogDataset) -> str:
    found = dataset.snapshot().round(NAME)
    assert found is not None
    assert found.next_step is None
    assert found.new_segments
    return dataset.output_folder(found.done[-1], NAME)


def written(topic: Topic, folder: str) -> list[bytes]:
    return [topic.store.get(segment.key) for segment in read_folder(topic.store, folder).segments]


def cut(rng: random.Random, batches: Sequence[Batch], parts: int) -> list[Sequence[Batch]]:
    places = sorted(rng.sample(range(1, len(batches)), parts - 1))
    return [batches[start:end] for start, end in itertools.pairwise([0, *places, len(batches)])]


@pytest.mark.parametrize("seed", range(8))
def test_segments_together_are_what_kafkas_own_filter_leaves_of_them(java: KafkaJava, seed: int) -> None:
    """Transactions over bounds of segments, in steps that see one segment each; bytes as of the whole log."""
    rng = random.Random(seed)
    segments = cut(rng, logs.random_history(rng, [BatchCodec.NONE]), 6)
    topic = a_topic(segments)
    before = topic.everything()
    dataset = topic.opened(KafkaSettings(segment_bytes=rng.choice((1, 1500, 1 << 20))))
    topic.compact(dataset)
    found = dataset.snapshot().round(NAME)
    assert found is not None
    whole, source = (encode_all(itertools.chain(*part)) for part in (segments, segments[: found.settled]))
    everything, settled = decode(whole, "whole"), decode(source, "settled")
    transactions = follow(everything.batches)
    what, _ = fates(everything.batches, transactions.aborted)
    matched = match([index(everything, what, found.bound)])
    now_ms = ulid_ms(found.done[-1])
    rules = Rules(now_ms, DAY_MS, keep_unkeyed=False, bound=found.bound)
    what, _ = fates(settled.batches, transactions.aborted)
    # No producer is active any more at that time, but for markers: times in these logs are from 1970.
    empty = empty_to_retain(settled.batches, {}, found.bound)
    kept = retention(settled, what, rules, empty, matched.dead, matched.pinned)
    output = written(topic, published(dataset))
    rest = len(segments) - found.settled
    assert b"".join(output[:-rest]) == java.filtered(source, now_ms, DAY_MS, decisions(settled, kept))
    assert b"".join(output[:-rest]) == bytes(filtered(settled, kept))
    assert output[-rest:] == [encode_all(part) for part in segments[found.settled :]]
    assert topic.everything() == before
    assert last_records(settled.batches)


SEGMENTS = [
    [logs.data(0, ("a", "1"), ("b", "1"), ("c", "1"))],
    [logs.data(3, ("a", "2"), ("b", None), time=NOW_MS)],
    [logs.data(5, ("d", "1"))],
]


def test_a_second_run_does_nothing() -> None:
    topic = a_topic(SEGMENTS)
    dataset = topic.opened()
    assert topic.compact(dataset).started
    folder = published(dataset)
    rows = read_rows(topic.store, folder)
    assert [row[0] for row in rows] == [2, 3, 4, 5]
    assert latest(rows) == latest(read_rows(topic.store, f"{topic.root}/{NAME}"))
    there = list(topic.store.list(folder))
    assert not topic.compact(topic.opened()).started
    assert list(topic.store.list(folder)) == there


def test_a_tombstone_goes_in_a_later_round_than_what_it_deletes() -> None:
    """The second round reads what the first one wrote, after the delete horizon it set."""
    topic = a_topic(SEGMENTS)
    first = topic.opened()
    topic.compact(first)
    folder = published(first)
    assert 4 in [row[0] for row in read_rows(topic.store, folder)]
    topic.clock.advance_s(DAY_MS / 1000 + 60)
    settings = KafkaSettings(segment_bytes=1)
    second = Topic(topic.store, f"{topic.root}/again", topic.clock).opened(settings, folder)
    topic.compact(second)
    rows = read_rows(topic.store, published(second))
    # One segment was left of two, so all of it is settled but the newest.
    assert [row[0] for row in rows] == [2, 3, 5]


def test_what_was_written_meanwhile_is_refused() -> None:
    topic = a_topic(SEGMENTS)
    dataset = topic.opened()
    plan = dataset.propose(dataset.snapshot(), dataset.ledger() or Ledger())
    put_segments(topic.store, f"{topic.root}/{NAME}", [[logs.data(9, ("z", "1"))]])
    (proposal,) = plan.proposals
    compaction = Compaction(RandomIds().ulid(NOW_MS), proposal.spec)
    reason = dataset.validate(compaction, dataset.snapshot(), Ledger())
    assert reason is not None
    assert "has changed since it was planned" in reason


def test_a_damaged_segment_ends_the_round_before_anything_is_written_anew() -> None:
    topic = a_topic(SEGMENTS)
    key = f"{topic.root}/{NAME}/{3:020d}.log"
    topic.store.put(key, topic.store.get(key)[:-1])
    dataset = topic.opened()
    summary = topic.compact(dataset)
    assert "longer than the rest of the object" in summary.failures[0].reason
    assert dataset.snapshot().round(NAME) is None
    assert not [m for m in topic.store.list(f"{topic.root}/out") if m.key.endswith(".log")]


def test_an_open_transaction_leaves_everything_as_it_is() -> None:
    topic = a_topic([[logs.in_transaction(0, ("a", "1"), id=1)], *SEGMENTS[1:]])
    dataset = topic.opened()
    topic.compact(dataset)
    found = dataset.snapshot().round(NAME)
    assert found is not None
    assert (found.settled, found.next_step) == (0, None)
    (note,) = dataset.propose(dataset.snapshot(), dataset.ledger() or Ledger()).notes
    assert "a transaction is open" in note


@in_parts(3)
def test_a_run_killed_at_any_call_leaves_nothing_half(part: int) -> None:
    """Whatever is published is whole, the source is as it was, and the next run finishes. Delete
    horizons are later then, rows the same."""
    topic = a_topic(SEGMENTS)
    rehearsal = FaultyStore.scripted(topic.store, {})
    topic.compact(topic.opened(store=rehearsal))
    expected = read_rows(topic.store, published(topic.opened()))
    for number in range(1 + part, len(rehearsal.calls) + 1, 3):
        topic = a_topic(SEGMENTS)
        before = topic.everything()
        dying = FaultyStore.crash_at(topic.store, number, after=number % 2 == 0)
        with suppress(Crash):
            topic.compact(topic.opened(store=dying))
        found = topic.opened().snapshot().round(NAME)
        if found is not None and found.next_step is None:
            assert read_rows(topic.store, published(topic.opened())) == expected
        topic.compact(topic.opened())
        assert read_rows(topic.store, published(topic.opened())) == expected, f"killed at call {number}"
        assert topic.everything() == before
        assert not topic.compact(topic.opened()).started


def test_an_output_in_a_brokers_directory_is_refused() -> None:
    """The broker would not start there any more."""
    topic = a_topic(SEGMENTS)
    for name in (".lock", ".kafka_cleanshutdown"):
        topic.store.put(f"{topic.root}/{name}", b"")
    with pytest.raises(Refused, match="name another output"):
        topic.compact(topic.opened())
    assert not list(topic.store.list(f"{topic.root}/out"))


def test_garbage_is_what_no_round_needs_any_more() -> None:
    topic = a_topic(SEGMENTS)
    dataset = topic.opened()
    topic.compact(dataset)
    folder = published(dataset)
    kept = {meta.key for meta in topic.store.list(folder)}
    leftover = RandomIds().ulid(NOW_MS)
    topic.store.put(f"{dataset.work_folder(leftover)}/group-00000.json", b"{}")
    topic.store.put(f"{dataset.output_folder(leftover, NAME)}/{0:020d}.log", b"half")
    topic.store.put(f"{topic.root}/out/{RandomIds().ulid(NOW_MS)}/notes.txt", b"somebody else's")
    dry = collect(dataset, min_age_ms=-1000, dry_run=True)
    assert collect(dataset, min_age_ms=3_600_000, dry_run=False).deleted["segments"] == 0
    report = collect(dataset, min_age_ms=-1000, dry_run=False)
    assert report.deleted["segments"] == dry.deleted["segments"] == 1
    assert report.deleted["work"] > 1
    left = {meta.key for meta in topic.store.list(f"{topic.root}/out")}
    assert kept <= left
    assert not any(leftover in key for key in left)
    assert any(key.endswith("notes.txt") for key in left)
    assert not topic.compact(topic.opened()).started


def test_the_last_batch_of_an_active_producer_keeps_its_header() -> None:
    """And that of one who has been silent for long does not, though all their records are superseded."""
    active = logs.data(0, ("a", "1"), time=NOW_MS - 1000, producer=(7, 0, 0))
    silent = logs.data(1, ("a", "2"), time=NOW_MS - 2 * DAY_MS, producer=(8, 0, 0))
    later = logs.data(2, ("a", "3"), time=NOW_MS - 1000, producer=(9, 0, 0))
    again = logs.data(3, ("a", "4"), time=NOW_MS - 1000, producer=(9, 0, 1))
    topic = a_topic([[active, silent], [later], [again]])
    dataset = topic.opened()
    topic.compact(dataset)
    batches = decode(b"".join(written(topic, published(dataset))), "log").batches
    assert [(int(one["producer_id"]), int(one["count"])) for one in batches] == [(7, 0), (9, 1), (9, 1)]


@pytest.mark.parametrize("part_bytes", [16 << 10, 32 * 12, 32])
def test_keys_are_compared_slice_by_slice(monkeypatch: pytest.MonkeyPatch, part_bytes: int) -> None:
    """Slices of a few records each, of runs with one part, with fewer than there are slices, and with as
    many: nobody sees more than a slice."""
    monkeypatch.setattr("lithify.datasets.kafka.cleaning.cleaning_plan.SLICE_BYTES", 32 * 8)
    monkeypatch.setattr("lithify.datasets.kafka.cleaning.segment_stats.PART_BYTES", part_bytes)
    rng = random.Random(7)
    rows = [[(f"k{rng.randrange(60)}", f"v{n}")] for n in range(200)]
    batches = [logs.data(n, *row) for n, row in enumerate(rows)]
    topic = a_topic([batches[n : n + 50] for n in range(0, 200, 50)])
    dataset = topic.opened()
    topic.compact(dataset)
    found = read_rows(topic.store, published(dataset))
    assert latest(found) == latest(read_rows(topic.store, f"{topic.root}/{NAME}"))
    settled = [row for row in found if row[0] < 150]
    assert len({row[2] for row in settled}) == len(settled)
    assert np.all(np.diff([row[0] for row in found]) > 0)


def test_what_is_written_to_find_a_slice_is_less_than_the_run_itself() -> None:
    """Of ten thousand small segments it would be far more than what they hold."""
    topic = a_topic([[logs.data(n, ("a", str(n)), ("b", "1"))] for n in range(0, 40, 10)])
    dataset = topic.opened()
    topic.compact(dataset)
    runs = [m.size for m in topic.store.list(f"{topic.root}/out/_lithify/index") if m.key.endswith(".run")]
    assert len(runs) == 4
    assert all(size <= 2 * 2 * 32 for size in runs)


def carried_out(planned_by: LogDataset, by: LogDataset) -> int:
    """The next step; how many ranges it had."""
    (proposal,) = planned_by.propose(planned_by.snapshot(), Ledger()).proposals
    compaction = Compaction(RandomIds().ulid(NOW_MS), proposal.spec)
    works = by.prepare(compaction, by.snapshot()).works
    outcomes = [by.outcome(work.function(work.argument)) for work in works]
    done = replace(compaction, outputs=tuple(out for outcome in outcomes for out in outcome.outputs))
    assert by.commit([done], by.take_epoch()) == {compaction.id: None}
    return len(works)


def test_a_step_is_done_on_the_terms_it_was_planned_on() -> None:
    """Who takes it up has other settings. Finished ranges of the one before fit his."""
    topic = a_topic(SEGMENTS)
    one = topic.opened(KafkaSettings(segment_bytes=1, delete_retention=timedelta(hours=1)))
    another = topic.opened(KafkaSettings(keep_unkeyed=True, min_compaction_lag=timedelta(days=9)))
    assert [carried_out(one, another) for _ in range(3)] == [3, 1, 3]
    batches = decode(b"".join(written(topic, published(one))), "log").batches
    horizons = batches[batches["attributes"] & DELETE_HORIZON != 0]["base_timestamp"]
    assert list(horizons) == [NOW_MS + 3_600_000]


def test_settings_may_change_between_planning_and_the_end_of_a_step() -> None:
    topic = a_topic(SEGMENTS)
    plan = topic.opened(KafkaSettings(segment_bytes=7)).propose(topic.opened().snapshot(), Ledger())
    encoded = topic.opened().encode_spec(plan.proposals[0].spec)
    assert topic.opened().decode_spec(encoded).terms.segment_bytes == 7
    for wrong in ('"segment_bytes":0', '"segment_bytes":"7"'):
        with pytest.raises(CorruptObject):
            topic.opened().decode_spec(encoded.replace('"segment_bytes":7', wrong))


def test_old_segments_are_due_though_little_is_new() -> None:
    """By `max.compaction.lag.ms`, reckoned from when they were written last."""
    topic = a_topic(SEGMENTS)
    settings = KafkaSettings(min_cleanable_dirty_ratio=1.0, max_compaction_lag=timedelta(days=365))
    topic.compact(topic.opened(settings))
    put_segments(topic.store, f"{topic.root}/{NAME}", [[logs.data(n, ("z", "1"))] for n in (9, 10)])
    (note,) = topic.opened(settings).propose(topic.opened().snapshot(), Ledger()).notes
    assert "below 100%" in note
    modified_ms = max(meta.last_modified_ms for meta in topic.store.list(f"{topic.root}/{NAME}"))
    topic.clock.advance_s((modified_ms + 366 * DAY_MS - topic.clock.now_ms()) / 1000)
    (proposal,) = topic.opened(settings).propose(topic.opened().snapshot(), Ledger()).proposals
    assert "longer than max.compaction.lag.ms" in proposal.reason
    assert proposal.priority == 1.0
