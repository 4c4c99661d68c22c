"""Topics in a broker's bucket that gain partitions after they were copied to a new topic."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from lithify.base.errors import LithifyError
from lithify.datasets.kafka.buckets import copying
from lithify.datasets.kafka.format.kernel.layout import CONTROL
from lithify.datasets.kafka.format.record_batches import decode, rebased
from lithify.store.wrapped import Call
from lithify.testing import ManualClock
from lithify.testing.faulty import StoreFault
from tests.datasets.kafka import copies, logs
from tests.datasets.kafka.buckets import Bucket, a_bucket
from tests.datasets.kafka.test_windows import some
from tests.fuzz.running import without_waiting

WRITES = ("put", "create", "replace", "delete")


def shown(bucket: Bucket) -> int:
    """How many partitions of the new topic the broker knows."""
    found: int = copies.told(bucket)["topic"]["num_partitions"]
    return found


def high_or_none(bucket: Bucket) -> int | None:
    found: int | None = json.loads(bucket.store.get(f"{bucket.partition}/watermark.json"))["high"]
    return found


def test_a_gained_partition_is_compacted_and_then_shown() -> None:
    bucket = a_bucket(some(20))
    copies.copied(bucket)
    assert copies.is_complete(bucket)
    copies.of_broker(bucket, 2)
    second = copies.numbered(bucket, 1)
    second.produce(*some())
    copies.commit(second, "readers", 41)
    id = copies.told(bucket)["id"]
    assert not copies.is_complete(bucket)
    assert copies.copied(bucket).started
    assert (shown(bucket), copies.told(bucket)["id"]) == (2, id)
    copies.same_log(bucket)
    copies.same_log(second)
    assert copies.copy_of(second).bases() == [0, 87]
    assert copies.committed(copies.copy_of(second), "readers") == 41
    assert copies.is_complete(bucket)
    assert not copies.copied(bucket).started


def test_a_gained_partition_without_objects_is_shown() -> None:
    """And what it gets later is copies.copied, as it is."""
    bucket = a_bucket(some(20))
    copies.copied(bucket)
    copies.of_broker(bucket, 3)
    assert not copies.is_complete(bucket)
    (proposal,) = (
        copies.opened(bucket)
        .planner()(copies.opened(bucket).snapshot(), copies.opened(bucket).ledger())
        .proposals
    )
    assert proposal.reason == "orders-0: the broker knows 1 of 3 partitions of orders.v2"
    copies.copied(bucket)
    assert shown(bucket) == 3
    assert copies.is_complete(bucket)
    assert not copies.copied(bucket).started
    for number in (1, 2):
        empty = copies.copy_of(copies.numbered(bucket, number))
        assert high_or_none(empty) is None
        assert not empty.bases()
    copies.numbered(bucket, 2).produce(*some(5))
    assert not copies.is_complete(bucket)
    copies.copied(bucket)
    copies.same_log(copies.numbered(bucket, 2))
    assert copies.copy_of(copies.numbered(bucket, 2)).bases() == [0, 3, 6, 9, 12]
    assert copies.is_complete(bucket)


def test_the_broker_is_told_though_groups_and_objects_came_too() -> None:
    bucket = gained()
    copies.copied(bucket)
    assert shown(bucket) == 3
    whole(bucket)
    assert copies.committed(copies.copy_of(bucket), "readers") == 11
    assert not copies.copied(bucket).started


def test_offsets_in_partitions_without_objects_are_carried_too() -> None:
    """A consumer commits where it is in all its partitions, and may insist that it finds that again."""
    bucket = a_bucket(some(6), partitions=2)
    second = copies.numbered(bucket, 1)
    copies.commit(second, "readers", 0)
    copies.copied(bucket)
    assert copies.committed(copies.copy_of(second), "readers") == 0
    copies.commit(second, "late", 0)
    assert not copies.is_complete(bucket)
    assert copies.said(bucket)["offsets_moved"] == ["orders-1"]
    copies.copied(bucket)
    assert copies.committed(copies.copy_of(second), "late") == 0
    assert copies.is_complete(bucket)
    assert not copies.copied(bucket).started
    second.produce(*some(5))
    copies.commit(second, "readers", 12)
    copies.copied(bucket)
    copies.same_log(second)
    assert copies.copy_of(second).bases() == [0, 3, 6, 9, 12]
    assert copies.committed(copies.copy_of(second), "readers") == 12
    assert copies.is_complete(bucket)


def test_young_objects_of_a_gained_partition_come_later() -> None:
    bucket = a_bucket(some(6))
    copies.copied(bucket)
    copies.of_broker(bucket, 2)
    second = copies.numbered(bucket, 1)
    second.produce(*some(6))
    bucket.clock = ManualClock(second.listed()[0].last_modified_ms + 5000)
    copies.copied(bucket, quiet_period="1m")
    assert shown(bucket) == 2
    assert not copies.is_complete(bucket)
    bucket.clock.advance_s(60)
    copies.copied(bucket, quiet_period="1m")
    copies.same_log(second)
    assert copies.is_complete(bucket)


def test_a_partition_of_which_nothing_is_decided_is_not_said_to_be_written_into() -> None:
    """Its watermark in the source is ahead of what is copies.copied, which a copy's never is."""
    bucket = a_bucket(some(6), partitions=2)
    second = copies.numbered(bucket, 1)
    second.store.put(f"{second.partition}/watermark.json", b'{"low":null,"high":9,"timestamps":null}')
    copies.copied(bucket)
    assert high_or_none(copies.copy_of(second)) is None
    second.produce(logs.in_transaction(0, ("t", "1"), id=3))
    summary = copies.copied(bucket)
    assert not summary.failures
    second.produce(logs.marker(1, id=3, commit=True), *[logs.data(n, ("a", f"{n}")) for n in range(2, 5)])
    assert not copies.copied(bucket).failures
    assert copies.high(copies.copy_of(second)) == copies.high(second) == 5
    assert rows_of(copies.copy_of(second)) == rows_of(second)
    assert copies.is_complete(bucket)


