"""Writes the kept records of batches, byte for byte as Kafka's own record filter does.

`rewrite` handles each batch:

1. Without kept records, the batch is removed, or stays as a bare header with its offsets, producer and
   greatest timestamp, without codec, delete horizon and base timestamp.
2. If all are kept and no delete horizon has to be set, the bytes stay as they are.
3. Otherwise the kept records are written again, unchanged but for deltas. The base timestamp is the delete
   horizon if there is one, else that of the first kept record. The greatest timestamp is that of the kept
   records, or unchanged if the broker set it.
4. A delete horizon is set if a tombstone or the marker of an empty transaction is kept and the batch has
   none. It never changes later.

Records are read, checked and filtered one by one (`records`, `retaining`), noted in a scratch array that fits
the processor's cache, and written from there. An error status is about the batch before `output.batch`, of
which nothing is written. `PACK` returns a batch to Python for compression; the next call continues after it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lithify.datasets.kafka.format.kernel.headers import is_sound, seal, write_header
from lithify.datasets.kafka.format.kernel.layout import (
    CODEC_MASK,
    DELETE_HORIZON,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    KernelStatus,
    Record,
    Records,
)
from lithify.datasets.kafka.format.kernel.records import is_in_order, read_record, timestamp_of
from lithify.datasets.kafka.format.kernel.retaining import (
    EMPTY_MARKER,
    RETAIN_EMPTY,
    RemovalReason,
    Tally,
    Verdicts,
    is_among,
    is_usual,
    offset_at,
    reason_of,
)
from lithify.kernel.cache import called, entry, inlined
from lithify.kernel.memory import SLACK, borrowed, copy_bytes, copy_row, store_u8
from lithify.kernel.zigzag import varlong_len, write_varlong

Flags = npt.NDArray[np.bool_]

_OK = int(KernelStatus.OK)
_PACK = int(KernelStatus.PACK)
_TRAILING = int(KernelStatus.TRAILING)
_BAD_CHECKSUM = int(KernelStatus.BAD_CHECKSUM)
_BAD_RECORD_OFFSET = int(KernelStatus.BAD_RECORD_OFFSET)
_STAYS = int(RemovalReason.STAYS)
_SUPERSEDED = int(RemovalReason.SUPERSEDED)


@inlined
def _write_record(
    memory: int, end: int, record: Record, base_timestamp: int, base_offset: int, position: int
) -> int:
    """Write a record relative to these bases; return its end. Never reads at or after `end`."""
    timestamp_delta = record.timestamp - base_timestamp
    offset_delta = record.offset - base_offset
    tail_len: int = record.end - record.tail
    length = 1 + varlong_len(timestamp_delta) + varlong_len(offset_delta) + tail_len
    position = write_varlong(position, length)
    store_u8(position, 0)
    position = write_varlong(position + 1, timestamp_delta)
    position = write_varlong(position, offset_delta)
    if record.end + SLACK <= end:
        copy_row(position, memory + record.tail, tail_len)
    else:
        copy_bytes(position, memory + record.tail, tail_len)
    return position + tail_len


@called
def _write_empty(batch: Record, address: int) -> int:
    """Write the bare header; return its end."""
    attributes = batch.attributes & ~(CODEC_MASK | DELETE_HORIZON)
    write_header(address, batch, attributes, NO_TIMESTAMP, batch.max_timestamp, 0)
    seal(address, HEADER_BYTES)
    return address + HEADER_BYTES


@called
def _write_kept(
    memory: int, end: int, batch: Record, kept: Records, count: int, horizon_ms: int, address: int
) -> int:
    """Write the first records of `kept`, uncompressed, with a delete horizon unless that is `NO_TIMESTAMP`;
    return the batch's end."""
    base_timestamp = kept[0].timestamp if horizon_ms == NO_TIMESTAMP else horizon_ms
    base_offset = batch.base_offset
    max_timestamp = NO_TIMESTAMP
    position = address + HEADER_BYTES
    for number in range(count):
        record = kept[number]
        max_timestamp = max(max_timestamp, record.timestamp)
        position = _write_record(memory, end, record, base_timestamp, base_offset, position)
    attributes = batch.attributes & ~DELETE_HORIZON
    if horizon_ms != NO_TIMESTAMP:
        attributes |= DELETE_HORIZON
    if attributes & LOG_APPEND_TIME:
        max_timestamp = batch.max_timestamp
    write_header(address, batch, attributes, base_timestamp, max_timestamp, count)
    return position


