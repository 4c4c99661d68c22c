"""What Lithify promises to who reads and writes a keyed log, promise by promise, and where each is shown.

Those that are about all ways of compacting a topic in a broker's bucket are shown here. A reader in memory
gets rows as librdkafka hands them on: of an answer that begins with the object its position is in, whatever
there is from that position on, in the order of objects.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from lithify.base.ids import RandomIds
from lithify.datasets.kafka.buckets import copying, publishing
from lithify.datasets.kafka.cleaning.index import Matched, Run, match
from lithify.datasets.kafka.cleaning.tasks import recorded
from lithify.datasets.kafka.dataset import LogDataset
from lithify.datasets.kafka.format.record_batches import decode, rebased
from lithify.datasets.kafka.layouts import objects
from lithify.datasets.kafka.settings import KafkaSettings
from lithify.datasets.kafka.state import Step
from lithify.protocol.model import Compaction, Ledger, Progress, RangeProgress
from lithify.store.wrapped import Call
from lithify.testing.faulty import FaultyStore
from tests.datasets.kafka import logs
from tests.datasets.kafka.buckets import NOW_MS, Bucket, a_bucket
from tests.datasets.kafka.copies import copied, copy_of
from tests.datasets.kafka.folders import Row, latest, read_rows
from tests.datasets.kafka.logs import Batch
from tests.datasets.kafka.test_live import during
from tests.datasets.kafka.test_object_times import Compact, live, window
from tests.datasets.kafka.test_rounds import NAME, a_topic, published
from tests.datasets.kafka.test_windows import some

TESTS = Path(__file__).parents[2]
PROMISED = {
    "latest map equal, same offsets": (
        "test_windows.py test_small_objects_become_one_and_the_latest_map_and_offsets_stay"
    ),
    "five codecs": "test_windows.py test_codecs",
    "timestamps survive the horizon bit": "test_windows.py test_timestamps_survive_the_delete_horizon",
    "earliest, end, every position, seek into holes": "test_promises.py test_every_position_and_every_hole",
    "the same, both clients, the broker": "test_broker.py test_readers_and_producers_go_on_after_a_window",
    "a consumer paused inside a batch": "test_promises.py test_a_consumer_paused_inside_a_batch_goes_on",
    "a consumer paused inside a batch, live": (
        "test_live_broker.py test_consumers_paused_inside_a_batch_go_on_after_it_was_merged"
    ),
    "a producer that writes throughout": "test_live.py test_a_producer_that_writes_throughout",
    "idempotent and transactional producers go on": (
        "test_broker.py test_readers_and_producers_go_on_after_a_window"
    ),
    "never an older value after a newer one": (
        "test_promises.py test_a_reader_never_sees_an_older_value_after_a_newer_one"
    ),
    "the same live, how far": "test_promises.py test_how_far_a_reader_goes_back_while_a_topic_is_live",
    "aborted rows gone, committed kept; over many objects, interleaved": (
        "test_windows.py test_aborted_rows_go_and_committed_ones_stay_over_many_objects_interleaved"
    ),
    "no crash leaves data without the marker that decides it": (
        "test_order_of_publication.py "
        "test_nothing_of_a_transaction_is_left_without_its_marker_wherever_a_run_dies"
    ),
    "an open transaction bounds the round": "test_windows.py test_an_open_transaction_bounds_the_run",
    "marker kept while a copy may hold its data though clean has passed it": (
        "test_retention.py test_a_marker_waits_for_the_copies_though_tombstones_need_not"
    ),
    "clean waits while resolved rises": "test_members.py test_clean_waits_while_resolved_rises",
    "control batches never in the key map": (
        "test_retention.py test_cleaning_with_keys_conflicting_with_txn_marker_keys"
    ),
    "a key in an untouched object never comes back": (
        "test_live.py test_a_key_in_the_first_object_which_is_untouched_never_comes_back"
    ),
    "records without keys, objects": "test_windows.py test_records_without_keys_stay",
    "records without keys, segments": "test_retention.py test_cleaning_with_unkeyed_messages",
    "a late object in a hole": "test_windows.py test_a_late_object_in_a_hole",
    "tombstone kept for a reader behind, removed after its commit": (
        "test_members.py test_a_tombstone_stays_for_a_reader_that_is_behind_and_goes_after_its_commit"
    ),
    "offsets reset backwards lower nothing": (
        "test_members.py test_a_tombstone_stays_for_a_reader_that_is_behind_and_goes_after_its_commit"
    ),
    "a reader with state below the threshold is refused": (
        "cli/test_group.py test_a_reader_that_starts_below_a_threshold_is_refused"
    ),
    "a stalled copy freezes; after catching up and compacting it advances": (
        "test_members.py test_a_tombstone_waits_for_a_copy_until_it_was_compacted_and_taken_over"
    ),
    "removing the slowest unblocks": "test_members.py test_removing_the_slowest_unblocks",
    "leader dies before publishing": (
        "test_members.py test_who_dies_before_it_has_said_anything_says_it_when_it_commits_again"
    ),
    "zombie leader with old membership": (
        "coordination/test_groups.py test_a_leader_that_slept_publishes_for_the_members_there_are"
    ),
    "restored copy": "test_members.py test_a_log_that_was_restored_is_another_incarnation",
    "add-only replication": (
        "test_add_only_replication.py test_add_only_replication_leaves_what_merged_objects_cover"
    ),
    "kill at every store call, window": "test_windows.py test_killed_at_every_call_of_a_publication",
    "kill at every store call, live": "test_live.py test_killed_at_every_write_of_a_publication",
    "kill at every store call, copy": "test_topic_copies.py test_killed_at_every_call",
    "kill at every store call, segments": "test_rounds.py test_a_run_killed_at_any_call_leaves_nothing_half",
    "topic deleted and made again meanwhile": (
        "test_windows.py test_a_topic_deleted_and_made_again_meanwhile"
    ),
    "the same, copy": "test_copied_meanwhile.py test_a_topic_deleted_and_made_again_meanwhile",
    "a second run does nothing": "test_windows.py test_a_second_run_does_nothing",
    "an all-dead range resumes as finished": "test_promises.py test_an_all_dead_range_resumes_as_finished",
    "keys ten times a task's memory in one round": (
        "test_promises.py test_ten_times_as_many_keys_as_a_task_holds_in_one_round"
    ),
    "corrupt input refused": (
        "test_rounds.py test_a_damaged_segment_ends_the_round_before_anything_is_written_anew"
    ),
    "indexes right": "test_segments.py test_kafka_finds_everything_through_the_indexes",
}
ALL_WAYS = pytest.mark.parametrize("compact", [window, live, copied])


@pytest.mark.parametrize("promise", PROMISED)
def test_what_is_promised_is_shown(promise: str) -> None:
    place, test = PROMISED[promise].split()
    path = TESTS / place if "/" in place else Path(__file__).with_name(place)
    assert f"def {test}(" in path.read_text()


def outcome(bucket: Bucket, compact: Compact) -> Bucket:
    """The topic that readers read afterwards."""
    compact(bucket)
    return copy_of(bucket) if compact is copied else bucket


def handed_on(bucket: Bucket, position: int) -> list[Row]:
    """What a reader at this position is handed on."""
    found: list[Row] = []
    for base in bucket.bases():
        log = decode(rebased(bucket.store.get(bucket.key(base)), base), str(base))
        if log.batches[0]["last_offset"] >= position:
            found += [row for row in logs.rows(log) if row[0] >= position]
    return found


def backward(rows: Iterable[Row]) -> list[tuple[int, int]]:
    """From which offset to which an older row comes after a newer one."""
    return [(a[0], b[0]) for a, b in pairwise(rows) if b[0] <= a[0]]


def with_holes() -> list[Batch]:
    """Objects of three rows, some of which were never written."""
    return [batch for number, batch in enumerate(some(40)) if number not in (4, 5, 17, 31)]


@ALL_WAYS
def test_every_position_and_every_hole(compact: Compact) -> None:
    """From the earliest offset, from each one up to the end, in an object, behind one or in a hole."""
    bucket = a_bucket(with_holes())
    before = latest(bucket.rows())
    found = outcome(bucket, compact)
    rows = found.rows()
    assert latest(rows) == before
    assert found.earliest_and_latest() == (0, 117)
    assert len(found.bases()) < 14
    for position in range(120):
        assert handed_on(found, position) == [row for row in rows if row[0] >= position], position


@ALL_WAYS
def test_a_consumer_paused_inside_a_batch_goes_on(compact: Compact) -> None:
    """Wherever it paused, also inside what is one batch only since: what it has had and what comes are, of
    each key, what is newest."""
    bucket = a_bucket(with_holes())
    before = bucket.rows()
    found = outcome(bucket, compact)
    for position in range(1, 120):
        rest = handed_on(found, position)
        assert not backward(rest)
        had = [row for row in before if row[0] < position]
        assert latest(had + rest) == latest(before), position


@pytest.mark.parametrize("compact", [window, copied])
def test_a_reader_never_sees_an_older_value_after_a_newer_one(
    monkeypatch: pytest.MonkeyPatch, compact: Compact
) -> None:
    """Whoever reads when the broker shows the topic: after a window, and of a new topic at every call of who
    copies, from when it is shown on."""
    monkeypatch.setattr(objects, "CHUNK_OBJECTS", 7)
    bucket = a_bucket(some(30))
    found = outcome(bucket, compact)
    reads = [handed_on(found, 0)]
    if compact is copied:
        make = copying._Copying

        def attempt(task, store, own, movements, clock):  # type: ignore[no-untyped-def]
            watched = FaultyStore(store, lambda number, call: reads.append(handed_on(found, 0)))
            return make(task, watched, own, movements, clock)

        monkeypatch.setattr(copying, "_Copying", attempt)
        monkeypatch.setattr(copying, "REQUESTS", 1)
        bucket.produce(*some(40)[30:])
        copied(bucket)
        assert len(reads) > 20
    reads.append(handed_on(found, 0))
    for rows in reads:
        assert not backward(rows)
    for earlier, later in pairwise(reads):
        assert later[: len(earlier)] == earlier
    assert latest(reads[-1]) == latest(bucket.rows())


def test_how_far_a_reader_goes_back_while_a_topic_is_live(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be promised there: between a put and the deletes that follow it, rows come again that the
    merged object has, and those that it has not. But a reader never goes back beyond where a merged object
    begins; newer ones come again after that, so of each key the last one it gets is the newest; and before
    and after a round it goes forward."""
    monkeypatch.setattr(objects, "CHUNK_OBJECTS", 7)
    monkeypatch.setattr(publishing, "REQUESTS", 1)  # nothing goes while it is looked
    bucket = a_bucket(some(40))
    before = latest(bucket.rows())
    went: list[bool] = []

    def watch(_: int, call: Call) -> None:
        rows, bases = handed_on(bucket, 0), bucket.bases()
        ends = {
            base: int(decode(rebased(bucket.store.get(bucket.key(base)), base), "").batches[0]["last_offset"])
            for base in bases
        }
        for newer, older in backward(rows):
            assert any(base <= older <= newer <= end for base, end in ends.items())
        assert latest(rows) == before
        went.append(bool(backward(rows)))

    def compacted() -> None:
        assert not live(bucket).failures

    during(monkeypatch, watch, compacted)
    assert any(went)
    assert not went[0]
    assert not went[-1]
    assert not backward(handed_on(bucket, 0))


