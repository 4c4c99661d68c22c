"""Kafka's log cleaner and Redpanda's compaction as their own tests have them, by the names of those tests.

A story is a list of steps of `Partition`: what is written and done, and what is expected then. The tables
below it say of all other names which test shows the same, or why there is nothing to show.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from lithify.base.ids import RandomIds
from lithify.coordination.leadership import Leadership
from lithify.datasets.kafka.dataset import LogDataset
from lithify.datasets.kafka.format.kernel.layout import CONTROL
from lithify.datasets.kafka.format.record_batches import RecordBatches, decode
from lithify.datasets.kafka.layouts.segments import read_folder
from lithify.datasets.kafka.settings import KafkaSettings
from lithify.service import one_shot
from lithify.store.urls import open_store
from lithify.testing import ManualClock
from lithify.testing.engine import InlineEngine
from tests.datasets.kafka import logs
from tests.datasets.kafka.folders import latest, put_segments
from tests.datasets.kafka.logs import Batch, data, in_transaction, marker

NAME = "orders-0"
NOW_MS = 10_000
"""Records of these logs are a few seconds old."""
_numbers = itertools.count()
Story = list[tuple[object, ...]]


class Partition:
    """A partition in a folder of segments; what is compacted of it is taken over each time."""

    def __init__(self) -> None:
        self._store, self._root = open_store(f"memory://stories-{next(_numbers)}/dataset")
        self._folder = f"{self._root}/{NAME}"
        self._clock = ManualClock(NOW_MS)
        self._settings = {
            "delete_retention": "1s",
            "min_cleanable_dirty_ratio": "0",
            "producer_id_expiration": "0s",
        }
        self._all: list[Batch] = []

    # What is done

    def write(self, *segments: Sequence[Batch]) -> None:
        """Each as a segment. The newest one is never compacted."""
        put_segments(self._store, self._folder, segments)
        self._all += itertools.chain(*segments)

    def write_random(self, segments: int, keys: int, tombstones: float) -> None:
        rng = random.Random(segments * keys)
        offset = self._all[-1].last + 1 if self._all else 0
        for _ in range(segments):
            batches = []
            for _ in range(6):
                pairs = [
                    (f"k{rng.randrange(keys)}", None if rng.random() < tombstones else f"v{rng.random()}")
                    for _ in range(rng.randrange(1, 6))
                ]
                batches.append(data(offset, *pairs))
                offset += len(pairs)
            self.write(batches)

    def remember_producers(self) -> None:
        self._settings["producer_id_expiration"] = "1d"

    def forget_producers(self) -> None:
        self._settings["producer_id_expiration"] = "0s"

    def pass_s(self, duration_s: int) -> None:
        self._clock.advance_s(duration_s)

    def compact(self) -> None:
        settings = KafkaSettings.model_validate(self._settings)
        places = (self._store, self._folder), (self._store, f"{self._root}/out-{next(_numbers)}")
        dataset = LogDataset("kafka+memory://x", *places, self._clock, RandomIds(), settings)
        leadership = Leadership(dataset, self._clock, RandomIds())
        summary = one_shot.run(dataset, InlineEngine(), self._clock, RandomIds(), leadership)
        assert not summary.failures
        assert not summary.refused
        found = dataset.snapshot().round(NAME)
        assert found is not None
        if found.is_whole:
            self._folder = dataset.output_folder(found.done[-1], NAME)

    # What is expected

    def rows(self, expected: str) -> None:
        """`0:a=1 2:b-`: offsets, keys, values; a minus is a tombstone."""
        said = [
            f"{offset}:{(key or b'').decode()}" + ("-" if value is None else f"={value.decode()}")
            for offset, _, key, value in self._rows()
        ]
        assert " ".join(said) == expected

    def batches(self, *expected: int) -> None:
        """Base offsets of all there are, markers and empty ones too."""
        assert logs.column(self._log().batches, "base_offset") == list(expected)

    def empty_batches(self, *expected: int) -> None:
        batches = self._log().batches
        assert logs.column(batches[batches["count"] == 0], "base_offset") == list(expected)

    def epochs(self, *expected: int) -> None:
        assert [int.from_bytes(self._log().raw(at)[12:16]) for at in range(len(self._log().batches))] == list(
            expected
        )

    def last_sequence(self, producer: int, epoch: int, sequence: int) -> None:
        """What a broker that loads the log takes for the last one of a producer, and so for no duplicate."""
        log = self._log()
        (*_, at) = [n for n, one in enumerate(log.batches) if one["producer_id"] == producer]
        raw = log.raw(at)
        first, delta = int.from_bytes(raw[53:57]), int.from_bytes(raw[23:27])
        assert (int.from_bytes(raw[51:53]), first + delta) == (epoch, sequence)

    def segments(self, *expected: int) -> None:
        found = read_folder(self._store, self._folder).segments
        assert [one.base_offset for one in found] == list(expected)

    def latest_is_right(self) -> None:
        assert latest(self._rows()) == latest(logs.expected_rows(self._all))

    def one_of_each_key(self, tombstones: bool) -> None:
        """In what is settled."""
        newest = read_folder(self._store, self._folder).segments[-1].base_offset
        settled = [row for row in self._rows() if row[0] < newest]
        assert len({row[2] for row in settled}) == len(settled)
        assert tombstones or all(row[3] is not None for row in settled)

    def _log(self) -> RecordBatches:
        found = read_folder(self._store, self._folder).segments
        return decode(b"".join(self._store.get(one.key) for one in found), self._folder)

    def _rows(self) -> list[tuple[int, int, bytes | None, bytes | None]]:
        log = self._log()
        is_control = log.batches["attributes"] & CONTROL != 0
        found = zip(log.records["batch"], logs.rows(log), strict=True)
        return [row for at, row in found if not is_control[at]]


KAFKA: dict[str, Story] = {
    "testMultiPassSegmentCleaningWithAbortedTransactions": [
        ("write", [in_transaction(0, ("a", "1"), id=1)], [in_transaction(1, ("b", "1"), id=1)]),
        ("write", [marker(2, id=1, commit=False)], [data(3, ("y", "1"))], [data(4, ("z", "1"))]),
        ("compact",),
        ("batches", 2, 3, 4),  # its data went in this very pass
        ("compact",),
        ("batches", 2, 3, 4),
        ("pass_s", 2),
        ("compact",),
        ("batches", 3, 4),
    ],
    "testDeletedBatchesWithNoMessagesRead": [
        ("write", [in_transaction(0, ("a", "1"), id=1), marker(1, id=1, commit=False)]),
        ("write", [data(2, ("a", None))], [data(3, ("z", "1"))]),
        ("compact",),
        ("compact",),
        ("pass_s", 2),
        ("compact",),
        ("segments", 0, 3),  # nothing is left of the first one but its name
        ("rows", "3:z=1"),
        ("compact",),
        ("rows", "3:z=1"),
    ],
    "testCommittedTransactionSpanningSegments": [
        ("write", [in_transaction(0, ("a", "1"), id=1)], [in_transaction(1, ("b", "1"), id=1)]),
        ("write", [marker(2, id=1, commit=True)], [data(3, ("z", "1"))]),
        ("compact",),
        ("pass_s", 2),
        ("compact",),
        ("batches", 0, 1, 2, 3),
        ("rows", "0:a=1 1:b=1 3:z=1"),
    ],
    "testAbortedTransactionSpanningSegments": [
        ("write", [data(0, ("a", "1"))], [in_transaction(1, ("a", "bad"), id=1)]),
        ("write", [in_transaction(2, ("b", "bad"), id=1)], [marker(3, id=1, commit=False)]),
        ("write", [data(4, ("z", "1"))]),
        ("compact",),
        ("batches", 0, 3, 4),
        ("rows", "0:a=1 4:z=1"),
    ],
    "testEmptyBatchRemovalWithSequenceReuse": [
        ("remember_producers",),
        ("write", [data(0, ("a", "1"), producer=(5, 0, 0))], [data(1, ("a", "2"))], [data(2, ("y", "1"))]),
        ("compact",),
        ("empty_batches", 0),
        ("write", [data(3, ("b", "1"), producer=(5, 1, 0))], [data(4, ("z", "1"))]),
        ("compact",),
        ("empty_batches",),
        ("rows", "1:a=2 2:y=1 3:b=1 4:z=1"),
    ],
    "testDuplicateCheckAfterCleaning": [
        ("remember_producers",),
        ("write", [data(0, ("a", "1"), ("b", "1"), producer=(5, 0, 0))]),
        ("write", [data(2, ("a", "2"), ("b", "2"), ("c", "2"), producer=(5, 0, 2))]),
        ("write", [data(5, ("a", "3"), ("b", "3"), ("c", "3"))], [data(8, ("z", "1"))]),
        ("compact",),
        ("empty_batches", 2),
        ("last_sequence", 5, 0, 4),
    ],
    "testCleaningWithDeletes": [
        ("write", [data(0, ("a", "1"), ("b", "1"), ("c", "1"), ("d", "1"))]),
        ("write", [data(4, ("a", None), ("c", None))], [data(6, ("z", "1"))]),
        ("compact",),
        ("rows", "1:b=1 3:d=1 4:a- 5:c- 6:z=1"),
        ("pass_s", 2),
        ("compact",),
        ("rows", "1:b=1 3:d=1 6:z=1"),
    ],
    "testCleaningBeyondMissingOffsets": [
        ("write", [data(0, ("a", "1"), ("b", "1"))], [data(5_000_000_000, ("a", "2"))]),
        ("write", [data(9_000_000_000, ("z", "1"))]),
        ("compact",),
        ("segments", 0, 5_000_000_000, 9_000_000_000),  # more apart than an index can count
        ("rows", "1:b=1 5000000000:a=2 9000000000:z=1"),
    ],
}

REDPANDA: dict[str, Story] = {
    # compaction_e2e_test.cc
    "TestDedupeOnePass": [
        ("write_random", 10, 20, 0.0),
        ("compact",),
        ("one_of_each_key", False),
        ("latest_is_right",),
    ],
    "TestDedupeMultiPassAddedSegment": [
        ("write_random", 4, 30, 0.0),
        ("compact",),
        ("write_random", 1, 30, 0.0),
        ("compact",),
        ("one_of_each_key", False),
        ("latest_is_right",),
    ],
    "TestRecompactWithNewData": [
        ("write_random", 5, 9, 0.0),
        ("compact",),
        ("write_random", 5, 9, 0.0),
        ("compact",),
        ("one_of_each_key", False),
        ("latest_is_right",),
    ],
    "TestTombstones": [
        ("write", [data(0, ("a", "1"), ("a", None))], [data(2, ("b", "1"))], [data(3, ("z", "1"))]),
        ("compact",),
        ("rows", "1:a- 2:b=1 3:z=1"),
        ("pass_s", 2),
        ("compact",),
        ("rows", "2:b=1 3:z=1"),
    ],
    "TestTombstonesCompletelyEmptyLog": [
        ("write", [data(0, ("a", "1"), ("b", "1"))], [data(2, ("a", None), ("b", None))]),
        ("write", [data(4, ("z", "1"))]),
        ("compact",),
        ("pass_s", 2),
        ("compact",),
        ("rows", "4:z=1"),
        ("empty_batches", 2),  # where what is settled ends
    ],
    "TestTombstonesRandomDistribution": [
        ("write_random", 10, 20, 0.4),
        ("compact",),
        ("one_of_each_key", True),
        ("pass_s", 2),
        ("compact",),
        ("one_of_each_key", False),
        ("latest_is_right",),
    ],
    "TestSegmentConcatenation": [
        ("write", *[[data(n, ("a", str(n)))] for n in range(6)]),
        ("compact",),
        ("segments", 0, 5),
        ("rows", "4:a=4 5:a=5"),
    ],
    "TestAdjacentCompaction": [
        ("write", *[[data(n, (str(n), "1"), leader_epoch=n // 2)] for n in range(6)]),
        ("compact",),
        ("segments", 0, 5),
        ("epochs", 0, 0, 1, 1, 2, 2),  # a segment may be of several, each batch says of which it is
    ],
    "SuperfluousPlaceholderRemoval": [
        ("remember_producers",),
        ("write", [data(0, ("a", "1"), producer=(5, 0, 0))], [data(1, ("a", "2"))], [data(2, ("z", "1"))]),
        ("compact",),
        ("empty_batches", 0),
        ("forget_producers",),
        ("compact",),
        ("empty_batches",),
        ("batches", 1, 2),
    ],
    "AbortTransactions": [
        ("write", [data(0, ("a", "1"))], [in_transaction(1, ("a", "2"), ("b", "2"), id=1)]),
        ("write", [marker(3, id=1, commit=False)], [data(4, ("z", "1"))]),
        ("compact",),
        ("compact",),
        ("pass_s", 2),
        ("compact",),
        ("batches", 0, 3, 4),
        ("empty_batches", 3),  # where what is settled ends
        ("rows", "0:a=1 4:z=1"),
    ],
    "CommitTransactions": [
        ("write", [data(0, ("a", "1"))], [in_transaction(1, ("a", "2"), ("b", "2"), id=1)]),
        ("write", [marker(3, id=1, commit=True)], [data(4, ("a", "3"), ("b", "3"))], [data(6, ("z", "1"))]),
        ("compact",),
        ("batches", 3, 4, 6),
        ("compact",),
        ("pass_s", 2),
        ("compact",),
        ("batches", 4, 6),
        ("rows", "4:a=3 5:b=3 6:z=1"),
    ],
}

SHOWN = {
    # LogCleanerTest
    "testBasicTransactionAwareCleaning": "test_retention.py test_basic_transaction_aware_cleaning",
    "testCommitMarkerRemoval": "test_retention.py test_commit_marker_removal",
    "testCommitMarkerRetentionWithEmptyBatch": (
        "test_transactions.py test_commit_marker_retention_with_empty_batch"
    ),
    "testAbortMarkerRemoval": "test_retention.py test_abort_marker_removal",
    "testAbortMarkerRetentionWithEmptyBatch": (
        "test_transactions.py test_abort_marker_retention_with_empty_batch"
    ),
    "testCleanEmptyControlBatch": "test_transactions.py test_clean_empty_control_batch",
    "testLogCleanerRetainsProducerLastSequence": (
        "test_retention.py test_log_cleaner_retains_producer_last_sequence"
    ),
    "testLogCleanerRetainsLastSequenceEvenIfTransactionAborted": (
        "test_retention.py test_log_cleaner_retains_last_sequence_even_if_transaction_aborted"
    ),
    "testCleaningWithKeysConflictingWithTxnMarkerKeys": (
        "test_retention.py test_cleaning_with_keys_conflicting_with_txn_marker_keys"
    ),
    "testCleanTombstone": "test_retention.py test_clean_tombstone",
    "testCleaningWithUnkeyedMessages": "test_retention.py test_cleaning_with_unkeyed_messages",
    "testCleaningWithUncleanableSection": "test_retention.py test_cleaning_with_uncleanable_section",
    "testCleanSegmentsRetainingLastEmptyBatch": (
        "test_retention.py test_clean_segments_retaining_last_empty_batch"
    ),
    "testSegmentGrouping": "test_planner.py test_neighbours_are_merged_up_to_the_target",
    "testSegmentGroupingWithSparseOffsets": (
        "test_planner.py test_a_group_has_no_more_offsets_than_a_batch_can_count"
    ),
    "testSegmentGroupingFollowingLoadOfZeroIndex": "test_planner.py test_objects_without_bytes_are_no_reason",
    "testSegmentWithOffsetOverflow": "test_segments.py test_what_an_index_cannot_count_is_refused",
    "testRecoveryAfterCrash": "test_rounds.py test_a_run_killed_at_any_call_leaves_nothing_half",
    "testBuildPartialOffsetMap": "test_rounds.py test_keys_are_compared_slice_by_slice",
    # LogCleanerManagerTest
    "testUndecidedTransactionalDataNotCleanable": (
        "test_rounds.py test_an_open_transaction_leaves_everything_as_it_is"
    ),
    "testCleanableOffsetsForNone": "test_planner.py test_without_a_lag_a_clock_that_is_ahead_bounds_nothing",
    "testCleanableOffsetsForTime": "test_planner.py test_young_records_bound_the_round",
    "testCleanableOffsetsActiveSegment": "test_planner.py test_the_newest_object_stays",
    # compaction_e2e_test.cc
    "TestDedupeMultiPass": "test_rounds.py test_keys_are_compared_slice_by_slice",
    "TestCompactWithNonDataBatches": "test_retention.py test_control_batches_of_other_types_stay",
    "ReadFilledGaps": "test_segments.py test_kafka_finds_everything_through_the_indexes",
    "TestSlidingWindowNoUnecessaryRewrites": "test_rounds.py test_a_second_run_does_nothing",
    "SimulateCrashDuringFileRemoval": "test_windows.py test_leftovers_that_nobody_knows_of_any_more",
    # segment_deduplication_test.cc
    "BuildOffsetMap": "test_index.py test_any_runs_and_slices_come_to_what_a_plain_map_says",
    "TestBadReader": "test_rounds.py test_a_damaged_segment_ends_the_round_before_anything_is_written_anew",
    # compaction_e2e_multinode_test.cc, tx_compaction_tests.cc, compaction_fuzz_test.cc, storage_e2e_test.cc
    "compact_transactions_and_replicate": (
        "test_members.py test_a_transaction_whose_marker_a_copy_lacks_keeps_it_in_all"
    ),
    "test_tx_compaction_combinations": "test_retention.py test_no_pass_changes_what_a_reader_holds",
    "compaction_fuzz_test": (
        "test_kept_indexes.py test_rounds_over_a_growing_log_come_to_what_rounds_without_indexes_do"
    ),
    "write_truncate_compact": "test_rounds.py test_what_was_written_meanwhile_is_refused",
    "test_max_compact_offset_mid_segment": "test_retention.py test_cleaning_with_uncleanable_section",
    "changing_cleanup_policy_back_and_forth": "test_windows.py test_a_topic_that_is_no_map_is_refused",
    # log_compaction_test.py; LogCompactionTxRemovalTest and the rest about groups is in tests/coordination
    "compaction_stress_test": "test_windows.py test_killed_again_and_again_while_the_log_grows",
    "dirty_ratio_scheduling_test": "test_planner.py test_what_is_mostly_clean_is_left_alone",
}

NOTHING_TO_SHOW = {
    "testPartialSegmentClean": "no map of keys can be full: slices of hashes hold any number",
    "testCleanableOffsetsForShortTime": "a lag counts in milliseconds here, and there is no timer",
    "testCleanableOffsetsNeedsCheckpointReset": "every round compares all that is settled, from the first on",
    "TestFailToIndexOneSegmentResetWindow": "likewise: no map, no window",
    "chunked compaction": "likewise",
    "FindSlidingRange": "likewise",
    "test_toggle_sliding_window": "likewise",
    "TestReadFilledGapsWithTerms": "gaps stay gaps; nobody makes batches up to fill them",
    "raft compaction_recovery_test": "likewise: no ghost batches",
    "MultipleRanges": "batches carry their epoch, so segments of several are merged; TestAdjacentCompaction",
    "TestBatchCacheResetAfterAdjacentMerge": "no cache: what is read is never changed",
    "segment_tx_flags": "no flags are kept: both marks are told from an index of what is there",
    "replicate_after_compaction": "replicas are the broker's",
    "rm_stm": "of a producer the last batch stays, as Kafka has it, not a window of five",
    "test_skipping_compaction_below_start_offset": "the start of a log is where its first segment begins",
}


@pytest.mark.parametrize("slice_records", [4, 1 << 20])
@pytest.mark.parametrize("name", [*KAFKA, *REDPANDA])
def test_story(name: str, slice_records: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With slices of the hash space that hold a few keys, too: TestTombstonesMultiPassRandomDistribution."""
    monkeypatch.setattr("lithify.datasets.kafka.cleaning.cleaning_plan.SLICE_BYTES", 32 * slice_records)
    partition = Partition()
    for step, *arguments in (KAFKA | REDPANDA)[name]:
        do: Callable[..., None] = getattr(partition, str(step))
        do(*arguments)


@pytest.mark.parametrize("name", SHOWN)
def test_is_shown_elsewhere(name: str) -> None:
    module, test = SHOWN[name].split()
    assert f"def {test}(" in (Path(__file__).parent / module).read_text()
    assert name not in KAFKA | REDPANDA | NOTHING_TO_SHOW
