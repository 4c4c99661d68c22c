"""Topics in a broker's bucket that gain partitions after they were copied to a new topic."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from lithify.datasets.kafka import copying, view
from lithify.datasets.kafka.kernel.layout import CONTROL
from lithify.datasets.kafka.record_batches import decode, rebased
from lithify.errors import LithifyError
from lithify.store.wrapped import Call
from lithify.testing import ManualClock
from lithify.testing.faulty import Fault
from tests.datasets.kafka import logs
from tests.datasets.kafka.buckets import Bucket, a_bucket
from tests.datasets.kafka.test_topic_copies import (
    NEW,
    Pausing,
    commit,
    committed,
    copied,
    copy_of,
    dying,
    high,
    opened,
    same_log,
    told,
    words,
)
from tests.datasets.kafka.test_windows import some
from tests.fuzz.running import without_waiting

WRITES = ("put", "create", "replace", "delete")


def of_broker(bucket: Bucket, count: int, topic: str = "orders") -> None:
    """The broker says that a topic has so many partitions."""
    key = f"{bucket.root}/clusters/c/meta.json"
    document = json.loads(bucket.store.get(key))
    document["topics"][topic]["topic"]["num_partitions"] = count
    bucket.store.put(key, json.dumps(document).encode())


def shown(bucket: Bucket) -> int:
    """How many partitions of the new topic the broker knows."""
    found: int = told(bucket)["topic"]["num_partitions"]
    return found


def is_complete(bucket: Bucket) -> bool:
    found: bool = view.copy_json(view.look(opened(bucket).snapshot()))["copy"]["is_complete"]
    return found


def high_or_none(bucket: Bucket) -> int | None:
    found: int | None = json.loads(bucket.store.get(f"{bucket.partition}/watermark.json"))["high"]
    return found


def numbered(bucket: Bucket, number: int) -> Bucket:
    return replace(bucket, number=number)


def test_a_gained_partition_is_compacted_and_then_shown() -> None:
    bucket = a_bucket(some(20))
    copied(bucket)
    assert is_complete(bucket)
    of_broker(bucket, 2)
    second = numbered(bucket, 1)
    second.produce(*some())
    commit(second, "readers", 41)
    id = told(bucket)["id"]
    assert not is_complete(bucket)
    assert copied(bucket).started
    assert (shown(bucket), told(bucket)["id"]) == (2, id)
    same_log(bucket)
    same_log(second)
    assert copy_of(second).bases() == [0, 87]
    assert committed(copy_of(second), "readers") == 41
    assert is_complete(bucket)
    assert not copied(bucket).started


def test_a_gained_partition_without_objects_is_shown() -> None:
    """And what it gets later is copied, as it is."""
    bucket = a_bucket(some(20))
    copied(bucket)
    of_broker(bucket, 3)
    assert not is_complete(bucket)
    (proposal,) = opened(bucket).planner()(opened(bucket).snapshot(), opened(bucket).ledger()).proposals
    assert proposal.reason == "orders-0: the broker knows 1 of 3 partitions of orders.v2"
    copied(bucket)
    assert shown(bucket) == 3
    assert is_complete(bucket)
    assert not copied(bucket).started
    for number in (1, 2):
        empty = copy_of(numbered(bucket, number))
        assert high_or_none(empty) is None
        assert not empty.bases()
    numbered(bucket, 2).produce(*some(5))
    assert not is_complete(bucket)
    copied(bucket)
    same_log(numbered(bucket, 2))
    assert copy_of(numbered(bucket, 2)).bases() == [0, 3, 6, 9, 12]
    assert is_complete(bucket)


def test_the_broker_is_told_though_groups_and_objects_came_too() -> None:
    bucket = gained()
    copied(bucket)
    assert shown(bucket) == 3
    whole(bucket)
    assert committed(copy_of(bucket), "readers") == 11
    assert not copied(bucket).started


def test_young_objects_of_a_gained_partition_come_later() -> None:
    bucket = a_bucket(some(6))
    copied(bucket)
    of_broker(bucket, 2)
    second = numbered(bucket, 1)
    second.produce(*some(6))
    bucket.clock = ManualClock(second.listed()[0].last_modified_ms + 5000)
    copied(bucket, quiet_period="1m")
    assert shown(bucket) == 2
    assert not is_complete(bucket)
    bucket.clock.advance_s(60)
    copied(bucket, quiet_period="1m")
    same_log(second)
    assert is_complete(bucket)


def test_a_partition_of_which_nothing_is_decided_is_not_said_to_be_written_into() -> None:
    """Its watermark in the source is ahead of what is copied, which a copy's never is."""
    bucket = a_bucket(some(6), partitions=2)
    second = numbered(bucket, 1)
    second.store.put(f"{second.partition}/watermark.json", b'{"low":null,"high":9,"timestamps":null}')
    copied(bucket)
    assert high_or_none(copy_of(second)) is None
    second.produce(logs.in_transaction(0, ("t", "1"), id=3))
    summary = copied(bucket)
    assert not summary.failures
    second.produce(logs.marker(1, id=3, commit=True), *[logs.data(n, ("a", f"{n}")) for n in range(2, 5)])
    assert not copied(bucket).failures
    assert high(copy_of(second)) == high(second) == 5
    assert rows_of(copy_of(second)) == rows_of(second)
    assert is_complete(bucket)


