"""Indexes of segments that are kept: an object is read once, and nothing that was kept is trusted."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

import pytest

from lithify.base.errors import CorruptObject, Refused, StoreError
from lithify.base.ids import RandomIds
from lithify.datasets.kafka.cleaning.kept_indexes import index_key, index_of
from lithify.datasets.kafka.cleaning.partitioned_arrays import get_parts
from lithify.datasets.kafka.cleaning.segment_stats import FACTS_SUFFIX, HEADERS_SUFFIX, RUN_SUFFIX
from lithify.datasets.kafka.dataset import LogDataset
from lithify.datasets.kafka.format.kernel.keys import ENTRY
from lithify.datasets.kafka.garbage import GarbageReport, _Garbage, collect
from lithify.datasets.kafka.layouts.contract import Segment
from lithify.datasets.kafka.layouts.segments import read_folder
from lithify.datasets.kafka.settings import KafkaSettings
from lithify.datasets.kafka.state import Step
from lithify.protocol.model import Compaction, Ledger
from lithify.store.deleting import Deleting
from lithify.store.objects import ObjectStore
from lithify.store.wrapped import Call, WrappedStore
from lithify.testing import ManualClock, MemoryStore
from lithify.testing.faulty import Crash, FaultyStore
from tests.datasets.kafka import logs
from tests.datasets.kafka.folders import put_segments, read_rows
from tests.datasets.kafka.logs import Batch
from tests.datasets.kafka.test_rounds import NAME, NOW_MS, SEGMENTS, Topic, a_topic, cut, published
from tests.parts import in_parts

ResultT = TypeVar("ResultT")
ALWAYS = KafkaSettings(min_cleanable_dirty_ratio=0)


@dataclass
class Done:
    """A step, and what its tasks read."""

    step: Step
    bytes_read: int


def step(dataset: LogDataset) -> Done:
    """The next step of the one partition, whatever its dirty ratio."""
    (proposal,) = dataset.propose(dataset.snapshot(), Ledger(), full=True).proposals
    compaction = Compaction(RandomIds().ulid(NOW_MS), proposal.spec)
    works = dataset.prepare(compaction, dataset.snapshot()).works
    outcomes = [dataset.outcome(work.function(work.argument)) for work in works]
    done = replace(compaction, outputs=tuple(out for outcome in outcomes for out in outcome.outputs))
    assert dataset.commit([done], dataset.take_epoch()) == {compaction.id: None}
    return Done(proposal.spec.step, sum(outcome.bytes_read for outcome in outcomes))


def whole_round(dataset: LogDataset) -> dict[Step, int]:
    """What each step read."""
    steps = [step(dataset) for _ in range(3)]
    return {done.step: done.bytes_read for done in steps}


def add(topic: Topic, segments: Sequence[Sequence[Batch]]) -> None:
    put_segments(topic.store, f"{topic.root}/{NAME}", segments)


def kept(topic: Topic, suffix: str = "") -> list[str]:
    listed = topic.store.list(f"{topic.root}/out/_lithify/index/{NAME}")
    return [meta.key for meta in listed if meta.key.endswith(suffix)]


def without_indexes(topic: Topic) -> list[bytes]:
    """What a round makes of the log that finds nothing kept."""
    beside = Topic(topic.store, topic.root, ManualClock(NOW_MS))
    place = (topic.store, f"{topic.root}/{NAME}"), (topic.store, f"{topic.root}/beside")
    dataset = LogDataset("kafka+memory://x", *place, beside.clock, RandomIds(), topic.opened()._settings)
    whole_round(dataset)
    return segments_of(topic.store, published(dataset))


def segments_of(store: ObjectStore, folder: str) -> list[bytes]:
    return [store.get(segment.key) for segment in read_folder(store, folder).segments]


def test_a_second_round_reads_what_is_new() -> None:
    """5 % are new: indexing reads these alone, and with matching at most 15 % of the log's bytes."""
    rows = [
        logs.data(at, *((f"k{n % 30}", "v" * 900) for n in range(at, at + 10))) for at in range(0, 400, 10)
    ]
    topic = a_topic([rows[at : at + 2] for at in range(0, 40, 2)])
    first = whole_round(topic.opened())
    log_bytes = sum(len(data) for data in topic.everything().values())
    assert first[Step.INDEX] == log_bytes
    add(topic, [[logs.data(400, *((f"k{n}", "w" * 900) for n in range(20)))]])
    new_bytes = sum(len(data) for data in topic.everything().values()) - log_bytes
    second = whole_round(topic.opened())
    assert second[Step.INDEX] == new_bytes
    assert second[Step.INDEX] + second[Step.MATCH] <= 0.15 * (log_bytes + new_bytes)
    assert segments_of(topic.store, published(topic.opened())) == without_indexes(topic)