def rows_of(bucket: Bucket) -> list[bytes]:
    found = []
    for base in bucket.bases():
        log = decode(rebased(bucket.store.get(bucket.key(base)), base), str(base))
        if not log.batches[0]["attributes"] & CONTROL:
            found += [log.value(number) or b"" for number in range(len(log.records))]
    return found


def test_it_gains_another_one_while_the_broker_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker is copies.told of those only that were looked at."""
    bucket = a_bucket(some(6))
    announce = copying.announce
    third = copies.numbered(bucket, 1)

    def late(*place: Any) -> None:
        if not third.bases():
            copies.of_broker(bucket, 2)
            third.produce(*some())
        announce(*place)

    monkeypatch.setattr("lithify.datasets.kafka.buckets.topic_copy.announce", late)
    copies.copied(bucket)
    assert shown(bucket) == 2
    copies.same_log(third)
    assert copies.copy_of(third).bases() == [0, 87]


# Dying


def gained() -> Bucket:
    """Once copies.copied; then it got more, a partition with rows and one that is empty."""
    bucket = a_bucket(some(4))
    copies.commit(bucket, "readers", 2)
    copies.copied(bucket)
    copies.of_broker(bucket, 3)
    bucket.produce(*some(6)[4:])
    copies.numbered(bucket, 1).produce(*some(9))
    copies.commit(bucket, "readers", 11)
    return bucket


def only_empty() -> Bucket:
    bucket = a_bucket(some(4))
    copies.copied(bucket)
    copies.of_broker(bucket, 2)
    copies.commit(copies.numbered(bucket, 1), "readers", 0)
    return bucket


def writes(calls: list[Call]) -> list[int]:
    return [number for number, call in enumerate(calls, 1) if call.method in WRITES]


def whole(bucket: Bucket) -> None:
    for number in range(shown(bucket)):
        if copies.numbered(bucket, number).bases():
            copies.same_log(copies.numbered(bucket, number))
        else:
            assert high_or_none(copies.copy_of(copies.numbered(bucket, number))) is None


def killed(monkeypatch: pytest.MonkeyPatch, numbers: list[int], *, grows: bool) -> None:
    """The rows of a gained partition are there when it is shown; the next run finishes."""
    for number in numbers:
        for fault in (StoreFault.CRASH_BEFORE, StoreFault.CRASH_AFTER):
            bucket = gained()
            before = bucket.contents()
            copies.dying(monkeypatch, bucket, number, fault)
            assert bucket.contents() == before, f"killed at call {number}"
            if shown(bucket) > 1:
                copies.same_log(copies.numbered(bucket, 1))
            if grows:
                for of in range(3):
                    copies.numbered(bucket, of).produce(*some(14)[9:])
            copies.copied(bucket)
            assert shown(bucket) == 3, f"killed at call {number}"
            whole(bucket)
            assert copies.committed(copies.copy_of(bucket), "readers") == 11
            assert copies.is_complete(bucket)
            assert not copies.copied(bucket).started


@pytest.mark.parametrize("grows", [False, True])
def test_killed_between_some_writes(monkeypatch: pytest.MonkeyPatch, grows: bool) -> None:
    calls = copies.dying(monkeypatch, gained(), 0, None)
    found = writes(calls)
    # Keys, since some objects are put again or not, by the milliseconds in which they were written.
    assert len({calls[number - 1].key for number in found}) > 20
    killed(monkeypatch, sorted(random.Random(7).sample(found, 5)) + found[-3:], grows=grows)


@pytest.mark.whole
@pytest.mark.parametrize("grows", [False, True])
def test_killed_between_any_two_writes(monkeypatch: pytest.MonkeyPatch, grows: bool) -> None:
    killed(monkeypatch, writes(copies.dying(monkeypatch, gained(), 0, None)), grows=grows)


def test_killed_while_the_broker_is_told_of_an_empty_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the partition gets rows before the next run, which nobody has produced into the copy."""
    for number in writes(copies.dying(monkeypatch, only_empty(), 0, None)):
        bucket = only_empty()
        copies.dying(monkeypatch, bucket, number, StoreFault.CRASH_AFTER)
        second = copies.numbered(bucket, 1)
        if shown(bucket) == 2:
            assert copies.committed(copies.copy_of(second), "readers") == 0
        second.produce(*some(12))
        copies.commit(second, "readers", 36)
        assert not copies.copied(bucket).failures, f"killed at call {number}"
        assert copies.committed(copies.copy_of(second), "readers") == 36
        assert shown(bucket) == 2
        whole(bucket)
        assert copies.is_complete(bucket)


