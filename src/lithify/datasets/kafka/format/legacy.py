"""Messages of formats 0 and 1, from before Kafka 0.11, converted to record batches.

    0 offset i64 · 8 size i32 of all that follows · 12 CRC-32 u32 of all that follows · 16 magic i8 ·
    17 attributes i8 · format 1: 18 timestamp i64 · key length i32, key · value length i32, value

A message with a codec is a *wrapper*: its value unpacks to messages. Its own offset is that of the last of
them; in format 1 they count theirs from any start. If its attributes have the bit of log append time, its
timestamp is theirs too.

Each message becomes a batch, as in Kafka 4's log cleaner: without producer and leader epoch, with offsets,
timestamps, keys, values and codec unchanged. Format 0 has no timestamps; -1 means none. Frames of lz4 in
format 0 have a wrong checksum of their header, which is corrected before they are unpacked.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lithify.base.errors import CorruptObject
from lithify.datasets.kafka.format.codecs import BadCompression, BatchCodec, BatchCodecs
from lithify.datasets.kafka.format.kernel.headers import first_legacy, seal_batch
from lithify.datasets.kafka.format.kernel.layout import (
    CODEC_MASK,
    HEADER_BYTES,
    LENGTH_AT,
    LOG_APPEND_TIME,
    MAGIC,
    MAGIC_AT,
    MAX_CODEC,
    MAX_OFFSET_DELTA,
    NO_PRODUCER,
    NO_TIMESTAMP,
    UNCOUNTED_BYTES,
)

_HEAD = struct.Struct(">qiIbb")
_BATCH = struct.Struct(">qiibIhiqqqhii")
_NO_EPOCH = -1
_TIMESTAMP_BYTES = 8
_LEAST_BYTES = _HEAD.size - UNCOUNTED_BYTES + 8
_LZ4_MAGIC_BYTES, _LZ4_SIZE_FLAG, _LZ4_DICT_FLAG = 4, 8, 1


@dataclass(frozen=True, slots=True)
class _Message:
    offset: int
    attributes: int
    timestamp_ms: int
    key: memoryview | None
    value: memoryview | None

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK


class _Damaged(Exception):
    """The message is invalid. The text gives the reason."""


def upgraded(name: str, data: bytes | memoryview) -> bytes | memoryview:
    """Return these whole batches and messages as batches only; the same object if it has no messages.

    Raises `CorruptObject`.
    """
    position = _first(data, 0)
    if position < 0:
        return data
    view, start, codecs = memoryview(data), 0, BatchCodecs()
    made: list[bytes | memoryview] = []
    while position >= 0:
        made.append(view[start:position])
        try:
            size, message = _read(view[position:])
            made.append(_batch(message, _unpacked(message, view[position + MAGIC_AT], codecs), codecs))
        except (_Damaged, BadCompression) as error:
            raise CorruptObject(name, f"the message at byte {position}: {error}") from error
        start = position + size
        position = _first(data, start)
    made.append(view[start:])
    return b"".join(made)


def message_bytes(data: memoryview) -> int:
    """Return the size of the sound message at the start of the data; 0 if there is none."""
    try:
        return _read(data)[0] if len(data) > MAGIC_AT and data[MAGIC_AT] < MAGIC else 0
    except _Damaged:
        return 0


def _first(data: bytes | memoryview, start: int) -> int:
    source = np.frombuffer(data, np.uint8)
    return int(first_legacy(source.ctypes.data, start, len(source)))


def _read(data: memoryview) -> tuple[int, _Message]:
    """Return the size of a message in its log, and the message."""
    if len(data) < UNCOUNTED_BYTES + _LEAST_BYTES:
        raise _Damaged("it is cut off")
    offset, length, checksum, magic, attributes = _HEAD.unpack_from(data)
    size = UNCOUNTED_BYTES + length
    if length < _LEAST_BYTES or size > len(data):
        raise _Damaged("its length exceeds the rest of the object, or is less than that of its header")
    if zlib.crc32(data[MAGIC_AT:size]) != checksum:
        raise _Damaged("the checksum does not match")
    if not 0 <= magic < MAGIC or offset < 0 or attributes & CODEC_MASK >= MAX_CODEC:
        raise _Damaged("its format, offset or codec is not known")
    position, timestamp_ms = _HEAD.size, NO_TIMESTAMP
    if magic:
        timestamp_ms = int.from_bytes(data[position : position + _TIMESTAMP_BYTES], signed=True)
        position += _TIMESTAMP_BYTES
    key, position = _field(data, position, size)
    value, position = _field(data, position, size)
    if position != size:
        raise _Damaged("bytes follow its value")
    return size, _Message(offset, attributes if magic else attributes & CODEC_MASK, timestamp_ms, key, value)


def _field(data: memoryview, position: int, end: int) -> tuple[memoryview | None, int]:
    length = int.from_bytes(data[position : position + 4], signed=True)
    position += 4
    if length < -1 or position + max(length, 0) > end:
        raise _Damaged("a length exceeds its container")
    return (None, position) if length < 0 else (data[position : position + length], position + length)


def _unpacked(message: _Message, magic: int, codecs: BatchCodecs) -> list[_Message]:
    """Return the messages in a wrapper with their own offsets and timestamps; else the message itself."""
    if not message.codec:
        return [message]
    if message.value is None:
        raise _Damaged("it is compressed, and empty")
    packed = message.value
    if not magic and message.codec == BatchCodec.LZ4:
        packed = _corrected_lz4(packed)
    inner = list(_all(memoryview(codecs.unpack(BatchCodec(message.codec), packed))))
    if not inner or any(one.codec for one in inner):
        raise _Damaged("it contains no messages, or compressed ones")
    shift = message.offset - inner[-1].offset if magic and message.offset else 0
    append_ms = message.timestamp_ms if message.attributes & LOG_APPEND_TIME else None
    return [
        _Message(
            one.offset + shift,
            message.attributes,
            one.timestamp_ms if append_ms is None else append_ms,
            one.key,
            one.value,
        )
        for one in inner
    ]


def _all(data: memoryview) -> Iterator[_Message]:
    while data:
        size, message = _read(data)
        yield message
        data = data[size:]


def _batch(outer: _Message, records: list[_Message], codecs: BatchCodecs) -> bytes:
    """Return a batch of these records; `outer` is their wrapper, or the only one itself."""
    offsets = [record.offset for record in records]
    base, last = offsets[0], max(offsets[-1], outer.offset)
    if offsets != sorted(set(offsets)) or base < 0 or last - base > MAX_OFFSET_DELTA:
        raise _Damaged("the offsets in it do not ascend")
    base_ms = records[0].timestamp_ms
    raw = b"".join(_record(record, base, base_ms) for record in records)
    payload = codecs.pack(BatchCodec(outer.codec), memoryview(raw))
    greatest_ms = max(record.timestamp_ms for record in records)
    header = _BATCH.pack(
        base,
        0,
        _NO_EPOCH,
        MAGIC,
        0,
        outer.attributes & (CODEC_MASK | LOG_APPEND_TIME),
        last - base,
        base_ms,
        greatest_ms,
        NO_PRODUCER,
        -1,
        -1,
        len(records),
    )
    batch = np.frombuffer(bytearray(header + payload), np.uint8)
    assert len(header) == HEADER_BYTES, LENGTH_AT
    seal_batch(batch.ctypes.data, len(batch))
    return batch.tobytes()


def _record(record: _Message, base: int, base_ms: int) -> bytes:
    body = b"".join(
        (
            b"\0",
            _zigzag(record.timestamp_ms - base_ms),
            _zigzag(record.offset - base),
            *(_zigzag(-1) if one is None else _zigzag(len(one)) + one for one in (record.key, record.value)),
            b"\0",
        )
    )
    return _zigzag(len(body)) + body


def _zigzag(number: int) -> bytes:
    left = (number << 1 ^ number >> 63) & (1 << 64) - 1
    found = bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    found.append(left)
    return bytes(found)


def _corrected_lz4(frame: memoryview) -> memoryview:
    """Return the frame with the checksum that its header should have."""
    if len(frame) <= _LZ4_MAGIC_BYTES:
        return frame
    flags = frame[_LZ4_MAGIC_BYTES]
    end = _LZ4_MAGIC_BYTES + 2 + 8 * bool(flags & _LZ4_SIZE_FLAG) + 4 * bool(flags & _LZ4_DICT_FLAG)
    if len(frame) <= end:
        return frame
    found = bytearray(frame)
    found[end] = _xxh32(bytes(frame[_LZ4_MAGIC_BYTES:end])) >> 8 & 0xFF
    return memoryview(found)


def _xxh32(data: bytes) -> int:
    """Return the XXH32 hash of fewer than 16 bytes."""
    found = 374761393 + len(data)
    whole = len(data) & ~3
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        found = _rotated(found + word * 3266489917, 17) * 668265263
    for byte in data[whole:]:
        found = _rotated(found + byte * 374761393, 11) * 2654435761
    found &= 0xFFFFFFFF
    found = (found ^ found >> 15) * 2246822519 & 0xFFFFFFFF
    found = (found ^ found >> 13) * 3266489917 & 0xFFFFFFFF
    return found ^ found >> 16


def _rotated(number: int, bits: int) -> int:
    number &= 0xFFFFFFFF
    return (number << bits | number >> 32 - bits) & 0xFFFFFFFF