def rows_of(bucket: Bucket) -> list[bytes]:
    found = []
    for base in bucket.bases():
        log = decode(rebased(bucket.store.get(bucket.key(base)), base), str(base))
        if not log.batches[0]["attributes"] & CONTROL:
            found += [log.value(number) or b"" for number in range(len(log.records))]
    return found


def test_it_gains_another_one_while_the_broker_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker is told of those only that were looked at."""
    bucket = a_bucket(some(6))
    announce = copying.announce
    third = numbered(bucket, 1)

    def late(*place: Any) -> None:
        if not third.bases():
            of_broker(bucket, 2)
            third.produce(*some())
        announce(*place)

    monkeypatch.setattr("lithify.datasets.kafka.topic_copy.announce", late)
    copied(bucket)
    assert shown(bucket) == 2
    same_log(third)
    assert copy_of(third).bases() == [0, 87]


# Dying


def gained() -> Bucket:
    """Once copied; then it got more, a partition with rows and one that is empty."""
    bucket = a_bucket(some(4))
    commit(bucket, "readers", 2)
    copied(bucket)
    of_broker(bucket, 3)
    bucket.produce(*some(6)[4:])
    numbered(bucket, 1).produce(*some(9))
    commit(bucket, "readers", 11)
    return bucket


def only_empty() -> Bucket:
    bucket = a_bucket(some(4))
    copied(bucket)
    of_broker(bucket, 2)
    return bucket


def writes(calls: list[Call]) -> list[int]:
    return [number for number, call in enumerate(calls, 1) if call.method in WRITES]


def whole(bucket: Bucket) -> None:
    for number in range(shown(bucket)):
        if numbered(bucket, number).bases():
            same_log(numbered(bucket, number))
        else:
            assert high_or_none(copy_of(numbered(bucket, number))) is None


def killed(monkeypatch: pytest.MonkeyPatch, numbers: list[int], *, grows: bool) -> None:
    """The rows of a gained partition are there when it is shown; the next run finishes."""
    for number in numbers:
        for fault in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER):
            bucket = gained()
            before = bucket.contents()
            dying(monkeypatch, bucket, number, fault)
            assert bucket.contents() == before, f"killed at call {number}"
            if shown(bucket) > 1:
                same_log(numbered(bucket, 1))
            if grows:
                for of in range(3):
                    numbered(bucket, of).produce(*some(14)[9:])
            copied(bucket)
            assert shown(bucket) == 3, f"killed at call {number}"
            whole(bucket)
            assert committed(copy_of(bucket), "readers") == 11
            assert is_complete(bucket)
            assert not copied(bucket).started


@pytest.mark.parametrize("grows", [False, True])
def test_killed_between_some_writes(monkeypatch: pytest.MonkeyPatch, grows: bool) -> None:
    found = writes(dying(monkeypatch, gained(), 0, None))
    assert len(found) > 30
    killed(monkeypatch, sorted(random.Random(7).sample(found, 5)) + found[-3:], grows=grows)


@pytest.mark.whole
@pytest.mark.parametrize("grows", [False, True])
def test_killed_between_any_two_writes(monkeypatch: pytest.MonkeyPatch, grows: bool) -> None:
    killed(monkeypatch, writes(dying(monkeypatch, gained(), 0, None)), grows=grows)


def test_killed_while_the_broker_is_told_of_an_empty_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the partition gets rows before the next run, which nobody has produced into the copy."""
    for number in writes(dying(monkeypatch, only_empty(), 0, None)):
        bucket = only_empty()
        dying(monkeypatch, bucket, number, Fault.CRASH_AFTER)
        numbered(bucket, 1).produce(*some(12))
        assert not copied(bucket).failures, f"killed at call {number}"
        assert shown(bucket) == 2
        whole(bucket)
        assert is_complete(bucket)