def test_what_an_attempt_on_other_terms_has_left_of_it_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Since the broker does not know that partition, though it knows the topic."""
    calls = copies.dying(monkeypatch, gained(), 0, None)
    second = f"/{copies.NEW}/partitions/{1:010d}/records/"
    put = [at for at, call in enumerate(calls, 1) if call.method == "create" and second in call.key]
    assert len(put) == 2
    bucket = gained()
    copies.dying(monkeypatch, bucket, put[-1], StoreFault.CRASH_AFTER)
    copies.numbered(bucket, 1).produce(*some(40))  # its first objects are newer now
    copies.copied(bucket)
    whole(bucket)
    assert copies.copy_of(copies.numbered(bucket, 1)).bases() == [0, 117]


def test_a_state_that_says_only_that_the_broker_knows_the_copy() -> None:
    """As it was written once: how many partitions it knows is found out."""
    bucket = a_bucket(some(6), partitions=2)
    copies.copied(bucket)
    state = copies.opened(bucket).state()
    document = json.loads(state.encode())
    assert document["copy"].pop("announced") == 2
    document["copy"]["is_visible"] = True
    copies.opened(bucket).states.update(
        lambda _: json.dumps(document).encode(), bucket.clock, random.Random()
    )
    copies.copied(bucket)
    assert copies.opened(bucket).state().announced == shown(bucket) == 2
    assert copies.is_complete(bucket)


# Refusals


def refused(bucket: Bucket) -> str:
    """Why; nothing was written."""
    before = {meta.key: bucket.store.get(meta.key) for meta in bucket.store.list(bucket.root)}
    with pytest.raises(LithifyError) as error:
        copies.copied(bucket)
    assert {meta.key: bucket.store.get(meta.key) for meta in bucket.store.list(bucket.root)} == before
    return str(error.value)


def test_fewer_partitions_than_the_broker_was_told_are_refused() -> None:
    bucket = a_bucket(some(6), partitions=3)
    copies.copied(bucket)
    copies.of_broker(bucket, 2)
    assert "orders has 2 partitions, but its copy orders.v2 has 3; make another copy" in refused(bucket)


def test_other_partitions_of_the_copy_than_the_broker_was_told_are_refused() -> None:
    bucket = a_bucket(some(6), partitions=2)
    copies.copied(bucket)
    copies.of_broker(bucket, 1, copies.NEW)
    assert "the copy orders.v2 was made with 2 partitions, and now has 1; make another copy" in refused(
        bucket
    )
    copies.of_broker(bucket, 3, copies.NEW)
    assert "orders has 2 partitions, but its copy orders.v2 has 3; make another copy" in refused(bucket)


def test_a_count_that_is_none_is_refused() -> None:
    bucket = a_bucket(some(6))
    copies.of_broker(bucket, -1)
    assert "does not decode" in refused(bucket)


def test_it_shrinks_while_the_broker_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = a_bucket(some(6), partitions=3)
    announce = copying.announce

    def late(*place: Any) -> None:
        copies.of_broker(bucket, 2)
        announce(*place)

    monkeypatch.setattr("lithify.datasets.kafka.buckets.topic_copy.announce", late)
    with pytest.raises(LithifyError, match="orders now has 2 partitions, but had 3"):
        copies.copied(bucket)
    assert not copies.told(bucket)


def test_it_is_said_what_is_lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "SystemClock", copies.Pausing)
    bucket = a_bucket(some(6))
    asked = copies.asked(bucket)
    with without_waiting():
        assert "is complete" in copies.words("compact", *asked)
        copies.of_broker(bucket, 2)
        assert "orders.v2 lacks 1 partition; run again." in copies.words("status", *asked)
        copies.numbered(bucket, 1).produce(*some(3))
        assert "orders.v2 lacks 3 objects, 1 partition; run again." in copies.words("status", *asked)
        assert "is complete" in copies.words("compact", *asked)
