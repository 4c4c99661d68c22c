"""Reads records, and checks every length before it is used.

`parse` reads the records of all batches, unpacked:

1. A record ends inside its batch, and every field inside its record.
2. Offsets ascend and lie within the batch's offsets.
3. Key, value and headers fill the record exactly, and records fill the batch.
4. The first record of a control batch has its type of marker.
"""

from __future__ import annotations

from lithify.datasets.kafka.format.kernel.headers import load_i16_be
from lithify.datasets.kafka.format.kernel.layout import (
    CONTROL,
    LOG_APPEND_TIME,
    KernelStatus,
    Record,
    Records,
)
from lithify.kernel.cache import called, entry, inlined
from lithify.kernel.zigzag import INVALID, read_varint, read_varlong

_MARKER_KEY_BYTES = 4
_MARKER_TYPE_AT = 2
_OK = int(KernelStatus.OK)
_BAD_LENGTH = int(KernelStatus.BAD_LENGTH)
_BAD_RECORD_OFFSET = int(KernelStatus.BAD_RECORD_OFFSET)
_BAD_HEADERS = int(KernelStatus.BAD_HEADERS)
_BAD_MARKER = int(KernelStatus.BAD_MARKER)
_TRAILING = int(KernelStatus.TRAILING)


@inlined
def _read_field(position: int, end: int) -> tuple[int, int]:
    """Return length and address of a key or value; the address is `INVALID` if its bytes exceed `end`."""
    length, position = read_varint(position, end)
    if position == INVALID or length < -1 or length > end - position:
        return 0, INVALID
    return length, position


@called
def _skip_headers(position: int, end: int, count: int) -> int:
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
def read_record(position: int, stop: int) -> tuple[int, int, int, int, int, int, int, int, int, int]:
    """Read and check the record at the address, in a batch that ends at `stop`. Return status, address after
    it, timestamp delta, offset delta, address of the key's length, key and its length, value and its
    length, number of headers."""
    length, position = read_varint(position, stop)
    if position == INVALID or length <= 0 or length > stop - position:
        return _BAD_LENGTH, INVALID, 0, 0, 0, 0, 0, 0, 0, 0
    end = position + length
    timestamp_delta, position = read_varlong(position + 1, end)
    offset_delta, position = read_varint(position, end)
    tail = position
    key_len, key = _read_field(position, end)
    if key == INVALID:
        return _BAD_LENGTH, INVALID, 0, 0, 0, 0, 0, 0, 0, 0
    value_len, value = _read_field(key + max(key_len, 0), end)
    if value == INVALID:
        return _BAD_LENGTH, INVALID, 0, 0, 0, 0, 0, 0, 0, 0
    header_count, position = read_varint(value + max(value_len, 0), end)
    if position == INVALID:
        return _BAD_LENGTH, INVALID, 0, 0, 0, 0, 0, 0, 0, 0
    if header_count < 0 or header_count > end - position:
        return _BAD_HEADERS, INVALID, 0, 0, 0, 0, 0, 0, 0, 0
    if header_count > 0:
        position = _skip_headers(position, end, header_count)
        if position == INVALID:
            return _BAD_HEADERS, INVALID, 0, 0, 0, 0, 0, 0, 0, 0
    if position != end:
        return _BAD_LENGTH, INVALID, 0, 0, 0, 0, 0, 0, 0, 0
    return _OK, end, timestamp_delta, offset_delta, tail, key, key_len, value, value_len, header_count


@inlined
def is_in_order(offset_delta: int, previous_delta: int, last_delta: int) -> bool:
    return previous_delta < offset_delta <= last_delta


@inlined
def timestamp_of(batch: Record, delta: int) -> int:
    """Return a record's timestamp as readers see it: the batch's greatest with log append time."""
    timestamp: int = batch.base_timestamp + delta
    if batch.attributes & LOG_APPEND_TIME:
        timestamp = batch.max_timestamp
    return timestamp


@entry
def parse(memory: int, batches: Records, records: Records) -> tuple[int, int]:
    """Read the records of all batches. Return the status and the index of the batch it is about."""
    number = 0
    for at in range(len(batches)):
        batch = batches[at]
        batch.first_record = number
        position = memory + batch.payload
        stop = position + batch.payload_len
        base_offset = batch.base_offset
        last_delta = batch.last_offset - base_offset
        previous = -1
        for _ in range(batch.count):
            status, position, time, delta, tail, key, key_len, value, value_len, headers = read_record(
                position, stop
            )
            if status != _OK:
                return status, at
            if not is_in_order(delta, previous, last_delta):
                return _BAD_RECORD_OFFSET, at
            previous = delta
            record = records[number]
            record.offset = base_offset + delta
            record.timestamp = timestamp_of(batch, time)
            record.tail = tail - memory
            record.end = position - memory
            record.key = key - memory
            record.key_len = key_len
            record.value = value - memory
            record.value_len = value_len
            record.batch = at
            record.header_count = headers
            number += 1
        if position != stop:
            return _TRAILING, at
        if batch.attributes & CONTROL and batch.count > 0:
            first = records[batch.first_record]
            if first.key_len < _MARKER_KEY_BYTES or load_i16_be(memory + first.key) < 0:
                return _BAD_MARKER, at
            batch.marker = load_i16_be(memory + first.key + _MARKER_TYPE_AT)
    return _OK, len(batches)
