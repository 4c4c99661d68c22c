"""Reads, checks and writes the headers of batches.

`scan` checks each batch before it reads the next:

1. A whole header of message format 2 is there, and the batch ends inside the object.
2. The checksum matches. The caller may verify it later instead, together with the records.
3. Attributes and codec are known.
4. Offsets are not negative, start after those of the previous batch, and leave room for one more; there are
   no more records than offsets.
5. Numbers of a producer are at least -1, and a transactional batch has one; a delete horizon is a time.

Compressed records are not checked here.
"""

from __future__ import annotations

from lithify.datasets.kafka.format.kernel.layout import (
    ATTRIBUTES_AT,
    BASE_SEQUENCE_AT,
    BASE_TIMESTAMP_AT,
    CHECKSUM_AT,
    CODEC_MASK,
    COUNT_AT,
    DELETE_HORIZON,
    HEADER_BYTES,
    KNOWN_ATTRIBUTES,
    LAST_OFFSET_DELTA_AT,
    LEADER_EPOCH_AT,
    LENGTH_AT,
    MAGIC,
    MAGIC_AT,
    MAX_CODEC,
    MAX_TIMESTAMP_AT,
    NO_MARKER,
    PRODUCER_EPOCH_AT,
    PRODUCER_ID_AT,
    TRANSACTIONAL,
    UNCOUNTED_BYTES,
    KernelStatus,
    Record,
    Records,
)
from lithify.kernel.cache import called, entry, inlined
from lithify.kernel.crc32c import crc32c
from lithify.kernel.memory import (
    load_i64_be,
    load_u8,
    load_u16_be,
    load_u32_be,
    store_64_be,
    store_u8,
    store_u16_be,
    store_u32_be,
)

_GREATEST = (1 << 63) - 1
_LEAST_BYTES = MAGIC_AT + 1
_LEAST_MESSAGE_BYTES = 26
_OK = int(KernelStatus.OK)
_CUT_OFF = int(KernelStatus.CUT_OFF)
_BAD_SIZE = int(KernelStatus.BAD_SIZE)
_BAD_MAGIC = int(KernelStatus.BAD_MAGIC)
_BAD_CHECKSUM = int(KernelStatus.BAD_CHECKSUM)
_UNKNOWN_ATTRIBUTES = int(KernelStatus.UNKNOWN_ATTRIBUTES)
_UNKNOWN_CODEC = int(KernelStatus.UNKNOWN_CODEC)
_BAD_OFFSET = int(KernelStatus.BAD_OFFSET)
_BAD_ORDER = int(KernelStatus.BAD_ORDER)
_BAD_COUNT = int(KernelStatus.BAD_COUNT)
_BAD_PRODUCER = int(KernelStatus.BAD_PRODUCER)
_BAD_HORIZON = int(KernelStatus.BAD_HORIZON)


@inlined
def load_i16_be(address: int) -> int:
    number = load_u16_be(address)
    return number - ((number & 0x8000) << 1)


@inlined
def _load_i32_be(address: int) -> int:
    number = load_u32_be(address)
    return number - ((number & 0x80000000) << 1)


@inlined
def is_sound(address: int, size: int) -> bool:
    """Return whether the batch's checksum matches."""
    return crc32c(address + ATTRIBUTES_AT, size - ATTRIBUTES_AT) == load_u32_be(address + CHECKSUM_AT)


@inlined
def _check_bytes(address: int, left: int, with_checksum: bool) -> int:
    """Return `OK` if a whole and undamaged batch begins at the address."""
    if left < _LEAST_BYTES:
        return _CUT_OFF
    if load_u8(address + MAGIC_AT) != MAGIC:
        return _BAD_MAGIC
    if left < HEADER_BYTES:
        return _CUT_OFF
    size = UNCOUNTED_BYTES + _load_i32_be(address + LENGTH_AT)
    if size < HEADER_BYTES:
        return _BAD_SIZE
    if size > left:
        return _CUT_OFF
    if with_checksum and not is_sound(address, size):
        return _BAD_CHECKSUM
    return _OK


@inlined
def _read(address: int, position: int, batch: Record) -> None:
    batch.position = position
    batch.size = UNCOUNTED_BYTES + _load_i32_be(address + LENGTH_AT)
    batch.base_offset = load_i64_be(address)
    batch.last_offset = _load_i32_be(address + LAST_OFFSET_DELTA_AT)
    batch.leader_epoch = _load_i32_be(address + LEADER_EPOCH_AT)
    batch.attributes = load_u16_be(address + ATTRIBUTES_AT)
    batch.base_timestamp = load_i64_be(address + BASE_TIMESTAMP_AT)
    batch.max_timestamp = load_i64_be(address + MAX_TIMESTAMP_AT)
    batch.producer_id = load_i64_be(address + PRODUCER_ID_AT)
    batch.producer_epoch = load_i16_be(address + PRODUCER_EPOCH_AT)
    batch.base_sequence = _load_i32_be(address + BASE_SEQUENCE_AT)
    batch.count = _load_i32_be(address + COUNT_AT)
    batch.payload = position + HEADER_BYTES
    batch.payload_len = batch.size - HEADER_BYTES
    batch.first_record = 0
    batch.marker = NO_MARKER


