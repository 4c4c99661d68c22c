"""The reader of rows: a cursor over one source's blocks that checks every length before use.

`next_row` moves a source to its next row inside its key bounds:

1. At the end of a block, open the next one: verify the checksum, decompress, transcode format 1 into format
   2, check the restart array. After the last block the source asks for its next window or SST, or is
   exhausted.
2. Decode one row: three varints, key suffix, value, sequence number, flags, timestamps.
3. Check the order: keys ascend; sequence numbers of one key descend.
4. Restore the key in the source's key buffer, which has the shared prefix already.
5. Skip rows before the start; the first row at or after the end ends the SST.
6. Check the task's common prefix where this row's key could differ. The merge first compares the eight bytes
   after it as one number, zero-padded. That number is computed from the previous row's and the new bytes:
   loading it from the key buffer would wait for the stores just made.

A row is accepted completely, or the source is left unchanged.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lithify.datasets.slatedb.kernel.codecs import unpack_block
from lithify.datasets.slatedb.kernel.keys import common_length, compare_keys
from lithify.datasets.slatedb.kernel.layout import (
    ALL_FLAGS,
    CHECKSUM_BYTES,
    HAS_CREATE,
    HAS_EXPIRE,
    MERGE,
    ROW_FIXED_BYTES,
    TOMBSTONE,
    KernelStatus,
    Record,
)
from lithify.datasets.slatedb.kernel.rows_v1 import transcode_block, transcoded_size
from lithify.datasets.slatedb.kernel.varint import read_varint
from lithify.kernel.cache import called, inlined
from lithify.kernel.crc32 import crc32
from lithify.kernel.memory import (
    copy_key,
    load_i64,
    load_i64_be,
    load_u8,
    load_u16_be,
    load_u32_be,
    load_u64_be,
)

_NO_COMPRESSION = 0
_FORMAT_1 = 1
_WORD_BYTES = 8
_LEAST = np.uint64(0)
_GREATEST = np.uint64(0xFFFFFFFFFFFFFFFF)

_OK = int(KernelStatus.OK)
_DONE = int(KernelStatus.DONE)
_NEED_INPUT = int(KernelStatus.NEED_INPUT)
_NEED_KEY_SPACE = int(KernelStatus.NEED_KEY_SPACE)
_NEED_TRANSCODE_SPACE = int(KernelStatus.NEED_TRANSCODE_SPACE)
_BAD_CHECKSUM = int(KernelStatus.BAD_CHECKSUM)
_BAD_RESTARTS = int(KernelStatus.BAD_RESTARTS)
_BAD_LENGTH = int(KernelStatus.BAD_LENGTH)
_BAD_SHARED = int(KernelStatus.BAD_SHARED)
_BAD_FLAGS = int(KernelStatus.BAD_FLAGS)
_BAD_KEY = int(KernelStatus.BAD_KEY)
_BAD_ORDER = int(KernelStatus.BAD_ORDER)
_BAD_BOUNDS = int(KernelStatus.BAD_BOUNDS)


@called
def _transcode(source: Record, address: int, length: int) -> tuple[int, int, int]:
    """Transcode a block into format 2. Return status, address and length."""
    size = transcoded_size(address, length)
    if size < 0:
        return -size, 0, 0
    if size > source.transcoded_capacity:
        source.needed = size
        return _NEED_TRANSCODE_SPACE, 0, 0
    transcode_block(address, length, source.transcoded)
    return _OK, source.transcoded, size


@called
def open_block(source: Record, codecs: Record) -> int:
    """Open the next block; return `DONE` after the last one of the last SST."""
    block = source.block + 1
    if block >= source.block_end:
        return _NEED_INPUT if source.more_ssts else _DONE
    if block >= source.window_end:
        return _NEED_INPUT
    offset = load_i64(source.offsets + 8 * block)
    address = source.window_base + offset
    length = load_i64(source.offsets + 8 * block + 8) - offset - CHECKSUM_BYTES
    if crc32(address, length) != load_u32_be(address + length):
        return _BAD_CHECKSUM
    if source.codec != _NO_COMPRESSION:
        status, address, length = unpack_block(source, codecs, address, length)
        if status != _OK:
            return status
    if source.row_format == _FORMAT_1:
        status, address, length = _transcode(source, address, length)
        if status != _OK:
            return status
    if length < 2:
        return _BAD_RESTARTS
    rows_len = length - 2 - 2 * load_u16_be(address + length - 2)
    if rows_len <= 0 or rows_len == length - 2:
        return _BAD_RESTARTS
    source.block = block
    source.cursor = address
    source.rows_end = address + rows_len
    source.shareable = 0
    return _OK


@inlined
def _in_order(source: Record, suffix: int, suffix_len: int, shared: int, seq: Any) -> bool:
    """Return whether the row may follow the current one, with which it shares `shared` key bytes."""
    order = compare_keys(suffix, suffix_len, source.key + shared, source.key_len - shared)
    return order > 0 or (order == 0 and seq < source.seq)


@called
def _has_common_prefix(source: Record) -> bool:
    length = source.common_len
    return bool(source.key_len >= length and common_length(source.key, source.common, length) == length)


@inlined
def _prefix_of(source: Record, suffix: int, shared: int, key_len: int) -> Any:
    """Return the eight bytes of a key from `common_len` on, even without the common prefix. The key shares
    `shared` bytes with the current key, whose eight bytes are `source.prefix`. Its rest is at `suffix`,
    followed by more than eight bytes of the row."""
    length = key_len - source.common_len
    if length <= 0:
        return _LEAST
    behind = shared - source.common_len
    if behind <= 0:
        prefix = load_u64_be(suffix - behind)
    elif behind < _WORD_BYTES:
        kept = _GREATEST << np.uint64(64 - 8 * behind)
        prefix = (source.prefix & kept) | (load_u64_be(suffix) >> np.uint64(8 * behind))
    else:
        prefix = source.prefix
    if length < _WORD_BYTES:
        prefix &= ~(_GREATEST >> np.uint64(8 * length))
    return prefix


@inlined
def decode_row(source: Record) -> int:
    """Decode the row at the cursor and move the cursor past it."""
    end = source.rows_end
    shared, position = read_varint(source.cursor, end)
    unshared, position = read_varint(position, end)
    value_len, position = read_varint(position, end)
    if (shared | unshared | value_len) < 0:
        return _BAD_LENGTH
    if shared > source.shareable:
        return _BAD_SHARED
    value = position + unshared
    fixed = value + value_len
    if fixed + ROW_FIXED_BYTES > end:
        return _BAD_LENGTH
    flags = load_u8(fixed + 8)
    if flags > ALL_FLAGS or flags & (TOMBSTONE | MERGE) == TOMBSTONE | MERGE:
        return _BAD_FLAGS
    if flags & TOMBSTONE and value_len > 0:
        return _BAD_FLAGS
    row_end = fixed + ROW_FIXED_BYTES
    expire_ms = 0
    if flags & (HAS_EXPIRE | HAS_CREATE):
        row_end += 4 * (flags & HAS_EXPIRE) + 2 * (flags & HAS_CREATE)
        if row_end > end:
            return _BAD_LENGTH
        if flags & HAS_EXPIRE:
            expire_ms = load_i64_be(fixed + ROW_FIXED_BYTES)
    key_len = shared + unshared
    if key_len == 0:
        return _BAD_KEY
    if key_len > source.key_capacity:
        source.needed = key_len
        return _NEED_KEY_SPACE
    seq = load_u64_be(fixed)
    if source.has_previous and not _in_order(source, position, unshared, shared, seq):
        return _BAD_ORDER
    source.prefix = _prefix_of(source, position, shared, key_len)
    copy_key(source.key + shared, position, unshared)
    source.key_len = key_len
    source.shareable = key_len
    source.has_previous = 1
    source.value = value
    source.value_len = value_len
    source.tail_len = row_end - value
    source.seq = seq
    source.flags = flags
    source.expire_ms = expire_ms
    source.cursor = row_end
    if shared < source.common_len and not _has_common_prefix(source):
        return _BAD_BOUNDS
    return _OK


@called
def _is_before_start(source: Record) -> bool:
    return bool(
        source.check_start and compare_keys(source.key, source.key_len, source.start, source.start_len) < 0
    )


@called
def _is_behind_end(source: Record) -> bool:
    return bool(
        source.check_end and compare_keys(source.key, source.key_len, source.end, source.end_len) >= 0
    )


@called
def _end_sst(source: Record) -> None:
    source.block = source.block_end
    source.cursor = source.rows_end


@called
def _exhaust(source: Record) -> None:
    source.exhausted = 1
    source.prefix = _GREATEST
    source.key_len = 0


@inlined
def next_row(source: Record, codecs: Record) -> int:
    """Move to the next row inside the bounds, or mark the source as exhausted."""
    while True:
        if source.cursor >= source.rows_end:
            status = open_block(source, codecs)
            if status == _DONE:
                _exhaust(source)
                return _OK
            if status != _OK:
                return status
        status = decode_row(source)
        if status == _BAD_BOUNDS:
            # Rows outside the bounds need not share the common prefix.
            if _is_before_start(source):
                continue
            if not _is_behind_end(source):
                return status
            _end_sst(source)
            continue
        if status != _OK:
            return status
        if source.check_start:
            if _is_before_start(source):
                continue
            source.check_start = 0
        if source.prefix >= source.end_prefix and _is_behind_end(source):
            _end_sst(source)
            continue
        return _OK
