"""Writing what a filter keeps of batches, byte for byte as Kafka's own record filter does.

`rewrite` goes through the batches:

1. Nothing is kept: the batch goes, or stays as a bare header that has its offsets and its producer, no
   codec, no delete horizon, no base timestamp, and the greatest timestamp as it was.
2. Everything is kept, and no delete horizon has to be set: the bytes stay as they are.
3. Otherwise the kept records are written again. Offsets, timestamps, keys, values and headers stay. The
   base timestamp is the delete horizon if there is one, else that of the first record kept. The greatest
   timestamp is that of the records kept, or stays if the broker set it.
4. A delete horizon is set when a tombstone or the marker of an empty transaction is kept and the batch has
   none. It is never set anew.

What has to be compressed is handed to Python, which calls again behind it.

`merge` writes what is kept of several batches as the records of one.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lithify.datasets.kafka.kernel.headers import seal, write_header
from lithify.datasets.kafka.kernel.layout import (
    CODEC_MASK,
    DELETE_HORIZON,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    Record,
    Records,
    Status,
)
from lithify.kernel.cache import called, entry, inlined
from lithify.kernel.memory import copy_bytes, copy_row, store_u8
from lithify.kernel.zigzag import varlong_len, write_varlong

Flags = npt.NDArray[np.bool_]

_OK = int(Status.OK)
_PACK = int(Status.PACK)


@inlined
def _write_record(memory: int, record: Record, base_timestamp: int, base_offset: int, position: int) -> int:
    """Write a record relative to these bases; where it ends."""
    timestamp_delta = record.timestamp - base_timestamp
    offset_delta = record.offset - base_offset
    tail_len: int = record.end - record.tail
    length = 1 + varlong_len(timestamp_delta) + varlong_len(offset_delta) + tail_len
    position = write_varlong(position, length)
    store_u8(position, 0)
    position = write_varlong(position + 1, timestamp_delta)
    position = write_varlong(position, offset_delta)
    copy_row(position, memory + record.tail, tail_len)
    return position + tail_len


@called
def _count_kept(batch: Record, records: Records, keep: Flags) -> tuple[int, bool]:
    """How many records are kept, and whether a tombstone is among them."""
    kept = 0
    has_tombstone = False
    for number in range(batch.first_record, batch.first_record + batch.count):
        if keep[number]:
            kept += 1
            if records[number].value_len < 0:
                has_tombstone = True
    return kept, has_tombstone


@called
def _write_empty(batch: Record, address: int) -> int:
    """Write the bare header; where it ends."""
    attributes = batch.attributes & ~(CODEC_MASK | DELETE_HORIZON)
    write_header(address, batch, attributes, NO_TIMESTAMP, batch.max_timestamp, 0)
    seal(address, HEADER_BYTES)
    return address + HEADER_BYTES


@called
def _write_kept(
    memory: int, batch: Record, records: Records, keep: Flags, kept: int, horizon_ms: int, address: int
) -> int:
    """Write the records kept, uncompressed, with a delete horizon unless it is `NO_TIMESTAMP`; where the
    batch ends."""
    base_timestamp = horizon_ms
    max_timestamp = NO_TIMESTAMP
    first = True
    position = address + HEADER_BYTES
    for number in range(batch.first_record, batch.first_record + batch.count):
        if not keep[number]:
            continue
        record = records[number]
        if first and horizon_ms == NO_TIMESTAMP:
            base_timestamp = record.timestamp
        first = False
        max_timestamp = max(max_timestamp, record.timestamp)
        position = _write_record(memory, record, base_timestamp, batch.base_offset, position)
    attributes = batch.attributes & ~DELETE_HORIZON
    if horizon_ms != NO_TIMESTAMP:
        attributes |= DELETE_HORIZON
    if attributes & LOG_APPEND_TIME:
        max_timestamp = batch.max_timestamp
    write_header(address, batch, attributes, base_timestamp, max_timestamp, kept)
    return position


@entry
def rewrite(
    memory: int,
    batches: Records,
    records: Records,
    keep: Flags,
    retain_empty: Flags,
    empty_marker: Flags,
    new_horizon_ms: int,
    outputs: Records,
) -> int:
    """Write what is kept of the batches from `output.batch` on. `PACK`: the records of one of them lie
    between the header at `batch_start` and `position`, and have to be compressed and sealed."""
    output = outputs[0]
    while output.batch < len(batches):
        batch = batches[output.batch]
        at = output.batch
        output.batch += 1
        address = output.buffer + output.position
        kept, has_tombstone = _count_kept(batch, records, keep)
        if kept == 0:
            if retain_empty[at]:
                output.position = _write_empty(batch, address) - output.buffer
            continue
        horizon_ms = batch.base_timestamp if batch.attributes & DELETE_HORIZON else NO_TIMESTAMP
        set_horizon = horizon_ms == NO_TIMESTAMP and (has_tombstone or empty_marker[at])
        if kept == batch.count and not set_horizon:
            copy_bytes(address, memory + batch.position, batch.size)
            output.position += batch.size
            continue
        if set_horizon:
            horizon_ms = new_horizon_ms
        end = _write_kept(memory, batch, records, keep, kept, horizon_ms, address)
        output.batch_start = output.position
        output.position = end - output.buffer
        if batch.attributes & CODEC_MASK:
            return _PACK
        seal(address, end - address)
    return _OK


@entry
def merge(
    memory: int, records: Records, keep: Flags, merged: Records, horizon_ms: int, address: int
) -> tuple[int, int]:
    """Write the records kept as those of the one batch in `merged`, uncompressed: how many, and where the
    batch ends."""
    batch = merged[0]
    kept, _ = _count_kept(batch, records, keep)
    return kept, _write_kept(memory, batch, records, keep, kept, horizon_ms, address)