def test_what_an_attempt_on_other_terms_has_left_of_it_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Since the broker does not know that partition, though it knows the topic."""
    calls = dying(monkeypatch, gained(), 0, None)
    second = f"/{NEW}/partitions/{1:010d}/records/"
    put = [at for at, call in enumerate(calls, 1) if call.method == "create" and second in call.key]
    assert len(put) == 2
    bucket = gained()
    dying(monkeypatch, bucket, put[-1], Fault.CRASH_AFTER)
    numbered(bucket, 1).produce(*some(40))  # its first objects are newer now
    copied(bucket)
    whole(bucket)
    assert copy_of(numbered(bucket, 1)).bases() == [0, 117]


def test_a_state_that_says_only_that_the_broker_knows_the_copy() -> None:
    """As it was written once: how many partitions it knows is found out."""
    bucket = a_bucket(some(6), partitions=2)
    copied(bucket)
    state = opened(bucket).state()
    document = json.loads(state.encode())
    assert document["copy"].pop("announced") == 2
    document["copy"]["is_visible"] = True
    opened(bucket).states.update(lambda _: json.dumps(document).encode(), bucket.clock, random.Random())
    copied(bucket)
    assert opened(bucket).state().announced == shown(bucket) == 2
    assert is_complete(bucket)


# Refusals


def refused(bucket: Bucket) -> str:
    """Why; nothing was written."""
    before = {meta.key: bucket.store.get(meta.key) for meta in bucket.store.list(bucket.root)}
    with pytest.raises(LithifyError) as error:
        copied(bucket)
    assert {meta.key: bucket.store.get(meta.key) for meta in bucket.store.list(bucket.root)} == before
    return str(error.value)


def test_fewer_partitions_than_the_broker_was_told_are_refused() -> None:
    bucket = a_bucket(some(6), partitions=3)
    copied(bucket)
    of_broker(bucket, 2)
    assert "orders has 2 partitions, and orders.v2 3; make another copy" in refused(bucket)


def test_other_partitions_of_the_copy_than_the_broker_was_told_are_refused() -> None:
    bucket = a_bucket(some(6), partitions=2)
    copied(bucket)
    of_broker(bucket, 1, NEW)
    assert "orders.v2 was made with 2 partitions, and has 1 now; make another copy" in refused(bucket)
    of_broker(bucket, 3, NEW)
    assert "orders has 2 partitions, and orders.v2 3; make another copy" in refused(bucket)


def test_a_count_that_is_none_is_refused() -> None:
    bucket = a_bucket(some(6))
    of_broker(bucket, -1)
    assert "does not decode" in refused(bucket)


def test_it_shrinks_while_the_broker_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = a_bucket(some(6), partitions=3)
    announce = copying.announce

    def late(*place: Any) -> None:
        of_broker(bucket, 2)
        announce(*place)

    monkeypatch.setattr("lithify.datasets.kafka.topic_copy.announce", late)
    with pytest.raises(LithifyError, match="orders has 2 partitions now, and had 3"):
        copied(bucket)
    assert not told(bucket)


def test_it_is_said_what_is_lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "SystemClock", Pausing)
    bucket = a_bucket(some(6))
    asked = ["--copy-to", NEW, "--set", "kafka.quiet_period=0s", f"kafka+{bucket.store.url}/{bucket.topic}"]
    with without_waiting():
        assert "has all that there is" in words("compact", *asked)
        of_broker(bucket, 2)
        assert "orders.v2 lacks 1 partition; run again." in words("status", *asked)
        numbered(bucket, 1).produce(*some(3))
        assert "orders.v2 lacks 3 objects, 1 partition; run again." in words("status", *asked)
        assert "has all that there is" in words("compact", *asked)