@inlined
def _check_numbers(batch: Record, previous_last: int) -> int:
    """Check the header's numbers, and replace the delta in `last_offset` by the offset."""
    attributes = batch.attributes
    if attributes > KNOWN_ATTRIBUTES:
        return _UNKNOWN_ATTRIBUTES
    if attributes & CODEC_MASK > MAX_CODEC:
        return _UNKNOWN_CODEC
    base, delta = batch.base_offset, batch.last_offset
    if base < 0 or delta < 0 or base >= _GREATEST - delta:
        return _BAD_OFFSET
    if batch.count < 0 or batch.count > delta + 1:
        return _BAD_COUNT
    if min(batch.producer_id, batch.producer_epoch, batch.base_sequence) < -1:
        return _BAD_PRODUCER
    if attributes & TRANSACTIONAL and batch.producer_id < 0:
        return _BAD_PRODUCER
    if attributes & DELETE_HORIZON and batch.base_timestamp < 0:
        return _BAD_HORIZON
    if base <= previous_last:
        return _BAD_ORDER
    batch.last_offset = base + delta
    return _OK


@entry
def scan(
    data: int, length: int, previous_last: int, with_checksum: bool, batches: Records
) -> tuple[int, int, int]:
    """Read and check the headers of all batches. Return status, number of whole batches, and the position
    where reading stopped. If a batch's bytes are sound but its numbers are refused, its header is in the
    element after the last."""
    position = 0
    count = 0
    while position < length:
        status = _check_bytes(data + position, length - position, with_checksum)
        if status != _OK:
            return status, count, position
        batch = batches[count]
        _read(data + position, position, batch)
        status = _check_numbers(batch, previous_last)
        if status != _OK:
            return status, count, position
        previous_last = batch.last_offset
        position += batch.size
        count += 1
    return _OK, count, position


@inlined
def _least_bytes(address: int) -> int:
    """Return the least size of a batch, or of a message of an older format (`legacy.py`)."""
    return HEADER_BYTES if load_u8(address + MAGIC_AT) == MAGIC else _LEAST_MESSAGE_BYTES


@entry
def first_legacy(data: int, position: int, length: int) -> int:
    """Return the first position from `position` on of a message of format 0 or 1 among whole batches; -1 if
    there is none before something that is neither."""
    while position + _LEAST_BYTES <= length:
        size = UNCOUNTED_BYTES + _load_i32_be(data + position + LENGTH_AT)
        if load_u8(data + position + MAGIC_AT) < MAGIC and size >= _LEAST_MESSAGE_BYTES:
            return position
        if load_u8(data + position + MAGIC_AT) != MAGIC or size < HEADER_BYTES:
            return -1
        position += size
    return -1


@entry
def whole_batches(data: int, length: int, most: int) -> tuple[int, int]:
    """Return where the last whole batch within `most` bytes ends (the first may be larger), and the size of
    the next: 0 if it cannot be a batch, `UNCOUNTED_BYTES` if even its size or format is missing. Messages of
    older formats count as batches."""
    position = 0
    while position + _LEAST_BYTES <= length:
        size = UNCOUNTED_BYTES + _load_i32_be(data + position + LENGTH_AT)
        if size < _least_bytes(data + position):
            return position, 0
        end = position + size
        if end > length or (position > 0 and end > most):
            return position, size
        position = end
    return position, UNCOUNTED_BYTES


@called
def write_header(
    address: int, batch: Record, attributes: int, base_timestamp: int, max_timestamp: int, count: int
) -> None:
    """Write the header of `batch` with these changes, without the fields that `seal` writes."""
    store_64_be(address, batch.base_offset)
    store_u32_be(address + LEADER_EPOCH_AT, batch.leader_epoch)
    store_u8(address + MAGIC_AT, MAGIC)
    store_u16_be(address + ATTRIBUTES_AT, attributes)
    store_u32_be(address + LAST_OFFSET_DELTA_AT, batch.last_offset - batch.base_offset)
    store_64_be(address + BASE_TIMESTAMP_AT, base_timestamp)
    store_64_be(address + MAX_TIMESTAMP_AT, max_timestamp)
    store_64_be(address + PRODUCER_ID_AT, batch.producer_id)
    store_u16_be(address + PRODUCER_EPOCH_AT, batch.producer_epoch)
    store_u32_be(address + BASE_SEQUENCE_AT, batch.base_sequence)
    store_u32_be(address + COUNT_AT, count)


@called
def seal(address: int, size: int) -> None:
    """Write length and checksum of a batch that is otherwise complete."""
    store_u32_be(address + LENGTH_AT, size - UNCOUNTED_BYTES)
    store_u32_be(address + CHECKSUM_AT, crc32c(address + ATTRIBUTES_AT, size - ATTRIBUTES_AT))


@entry
def seal_batch(address: int, size: int) -> None:
    seal(address, size)