@pytest.mark.parametrize("seed", range(12))
def test_rounds_over_a_growing_log_come_to_what_rounds_without_indexes_do(seed: int) -> None:
    """Byte for byte, whatever was damaged or lost between any two steps."""
    rng = random.Random(seed)
    segments = cut(rng, logs.random_history(rng), 9)
    start = rng.randrange(2, 6)
    topic = a_topic(segments[:start])
    for end in (start, start + 2, 9):
        add(topic, segments[:end][-2:])
        dataset = topic.opened()
        while dataset.propose(dataset.snapshot(), Ledger(), full=True).proposals:
            damage(rng, topic)
            step(dataset)
        found = dataset.snapshot().round(NAME)
        assert found is not None
        if found.settled:
            assert segments_of(topic.store, published(dataset)) == without_indexes(topic)


def damage(rng: random.Random, topic: Topic) -> None:
    """Something happens to a few kept objects."""
    there = kept(topic)
    for key in rng.sample(there, min(len(there), rng.randrange(4))):
        data = topic.store.get(key)
        match rng.choice(("gone", "cut", "flipped", "another's", "empty")):
            case "gone":
                topic.store.delete(key)
            case "cut":
                topic.store.put(key, data[: rng.randrange(len(data) or 1)])
            case "flipped" if data:
                at = rng.randrange(len(data))
                topic.store.put(key, data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :])
            case "another's":
                alike = [other for other in there if other.rpartition(".")[2] == key.rpartition(".")[2]]
                with suppress(Exception):
                    topic.store.put(key, topic.store.get(rng.choice(alike)))
            case _:
                topic.store.put(key, b"")


@pytest.mark.parametrize("suffix", [FACTS_SUFFIX, HEADERS_SUFFIX, RUN_SUFFIX])
@pytest.mark.parametrize("spoil", [lambda data: data[:-1], lambda data: data + b"x", lambda data: b""])
def test_a_damaged_index_is_made_anew(suffix: str, spoil: Callable[[bytes], bytes]) -> None:
    topic = a_topic(SEGMENTS)
    assert step(topic.opened()).step is Step.INDEX
    before = {key: topic.store.get(key) for key in kept(topic)}
    damaged = kept(topic, suffix)[0]
    topic.store.put(damaged, spoil(before[damaged]))
    assert step(topic.opened()).step is Step.MATCH
    assert step(topic.opened()).step is Step.REWRITE
    if len(spoil(b"12")) <= 2:  # what stands behind a run is never read
        assert {key: topic.store.get(key) for key in kept(topic)} == before
    assert segments_of(topic.store, published(topic.opened())) == without_indexes(topic)


@pytest.mark.parametrize("suffix", [FACTS_SUFFIX, RUN_SUFFIX])
def test_the_index_of_another_object_is_never_taken(suffix: str) -> None:
    """A whole one, as large, under the name of this one."""
    segments = [[logs.data(3 * n, ("a", f"{n}"), (f"b{n}", f"{n}"), ("c", f"{n}"))] for n in range(4)]
    topic = a_topic(segments)
    step(topic.opened())
    one, another, *_ = kept(topic, suffix)
    assert topic.store.get(one) != topic.store.get(another)
    topic.store.put(one, topic.store.get(another))
    step(topic.opened())
    step(topic.opened())
    assert segments_of(topic.store, published(topic.opened())) == without_indexes(topic)


