"""Kafka's own record classes and the Python clients read what we write, and we what they write."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import aiokafka.record.default_records
import aiokafka.record.memory_records
import kafka.record.default_records
import kafka.record.memory_records
import pytest

from lithify.datasets.kafka.cleaning.index import index, match
from lithify.datasets.kafka.cleaning.retention import NO_BOUND, Rules, empty_to_retain, last_records
from lithify.datasets.kafka.cleaning.retention import retention as retain
from lithify.datasets.kafka.format.codecs import BatchCodec
from lithify.datasets.kafka.format.kernel.layout import Records
from lithify.datasets.kafka.format.record_batches import BatchRetention, RecordBatches, decode, filtered
from lithify.datasets.kafka.format.transactions import fates, follow
from tests.datasets.kafka import logs
from tests.datasets.kafka.logs import encode_all, expected_rows, flags, keep_all
from tests.judge.kafka_java import KafkaJava, KafkaJavaError, kafka_java

CLIENTS = [
    pytest.param(client, codec, id=f"{client.__name__}-{codec.name}")
    for client in (aiokafka.record, kafka.record)
    for codec in BatchCodec
    if client is aiokafka.record or codec is not BatchCodec.SNAPPY
]
"""Python clients, and the codecs that each knows without further packages."""
Row = tuple[int, int, bytes | None, bytes | None]


@pytest.fixture(scope="session")
def java() -> Iterator[KafkaJava]:
    judge = kafka_java()
    yield judge
    judge.close()


def hexed(content: bytes | None) -> str:
    return "-" if content is None else "x" + content.hex()


def described(source: RecordBatches) -> list[str]:
    """What the Java judge has to say of these batches, but for headers."""
    lines = []
    for batch in source.batches:
        attributes = int(batch["attributes"])
        lines.append(_describe_batch(batch, attributes))
        for number in range(batch["first_record"], batch["first_record"] + batch["count"]):
            offset, timestamp, key, value = logs.rows(source)[number]
            lines.append(f"record {offset} {timestamp} {hexed(key)} {hexed(value)}")
    return lines


def _describe_batch(batch: Records, attributes: int) -> str:
    names = (
        "producer_id",
        "producer_epoch",
        "base_sequence",
        "leader_epoch",
        "max_timestamp",
    )
    words = [
        batch["base_offset"],
        batch["last_offset"],
        batch["count"],
        BatchCodec(attributes & 7).name.lower(),
    ]
    words += [batch[name] for name in names]
    words.append("LogAppendTime" if attributes & logs.LOG_APPEND_TIME else "CreateTime")
    words += [str(bool(attributes & flag)).lower() for flag in (logs.TRANSACTIONAL, logs.CONTROL)]
    words.append(batch["base_timestamp"] if attributes & logs.HORIZON else -1)
    return "batch " + " ".join(map(str, words))


def without_headers(lines: list[str]) -> list[str]:
    return [" ".join(line.split(" ")[:5]) if line.startswith("record") else line for line in lines]


def decisions(source: RecordBatches, retention: BatchRetention) -> list[str]:
    """A retention, as the Java judge takes it."""
    lines = []
    for at, batch in enumerate(source.batches):
        kept = retention.keep[batch["first_record"] : batch["first_record"] + batch["count"]]
        empty = "RETAIN_EMPTY" if retention.retain_empty[at] else "DELETE_EMPTY"
        bits = "".join(str(int(stays)) for stays in kept)
        lines.append(f"{empty} {int(retention.empty_marker[at])} {bits or '-'}")
    return lines


@pytest.mark.parametrize("seed", range(12))
def test_java_reads_every_batch_as_we_do(java: KafkaJava, seed: int) -> None:
    data = encode_all(logs.random_log(random.Random(seed)))
    assert without_headers(java.describe(data)) == described(decode(data, "log"))


@pytest.mark.parametrize("seed", range(40))
def test_what_is_written_equals_the_bytes_of_kafkas_own_filter(java: KafkaJava, seed: int) -> None:
    """Two passes over random uncompressed batches: the second reads delete horizons of the first."""
    rng = random.Random(seed)
    data = encode_all(logs.random_log(rng, [BatchCodec.NONE]))
    for now_ms in (1_800_000_000_000, 1_800_000_009_000):
        source = decode(data, "log")
        markers = source.batches["attributes"] & logs.CONTROL != 0
        retention = BatchRetention(
            flags([rng.random() < 0.6 for _ in source.records]),
            flags([rng.random() < 0.5 for _ in source.batches]),
            flags([bool(is_marker) and rng.random() < 0.5 for is_marker in markers]),
            now_ms + 1000,
        )
        data = bytes(filtered(source, retention))
        assert data == java.filtered(_bytes(source), now_ms, 1000, decisions(source, retention))


MARKED = [
    logs.in_transaction(0, ("a", "1"), ("b", "1"), id=7),
    logs.marker(2, id=7, commit=True),
    logs.in_transaction(3, ("a", "bad"), ("c", "bad"), id=7),
    logs.marker(5, id=7, commit=False),
    logs.data(6, ("b", None), ("d", "4"), producer=(8, 0, 0)),
    logs.in_transaction(8, ("a", "3"), id=7),
    logs.marker(9, id=7, commit=True),
]
"""What its log cleaner would make of this in two passes is known from Kafka's classes: 390 and 220 bytes."""


