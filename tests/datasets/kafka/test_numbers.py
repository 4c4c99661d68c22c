"""Numbers of others at the end of their range: none that a broker takes is an error."""

from __future__ import annotations

import pytest

from lithify.base.errors import CorruptObject, Refused
from lithify.datasets.kafka.format.kernel.layout import DELETE_HORIZON
from lithify.datasets.kafka.format.record_batches import decode, rebased
from lithify.datasets.kafka.layouts.topic_settings import OwnSettings
from tests.datasets.kafka import logs
from tests.datasets.kafka.buckets import Bucket, a_bucket
from tests.datasets.kafka.test_rounds import NAME, a_topic
from tests.judge.kafka_java import kafka_java

LAST = (1 << 63) - 1
TIMES = ("delete.retention.ms", "min.compaction.lag.ms", "max.compaction.lag.ms")
RATIO = "min.cleanable.dirty.ratio"


def a_topic_with(name: str, value: str) -> Bucket:
    """Thirty batches of one key, some of them tombstones."""
    batches = [logs.data(n, ("a", None if n % 7 == 3 else f"{n}"), (f"b{n}", None)) for n in range(0, 60, 2)]
    return a_bucket(batches, configs={"cleanup.policy": "compact", name: value})


@pytest.mark.parametrize("value", [str(LAST), str(LAST + 1), "9" * 400, "+5", " 7 ", "0", "-0"])
@pytest.mark.parametrize("name", [*TIMES, RATIO])
def test_any_number_that_a_broker_takes_is_taken(name: str, value: str) -> None:
    bucket = a_topic_with(name, value)
    for _ in range(2):
        summary = bucket.compact()
        assert not summary.failures
        assert not summary.refused
    waits_for_ever = name == "min.compaction.lag.ms" and int(value) > 1 << 62
    assert (bucket.bases() == [0, 58]) is not waits_for_ever
    dataset = bucket.opened()
    dataset.ledger()  # both can be read again
    dataset.state()


def test_tombstones_that_stay_for_ever_have_the_last_horizon_there_is() -> None:
    """Kafka's own sum overflows, and its filter sets none then. Its reader sees ours, and the records."""
    bucket = a_topic_with("delete.retention.ms", str(LAST))
    bucket.compact()
    data = rebased(bucket.store.get(bucket.key(0)), 0)
    described = kafka_java().describe(data)
    assert described[0].endswith(f" {LAST}")
    assert described[1] == "record 1 1001 x6230 -"
    (batch,) = decode(data, "merged").batches
    assert int(batch["attributes"]) & DELETE_HORIZON
    assert int(batch["base_timestamp"]) == LAST
    rows = bucket.rows()
    assert {row[1] for row in rows} >= {1000 + row[0] for row in rows}
    bucket.clock.advance_s(1e9)
    assert not bucket.compact().started


@pytest.mark.parametrize("value", ["1_0", "\u0664", "1e3", "0x10", "5L", "", "nan", "inf", "1 0"])
@pytest.mark.parametrize("name", TIMES)
def test_what_no_broker_takes_for_milliseconds_is_refused(name: str, value: str) -> None:
    with pytest.raises(Refused, match="not a number"):
        a_topic_with(name, value).compact()


@pytest.mark.parametrize("value", ["nan", "inf", "Infinity", "0_5", "\u0664", "", "0x1p3"])
def test_what_is_no_ratio_is_refused(value: str) -> None:
    with pytest.raises(Refused, match="not a number"):
        a_topic_with(RATIO, value).compact()


@pytest.mark.parametrize(
    ("name", "value"), [(TIMES[0], "-1"), (TIMES[1], "-9223372036854775808"), (RATIO, "-.1")]
)
def test_what_is_negative_is_refused(name: str, value: str) -> None:
    with pytest.raises(Refused, match="negative"):
        a_topic_with(name, value).compact()


@pytest.mark.parametrize(
    ("value", "ratio"), [("0.25", 0.25), ("1e-1", 0.1), (".5", 0.5), ("7", 1.0), ("1e400", 1.0)]
)
def test_ratios(value: str, ratio: float) -> None:
    configs = a_topic_with(RATIO, value).opened().partitions()[NAME].configs
    assert OwnSettings.of(configs).dirty_ratio == ratio


@pytest.mark.parametrize("name", [LAST, LAST + 1, (1 << 64) - 1, 1 << 64, 10**20 - 1])
def test_an_object_beyond_all_offsets_is_named(name: int) -> None:
    bucket = a_bucket([logs.data(n, ("a", f"{n}")) for n in range(30)])
    bucket.store.put(bucket.key(name), bucket.store.get(bucket.key(0)))
    with pytest.raises(CorruptObject, match="no such offset"):
        bucket.compact()
    assert len(bucket.bases()) == 31


@pytest.mark.parametrize("last", [LAST - 1, LAST])
def test_the_last_offset_of_all(last: int) -> None:
    """Behind a record at 2⁶³ − 1 no end of a log can be told, so no broker has given it that offset."""
    record = logs.Rec(last, 1000, b"a", b"2")
    topic = a_topic([[logs.data(last - 2, ("a", "1"), time=-last)], [logs.Batch((record,))]])
    dataset = topic.opened()
    summary = topic.compact(dataset)
    assert [one.reason for one in summary.failures if "Overflow" in one.reason] == []
    assert bool(summary.failures) is (last == LAST)
    topic.opened().state()
