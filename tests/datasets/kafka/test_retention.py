"""What a pass keeps. Many tests have the names of those of Kafka's log cleaner and show the same."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lithify.datasets.kafka.cleaning.index import index, match
from lithify.datasets.kafka.cleaning.retention import (
    NO_BOUND,
    NO_OFFSETS,
    LastRecord,
    Rules,
    active,
    empty_to_retain,
    last_records,
    retention,
)
from lithify.datasets.kafka.format.record_batches import RecordBatches, decode, filtered
from lithify.datasets.kafka.format.transactions import fates, follow
from tests.datasets.kafka import logs
from tests.datasets.kafka.logs import Batch, in_transaction, marker

RULES = Rules(now_ms=10_000, delete_retention_ms=1000, keep_unkeyed=False, bound=NO_BOUND)
LATER = replace(RULES, now_ms=11_000)
"""When the delete horizons that `RULES` sets have come."""
Pair = tuple[int, str | None, str | None]


def clean(
    source: RecordBatches,
    rules: Rules = RULES,
    *,
    bound: int | None = None,
    producers: dict[int, LastRecord] | None = None,
    pinned: Sequence[int] = (),
) -> RecordBatches:
    """One pass over a whole log."""
    what, _ = fates(source.batches, follow(source.batches).aborted)
    matched = match([index(source, what, rules.bound)])
    kept = retention(
        source,
        what,
        rules,
        empty_to_retain(source.batches, producers or {}, NO_BOUND if bound is None else bound),
        matched.dead,
        np.union1d(matched.pinned, np.array(pinned, np.int64)),
    )
    return decode(filtered(source, kept), source.name)


def pairs(source: RecordBatches) -> list[Pair]:
    """Offset, key and value of what is no marker."""
    is_control = source.batches["attributes"] & logs.CONTROL != 0
    return [
        (offset, None if key is None else key.decode(), None if value is None else value.decode())
        for number, (offset, _, key, value) in enumerate(logs.rows(source))
        if not is_control[source.records[number]["batch"]]
    ]


def bases(source: RecordBatches) -> list[int]:
    return logs.column(source.batches, "base_offset")


def test_the_newest_of_each_key_stays() -> None:
    source = logs.log(logs.data(0, ("a", "1"), ("b", "1"), ("a", "2")), logs.data(3, ("b", "2"), ("c", "1")))
    assert pairs(clean(source)) == [(2, "a", "2"), (3, "b", "2"), (4, "c", "1")]


def test_clean_tombstone() -> None:
    """Kept in the pass that removes what it deletes, for the retention after that, then removed."""
    source = logs.log(logs.data(0, ("a", "1"), ("b", "1")), logs.data(2, ("a", None), ("c", "1")))
    first = clean(source)
    assert pairs(first) == [(1, "b", "1"), (2, "a", None), (3, "c", "1")]
    assert logs.column(first.batches, "base_timestamp") == [1001, 11_000]
    assert [row[1] for row in logs.rows(first)] == [1001, 1002, 1003]
    too_early = clean(first, replace(RULES, now_ms=10_999))
    assert pairs(too_early) == pairs(first)
    assert pairs(clean(too_early, LATER)) == [(1, "b", "1"), (3, "c", "1")]


def test_a_tombstone_without_older_values_needs_two_passes_too() -> None:
    source = logs.log(logs.data(0, ("a", None)))
    assert pairs(clean(source, replace(RULES, now_ms=1 << 50))) == [(0, "a", None)]


def test_a_tombstone_waits_for_the_copies() -> None:
    first = clean(logs.log(logs.data(0, ("a", None), ("b", None))))
    assert pairs(clean(first, replace(LATER, tombstones_below=1))) == [(1, "b", None)]
    assert pairs(clean(first, replace(LATER, tombstones_below=0))) == pairs(first)


def test_a_pinned_tombstone_stays() -> None:
    """A key in an untouched object never comes back."""
    first = clean(logs.log(logs.data(0, ("a", None), ("b", None))))
    assert pairs(clean(first, LATER, pinned=[0])) == [(0, "a", None)]


def test_cleaning_with_unkeyed_messages() -> None:
    source = logs.log(logs.data(0, (None, "1"), ("a", "1"), (None, None)))
    assert pairs(clean(source)) == [(1, "a", "1")]
    kept = replace(RULES, keep_unkeyed=True)
    assert pairs(clean(source, kept)) == [(0, None, "1"), (1, "a", "1"), (2, None, None)]


def test_cleaning_with_uncleanable_section() -> None:
    """What is past the bound stays, and supersedes nothing."""
    source = logs.log(
        logs.data(0, ("a", "0"), ("a", "1"), (None, "1"), ("a", "2")), logs.data(4, ("a", "3"), (None, "2"))
    )
    expected = [(1, "a", "1"), (3, "a", "2"), (4, "a", "3"), (5, None, "2")]
    assert pairs(clean(source, replace(RULES, bound=3))) == expected


def test_basic_transaction_aware_cleaning() -> None:
    source = logs.log(
        in_transaction(0, ("a", "1"), ("b", "1"), id=1),
        in_transaction(2, ("a", "bad"), ("c", "bad"), id=2),
        marker(4, id=2, commit=False),
        marker(5, id=1, commit=True),
    )
    first = clean(source)
    assert pairs(first) == [(0, "a", "1"), (1, "b", "1")]
    assert bases(first) == [0, 4, 5]
    second = clean(first)
    assert bases(second) == [0, 4, 5]
    assert logs.column(second.batches, "base_timestamp")[1] == 11_000
    assert bases(clean(second, LATER)) == [0, 5]


def test_an_aborted_record_is_never_the_newest() -> None:
    source = logs.log(
        logs.data(0, ("a", "good")), in_transaction(1, ("a", "bad"), id=2), marker(2, id=2, commit=False)
    )
    assert pairs(clean(source)) == [(0, "a", "good")]


def test_commit_marker_removal() -> None:
    """When all of its data is superseded and gone, and after the retention."""
    source = logs.log(
        in_transaction(0, ("a", "1"), id=1), marker(1, id=1, commit=True), logs.data(2, ("a", "2"))
    )
    first = clean(source)
    assert bases(first) == [1, 2]
    second = clean(first, LATER)
    assert bases(second) == [1, 2]
    assert logs.column(second.batches, "base_timestamp")[0] == 12_000
    third = clean(second, replace(RULES, now_ms=11_999))
    assert bases(third) == [1, 2]
    assert bases(clean(third, replace(RULES, now_ms=12_000))) == [2]


def test_abort_marker_removal() -> None:
    first = clean(logs.log(in_transaction(0, ("a", "1"), id=1), marker(1, id=1, commit=False)))
    assert bases(first) == [1]
    second = clean(first)
    assert bases(clean(second, LATER)) == []


def test_a_marker_waits_for_the_copies_though_tombstones_need_not() -> None:
    marked = clean(logs.log(marker(7, id=1, commit=True), logs.data(8, ("a", None))))
    held = replace(LATER, markers_below=7)
    assert bases(clean(marked, held)) == [7]
    assert bases(clean(marked, replace(LATER, tombstones_below=0))) == [8]


def test_cleaning_with_keys_conflicting_with_txn_marker_keys() -> None:
    """A record may have the bytes of a marker as its key: neither supersedes the other."""
    record = logs.Rec(0, 1000, b"\0\0\0\1", b"mine")
    source = logs.log(Batch((record,)), in_transaction(1, ("a", "1"), id=1), marker(2, id=1, commit=True))
    assert bases(clean(source)) == [0, 1, 2]


def test_control_batches_of_other_types_stay() -> None:
    leader_change = logs.Rec(0, 1000, b"\0\0\0\2", b"")
    source = logs.log(Batch((leader_change,), control=True))
    assert bases(clean(clean(source), replace(LATER, now_ms=1 << 50))) == [0]


def test_log_cleaner_retains_producer_last_sequence() -> None:
    source = logs.log(
        logs.data(0, ("a", "1"), ("b", "1"), producer=(5, 0, 0)),
        logs.data(2, ("a", "2"), producer=(5, 0, 2)),
        logs.data(3, ("a", "3"), ("b", "3")),
    )
    producers = last_records(source.batches)
    assert producers == {5: LastRecord(0, 2, 1002)}
    kept = clean(source, producers=producers)
    assert bases(kept) == [2, 3]
    assert logs.column(kept.batches, "count") == [0, 2]
    assert bases(clean(kept, producers=last_records(kept.batches))) == [2, 3]
    assert bases(clean(kept, producers=active(producers, 99_999, 1000))) == [3]


def test_log_cleaner_retains_last_sequence_even_if_transaction_aborted() -> None:
    source = logs.log(
        in_transaction(0, ("a", "1"), ("b", "1"), id=5),
        marker(2, id=5, commit=False),
        logs.data(3, ("a", "3")),
    )
    kept = clean(source, producers=last_records(source.batches))
    assert (bases(kept), logs.column(kept.batches, "count")) == ([0, 2, 3], [0, 1, 1])


def test_the_last_epoch_of_a_producer_stays() -> None:
    """A marker of a newer epoch is the last there is of it, even when it is empty."""
    source = logs.log(
        in_transaction(0, ("a", "1"), id=5, epoch=1),
        marker(1, id=5, epoch=2, commit=False),
        logs.data(2, ("a", "2")),
    )
    producers = last_records(source.batches)
    assert producers[5].data_offset is None
    kept = clean(clean(clean(source, producers=producers), producers=producers), LATER, producers=producers)
    assert bases(kept) == [1, 2]
    assert logs.column(kept.batches, "count") == [0, 1]


def test_clean_segments_retaining_last_empty_batch() -> None:
    """The end of the log is not lost with its last records."""
    source = logs.log(logs.data(0, ("a", "1")), in_transaction(1, ("a", "2"), id=1), logs.data(2, ("a", "3")))
    part = decode(b"".join(source.raw(at) for at in range(2)), "log")
    what, _ = fates(part.batches, ())
    kept = retention(part, what, RULES, empty_to_retain(part.batches, {}, 2), np.array([0, 1]), NO_OFFSETS)
    assert bases(decode(filtered(part, kept), "log")) == [1]


def test_producers_are_followed_from_object_to_object() -> None:
    batches = logs.log(
        logs.data(0, ("a", "1"), producer=(5, 0, 0)),
        marker(1, id=5, commit=True),
        logs.data(2, ("a", "1")),
        in_transaction(3, ("a", "1"), id=6),
        marker(4, id=6, epoch=3, commit=False),
    ).batches
    whole = last_records(batches)
    assert whole == {5: LastRecord(0, 0, 2001), 6: LastRecord(3, None, 2004)}
    assert last_records(batches[2:], last_records(batches[:2])) == whole


def replay(source: RecordBatches) -> dict[str, str | None]:
    """What a reader of committed records holds at the end."""
    aborted = {t.first_offset: t for t in follow(source.batches).aborted}
    gone = set()
    for transaction in aborted.values():
        inside = (source.batches["base_offset"] >= transaction.first_offset) & (
            source.batches["base_offset"] <= transaction.last_offset
        )
        mine = inside & (source.batches["producer_id"] == transaction.producer_id)
        gone |= {
            int(at) for at in np.flatnonzero(mine & (source.batches["attributes"] & logs.TRANSACTIONAL != 0))
        }
    held: dict[str, str | None] = {}
    is_control = source.batches["attributes"] & logs.CONTROL != 0
    for number, record in enumerate(source.records):
        key, at = source.key(number), int(record["batch"])
        if key is None or is_control[at] or at in gone:
            continue
        value = source.value(number)
        held.pop(key.decode(), None)
        if value is not None:
            held[key.decode()] = value.decode()
    return held


def test_no_pass_changes_what_a_reader_holds() -> None:
    """Random histories, cleaned again and again until nothing is left to clean: one record for each key."""
    for seed in range(25):
        source = logs.log(*logs.random_history(random.Random(seed)))
        expected = replay(source)
        for step in range(6):
            source = clean(source, replace(RULES, now_ms=10_000 + 2000 * step))
            assert replay(source) == expected
        assert {key: value for _, key, value in pairs(source)} == expected
        assert len(pairs(source)) == len(expected)
        again = clean(source, replace(RULES, now_ms=99_000))
        assert again.memory[: again.size].tobytes() == source.memory[: source.size].tobytes()
