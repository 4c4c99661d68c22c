"""Messages of formats 0 and 1: converted as Kafka 4's own log cleaner converts them."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from lithify.base.errors import CorruptObject
from lithify.datasets.kafka.format.codecs import BatchCodec, BatchCodecs
from lithify.datasets.kafka.format.legacy import upgraded
from lithify.datasets.kafka.format.record_batches import decode
from lithify.datasets.kafka.settings import KafkaSettings
from tests.datasets.kafka import logs
from tests.datasets.kafka.folders import Row, latest, read_rows
from tests.datasets.kafka.test_rounds import NAME, a_topic, published
from tests.judge.kafka_java import kafka_java

NOW_MS = 1_800_000_000_000


def message(
    offset: int, key: bytes | None, value: bytes | None, *, magic: int = 1, time: int = 5000, bits: int = 0
) -> bytes:
    """A message as brokers before Kafka 0.11 wrote it."""

    def field(content: bytes | None) -> bytes:
        return struct.pack(">i", -1) if content is None else struct.pack(">i", len(content)) + content

    stamp = struct.pack(">q", time) if magic else b""
    body = struct.pack(">bb", magic, bits) + stamp + field(key) + field(value)
    return struct.pack(">qiI", offset, 4 + len(body), zlib.crc32(body)) + body


def wrapper(codec: BatchCodec, first: int, rows: Sequence[tuple[bytes, bytes | None]], magic: int) -> bytes:
    """Rows in a compressed message. Offsets in it count from 0 in format 1; format 0 has the log's."""
    start = 0 if magic else first
    inner = [message(start + n, *row, magic=magic, time=5000 + n) for n, row in enumerate(rows)]
    packed = BatchCodecs().pack(codec, memoryview(b"".join(inner)))
    if codec is BatchCodec.LZ4 and not magic:  # brokers hashed the frame's magic too
        packed = packed[:6] + bytes([packed[6] ^ 0x55]) + packed[7:]
    last = first + len(rows) - 1
    return message(last, None, packed, magic=magic, time=5000 + len(rows) - 1, bits=int(codec))


ROWS = [(b"a", b"1"), (b"b", None), (b"a", b"22")]


@dataclass(frozen=True)
class Case:
    data: bytes
    filtered: tuple[str, ...]
    """What the judge's filter is told of each message: all is kept."""


def plain(magic: int) -> Case:
    data = b"".join(message(10 + n, *row, magic=magic) for n, row in enumerate(ROWS))
    return Case(data, ("DELETE_EMPTY 0 1",) * 3)


def test_messages_become_the_batches_that_kafkas_own_filter_makes_of_them() -> None:
    """One Java for all. Uncompressed without a tombstone, the bytes are the same; Kafka sets a delete horizon
    for tombstones while it converts, and compresses in its own way."""
    java = kafka_java()
    for magic in (0, 1):
        one = message(10, b"a", b"1", magic=magic) + message(12, None, b"", magic=magic)
        kept = java.filtered(one, NOW_MS, 1000, ["DELETE_EMPTY 0 1"] * 2)
        assert bytes(upgraded("log", one)) == kept
    appended = message(10, b"a", b"1", bits=8, time=777)
    assert bytes(upgraded("log", appended)) == java.filtered(appended, NOW_MS, 1000, ["DELETE_EMPTY 0 1"])
    cases = [plain(magic) for magic in (0, 1)]
    cases += [
        Case(wrapper(codec, 10, ROWS, magic), ("DELETE_EMPTY 0 111",))
        for magic in (0, 1)
        for codec in (BatchCodec.GZIP, BatchCodec.SNAPPY, BatchCodec.LZ4)
    ]
    for case in cases:
        ours = java.describe(bytes(upgraded("log", case.data)))
        theirs = java.describe(java.filtered(case.data, NOW_MS, 1000, case.filtered))
        without_horizon = [line.rpartition(" ")[0] if line.startswith("batch") else line for line in ours]
        assert without_horizon == [
            line.rpartition(" ")[0] if line.startswith("batch") else line for line in theirs
        ]


def rows_of(first: int, *values: bytes | None) -> list[Row]:
    return [(first + n, 5000, b"a", value) for n, value in enumerate(values)]


def test_a_log_of_all_formats_is_compacted() -> None:
    """As a broker that was upgraded twice has it, in one segment too; whole rounds, to the end."""
    topic = a_topic([])
    old = b"".join(message(n, b"k%d" % (n % 3), b"v%d" % n, magic=0) for n in range(6))
    mixed = wrapper(BatchCodec.GZIP, 6, [(b"k0", b"v6"), (b"k1", None)], 1) + message(8, b"k2", b"v8")
    mixed += logs.encode(logs.data(9, ("k0", "v9"), ("x", "1")))
    newest = message(11, b"y", b"1")  # a downgraded one
    for base, data in ((0, old), (6, mixed), (11, newest)):
        topic.store.put(f"{topic.root}/{NAME}/{base:020d}.log", data)
    dataset = topic.opened(KafkaSettings(min_cleanable_dirty_ratio=0.0))
    assert not topic.compact(dataset).failures
    rows = read_rows(topic.store, published(dataset))
    assert [row[0] for row in rows] == [7, 8, 9, 10, 11]
    assert latest(rows).keys() == {b"k0", b"k2", b"x", b"y"}


SOUND = message(5, b"a", b"1")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (SOUND[:-1], "length exceeds"),
        (SOUND[:-1] + b"2", "checksum"),
        (message(5, b"a", b"1", bits=4), "not known"),
        (message(-1, b"a", b"1"), "not known"),
        (message(5, None, b"no gzip", bits=1), "gzip"),
        (message(5, None, None, bits=1), "compressed, and empty"),
        (message(5, None, BatchCodecs().pack(BatchCodec.GZIP, memoryview(b"")), bits=1), "no messages"),
        (
            message(5, None, BatchCodecs().pack(BatchCodec.GZIP, memoryview(SOUND + SOUND)), bits=1),
            "do not ascend",
        ),
        (
            message(
                5,
                None,
                BatchCodecs().pack(BatchCodec.GZIP, memoryview(wrapper(BatchCodec.GZIP, 0, ROWS, 1))),
                bits=1,
            ),
            "compressed ones",
        ),
        (message(0, None, b"\x04\x22\x4d\x18", magic=0, bits=3), "lz4"),
    ],
)
def test_damaged_messages_are_named(data: bytes, why: str) -> None:
    before = message(4, b"b", b"1")
    with pytest.raises(CorruptObject, match=f"at byte {len(before)}.*{why}"):
        upgraded("log", before + data)


def test_what_has_no_messages_is_not_copied() -> None:
    data = logs.encode(logs.data(0, ("a", "1")))
    assert upgraded("log", data) is data
    assert len(decode(upgraded("log", data + SOUND), "log").batches) == 2