def test_two_passes_over_transactions_and_a_tombstone(java: KafkaJava) -> None:
    data = encode_all(MARKED)
    sizes = [len(data)]
    gone = {0, 1, 3, 4}
    for now_ms in (10_000, 15_000):
        source = decode(data, "log")
        offsets = logs.column(source.records, "offset")
        empty = flags([base in (2, 5) for base in logs.column(source.batches, "base_offset")])
        keep = flags([offset not in gone for offset in offsets])
        retention = BatchRetention(keep, flags([False] * len(empty)), empty, now_ms + 1000)
        data = bytes(filtered(source, retention))
        assert data == java.filtered(_bytes(source), now_ms, 1000, decisions(source, retention))
        sizes.append(len(data))
        gone |= {2, 5, 6}
    assert sizes == [544, 390, 220]


@pytest.mark.parametrize("seed", range(10))
def test_a_history_cleaned_again_and_again_equals_kafkas_bytes(java: KafkaJava, seed: int) -> None:
    """With our decisions: aborted data, tombstones and markers go when their time has come."""
    source = decode(encode_all(logs.random_history(random.Random(seed), [BatchCodec.NONE])), "log")
    for now_ms in range(10_000, 20_000, 2000):
        rules = Rules(now_ms, 1000, keep_unkeyed=False, bound=NO_BOUND)
        what, _ = fates(source.batches, follow(source.batches).aborted)
        last = last_records(source.batches)
        retain_empty = empty_to_retain(source.batches, last, NO_BOUND)
        matched = match([index(source, what, NO_BOUND)])
        retention = retain(source, what, rules, retain_empty, matched.dead, matched.pinned)
        data = bytes(filtered(source, retention))
        assert data == java.filtered(_bytes(source), now_ms, 1000, decisions(source, retention))
        source = decode(data, "log")


def _bytes(source: RecordBatches) -> bytes:
    return source.memory[: source.size].tobytes()


@pytest.mark.parametrize("codec", [codec for codec in BatchCodec if codec])
def test_java_reads_what_we_compressed(java: KafkaJava, codec: BatchCodec) -> None:
    """The same rows and headers that its own filter leaves."""
    rng = random.Random(codec)
    source = decode(encode_all(logs.random_log(rng, [codec], batches=30)), "log")
    keep = flags([rng.random() < 0.6 for _ in source.records])
    retention = keep_all(source, keep=keep, new_horizon_ms=1_800_000_000_000)
    ours = java.describe(bytes(filtered(source, retention)))
    theirs = java.filtered(_bytes(source), 1_799_999_999_000, 1000, decisions(source, retention))
    assert ours == java.describe(theirs)
    assert any(line.startswith("record") for line in ours)


@pytest.mark.parametrize("codec", list(BatchCodec))
def test_we_read_what_java_writes(java: KafkaJava, codec: BatchCodec) -> None:
    lines = [f"batch 10 {codec.name.lower()} -1 7 2 40 1 5"]
    lines += [f"record {10 + n} {1000 + n} x{(b'k%d' % n).hex()} -" for n in range(300)]
    lines += ["marker 310 9000 5 7 2 COMMIT", f"batch 400 {codec.name.lower()} 77000 -1 -1 -1 0 6"]
    lines += [f"record {400 + n} {n} - x{'00' * 999}" for n in range(0, 200, 2)]
    data = java.build(lines)
    source = decode(data, "log")
    assert without_headers(java.describe(data)) == described(source)
    assert [int(batch["marker"]) for batch in source.batches] == [-1, 1, -1]
    assert set(logs.column(source.records, "header_count")) == {0, 1}


def test_java_refuses_what_we_refuse(java: KafkaJava) -> None:
    data = bytearray(encode_all([logs.data(0, ("a", "1"))]))
    data[-3] ^= 1
    with pytest.raises(KafkaJavaError, match="CorruptRecordException"):
        java.describe(bytes(data))


def read_by(client: Any, data: bytes) -> list[Row]:
    found = []
    batches = client.memory_records.MemoryRecords(data)
    while batches.has_next():
        batch = batches.next_batch()
        assert batch.validate_crc()
        found += [(record.offset, record.timestamp, record.key, record.value) for record in batch]
    return found


@pytest.mark.parametrize(("client", "codec"), CLIENTS)
def test_python_clients_read_what_we_write(client: Any, codec: BatchCodec) -> None:
    rng = random.Random(codec)
    made = [batch for batch in logs.random_log(rng, [codec], batches=30) if batch.records]
    source = decode(encode_all(made), "log")
    keep = flags([rng.random() < 0.6 for _ in source.records])
    kept = bytes(filtered(source, keep_all(source, keep=keep)))
    expected = [row for row, stays in zip(expected_rows(made), keep, strict=True) if stays]
    assert read_by(client, kept) == expected


@pytest.mark.parametrize(("client", "codec"), CLIENTS)
def test_we_read_what_python_clients_write(client: Any, codec: BatchCodec) -> None:
    builder = client.default_records.DefaultRecordBatchBuilder(2, int(codec), True, 5, 1, 3, 1 << 20)
    rows = [(n, 5000 + n, b"key%d" % n, None if n % 5 == 0 else b"value" * n) for n in range(100)]
    for offset, timestamp, key, value in rows:
        builder.append(offset, timestamp, key, value, [("h", b"1")])
    source = decode(bytes(builder.build()), "log")
    assert logs.rows(source) == rows
    (batch,) = source.batches
    assert (batch["producer_id"], batch["producer_epoch"], batch["base_sequence"]) == (5, 1, 3)
    assert batch["attributes"] == logs.TRANSACTIONAL | codec