@pytest.mark.parametrize("layout", ["objects", "segments"])
def test_an_all_dead_range_resumes_as_finished(monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    """Nothing is left of a range; whoever takes the compaction up does not do that again."""
    monkeypatch.setattr(objects, "CHUNK_OBJECTS", 5)
    batches = [logs.data(n, ("a", f"{n}")) for n in range(16)]
    if layout == "objects":
        bucket = a_bucket(batches)
        dataset: LogDataset = bucket.opened()
    else:
        topic = a_topic([batches[n : n + 5] for n in range(0, 16, 5)])
        dataset = topic.opened(KafkaSettings(segment_bytes=1))
    for step in list(Step)[: 3 if layout == "segments" else 4]:
        (proposal,) = dataset.propose(dataset.snapshot(), Ledger(), full=True).proposals
        assert proposal.spec.step is step
        compaction = Compaction(RandomIds().ulid(NOW_MS), proposal.spec)
        works = dataset.prepare(compaction, dataset.snapshot()).works
        outputs = {work.range: dataset.outcome(work.function(work.argument)).outputs for work in works}
        if step is Step.REWRITE:
            assert len(works) > 2
            finished = tuple(RangeProgress(number, found) for number, found in outputs.items())
            half = replace(compaction, progress=Progress((finished[0], RangeProgress(1), *finished[2:])))
            again = dataset.prepare(half, dataset.snapshot()).works
            assert [work.function is recorded for work in again] == [n != 1 for n in range(len(works))]
            assert [work.cost_bytes for work in again if work.range != 1] == [0] * (len(works) - 1)
            for work in again:
                assert dataset.outcome(work.function(work.argument)).outputs == outputs[work.range]
        done = replace(compaction, outputs=tuple(out for found in outputs.values() for out in found))
        assert dataset.commit([done], dataset.take_epoch()) == {compaction.id: None}
    if layout == "objects":
        assert [row[0] for row in bucket.rows()] == [14, 15]
    else:
        assert [row[0] for row in read_rows(topic.store, published(dataset))] == [14, 15]


def test_ten_times_as_many_keys_as_a_task_holds_in_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dozens of tasks each compare a slice of the keys, none more than it may hold, and together all."""
    held = 64
    monkeypatch.setattr("lithify.datasets.kafka.cleaning.cleaning_plan.SLICE_BYTES", 32 * held)
    monkeypatch.setattr("lithify.datasets.kafka.cleaning.segment_stats.PART_BYTES", 32)
    seen: list[int] = []

    def matched(runs: list[Run]) -> Matched:
        seen.append(sum(map(len, runs)))
        return match(runs)

    monkeypatch.setattr("lithify.datasets.kafka.cleaning.tasks.match", matched)
    keys = 10 * held
    rows = [(f"k{n % keys}", f"v{n}") for n in range(2 * keys)]
    batches = [logs.data(n, *rows[n : n + 40]) for n in range(0, len(rows), 40)]
    topic = a_topic(
        [*(batches[n : n + 8] for n in range(0, len(batches), 8)), [logs.data(len(rows), ("z", "1"))]]
    )
    dataset = topic.opened()
    topic.compact(dataset)
    assert sum(seen) == 2 * keys
    assert max(seen) <= 2 * held  # hashes do not fall evenly
    found = read_rows(topic.store, published(dataset))
    assert found == [row for row in read_rows(topic.store, f"{topic.root}/{NAME}") if row[0] >= keys]
