"""Reading records, every length checked against what holds it before it is used.

`parse` reads the records of all batches, whose compressed ones are unpacked:

1. The length of a record ends inside its batch, and everything in the record inside the record.
2. Offsets ascend and lie in the offsets of the batch.
3. Key, value and headers fill the record exactly, the records their batch.
4. The first record of a control batch says what it marks.
"""

from __future__ import annotations

from lithify.datasets.kafka.kernel.headers import load_i16_be
from lithify.datasets.kafka.kernel.layout import (
    CONTROL,
    LOG_APPEND_TIME,
    Record,
    Records,
    Status,
)
from lithify.kernel.cache import called, entry, inlined
from lithify.kernel.memory import load_u8
from lithify.kernel.zigzag import INVALID, read_varint, read_varlong

_MARKER_KEY_BYTES = 4
_MARKER_TYPE_AT = 2
_OK = int(Status.OK)
_BAD_LENGTH = int(Status.BAD_LENGTH)
_UNKNOWN_RECORD_ATTRIBUTES = int(Status.UNKNOWN_RECORD_ATTRIBUTES)
_BAD_RECORD_OFFSET = int(Status.BAD_RECORD_OFFSET)
_BAD_HEADERS = int(Status.BAD_HEADERS)
_BAD_MARKER = int(Status.BAD_MARKER)
_TRAILING = int(Status.TRAILING)


@inlined
def _read_field(position: int, end: int) -> tuple[int, int]:
    """Length of a key or value and the address of its bytes, which end before `end`; the address is
    `INVALID` if they do not."""
    length, position = read_varint(position, end)
    if position == INVALID or length < -1 or length > end - position:
        return 0, INVALID
    return length, position


@called
def _skip_headers(position: int, end: int, count: int) -> int:
    """Where the headers end, or `INVALID`."""
    for _ in range(count):
        length, position = _read_field(position, end)
        if position == INVALID or length < 0:
            return INVALID
        length, position = _read_field(position + length, end)
        if position == INVALID:
            return INVALID
        position += max(length, 0)
    return position


@inlined
def _parse_record(memory: int, position: int, batch: Record, record: Record) -> tuple[int, int]:
    """Status, and the address behind the record."""
    length, position = read_varint(position, memory + batch.payload + batch.payload_len)
    if position == INVALID or length <= 0 or length > memory + batch.payload + batch.payload_len - position:
        return _BAD_LENGTH, INVALID
    end = position + length
    if load_u8(position) != 0:
        return _UNKNOWN_RECORD_ATTRIBUTES, INVALID
    timestamp_delta, position = read_varlong(position + 1, end)
    offset_delta, position = read_varint(position, end)
    tail = position
    key_len, key = _read_field(position, end)
    if key == INVALID:
        return _BAD_LENGTH, INVALID
    value_len, value = _read_field(key + max(key_len, 0), end)
    if value == INVALID:
        return _BAD_LENGTH, INVALID
    header_count, position = read_varint(value + max(value_len, 0), end)
    if position == INVALID:
        return _BAD_LENGTH, INVALID
    if header_count < 0 or header_count > end - position:
        return _BAD_HEADERS, INVALID
    if header_count > 0:
        position = _skip_headers(position, end, header_count)
        if position == INVALID:
            return _BAD_HEADERS, INVALID
    if position != end:
        return _BAD_LENGTH, INVALID
    if offset_delta < 0 or offset_delta > batch.last_offset - batch.base_offset:
        return _BAD_RECORD_OFFSET, INVALID
    record.offset = batch.base_offset + offset_delta
    appended = batch.attributes & LOG_APPEND_TIME
    record.timestamp = batch.max_timestamp if appended else batch.base_timestamp + timestamp_delta
    record.tail = tail - memory
    record.end = end - memory
    record.key = key - memory
    record.key_len = key_len
    record.value = value - memory
    record.value_len = value_len
    record.header_count = header_count
    return _OK, end


@entry
def parse(memory: int, batches: Records, records: Records) -> tuple[int, int]:
    """Read the records of all batches: status, and the number of the batch it is about."""
    number = 0
    for at in range(len(batches)):
        batch = batches[at]
        batch.first_record = number
        position = memory + batch.payload
        previous = batch.base_offset - 1
        for _ in range(batch.count):
            record = records[number]
            status, position = _parse_record(memory, position, batch, record)
            if status != _OK:
                return status, at
            if record.offset <= previous:
                return _BAD_RECORD_OFFSET, at
            previous = record.offset
            record.batch = at
            number += 1
        if position != memory + batch.payload + batch.payload_len:
            return _TRAILING, at
        if batch.attributes & CONTROL and batch.count > 0:
            first = records[batch.first_record]
            if first.key_len < _MARKER_KEY_BYTES or load_i16_be(memory + first.key) < 0:
                return _BAD_MARKER, at
            batch.marker = load_i16_be(memory + first.key + _MARKER_TYPE_AT)
    return _OK, len(batches)