def test_an_object_that_was_replaced_is_read_again() -> None:
    """As large as before, and by the same name."""
    topic = a_topic(SEGMENTS)
    whole_round(topic.opened())
    add(topic, [[logs.data(0, ("a", "1"), ("d", "1"), ("c", "1"))]])
    assert whole_round(topic.opened())[Step.INDEX] == len(logs.encode_all(SEGMENTS[0]))
    rows = read_rows(topic.store, published(topic.opened()))
    assert b"d" in [row[2] for row in rows if row[0] == 1]


def test_an_object_is_known_by_name_size_time_and_etag() -> None:
    one = Segment("orders-0/0.log", 0, 10, 1000, "e")
    others = [
        Segment("orders-1/0.log", 0, 10, 1000, "e"),
        Segment("orders-0/0.log", 0, 11, 1000, "e"),
        Segment("orders-0/0.log", 0, 10, 1001, "e"),
        Segment("orders-0/0.log", 0, 10, 1000, "f"),
        Segment("orders-0/0.log", 0, 10, 1000, None),
    ]
    assert len({index_key("index", found) for found in (one, one, *others)}) == 1 + len(others)


class Replacing(WrappedStore):
    """Somebody writes the object while it is read."""

    def __init__(self, inner: ObjectStore, key: str, data: bytes) -> None:
        super().__init__(inner)
        self._change = key, data

    def around(self, call: Call, action: Callable[[], ResultT]) -> ResultT:
        result = action()
        if call.method.startswith("get_range"):
            self.inner.put(*self._change)
        return result


def test_an_object_that_changes_while_it_is_read_has_no_index() -> None:
    topic = a_topic(SEGMENTS)
    segment = read_folder(topic.store, f"{topic.root}/{NAME}").segments[0]
    source = Replacing(topic.store, segment.key, b"x" * segment.size_bytes)
    with pytest.raises(Refused, match="has changed while it was read"):
        index_of(source, topic.store, segment, index_key(f"{topic.root}/index", segment))
    assert not [m for m in topic.store.list(f"{topic.root}/index") if m.key.endswith(FACTS_SUFFIX)]


def test_a_damaged_segment_is_refused_whatever_was_kept_of_it() -> None:
    topic = a_topic(SEGMENTS)
    step(topic.opened())
    (segment, *_) = read_folder(topic.store, f"{topic.root}/{NAME}").segments
    topic.store.delete(kept(topic, FACTS_SUFFIX)[0])
    topic.store.put(segment.key, topic.store.get(segment.key)[:-1] + b"?")
    damaged = read_folder(topic.store, f"{topic.root}/{NAME}").segments[0]
    with pytest.raises(CorruptObject):
        index_of(topic.store, topic.store, damaged, index_key(f"{topic.root}/index", damaged))


def test_who_dies_while_indexing_leaves_nothing_that_counts() -> None:
    topic = a_topic(SEGMENTS)
    segment = read_folder(topic.store, f"{topic.root}/{NAME}").segments[1]
    rehearsal = FaultyStore.scripted(topic.store, {})
    key = index_key(f"{topic.root}/rehearsal", segment)
    expected = index_of(topic.store, rehearsal, segment, key).facts
    for number in range(1, len(rehearsal.calls) + 1):
        key = index_key(f"{topic.root}/killed-{number}", segment)
        dying = FaultyStore.crash_at(topic.store, number, after=number % 2 == 0)
        with suppress(Crash):
            index_of(topic.store, dying, segment, key)
        facts = index_of(topic.store, topic.store, segment, key).facts
        assert replace(facts, runs=()) == replace(expected, runs=())
        assert [run.entries for run in facts.runs] == [run.entries for run in expected.runs]


