"""Which partitions are worth compacting, and what is said of the rest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from lithify.datasets.kafka.format.kernel.layout import MAX_OFFSET_DELTA
from lithify.datasets.kafka.planner import (
    LogObject,
    LogPlan,
    LogPolicy,
    Partition,
    groups,
    plan,
)

NOW_MS = 1_000_000
POLICY = LogPolicy()


def objects(count: int, size: int = 1000, each: int = 10, time: int = 0) -> list[LogObject]:
    """Objects of so many offsets, one behind the other; each is a second younger than the one before."""
    return [LogObject(n * each, (n + 1) * each, size, time + 1000 * n) for n in range(count)]


def of(partition: Partition, **policy: Any) -> LogPlan:
    return plan([partition], LogPolicy(**policy), NOW_MS)


def partition(all_objects: Iterable[LogObject], clean: int = 0, stable: int | None = None) -> Partition:
    listed = list(all_objects)
    end = listed[-1].end_offset if listed else 0
    return Partition("orders-3", listed, clean, end if stable is None else stable)


def test_what_is_mostly_new_is_worth_it() -> None:
    (found,) = of(partition(objects(11), clean=40)).rounds
    assert (found.start_offset, found.end_offset, found.objects, found.size_bytes) == (0, 100, 10, 10_000)
    assert found.reason == ("orders-3, offsets 0 to 100: 60% of 10.0 kB is new, 10 objects where 1 would do")


def test_what_is_mostly_clean_is_left_alone() -> None:
    found = of(partition(objects(11), clean=60))
    assert found.rounds == ()
    assert found.notes == (
        "orders-3: 40% of 10.0 kB is new, below 50% (min.cleanable.dirty.ratio), in 10 objects, 1 needed; "
        "the newest object, from 100 on, is not changed",
    )


def test_many_small_objects_are_worth_it_though_nothing_is_new() -> None:
    assert of(partition(objects(17), clean=160)).rounds == ()
    (found,) = of(partition(objects(18), clean=170)).rounds
    assert found.reason == "orders-3, offsets 0 to 170: 0% of 17.0 kB is new, 17 objects where 1 would do"


def test_the_newest_object_stays() -> None:
    found = of(partition(objects(1)))
    assert found.notes == ("orders-3: nothing is settled: the newest object, from 0 on, is not changed",)


def test_an_open_transaction_bounds_the_round() -> None:
    (found,) = of(partition(objects(11), stable=45)).rounds
    assert (found.end_offset, found.objects) == (45, 4)
    found_nothing = of(partition(objects(11), stable=9))
    assert found_nothing.notes == ("orders-3: nothing is settled: a transaction is open from 9 on",)


def test_young_records_bound_the_round() -> None:
    young = objects(11, time=NOW_MS - 10_000)
    (found,) = of(partition(young), min_compaction_lag_ms=5000).rounds
    assert (found.end_offset, found.objects) == (60, 6)
    late = of(partition(young), min_compaction_lag_ms=60_000)
    assert late.notes == (
        "orders-3: nothing is settled: records from 0 on are younger than min.compaction.lag.ms",
    )


def test_without_a_lag_a_clock_that_is_ahead_bounds_nothing() -> None:
    (found,) = of(partition(objects(11, time=NOW_MS + 5000))).rounds
    assert found.objects == 10


def test_what_is_overdue_is_worth_it_and_comes_first() -> None:
    old = partition(objects(11), clean=90)
    (found,) = of(old, max_compaction_lag_ms=900_000).rounds
    assert found.priority == 1.0
    assert found.reason.endswith("; the oldest waits 91 s longer than max.compaction.lag.ms")
    assert of(old, max_compaction_lag_ms=NOW_MS).rounds == ()
    assert of(partition(objects(11), clean=100), max_compaction_lag_ms=1).rounds == ()


def test_records_without_times_are_never_overdue() -> None:
    timeless = [LogObject(n, n + 1, 10, -1) for n in range(4)]
    assert of(partition(timeless, clean=2), max_compaction_lag_ms=1).rounds == ()


def test_the_most_urgent_comes_first() -> None:
    def numbered(number: int, clean: int) -> Partition:
        return Partition(f"orders-{number}", objects(11, size=1_000_000), clean, 110)

    found = plan([numbered(0, 40), numbered(1, 0), numbered(2, 20), numbered(4, 0)], POLICY, NOW_MS)
    assert [item.partition for item in found.rounds] == ["orders-1", "orders-4", "orders-2", "orders-0"]
    assert all(0 <= item.priority <= 1 for item in found.rounds)


def test_a_partition_without_objects_is_noted() -> None:
    assert of(Partition("orders-0", [], 0, 0)).notes == ("orders-0: no objects",)


def test_objects_without_bytes_are_no_reason() -> None:
    assert of(partition(objects(5, size=0))).rounds == ()


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([5], [[5]]),
        ([5, 5, 5], [[5, 5], [5]]),
        ([20, 1, 20], [[20], [1], [20]]),
        ([1] * 11, [[1] * 10, [1]]),
    ],
)
def test_neighbours_are_merged_up_to_the_target(sizes: list[int], expected: list[list[int]]) -> None:
    made = [LogObject(n, n + 1, size, 0) for n, size in enumerate(sizes)]
    found = groups(made, 10)
    assert [[item.size_bytes for item in group] for group in found] == expected
    assert [item for group in found for item in group] == made


def test_a_group_has_no_more_offsets_than_a_batch_can_count() -> None:
    far = [LogObject(0, 10, 1, 0), LogObject(MAX_OFFSET_DELTA, MAX_OFFSET_DELTA + 1, 1, 0)]
    assert len(groups(far, 10)) == 1
    further = [LogObject(0, 10, 1, 0), LogObject(MAX_OFFSET_DELTA, MAX_OFFSET_DELTA + 2, 1, 0)]
    assert len(groups(further, 10)) == 2
