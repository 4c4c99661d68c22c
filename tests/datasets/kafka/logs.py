"""A plain writer of record batches, the way the format is documented, and random logs made by it."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import lz4.frame
import numpy as np
import zstandard

from lithify.datasets.kafka.format.codecs import BatchCodec, BatchCodecs
from lithify.datasets.kafka.format.kernel.layout import Records
from lithify.datasets.kafka.format.kernel.rewrite import Flags
from lithify.datasets.kafka.format.record_batches import BatchRetention, RecordBatches, decode

HEADER = struct.Struct(">qiibIhiqqqhii")
MARKER_VALUE = b"\0\0\0\0\0\0"
LOG_APPEND_TIME, TRANSACTIONAL, CONTROL, HORIZON = 8, 16, 32, 64


@dataclass(frozen=True)
class Rec:
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()


@dataclass(frozen=True)
class Batch:
    """A batch; what is left out is as in a plain one."""

    records: tuple[Rec, ...]
    base_offset: int = -1
    last_offset: int = -1
    codec: BatchCodec = BatchCodec.NONE
    producer: tuple[int, int, int] = (-1, -1, -1)
    """Id, epoch, base sequence."""
    transactional: bool = False
    control: bool = False
    append_time: int | None = None
    horizon: int | None = None
    leader_epoch: int = 0
    max_timestamp: int | None = None

    @property
    def first(self) -> int:
        return self.base_offset if self.base_offset >= 0 else self.records[0].offset

    @property
    def last(self) -> int:
        return self.last_offset if self.last_offset >= 0 else self.records[-1].offset


def zigzag(value: int) -> bytes:
    left = (value << 1) ^ (value >> 63)
    encoded = bytearray()
    while left >= 128:
        encoded.append(left & 127 | 128)
        left >>= 7
    encoded.append(left)
    return bytes(encoded)


def _field(content: bytes | None) -> bytes:
    return zigzag(-1) if content is None else zigzag(len(content)) + content


def encode_record(record: Rec, base_offset: int, base_timestamp: int) -> bytes:
    body = b"\0" + zigzag(record.timestamp - base_timestamp) + zigzag(record.offset - base_offset)
    body += _field(record.key) + _field(record.value) + zigzag(len(record.headers))
    body += b"".join(_field(name) + _field(value) for name, value in record.headers)
    return zigzag(len(body)) + body


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    register = 0xFFFFFFFF
    for byte in data:
        register = _TABLE[(register ^ byte) & 0xFF] ^ (register >> 8)
    return register ^ 0xFFFFFFFF


def sealed(data: bytes) -> bytes:
    """A batch with the right length and checksum."""
    data = data[:8] + struct.pack(">i", len(data) - 12) + data[12:]
    return data[:17] + struct.pack(">I", crc32c(data[21:])) + data[21:]


def encode(batch: Batch, payload: bytes | None = None) -> bytes:
    """The bytes of a batch; `payload` instead of its records, packed."""
    times = [record.timestamp for record in batch.records]
    if batch.append_time is not None:
        times = [batch.append_time] * len(times)
    base_timestamp = times[0] if times else -1
    if batch.horizon is not None:
        base_timestamp = batch.horizon
    attributes = (
        (int(batch.codec) if batch.records else 0)
        | LOG_APPEND_TIME * (batch.append_time is not None)
        | TRANSACTIONAL * batch.transactional
        | CONTROL * batch.control
        | HORIZON * (batch.horizon is not None)
    )
    if payload is None:
        records = (replace(record, timestamp=time) for record, time in zip(batch.records, times, strict=True))
        raw = b"".join(encode_record(record, batch.first, base_timestamp) for record in records)
        payload = BatchCodecs().pack(batch.codec, memoryview(raw)) if batch.records else b""
    max_timestamp = max(times, default=-1) if batch.max_timestamp is None else batch.max_timestamp
    header = HEADER.pack(
        batch.first,
        0,
        batch.leader_epoch,
        2,
        0,
        attributes,
        batch.last - batch.first,
        base_timestamp,
        max_timestamp if batch.append_time is None else batch.append_time,
        *batch.producer,
        len(batch.records),
    )
    return sealed(header + payload)


def encode_all(batches: Iterable[Batch]) -> bytes:
    return b"".join(encode(batch) for batch in batches)


def rows(source: RecordBatches) -> list[tuple[int, int, bytes | None, bytes | None]]:
    """Offset, timestamp, key and value of every record."""
    return [
        (int(record["offset"]), int(record["timestamp"]), source.key(number), source.value(number))
        for number, record in enumerate(source.records)
    ]


def expected_rows(batches: Iterable[Batch]) -> list[tuple[int, int, bytes | None, bytes | None]]:
    return [
        (
            record.offset,
            record.timestamp if batch.append_time is None else batch.append_time,
            record.key,
            record.value,
        )
        for batch in batches
        for record in batch.records
    ]


def log(*batches: Batch, name: str = "log") -> RecordBatches:
    return decode(encode_all(batches), name)


def data(first: int, *pairs: tuple[str | None, str | None], time: int = 1000, **fields: Any) -> Batch:
    """A batch of records with these keys and values; a value of None is a tombstone."""
    records = tuple(
        Rec(
            first + index,
            time + first + index,
            None if key is None else key.encode(),
            None if value is None else value.encode(),
        )
        for index, (key, value) in enumerate(pairs)
    )
    return Batch(records, **fields)


def in_transaction(first: int, *pairs: tuple[str | None, str | None], id: int, **fields: Any) -> Batch:
    """The same, as part of a transaction of the producer with this id."""
    return data(first, *pairs, producer=(id, fields.pop("epoch", 0), first), transactional=True, **fields)


def marker(offset: int, *, id: int, commit: bool, epoch: int = 0, **fields: Any) -> Batch:
    record = Rec(offset, 2000 + offset, struct.pack(">hh", 0, int(commit)), MARKER_VALUE)
    return Batch((record,), producer=(id, epoch, -1), transactional=True, control=True, **fields)


def keep_all(source: RecordBatches, **changes: Any) -> BatchRetention:
    """A retention that keeps everything, but for these changes."""
    none = np.zeros(len(source.batches), np.bool_)
    retention = BatchRetention(np.ones(len(source.records), np.bool_), none, none, 10_000)
    return replace(retention, **changes)


def flags(values: Sequence[bool]) -> Flags:
    return np.array(values, np.bool_)


def random_log(
    rng: random.Random, codecs: Sequence[BatchCodec] = tuple(BatchCodec), batches: int = 12
) -> list[Batch]:
    """Batches of every kind: gaps between and in them, all codecs, producers, markers, horizons, headers."""
    made: list[Batch] = []
    offset = rng.choice((0, 0, 5, 1 << 40))
    for _ in range(batches):
        offset += rng.choice((0, 0, 0, 1, 70000))
        made.append(_random_batch(rng, offset, rng.choice(codecs)))
        offset = made[-1].last + 1
    return made


def _random_batch(rng: random.Random, first: int, codec: BatchCodec) -> Batch:
    producer = rng.choice(((-1, -1, -1), (7, 0, rng.randrange(1000)), (1 << 40, 3, 0)))
    transactional = producer[0] >= 0 and rng.random() < 0.5
    if transactional and rng.random() < 0.3:
        return marker(first, id=producer[0], commit=rng.random() < 0.5, leader_epoch=rng.choice((0, 9)))
    offset = first + rng.choice((0, 0, 0, 2))
    records = []
    for _ in range(rng.choice((0, 1, 1, 2, 5, 40))):
        records.append(_random_record(rng, offset))
        offset += rng.choice((1, 1, 1, 3, 100))
    last = max((records[-1].offset if records else first) + rng.choice((0, 0, 4)), first)
    return Batch(
        tuple(records),
        first,
        last,
        codec,
        producer,
        transactional,
        append_time=rng.choice((None, None, 1_700_000_000_000)),
        horizon=rng.choice((None, None, 1_700_000_500_000)) if records else None,
        leader_epoch=rng.choice((0, 1, 77)),
        max_timestamp=None if records else 12345,
    )


def _random_record(rng: random.Random, offset: int) -> Rec:
    key = rng.choice((None, b"", b"k%d" % rng.randrange(9), b"k%d" % rng.randrange(9), rng.randbytes(200)))
    value = rng.choice((None, b"", b"v" * rng.choice((1, 60, 70, 9000)), rng.randbytes(30)))
    headers = rng.choice(((), (), ((b"h", b"1"), (b"", None), (b"trace", rng.randbytes(90)))))
    return Rec(offset, rng.choice((0, 1_700_000_000_000 + rng.randrange(-5000, 5000))), key, value, headers)


def random_history(
    rng: random.Random, codecs: Sequence[BatchCodec] = (BatchCodec.NONE, BatchCodec.ZSTD)
) -> list[Batch]:
    """Two producers that write, commit and abort; at the end all is decided."""
    made: list[Batch] = []
    offset = 0
    for _ in range(60):
        rows = [
            (f"k{rng.randrange(12)}", rng.choice((None, f"v{offset}", f"w{offset}")))
            for _ in range(rng.randrange(1, 4))
        ]
        codec, producer = rng.choice(codecs), rng.choice((1, 2))
        match rng.choice(("plain", "tx", "tx", "commit", "abort")):
            case "plain":
                made.append(data(offset, *rows, codec=codec))
            case "tx":
                made.append(in_transaction(offset, *rows, id=producer, codec=codec))
            case decision:
                made.append(marker(offset, id=producer, commit=decision == "commit"))
        offset = made[-1].last + 1
    for producer in (1, 2):
        made.append(marker(offset, id=producer, commit=rng.random() < 0.5))
        offset += 1
    return made


def gzip(raw: bytes) -> bytes:
    stream = zlib.compressobj(wbits=31)
    return stream.compress(raw) + stream.flush()


def linked_lz4(raw: bytes) -> bytes:
    packed: bytes = lz4.frame.compress(raw, block_linked=True, block_size=lz4.frame.BLOCKSIZE_MAX64KB)
    return packed


def streamed_zstd(raw: bytes) -> bytes:
    """A frame that does not say how long its content is, as Java writes it."""
    stream = zstandard.ZstdCompressor(level=3).compressobj()
    return stream.compress(raw) + stream.flush()


def column(source: Records, name: str) -> list[int]:
    return [int(value) for value in source[name]]
