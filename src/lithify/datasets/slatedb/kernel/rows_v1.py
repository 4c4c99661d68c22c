"""Transcoding of blocks of SST format 1 into format 2.

A row of format 1 shares a prefix with the *first* row of its block and has its value last. The block ends
with the offsets of all rows and their count.

1. `transcoded_size` walks the rows once, checks every length against the block and sums their sizes in format
   2, where no row shares anything with another. Row offsets have 16 bits, so rows must start in the first 64
   KiB: otherwise thousands of rows that share a long first key could turn a megabyte into gigabytes.
2. `transcode_block` writes that block. It relies on these checks.

The expiry time of a tombstone is dropped, as in SlateDB's reader. The written block has a single restart
point, which is enough for the reader in `rows`.
"""

from __future__ import annotations

from lithify.datasets.slatedb.kernel.layout import (
    ALL_FLAGS,
    HAS_CREATE,
    HAS_EXPIRE,
    MERGE,
    ROW_FIXED_BYTES,
    TOMBSTONE,
    KernelStatus,
)
from lithify.datasets.slatedb.kernel.varint import varint_len, write_varint
from lithify.kernel.cache import called, inlined
from lithify.kernel.memory import (
    copy_bytes,
    load_u8,
    load_u16_be,
    load_u32_be,
    store_u8,
    store_u16_be,
)

_KEY_LENGTHS_BYTES = 4
_SEQ_BYTES = 8
_VALUE_LEN_BYTES = 4
_TRAILER_BYTES = 4
_MAX_ROW_OFFSET = (1 << 16) - 1

_BAD_RESTARTS = int(KernelStatus.BAD_RESTARTS)
_BAD_LENGTH = int(KernelStatus.BAD_LENGTH)
_BAD_SHARED = int(KernelStatus.BAD_SHARED)
_BAD_FLAGS = int(KernelStatus.BAD_FLAGS)


@inlined
def _timestamps_len(flags: int) -> int:
    return 4 * (flags & HAS_EXPIRE) + 2 * (flags & HAS_CREATE)


@inlined
def _kept_flags(flags: int) -> int:
    return flags & ~HAS_EXPIRE if flags & TOMBSTONE else flags


@called
def _row_sizes(position: int, end: int, first_key_len: int) -> tuple[int, int]:
    """Return a row's size in formats 1 and 2; a negated status if it is corrupt."""
    left = end - position
    if left < _KEY_LENGTHS_BYTES + ROW_FIXED_BYTES:
        return -_BAD_LENGTH, 0
    shared = load_u16_be(position)
    unshared = load_u16_be(position + 2)
    if shared > first_key_len:
        return -_BAD_SHARED, 0
    size = _KEY_LENGTHS_BYTES + unshared + ROW_FIXED_BYTES
    if size > left:
        return -_BAD_LENGTH, 0
    flags = load_u8(position + size - 1)
    if flags > ALL_FLAGS or flags & (TOMBSTONE | MERGE) == TOMBSTONE | MERGE:
        return -_BAD_FLAGS, 0
    size += _timestamps_len(flags)
    value_len = 0
    if not flags & TOMBSTONE:
        size += _VALUE_LEN_BYTES
        if size > left:
            return -_BAD_LENGTH, 0
        value_len = load_u32_be(position + size - _VALUE_LEN_BYTES)
        size += value_len
    if size > left:
        return -_BAD_LENGTH, 0
    key_len = shared + unshared
    lengths = varint_len(0) + varint_len(key_len) + varint_len(value_len)
    return size, lengths + key_len + value_len + ROW_FIXED_BYTES + _timestamps_len(_kept_flags(flags))


@called
def transcoded_size(address: int, length: int) -> int:
    """Return the block's size in format 2; a negated status if it is corrupt."""
    if length < 2:
        return -_BAD_RESTARTS
    row_count = load_u16_be(address + length - 2)
    rows_len = length - 2 - 2 * row_count
    if row_count == 0 or rows_len <= 0:
        return -_BAD_RESTARTS
    end = address + rows_len
    position = address
    first_key_len = 0
    total = _TRAILER_BYTES
    for row in range(row_count):
        if position - address > _MAX_ROW_OFFSET:
            return -_BAD_RESTARTS
        size, size_v2 = _row_sizes(position, end, first_key_len)
        if size < 0:
            return size
        if row == 0:
            first_key_len = load_u16_be(position + 2)
        position += size
        total += size_v2
    return total if position == end else -_BAD_RESTARTS


@called
def _transcode_row(position: int, first_key: int, target: int) -> tuple[int, int]:
    """Write one row. Return its end in the source and in the target."""
    shared = load_u16_be(position)
    unshared = load_u16_be(position + 2)
    suffix = position + _KEY_LENGTHS_BYTES
    fixed = suffix + unshared
    flags = load_u8(fixed + _SEQ_BYTES)
    kept_flags = _kept_flags(flags)
    value = fixed + ROW_FIXED_BYTES + _timestamps_len(flags)
    value_len = 0
    if not flags & TOMBSTONE:
        value_len = load_u32_be(value)
        value += _VALUE_LEN_BYTES
    target = write_varint(target, 0)
    target = write_varint(target, shared + unshared)
    target = write_varint(target, value_len)
    copy_bytes(target, first_key, shared)
    copy_bytes(target + shared, suffix, unshared)
    target += shared + unshared
    copy_bytes(target, value, value_len)
    target += value_len
    copy_bytes(target, fixed, _SEQ_BYTES)
    store_u8(target + _SEQ_BYTES, kept_flags)
    target += ROW_FIXED_BYTES
    kept_len = _timestamps_len(kept_flags)
    copy_bytes(target, fixed + ROW_FIXED_BYTES + _timestamps_len(flags) - kept_len, kept_len)
    return value + value_len, target + kept_len


@called
def transcode_block(address: int, length: int, target: int) -> None:
    """Write the block in format 2 to `target`, which has room for `transcoded_size` bytes."""
    row_count = load_u16_be(address + length - 2)
    first_key = address + _KEY_LENGTHS_BYTES
    position = address
    for _ in range(row_count):
        position, target = _transcode_row(position, first_key, target)
    store_u16_be(target, 0)
    store_u16_be(target + 2, 1)
