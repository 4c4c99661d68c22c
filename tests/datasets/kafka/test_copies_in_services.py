"""Copies of topics that services keep up to date, and commands beside producers and groups that go on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lithify.datasets.kafka.buckets import copying
from lithify.datasets.kafka.buckets.topic_copy import PAUSE_MS, CopySnapshot, TopicCopy
from lithify.protocol.run_summary import RunSummary
from lithify.store.wrapped import Call
from lithify.testing import ManualClock
from lithify.testing.faulty import StoreFault
from tests.cli.invoking import invoke_json
from tests.datasets.kafka import copies, logs
from tests.datasets.kafka.buckets import Bucket, a_bucket
from tests.datasets.kafka.test_windows import some
from tests.fuzz.running import run, without_waiting


def served(bucket: Bucket, service: TopicCopy) -> RunSummary:
    """What a service does until there is nothing to do; a minute later."""
    bucket.clock.advance_s(PAUSE_MS / 1000 + 1)
    return bucket.compact(service)


def test_a_service_keeps_a_copy_up_to_date() -> None:
    """Objects, offsets of groups and partitions that come later."""
    bucket = a_bucket(some(20))
    service = copies.opened(bucket)
    served(bucket, service)
    copies.same_log(bucket)
    assert copies.copy_of(bucket).bases() == [0, 57]
    for count in (30, 31, 40):
        bucket.produce(*some(count)[len(bucket.bases()) :])
        copies.commit(bucket, "readers", count)
        served(bucket, service)
        copies.same_log(bucket)
        assert copies.committed(copies.copy_of(bucket), "readers") == count
        assert copies.is_complete(bucket)
    copies.commit(bucket, "readers", 100)
    served(bucket, service)
    assert copies.committed(copies.copy_of(bucket), "readers") == 100
    copies.of_broker(bucket, 3)
    copies.numbered(bucket, 1).produce(*some())
    served(bucket, service)
    assert copies.told(bucket)["topic"]["num_partitions"] == 3
    copies.same_log(copies.numbered(bucket, 1))
    assert copies.copy_of(copies.numbered(bucket, 1)).bases() == [0, 87]
    assert copies.is_complete(bucket)
    assert not served(bucket, service).started


def test_a_service_takes_what_is_decided_and_no_longer_young() -> None:
    bucket = a_bucket([*some(20), logs.in_transaction(60, ("t", "1"), id=3), logs.data(61, ("a", "1"))])
    bucket.clock = ManualClock(bucket.listed()[0].last_modified_ms + 5000)
    service = copies.opened(bucket, quiet_period="1m")
    assert not bucket.compact(service).started
    served(bucket, service)
    assert copies.copy_of(bucket).bases()[-1] == 57
    bucket.produce(logs.marker(62, id=3, commit=True))
    served(bucket, service)
    copies.same_log(bucket)
    assert copies.copy_of(bucket).bases()[-3:] == [60, 61, 62]


def test_a_service_leaves_a_partition_alone_for_a_while() -> None:
    """So that objects are read in many together, and offsets of a group that reads are not carried all the
    time."""
    bucket = a_bucket(some(20))
    service = copies.opened(bucket)
    served(bucket, service)
    bucket.produce(*some(21)[20:])
    copies.commit(bucket, "readers", 7)
    bucket.clock.advance_s(PAUSE_MS / 1000 - 1)
    summary = bucket.compact(service)
    assert not summary.started
    assert summary.plan.notes == (
        "orders-0: is copied to orders.v2 up to offset 60; 1 of its objects are young, in an open "
        "transaction, or newer than the copy",
    )
    assert copies.copied(bucket).started, "a command takes it at once"
    copies.same_log(bucket)
    assert copies.committed(copies.copy_of(bucket), "readers") == 7


class Busy(TopicCopy):
    """Something happens before each look."""

    meanwhile: Callable[[], None]

    def _read_snapshot(self) -> CopySnapshot:
        self.meanwhile()
        return super()._read_snapshot()


def busy(bucket: Bucket, meanwhile: Callable[[], None]) -> Busy:
    found = copies.opened(bucket, kind=Busy)
    assert isinstance(found, Busy)
    found.meanwhile = meanwhile
    return found


@pytest.mark.parametrize("served", [False, True])
def test_a_run_ends_though_producers_and_groups_go_on(served: bool) -> None:
    """It copies each partition once. A service looks at each once a minute."""
    bucket, new = a_bucket(some(30)), iter(some(400)[30:])

    def goes_on() -> None:
        bucket.produce(batch := next(new))
        copies.commit(bucket, "readers", batch.first)

    dataset = busy(bucket, goes_on)
    planner = None if served else dataset.planner()
    summary = bucket.compact(dataset, planner)
    assert len(summary.committed) == 4
    assert not summary.failures
    assert copies.copy_of(bucket).bases()[0] == 0
    assert not copies.is_complete(bucket)
    bucket.clock.advance_s(PAUSE_MS / 1000 + 1)
    bucket.compact(copies.opened(bucket))
    copies.same_log(bucket)
    assert copies.is_complete(bucket)


def test_what_a_run_that_died_has_begun_is_finished_and_then_the_rest_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bucket = a_bucket(some(12))
    calls = copies.dying(monkeypatch, bucket, 0, None)
    bucket = a_bucket(some(12))
    copies.dying(monkeypatch, bucket, first_put(calls), StoreFault.CRASH_AFTER)
    bucket.produce(*some(20)[12:])
    copies.copied(bucket)
    copies.same_log(bucket)


def first_put(calls: list[Call]) -> int:
    found = [
        at for at, call in enumerate(calls, 1) if call.method == "create" and f"/{copies.NEW}/" in call.key
    ]
    return next(at for at in found if "/records/" in calls[at - 1].key)


def test_it_is_not_complete_while_offsets_of_groups_are_to_be_carried() -> None:
    bucket = a_bucket(some(6))
    copies.copied(bucket)
    assert copies.is_complete(bucket)
    copies.commit(bucket, "readers", 7)
    assert not copies.is_complete(bucket)
    assert copies.said(bucket)["offsets_moved"] == ["orders-0"]
    copies.copied(bucket)
    assert copies.is_complete(bucket)


def test_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "SystemClock", copies.Pausing)
    bucket = a_bucket(some())
    asked = copies.asked(bucket)
    with without_waiting():
        for _ in range(10):
            assert run(["run", *asked]).exit_code == 0
            if copies.told(bucket):
                break
        assert invoke_json("status", *asked)["copy"]["is_complete"]
    copies.same_log(bucket)