@in_parts(5)
def test_a_second_round_killed_at_any_call_ends_as_one_without_an_index(part: int) -> None:
    def grown() -> Topic:
        topic = a_topic(SEGMENTS)
        topic.compact(topic.opened(ALWAYS))
        add(topic, [[logs.data(6, ("c", "2"), ("e", "1"))], [logs.data(8, ("a", "9"))]])
        topic.store.delete(kept(topic, FACTS_SUFFIX)[0])
        return topic

    topic = grown()
    rehearsal = FaultyStore.scripted(topic.store, {})
    topic.compact(topic.opened(ALWAYS, store=rehearsal))
    expected = read_rows(topic.store, published(topic.opened()))
    assert b"".join(without_indexes(topic)) == b"".join(segments_of(topic.store, published(topic.opened())))
    for number in range(1 + part, len(rehearsal.calls) + 1, 5):
        topic = grown()
        dying = FaultyStore.crash_at(topic.store, number, after=number % 2 == 0)
        with suppress(Crash):
            topic.compact(topic.opened(ALWAYS, store=dying))
        topic.compact(topic.opened(ALWAYS))
        assert read_rows(topic.store, published(topic.opened())) == expected, f"killed at call {number}"


class Collected(WrappedStore):
    """A store in which a read fails, and a garbage collection deletes the object meanwhile."""

    def around(self, call: Call, action: Callable[[], ResultT]) -> ResultT:
        if call.method == "get_range":
            self.inner.delete(call.key)
            raise StoreError("connection reset")
        return action()


class Held(WrappedStore):
    """A store with objects that cannot be deleted."""

    def around(self, call: Call, action: Callable[[], ResultT]) -> ResultT:
        if call.method == "delete" and call.key.endswith("held"):
            raise StoreError(f"{call.key} is held")
        return action()


def test_a_part_that_goes_while_it_is_read_is_gone() -> None:
    topic = a_topic(SEGMENTS)
    whole_round(topic.opened())
    key = next(key for key in kept(topic) if key.endswith(RUN_SUFFIX))
    with pytest.raises(CorruptObject, match="is gone"):
        get_parts(Collected(topic.store), key, ENTRY, 1, 0, 1)


def test_only_what_was_deleted_is_reported_as_deleted() -> None:
    store, report = MemoryStore(), GarbageReport(dry_run=False)
    for name, size in (("a", 5), ("held", 7), ("c", 11)):
        store.put(f"work/{name}", bytes(size))
    left = _Garbage(Held(store), report, Deleting()).remove("work", list(store.list("work")))
    assert [meta.key for meta in left] == ["work/held"]
    assert (report.deleted["work"], report.bytes_deleted) == (2, 16)


def test_garbage_are_indexes_of_objects_that_are_gone() -> None:
    topic = a_topic(SEGMENTS)
    dataset = topic.opened()
    whole_round(dataset)
    before = set(kept(topic))
    add(topic, [[logs.data(0, ("a", "1"), ("d", "1"), ("c", "1"))]])
    whole_round(dataset)
    made_since = set(kept(topic)) - before
    assert len(made_since) == 3
    assert collect(dataset, min_age_ms=3_600_000, dry_run=False).deleted["indexes"] == 0
    assert collect(dataset, min_age_ms=-1000, dry_run=True).deleted["indexes"] == 3
    assert collect(dataset, min_age_ms=-1000, dry_run=False).deleted["indexes"] == 3
    assert made_since < set(kept(topic)) < before | made_since
    for key in topic.everything():
        topic.store.delete(key)
    collect(dataset, min_age_ms=-1000, dry_run=False)
    assert not kept(topic)


def test_the_facts_go_before_what_they_tell_of() -> None:
    """So what a collection that died has left of an index is none."""
    topic = a_topic(SEGMENTS)
    whole_round(topic.opened())
    for key in topic.everything():
        topic.store.delete(key)
    rehearsal = FaultyStore.scripted(topic.store, {})
    collect(topic.opened(store=rehearsal), min_age_ms=-1000, dry_run=False)
    gone = [call.key for call in rehearsal.calls if call.method == "delete" and "/index/" in call.key]
    assert [key.endswith(FACTS_SUFFIX) for key in gone] == [True] * 3 + [False] * 6


def test_a_log_that_may_not_be_listed_keeps_its_indexes() -> None:
    topic = a_topic(SEGMENTS)
    whole_round(topic.opened())
    before = kept(topic)
    topic.store.put(f"{topic.root}/{NAME}/{0:020d}.log.swap", b"")
    collect(topic.opened(), min_age_ms=-1000, dry_run=False)
    assert kept(topic) == before