@called
def _read_kept(
    memory: int,
    batch: Record,
    verdict: int,
    way: Record,
    kept: Records,
    tally: Tally,
) -> tuple[int, int, bool]:
    """Read the batch's records into `kept`, where the next record overwrites a removed one. Return status,
    number of kept records, and whether a tombstone is among them."""
    position = memory + batch.payload
    stop = position + batch.payload_len
    base_offset = batch.base_offset
    last_delta = batch.last_offset - base_offset
    previous = -1
    dead_at, dead_end = way.dead, way.dead_end
    next_dead = offset_at(dead_at, dead_end)
    count = 0
    superseded = 0
    has_tombstone = False
    for _ in range(batch.count):
        status, position, time, delta, tail, _, key_len, _, value_len, _ = read_record(position, stop)
        if status != _OK:
            return status, 0, False
        if not is_in_order(delta, previous, last_delta):
            return _BAD_RECORD_OFFSET, 0, False
        previous = delta
        offset = base_offset + delta
        record = kept[count]
        record.offset = offset
        record.timestamp = timestamp_of(batch, time)
        record.tail = tail - memory
        record.end = position - memory
        is_dead, dead_at, next_dead = is_among(dead_at, dead_end, next_dead, offset)
        if is_usual(verdict, offset, key_len, value_len, way):
            superseded += is_dead
            count += 1 - is_dead
        else:
            reason = reason_of(verdict, offset, key_len, value_len, is_dead, way)
            if reason == _STAYS:
                count += 1
                has_tombstone |= value_len < 0
            else:
                tally[reason] += 1
    way.dead = dead_at
    tally[_STAYS] += count
    tally[_SUPERSEDED] += superseded
    return _OK if position == stop else _TRAILING, count, has_tombstone


@entry
def rewrite(
    memory: int,
    end: int,
    batches: Records,
    verdicts: Verdicts,
    ways: Records,
    kept: Records,
    tally: Tally,
    outputs: Records,
) -> int:
    """Write the kept records of the batches from `output.batch` on, and count records by reason. `kept` has
    room for the records of any batch; memory ends at the position `end`. After `PACK`, the records between
    the header at `batch_start` and `position` have to be compressed and sealed."""
    batches, verdicts, kept, tally = borrowed(batches), borrowed(verdicts), borrowed(kept), borrowed(tally)
    way, output = ways[0], outputs[0]
    while output.batch < len(batches):
        batch, verdict = batches[output.batch], int(verdicts[output.batch])
        output.batch += 1
        address = output.buffer + output.position
        if not is_sound(memory + batch.position, batch.size):
            return _BAD_CHECKSUM
        status, count, has_tombstone = _read_kept(memory, batch, verdict, way, kept, tally)
        if status != _OK:
            return status
        if count == 0:
            if verdict & RETAIN_EMPTY:
                output.position = _write_empty(batch, address) - output.buffer
            continue
        horizon_ms = batch.base_timestamp if batch.attributes & DELETE_HORIZON else NO_TIMESTAMP
        set_horizon = horizon_ms == NO_TIMESTAMP and (has_tombstone or verdict & EMPTY_MARKER)
        if count == batch.count and not set_horizon:
            copy_bytes(address, memory + batch.position, batch.size)
            output.position += batch.size
            continue
        if set_horizon:
            horizon_ms = way.new_horizon_ms
        written = _write_kept(memory, end, batch, kept, count, horizon_ms, address)
        output.batch_start = output.position
        output.position = written - output.buffer
        if batch.attributes & CODEC_MASK:
            return _PACK
        seal(address, written - address)
    return _OK


@entry
def merge(memory: int, end: int, records: Records, merged: Records, horizon_ms: int, address: int) -> int:
    """Write the records, at least one, as the one batch in `merged`, uncompressed; return its end."""
    records = borrowed(records)
    return _write_kept(memory, end, merged[0], records, len(records), horizon_ms, address)
